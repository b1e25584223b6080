package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

// exec mode, so that the proxy can read what is sent
func throughProxy(l *ledger, p *proxy) string {
	return strings.Replace(l.DSN(l.db), l.Addr(), p.addr(), 1) + "&default_query_exec_mode=exec"
}

// commitOf is how the driver of a test of both spells what ends a transaction.
func commitOf(t *testing.T) string {
	if strings.Contains(t.Name(), "database/sql") {
		return "COMMIT"
	}
	return "commit"
}

func TestALostAnswerToACommitIsSettled(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		p := newProxy(t, l.Addr())
		// Whoever can ask has to connect first, which some machines are slow at.
		patient := connect(t, throughProxy(l, p), pgstore.WithSettle(time.Minute))
		hasty := connect(t, throughProxy(l, p), pgstore.WithSettle(2*time.Second))
		direct := connect(t, l.DSN(l.db))
		for _, v := range []struct {
			name  string
			what  fault
			times int
			runs  int32
			cents string
			err   error
			then  oncehttp.ClaimStatus
		}{
			{"the commit happened", losesReply, 1, 1, "100", nil, oncehttp.ClaimDone},
			{"the commit did not happen, so the work runs again", losesRequest, 1, 2, "100", nil, oncehttp.ClaimDone},
			{"the commit never happens, so the work is given up", losesRequest, 3, 3, "0", oncehttp.ErrRolledBack, oncehttp.ClaimAcquired},
			{"the commit happened and nobody can ask", losesReplyAndGoesDown, 1, 1, "100", oncehttp.ErrOutcomeUnknown, oncehttp.ClaimDone},
			{"the commit did not happen and nobody can ask", goesDown, 1, 1, "0", oncehttp.ErrOutcomeUnknown, oncehttp.ClaimAcquired},
		} {
			t.Run(v.name, func(t *testing.T) {
				query(t, l.PG, l.db, "update accounts set cents = 0")
				s := patient
				if v.err == oncehttp.ErrOutcomeUnknown {
					s = hasty
				}
				op := newOp(v.name)
				mustClaim(t, s, op, oncehttp.ClaimAcquired)
				var ran atomic.Int32
				p.arm(v.what, v.times, commitOf(t))
				err := s.Transact(context.Background(), op, keep, pays(1, 100, &ran))
				p.arm(v.what, 0, "")
				if !errors.Is(err, v.err) {
					t.Errorf("got error %v, want %v", err, v.err)
				}
				if got := ran.Load(); got != v.runs {
					t.Errorf("work ran %d times, want %d", got, v.runs)
				}
				p.up()
				if v.err == oncehttp.ErrOutcomeUnknown {
					// What a Once does then. The server knows better.
					eventually(t, "the unknown is settled", func() bool {
						return s.Renew(context.Background(), op, 0) == nil
					})
				}
				if got := l.cents(t, 1); got != v.cents {
					t.Errorf("got %s cents, want %s", got, v.cents)
				}
				mustClaim(t, direct, newOp(op.Key), v.then)
			})
		}
	})
}

// While a server recovers, those who wait to learn how their commits ended come ever
// more rarely.
func TestAServerThatIsAwayIsAskedEverMoreRarely(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		p := newProxy(t, l.Addr())
		s := connect(t, throughProxy(l, p), pgstore.WithSettle(3*time.Second))
		op := newOp("key")
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		var ran atomic.Int32
		p.arm(losesReplyAndGoesDown, 1, commitOf(t))
		if err := s.Transact(context.Background(), op, keep, pays(1, 100, &ran)); !errors.Is(err, oncehttp.ErrOutcomeUnknown) {
			t.Errorf("got error %v, want ErrOutcomeUnknown", err)
		}
		// Waits of at least 4, 8, 16, 32 and 64 ms, and then of 128 ms: 28 of them fit into
		// 3 s. Three connections are tried each time.
		if got, most := p.refusals(), 3*(28+1); got > most {
			t.Errorf("a server that was away was asked %d times, want %d at most", got, most)
		}
		p.up()
	})
}

