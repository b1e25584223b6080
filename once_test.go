package oncehttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// ok is work that succeeds.
func ok(context.Context) (head, body []byte, err error) { return []byte("head"), []byte("body"), nil }

// never is work that must not run.
func never(t *testing.T) func(context.Context) ([]byte, []byte, error) {
	return func(context.Context) ([]byte, []byte, error) {
		t.Error("the work was run")
		return nil, nil, nil
	}
}

// status is a key's state as another holder would see it, or 0 if it is free.
func status(t *testing.T, s Store, key string) ClaimStatus {
	t.Helper()
	for {
		f, ok := s.(*faulty)
		if !ok {
			break
		}
		s = f.Store
	}
	r, err := s.(Inspector).Show(context.Background(), key)
	if err == ErrNotFound {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return r.Status
}

func TestOnceRunsWorkOnceForAKey(t *testing.T) {
	o := &Once{Store: &MemoryStore{}}
	op := Op{Key: "refund A-17"}
	a, err := o.Do(t.Context(), op, ok)
	if err != nil || a.Kind != OutcomeRan || !a.Recorded || string(a.Head) != "head" || string(a.Body) != "body" || a.Holder != 1 {
		t.Errorf("first call: %+v, %v", a, err)
	}
	for range 3 {
		a, err = o.Do(t.Context(), op, never(t))
		if err != nil || a.Kind != OutcomeReplayed || !a.Recorded || string(a.Head) != "head" || string(a.Body) != "body" {
			t.Errorf("repeat: %+v, %v", a, err)
		}
	}
	if a, err = o.Do(t.Context(), Op{Key: "refund A-18"}, ok); err != nil || a.Kind != OutcomeRan {
		t.Errorf("another key: %+v, %v", a, err)
	}
}

func TestOnceGivesAThousandTwinsOneAnswer(t *testing.T) {
	for _, tt := range []struct {
		name  string
		store func(*MemoryStore) Store
	}{
		{"over a store that wakes them", func(s *MemoryStore) Store { return s }},
		{"over a store that they must poll", func(s *MemoryStore) Store { return &faulty{Store: s} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &Once{Store: tt.store(&MemoryStore{}), Logger: quiet}
				var runs atomic.Int32
				var wg sync.WaitGroup
				kinds := make([]OutcomeKind, 1000)
				for i := range kinds {
					wg.Go(func() {
						a, err := o.Do(t.Context(), Op{Key: "k"}, func(context.Context) ([]byte, []byte, error) {
							time.Sleep(3 * time.Second)
							return nil, fmt.Append(nil, "run ", runs.Add(1)), nil
						})
						if err != nil || string(a.Body) != "run 1" {
							t.Errorf("%+v, %v", a, err)
						}
						kinds[i] = a.Kind
					})
				}
				wg.Wait()
				n := map[OutcomeKind]int{}
				for _, k := range kinds {
					n[k]++
				}
				if runs.Load() != 1 || n[OutcomeRan] != 1 || n[OutcomeAttached] != 999 {
					t.Errorf("%d runs, outcomes %v; want 1 run and 999 attached", runs.Load(), n)
				}
				if len(o.rooms.byKey) != 0 {
					t.Errorf("%d keys are still being waited for", len(o.rooms.byKey))
				}
			})
		})
	}
}

// What the work says decides what becomes of its key.
func TestOnceJudgesHowWorkEnded(t *testing.T) {
	errWork := errors.New("declined")
	type result struct {
		kind OutcomeKind
		err  error // errors.Is
		then ClaimStatus
	}
	for _, tt := range []struct {
		name string
		work func(ctx context.Context) ([]byte, []byte, error)
		want result
	}{
		{"an answer is recorded", ok, result{OutcomeRan, nil, ClaimDone}},
		{"an error is no proof that nothing happened", func(context.Context) ([]byte, []byte, error) {
			return nil, nil, errWork
		}, result{OutcomeUnknown, ErrOutcomeUnknown, ClaimOrphaned}},
		{"an error is handed on", func(context.Context) ([]byte, []byte, error) {
			return nil, nil, errWork
		}, result{OutcomeUnknown, errWork, ClaimOrphaned}},
		{"an error and Release free the key", func(ctx context.Context) ([]byte, []byte, error) {
			Release(ctx)
			return nil, nil, errWork
		}, result{OutcomeReleased, errWork, 0}},
		{"Release frees the key", func(ctx context.Context) ([]byte, []byte, error) {
			Release(ctx)
			return nil, nil, nil
		}, result{OutcomeReleased, nil, 0}},
		{"Release works on a context made of the work's", func(ctx context.Context) ([]byte, []byte, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			Release(ctx)
			return nil, nil, nil
		}, result{OutcomeReleased, nil, 0}},
		{"Unknown makes an orphan", func(ctx context.Context) ([]byte, []byte, error) {
			Unknown(ctx)
			return nil, nil, nil
		}, result{OutcomeUnknown, ErrOutcomeUnknown, ClaimOrphaned}},
		{"Unknown wins over Release", func(ctx context.Context) ([]byte, []byte, error) {
			Unknown(ctx)
			Release(ctx)
			return nil, nil, nil
		}, result{OutcomeUnknown, ErrOutcomeUnknown, ClaimOrphaned}},
		{"Release after the Timeout frees nothing", func(ctx context.Context) ([]byte, []byte, error) {
			<-ctx.Done()
			Release(ctx)
			return nil, nil, errWork
		}, result{OutcomeUnknown, errWork, ClaimOrphaned}},
		{"Release before the Timeout frees nothing if the work goes on after it", func(ctx context.Context) ([]byte, []byte, error) {
			Release(ctx)
			<-ctx.Done()
			return nil, nil, errWork
		}, result{OutcomeUnknown, errWork, ClaimOrphaned}},
		{"an answer after the Timeout is recorded", func(ctx context.Context) ([]byte, []byte, error) {
			<-ctx.Done()
			return nil, nil, nil
		}, result{OutcomeRan, nil, ClaimDone}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &MemoryStore{}
				o := &Once{Store: s, Logger: quiet}
				a, err := o.Do(t.Context(), Op{Key: "k"}, tt.work)
				if a.Kind != tt.want.kind || !errors.Is(err, tt.want.err) {
					t.Errorf("got %v, %v; want %v, %v", a.Kind, err, tt.want.kind, tt.want.err)
				}
				if got := status(t, s, "k"); got != tt.want.then {
					t.Errorf("then the key is %v, want %v", got, tt.want.then)
				}
			})
		})
	}
}

