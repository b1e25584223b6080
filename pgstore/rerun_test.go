package pgstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

func TestAHandlerRunsAgainAfterASerializationFailure(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		var ran atomic.Int32
		m := &oncehttp.Middleware{Store: connect(t, l.DSN(l.db), pgstore.WithIsolation(sql.LevelSerializable))}
		srv := httptest.NewServer(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := ran.Add(1)
			b, err := io.ReadAll(r.Body)
			w.Header().Set("Run", fmt.Sprint(n))
			if err == nil {
				err = add(r.Context(), 1, 100)
			}
			if n < 3 && err == nil {
				err = inTx(r.Context(), "do $$ begin raise exception 'made up' using errcode = '40001'; end $$")
			}
			if err != nil {
				w.Header().Set("Left-Over", "yes")
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Write(b)
		})))
		t.Cleanup(srv.Close)
		for range 2 {
			status, h, answer := post(t, srv.URL, "key", "body")
			if status != http.StatusOK || answer != "body" || h.Get("Run") != "3" || h.Get("Left-Over") != "" {
				t.Errorf("got %d %q, run %q, left over %q; want the third run's 200", status, answer, h.Get("Run"), h.Get("Left-Over"))
			}
		}
		if ran.Load() != 3 || l.cents(t, 1) != "100" {
			t.Errorf("ran %d times, %s cents; want 3, 100", ran.Load(), l.cents(t, 1))
		}
	})
}

// A handler that overlooks an error of a statement asks for a commit that the server
// refuses. Nothing is there then, and nobody has to find out.
func TestARefusedCommitIsAskedForAgain(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		var ran atomic.Int32
		m := &oncehttp.Middleware{Store: connect(t, l.DSN(l.db)), Logger: slog.New(slog.DiscardHandler)}
		srv := httptest.NewServer(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if ran.Add(1) == 1 {
				add(r.Context(), 2, -5000) // which the table forbids
			}
			add(r.Context(), 1, 100)
			w.WriteHeader(http.StatusCreated)
		})))
		t.Cleanup(srv.Close)
		status, h, answer := post(t, srv.URL, "key", "body")
		if status != http.StatusServiceUnavailable || h.Get("Retry-After") != "1" ||
			!strings.Contains(answer, "urn:oncehttp:rolled-back") || !strings.Contains(answer, `"retry_same_key":true`) {
			t.Errorf("got %d, Retry-After %q, %s", status, h.Get("Retry-After"), answer)
		}
		if got := l.cents(t, 1); got != "0" {
			t.Errorf("got %s cents, want 0", got)
		}
		if status, _, answer := post(t, srv.URL, "key", "body"); status != http.StatusCreated || l.cents(t, 1) != "100" {
			t.Errorf("again: got %d %s and %s cents, want 201 and 100", status, answer, l.cents(t, 1))
		}
	})
}

func TestSerializationFailuresRunTheWorkAgain(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		s := connect(t, l.DSN(l.db), pgstore.WithIsolation(sql.LevelSerializable), pgstore.WithRuns(1000))
		const workers, each = 4, 5
		var ran, read, answered atomic.Int32
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := range each {
					op := newOp(fmt.Sprint(w, "/", i))
					mustClaim(t, s, op, oncehttp.ClaimAcquired)
					err := s.Transact(context.Background(), op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
						ran.Add(1)
						// Reads one, writes it, and reports any error as its own
						// failure, like most handlers.
						var cents int
						var err error
						if tx := pgstore.Tx(ctx); tx != nil {
							err = tx.QueryRow(ctx, "select cents from accounts where id = 1").Scan(&cents)
						} else {
							err = pgstore.SQLTx(ctx).QueryRowContext(ctx, "select cents from accounts where id = 1").Scan(&cents)
						}
						// At first all of them read before any of them writes.
						for n := read.Add(1); n <= workers && read.Load() < workers; {
							time.Sleep(time.Millisecond)
						}
						if err == nil {
							err = inTx(ctx, "update accounts set cents = $1 where id = 1", cents+1)
						}
						if err != nil {
							return []byte("500"), nil, oncehttp.TxRollback
						}
						answered.Add(1)
						return []byte("201"), nil, oncehttp.TxCommit
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if got := l.cents(t, 1); got != fmt.Sprint(workers*each) {
			t.Errorf("got %s cents, want %d", got, workers*each)
		}
		if ran.Load() == workers*each {
			t.Error("nothing had to run again, so this tests nothing")
		}
		if got := count(t, l.PG, l.db, "lapses is null"); got != workers*each {
			t.Errorf("got %d records, want %d", got, workers*each)
		}
		t.Logf("%d runs for %d keys", ran.Load(), workers*each)
	})
}

