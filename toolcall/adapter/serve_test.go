package adapter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
	"github.com/oncehttp/oncehttp/toolcall/adapter"
)

// problem is the name of the problem that a reply tells of, or "".
func problem(r adapter.Reply) string {
	if r.Error == nil {
		return ""
	}
	var p struct{ Type string }
	json.Unmarshal(r.Error.Data, &p)
	return strings.TrimPrefix(p.Type, "urn:oncehttp:")
}

func TestAServedCallRunsOnceForItsKey(t *testing.T) {
	runs := 0
	once := &oncehttp.Once{Store: new(oncehttp.MemoryStore)}
	is := func(what string, c adapter.Served, refused string, want int) {
		t.Helper()
		if c.Protocol == "" {
			c.Protocol = "p"
		}
		r := c.Once(t.Context(), once, func(context.Context) adapter.End {
			runs++
			return adapter.End{Result: map[string]any{"run": json.RawMessage("9007199254740993")}}
		})
		if problem(r) != refused || (r.Error != nil) != (refused != "") {
			t.Errorf("%s: got %v (%s), want %q", what, r.Error, problem(r), refused)
		}
		if refused == "" && string(r.Result) != `{"run":9007199254740993}` {
			t.Errorf("%s: got %s", what, r.Result)
		}
		if runs != want {
			t.Errorf("%s: got %d runs, want %d", what, runs, want)
		}
	}
	args := json.RawMessage(`{"a":1,"b":2}`)
	auth := func(v string) http.Header { return http.Header{"Authorization": {v}} }
	is("the first", adapter.Served{Tool: "pay", Key: "k", Args: args}, "", 1)
	is("a repeat", adapter.Served{Tool: "pay", Key: "k", Args: json.RawMessage(`{"b":2.0, "a":1}`)}, "", 1)
	is("the key in quotes", adapter.Served{Tool: "pay", Key: `"k"`, Args: args}, "", 1)
	is("other arguments", adapter.Served{Tool: "pay", Key: "k"}, "key-reused", 1)
	is("another tool", adapter.Served{Tool: "play", Key: "k", Args: args}, "key-reused", 1)
	is("another protocol", adapter.Served{Protocol: "q", Tool: "pay", Key: "k", Args: args}, "", 2)
	is("a user", adapter.Served{Tool: "pay", Key: "k", Args: args, Kind: "user", Who: "ann"}, "", 3)
	is("another user", adapter.Served{Tool: "pay", Key: "k", Args: args, Kind: "user", Who: "bob"}, "", 4)
	is("a user's repeat, with other credentials", adapter.Served{Tool: "pay", Key: "k", Args: args, Kind: "user", Who: "bob", Header: auth("x")}, "", 4)
	is("credentials", adapter.Served{Tool: "pay", Key: "c", Args: args, Header: auth("one")}, "", 5)
	is("the same credentials", adapter.Served{Tool: "pay", Key: "c", Args: args, Header: auth("one")}, "", 5)
	is("other credentials", adapter.Served{Tool: "pay", Key: "c", Args: args, Header: auth("two")}, "principal-changed", 5)
	is("no credentials", adapter.Served{Tool: "pay", Key: "c", Args: args}, "principal-changed", 5)
	for _, key := range []any{nil, "", 7, "a b", strings.Repeat("k", 256), []any{"k"}} {
		is(fmt.Sprintf("the key %v", key), adapter.Served{Tool: "pay", Key: key, Args: args}, "malformed-key", 5)
	}
}

func TestAServedCallThatCannotBeNamedIsNotRun(t *testing.T) {
	once := &oncehttp.Once{Store: new(oncehttp.MemoryStore)}
	for what, c := range map[string]adapter.Served{
		"arguments that are read in two ways": {Args: json.RawMessage(`{"a":1,"a":2}`)},
		"arguments that are no object":        {Args: json.RawMessage(`[]`)},
		"a caller without a name":             {Kind: "scope"},
	} {
		c.Protocol, c.Tool, c.Key = "p", "pay", "k"
		r := c.Once(t.Context(), once, func(context.Context) adapter.End {
			t.Errorf("%s: it ran", what)
			return adapter.End{}
		})
		want := int64(adapter.InvalidParams)
		if c.Kind != "" {
			want = adapter.InternalError
		}
		if r.Error == nil || r.Error.Code != want || !strings.Contains(r.Error.Message, "nothing was run") {
			t.Errorf("%s: got %v", what, r.Error)
		}
	}
}

type panicky struct{}

func (panicky) MarshalJSON() ([]byte, error) { panic("hunter2") }

// A heads store has transactions, and keeps how they ended and the heads of its records.
type heads struct {
	oncehttp.MemoryStore
	log []string
}