// Claims that need longer for their rows than another one believes that they may take are
// not taken from each other for ever.
func TestAFarServerGivesAnOrphanToSomebody(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		p := newProxy(t, l.Addr())
		stores := []*pgstore.TxStore{connect(t, throughProxy(l, p)), connect(t, throughProxy(l, p))}
		op := newOp("key")
		mustClaim(t, stores[0], op, oncehttp.ClaimAcquired)
		if err := stores[0].Renew(context.Background(), op, 0); err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		p.told = func() {}
		p.mu.Unlock()
		p.arm(isLate, 1<<30, "BEGIN")
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		var got atomic.Int32
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				for got.Load() == 0 && ctx.Err() == nil {
					c, err := stores[i%2].TakeOver(ctx, newOp(op.Key), lease, keep)
					switch {
					case err != nil && ctx.Err() == nil:
						t.Error(err)
					case err == nil && c.Status == oncehttp.ClaimAcquired && ctx.Err() == nil:
						got.Add(1)
					default:
						time.Sleep(5 * time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
		if got.Load() != 1 {
			t.Errorf("%d got the key while they all wanted it, want 1", got.Load())
		}
	})
}

// Two processes, the same keys, and connections that break all the time: each time a
// moment after something was answered, about as long as that took. So a machine that is
// slow at connecting gets on too, and a fast one is interrupted as often.
func TestExactlyOnceThoughConnectionsBreak(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		p := newProxy(t, l.Addr())
		stores := []*pgstore.TxStore{connect(t, throughProxy(l, p)), connect(t, throughProxy(l, p))}
		const keys, workers, most = 100, 8, 25
		var answered, broken atomic.Int32
		stop := make(chan struct{})
		var breaker, wg sync.WaitGroup
		sleeps := func(d time.Duration) bool { // unless it is all over
			select {
			case <-stop:
				return false
			case <-time.After(d):
				return true
			}
		}
		breaker.Go(func() {
			for broken.Load() < most {
				began, before := time.Now(), answered.Load()
				for answered.Load() == before {
					if !sleeps(time.Millisecond) {
						return
					}
				}
				if !sleeps(rand.N(10*time.Millisecond + time.Since(began))) {
					return
				}
				p.breakAll(false)
				broken.Add(1)
			}
		})
		var ran, unknown atomic.Int32
		for w := range workers {
			wg.Go(func() {
				s := stores[w%2]
				for k := range keys {
					for deadline := time.Now().Add(2 * time.Minute); ; {
						if time.Now().After(deadline) {
							t.Errorf("key %d is stuck", k)
							return
						}
						ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
						op := newOp(fmt.Sprint("key ", k))
						c, err := s.Claim(ctx, op, lease, keep)
						if err != nil {
							s.Release(ctx, op)
							cancel()
							continue
						}
						answered.Add(1)
						if c.Status == oncehttp.ClaimDone {
							cancel()
							break
						}
						if c.Status == oncehttp.ClaimAcquired {
							err = s.Transact(ctx, op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
								ran.Add(1)
								err := add(ctx, 1, 1)
								time.Sleep(2 * time.Millisecond)
								return []byte("201"), nil, commitIf(err == nil)
							})
							if errors.Is(err, oncehttp.ErrOutcomeUnknown) {
								unknown.Add(1)
								s.Renew(ctx, op, 0)
							}
						} else {
							s.Wait(ctx, op.Key)
						}
						cancel()
					}
				}
			})
		}
		wg.Wait()
		close(stop)
		breaker.Wait()
		if got := l.cents(t, 1); got != fmt.Sprint(keys) {
			t.Errorf("got %s cents for %d keys", got, keys)
		}
		if got := count(t, l.PG, l.db, "lapses is null"); got != keys {
			t.Errorf("got %d records, want %d", got, keys)
		}
		if broken.Load() < 3 || ran.Load() == keys {
			t.Error("too few connections were broken for this to show anything")
		}
		t.Logf("connections were broken %d times; %d runs for %d keys; %d outcomes were unknown for a while", broken.Load(), ran.Load(), keys, unknown.Load())
	})
}

