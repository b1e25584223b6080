package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

// A blocker is a transaction of somebody else, which others have to wait for.
type blocker struct {
	pgx.Tx
	*services.PG
	t  *testing.T
	db string
}

func newBlocker(t *testing.T, pg *services.PG, db string) *blocker {
	t.Helper()
	tx, err := openPool(t, pg.DSN(db), 1).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return &blocker{tx, pg, t, db}
}

func (b *blocker) run(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// clock is the server's.
func (b *blocker) clock() (now time.Time) {
	b.t.Helper()
	if err := b.QueryRow(b.t.Context(), "select clock_timestamp()").Scan(&now); err != nil {
		b.t.Fatal(err)
	}
	return now
}

// awaited returns when a statement of somebody else has waited for a lock for a
// while, and says for how long at least.
func (b *blocker) awaited() time.Duration {
	b.t.Helper()
	eventually(b.t, "a statement waits for a lock", func() bool {
		return query(b.t, b.PG, b.db, "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()") != "0"
	})
	began := b.clock()
	time.Sleep(150 * time.Millisecond)
	return b.clock().Sub(began)
}

// later runs a call in the background.
func later(t *testing.T, call func() error) (done func()) {
	c := make(chan error, 1)
	go func() { c <- call() }()
	return func() {
		t.Helper()
		if err := <-c; err != nil {
			t.Error(err)
		}
	}
}

// A store's connections, by a protocol whose statements begin before the server has
// looked at the table that they name, and by others.
func everyWay(t *testing.T, run func(t *testing.T, pg *services.PG, db string, s *pgstore.Store)) {
	t.Parallel()
	pg := services.Postgres(t)
	for _, mode := range []string{"cache_statement", "simple_protocol"} {
		t.Run("over a pool of pgx, "+mode, func(t *testing.T) {
			t.Parallel()
			db := pg.Database(t)
			s := migrated(t, pgstore.New(openPool(t, pg.DSN(db)+"&default_query_exec_mode="+mode, 4), quiet))
			run(t, pg, db, s)
		})
	}
	t.Run("over database/sql", func(t *testing.T) {
		t.Parallel()
		db := pg.Database(t)
		run(t, pg, db, migrated(t, pgstore.NewSQL(openSQL(t, pg.DSN(db), 4), quiet)))
	})
}

func TestNoMoreThanTheLeaseIsLeftThoughAClaimHasWaited(t *testing.T) {
	everyWay(t, func(t *testing.T, pg *services.PG, db string, s *pgstore.Store) {
		op := newOp("key")
		if _, err := s.Claim(t.Context(), op, time.Minute, time.Minute); err != nil {
			t.Fatal(err)
		}
		for state, change := range map[oncehttp.ClaimStatus]string{
			oncehttp.ClaimRunning:  "lapses = clock_timestamp() + '1 minute'",
			oncehttp.ClaimOrphaned: "lapses = clock_timestamp()",
			oncehttp.ClaimDone:     "lapses = null",
		} {
			b := newBlocker(t, pg, db)
			b.run("lock table oncehttp_records in access exclusive mode")
			var c oncehttp.Claim
			done := later(t, func() (err error) {
				c, err = s.Claim(context.Background(), newOp(op.Key), time.Minute, time.Minute)
				return err
			})
			b.awaited()
			b.run("update oncehttp_records set expires = clock_timestamp() + '1 minute', " + change)
			if err := b.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			done()
			if c.Status != state || c.Left <= 0 || c.Left > time.Minute {
				t.Errorf("got %v with %v left, want %v with a minute at most", c.Status, c.Left, state)
			}
		}
	})
}

func TestOfALeaseIsLeftWhatIsLeftWhenTheClaimIsTold(t *testing.T) {
	everyWay(t, func(t *testing.T, pg *services.PG, db string, s *pgstore.Store) {
		b := newBlocker(t, pg, db)
		op := newOp("key")
		b.run("insert into oncehttp_records (id, key, token, ident, born, lapses, keep, expires, holder) "+
			"values ($1::text::uuid, $2, '', '', now(), now(), 1, now(), 1)", pgstore.RowID(op.Key), []byte(op.Key))
		var c oncehttp.Claim
		done := later(t, func() (err error) {
			c, err = s.Claim(context.Background(), op, time.Minute, time.Hour)
			return err
		})
		waited := b.awaited()
		if err := b.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		done()
		if c.Status != oncehttp.ClaimAcquired || c.Left <= 0 || c.Left > time.Minute-waited {
			t.Errorf("got %v with %v left, of a minute that began %v before", c.Status, c.Left, waited)
		}
	})
}

func TestARenewedLeaseBeginsWhenItsRowIsLocked(t *testing.T) {
	everyWay(t, func(t *testing.T, pg *services.PG, db string, s *pgstore.Store) {
		op := newOp("key")
		for what, change := range map[string]string{
			"only locked": "select true from oncehttp_records for update",
			"has changed": "update oncehttp_records set waited = true",
		} {
			if _, err := s.Claim(t.Context(), op, time.Minute, time.Minute); err != nil {
				t.Fatal(err)
			}
			b := newBlocker(t, pg, db)
			b.run(change)
			done := later(t, func() error { return s.Renew(context.Background(), op, time.Hour) })
			b.awaited()
			unlocked := b.clock()
			if err := b.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			done()
			at := fmt.Sprintf("timestamptz '%s'", unlocked.Format(time.RFC3339Nano))
			if got := query(t, pg, db, "select lapses >= "+at+" + '1 hour' and expires >= lapses from oncehttp_records"); got != "t" {
				t.Errorf("a row that somebody %s: the lease of an hour began before it was unlocked", what)
			}
		}
	})
}

// Nor is a time before the wait what a record is judged by.
func TestAClaimThatExpiredMeanwhileIsNotRenewed(t *testing.T) {
	everyWay(t, func(t *testing.T, pg *services.PG, db string, s *pgstore.Store) {
		op := newOp("key")
		if _, err := s.Claim(t.Context(), op, time.Minute, time.Minute); err != nil {
			t.Fatal(err)
		}
		b := newBlocker(t, pg, db)
		b.run("update oncehttp_records set expires = clock_timestamp() + '250 ms'")
		expires := b.clock().Add(250 * time.Millisecond)
		var renewed error
		done := later(t, func() error {
			renewed = s.Renew(context.Background(), op, time.Hour)
			return nil
		})
		b.awaited()
		eventually(t, "the record has expired", func() bool { return b.clock().After(expires) })
		if err := b.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		done()
		if !errors.Is(renewed, oncehttp.ErrClaimLost) {
			t.Errorf("Renew of a record that had expired when it was unlocked: got error %v, want %v", renewed, oncehttp.ErrClaimLost)
		}
	})
}
