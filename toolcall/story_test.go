package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func newRunner(t testing.TB, store oncehttp.Store, tools ...Tool) *Runner {
	t.Helper()
	r := &Runner{Scope: "acme/support-agent", Store: store, Logger: quiet()}
	if err := r.Register(tools...); err != nil {
		t.Fatal(err)
	}
	return r
}

// A bank counts what really happens.
type bank struct {
	mu      sync.Mutex
	effects map[string]int    // by what was asked
	byKey   map[string]string // what a key was first used for
}

// pay makes a payment, with a key only once.
func (b *bank) pay(key, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.effects == nil {
		b.effects, b.byKey = map[string]int{}, map[string]string{}
	}
	if key != "" {
		if _, seen := b.byKey[key]; seen {
			return
		}
		b.byKey[key] = what
	}
	b.effects[what]++
}

// decline refuses a payment, and every later one under the key. It is false if one has
// been made under it.
func (b *bank) decline(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if key == "" {
		return true
	}
	if _, seen := b.byKey[key]; !seen {
		if b.effects == nil {
			b.effects, b.byKey = map[string]int{}, map[string]string{}
		}
		b.byKey[key] = "declined"
	}
	return b.byKey[key] == "declined"
}

func (b *bank) declined(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return key != "" && b.byKey[key] == "declined"
}

func (b *bank) count(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.effects[what]
}

func (b *bank) total() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.effects {
		n += k
	}
	return n
}

func call(tool, args string) Call { return Call{Tool: tool, Args: json.RawMessage(args)} }

// brief names what a test asks of a result.
func told(r Result) string {
	s := fmt.Sprintf("%s %s %s %s", r.Status, r.ErrorType, r.Outcome, r.Next)
	if r.Replayed {
		s += " replayed"
	}
	return s
}

func TestATrainStatusThatTimesOutTwiceIsFoundTheThirdTime(t *testing.T) {
	type in struct {
		Train string `json:"train"`
	}
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		var starts []time.Time
		r := newRunner(t, nil, Tool{Name: "train_status", Effect: Read, Timeout: 2 * time.Second, Call: Func(func(ctx context.Context, a in) (any, error) {
			runs++
			starts = append(starts, time.Now())
			if runs < 3 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return map[string]any{"train": a.Train, "delay": 4}, nil
		})})
		var recs []Record
		r.OnRecord = func(_ context.Context, rec Record) { recs = append(recs, rec) }
		turn := r.Turn("turn_01", Budget{})
		got := turn.Do(t.Context(), call("train_status", `{"train":"ICE 75"}`))[0]
		if told(got) != "ok  none use_result" || got.Attempts != 3 || string(got.Result) != `{"delay":4,"train":"ICE 75"}` {
			t.Errorf("got %s, %d attempts, %s", told(got), got.Attempts, got.Result)
		}
		tries := recs[0].Attempts
		for i, most := range []time.Duration{500 * time.Millisecond, time.Second} {
			pause := starts[i+1].Sub(starts[i]) - 2*time.Second
			if pause < 0 || pause > most || tries[i].Pause != pause {
				t.Errorf("pause %d: got %v, recorded as %v, want one in [0, %v]", i+1, pause, tries[i].Pause, most)
			}
		}
		if tries[2].Pause != 0 {
			t.Errorf("a pause after the last attempt: %v", tries[2].Pause)
		}

		begin := time.Now()
		got = turn.Do(t.Context(), call("train_status", `{"trian":"ICE 75"}`))[0]
		if told(got) != "failed bad_arguments none fix_arguments" || runs != 3 || !time.Now().Equal(begin) {
			t.Errorf("a wrong name: got %s, %d runs, after %v", told(got), runs, time.Since(begin))
		}
		if want := `argument "trian" does not exist; argument "train" is missing`; got.Details != want {
			t.Errorf("details: got %s, want %s", got.Details, want)
		}
	})
}