func TestOnceLetsAPanicGoOnAndOrphansTheKey(t *testing.T) {
	s := &MemoryStore{}
	o := &Once{Store: s, Logger: quiet}
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("recovered %v, want boom", p)
			}
		}()
		o.Do(t.Context(), Op{Key: "panics"}, func(context.Context) ([]byte, []byte, error) { panic("boom") })
	}()
	done := make(chan bool)
	go func() {
		defer close(done)
		o.Do(t.Context(), Op{Key: "exits"}, func(context.Context) ([]byte, []byte, error) { runtime.Goexit(); return nil, nil, nil })
	}()
	<-done
	for _, key := range []string{"panics", "exits"} {
		if got := status(t, s, key); got != ClaimOrphaned {
			t.Errorf("the key of work that %s is %v, want orphaned", key, got)
		}
		if _, err := o.Do(t.Context(), Op{Key: key}, never(t)); !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("the repeat of work that %s: %v, want ErrOutcomeUnknown", key, err)
		}
	}
	if err := o.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestReleaseAndUnknownAreHarmlessElsewhere(t *testing.T) {
	Release(t.Context())
	Unknown(t.Context())
	s := &MemoryStore{}
	o := &Once{Store: s, Logger: quiet}
	var late context.Context
	o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) { late = ctx; return nil, nil, nil })
	Release(late)
	Unknown(late)
	if got := status(t, s, "k"); got != ClaimDone {
		t.Errorf("the key is %v, want done", got)
	}
}

// Claims without an answer.

func TestOnceAsksAnUnansweredClaimAgainWithTheSameOp(t *testing.T) {
	for _, tt := range []struct {
		name          string
		before, after func(context.Context, storeCall) error
	}{
		{"fails before it has an effect", fails, nil},
		{"fails after it had its effect", nil, fails},
		{"hangs before it has an effect", hangs, nil},
		{"hangs after it had its effect", nil, hangs},
		{"panics before it has an effect", panics, nil},
		{"panics after it had its effect", nil, panics},
	} {
		t.Run("one that "+tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := func(act func(context.Context, storeCall) error) func(context.Context, storeCall) error {
					return during("Claim", func(ctx context.Context, c storeCall) error {
						if c.n > 1 || act == nil {
							return nil
						}
						return act(ctx, c)
					})
				}
				s := &faulty{Store: &MemoryStore{}, before: first(tt.before), after: first(tt.after)}
				o := &Once{Store: s, Logger: quiet}
				a, err := o.Do(t.Context(), Op{Key: "k"}, ok)
				if err != nil || a.Kind != OutcomeRan {
					t.Errorf("%+v, %v", a, err)
				}
				claims := s.made("Claim")
				if len(claims) != 2 || claims[0].op != claims[1].op {
					t.Errorf("claims: %+v; want two with one Op", claims)
				}
				if err := o.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				if got := status(t, s, "k"); got != ClaimDone {
					t.Errorf("then the key is %v, want done", got)
				}
			})
		})
	}
}

// A claim whose reply is lost may take effect long after it was given up. Nobody
// would ever complete it, so it must be undone whenever it arrives.
func TestOnceUndoesAClaimThatArrivesLate(t *testing.T) {
	const lease = 30 * time.Second
	for _, late := range []time.Duration{0, lease / 100, lease / 10, lease / 3, lease / 2, lease - time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := &MemoryStore{}
				down := true
				s := &faulty{Store: mem}
				s.before = during("Claim", func(_ context.Context, c storeCall) error {
					if !down {
						return nil
					}
					time.AfterFunc(late, func() { mem.Claim(context.Background(), c.op, lease, time.Hour) })
					return errStore
				})
				o := &Once{Store: s, Lease: lease, Logger: quiet}
				a, err := o.Do(t.Context(), Op{Key: "k"}, never(t))
				if a.Kind != OutcomeRefused || !errors.Is(err, ErrStoreUnavailable) || !errors.Is(err, errStore) {
					t.Errorf("%+v, %v; want ErrStoreUnavailable", a, err)
				}
				down = false
				time.Sleep(lease + time.Second)
				if got := status(t, s, "k"); got != 0 {
					t.Errorf("a lease later the key is %v, want free", got)
				}
				if err := o.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				if n := len(s.made("Release")); n < 3 || n > 20 {
					t.Errorf("released %d times, want several times over the lease", n)
				}
				if a, err := o.Do(t.Context(), Op{Key: "k"}, ok); err != nil || a.Kind != OutcomeRan {
					t.Errorf("the retry: %+v, %v", a, err)
				}
			})
		})
	}
}

// The work of a release verdict came after a claim that may still be on its way.
func TestOnceUndoesALateClaimOfAKeyItReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := &MemoryStore{}
		s := &faulty{Store: mem}
		s.before = during("Claim", func(_ context.Context, c storeCall) error {
			if c.n > 1 {
				return nil
			}
			time.AfterFunc(10*time.Second, func() { mem.Claim(context.Background(), c.op, 30*time.Second, time.Hour) })
			return errStore
		})
		o := &Once{Store: s, Logger: quiet}
		a, err := o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
			Release(ctx)
			return nil, nil, nil
		})
		if err != nil || a.Kind != OutcomeReleased {
			t.Errorf("%+v, %v", a, err)
		}
		time.Sleep(31 * time.Second)
		if got := status(t, s, "k"); got != 0 {
			t.Errorf("the key is %v, want free", got)
		}
	})
}

func TestOnceRepeatsAReleaseThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{Store: &MemoryStore{}}
		s.before = during("Release", func(_ context.Context, c storeCall) error {
			if c.n < 4 {
				return errStore
			}
			return nil
		})
		o := &Once{Store: s, Logger: quiet}
		a, err := o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
			Release(ctx)
			return nil, []byte("try again"), nil
		})
		if err != nil || a.Kind != OutcomeReleased || string(a.Body) != "try again" {
			t.Errorf("%+v, %v", a, err)
		}
		if err := o.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if n := len(s.made("Release")); n != 4 {
			t.Errorf("released %d times, want 4: until it is done, and no more", n)
		}
		if got := status(t, s, "k"); got != 0 {
			t.Errorf("the key is %v, want free", got)
		}
	})
}

func TestOnceNeverRunsOnWhatAStoreMustNotSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &Once{Store: blankStore{&MemoryStore{}}, Logger: quiet}
		if a, err := o.Do(t.Context(), Op{Key: "k"}, never(t)); !errors.Is(err, ErrStoreUnavailable) || a.Kind != OutcomeRefused {
			t.Errorf("%+v, %v; want ErrStoreUnavailable", a, err)
		}
	})
}