func TestDeadlocksRunTheWorkAgainUnlessItRecovers(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		s := connect(t, l.DSN(l.db)+"&deadlock_timeout=20")
		for round := range 3 {
			var ran atomic.Int32
			met := make(chan struct{}, 2)
			var wg sync.WaitGroup
			for w := range 2 {
				wg.Go(func() {
					op := newOp(fmt.Sprint(round, "/", w))
					mustClaim(t, s, op, oncehttp.ClaimAcquired)
					err := s.Transact(context.Background(), op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
						if err := add(ctx, 1+w, 1); err != nil {
							return nil, nil, oncehttp.TxRollback
						}
						if ran.Add(1) <= 2 {
							// Both hold one row before either goes for the other.
							met <- struct{}{}
							for len(met) < 2 {
								time.Sleep(time.Millisecond)
							}
						}
						return nil, nil, commitIf(add(ctx, 2-w, 1) == nil)
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if got := ran.Load(); got < 3 {
				t.Errorf("work ran %d times: there was no deadlock", got)
			}
			if got, want := l.cents(t, 1)+" "+l.cents(t, 2), fmt.Sprint(2*(round+1), " ", 2*(round+1)); got != want {
				t.Errorf("got %s cents, want %s", got, want)
			}
		}
	})
}

func TestWorkThatGivesUpIsNotRunAgain(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		s := connect(t, l.DSN(l.db))
		fail := func(code string) string {
			return "do $$ begin raise exception 'made up' using errcode = '" + code + "'; end $$"
		}
		for _, v := range []struct {
			name string
			work func(ctx context.Context) bool
			runs int32
			err  error
			then oncehttp.ClaimStatus
		}{
			{"a serialization failure every time", func(ctx context.Context) bool {
				return inTx(ctx, fail("40001")) == nil
			}, 3, nil, oncehttp.ClaimAcquired},
			{"a serialization failure that work does not look at", func(ctx context.Context) bool {
				inTx(ctx, fail("40001"))
				return true
			}, 3, oncehttp.ErrRolledBack, oncehttp.ClaimAcquired},
			{"another error", func(ctx context.Context) bool {
				return add(ctx, 1, -5000) == nil
			}, 1, nil, oncehttp.ClaimAcquired},
			{"another error that work does not look at", func(ctx context.Context) bool {
				add(ctx, 1, -5000)
				return true
			}, 1, oncehttp.ErrRolledBack, oncehttp.ClaimAcquired},
			{"a deadlock from which work recovers", func(ctx context.Context) bool {
				if err := inTx(ctx, "savepoint here"); err != nil {
					return false
				}
				if inTx(ctx, fail("40P01")) == nil {
					return false
				}
				return inTx(ctx, "rollback to here") == nil && add(ctx, 1, 1) == nil
			}, 1, nil, oncehttp.ClaimDone},
		} {
			t.Run(v.name, func(t *testing.T) {
				op := newOp(v.name)
				mustClaim(t, s, op, oncehttp.ClaimAcquired)
				var ran atomic.Int32
				err := s.Transact(context.Background(), op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
					ran.Add(1)
					return nil, nil, commitIf(v.work(ctx))
				})
				if !errors.Is(err, v.err) {
					t.Errorf("got error %v, want %v", err, v.err)
				}
				if got := ran.Load(); got != v.runs {
					t.Errorf("work ran %d times, want %d", got, v.runs)
				}
				mustClaim(t, s, newOp(op.Key), v.then)
			})
		}
	})
}
