package pgstore_test

import (
	"context"
	"database/sql"
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

// A ledger is a database with a table of accounts, and what moves money in it
// inside the transaction that a context carries.
type ledger struct {
	*services.PG
	db string
}

func newLedger(t testing.TB, pg *services.PG) *ledger {
	t.Helper()
	l := &ledger{pg, pg.Database(t)}
	l.SQL(t, l.db, `create table accounts (id int primary key, cents int not null check (cents > -1000));
		insert into accounts select n, 0 from generate_series(1, 9) n`)
	return l
}

func (l *ledger) cents(t testing.TB, id int) string {
	t.Helper()
	return l.SQL(t, l.db, fmt.Sprint("select cents from accounts where id = ", id))
}

// inTx runs a statement in the transaction of ctx.
func inTx(ctx context.Context, q string, args ...any) error {
	if tx := pgstore.Tx(ctx); tx != nil {
		_, err := tx.Exec(ctx, q, args...)
		return err
	}
	_, err := pgstore.SQLTx(ctx).ExecContext(ctx, q, args...)
	return err
}

func add(ctx context.Context, id, cents int) error {
	return inTx(ctx, "update accounts set cents = cents + $2 where id = $1", id, cents)
}

// both runs a test with either way to the database. connect makes a store with a
// pool of its own, as another process would.
func both(t *testing.T, run func(t *testing.T, connect func(t testing.TB, dsn string, opts ...pgstore.TxOption) *pgstore.TxStore)) {
	t.Run("over a pool of pgx", func(t *testing.T) {
		run(t, func(t testing.TB, dsn string, opts ...pgstore.TxOption) *pgstore.TxStore {
			s := migrated(t, pgstore.New(openPool(t, dsn, 12), quiet)).Transactional(opts...)
			t.Cleanup(s.Close)
			return s
		})
	})
	t.Run("over database/sql", func(t *testing.T) {
		run(t, func(t testing.TB, dsn string, opts ...pgstore.TxOption) *pgstore.TxStore {
			s := migrated(t, pgstore.NewSQL(openSQL(t, dsn, 12), quiet)).Transactional(opts...)
			t.Cleanup(s.Close)
			return s
		})
	})
}

type work = func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd)

func commitIf(ok bool) oncehttp.TxEnd {
	if ok {
		return oncehttp.TxCommit
	}
	return oncehttp.TxRollback
}

// pays is work that adds to an account and asks for a commit if that was done.
func pays(id, cents int, ran *atomic.Int32) work {
	return func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
		ran.Add(1)
		if err := add(ctx, id, cents); err != nil {
			return []byte("500"), nil, oncehttp.TxRollback
		}
		return []byte("201"), []byte("paid"), oncehttp.TxCommit
	}
}

func TestWritesAndRecordAreCommittedTogetherOrNotAtAll(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		s := connect(t, l.DSN(l.db))
		other := connect(t, l.DSN(l.db))
		var ran atomic.Int32

		op := newOp("committed")
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		err := s.Transact(context.Background(), op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
			if err := add(ctx, 1, 100); err != nil {
				t.Error(err)
			}
			// A twin that comes meanwhile, here or elsewhere, finds it running at
			// once, however long the claim has been there.
			for _, twin := range []oncehttp.Store{s, other, other.Store} {
				for range 2 {
					began := time.Now()
					mustClaim(t, twin, newOp(op.Key), oncehttp.ClaimRunning)
					if d := time.Since(began); d > 10*time.Second {
						t.Errorf("a twin was told after %v", d)
					}
				}
			}
			time.Sleep(400 * time.Millisecond) // longer than a claim has to lock its row
			mustClaim(t, other, newOp(op.Key), oncehttp.ClaimRunning)
			if r, err := other.Show(ctx, op.Key); err != nil || r.Status != oncehttp.ClaimRunning {
				t.Errorf("Show: got %v, %v, want running", r.Status, err)
			}
			if got := l.cents(t, 1); got != "0" {
				t.Errorf("before the commit others see %s cents, want 0", got)
			}
			return []byte("201"), []byte("paid"), oncehttp.TxCommit
		})
		if err != nil {
			t.Fatal(err)
		}
		if c := mustClaim(t, other, newOp(op.Key), oncehttp.ClaimDone); string(c.Head) != "201" || string(c.Body) != "paid" {
			t.Errorf("got head %q and body %q", c.Head, c.Body)
		}
		if got := l.cents(t, 1); got != "100" {
			t.Errorf("got %s cents, want 100", got)
		}

		op = newOp("rolled back")
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		err = s.Transact(context.Background(), op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
			if err := add(ctx, 2, 100); err != nil {
				t.Error(err)
			}
			return []byte("503"), nil, oncehttp.TxRollback
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := l.cents(t, 2); got != "0" {
			t.Errorf("after a rollback: got %s cents, want 0", got)
		}
		mustClaim(t, other, newOp(op.Key), oncehttp.ClaimAcquired)

		op = newOp("panicked")
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		func() {
			defer func() {
				if p := recover(); p != "work" {
					t.Errorf("recovered %v, want what work panicked with", p)
				}
			}()
			s.Transact(context.Background(), op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
				add(ctx, 3, 100)
				panic("work")
			})
		}()
		if got := l.cents(t, 3); got != "0" {
			t.Errorf("after a panic: got %s cents, want 0", got)
		}
		op = newOp(op.Key)
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		if err := s.Transact(context.Background(), op, keep, pays(3, 5, &ran)); err != nil {
			t.Errorf("Transact after a panic: %v", err)
		}
		if got := l.cents(t, 3); got != "5" {
			t.Errorf("got %s cents, want 5", got)
		}
	})
}

