package oncehttp

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp/internal/badlog"
)

// apart runs f in a goroutine of its own, whose end it waits for.
func apart(f func()) {
	done := make(chan bool)
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// A log handler that panics is the log's fault: what was done is recorded, the heartbeat
// ends, nothing is owed to the store, and the process lives.
func TestOnceSurvivesALogThatFails(t *testing.T) {
	for how, fail := range map[string]func(){
		"panics":             func() { panic("a handler's secret") },
		"ends its goroutine": runtime.Goexit,
	} {
		for _, tt := range []struct {
			what string
			s    *faulty
			work func(context.Context) ([]byte, []byte, error)
			then ClaimStatus // 0: the key is free
		}{
			{"work takes too long", &faulty{}, func(context.Context) ([]byte, []byte, error) {
				time.Sleep(6 * time.Minute)
				return []byte("head"), nil, nil
			}, ClaimDone},
			{"the store does not take the answer at first", &faulty{before: during("Complete", func(_ context.Context, c storeCall) error {
				if c.n < 20 {
					return errStore
				}
				return nil
			})}, ok, ClaimDone},
			{"the store panics at first", &faulty{before: during("Complete", func(ctx context.Context, c storeCall) error {
				if c.n <= 3 {
					panic("a store's secret")
				}
				return nil
			})}, ok, ClaimDone},
			{"renewals fail", &faulty{before: during("Renew", fails)}, func(context.Context) ([]byte, []byte, error) {
				time.Sleep(25 * time.Second)
				return nil, nil, nil
			}, ClaimDone},
			{"the key cannot be freed at first", &faulty{before: during("Release", func(_ context.Context, c storeCall) error {
				if c.n < 3 {
					return errStore
				}
				return nil
			})}, func(ctx context.Context) ([]byte, []byte, error) {
				Release(ctx)
				return nil, nil, nil
			}, 0},
			{"the outcome is unknown", &faulty{}, func(ctx context.Context) ([]byte, []byte, error) {
				Unknown(ctx)
				return nil, nil, nil
			}, ClaimOrphaned},
		} {
			t.Run(how+" when "+tt.what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := tt.s
					s.Store = &MemoryStore{}
					o := &Once{Store: s, Logger: badlog.New(fail)}
					apart(func() { o.Do(t.Context(), Op{Key: "k"}, tt.work) })
					if err := o.Drain(t.Context()); err != nil {
						t.Error(err)
					}
					if got := status(t, s.Store, "k"); got != tt.then {
						t.Errorf("the key is %v, want %v", got, tt.then)
					}
					n := len(s.made("Renew"))
					time.Sleep(time.Hour)
					if got := len(s.made("Renew")); got != n {
						t.Errorf("%d renewals after the end", got-n)
					}
				})
			})
		}
	}
}

// A store that ends the goroutine of whoever calls it, as one in a test that calls
// t.FailNow, leaves nothing running and nothing owed.
func TestOnceSurvivesAStoreThatEndsTheGoroutine(t *testing.T) {
	exits := func(_ context.Context, c storeCall) error {
		if c.n <= 3 {
			runtime.Goexit()
		}
		return nil
	}
	for _, tt := range []struct {
		during string
		work   func(context.Context) ([]byte, []byte, error)
		then   ClaimStatus
		beats  int // renewals, at least
	}{
		{"Claim", ok, 0, 0},
		{"Complete", ok, ClaimDone, 0},
		{"Renew", func(context.Context) ([]byte, []byte, error) {
			time.Sleep(time.Minute)
			return nil, nil, nil
		}, ClaimDone, 5},
		{"Release", func(ctx context.Context) ([]byte, []byte, error) {
			Release(ctx)
			return nil, nil, nil
		}, 0, 0},
		{"Renew", func(ctx context.Context) ([]byte, []byte, error) {
			Unknown(ctx)
			return nil, nil, nil
		}, ClaimOrphaned, 0},
		{"Complete", func(ctx context.Context) ([]byte, []byte, error) {
			defer func() { panic("work's own") }()
			return nil, nil, nil
		}, ClaimOrphaned, 0},
	} {
		for _, when := range []string{"before", "after"} {
			t.Run(when+" "+tt.during, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &faulty{Store: &MemoryStore{}}
					if when == "before" {
						s.before = during(tt.during, exits)
					} else {
						s.after = during(tt.during, exits)
					}
					o := &Once{Store: s, Logger: quiet}
					apart(func() {
						defer func() { recover() }()
						o.Do(t.Context(), Op{Key: "k"}, tt.work)
					})
					if err := o.Drain(t.Context()); err != nil {
						t.Error(err)
					}
					if got := status(t, s.Store, "k"); got != tt.then {
						t.Errorf("the key is %v, want %v", got, tt.then)
					}
					if got, want := len(s.made("Renew")), tt.beats; got < want {
						t.Errorf("%d renewals, want at least %d", got, want)
					}
					n := len(s.made("Renew"))
					time.Sleep(time.Hour)
					if got := len(s.made("Renew")); got != n {
						t.Errorf("%d renewals after the end", got-n)
					}
				})
			})
		}
	}
}

