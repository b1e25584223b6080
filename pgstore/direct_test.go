package pgstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

func TestACallEndsSoonAfterItsContext(t *testing.T) {
	everyWay(t, func(t *testing.T, pg *services.PG, db string, s *pgstore.Store) {
		op := newOp("key")
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		b := newBlocker(t, pg, db)
		b.run("select true from oncehttp_records for update")
		for name, want := range map[string]error{"a deadline": context.DeadlineExceeded, "a cancellation": context.Canceled} {
			mustClaim(t, s, newOp("key"), oncehttp.ClaimRunning) // so there is a connection, for which it need not wait
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			if want == context.Canceled {
				cancel()
				ctx, cancel = context.WithCancel(context.Background())
				time.AfterFunc(50*time.Millisecond, cancel)
			}
			began := time.Now()
			err := s.Complete(ctx, op, []byte("head"), nil, keep)
			cancel()
			if !errors.Is(err, want) {
				t.Errorf("Complete of a locked row, after %s: got error %v, want %v", name, err, want)
			}
			if d := time.Since(began); d < 100*time.Millisecond || d > 10*time.Second {
				t.Errorf("Complete of a locked row, after %s: it took %v", name, d)
			}
		}
		if err := b.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		// What became of them may be left open, but all of it, and no connection is.
		for range 8 {
			if err := s.Complete(context.Background(), op, []byte("head"), nil, keep); err != nil {
				t.Fatal(err)
			}
		}
		if c := mustClaim(t, s, newOp("key"), oncehttp.ClaimDone); string(c.Head) != "head" {
			t.Errorf("got head %q", c.Head)
		}
	})
}

// Whoever has the pool may change the table, or forget statements.
func TestStatementsArePreparedAgain(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	db := pg.Database(t)
	pool := openPool(t, pg.DSN(db), 1)
	s := migrated(t, pgstore.New(pool, quiet))
	for i, v := range []struct{ sql, code string }{
		{"drop view tool_executions; alter table oncehttp_records alter column holder type bigint", "0A000"},
		{"deallocate all", "26000"},
	} {
		op := newOp(v.code)
		mustClaim(t, s, newOp("another"+v.code), oncehttp.ClaimAcquired)
		if _, err := pool.Exec(t.Context(), v.sql); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Claim(t.Context(), op, lease, keep); err == nil || !strings.Contains(err.Error(), v.code) {
			t.Errorf("%d: after %s: got error %v, want one with %s", i, v.sql, err, v.code)
		}
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		mustClaim(t, s, newOp(v.code), oncehttp.ClaimRunning)
	}
}

// What a replay costs this process is what keeps a server that is asked for many from
// doing more of them.
func TestAReplayAllocatesLittle(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	pg := services.Postgres(t)
	s := migrated(t, pgstore.New(openPool(t, pg.DSN(pg.Database(t)), 1), quiet))
	op := newOp("key")
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	if err := s.Complete(t.Context(), op, []byte("head"), []byte("body"), keep); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	twin := newOp("key")
	const most = 20
	if got := testing.AllocsPerRun(200, func() {
		if c, err := s.Claim(ctx, twin, lease, keep); err != nil || c.Status != oncehttp.ClaimDone {
			t.Fatalf("got %v, %v", c.Status, err)
		}
	}); got > most {
		t.Errorf("a replay allocates %v objects, want %d at most", got, most)
	}
}