func TestPausesAreFullJitterUnderACap(t *testing.T) {
	var asked []int64
	r := &Runner{Rand: func(n int64) int64 { asked = append(asked, n); return n - 1 }}
	for n := range 70 {
		if p := r.pause(n+1, 0); p < 0 || p >= 8*time.Second {
			t.Fatalf("pause %d: %v", n+1, p)
		}
	}
	for i, want := range []time.Duration{500e6, 1000e6, 2000e6, 4000e6, 8000e6, 8000e6} {
		if got := time.Duration(asked[i]); got != want {
			t.Errorf("pause %d is drawn from [0, %v), want [0, %v)", i+1, got, want)
		}
	}
	for _, wait := range []time.Duration{1, time.Second, time.Hour} {
		if p := r.pause(1, wait); p < wait || p > wait+min(wait/10, time.Second) {
			t.Errorf("asked to wait %v: got %v", wait, p)
		}
	}
}

func TestTheErrorsTypeDecides(t *testing.T) {
	errPlain := errors.New("SECRET-upstream")
	notSent := &Error{Type: TypeTransient, NotSent: true, Err: errPlain}
	for _, row := range []struct {
		what   string
		effect Effect
		err    error
		runs   int
		want   string
	}{
		{"a read that cannot be told apart fails at once", Read, errPlain, 1, "failed permanent none inform_user"},
		{"a transient read is tried three times", Read, Transient(errPlain), 3, "failed transient none inform_user"},
		{"a timeout is transient", Read, context.DeadlineExceeded, 3, "failed transient none inform_user"},
		{"a permanent read once", Read, Permanent(errPlain), 1, "failed permanent none inform_user"},
		{"a wrapped error keeps its type", Read, fmt.Errorf("x: %w", BadArguments("no such train")), 1, "failed bad_arguments none fix_arguments"},
		{"half a read", Read, Degraded("half", errPlain), 1, "degraded degraded none use_partial"},

		{"an unsafe call that failed somehow may have happened", Unsafe, errPlain, 1, "failed permanent unknown verify"},
		{"an unsafe transient one is never tried again", Unsafe, Transient(errPlain), 1, "failed transient unknown verify"},
		{"unless nothing left", Unsafe, notSent, 3, "failed transient none inform_user"},
		{"an unsafe one that says nothing happened", Unsafe, Permanent(errPlain), 1, "failed permanent none inform_user"},
		{"an unsafe one with wrong arguments", Unsafe, BadArguments("x"), 1, "failed bad_arguments none fix_arguments"},
		{"an unsafe timeout", Unsafe, context.DeadlineExceeded, 1, "failed transient unknown verify"},
		{"half an unsafe one", Unsafe, Degraded("half", errPlain), 1, "degraded degraded applied use_partial"},

		{"a keyed transient one", Keyed, Transient(errPlain), 3, "failed transient unknown verify"},
		{"a keyed one that failed somehow", Keyed, errPlain, 1, "failed permanent unknown verify"},
		{"an idempotent transient one", Idempotent, Transient(errPlain), 3, "failed transient unknown verify"},
		{"a type that there is not", Keyed, &Error{Type: "odd", Err: errPlain}, 1, "failed permanent unknown verify"},
		{"a typed nil", Unsafe, (*Error)(nil), 1, "failed permanent unknown verify"},
	} {
		t.Run(row.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs := 0
				r := newRunner(t, new(oncehttp.MemoryStore), Tool{Name: "x", Effect: row.effect, Call: func(context.Context, json.RawMessage) (any, error) {
					runs++
					return nil, row.err
				}})
				got := r.Turn("u", Budget{}).Do(t.Context(), call("x", `{}`))[0]
				if told(got) != row.want || runs != row.runs || got.Attempts != row.runs {
					t.Errorf("got %s after %d runs, %d attempts, want %s after %d", told(got), runs, got.Attempts, row.want, row.runs)
				}
				if b := string(got.JSON()); strings.Contains(b, "SECRET") || !json.Valid([]byte(b)) {
					t.Errorf("the model is given %s", b)
				}
				if got.Err == nil {
					t.Error("no typed cause for the program")
				}
			})
		})
	}
}

