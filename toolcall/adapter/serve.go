package adapter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"unicode"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/calmlog"
	"github.com/oncehttp/oncehttp/toolcall"
)

// A Served call is one that a server of tools was sent under a key, over a protocol that speaks
// JSON-RPC: the other end of a call that a Runner makes.
type Served struct {
	// Protocol keeps the keys of several protocols over one store apart.
	Protocol string
	// Tool and Args are what is called. Equal calls are those of one tool whose arguments
	// are equal by value.
	Tool string
	Args json.RawMessage
	// Key names the call, written as an Idempotency-Key header would be. Anything but a
	// string that is a valid key is refused.
	Key any
	// Who asks, from an identity that was verified, and Kind is of what sort that is. A
	// Kind without a Who is refused. Without both, the record is bound to the credentials
	// in Header, if there are any: Authorization, X-Api-Key or Cookie.
	Kind, Who string
	Header    http.Header
}

// An End is how a tool ended a call.
type End struct {
	Result any       // anything that has a JSON form; not looked at if there is an Err
	Failed bool      // the result tells of a failure
	Again  bool      // nothing happened yet: the call comes again, under its key
	Err    error     // in place of a result
	Wire   *RPCError // what Err, or an error that it wraps, is on the wire; nil: only a text
}

// failure is the RPCError of an end without a result, and otherwise nil.
func (e *End) failure() *RPCError {
	switch {
	case e.Err == nil && e.Result == nil:
		return &RPCError{Message: "the tool gave no result"}
	case e.Err == nil:
		return nil
	case e.Wire == nil:
		return &RPCError{Message: e.Err.Error()}
	}
	return &RPCError{e.Wire.Code, e.Err.Error(), e.Wire.Data}
}

// A Reply is what a call is answered with.
type Reply struct {
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *RPCError       `json:"error,omitempty"`
	Repeated bool            `json:"-"` // the tool was not run for this call
}

// Once runs the call unless it was run before, and returns how it ended: the first call as its
// repeats will be told. Whatever run returns is recorded, errors and panics too, since what
// failed may have acted; over a store with transactions a failure rolls back instead.
func (c *Served) Once(ctx context.Context, once *oncehttp.Once, run func(context.Context) End) Reply {
	op, refused := c.op()
	if refused != nil {
		return Reply{Error: refused}
	}
	a, err := once.Do(ctx, op, func(ctx context.Context) (head, body []byte, err error) {
		end := c.contained(ctx, once.Logger, run)
		reply := Reply{Error: end.failure()}
		failed := end.Failed || reply.Error != nil
		if _, tx := once.Store.(oncehttp.Transactor); failed && tx || reply.Error == nil && end.Again {
			oncehttp.Release(ctx)
		}
		return c.record(reply, end.Result, failed)
	})
	if err != nil {
		return Reply{Error: rpcRefusal(err)}
	}
	reply := Reply{Repeated: a.Kind == oncehttp.OutcomeReplayed || a.Kind == oncehttp.OutcomeAttached}
	if json.Unmarshal(a.Body, &reply) != nil || reply.Result == nil && reply.Error == nil {
		reply.Error = rpcRefusal(oncehttp.ErrResponseGone)
	}
	return reply
}

// Decode reads the result into each of what it is given, and numbers of no certain type into
// [json.Number], which has all their digits. It returns the error that the call ended with, or
// one that says that its result can no longer be read.
func (r *Reply) Decode(into ...any) *RPCError {
	if r.Error != nil {
		return r.Error
	}
	for _, v := range into {
		d := json.NewDecoder(bytes.NewReader(r.Result))
		d.UseNumber()
		if d.Decode(v) != nil {
			return rpcRefusal(oncehttp.ErrResponseGone)
		}
	}
	return nil
}

// op names the call, what it asks for and who asks.
func (c *Served) op() (op oncehttp.Op, refused *RPCError) {
	text, _ := c.Key.(string)
	key, err := oncehttp.ParseKey(http.Header{oncehttp.Header: {text}})
	if err != nil {
		return op, rpcRefusal(err)
	}
	asked, err := toolcall.Key(nil, c.Protocol, c.Tool, "", c.Args, 0)
	switch {
	case err != nil:
		return op, &RPCError{Code: InvalidParams, Message: "with a key, arguments must be a JSON object that all readers read alike; nothing was run"}
	case c.Kind != "" && c.Who == "":
		return op, &RPCError{Code: InternalError, Message: "the server cannot tell who is asking; nothing was run"}
	}
	kind := c.Kind
	if kind == "" {
		kind = "anybody"
		for _, name := range [...]string{"Authorization", "X-Api-Key", "Cookie"} {
			if secret := c.Header.Get(name); secret != "" {
				op.Binding = sha256.Sum256([]byte(key + "\x00" + secret))
				break
			}
		}
	}
	op.Key = oncehttp.DeriveKey(c.Protocol, kind, c.Who, key)
	op.Fingerprint = sha256.Sum256([]byte(asked))
	return op, nil
}

// contained runs the tool. A panic of it is how the call ended.
func (c *Served) contained(ctx context.Context, log *slog.Logger, run func(context.Context) End) (end End) {
	defer Contain(ctx, log, c.Protocol, shown(c.Tool), func(e *RPCError) { end = End{Err: e, Wire: e} })
	return run(ctx)
}

// record is what is kept of a call. Its head is like that of a Runner's call, so that
// operators find both in one view.
func (c *Served) record(reply Reply, result any, failed bool) (head, body []byte, err error) {
	defer func() { // in what a result brings to write itself as JSON
		if p := recover(); p != nil {
			err = fmt.Errorf("writing the result panicked: a value of type %T", p)
		}
	}()
	h := struct {
		Tool    string           `json:"tool"`
		Version int              `json:"v"`
		Status  toolcall.Status  `json:"status"`
		Outcome toolcall.Outcome `json:"outcome"`
	}{shown(c.Tool), 1, toolcall.StatusOK, toolcall.OutcomeApplied}
	if failed {
		h.Status, h.Outcome = toolcall.StatusFailed, toolcall.OutcomeUnknown
	}
	if reply.Error == nil {
		if reply.Result, err = json.Marshal(result); err != nil {
			return nil, nil, errors.New("the result cannot be written as JSON") // err may quote it
		}
	}
	if body, err = json.Marshal(reply); err == nil {
		head, err = json.Marshal(h)
	}
	return head, body, err
}

// shown is a tool's name as operators see it. One that there is not is the caller's words.
func shown(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(name[:min(len(name), 128)], ""))
}

// Contain is deferred by what handles a server's requests. It logs a panic, by its type since
// its value may quote anything, and calls failed with what the caller is told.
func Contain(ctx context.Context, log *slog.Logger, protocol, what string, failed func(*RPCError)) {
	p := recover()
	if p == nil {
		return
	}
	calmlog.Logger(log).ErrorContext(ctx, protocol+": a handler panicked", "handling", what, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
	failed(&RPCError{Code: InternalError, Message: "the handler failed; it may have taken effect"})
}
