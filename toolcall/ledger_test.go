package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// payTool pays at the bank what its arguments say, under its key if it is Keyed.
func payTool(b *bank, effect Effect) Tool {
	return Tool{Name: "refund_order", Effect: effect, Timeout: 10 * time.Second, Note: "test", Call: func(ctx context.Context, args json.RawMessage) (any, error) {
		key := ""
		if effect == Keyed {
			key, _ = KeyFromContext(ctx)
		}
		b.pay(key, string(args))
		return "refunded", nil
	}}
}

func TestTheSameCallInATurnTakesEffectOnce(t *testing.T) {
	for _, effect := range []Effect{Unsafe, Keyed, Idempotent} {
		synctest.Test(t, func(t *testing.T) {
			var b bank
			store := new(oncehttp.MemoryStore)
			turn := newRunner(t, store, payTool(&b, effect)).Turn("turn_01", Budget{})
			first := turn.Do(t.Context(), Call{Tool: "refund_order", ID: "a", Args: []byte(refundArgs)})[0]
			if told(first) != "ok  applied use_result" || first.ID != "a" || string(first.Result) != `"refunded"` || first.Attempts != 1 {
				t.Errorf("%v: got %+v", effect, first)
			}
			for _, args := range []string{refundArgs, ` {"amount":1.00e2,"order_id":"A-17"}`, `{"amount":1e2,"order_id":"\u0041-17"}`} {
				got := turn.Do(t.Context(), Call{Tool: "refund_order", ID: "b", Args: []byte(args)})[0]
				if told(got) != "ok  applied use_result replayed" || got.ID != "b" || string(got.Result) != `"refunded"` || got.Key != first.Key {
					t.Errorf("%v, again as %s: got %+v", effect, args, got)
				}
			}
			if n := b.total(); n != 1 {
				t.Errorf("%v: %d effects, want 1", effect, n)
			}
			// Another process, another turn, another amount.
			resumed := newRunner(t, store, payTool(&b, effect))
			if got := resumed.Turn("turn_01", Budget{}).Do(t.Context(), call("refund_order", refundArgs))[0]; told(got) != "ok  applied use_result replayed" || string(got.Result) != `"refunded"` {
				t.Errorf("%v, in another process: got %s %s", effect, told(got), got.Result)
			}
			if n := b.total(); n != 1 {
				t.Errorf("%v: %d effects after a resume, want 1", effect, n)
			}
			resumed.Turn("turn_02", Budget{}).Do(t.Context(), call("refund_order", refundArgs))
			turn.Do(t.Context(), call("refund_order", `{"n":9007199254740992}`), call("refund_order", `{"n":9007199254740993}`))
			if n := b.total(); n != 4 {
				t.Errorf("%v: %d effects, want 1, 1 in the next turn, and 2 for two numbers that a float64 takes for one", effect, n)
			}
		})
	}
}

func TestAPollIsRunEveryTime(t *testing.T) {
	runs := 0
	r := newRunner(t, nil, Tool{Name: "poll", Effect: Read, Call: func(context.Context, json.RawMessage) (any, error) { runs++; return runs, nil }})
	turn := r.Turn("u", Budget{})
	for i := range 20 {
		if got := turn.Do(t.Context(), call("poll", `{}`))[0]; string(got.Result) != fmt.Sprint(i+1) || got.Replayed {
			t.Errorf("poll %d: got %s, replayed %v", i+1, got.Result, got.Replayed)
		}
	}
}

func TestProviderIDsAreNoIdentity(t *testing.T) {
	var b bank
	turn := newRunner(t, new(oncehttp.MemoryStore), payTool(&b, Unsafe)).Turn("u", Budget{})
	for i := range 5 {
		for _, id := range []string{"call_1", "", "null"} {
			got := turn.Do(t.Context(), Call{Tool: "refund_order", ID: id, Args: fmt.Appendf(nil, `{"n":%d,"id":%q}`, i, id)})[0]
			if got.Replayed || got.ID != id {
				t.Errorf("call %d with id %q: replayed %v, id %q", i, id, got.Replayed, got.ID)
			}
		}
	}
	if n := b.total(); n != 15 {
		t.Errorf("%d effects, want 15", n)
	}
}