// A blankStore forgets to say what a claim is.
type blankStore struct{ *MemoryStore }

func (blankStore) Claim(context.Context, Op, time.Duration, time.Duration) (Claim, error) {
	return Claim{}, nil
}

func TestOncePassesOnThatTheStoreIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{Store: &MemoryStore{MaxRecords: 1, Logger: quiet}}
		o := &Once{Store: s, Logger: quiet}
		o.Do(t.Context(), Op{Key: "k"}, ok)
		a, err := o.Do(t.Context(), Op{Key: "k2"}, never(t))
		if !errors.Is(err, ErrFull) || errors.Is(err, ErrStoreUnavailable) || a.Kind != OutcomeRefused {
			t.Errorf("%+v, %v; want ErrFull", a, err)
		}
		o.Drain(t.Context())
		if len(s.made("Claim")) != 2 || len(s.made("Release")) != 0 {
			t.Errorf("calls: %+v; want no more than one claim for each key", s.calls)
		}
	})
}

// An answer to a claim that took longer than the lease says nothing any more.
func TestOnceConfirmsASlowClaimBeforeItRuns(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(mem *MemoryStore) // while the answer is on its way
		runs bool
		err  error
	}{
		{"it is still ours", func(*MemoryStore) {}, true, nil},
		{"it was taken over", func(mem *MemoryStore) {
			mem.TakeOver(context.Background(), Op{Key: "k", Token: "other"}, time.Hour, time.Hour)
		}, false, ErrInProgress},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := &MemoryStore{}
				s := &faulty{Store: mem}
				s.after = during("Claim", func(context.Context, storeCall) error {
					time.Sleep(40 * time.Second) // its context means nothing to it
					tt.then(mem)
					return nil
				})
				o := &Once{Store: s, Logger: quiet}
				ran := false
				_, err := o.Do(t.Context(), Op{Key: "k"}, func(context.Context) ([]byte, []byte, error) {
					ran = true
					return nil, nil, nil
				})
				if ran != tt.runs || !errors.Is(err, tt.err) {
					t.Errorf("ran: %v, %v; want %v, %v", ran, err, tt.runs, tt.err)
				}
			})
		})
	}
}

// While the work runs.

func TestOnceRenewsWhileWorkRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{Store: &MemoryStore{}}
		o := &Once{Store: s, Lease: 3 * time.Second, Timeout: time.Minute, Logger: quiet}
		_, err := o.Do(t.Context(), Op{Key: "k"}, func(context.Context) ([]byte, []byte, error) {
			for range 20 {
				time.Sleep(time.Second - time.Millisecond)
				if got := status(t, s, "k"); got != ClaimRunning {
					t.Fatalf("after %d leases the key is %v, want running", len(s.made("Renew"))/3, got)
				}
			}
			return nil, nil, nil
		})
		if err != nil {
			t.Error(err)
		}
		if n := len(s.made("Renew")); n != 19 {
			t.Errorf("renewed %d times in 19.98 s with a lease of 3 s, want 19", n)
		}
		time.Sleep(time.Minute)
		if n := len(s.made("Renew")); n != 19 {
			t.Errorf("the heartbeat goes on after the work: %d renewals", n)
		}
	})
}

func TestOnceStopsTheHeartbeatOfWorkThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{Store: &MemoryStore{}}
		o := &Once{Store: s, Lease: 3 * time.Second, Timeout: 10 * time.Second, Logger: quiet}
		began := time.Now()
		a, err := o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
			time.Sleep(time.Minute)
			if got := status(t, s, "k"); got != ClaimOrphaned {
				t.Errorf("the key is %v, want orphaned", got)
			}
			return nil, []byte("at last"), nil
		})
		renewals := s.made("Renew")
		if last := renewals[len(renewals)-1].at.Sub(began); last < 10*time.Second || last > 13*time.Second {
			t.Errorf("the last renewal came after %v, want Timeout (10 s) to Timeout + Lease (13 s)", last)
		}
		// Its answer heals the orphan.
		if err != nil || a.Kind != OutcomeRan || !a.Recorded {
			t.Errorf("%+v, %v", a, err)
		}
		if a, err := o.Do(t.Context(), Op{Key: "k"}, never(t)); err != nil || string(a.Body) != "at last" {
			t.Errorf("the repeat: %+v, %v", a, err)
		}
	})
}

func TestOnceEndsTheContextOfWork(t *testing.T) {
	type end struct {
		err, cause error
		after      time.Duration
	}
	wait := func(ctx context.Context) end {
		began := time.Now()
		<-ctx.Done()
		return end{ctx.Err(), context.Cause(ctx), time.Since(began)}
	}
	for _, tt := range []struct {
		name   string
		derive func(context.Context) (context.Context, context.CancelFunc)
	}{
		{"its own", func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} }},
		{"a child", context.WithCancel},
		{"a grandchild", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.WithValue(ctx, txKey{}, "value"), time.Hour)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := &MemoryStore{}
				o := &Once{Store: mem, Timeout: 40 * time.Second, Logger: quiet}
				// The caller's own end must not matter.
				ctx, leave := context.WithCancel(context.WithValue(t.Context(), txKey{}, "value"))
				leave()
				var got end
				_, err := o.Do(ctx, Op{Key: "times out"}, func(ctx context.Context) ([]byte, []byte, error) {
					if ctx.Value(txKey{}) != "value" {
						t.Error("the caller's values are lost")
					}
					if d, ok := ctx.Deadline(); !ok || time.Until(d) != 40*time.Second {
						t.Errorf("deadline in %v, %v; want 40 s", time.Until(d), ok)
					}
					if ctx.Err() != nil {
						t.Errorf("the work begins with a context that has ended: %v", ctx.Err())
					}
					ctx, cancel := tt.derive(ctx)
					defer cancel()
					got = wait(ctx)
					return nil, nil, nil
				})
				if want := (end{context.DeadlineExceeded, errTimeout, 40 * time.Second}); err != nil || got != want {
					t.Errorf("after Timeout: %v, %v; want %v", got, err, want)
				}

				_, err = o.Do(t.Context(), Op{Key: "is lost"}, func(ctx context.Context) ([]byte, []byte, error) {
					r := ctx.Value(runKey{}).(*run)
					mem.Renew(ctx, r.op, 0)
					mem.TakeOver(ctx, Op{Key: "is lost", Token: "thief"}, time.Hour, time.Hour)
					ctx, cancel := tt.derive(ctx)
					defer cancel()
					got = wait(ctx)
					return nil, nil, nil
				})
				if want := (end{context.Canceled, errLost, 10 * time.Second}); got != want || !errors.Is(got.cause, ErrClaimLost) {
					t.Errorf("after the claim was lost: %v; want %v", got, want)
				}
				if !errors.Is(err, ErrInProgress) {
					t.Errorf("%v, want ErrInProgress: the thief is running", err)
				}

				var late context.Context
				o.Do(t.Context(), Op{Key: "returns"}, func(ctx context.Context) ([]byte, []byte, error) {
					late, _ = tt.derive(ctx)
					return nil, nil, nil
				})
				if late.Err() != context.Canceled {
					t.Errorf("after the work has returned: %v, want Canceled", late.Err())
				}
				<-late.Done()
			})
		})
	}
}