func TestTheTransactionEndsWithTheWork(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		s := connect(t, l.DSN(l.db))
		op := newOp("key")
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		err := s.Transact(context.Background(), op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
			if err := add(ctx, 1, 100); err != nil {
				t.Error(err)
			}
			var err error
			if tx := pgstore.Tx(ctx); tx != nil {
				err = tx.Commit(ctx)
				if tx.Rollback(ctx) == nil {
					t.Error("Rollback returns no error")
				}
			} else {
				err = pgstore.SQLTx(ctx).Commit()
			}
			if err == nil || !strings.Contains(err.Error(), "ends with the work") {
				t.Errorf("Commit: got error %v", err)
			}
			if got := l.cents(t, 1); got != "0" {
				t.Errorf("work could commit: others see %s cents", got)
			}
			return nil, nil, oncehttp.TxRollback
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := l.cents(t, 1); got != "0" {
			t.Errorf("got %s cents, want 0", got)
		}
		if pgstore.Tx(context.Background()) != nil || pgstore.SQLTx(context.Background()) != nil {
			t.Error("a context that carries no transaction has one")
		}
	})
}

// exec mode, so that the proxy can read what is sent
func throughProxy(l *ledger, p *proxy) string {
	return strings.Replace(l.DSN(l.db), l.Addr(), p.addr(), 1) + "&default_query_exec_mode=exec"
}

func TestALostAnswerToACommitIsSettled(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		p := newProxy(t, l.Addr())
		commit := "commit"
		if strings.Contains(t.Name(), "database/sql") {
			commit = "COMMIT"
		}
		s := connect(t, throughProxy(l, p), pgstore.WithSettle(time.Second))
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
				l.SQL(t, l.db, "update accounts set cents = 0")
				op := newOp(v.name)
				mustClaim(t, s, op, oncehttp.ClaimAcquired)
				var ran atomic.Int32
				p.arm(v.what, v.times, commit)
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
						ctx, cancel := context.WithTimeout(context.Background(), time.Second)
						defer cancel()
						return s.Renew(ctx, op, 0) == nil
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

// No other process may get the key between the rollback and the orphan, because
// it would do again what work did elsewhere. It would get it at once: the claim is
// old, so that only the lock says that it runs.
func TestAnUnknownOutcomeIsNeverFreeForAMoment(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		s, other := connect(t, l.DSN(l.db)), connect(t, l.DSN(l.db))
		for _, v := range []struct {
			name string
			work func(ctx context.Context) error
		}{
			{"work wrote", func(ctx context.Context) error { return add(ctx, 1, 100) }},
			{"a statement of work failed", func(ctx context.Context) error {
				if inTx(ctx, "select 1 / 0") == nil {
					return errors.New("a division by zero is no error")
				}
				return nil
			}},
			{"work met a serialization failure, and is not run again", func(ctx context.Context) error {
				if inTx(ctx, "do $$ begin raise exception 'made up' using errcode = '40001'; end $$") == nil {
					return errors.New("no serialization failure")
				}
				return nil
			}},
		} {
			t.Run(v.name, func(t *testing.T) {
				op := newOp(v.name)
				mustClaim(t, s, op, oncehttp.ClaimAcquired)
				var ended atomic.Bool
				var asked atomic.Int32
				var twins sync.WaitGroup
				defer twins.Wait()
				defer ended.Store(true)
				err := s.Transact(context.Background(), op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
					if err := v.work(ctx); err != nil {
						t.Error(err)
					}
					time.Sleep(300 * time.Millisecond) // the claim is old
					for range 3 {
						twins.Go(func() {
							for !ended.Load() {
								c, err := other.Claim(context.Background(), newOp(op.Key), lease, keep)
								if err != nil || c.Status != oncehttp.ClaimRunning && c.Status != oncehttp.ClaimOrphaned {
									t.Errorf("a twin gets %v, %v", c.Status, err)
									return
								}
								asked.Add(1)
							}
						})
					}
					for asked.Load() < 10 {
						time.Sleep(time.Millisecond)
					}
					return nil, nil, oncehttp.TxUnknown
				})
				if err != nil {
					t.Error(err)
				}
				mustClaim(t, other, newOp(op.Key), oncehttp.ClaimOrphaned)
				ended.Store(true)
				twins.Wait()
				if got := l.cents(t, 1); got != "0" {
					t.Errorf("got %s cents, want 0: what work wrote is rolled back", got)
				}
				if err := other.Resolve(context.Background(), op.Key, oncehttp.Resolution{Applied: true, Head: []byte("by hand")}); err != nil {
					t.Error(err)
				}
				mustClaim(t, s, newOp(op.Key), oncehttp.ClaimDone)
			})
		}
	})
}