func TestAHundredGoroutinesWithOneCallMakeOneEffect(t *testing.T) {
	for _, effect := range []Effect{Unsafe, Keyed, Idempotent} {
		synctest.Test(t, func(t *testing.T) {
			var b bank
			tool := payTool(&b, effect)
			pay := tool.Call
			tool.Call = func(ctx context.Context, args json.RawMessage) (any, error) {
				time.Sleep(time.Second)
				return pay(ctx, args)
			}
			r := newRunner(t, new(oncehttp.MemoryStore), tool)
			turns := []*Turn{r.Turn("u", Budget{}), r.Turn("u", Budget{})} // one of them was resumed
			var wg sync.WaitGroup
			var ran atomic.Int32
			for i := range 100 {
				wg.Go(func() {
					got := turns[i%2].Do(t.Context(), call("refund_order", refundArgs))[0]
					if got.Status != StatusOK || string(got.Result) != `"refunded"` {
						t.Errorf("%v: got %s", effect, told(got))
					}
					if !got.Replayed {
						ran.Add(1)
					}
				})
			}
			wg.Wait()
			if b.total() != 1 || ran.Load() != 1 {
				t.Errorf("%v: %d effects, %d results that say they ran, want 1 and 1", effect, b.total(), ran.Load())
			}
		})
	}
}

// "The service seems to be down, let me try a smaller amount."
func TestASmallerAmountIsRefusedWhileTheFirstIsUnknown(t *testing.T) {
	for _, effect := range []Effect{Unsafe, Keyed, Idempotent} {
		synctest.Test(t, func(t *testing.T) {
			var b bank
			lose := true
			tool := payTool(&b, effect)
			pay := tool.Call
			tool.Call = func(ctx context.Context, args json.RawMessage) (any, error) {
				v, err := pay(ctx, args)
				if lose {
					return nil, Transient(io.ErrUnexpectedEOF) // the reply, not the refund
				}
				return v, err
			}
			other := Tool{Name: "send_mail", Timeout: time.Second, Call: func(context.Context, json.RawMessage) (any, error) { return nil, nil }}
			store := new(oncehttp.MemoryStore)
			r := newRunner(t, store, tool, other)
			turn := r.Turn("u", Budget{})
			if got := turn.Do(t.Context(), call("refund_order", refundArgs))[0]; told(got) != "failed transient unknown verify" {
				t.Errorf("%v: got %s", effect, told(got))
			}
			before := b.total()
			for _, process := range []string{"this", "another"} {
				if got := turn.Do(t.Context(), call("refund_order", `{"order_id":"A-17","amount":10}`))[0]; told(got) != "failed permanent none verify" || got.Err != ErrLatched {
					t.Errorf("%v, in %s process, a smaller amount: got %s, %v", effect, process, told(got), got.Err)
				}
				turn = newRunner(t, store, tool, other).Turn("u", Budget{})
			}
			if b.total() != before {
				t.Errorf("%v: %d effects, want %d", effect, b.total(), before)
			}
			if got := turn.Do(t.Context(), call("send_mail", `{}`))[0]; got.Status != StatusOK {
				t.Errorf("%v: another tool: got %s", effect, told(got))
			}
			if got := r.Turn("next", Budget{}).Do(t.Context(), call("refund_order", `{"amount":1}`))[0]; errors.Is(got.Err, ErrLatched) {
				t.Errorf("%v: the next turn is latched too", effect)
			}

			// The same call again is another matter.
			lose = false
			got := turn.Do(t.Context(), call("refund_order", refundArgs))[0]
			want := "ok  applied use_result"
			if effect == Unsafe {
				want = "failed transient unknown verify"
			}
			if told(got) != want {
				t.Errorf("%v, the same call: got %s, want %s", effect, told(got), want)
			}
			if n := b.count(refundArgs); effect != Idempotent && n != 1 {
				t.Errorf("%v: %d refunds, want 1", effect, n)
			}
			got = turn.Do(t.Context(), call("refund_order", `{"order_id":"A-17","amount":10}`))[0]
			if latched := got.Err == ErrLatched; latched != (effect == Unsafe) {
				t.Errorf("%v, once that is settled: got %s, %v", effect, told(got), got.Err)
			}
		})
	}
}