// A claim that is lost belongs to somebody else, and so does the answer.
func TestOnceAnswersALostClaimWithTheWinnersRecord(t *testing.T) {
	bg := context.Background()
	thief := Op{Key: "k", Token: "thief"}
	for _, tt := range []struct {
		name  string
		steal func(mem *MemoryStore)
		kind  OutcomeKind
		body  string
		err   error
		then  ClaimStatus
	}{
		{"who has finished", func(mem *MemoryStore) {
			mem.TakeOver(bg, thief, time.Hour, time.Hour)
			mem.Complete(bg, thief, nil, []byte("the thief's"), time.Hour)
		}, OutcomeReplayed, "the thief's", nil, ClaimDone},
		{"who finishes while we wait", func(mem *MemoryStore) {
			mem.TakeOver(bg, thief, time.Hour, time.Hour)
			time.AfterFunc(12*time.Second, func() { mem.Complete(bg, thief, nil, []byte("the thief's"), time.Hour) })
		}, OutcomeReplayed, "the thief's", nil, ClaimDone},
		{"who is still running", func(mem *MemoryStore) {
			mem.TakeOver(bg, thief, time.Hour, time.Hour)
		}, OutcomeUnknown, "", ErrInProgress, ClaimRunning},
		{"who has vanished too", func(mem *MemoryStore) {
			mem.TakeOver(bg, thief, time.Second, time.Hour)
		}, OutcomeUnknown, "", ErrOutcomeUnknown, ClaimOrphaned},
		{"who asked for something else", func(mem *MemoryStore) {
			mem.Release(bg, Op{Key: "k"})
			mem.Purge(bg, "k")
			other := thief
			other.Fingerprint[0] = 1
			mem.Claim(bg, other, time.Hour, time.Hour)
			mem.Complete(bg, other, nil, []byte("the thief's"), time.Hour)
		}, OutcomeUnknown, "", ErrOutcomeUnknown, ClaimDone},
		{"who released it, so that it looks as if nothing had run", func(mem *MemoryStore) {
			mem.Purge(bg, "k")
		}, OutcomeUnknown, "", ErrOutcomeUnknown, ClaimOrphaned},
	} {
		for _, when := range []string{"noticed by the heartbeat", "noticed at the end", "noticed by work that fails then"} {
			t.Run(tt.name+", "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					mem := &MemoryStore{}
					o := &Once{Store: mem, Timeout: time.Minute, Logger: quiet}
					a, err := o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
						mem.Renew(ctx, ctx.Value(runKey{}).(*run).op, 0)
						tt.steal(mem)
						switch when {
						case "noticed by the heartbeat":
							<-ctx.Done()
						case "noticed by work that fails then":
							<-ctx.Done()
							return nil, nil, ctx.Err()
						}
						return nil, []byte("our own"), nil
					})
					if when == "noticed at the end" && tt.name == "who finishes while we wait" {
						// It takes longer than Wait from here.
						if !errors.Is(err, ErrInProgress) {
							t.Errorf("%v, want ErrInProgress", err)
						}
						return
					}
					if a.Kind != tt.kind || string(a.Body) != tt.body || !errors.Is(err, tt.err) {
						t.Errorf("%v %q, %v; want %v %q, %v", a.Kind, a.Body, err, tt.kind, tt.body, tt.err)
					}
					if tt.name == "who has vanished too" {
						time.Sleep(time.Second)
					}
					if got := status(t, mem, "k"); got != tt.then {
						t.Errorf("then the key is %v, want %v", got, tt.then)
					}
				})
			})
		}
	}
}

// What is known to be lost stays lost when the store goes away as well.
func TestOnceNeverDeliversTheAnswerOfALostClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		mem := &MemoryStore{}
		s := &faulty{Store: mem, before: func(context.Context, storeCall) error {
			if down.Load() {
				return errStore
			}
			return nil
		}}
		o := &Once{Store: s, Logger: quiet}
		a, err := o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
			mem.Renew(ctx, ctx.Value(runKey{}).(*run).op, 0)
			mem.TakeOver(ctx, Op{Key: "k", Token: "thief"}, time.Hour, time.Hour)
			<-ctx.Done()
			down.Store(true)
			return nil, []byte("our own"), nil
		})
		if a.Kind != OutcomeUnknown || a.Body != nil || !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("%+v, %v; want ErrOutcomeUnknown", a, err)
		}
	})
}

// A store that cannot be reached is no reason to stop or to forget work.

func TestOnceGoesOnWhenTheStoreCannotBeReached(t *testing.T) {
	for _, tt := range []struct {
		name string
		act  func(context.Context, storeCall) error
	}{
		{"fails", fails},
		{"hangs", hangs},
		{"panics", panics},
	} {
		t.Run("it "+tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var down atomic.Bool
				s := &faulty{Store: &MemoryStore{}}
				s.before = func(ctx context.Context, c storeCall) error {
					if !down.Load() {
						return nil
					}
					return tt.act(ctx, c)
				}
				o := &Once{Store: s, Logger: quiet}
				var ended time.Time
				a, err := o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
					down.Store(true)
					time.Sleep(25 * time.Second) // two heartbeats
					if ctx.Err() != nil {
						t.Errorf("the work's context has ended: %v", context.Cause(ctx))
					}
					ended = time.Now()
					return nil, []byte("done"), nil
				})
				if waited := time.Since(ended); waited > 5*time.Second {
					t.Errorf("the answer waited %v for the store, want at most Wait (5 s)", waited)
				}
				if err != nil || a.Kind != OutcomeRan || a.Recorded || string(a.Body) != "done" {
					t.Errorf("%+v, %v; want our own answer, unconfirmed", a, err)
				}
				beats := len(s.made("Renew"))
				time.Sleep(time.Minute)
				if len(s.made("Renew")) == beats {
					t.Error("the heartbeat stopped with the work; want it to go on until the answer is recorded")
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := o.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Drain: %v, want DeadlineExceeded", err)
				}

				down.Store(false)
				if err := o.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				if n := len(s.made("Release")); n != 0 {
					t.Errorf("released %d times; work that was done must never be", n)
				}
				a, err = o.Do(t.Context(), Op{Key: "k"}, never(t))
				if err != nil || a.Kind != OutcomeReplayed || string(a.Body) != "done" {
					t.Errorf("the repeat: %+v, %v", a, err)
				}
				beats = len(s.made("Renew"))
				time.Sleep(time.Minute)
				if n := len(s.made("Renew")); n != beats {
					t.Error("the heartbeat goes on after the answer is recorded")
				}
			})
		})
	}
}

func TestOnceGivesUpRecordingInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{Store: &MemoryStore{}, before: during("Complete", fails)}
		o := &Once{Store: s, Logger: quiet}
		if a, err := o.Do(t.Context(), Op{Key: "k"}, ok); err != nil || a.Recorded {
			t.Errorf("%+v, %v", a, err)
		}
		began := time.Now()
		if err := o.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d < time.Hour || d > time.Hour+time.Minute {
			t.Errorf("gave up after %v, want about an hour", d)
		}
		if got := status(t, s, "k"); got != ClaimOrphaned {
			t.Errorf("then the key is %v, want orphaned", got)
		}
	})
}

func TestOnceCompletionIsRecognisedWhenItsReplyWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{Store: &MemoryStore{}}
		s.after = during("Complete", func(_ context.Context, c storeCall) error {
			if c.n == 1 {
				return errStore
			}
			return nil
		})
		o := &Once{Store: s, Logger: quiet}
		a, err := o.Do(t.Context(), Op{Key: "k"}, ok)
		if err != nil || a.Kind != OutcomeRan || !a.Recorded {
			t.Errorf("%+v, %v; want it confirmed", a, err)
		}
	})
}

// A renewal that meets the completion's effect does not mean that the claim was
// lost while the work ran.
func TestOnceRenewalAfterTheEndIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex
		s := &faulty{Store: &MemoryStore{}, after: func(_ context.Context, c storeCall) error {
			switch {
			case c.method == "Renew":
				return ErrClaimLost // it is done: some stores say so
			case c.method == "Complete" && c.n < 20:
				return errStore // it took effect, but nobody learns of it
			}
			return nil
		}}
		o := &Once{Store: s, Logger: slog.New(slog.NewTextHandler(&lockedWriter{w: &log, mu: &mu}, nil))}
		if a, err := o.Do(t.Context(), Op{Key: "k"}, ok); err != nil || string(a.Body) != "body" {
			t.Errorf("%+v, %v", a, err)
		}
		if err := o.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(s.made("Renew")) == 0 || strings.Contains(log.String(), "lost") {
			t.Errorf("%d renewals, log: %s", len(s.made("Renew")), log.String())
		}
	})
}

func TestOnceSurvivesAStoreThatPanics(t *testing.T) {
	for _, method := range []string{"Claim", "Renew", "Complete", "Release", "TakeOver"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				var mu sync.Mutex
				s := &faulty{Store: &MemoryStore{}, before: during(method, panics)}
				o := &Once{Store: s, Orphan: OrphanRerun, Logger: slog.New(slog.NewTextHandler(&lockedWriter{w: &log, mu: &mu}, nil))}
				o.Do(t.Context(), Op{Key: "long"}, func(context.Context) ([]byte, []byte, error) {
					time.Sleep(time.Minute)
					return nil, nil, nil
				})
				o.Do(t.Context(), Op{Key: "released"}, func(ctx context.Context) ([]byte, []byte, error) {
					Release(ctx)
					return nil, nil, nil
				})
				s.Store.Claim(t.Context(), Op{Key: "orphan", Token: "x"}, 1, time.Hour)
				time.Sleep(time.Second)
				o.Do(t.Context(), Op{Key: "orphan"}, ok)
				if err := o.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if !strings.Contains(log.String(), "the store panicked") || !strings.Contains(log.String(), "once_store_test.go") {
					t.Errorf("the log does not tell where: %s", log.String())
				}
				if strings.Contains(log.String(), "a store's secret") {
					t.Errorf("the log tells what was in the panic")
				}
			})
		})
	}
}

type lockedWriter struct {
	w  *bytes.Buffer
	mu *sync.Mutex
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// Waiting.

// hold claims a key as another process would.
func hold(t *testing.T, s Store, key string, lease time.Duration) Op {
	t.Helper()
	op := Op{Key: key, Token: NewToken()}
	if c, err := s.Claim(context.Background(), op, lease, time.Hour); err != nil || c.Status != ClaimAcquired {
		t.Fatalf("%v, %v", c.Status, err)
	}
	return op
}

func TestOnceWaitsForOneWaitInAll(t *testing.T) {
	for _, wakes := range []bool{true, false} {
		t.Run(fmt.Sprintf("wakes %v", wakes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := &MemoryStore{}
				var s Store = mem
				if !wakes {
					s = &faulty{Store: mem}
				}
				o := &Once{Store: s, Logger: quiet}
				first := hold(t, mem, "k", time.Hour)
				// After 3 s another process gets it. What is left is 2 s, not 5.
				time.AfterFunc(3*time.Second, func() {
					mem.Release(context.Background(), first)
					hold(t, mem, "k", time.Hour)
				})
				began := time.Now()
				a, err := o.Do(t.Context(), Op{Key: "k"}, never(t))
				if !errors.Is(err, ErrInProgress) || a.Kind != OutcomeRefused {
					t.Errorf("%+v, %v; want ErrInProgress", a, err)
				}
				if d := time.Since(began); d < 4900*time.Millisecond || d > 5*time.Second {
					t.Errorf("waited %v, want 5 s", d)
				}
			})
		})
	}
}

func TestOnceAttachesSoonAfterTheEnd(t *testing.T) {
	for _, tt := range []struct {
		name  string
		store func(*MemoryStore) Store
		after time.Duration
	}{
		{"at once if the store wakes", func(s *MemoryStore) Store { return s }, 0},
		{"within a nap if it must be polled", func(s *MemoryStore) Store { return &faulty{Store: s} }, maxNap},
		{"within a nap if its Wait fails", func(s *MemoryStore) Store { return brokenWaiter{s} }, maxNapWoken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := &MemoryStore{}
				o := &Once{Store: tt.store(mem), Logger: quiet}
				op := hold(t, mem, "k", time.Hour)
				var ended time.Time
				time.AfterFunc(2500*time.Millisecond, func() {
					ended = time.Now()
					mem.Complete(context.Background(), op, nil, []byte("done"), time.Hour)
				})
				a, err := o.Do(t.Context(), Op{Key: "k"}, never(t))
				if err != nil || a.Kind != OutcomeAttached || string(a.Body) != "done" {
					t.Errorf("%+v, %v", a, err)
				}
				if d := time.Since(ended); d > tt.after {
					t.Errorf("attached %v after the end, want at most %v", d, tt.after)
				}
			})
		})
	}
}

