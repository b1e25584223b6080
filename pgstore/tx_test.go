package pgstore_test

import (
	"context"
	"fmt"
	"strings"
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
	query(t, l.PG, l.db, `create table accounts (id int primary key, cents int not null check (cents > -1000));
		insert into accounts select n, 0 from generate_series(1, 9) n`)
	return l
}

func (l *ledger) cents(t testing.TB, id int) string {
	t.Helper()
	return query(t, l.PG, l.db, fmt.Sprint("select cents from accounts where id = ", id))
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