func TestTwoUnknownCallsDoNotLatchEachOthersRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bank
		var lose atomic.Bool
		lose.Store(true)
		tool := payTool(&b, Keyed)
		pay := tool.Call
		tool.Call = func(ctx context.Context, args json.RawMessage) (any, error) {
			v, err := pay(ctx, args)
			if lose.Load() {
				return nil, Transient(io.ErrUnexpectedEOF)
			}
			return v, err
		}
		turn := newRunner(t, new(oncehttp.MemoryStore), tool).Turn("u", Budget{})
		turn.Do(t.Context(), call("refund_order", `{"n":1}`), call("refund_order", `{"n":2}`))
		lose.Store(false)
		for _, args := range []string{`{"n":1}`, `{"n":2}`, `{"n":3}`} {
			if got := turn.Do(t.Context(), call("refund_order", args))[0]; got.Status != StatusOK {
				t.Errorf("%s: got %s", args, told(got))
			}
		}
		if n := b.total(); n != 3 {
			t.Errorf("%d effects, want 3", n)
		}
	})
}

func TestVerifySettlesAnUnsafeCall(t *testing.T) {
	for _, row := range []struct {
		what   string
		happen bool
		find   bool
		fail   error
		after  time.Duration
		want   string
	}{
		{"it happened, says Verify", true, true, nil, 0, "ok  applied use_result replayed"},
		{"it did not, but that is too early to say", false, false, nil, 59 * time.Second, "failed transient unknown verify"},
		{"it did not, a minute later", false, false, nil, 61 * time.Second, "failed permanent none ask_user replayed"},
		{"Verify cannot tell", true, false, errors.New("down"), 61 * time.Second, "failed transient unknown verify"},
	} {
		t.Run(row.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs, checks := 0, 0
				tool := Tool{Name: "wire", Timeout: time.Second,
					Call: func(context.Context, json.RawMessage) (any, error) { runs++; return nil, Transient(io.EOF) },
					Verify: func(_ context.Context, args json.RawMessage) (any, bool, error) {
						checks++
						if string(args) != refundArgs {
							t.Errorf("verified %s", args)
						}
						return "found", row.find, row.fail
					}}
				store := new(oncehttp.MemoryStore)
				turn := newRunner(t, store, tool).Turn("u", Budget{})
				turn.Do(t.Context(), call("wire", refundArgs))
				if checks != 0 {
					t.Error("Verify was asked about a first call")
				}
				time.Sleep(row.after)
				got := turn.Do(t.Context(), call("wire", refundArgs))[0]
				if told(got) != row.want || runs != 1 || checks != 1 {
					t.Errorf("got %s, %d runs, %d checks, want %s, 1, 1", told(got), runs, checks, row.want)
				}
				// What is settled stays so, here and elsewhere, and is not run again.
				if got.Outcome != OutcomeUnknown {
					for _, turn := range []*Turn{turn, newRunner(t, store, tool).Turn("u", Budget{})} {
						if got := turn.Do(t.Context(), call("wire", refundArgs))[0]; told(got) != row.want || runs != 1 || checks != 1 {
							t.Errorf("later: got %s, %d runs, %d checks", told(got), runs, checks)
						}
					}
				}
				if got := turn.Do(t.Context(), call("wire", `{}`))[0]; (got.Err == ErrLatched) != (row.want == "failed transient unknown verify") {
					t.Errorf("other arguments then: got %s", told(got))
				}
			})
		})
	}
}