type brokenWaiter struct{ *MemoryStore }

func (brokenWaiter) Wait(context.Context, string) error { return errStore }

type nervousWaiter struct{ *faulty }

func (nervousWaiter) Wait(context.Context, string) error { return nil }

func TestOnceDoesNotSpinWhenAStoreWakesForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{Store: &MemoryStore{}}
		o := &Once{Store: nervousWaiter{s}, Logger: quiet}
		hold(t, s.Store, "k", time.Hour)
		if _, err := o.Do(t.Context(), Op{Key: "k"}, never(t)); !errors.Is(err, ErrInProgress) {
			t.Error(err)
		}
		if n := len(s.made("Claim")); n > 600 {
			t.Errorf("%d claims in 5 s", n)
		}
	})
}

func TestOnceStopsWaitingWhenItsCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &MemoryStore{}
		o := &Once{Store: s, Logger: quiet}
		hold(t, s, "k", time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := o.Do(ctx, Op{Key: "k"}, never(t)); !errors.Is(err, ErrInProgress) {
			t.Errorf("%v, want ErrInProgress", err)
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("waited %v, want 1 s", d)
		}
	})
}

// Work that fails for one would fail for all who wait, one after the other.
func TestOnceWaitersStopAfterTwoReleases(t *testing.T) {
	for _, tt := range []struct {
		name    string
		foreign bool // the first holder is another process
		want    int32
	}{
		{"all in one process", false, 2},
		{"the first in another process", true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &MemoryStore{}
				o := &Once{Store: s, Logger: quiet}
				var runs, refused atomic.Int32
				var wg sync.WaitGroup
				if tt.foreign {
					op := hold(t, s, "k", time.Hour)
					time.AfterFunc(time.Second, func() { s.Release(context.Background(), op) })
				}
				for range 100 {
					wg.Go(func() {
						_, err := o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
							runs.Add(1)
							time.Sleep(time.Second)
							Release(ctx)
							return nil, nil, nil
						})
						switch {
						case errors.Is(err, ErrInProgress):
							refused.Add(1)
						case err != nil:
							t.Error(err)
						}
					})
				}
				began := time.Now()
				wg.Wait()
				if runs.Load() != tt.want || refused.Load() != 100-tt.want {
					t.Errorf("%d runs and %d in progress; want %d and the rest", runs.Load(), refused.Load(), tt.want)
				}
				if d := time.Since(began); d > 3*time.Second {
					t.Errorf("took %v, want no longer than two runs and a nap", d)
				}
				if got := status(t, s, "k"); got != 0 {
					t.Errorf("then the key is %v, want free", got)
				}
			})
		})
	}
}

func TestOnceLooksWhoAsksAndWhatBeforeAnythingElse(t *testing.T) {
	first := Op{Key: "k", Fingerprint: [32]byte{1}, Binding: [32]byte{1}}
	what := Op{Key: "k", Fingerprint: [32]byte{2}, Binding: [32]byte{1}}
	who := Op{Key: "k", Fingerprint: [32]byte{1}, Binding: [32]byte{2}}
	both := Op{Key: "k", Fingerprint: [32]byte{2}, Binding: [32]byte{2}}
	for _, state := range []ClaimStatus{ClaimRunning, ClaimDone, ClaimOrphaned} {
		for _, orphan := range []Orphan{OrphanRefuse, OrphanRerun} {
			t.Run(fmt.Sprint(state, orphan), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &MemoryStore{}
					o := &Once{Store: s, Orphan: orphan, Logger: quiet}
					op := first
					op.Token = "first"
					s.Claim(t.Context(), op, time.Hour, time.Hour)
					switch state {
					case ClaimDone:
						s.Complete(t.Context(), op, nil, nil, time.Hour)
					case ClaimOrphaned:
						s.Renew(t.Context(), op, 0)
					}
					began := time.Now()
					for _, tt := range []struct {
						op   Op
						want error
					}{{what, ErrKeyReused}, {who, ErrPrincipalChanged}, {both, ErrPrincipalChanged}} {
						if a, err := o.Do(t.Context(), tt.op, never(t)); !errors.Is(err, tt.want) || a.Kind != OutcomeRefused {
							t.Errorf("%v, %v; want %v", a, err, tt.want)
						}
					}
					if time.Since(began) > 0 {
						t.Error("a call that can never match waited")
					}
				})
			})
		}
	}
}

// Orphans.

func TestOnceRerunsAnOrphanOnlyIfItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &MemoryStore{}
		hold(t, s, "k", time.Second)
		time.Sleep(time.Second)
		refuse := &Once{Store: s, Logger: quiet}
		if a, err := refuse.Do(t.Context(), Op{Key: "k"}, never(t)); !errors.Is(err, ErrOutcomeUnknown) || a.Kind != OutcomeUnknown {
			t.Errorf("%+v, %v; want ErrOutcomeUnknown", a, err)
		}
		rerun := &Once{Store: s, Orphan: OrphanRerun, Logger: quiet}
		var runs atomic.Int32
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				a, err := rerun.Do(t.Context(), Op{Key: "k"}, func(context.Context) ([]byte, []byte, error) {
					runs.Add(1)
					time.Sleep(time.Second)
					return nil, []byte("again"), nil
				})
				if err != nil || string(a.Body) != "again" || a.Holder != 2 {
					t.Errorf("%+v, %v", a, err)
				}
			})
		}
		wg.Wait()
		if runs.Load() != 1 {
			t.Errorf("%d runs, want 1", runs.Load())
		}
	})
}

func TestOnceNoticesAnOrphanWhileItWaits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		store func(*MemoryStore) Store
	}{
		{"with a store that wakes it", func(s *MemoryStore) Store { return s }},
		{"with a store that must be polled", func(s *MemoryStore) Store { return &faulty{Store: s} }},
		{"with a store that wakes for other things only", func(s *MemoryStore) Store { return sleepyWaiter{s} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := &MemoryStore{}
				hold(t, mem, "k", 2500*time.Millisecond)
				began := time.Now()
				o := &Once{Store: tt.store(mem), Logger: quiet}
				if _, err := o.Do(t.Context(), Op{Key: "k"}, never(t)); !errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("%v, want ErrOutcomeUnknown", err)
				}
				if d := time.Since(began); d < 2500*time.Millisecond || d > 2510*time.Millisecond {
					t.Errorf("noticed after %v, want 2.5 s: when the lease was over", d)
				}
			})
		})
	}
}