func TestTheWorstOfAllRunsCounts(t *testing.T) {
	lost, notSent := Transient(io.ErrUnexpectedEOF), &Error{Type: TypeTransient, NotSent: true}
	for _, row := range []struct {
		what   string
		effect Effect
		errs   []error
		want   string
	}{
		{"lost, then refused to connect", Keyed, []error{lost, notSent, notSent}, "failed transient unknown verify"},
		{"lost, then not there any more", Idempotent, []error{lost, Permanent(nil)}, "failed permanent unknown verify"},
		{"lost, then a definite no for the key", Keyed, []error{lost, Permanent(nil)}, "failed permanent none inform_user"},
		{"lost, then a no that speaks of itself only", Keyed, []error{lost, &Error{Type: TypePermanent, NotSent: true}}, "failed permanent unknown verify"},
		{"lost, then refused for its arguments", Keyed, []error{lost, BadArguments("x")}, "failed bad_arguments unknown verify"},
		{"lost, then done", Keyed, []error{lost, nil}, "ok  applied use_result"},
		{"not sent, then lost, unsafe", Unsafe, []error{notSent, lost}, "failed transient unknown verify"},
		{"not sent, then done, unsafe", Unsafe, []error{notSent, nil}, "ok  applied use_result"},
	} {
		t.Run(row.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs := 0
				r := newRunner(t, new(oncehttp.MemoryStore), Tool{Name: "x", Effect: row.effect, Call: func(context.Context, json.RawMessage) (any, error) {
					runs++
					return nil, row.errs[runs-1]
				}})
				got := r.Turn("u", Budget{}).Do(t.Context(), call("x", `{}`))[0]
				if told(got) != row.want || runs != len(row.errs) {
					t.Errorf("got %s after %d runs, want %s after %d", told(got), runs, row.want, len(row.errs))
				}
			})
		})
	}
}

func TestAWaitThatIsAskedForIsKeptOrNotBegun(t *testing.T) {
	for _, row := range []struct {
		what     string
		wait     time.Duration
		deadline time.Duration
		runs     int
		min, max time.Duration
	}{
		{"short", 2 * time.Second, time.Hour, 3, 4 * time.Second, 5 * time.Second},
		{"longer than allowed", 31 * time.Second, time.Hour, 1, 0, 0},
		{"past the deadline", 5 * time.Second, 3 * time.Second, 1, 0, 0},
		{"absurd", 1<<63 - 1, time.Hour, 1, 0, 0},
	} {
		t.Run(row.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs := 0
				r := newRunner(t, nil, Tool{Name: "x", Effect: Read, Call: func(context.Context, json.RawMessage) (any, error) {
					runs++
					return nil, &Error{Type: TypeTransient, RetryAfter: row.wait}
				}})
				ctx, cancel := context.WithTimeout(t.Context(), row.deadline)
				defer cancel()
				begin := time.Now()
				got := r.Turn("u", Budget{}).Do(ctx, call("x", `{}`))[0]
				if d := time.Since(begin); runs != row.runs || d < row.min || d > row.max || got.RetryAfter != row.wait {
					t.Errorf("%d runs in %v, retry after %v, want %d in [%v, %v]", runs, d, got.RetryAfter, row.runs, row.min, row.max)
				}
			})
		})
	}
}

// Somebody who leaves during a pause is not kept, and nothing is sent any more.
func TestAPauseEndsWithThoseWhoWait(t *testing.T) {
	for _, effect := range []Effect{Unsafe, Keyed, Idempotent, Read} {
		synctest.Test(t, func(t *testing.T) {
			runs := 0
			r := newRunner(t, new(oncehttp.MemoryStore), Tool{Name: "x", Effect: effect, Call: func(context.Context, json.RawMessage) (any, error) {
				runs++
				return nil, &Error{Type: TypeTransient, NotSent: true, RetryAfter: 20 * time.Second}
			}})
			ctx, leave := context.WithCancelCause(t.Context())
			why := errors.New("the user has left")
			time.AfterFunc(3*time.Second, func() { leave(why) })
			begin := time.Now()
			got := r.Turn("u", Budget{}).Do(ctx, call("x", `{}`))[0]
			if d := time.Since(begin); d > 3*time.Second+grace || told(got) != "failed transient none summarise_and_stop" || !errors.Is(got.Err, why) {
				t.Errorf("%v: got %s, %v after %v, want an end after 3s", effect, told(got), got.Err, d)
			}
			time.Sleep(time.Hour)
			if runs != 1 {
				t.Errorf("%v: %d runs, want 1", effect, runs)
			}
		})
	}
}
