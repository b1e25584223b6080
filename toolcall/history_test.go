package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/badlog"
)

// Providers reject a conversation in which a call has no answer, or two, or one that
// is no JSON. Whatever becomes of the calls of a message, there is one for each, in order.
func TestEveryKindOfEndingIsOneAnswer(t *testing.T) {
	ends := map[string]func(ctx context.Context) (any, error){
		"ok":         func(context.Context) (any, error) { return "fine", nil },
		"degraded":   func(context.Context) (any, error) { return nil, Degraded([]int{1}, nil) },
		"bad":        func(context.Context) (any, error) { return nil, BadArguments("no \"such\"\nthing \xff") },
		"permanent":  func(context.Context) (any, error) { return nil, Permanent(nil) },
		"transient":  func(context.Context) (any, error) { return nil, Transient(nil) },
		"plain":      func(context.Context) (any, error) { return nil, errors.New("x") },
		"panics":     func(context.Context) (any, error) { panic("x") },
		"exits":      func(context.Context) (any, error) { runtime.Goexit(); return nil, nil },
		"hangs":      func(ctx context.Context) (any, error) { <-ctx.Done(); return nil, ctx.Err() },
		"ignores":    func(context.Context) (any, error) { time.Sleep(time.Hour); return "late", nil },
		"huge":       func(context.Context) (any, error) { return strings.Repeat("\"", 1<<20), nil },
		"no JSON":    func(context.Context) (any, error) { return json.RawMessage("{"), nil },
		"typed nil":  func(context.Context) (any, error) { return nil, (*Error)(nil) },
		"nil result": func(context.Context) (any, error) { return nil, nil },
	}
	for _, effect := range []Effect{Unsafe, Keyed, Idempotent, Read} {
		for _, budget := range []Budget{{}, {Calls: 7}, {Attempts: 5}, {Wall: time.Second}, {Wall: 1}, {Tokens: 1}} {
			synctest.Test(t, func(t *testing.T) {
				var tools []Tool
				var calls []Call
				for name, f := range ends {
					tools = append(tools, Tool{Name: name, Effect: effect, Timeout: 2 * time.Second, Call: func(ctx context.Context, _ json.RawMessage) (any, error) { return f(ctx) }})
					for i := range 2 { // equal calls in one message, too
						calls = append(calls, Call{Tool: name, ID: fmt.Sprint(name, i), Args: []byte(`{}`)})
					}
					calls = append(calls, Call{Tool: name, ID: name + " bad", Args: []byte(`{"a":1,"a":2}`)})
				}
				calls = append(calls, Call{Tool: "made up", ID: "x"})
				turn := newRunner(t, new(oncehttp.MemoryStore), tools...).Turn("u", budget)
				if budget.Tokens > 0 {
					turn.Spend(2)
				}
				for round := range 3 {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					begin := time.Now()
					got := turn.Do(ctx, calls...)
					cancel()
					if d := time.Since(begin); d > 20*time.Second+grace {
						t.Errorf("%v, %+v, round %d: took %v", effect, budget, round, d)
					}
					if len(got) != len(calls) {
						t.Fatalf("%d results for %d calls", len(got), len(calls))
					}
					for i, r := range got {
						b := r.JSON()
						if r.ID != calls[i].ID || r.Tool != calls[i].Tool || !json.Valid(b) || len(b) > 70<<10 || len(r.Message) == 0 {
							t.Errorf("%v, %+v, %s: got %s for call %s", effect, budget, calls[i].ID, told(r), r.ID)
						}
						if r.Status == StatusOK != (r.ErrorType == "") || r.Status != StatusOK && r.Err == nil && r.Status == StatusFailed {
							t.Errorf("%v, %+v, %s: got %s, %v", effect, budget, calls[i].ID, told(r), r.Err)
						}
						if effect == Read && r.Outcome != OutcomeNone {
							t.Errorf("a read with outcome %s", r.Outcome)
						}
						if r.Retriable {
							t.Errorf("%s: retriable, which nobody allowed", calls[i].ID)
						}
					}
				}
				time.Sleep(3 * time.Hour)
			})
		}
	}
}

func TestRetriableIsSaidWhereItIsAllowedAndSafe(t *testing.T) {
	for _, row := range []struct {
		effect Effect
		err    error
		want   bool
	}{
		{Read, Transient(nil), true},
		{Read, Permanent(nil), false},
		{Keyed, Transient(nil), true},
		{Idempotent, Transient(nil), true},
		{Unsafe, Transient(nil), false},
		{Unsafe, &Error{Type: TypeTransient, NotSent: true}, true},
		{Keyed, errors.New("x"), false},
		{Keyed, BadArguments("x"), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRunner(t, new(oncehttp.MemoryStore), Tool{Name: "x", Effect: row.effect, ModelRetry: true, Call: func(context.Context, json.RawMessage) (any, error) { return nil, row.err }})
			if got := r.Turn("u", Budget{}).Do(t.Context(), call("x", `{}`))[0]; got.Retriable != row.want {
				t.Errorf("%v, %v: got %v", row.effect, row.err, got.Retriable)
			}
		})
	}
}

// A log handler that panics keeps no call from being answered.
func TestALogThatPanicsIsNoEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, new(oncehttp.MemoryStore), Tool{Name: "panics", Effect: Unsafe, Call: func(context.Context, json.RawMessage) (any, error) { panic("x") }})
		r.Logger = badlog.New(func() { panic("a handler's secret") })
		r.OnRecord = func(context.Context, Record) { panic("x") }
		got := r.Turn("u", Budget{}).Do(t.Context(), Call{Tool: "panics", ID: "1", Args: []byte(`{}`)})
		if len(got) != 1 || got[0].Outcome != OutcomeUnknown {
			t.Errorf("got %+v, want one answer, whose outcome is unknown", got)
		}
	})
}