func TestAToolThatIgnoresItsContextIsLeftBehind(t *testing.T) {
	for _, effect := range []Effect{Unsafe, Keyed, Idempotent, Read} {
		synctest.Test(t, func(t *testing.T) {
			var b bank
			tool := payTool(&b, effect)
			pay := tool.Call
			tool.Call = func(ctx context.Context, args json.RawMessage) (any, error) {
				time.Sleep(5 * time.Minute)
				return pay(ctx, args)
			}
			store := new(oncehttp.MemoryStore)
			r := newRunner(t, store, tool)
			turn := r.Turn("u", Budget{Wall: 30 * time.Second})
			begin := time.Now()
			got := turn.Do(t.Context(), call("refund_order", refundArgs))[0]
			if d := time.Since(begin); d > 30*time.Second+grace {
				t.Errorf("%v: the turn ended after %v", effect, d)
			}
			if effect == Unsafe && told(got) != "failed transient unknown verify" || effect != Read && got.Outcome != OutcomeUnknown {
				t.Errorf("%v: got %s", effect, told(got))
			}
			if effect == Read {
				time.Sleep(time.Hour)
				return
			}
			// In another turn object, since the budget's time is over here.
			turn = r.Turn("u", Budget{})
			if got := turn.Do(t.Context(), call("refund_order", `{"amount":1}`))[0]; got.Err != ErrLatched {
				t.Errorf("%v: other arguments meanwhile: got %s, %v", effect, told(got), got.Err)
			}
			if err := r.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Hour)
			// The late result is in the ledger, but nobody has told the model.
			if got := turn.Do(t.Context(), call("refund_order", `{"amount":1}`))[0]; got.Err != ErrLatched {
				t.Errorf("%v: other arguments after a late result: got %s, %v", effect, told(got), got.Err)
			}
			if got := turn.Do(t.Context(), call("refund_order", refundArgs))[0]; told(got) != "ok  applied use_result replayed" {
				t.Errorf("%v: the same call then: got %s", effect, told(got))
			}
			if got := turn.Do(t.Context(), call("refund_order", `{"amount":1}`))[0]; errors.Is(got.Err, ErrLatched) {
				t.Errorf("%v: latched although the model knows", effect)
			}
			if n := b.count(refundArgs); effect != Idempotent && n != 1 {
				t.Errorf("%v: %d refunds, want 1", effect, n)
			}
			time.Sleep(time.Hour)
		})
	}
}

func TestACallerThatLeavesLatchesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bank
		tool := payTool(&b, Unsafe)
		pay := tool.Call
		tool.Call = func(ctx context.Context, args json.RawMessage) (any, error) {
			time.Sleep(3 * time.Second)
			if ctx.Err() != nil {
				t.Error("the work was torn off")
			}
			return pay(ctx, args)
		}
		r := newRunner(t, new(oncehttp.MemoryStore), tool)
		turn := r.Turn("u", Budget{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := turn.Do(ctx, call("refund_order", refundArgs))[0]
		if told(got) != "failed transient unknown summarise_and_stop" || !errors.Is(got.Err, context.DeadlineExceeded) {
			t.Errorf("got %s, %v", told(got), got.Err)
		}
		if got := turn.Do(t.Context(), call("refund_order", `{"amount":1}`))[0]; got.Err != ErrLatched {
			t.Errorf("other arguments while it runs on: got %s, %v", told(got), got.Err)
		}
		time.Sleep(time.Minute)
		if got := turn.Do(t.Context(), call("refund_order", `{"amount":1}`))[0]; got.Err != ErrLatched {
			t.Errorf("other arguments when it has ended: got %s, %v", told(got), got.Err)
		}
		if got := turn.Do(t.Context(), call("refund_order", refundArgs))[0]; told(got) != "ok  applied use_result replayed" {
			t.Errorf("the same call: got %s", told(got))
		}
		if got := turn.Do(t.Context(), call("refund_order", `{"amount":1}`))[0]; got.Status != StatusOK {
			t.Errorf("other arguments when the model knows: got %s", told(got))
		}
	})
}

func TestWhatDidNotHappenRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		r := newRunner(t, new(oncehttp.MemoryStore), Tool{Name: "x", IgnoreFields: []string{"/note"}, Call: func(_ context.Context, args json.RawMessage) (any, error) {
			runs++
			if runs < 3 {
				return nil, Permanent(nil)
			}
			return args, nil
		}})
		turn := r.Turn("u", Budget{})
		for i, want := range []string{"failed permanent none inform_user", "failed permanent none inform_user", "ok  applied use_result", "ok  applied use_result replayed"} {
			got := turn.Do(t.Context(), call("x", fmt.Sprintf(`{"note":%d}`, i)))[0]
			if told(got) != want {
				t.Errorf("call %d: got %s, want %s", i+1, told(got), want)
			}
			if i >= 2 && string(got.Result) != `{"note":2}` {
				t.Errorf("call %d: got %s, want the arguments of the run that counted", i+1, got.Result)
			}
		}
	})
}

func TestUnderOneKeyGoTheFirstArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		tool := Tool{Name: "x", Effect: Keyed, KeyFields: []string{"/order"}, Call: func(_ context.Context, args json.RawMessage) (any, error) {
			sent = append(sent, string(args))
			return nil, io.EOF
		}}
		store := new(oncehttp.MemoryStore)
		turn := newRunner(t, store, tool).Turn("u", Budget{})
		turn.Do(t.Context(), call("x", `{"order":1,"note":"a"}`))
		turn.Do(t.Context(), call("x", `{"order":1,"note":"b"}`))
		if len(sent) != 2 || sent[1] != sent[0] {
			t.Errorf("sent %q, want the first arguments twice", sent)
		}
		// After a crash the first arguments are not known, so only equal ones go.
		for args, want := range map[string]int{`{"order":1,"note":"b"}`: 2, `{"order":1, "note":"a"}`: 2, `{"order":1,"note":"a"}`: 3} {
			before := len(sent)
			got := newRunner(t, store, tool).Turn("u", Budget{}).Do(t.Context(), call("x", args))[0]
			if got.Outcome != OutcomeUnknown || len(sent)-before != want-2 {
				t.Errorf("resumed with %s: %s, sent %d times", args, told(got), len(sent)-before)
			}
		}
	})
}

func TestPerOccurrenceMeansEachCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bank
		var fail error
		keys := map[string]int{}
		tool := Tool{Name: "tick", Effect: Keyed, Repeat: PerOccurrence, Call: func(ctx context.Context, args json.RawMessage) (any, error) {
			key, _ := KeyFromContext(ctx)
			if errors.Is(fail, io.EOF) || fail == nil {
				b.pay(key, string(args))
			}
			keys[key]++
			return nil, fail
		}}
		store := new(oncehttp.MemoryStore)
		turn := newRunner(t, store, tool).Turn("u", Budget{})
		turn.Do(t.Context(), call("tick", `{}`))
		turn.Do(t.Context(), call("tick", `{}`))
		fail = Permanent(nil)
		turn.Do(t.Context(), call("tick", `{}`)) // does not count
		fail = io.EOF
		turn.Do(t.Context(), call("tick", `{}`)) // unknown
		fail = nil
		turn.Do(t.Context(), call("tick", `{}`)) // its repeat
		if b.total() != 3 || len(keys) != 3 {
			t.Errorf("%d effects under %d keys, want 3 and 3", b.total(), len(keys))
		}
		resumed := newRunner(t, store, tool).Turn("u", Budget{})
		for i := range 4 {
			if got := resumed.Do(t.Context(), call("tick", `{}`))[0]; got.Replayed != (i < 3) {
				t.Errorf("occurrence %d after a resume: got %s", i+1, told(got))
			}
		}
		if b.total() != 4 {
			t.Errorf("%d effects, want 4", b.total())
		}
	})
}