// The key of a claim that waits to be run is held by its connection. That of a call
// whose context ends is not torn off, which would give the key away.
func TestACallThatIsCancelledDoesNotGiveAHeldKeyAway(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		p := newProxy(t, l.Addr())
		s, other := connect(t, throughProxy(l, p)), connect(t, l.DSN(l.db))
		for _, v := range []struct {
			name, text string
			call       func(ctx context.Context, op oncehttp.Op) error
			then       oncehttp.ClaimStatus
		}{
			{"Complete", "UPDATE", func(ctx context.Context, op oncehttp.Op) error {
				return s.Complete(ctx, op, []byte("head"), nil, keep)
			}, oncehttp.ClaimDone},
			{"Renew", "SELECT true", func(ctx context.Context, op oncehttp.Op) error {
				return s.Renew(ctx, op, lease)
			}, oncehttp.ClaimRunning},
			{"Renew with a lease of 0", "UPDATE", func(ctx context.Context, op oncehttp.Op) error {
				return s.Renew(ctx, op, 0)
			}, oncehttp.ClaimOrphaned},
			// It has taken the key, and is about to lock it.
			{"TakeOver", "BEGIN", func(ctx context.Context, op oncehttp.Op) error {
				if err := s.Renew(context.Background(), op, 0); err != nil {
					t.Error(err)
				}
				_, err := s.TakeOver(ctx, newOp(op.Key), lease, keep)
				return err
			}, oncehttp.ClaimRunning},
		} {
			op := newOp(v.name)
			mustClaim(t, s, op, oncehttp.ClaimAcquired)
			time.Sleep(300 * time.Millisecond) // longer than a claim has to lock its row
			ctx, cancel := context.WithCancel(t.Context())
			p.told = cancel
			p.arm(isLate, 1, v.text)
			err := v.call(ctx, op)
			if ctx.Err() == nil {
				t.Errorf("%s was not cancelled", v.name)
			}
			time.Sleep(400 * time.Millisecond) // until the server has noticed what was torn off
			c, claimed := other.Claim(t.Context(), newOp(op.Key), lease, keep)
			if err != nil || claimed != nil || c.Status != v.then {
				t.Errorf("%s: got error %v, and then a claim gets %v, %v; want %v", v.name, err, c.Status, claimed, v.then)
			}
		}
	})
}

func TestTransactionsWorkThroughPgBouncer(t *testing.T) {
	pg := services.Postgres(t)
	l := newLedger(t, pg)
	b := services.PgBouncer(t, pg, "default_pool_size = 12")
	for _, mode := range []string{"exec", "simple_protocol"} {
		dsn := b.DSN(l.db) + "&default_query_exec_mode=" + mode
		for i, s := range []*pgstore.TxStore{
			migrated(t, pgstore.New(openPool(t, dsn, 8), quiet)).Transactional(),
			migrated(t, pgstore.NewSQL(openSQL(t, dsn, 8), quiet)).Transactional(),
		} {
			t.Cleanup(s.Close)
			query(t, l.PG, l.db, "update accounts set cents = 0")
			var ran atomic.Int32
			var wg sync.WaitGroup
			for k := range 40 {
				wg.Go(func() {
					op := newOp(fmt.Sprint(mode, i, k))
					mustClaim(t, s, op, oncehttp.ClaimAcquired)
					if err := s.Transact(context.Background(), op, keep, pays(1, 1, &ran)); err != nil {
						t.Error(err)
					}
					mustClaim(t, s, newOp(op.Key), oncehttp.ClaimDone)
				})
			}
			wg.Wait()
			if got := l.cents(t, 1); got != "40" {
				t.Errorf("%s: got %s cents, want 40", mode, got)
			}
		}
	}
}