type sleepyWaiter struct{ *MemoryStore }

func (sleepyWaiter) Wait(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// That an earlier holder vanished, and what it was asked, must not be forgotten
// because a later one says that nothing happened in its own run.
func TestOnceReleaseAfterATakeOverLeavesAnOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &MemoryStore{}
		hold(t, s, "k", time.Second)
		time.Sleep(time.Second)
		o := &Once{Store: s, Orphan: OrphanRerun, Logger: quiet}
		release := func(ctx context.Context) ([]byte, []byte, error) { Release(ctx); return nil, nil, nil }
		if a, err := o.Do(t.Context(), Op{Key: "k"}, release); err != nil || a.Kind != OutcomeReleased {
			t.Errorf("%+v, %v", a, err)
		}
		if got := status(t, s, "k"); got != ClaimOrphaned {
			t.Errorf("then the key is %v, want orphaned", got)
		}
		if _, err := o.Do(t.Context(), Op{Key: "k", Fingerprint: [32]byte{1}}, never(t)); !errors.Is(err, ErrKeyReused) {
			t.Errorf("something else under this key: %v, want ErrKeyReused", err)
		}
		if a, err := o.Do(t.Context(), Op{Key: "k"}, ok); err != nil || a.Kind != OutcomeRan || a.Holder != 3 {
			t.Errorf("the repeat: %+v, %v", a, err)
		}
	})
}

func TestOnceUndoesATakeOverWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{Store: &MemoryStore{}, after: during("TakeOver", fails)}
		hold(t, s.Store, "k", time.Second)
		time.Sleep(time.Second)
		o := &Once{Store: s, Orphan: OrphanRerun, Logger: quiet}
		if _, err := o.Do(t.Context(), Op{Key: "k"}, never(t)); !errors.Is(err, ErrStoreUnavailable) {
			t.Errorf("%v, want ErrStoreUnavailable", err)
		}
		o.Drain(t.Context())
		if got := status(t, s, "k"); got != ClaimOrphaned {
			t.Errorf("then the key is %v, want orphaned: not free, and not running without a runner", got)
		}
	})
}

// A renewal under way must not heal what was just made an orphan.
func TestOnceUnknownIsNotUndoneByTheHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{Store: &MemoryStore{}}
		s.before = during("Renew", func(_ context.Context, c storeCall) error {
			if c.lease > 0 {
				time.Sleep(3 * time.Second) // whatever the context says
			}
			return nil
		})
		o := &Once{Store: s, Logger: quiet}
		o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
			time.Sleep(11 * time.Second) // a renewal began after 10
			Unknown(ctx)
			return nil, nil, nil
		})
		time.Sleep(5 * time.Second)
		if got := status(t, s, "k"); got != ClaimOrphaned {
			t.Errorf("the key is %v, want orphaned", got)
		}
	})
}

func TestOnceNamesWhatMakesNoSense(t *testing.T) {
	s := &MemoryStore{}
	for _, tt := range []struct {
		o    *Once
		op   Op
		want string
	}{
		{&Once{}, Op{Key: "k"}, "Once.Store"},
		{&Once{Store: s, Lease: -1}, Op{Key: "k"}, "Once.Lease"},
		{&Once{Store: s, Keep: -1}, Op{Key: "k"}, "Once.Keep"},
		{&Once{Store: s, Wait: -1}, Op{Key: "k"}, "Once.Wait"},
		{&Once{Store: s, Timeout: -1}, Op{Key: "k"}, "Once.Timeout"},
		{&Once{Store: s, Orphan: 7}, Op{Key: "k"}, "Once.Orphan"},
		{&Once{Store: s}, Op{}, "Op.Key"},
	} {
		a, err := tt.o.Do(t.Context(), tt.op, never(t))
		if err == nil || !strings.Contains(err.Error(), tt.want) || a.Kind != OutcomeRefused {
			t.Errorf("%v, want an error that names %s", err, tt.want)
		}
	}
	if _, err := (&Once{Store: s}).Do(t.Context(), Op{Key: "k"}, nil); err == nil || !strings.Contains(err.Error(), "work") {
		t.Errorf("%v, want an error that names work", err)
	}
}

func TestOnceDrainWaitsForWorkThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &Once{Store: &MemoryStore{}, Logger: quiet}
		if err := o.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		go o.Do(t.Context(), Op{Key: "k"}, func(context.Context) ([]byte, []byte, error) {
			time.Sleep(time.Minute)
			return nil, nil, nil
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := o.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 call") {
			t.Errorf("%v, want DeadlineExceeded and how many", err)
		}
		began := time.Now()
		if err := o.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != 59*time.Second {
			t.Errorf("drained after %v, want 59 s", d)
		}
	})
}

func TestOnceSaysWhenABodyWasDropped(t *testing.T) {
	o := &Once{Store: &MemoryStore{MaxBytes: 10, Logger: quiet}, Logger: quiet}
	o.Do(t.Context(), Op{Key: "k"}, func(context.Context) ([]byte, []byte, error) {
		return []byte("head"), make([]byte, 100), nil
	})
	a, err := o.Do(t.Context(), Op{Key: "k"}, never(t))
	if !errors.Is(err, ErrResponseGone) || string(a.Head) != "head" || !a.BodyDropped {
		t.Errorf("%+v, %v; want ErrResponseGone and the head", a, err)
	}
}

// Transactions.