func TestAStoreThatDoesNotAnswerStopsWhatChangesSomething(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bank
		p := &process{store: new(oncehttp.MemoryStore)}
		turn := newRunner(t, p, payTool(&b, Unsafe)).Turn("u", Budget{})
		p.down.Store(true)
		got := turn.Do(t.Context(), call("refund_order", refundArgs))[0]
		if told(got) != "failed transient unknown inform_user" || b.total() != 0 {
			t.Errorf("got %s, %d effects", told(got), b.total())
		}
		p.down.Store(false)
		if got := turn.Do(t.Context(), call("refund_order", `{"n":1}`))[0]; got.Status != StatusOK {
			t.Errorf("other arguments, when it is back: got %s, %v", told(got), got.Err)
		}
		p.down.Store(true)
		if got := turn.Do(t.Context(), call("refund_order", `{"n":1}`))[0]; told(got) != "ok  applied use_result replayed" {
			t.Errorf("what is settled needs no store: got %s", told(got))
		}
		time.Sleep(2 * time.Hour)
	})
}

// A process is a store as one process sees it: it can lose its network, and die.
type process struct {
	store oncehttp.Store
	down  atomic.Bool
}

var errDown = errors.New("no route to the store")

func (p *process) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	if p.down.Load() {
		return oncehttp.Claim{}, errDown
	}
	return p.store.Claim(ctx, op, lease, keep)
}

func (p *process) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	if p.down.Load() {
		return oncehttp.Claim{}, errDown
	}
	return p.store.TakeOver(ctx, op, lease, keep)
}

func (p *process) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	if p.down.Load() {
		return errDown
	}
	return p.store.Renew(ctx, op, lease)
}

func (p *process) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	if p.down.Load() {
		return errDown
	}
	return p.store.Complete(ctx, op, head, body, keep)
}

func (p *process) Release(ctx context.Context, op oncehttp.Op) error {
	if p.down.Load() {
		return errDown
	}
	return p.store.Release(ctx, op)
}

// One refund is wanted. The reply is lost, the request is lost, the tool hangs, the
// process dies and the turn is resumed; the runtime retries, the model calls again and
// tries other amounts. Whatever the seed: the refund is made at most once, exactly once
// if the model was told so, not at all if it was told so last, and no other amount is
// refunded while its outcome is open.
func TestOneRefundWhateverHappens(t *testing.T) {
	seeds := 1000
	if testing.Short() {
		seeds = 100
	}
	ends := map[string]int{}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 7))
			oneRefund(t, seed, rnd, ends)
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("how the calls ended: %v", ends)
	for _, want := range []string{"ok applied", "failed unknown", "failed none"} {
		if ends[want] < seeds/20 {
			t.Errorf("only %d calls ended %s, so that is not tested", ends[want], want)
		}
	}
}

