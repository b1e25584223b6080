package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

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