func TestOnceRunsWorkWithinAStoresTransaction(t *testing.T) {
	errWork := errors.New("declined")
	for _, tt := range []struct {
		name   string
		faults txFaults
		work   func(ctx context.Context) ([]byte, []byte, error)
		kind   OutcomeKind
		err    error
		then   ClaimStatus
		writes int
	}{
		{"what it writes is committed with the record", txFaults{}, ok, OutcomeRan, nil, ClaimDone, 1},
		{"an error rolls back and frees the key", txFaults{}, func(context.Context) ([]byte, []byte, error) {
			return nil, nil, errWork
		}, OutcomeReleased, errWork, 0, 0},
		{"so does Release", txFaults{}, func(ctx context.Context) ([]byte, []byte, error) {
			Release(ctx)
			return nil, nil, nil
		}, OutcomeReleased, nil, 0, 0},
		{"Unknown rolls back and leaves an orphan", txFaults{}, func(ctx context.Context) ([]byte, []byte, error) {
			Unknown(ctx)
			return nil, nil, nil
		}, OutcomeUnknown, ErrOutcomeUnknown, ClaimOrphaned, 0},
		{"a store that cannot begin refuses", txFaults{begin: errStore}, nil, OutcomeRefused, ErrStoreUnavailable, 0, 0},
		{"a claim lost before the work is somebody else's", txFaults{begin: ErrClaimLost}, nil, OutcomeRefused, ErrInProgress, ClaimRunning, 0},
		{"Unknown leaves an orphan also when the store fails to make it one", txFaults{undo: errStore}, func(ctx context.Context) ([]byte, []byte, error) {
			Unknown(ctx)
			return nil, nil, nil
		}, OutcomeUnknown, ErrOutcomeUnknown, ClaimOrphaned, 0},
		{"a commit that was refused for certain frees the key", txFaults{commit: fmt.Errorf("constraint: %w", ErrRolledBack)}, ok, OutcomeReleased, ErrRolledBack, 0, 0},
		{"a commit that nobody knows of is unknown", txFaults{commit: ErrOutcomeUnknown}, ok, OutcomeUnknown, ErrOutcomeUnknown, 0, 0},
		{"any other error of a commit is no better", txFaults{commit: errStore}, ok, OutcomeUnknown, ErrOutcomeUnknown, 0, 0},
		{"a commit whose reply was lost is unknown here and done there", txFaults{lose: ErrOutcomeUnknown}, ok, OutcomeUnknown, ErrOutcomeUnknown, ClaimDone, 1},
		{"a rollback that fails is one all the same, since no commit was asked for", txFaults{undo: errStore}, func(context.Context) ([]byte, []byte, error) {
			return nil, nil, errWork
		}, OutcomeReleased, errWork, 0, 0},
		{"a store that panics while it commits is unknown", txFaults{panics: true}, ok, OutcomeUnknown, ErrOutcomeUnknown, ClaimOrphaned, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &transacting{MemoryStore: &MemoryStore{}, txFaults: tt.faults}
				o := &Once{Store: s, Logger: quiet}
				a, err := o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
					if tt.work == nil {
						t.Fatal("the work was run")
					}
					write(ctx, "refund")
					return tt.work(ctx)
				})
				if a.Kind != tt.kind || !errors.Is(err, tt.err) {
					t.Errorf("%v, %v; want %v, %v", a.Kind, err, tt.kind, tt.err)
				}
				if (err == nil && a.Kind == OutcomeRan) != (string(a.Body) == "body") {
					t.Errorf("body %q with %v, %v", a.Body, a.Kind, err)
				}
				if err := o.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				if got := status(t, s.MemoryStore, "k"); got != tt.then {
					t.Errorf("then the key is %v, want %v", got, tt.then)
				}
				if len(s.writes) != tt.writes {
					t.Errorf("writes: %v, want %d", s.writes, tt.writes)
				}
			})
		})
	}
}

// Between a rollback and a later claim somebody else could run.
func TestOnceLeavesItToTheTransactionToMakeAnOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &transacting{MemoryStore: &MemoryStore{}}
		o := &Once{Store: s, Logger: quiet}
		o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
			Unknown(ctx)
			return nil, nil, nil
		})
		if s.end != TxUnknown {
			t.Errorf("the store was asked for %v, want %v", s.end, TxUnknown)
		}
	})
}

// What an earlier holder did is still unknown when the one who took over did nothing.
func TestOnceDoesNotFreeAKeyThatWasTakenOverInATransaction(t *testing.T) {
	for _, tt := range []struct {
		name string
		txFaults
		work func(ctx context.Context) ([]byte, []byte, error)
		want error
	}{
		{"work fails", txFaults{}, func(context.Context) ([]byte, []byte, error) { return nil, nil, errStore }, errStore},
		{"the commit is refused", txFaults{commit: ErrRolledBack}, ok, ErrRolledBack},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &transacting{MemoryStore: &MemoryStore{}, txFaults: tt.txFaults}
				o := &Once{Store: s, Orphan: OrphanRerun, Logger: quiet}
				o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
					Unknown(ctx)
					return nil, nil, nil
				})
				a, err := o.Do(t.Context(), Op{Key: "k"}, tt.work)
				if a.Kind != OutcomeReleased || !errors.Is(err, tt.want) || a.Holder != 2 {
					t.Errorf("%v by holder %d, %v; want released by 2 and %v", a.Kind, a.Holder, err, tt.want)
				}
				o.Drain(t.Context())
				if got := status(t, s.MemoryStore, "k"); got != ClaimOrphaned {
					t.Errorf("the key is %v, want an orphan", got)
				}
			})
		})
	}
}

func TestOnceKeepsTheWordOfWorkThatPanicsInATransaction(t *testing.T) {
	boom := errors.New("boom")
	for name, end := range map[string]func(){
		"it panics":          func() { panic(boom) },
		"it ends its thread": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &transacting{MemoryStore: &MemoryStore{}}
				o := &Once{Store: s, Logger: quiet}
				done := make(chan any)
				go func() {
					defer func() { done <- recover() }()
					o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
						write(ctx, "refund")
						Unknown(ctx)
						end()
						return nil, nil, nil
					})
					t.Error("Do has returned")
				}()
				if p := <-done; p != nil && p != boom {
					t.Errorf("recovered %v, want what the work panicked with", p)
				} else if (p != nil) != (name == "it panics") {
					t.Errorf("recovered %v", p)
				} else if p != nil && s.end != TxUnknown {
					// The store would free the key, and who waits for it would run.
					t.Errorf("the store was asked for %v, want %v", s.end, TxUnknown)
				}
				if got := status(t, s.MemoryStore, "k"); got != ClaimOrphaned || len(s.writes) != 0 {
					t.Errorf("the key is %v with writes %v, want an orphan without: nobody can tell what the work did elsewhere", got, s.writes)
				}
			})
		})
	}
}

func TestOnceLetsAPanicRollTheTransactionBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &transacting{MemoryStore: &MemoryStore{}}
		o := &Once{Store: s, Logger: quiet}
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("recovered %v, want boom", p)
				}
			}()
			o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
				write(ctx, "refund")
				panic("boom")
			})
		}()
		o.Drain(t.Context())
		if got := status(t, s.MemoryStore, "k"); got != 0 || len(s.writes) != 0 {
			t.Errorf("the key is %v with writes %v, want free and none", got, s.writes)
		}
	})
}