func oneRefund(t *testing.T, seed int, rnd *rand.Rand, ends map[string]int) {
	var b bank
	store := new(oncehttp.MemoryStore)
	effect := []Effect{Unsafe, Keyed}[seed%2]
	const big, small = `{"order_id":"A-17","amount":100}`, `{"order_id":"A-17","amount":10}`
	var mu sync.Mutex
	chance := func(n int) int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) }

	var p *process
	var running atomic.Int32 // calls of the big one
	var story strings.Builder
	defer func() {
		if t.Failed() {
			t.Log(story.String())
		}
	}()
	start := func() (*Runner, *Turn) {
		me := &process{store: store}
		p = me
		tool := Tool{Name: "refund_order", Effect: effect, Timeout: 2 * time.Second}
		tool.Call = func(ctx context.Context, args json.RawMessage) (any, error) {
			if string(args) == big {
				running.Add(1)
				defer running.Add(-1)
			}
			time.Sleep(time.Duration(chance(100)) * time.Millisecond)
			if me.down.Load() {
				return nil, errDown // a dead process sends nothing
			}
			key := ""
			if effect == Keyed {
				key, _ = KeyFromContext(ctx)
			}
			switch chance(7) {
			case 0: // nothing left
				return nil, &Error{Type: TypeTransient, NotSent: true}
			case 1: // the request was lost
				return nil, io.ErrUnexpectedEOF
			case 2: // the reply was lost
				b.pay(key, string(args))
				return nil, Transient(io.ErrUnexpectedEOF)
			case 3: // a reply that never comes
				b.pay(key, string(args))
				<-ctx.Done()
				return nil, ctx.Err()
			case 4: // a tool that ignores its context
				time.Sleep(time.Duration(chance(10000)) * time.Millisecond)
				if !me.down.Load() {
					b.pay(key, string(args))
				}
				if b.declined(key) {
					return nil, Permanent(errors.New("declined"))
				}
				return "refunded", nil
			case 5:
				if b.decline(key) {
					return nil, Permanent(errors.New("declined"))
				}
			}
			if b.pay(key, string(args)); b.declined(key) {
				return nil, Permanent(errors.New("declined"))
			}
			return "refunded", nil
		}
		r := newRunner(t, me, tool)
		turn := r.Turn("turn_01", Budget{})
		if seed%3 == 0 { // in a sub-agent, which is started anew with its parent
			sub, err := turn.Sub(call("support_agent", `{"ticket":4}`))
			if err != nil {
				t.Fatal(err)
			}
			turn = sub
		}
		return r, turn
	}
	r, turn := start()
	last, saidOK := Outcome(""), false
	open := false // the model does not know what became of the big one
	for range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+chance(20))*time.Second)
		args := big
		if chance(3) == 0 {
			args = small
		}
		before, happened := b.count(small), b.count(big) > 0 || running.Load() > 0
		crash := chance(4) == 0
		var timer *time.Timer
		if crash {
			me := p
			timer = time.AfterFunc(time.Duration(chance(3000))*time.Millisecond, func() { me.down.Store(true) })
		}
		got := turn.Do(ctx, call("refund_order", args))[0]
		cancel()
		if timer != nil {
			timer.Stop()
		}
		died := p.down.Load()
		fmt.Fprintf(&story, "%s, died %v: %s, %v; %d refunds\n", args, died, told(got), got.Err, b.count(big))
		if died { // and nobody has heard its result
			time.Sleep(time.Duration(chance(60)) * time.Second)
			r.Drain(t.Context())
			if args == small {
				break // its own outcome is open now, and latches the big one: another story
			}
			open = open || last != OutcomeApplied
			r, turn = start()
			continue
		}
		ends[string(got.Status)+" "+string(got.Outcome)]++
		if args == small {
			if open && happened && b.count(small) != before {
				t.Errorf("a smaller amount was refunded while the outcome of the first was unknown")
			}
			if got.Outcome == OutcomeUnknown {
				break
			}
			continue
		}
		last = got.Outcome
		saidOK = saidOK || got.Status == StatusOK
		open = got.Outcome == OutcomeUnknown || open && errors.Is(got.Err, ErrLatched)
	}
	p.down.Store(false)
	r.Drain(t.Context())
	time.Sleep(3 * time.Hour)
	n := b.count(big)
	if n > 1 || saidOK && n != 1 || last == OutcomeNone && !open && n != 0 {
		t.Errorf("%d refunds; told ok: %v; last outcome %s", n, saidOK, last)
	}
}

func TestOutputIsContained(t *testing.T) {
	for _, row := range []struct {
		what  string
		value any
		want  string // of the result
		told  string
	}{
		{"huge output", strings.Repeat("x", 1<<20), "", "degraded degraded applied use_partial"},
		{"huge JSON full of quotes", json.RawMessage(`["` + strings.Repeat(`","`, 1<<18) + `"]`), "", "degraded degraded applied use_partial"},
		{"invalid JSON", json.RawMessage(`{"a":`), "", "degraded degraded applied use_partial"},
		{"a channel", make(chan int), "", "degraded degraded applied use_partial"},
		{"a marshaller that panics", panicky{}, "", "degraded degraded applied use_partial"},
		{"invalid UTF-8", json.RawMessage("\"\xff\""), "\"\uFFFD\"", "ok  applied use_result"},
		{"markup", "<a & b>", `"<a & b>"`, "ok  applied use_result"},
		{"a big number", json.RawMessage(`9007199254740993`), `9007199254740993`, "ok  applied use_result"},
		{"nothing", nil, "", "ok  applied use_result"},
	} {
		t.Run(row.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := new(oncehttp.MemoryStore)
				tool := Tool{Name: "x", Call: func(context.Context, json.RawMessage) (any, error) { return row.value, nil }}
				got := newRunner(t, store, tool).Turn("u", Budget{}).Do(t.Context(), call("x", `{}`))[0]
				if told(got) != row.told || row.want != "" && string(got.Result) != row.want || len(got.Result) > 64<<10 {
					t.Errorf("got %s, %d bytes", told(got), len(got.Result))
				}
				if b := got.JSON(); !json.Valid(b) {
					t.Errorf("the model is given %.300q", b)
				}
				again := newRunner(t, store, tool).Turn("u", Budget{}).Do(t.Context(), call("x", `{}`))[0]
				if told(again) != row.told+" replayed" || string(again.Result) != string(got.Result) || again.Details != got.Details {
					t.Errorf("replayed: got %s, %d bytes", told(again), len(again.Result))
				}
			})
		})
	}
}

