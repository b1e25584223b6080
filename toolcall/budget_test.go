package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

func TestABatchIsAdmittedInOrderBeforeAnyOfItStarts(t *testing.T) {
	for seed := range 1000 {
		synctest.Test(t, func(t *testing.T) {
			var b bank
			tool := payTool(&b, Unsafe)
			pay := tool.Call
			tool.Call = func(ctx context.Context, args json.RawMessage) (any, error) {
				time.Sleep(time.Duration(seed*7919%101) * time.Millisecond)
				return pay(ctx, args)
			}
			turn := newRunner(t, new(oncehttp.MemoryStore), tool).Turn("u", Budget{Calls: 6})
			var calls []Call
			for i := range 8 {
				calls = append(calls, Call{Tool: "refund_order", ID: fmt.Sprint(i), Args: fmt.Appendf(nil, `{"n":%d}`, i)})
			}
			got := turn.Do(t.Context(), calls...)
			if len(got) != 8 || b.total() != 6 || !turn.Exhausted() {
				t.Fatalf("%d results, %d effects, exhausted %v, want 8, 6, true", len(got), b.total(), turn.Exhausted())
			}
			for i, r := range got {
				want := "ok  applied use_result"
				if i >= 6 {
					want = "failed budget_exceeded none summarise_and_stop"
				}
				if told(r) != want || r.ID != fmt.Sprint(i) {
					t.Errorf("result %d: got %s for call %s, want %s", i, told(r), r.ID, want)
				}
			}
			// What the model asks for in its closing answer is not done either.
			if got := turn.Do(t.Context(), call("refund_order", `{"n":9}`))[0]; told(got) != "failed budget_exceeded none summarise_and_stop" || b.total() != 6 {
				t.Errorf("after the end: got %s, %d effects", told(got), b.total())
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestEveryLimitEndsTheTurn(t *testing.T) {
	fail := Tool{Name: "x", Effect: Read, Call: func(ctx context.Context, _ json.RawMessage) (any, error) {
		time.Sleep(time.Second)
		return nil, Transient(io.EOF)
	}}
	for _, row := range []struct {
		what   string
		budget Budget
		spend  int64
		first  string
		runs   int
		end    bool
	}{
		{"no limit", Budget{}, 1 << 40, "failed transient none inform_user", 3, false},
		{"calls", Budget{Calls: 1}, 0, "failed transient none inform_user", 3, true},
		{"attempts", Budget{Attempts: 2}, 0, "failed budget_exceeded none summarise_and_stop", 2, true},
		{"wall clock", Budget{Wall: 1500 * time.Millisecond}, 0, "", 0, true},
		{"tokens", Budget{Tokens: 10}, 10, "failed budget_exceeded none summarise_and_stop", 0, true},
		{"tokens that are left", Budget{Tokens: 10}, 9, "failed transient none inform_user", 3, false},
		{"a tool that is forbidden", Budget{PerTool: map[string]int{"x": 0}}, 0, "failed budget_exceeded none inform_user", 0, false},
		{"a limit for another tool", Budget{PerTool: map[string]int{"y": 0}}, 0, "failed transient none inform_user", 3, false},
	} {
		t.Run(row.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				turn := newRunner(t, nil, fail).Turn("u", row.budget)
				turn.Spend(row.spend)
				turn.Spend(-5)
				begin := time.Now()
				got := turn.Do(t.Context(), call("x", `{}`))[0]
				if row.first != "" && (told(got) != row.first || got.Attempts != row.runs) {
					t.Errorf("got %s, %d attempts, want %s, %d", told(got), got.Attempts, row.first, row.runs)
				}
				if d := time.Since(begin); row.budget.Wall > 0 && d > row.budget.Wall {
					t.Errorf("took %v", d)
				}
				if row.budget.Wall > 0 {
					time.Sleep(row.budget.Wall)
				}
				if got := turn.Exhausted(); got != row.end {
					t.Errorf("exhausted: got %v, want %v", got, row.end)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

func TestSubAgentsDrawFromTheirParentsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bank
		store := new(oncehttp.MemoryStore)
		turn := newRunner(t, store, payTool(&b, Unsafe)).Turn("u", Budget{Calls: 3})
		agent := call("research", `{"q":1.0}`)
		sub, err := turn.Sub(agent)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := turn.Sub(call("research", ` {"q":1}`))
		other, _ := turn.Sub(call("research", `{"q":2}`))
		if sub.ID() != again.ID() || sub.ID() == other.ID() || sub.ID() == turn.ID() {
			t.Errorf("ids: %s, %s, %s", sub.ID(), again.ID(), other.ID())
		}
		for i, row := range []struct {
			turn *Turn
			want string
		}{
			{sub, "ok  applied use_result"},
			{again, "ok  applied use_result replayed"}, // the agent was run anew
			{other, "ok  applied use_result"},          // this one was meant
			{turn, "failed budget_exceeded none summarise_and_stop"},
		} {
			if got := row.turn.Do(t.Context(), call("refund_order", refundArgs))[0]; told(got) != row.want {
				t.Errorf("call %d: got %s, want %s", i+1, told(got), row.want)
			}
		}
		if b.total() != 2 || !turn.Exhausted() || !sub.Exhausted() {
			t.Errorf("%d effects, exhausted %v, %v", b.total(), turn.Exhausted(), sub.Exhausted())
		}
		if _, err := turn.Sub(call("research", `[`)); err == nil {
			t.Error("a sub-agent without arguments that have a key")
		}
	})
}

func TestAWrongTurnSaysWhatIsWrong(t *testing.T) {
	tool := Tool{Name: "x", Effect: Read, Call: func(context.Context, json.RawMessage) (any, error) { t.Error("it ran"); return nil, nil }}
	r := newRunner(t, nil, tool)
	for field, turn := range map[string]*Turn{
		"id":                  r.Turn("", Budget{}),
		"Budget.Calls":        r.Turn("u", Budget{Calls: -1}),
		"Budget.Attempts":     r.Turn("u", Budget{Attempts: -1}),
		"Budget.Wall":         r.Turn("u", Budget{Wall: -1}),
		"Budget.Tokens":       r.Turn("u", Budget{Tokens: -1}),
		`Budget.PerTool["x"]`: r.Turn("u", Budget{PerTool: map[string]int{"x": -1}}),
	} {
		got := turn.Do(t.Context(), call("x", `{}`), call("x", `{}`))
		if len(got) != 2 || told(got[1]) != "failed permanent none inform_user" || got[0].Err == nil || !strings.Contains(got[0].Err.Error(), field) {
			t.Errorf("%s: got %v", field, got)
		}
	}
	if got := r.Turn("u", Budget{}).Do(t.Context()); len(got) != 0 {
		t.Errorf("no calls: got %v", got)
	}
	if got := r.Turn("u", Budget{}).Do(t.Context(), call("nosuch", `{}`))[0]; told(got) != "failed bad_arguments none fix_arguments" || got.Err != ErrNoTool {
		t.Errorf("a tool that there is not: got %s", told(got))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	leave := errors.New("the user closed the window")
	cancel(leave)
	if got := r.Turn("u", Budget{}).Do(ctx, call("x", `{}`))[0]; told(got) != "failed transient none summarise_and_stop" || !errors.Is(got.Err, leave) {
		t.Errorf("a caller that has left: got %s, %v", told(got), got.Err)
	}
}

func TestRegisterSaysWhatIsWrong(t *testing.T) {
	f := func(context.Context, json.RawMessage) (any, error) { return nil, nil }
	store := new(oncehttp.MemoryStore)
	for _, row := range []struct {
		runner *Runner
		tool   Tool
		want   string
	}{
		{&Runner{Scope: "s"}, Tool{Name: "x", Call: f}, "Runner.Store is nil"},
		{&Runner{Scope: "s"}, Tool{Name: "x", Effect: Keyed, Call: f}, "Runner.Store is nil"},
		{&Runner{Store: store}, Tool{Name: "x", Call: f}, "Runner.Scope"},
		{&Runner{Scope: "s", Store: store, Attempts: -1}, Tool{Name: "x", Call: f}, "Runner.Attempts"},
		{&Runner{Scope: "s", Store: store, MaxRetryAfter: -1}, Tool{Name: "x", Call: f}, "Runner.MaxRetryAfter"},
		{&Runner{Scope: "s", Store: store}, Tool{Call: f}, "Name"},
		{&Runner{Scope: "s", Store: store}, Tool{Name: strings.Repeat("x", 129), Call: f}, "Name has 129 bytes"},
		{&Runner{Scope: "s", Store: store}, Tool{Name: "refund\x1b[2J", Call: f}, "Name has control characters"},
		{&Runner{Scope: "s", Store: store}, Tool{Name: "\xff", Call: f}, "Name has control characters or is no UTF-8"},
		{&Runner{Scope: "s", Store: store}, Tool{Name: "x"}, "Call is nil"},
		{&Runner{Scope: "s", Store: store}, Tool{Name: "x", Call: f, Effect: 9}, "Effect"},
		{&Runner{Scope: "s", Store: store}, Tool{Name: "x", Call: f, Repeat: 9}, "Repeat"},
		{&Runner{Scope: "s", Store: store}, Tool{Name: "x", Call: f, Timeout: -1}, "Timeout"},
		{&Runner{Scope: "s", Store: store}, Tool{Name: "x", Call: f, KeyFields: []string{"order"}}, "KeyFields"},
		{&Runner{Scope: "s", Store: store}, Tool{Name: "x", Call: f, IgnoreFields: []string{"/a~2"}}, "IgnoreFields"},
		{&Runner{Scope: "s", Store: store}, Tool{Name: "x", Call: f, KeyFields: []string{"/a"}, IgnoreFields: []string{"/b"}}, "both"},
		{&Runner{Scope: "s"}, Tool{Name: "x", Call: f, Effect: Read, Verify: func(context.Context, json.RawMessage) (any, bool, error) { return nil, false, nil }}, "Verify"},
	} {
		if err := row.runner.Register(row.tool); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("got %v, want an error that names %s", err, row.want)
		}
	}
	r := &Runner{Scope: "s", Store: store}
	if err := r.Register(Tool{Name: "x", Call: f}, Tool{Name: "x", Call: f}); err == nil || len(r.Audit()) != 0 {
		t.Errorf("two of one name: got %v, %d tools", err, len(r.Audit()))
	}
}