// An exiting Transactor ends the goroutine before it runs the work, or after.
type exiting struct {
	*MemoryStore
	runs bool
}

func (s exiting) Transact(ctx context.Context, _ Op, _ time.Duration, work func(context.Context) ([]byte, []byte, TxEnd)) error {
	if s.runs {
		work(ctx)
	}
	runtime.Goexit()
	return nil
}

func TestOnceSurvivesATransactThatEndsTheGoroutine(t *testing.T) {
	for _, tt := range []struct {
		runs bool
		then ClaimStatus // 0: the key is free
	}{{false, 0}, {true, ClaimOrphaned}} {
		synctest.Test(t, func(t *testing.T) {
			s := exiting{&MemoryStore{}, tt.runs}
			o := &Once{Store: s, Logger: quiet}
			apart(func() { o.Do(t.Context(), Op{Key: "k"}, ok) })
			if err := o.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			if got := status(t, s.MemoryStore, "k"); got != tt.then {
				t.Errorf("the work ran: %v; the key is %v, want %v", tt.runs, got, tt.then)
			}
		})
	}
}

// A log handler that ends the goroutine does not keep Once from saying what it knows of a
// transaction: a key whose work called Unknown, or may be committed, is not run again.
func TestOnceSurvivesALogThatEndsTheGoroutineOfATransaction(t *testing.T) {
	unknown := func(ctx context.Context) ([]byte, []byte, error) {
		Unknown(ctx)
		return []byte("head"), nil, nil
	}
	slow := func(ctx context.Context) ([]byte, []byte, error) {
		time.Sleep(6 * time.Minute)
		return []byte("head"), nil, nil
	}
	for _, tt := range []struct {
		what string
		err  error // of Transact, which has freed the key if it is ErrRolledBack
		runs bool  // the work is run
		work func(context.Context) ([]byte, []byte, error)
		then ClaimStatus // 0: the key is free
	}{
		{"it may have been committed", errStore, true, ok, ClaimOrphaned},
		{"it may have been committed, and took too long", errStore, true, slow, ClaimOrphaned},
		{"it was rolled back", ErrRolledBack, true, ok, 0},
		{"it was rolled back after Unknown", ErrRolledBack, true, unknown, ClaimOrphaned},
		{"it was not begun", errStore, false, ok, 0},
	} {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := failingTx{&MemoryStore{}, tt.err, tt.runs}
				o := &Once{Store: s, Logger: badlog.New(runtime.Goexit), Lease: time.Hour}
				apart(func() { o.Do(t.Context(), Op{Key: "k"}, tt.work) })
				if err := o.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				if got := status(t, s.MemoryStore, "k"); got != tt.then {
					t.Errorf("the key is %v, want %v", got, tt.then)
				}
			})
		})
	}
}

// A failingTx is a Transactor whose transactions fail with err, once the work has run.
type failingTx struct {
	*MemoryStore
	err  error
	runs bool
}

func (s failingTx) Transact(ctx context.Context, op Op, _ time.Duration, work func(context.Context) ([]byte, []byte, TxEnd)) error {
	if s.runs {
		work(ctx)
	}
	if s.err == ErrRolledBack {
		s.Release(ctx, op)
	}
	return s.err
}

// What is told of a request whose handler has run does not say that it was refused.
func TestOutcomeOfAStoreThatEndsTheGoroutine(t *testing.T) {
	for _, died := range []bool{false, true} {
		s := &faulty{Store: &MemoryStore{}, before: during("Complete", func(_ context.Context, c storeCall) error {
			if c.n == 1 {
				runtime.Goexit()
			}
			return nil
		})}
		var got Outcome
		m := &Middleware{Store: s, Logger: quiet, OnOutcome: func(_ *http.Request, o Outcome) { got = o }}
		h := m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if died {
				panic("x")
			}
		}))
		apart(func() {
			req := httptest.NewRequest("POST", "/", nil)
			req.Header.Set(Header, "k")
			defer func() { recover() }()
			h.ServeHTTP(httptest.NewRecorder(), req)
		})
		if got.Kind != OutcomeRan || got.Recorded {
			t.Errorf("the handler panicked: %v; got %v, recorded: %v, want that it ran", died, got.Kind, got.Recorded)
		}
		if err := m.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