type panicky struct{}

func (panicky) MarshalJSON() ([]byte, error) { panic("SECRET") }

// "Not sent" speaks of one run only.
func TestAnEarlierRunIsNotForgottenByALaterOne(t *testing.T) {
	for _, effect := range []Effect{Keyed, Idempotent} {
		synctest.Test(t, func(t *testing.T) {
			err := Transient(io.ErrUnexpectedEOF)
			tool := Tool{Name: "x", Effect: effect, Call: func(context.Context, json.RawMessage) (any, error) { return nil, err }}
			store := new(oncehttp.MemoryStore)
			turn := newRunner(t, store, tool).Turn("u", Budget{})
			turn.Do(t.Context(), call("x", `{}`))
			err = &Error{Type: TypeTransient, NotSent: true}
			for _, turn := range []*Turn{turn, newRunner(t, store, tool).Turn("u", Budget{})} {
				if got := turn.Do(t.Context(), call("x", `{}`))[0]; told(got) != "failed transient unknown verify" {
					t.Errorf("%v: got %s", effect, told(got))
				}
			}
			// The slots may be gone and the record not.
			key, _ := Key(nil, "acme/support-agent", "x", "u2", nil, 0)
			op := oncehttp.Op{Key: key, Token: oncehttp.NewToken()}
			if _, err := store.Claim(t.Context(), op, time.Second, time.Hour); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if got := newRunner(t, store, tool).Turn("u2", Budget{}).Do(t.Context(), call("x", `{}`))[0]; told(got) != "failed transient unknown verify" {
				t.Errorf("%v, with a record only: got %s", effect, told(got))
			}
		})
	}
}

func TestWhoeverSettlesACallUnlatchesTheToolForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bank
		store := new(oncehttp.MemoryStore)
		dying := &process{store: store}
		tool := payTool(&b, Keyed)
		hang := tool
		hang.Call = func(context.Context, json.RawMessage) (any, error) {
			dying.down.Store(true)
			return nil, errDown
		}
		newRunner(t, dying, hang).Turn("u", Budget{}).Do(t.Context(), call("refund_order", refundArgs))
		second := newRunner(t, store, tool).Turn("u", Budget{})
		if got := second.Do(t.Context(), call("refund_order", `{"n":1}`))[0]; got.Err != ErrLatched {
			t.Errorf("right after the crash: got %s, %v", told(got), got.Err)
		}
		time.Sleep(time.Minute) // the lease is over
		if got := second.Do(t.Context(), call("refund_order", refundArgs))[0]; told(got) != "ok  applied use_result" {
			t.Errorf("the same call: got %s, %v", told(got), got.Err)
		}
		for _, turn := range []*Turn{second, newRunner(t, store, tool).Turn("u", Budget{})} {
			if got := turn.Do(t.Context(), call("refund_order", `{"n":1}`))[0]; got.Status != StatusOK {
				t.Errorf("other arguments then: got %s, %v", told(got), got.Err)
			}
		}
		if b.total() != 2 {
			t.Errorf("%d effects, want 2", b.total())
		}
		time.Sleep(3 * time.Hour)
	})
}