// When the connection is lost the server rolls back, and the lock is gone. The key
// becomes an orphan all the same, on another connection.
func TestAnUnknownOutcomeOutlivesItsConnection(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		p := newProxy(t, l.Addr())
		s := connect(t, throughProxy(l, p))
		op := newOp("key")
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		var ran atomic.Int32
		err := s.Transact(context.Background(), op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
			ran.Add(1)
			if err := add(ctx, 1, 100); err != nil {
				t.Error(err)
			}
			p.breakAll(false)
			return nil, nil, oncehttp.TxUnknown
		})
		if err != nil || ran.Load() != 1 {
			t.Errorf("%v, ran %d times; want no error, once", err, ran.Load())
		}
		mustClaim(t, connect(t, l.DSN(l.db)), newOp("key"), oncehttp.ClaimOrphaned)
		if got := l.cents(t, 1); got != "0" {
			t.Errorf("got %s cents, want 0", got)
		}
	})
}

func TestWorkThatEndsTheTransactionIsUnknown(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		s := connect(t, l.DSN(l.db))
		for _, v := range []struct {
			statements []string
			end        oncehttp.TxEnd
		}{
			{[]string{"commit"}, oncehttp.TxCommit},
			{[]string{"commit"}, oncehttp.TxRollback},
			{[]string{"commit", "begin"}, oncehttp.TxCommit},
			{[]string{"rollback"}, oncehttp.TxCommit},
		} {
			op := newOp(fmt.Sprint(v))
			mustClaim(t, s, op, oncehttp.ClaimAcquired)
			var ran atomic.Int32
			err := s.Transact(context.Background(), op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
				ran.Add(1)
				if err := add(ctx, 1, 100); err != nil {
					t.Error(err)
				}
				for _, q := range v.statements {
					if err := inTx(ctx, q); err != nil {
						t.Error(err)
					}
				}
				return nil, nil, v.end
			})
			if !errors.Is(err, oncehttp.ErrOutcomeUnknown) || ran.Load() != 1 {
				t.Errorf("%v and %v: got error %v after %d runs, want ErrOutcomeUnknown after 1", v.statements, v.end, err, ran.Load())
			}
			mustClaim(t, s, newOp(op.Key), oncehttp.ClaimOrphaned)
		}
	})
}

// Two processes, the same keys, and connections that break all the time.
func TestExactlyOnceThoughConnectionsBreak(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		p := newProxy(t, l.Addr())
		stores := []*pgstore.TxStore{connect(t, throughProxy(l, p)), connect(t, throughProxy(l, p))}
		const keys, workers = 100, 8
		var broken atomic.Int32
		stop := make(chan struct{})
		var breaker, wg sync.WaitGroup
		breaker.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(20*time.Millisecond + rand.N(150*time.Millisecond)):
					p.breakAll(false)
					broken.Add(1)
				}
			}
		})
		var unknown atomic.Int32
		for w := range workers {
			wg.Go(func() {
				s := stores[w%2]
				for k := range keys {
					for deadline := time.Now().Add(30 * time.Second); ; {
						if time.Now().After(deadline) {
							t.Errorf("key %d is stuck", k)
							return
						}
						ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
						op := newOp(fmt.Sprint("key ", k))
						c, err := s.Claim(ctx, op, lease, keep)
						if err != nil {
							s.Release(ctx, op)
							cancel()
							continue
						}
						if c.Status == oncehttp.ClaimDone {
							cancel()
							break
						}
						if c.Status == oncehttp.ClaimAcquired {
							err = s.Transact(ctx, op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
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
		if broken.Load() < 3 {
			t.Error("too few connections were broken for this to show anything")
		}
		t.Logf("connections were broken %d times; %d outcomes were unknown for a while", broken.Load(), unknown.Load())
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
			l.SQL(t, l.db, "update accounts set cents = 0")
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