func (h *heads) Transact(ctx context.Context, op oncehttp.Op, keep time.Duration, work func(context.Context) ([]byte, []byte, oncehttp.TxEnd)) error {
	head, body, end := work(ctx)
	if end != oncehttp.TxCommit {
		h.log = append(h.log, "rolled back")
		return h.Release(ctx, op)
	}
	h.log = append(h.log, string(head))
	return h.Complete(ctx, op, head, body, keep)
}

func TestHowAServedCallEnds(t *testing.T) {
	wire := &adapter.RPCError{Code: 77, Message: "no", Data: json.RawMessage(`{"a":1}`)}
	for _, c := range []struct {
		what  string
		run   func() adapter.End
		reply string // of both calls, as JSON
		runs  int    // of two calls
		tx    string // how it ends over a store with transactions
	}{
		{"a result", func() adapter.End { return adapter.End{Result: 1} }, `{"result":1}`, 1, `{"tool":"pay","v":1,"status":"ok","outcome":"applied"}`},
		{"a result that tells of a failure", func() adapter.End { return adapter.End{Result: 1, Failed: true} }, `{"result":1}`, 1, "rolled back"},
		{"a result that asks for more", func() adapter.End { return adapter.End{Result: 1, Again: true} }, `{"result":1}`, 2, "rolled back"},
		{"no result", func() adapter.End { return adapter.End{} }, `{"error":{"code":0,"message":"the tool gave no result"}}`, 1, "rolled back"},
		{"an error", func() adapter.End { return adapter.End{Err: errors.New("no"), Again: true} }, `{"error":{"code":0,"message":"no"}}`, 1, "rolled back"},
		{"an error of the protocol", func() adapter.End { return adapter.End{Err: fmt.Errorf("oh: %w", wire), Wire: wire} },
			`{"error":{"code":77,"message":"oh: no","data":{"a":1}}}`, 1, "rolled back"},
		{"a panic", func() adapter.End { panic("hunter2") }, `{"error":{"code":-32603,"message":"the handler failed; it may have taken effect"}}`, 1, "rolled back"},
		{"a result that panics", func() adapter.End { return adapter.End{Result: panicky{}} }, "outcome-unknown", 1, "rolled back"},
		{"a result that has no JSON", func() adapter.End { return adapter.End{Result: func() {}} }, "outcome-unknown", 1, "rolled back"},
	} {
		var log bytes.Buffer
		once := &oncehttp.Once{Store: new(oncehttp.MemoryStore), Logger: slog.New(slog.NewTextHandler(&log, nil))}
		call, runs := adapter.Served{Protocol: "p", Tool: "pay", Key: "k"}, 0
		for i := range 2 {
			r := call.Once(t.Context(), once, func(context.Context) adapter.End { runs++; return c.run() })
			got, _ := json.Marshal(r)
			if string(got) != c.reply && problem(r) != c.reply || r.Repeated != (i > runs-1 && problem(r) == "") {
				t.Errorf("%s, call %d: got %s, repeated %v, want %s", c.what, i+1, got, r.Repeated, c.reply)
			}
		}
		if runs != c.runs {
			t.Errorf("%s: got %d runs, want %d", c.what, runs, c.runs)
		}
		store := new(heads)
		call.Once(t.Context(), &oncehttp.Once{Store: store, Logger: once.Logger}, func(context.Context) adapter.End { return c.run() })
		if got := strings.Join(store.log, " "); got != c.tx {
			t.Errorf("%s, over a store with transactions: got %s, want %s", c.what, got, c.tx)
		}
		if strings.Contains(log.String(), "hunter2") {
			t.Errorf("%s: the log has the panic's value: %s", c.what, &log)
		}
	}
}

func TestAReplyKeepsItsDigits(t *testing.T) {
	r := adapter.Reply{Result: json.RawMessage(`{"a":9007199254740993}`)}
	var a, b map[string]any
	if err := r.Decode(&a, &b); err != nil || fmt.Sprint(a, b) != "map[a:9007199254740993] map[a:9007199254740993]" {
		t.Errorf("got %v, %v, %v", a, b, err)
	}
	var n int
	if err := r.Decode(&n); err == nil || !strings.Contains(string(err.Data), "response-gone") {
		t.Errorf("a result that cannot be read: got %v", err)
	}
	failed := &adapter.RPCError{Code: 1}
	if err := (&adapter.Reply{Error: failed}).Decode(&a); err != failed {
		t.Errorf("got %v, want the error", err)
	}
}

// A record that another program wrote is no reason to run anything.
func TestARecordThatCannotBeReadIsGone(t *testing.T) {
	for _, body := range []string{"", "x", "{}", "[1]"} {
		once := &oncehttp.Once{Store: foreign(body)}
		r := (&adapter.Served{Protocol: "p", Tool: "pay", Key: "k"}).Once(t.Context(), once, func(context.Context) adapter.End {
			t.Error("it ran")
			return adapter.End{}
		})
		if problem(r) != "response-gone" {
			t.Errorf("%q: got %v", body, r.Error)
		}
	}
}

