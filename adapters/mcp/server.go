// Package oncemcp makes tools/call of the Model Context Protocol take effect once for a key,
// over github.com/modelcontextprotocol/go-sdk. docs/mcp.md tells how.
package oncemcp

import (
	"cmp"
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

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
)

// Key is the member of a call's _meta that holds its key, as an Idempotency-Key header would.
// Replayed is the member of a result's _meta that says that this call did not run the tool.
const (
	Key      = "io.github.oncehttp/idempotency-key"
	Replayed = "io.github.oncehttp/replayed"
)

// Middleware is for [sdk.Server.AddReceivingMiddleware]. A tools/call with a Key runs once;
// repeats get its result, or wait for it up to once.Wait. scope says who calls, and "" is
// refused. Nil: the user of a verified token; without one the record is bound to the
// Authorization, X-Api-Key or Cookie header. A panic, of any method, becomes an error.
func Middleware(once *oncehttp.Once, scope func(*sdk.CallToolRequest) string) sdk.Middleware {
	return func(handler sdk.MethodHandler) sdk.MethodHandler {
		next := func(ctx context.Context, method string, req sdk.Request) (res sdk.Result, err error) {
			defer contain(ctx, once.Logger, method, &res, &err)
			return handler(ctx, method, req)
		}
		return func(ctx context.Context, method string, req sdk.Request) (res sdk.Result, err error) {
			defer contain(ctx, once.Logger, method, &res, &err) // of scope, for instance
			call, ok := req.(*sdk.CallToolRequest)
			if !ok || call.Params == nil {
				return next(ctx, method, req)
			}
			key, keyed := call.Params.Meta[Key]
			if !keyed {
				return next(ctx, method, req)
			}
			op, err := operation(call, key, scope)
			if err != nil {
				return nil, err
			}
			a, err := once.Do(ctx, op, func(ctx context.Context) (head, body []byte, err error) {
				res, failure := next(ctx, method, req)
				_, tx := once.Store.(oncehttp.Transactor)
				return record(ctx, tx, call.Params.Name, res, failure)
			})
			if err != nil {
				return nil, refusal(err)
			}
			return answer(a.Body, a.Kind == oncehttp.OutcomeReplayed || a.Kind == oncehttp.OutcomeAttached)
		}
	}
}

// contain makes an error of a panic. The SDK lets one end the process.
func contain(ctx context.Context, log *slog.Logger, method string, res *sdk.Result, err *error) {
	if p := recover(); p != nil {
		cmp.Or(log, slog.Default()).ErrorContext(ctx, "mcp: a handler panicked",
			"method", method, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
		*res, *err = nil, wireError(jsonrpc.CodeInternalError, "the handler failed; it may have taken effect")
	}
}

// operation names the call and what it asks for: its arguments by value.
func operation(call *sdk.CallToolRequest, given any, scope func(*sdk.CallToolRequest) string) (op oncehttp.Op, err error) {
	text, _ := given.(string)
	key, err := oncehttp.ParseKey(http.Header{oncehttp.Header: {text}})
	if err != nil {
		return op, refusal(err)
	}
	asked, err := toolcall.Key(nil, "mcp", call.Params.Name, "", call.Params.Arguments, 0)
	if err != nil {
		return op, wireError(jsonrpc.CodeInvalidParams, "with a key, arguments must be a JSON object that all readers read alike; nothing was run")
	}
	op.Fingerprint = sha256.Sum256([]byte(asked))
	kind, who := "anybody", ""
	switch x := call.Extra; {
	case scope != nil:
		if kind, who = "scope", scope(call); who == "" {
			return op, wireError(jsonrpc.CodeInternalError, "the server cannot tell who is asking; nothing was run")
		}
	case x != nil && x.TokenInfo != nil && x.TokenInfo.UserID != "":
		kind, who = "user", x.TokenInfo.UserID
	case x != nil:
		if secret := cmp.Or(x.Header.Get("Authorization"), x.Header.Get("X-Api-Key"), x.Header.Get("Cookie")); secret != "" {
			op.Binding = sha256.Sum256([]byte(key + "\x00" + secret))
		}
	}
	op.Key = oncehttp.DeriveKey("mcp", kind, who, key)
	return op, nil
}

// record keeps a call's end as a JSON-RPC response, errors too: what failed may have acted.
func record(ctx context.Context, tx bool, tool string, own sdk.Result, failure error) (head, body []byte, err error) {
	res, _ := own.(*sdk.CallToolResult)
	if failure == nil && res == nil {
		failure = errors.New("the tool gave no result")
	}
	end := struct { // like toolcall's, so that operators find both in one view
		Tool    string `json:"tool"`
		Version int    `json:"v"`
		Status  string `json:"status"`
		Outcome string `json:"outcome"`
	}{shown(tool), 1, "ok", "applied"}
	if failure != nil || res.IsError {
		end.Status, end.Outcome = "failed", "unknown"
	}
	if end.Status == "failed" && tx || failure == nil && res.InputRequests != nil {
		oncehttp.Release(ctx) // rolls back; or the call comes again under its key, with the input
	}
	response := &jsonrpc.Response{Error: failure}
	if failure == nil {
		if response.Result, err = marshal(res); err != nil {
			return nil, nil, err
		}
	}
	response.ID, _ = jsonrpc.MakeID("") // of no request
	if body, err = jsonrpc.EncodeMessage(response); err == nil {
		head, err = json.Marshal(end)
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

// marshal survives the marshalling code of what a tool returned.
func marshal(res *sdk.CallToolResult) (b []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("mcp: writing the result panicked: a value of type %T", p)
		}
	}()
	return json.Marshal(res)
}

// answer reads what record wrote, with every digit: the SDK decodes numbers as float64.
func answer(body []byte, replayed bool) (sdk.Result, error) {
	var raw struct {
		Meta              map[string]json.RawMessage `json:"_meta"`
		StructuredContent json.RawMessage            `json:"structuredContent"`
	}
	res := new(sdk.CallToolResult)
	msg, err := jsonrpc.DecodeMessage(body)
	response, ok := msg.(*jsonrpc.Response)
	switch {
	case err != nil || !ok:
		return nil, refusal(oncehttp.ErrResponseGone)
	case response.Error != nil:
		return nil, response.Error
	case json.Unmarshal(response.Result, res) != nil || json.Unmarshal(response.Result, &raw) != nil:
		return nil, refusal(oncehttp.ErrResponseGone)
	}
	if raw.StructuredContent != nil {
		res.StructuredContent = raw.StructuredContent
	}
	if res.Meta = (sdk.Meta{}); replayed {
		res.Meta[Replayed] = true
	}
	for k, v := range raw.Meta {
		res.Meta[k] = v
	}
	return res, nil
}

func wireError(code int64, text string) error { return &jsonrpc.Error{Code: code, Message: text} }

// refusal is a JSON-RPC error whose data is an oncehttp problem document.
func refusal(err error) error {
	p := oncehttp.RefusalOf(err)
	data, _ := json.Marshal(p) // cannot fail
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: p.Title, Data: data}
}
