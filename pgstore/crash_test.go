package pgstore_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

func TestACrashFreesTheKeyAtOnce(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		p := newProxy(t, l.Addr())
		crashing := connect(t, strings.Replace(l.DSN(l.db), l.Addr(), p.addr(), 1), pgstore.WithSettle(50*time.Millisecond))
		other := connect(t, l.DSN(l.db))
		var ran atomic.Int32
		op, twin := newOp("key"), newOp("key")
		if _, err := crashing.Claim(context.Background(), op, time.Hour, time.Hour); err != nil {
			t.Fatal(err)
		}
		err := crashing.Transact(context.Background(), op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
			if err := add(ctx, 1, 100); err != nil {
				t.Error(err)
			}
			mustClaim(t, other, twin, oncehttp.ClaimRunning)
			time.Sleep(400 * time.Millisecond) // longer than a claim has to lock its row
			p.breakAll(true)                   // all that the server sees of a kill -9

			began := time.Now()
			eventually(t, "the key of a process that died is free", func() bool {
				c, err := other.Claim(context.Background(), twin, lease, keep)
				if err != nil {
					t.Fatal(err)
				}
				return c.Status == oncehttp.ClaimAcquired
			})
			if d := time.Since(began); d > 30*time.Second { // the lease is an hour
				t.Errorf("the key was free %v after the crash", d)
			}
			if err := other.Transact(context.Background(), twin, keep, pays(1, 7, &ran)); err != nil {
				t.Error(err)
			}
			return []byte("201"), nil, oncehttp.TxCommit
		})
		if err == nil {
			t.Error("Transact of a process that is cut off: got no error")
		}
		if got := l.cents(t, 1); got != "7" {
			t.Errorf("got %s cents, want the 7 of the second run", got)
		}
		if c := mustClaim(t, other, newOp("key"), oncehttp.ClaimDone); c.Holder != 1 {
			t.Errorf("got holder %d, want 1: the first one left nothing behind", c.Holder)
		}
	})
}

// What the first holder did is still not known when the one who took over crashes.
func TestACrashLeavesTheOrphanThatWasTakenOver(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		t.Parallel()
		l := newLedger(t, pg)
		p := newProxy(t, l.Addr())
		crashing := connect(t, strings.Replace(l.DSN(l.db), l.Addr(), p.addr(), 1), pgstore.WithSettle(50*time.Millisecond))
		other := connect(t, l.DSN(l.db))
		plain := other.Store
		ctx := context.Background()
		takeOver := func(s oncehttp.Store, op oncehttp.Op, want oncehttp.ClaimStatus, holder int) {
			t.Helper()
			c, err := s.TakeOver(ctx, op, time.Hour, time.Hour)
			if err != nil || c.Status != want || c.Holder != holder {
				t.Fatalf("TakeOver: got %v by holder %d, error %v; want %v by holder %d", c.Status, c.Holder, err, want, holder)
			}
		}
		keys := []string{"taken over again", "resolved", "purged"}
		ops := make(map[string]oncehttp.Op)
		for _, key := range keys {
			first := newOp(key)
			if _, err := plain.Claim(ctx, first, time.Hour, time.Hour); err != nil {
				t.Fatal(err)
			}
			if err := plain.Renew(ctx, first, 0); err != nil { // nobody knows what it did
				t.Fatal(err)
			}
			ops[key] = newOp(key)
			takeOver(crashing, ops[key], oncehttp.ClaimAcquired, 2)
		}
		listed := func(status oncehttp.ClaimStatus) int {
			t.Helper()
			all, err := other.List(ctx, oncehttp.RecordQuery{Status: status})
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		time.Sleep(400 * time.Millisecond) // longer than a claim has to lock its row
		for _, key := range keys {
			mustClaim(t, other, newOp(key), oncehttp.ClaimRunning)
			takeOver(plain, newOp(key), oncehttp.ClaimRunning, 2)
			if err := other.Resolve(ctx, key, oncehttp.Resolution{}); !errors.Is(err, oncehttp.ErrNotOrphaned) {
				t.Errorf("Resolve of a running key: got error %v", err)
			}
		}
		if running, orphaned := listed(oncehttp.ClaimRunning), listed(oncehttp.ClaimOrphaned); running != 3 || orphaned != 0 {
			t.Errorf("%d keys are listed as running and %d as orphaned, want 3 and none", running, orphaned)
		}

		p.breakAll(true) // all that the server sees of a kill -9
		for _, key := range keys {
			eventually(t, "the key that a process that died had taken over is an orphan", func() bool {
				c, err := other.Claim(ctx, newOp(key), lease, keep)
				if err != nil || c.Status == oncehttp.ClaimAcquired {
					t.Fatalf("Claim: got %v and error %v; want running, then orphaned", c.Status, err)
				}
				return c.Status == oncehttp.ClaimOrphaned
			})
			mustClaim(t, plain, newOp(key), oncehttp.ClaimOrphaned)
			if r, err := plain.Show(ctx, key); err != nil || r.Status != oncehttp.ClaimOrphaned || r.Holder != 2 {
				t.Errorf("Show: got %v by holder %d, error %v; want orphaned by holder 2", r.Status, r.Holder, err)
			}
		}
		if running, orphaned := listed(oncehttp.ClaimRunning), listed(oncehttp.ClaimOrphaned); running != 0 || orphaned != 3 {
			t.Errorf("%d keys are listed as running and %d as orphaned, want none and 3", running, orphaned)
		}

		var ran atomic.Int32
		again := newOp("taken over again")
		takeOver(other, again, oncehttp.ClaimAcquired, 3)
		if err := other.Transact(ctx, again, keep, pays(1, 7, &ran)); err != nil || l.cents(t, 1) != "7" {
			t.Errorf("Transact after a takeover: error %v, %s cents", err, l.cents(t, 1))
		}
		if err := plain.Resolve(ctx, "resolved", oncehttp.Resolution{Applied: true, Head: []byte("200")}); err != nil {
			t.Error(err)
		}
		mustClaim(t, other, newOp("resolved"), oncehttp.ClaimDone)
		if err := plain.Purge(ctx, "purged"); err != nil {
			t.Error(err)
		}
		mustClaim(t, plain, newOp("purged"), oncehttp.ClaimAcquired)
	})
}