// A foreign store says that everything is done, with a body of its own.
type foreign string

func (f foreign) Claim(_ context.Context, op oncehttp.Op, _, _ time.Duration) (oncehttp.Claim, error) {
	return oncehttp.Claim{Status: oncehttp.ClaimDone, Fingerprint: op.Fingerprint, Binding: op.Binding, Body: []byte(f)}, nil
}

func (f foreign) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return f.Claim(ctx, op, lease, keep)
}
func (foreign) Renew(context.Context, oncehttp.Op, time.Duration) error { return nil }
func (foreign) Complete(context.Context, oncehttp.Op, []byte, []byte, time.Duration) error {
	return nil
}
func (foreign) Release(context.Context, oncehttp.Op) error { return nil }

func TestHowARunnerReadsAnRPCError(t *testing.T) {
	refusal, _ := json.Marshal(oncehttp.RefusalOf(oncehttp.ErrInProgress))
	err := errors.New("as the SDK says it")
	unsent := &oncehttp.Error{Result: oncehttp.Result{Certainty: oncehttp.CertaintyNotSent}}
	for _, c := range []struct {
		what string
		wire *adapter.RPCError
		err  error
		want string
	}{
		{"no answer", nil, err, "failed transient unknown"},
		{"nothing was sent", nil, unsent, "failed permanent none"},
		{"wrong parameters", &adapter.RPCError{Code: adapter.InvalidParams}, err, "failed bad_arguments none"},
		{"no such method", &adapter.RPCError{Code: adapter.MethodNotFound}, err, "failed permanent none"},
		{"a refusal", &adapter.RPCError{Code: adapter.InternalError, Data: refusal}, err, "failed transient unknown"},
		{"anything else", &adapter.RPCError{Code: 7, Data: json.RawMessage(`{"type":"x"}`)}, err, "failed permanent unknown"},
	} {
		r := &toolcall.Runner{Scope: "s", Store: new(oncehttp.MemoryStore), Attempts: 1, Logger: slog.New(slog.DiscardHandler)}
		if err := r.Register(toolcall.Tool{Name: "pay", Effect: toolcall.Keyed, Timeout: time.Minute, Call: func(context.Context, json.RawMessage) (any, error) {
			return nil, c.wire.Judge(c.err)
		}}); err != nil {
			t.Fatal(err)
		}
		res := r.Turn("t", toolcall.Budget{}).Do(t.Context(), toolcall.Call{Tool: "pay"})[0]
		if got := fmt.Sprint(res.Status, " ", res.ErrorType, " ", res.Outcome); got != c.want || !errors.Is(res.Err, c.err) {
			t.Errorf("%s: got %s (%v), want %s", c.what, got, res.Err, c.want)
		}
	}
}

func TestHintsOfAServerThatNobodyTrustsLoosenNothing(t *testing.T) {
	known := map[string]toolcall.Effect{"known": toolcall.Keyed}
	for _, c := range []struct {
		what    string
		tool    string
		hints   adapter.Hints
		trusted bool
		want    toolcall.Effect
	}{
		{"nothing said", "t", adapter.Hints{}, true, toolcall.Unsafe},
		{"read-only", "t", adapter.Hints{ReadOnly: true, Idempotent: true}, true, toolcall.Read},
		{"idempotent", "t", adapter.Hints{Idempotent: true}, true, toolcall.Idempotent},
		{"read-only, not trusted", "t", adapter.Hints{ReadOnly: true, Idempotent: true}, false, toolcall.Unsafe},
		{"the caller knows better", "known", adapter.Hints{ReadOnly: true}, true, toolcall.Keyed},
		{"the caller knows", "known", adapter.Hints{}, false, toolcall.Keyed},
	} {
		tool := toolcall.Tool{Name: c.tool}
		c.hints.Declare(&tool, known, c.trusted)
		if declared := c.want != toolcall.Unsafe; tool.Effect != c.want || declared != (tool.Note != "") {
			t.Errorf("%s: got %v, %q, want %v", c.what, tool.Effect, tool.Note, c.want)
		}
	}
}

func TestValue(t *testing.T) {
	for text, want := range map[string]any{`{"n":9007199254740993}`: json.RawMessage(`{"n":9007199254740993}`), "7": json.RawMessage("7"), "so": "so", "": ""} {
		if got := adapter.Value(text); fmt.Sprintf("%T %s", got, got) != fmt.Sprintf("%T %s", want, want) {
			t.Errorf("%q: got %T %s, want %T", text, got, got, want)
		}
	}
}
