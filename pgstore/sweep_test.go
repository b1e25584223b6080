package pgstore_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

// fill puts records into the table, each done and some 300 bytes, of which one in
// so many has expired.
func fill(t testing.TB, pg *services.PG, db string, n, expired int) {
	t.Helper()
	query(t, pg, db, fmt.Sprintf(`insert into oncehttp_records (id, key, token, ident, born, expires, holder, head)
		select md5(n::text)::uuid, ('filled '||n)::bytea, decode('01'||md5(n::text), 'hex'), decode(repeat(md5(n::text), 4), 'hex'),
			now() - interval '1 day', now() + case when n %% %d = 0 then interval '-1 s' else interval '1 day' end, 1, decode(repeat('00', 36), 'hex')
		from generate_series(1, %d) n`, expired, n))
}

func count(t testing.TB, pg *services.PG, db, where string) int {
	t.Helper()
	n, err := strconv.Atoi(query(t, pg, db, "select count(*) from oncehttp_records where "+where))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const gone = "expires <= now()"

func TestSweepForgetsWhatHasExpiredAndNothingElse(t *testing.T) {
	pg := services.Postgres(t)
	db := pg.Database(t)
	s := migrated(t, pgstore.New(openPool(t, pg.DSN(db), 4), quiet))
	t.Cleanup(s.Close)
	ctx := context.Background()
	const all, every = 20_000, 4 // some 700 pages
	fill(t, pg, db, all, every)
	if n, err := s.Sweep(ctx, 100); n != 100 || err != nil {
		t.Errorf("Sweep of at most 100: got %d, %v", n, err)
	}
	if got := count(t, pg, db, gone); got != all/every-100 {
		t.Errorf("after a sweep of 100: got %d expired records, want %d", got, all/every-100)
	}
	if n, err := s.Sweep(ctx, 1_000_000); n != all/every-100 || err != nil {
		t.Errorf("Sweep of the rest: got %d, %v, want %d", n, err, all/every-100)
	}
	if got := count(t, pg, db, "true"); got != all-all/every {
		t.Errorf("got %d records, want %d", got, all-all/every)
	}
	if n, err := s.Sweep(ctx, 0); n != 0 || err != nil {
		t.Errorf("Sweep when nothing has expired: got %d, %v", n, err)
	}
	if _, err := s.Sweep(ctx, -1); err == nil {
		t.Error("Sweep of a negative number: got no error")
	}
}

func TestSweepPassesByWhatIsLocked(t *testing.T) {
	pg := services.Postgres(t)
	db := pg.Database(t)
	p := openPool(t, pg.DSN(db), 4)
	s := migrated(t, pgstore.New(p, quiet))
	t.Cleanup(s.Close)
	ctx := context.Background()
	fill(t, pg, db, 100, 1)
	tx, err := p.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "SELECT * FROM oncehttp_records LIMIT 10 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Sweep(ctx, 0); n != 90 || err != nil {
		t.Errorf("got %d, %v, want the 90 that are not locked", n, err)
	}
}

func TestNewClaimsSweep(t *testing.T) {
	pg := services.Postgres(t)
	for _, v := range []struct {
		name  string
		opts  []pgstore.Option
		sweep bool
	}{
		{"unless told otherwise", nil, true},
		{"not when told so", []pgstore.Option{pgstore.WithoutSweep()}, false},
	} {
		t.Run(v.name, func(t *testing.T) {
			db := pg.Database(t)
			s := migrated(t, pgstore.New(openPool(t, pg.DSN(db), 4), append(v.opts, quiet)...))
			t.Cleanup(s.Close)
			fill(t, pg, db, 500, 1)
			for i := range 256 {
				mustClaim(t, s, newOp(fmt.Sprint(i)), oncehttp.ClaimAcquired)
			}
			if !v.sweep {
				time.Sleep(200 * time.Millisecond)
				if got := count(t, pg, db, gone); got != 500 {
					t.Errorf("got %d expired records, want 500", got)
				}
				return
			}
			eventually(t, "expired records are forgotten", func() bool { return count(t, pg, db, gone) == 0 })
		})
	}
}

// A claim's cost must not grow with the table, and so none of its statements may
// read more of it than what it is about. Neither may the sweep.
func TestNoStatementReadsTheTable(t *testing.T) {
	pg := services.Postgres(t)
	db := pg.Database(t)
	p := openPool(t, pg.DSN(db), 2)
	migrated(t, pgstore.New(p, quiet)) // which reads the table to make its index
	p.Close()
	p = openPool(t, pg.DSN(db), 2)
	s := pgstore.New(p, quiet, pgstore.WithoutListen())
	fill(t, pg, db, 20_000, 1_000_000)
	query(t, pg, db, "analyze oncehttp_records")
	ctx := context.Background()
	scans := func() string {
		return query(t, pg, db, "select seq_scan from pg_stat_user_tables where relname = 'oncehttp_records'")
	}
	before := scans()
	for i := range 20 { // more than the five that get a plan of their own
		op := newOp(fmt.Sprint("key ", i))
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		mustClaim(t, s, newOp(op.Key), oncehttp.ClaimRunning)
		if err := s.Renew(ctx, op, 0); err != nil {
			t.Fatal(err)
		}
		op2 := newOp(op.Key)
		if _, err := s.TakeOver(ctx, op2, lease, keep); err != nil {
			t.Fatal(err)
		}
		if err := s.Complete(ctx, op2, nil, nil, keep); err != nil {
			t.Fatal(err)
		}
		mustClaim(t, s, newOp(op.Key), oncehttp.ClaimDone)
		s.Renew(ctx, op, lease)
		s.Release(ctx, op)
		s.Wait(ctx, op.Key)
		s.Show(ctx, op.Key)
		if _, err := s.Sweep(ctx, 1); err != nil {
			t.Fatal(err)
		}
		if err := s.Purge(ctx, op.Key); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	p.Close() // a server process counts at the latest when it ends
	time.Sleep(300 * time.Millisecond)
	if after := scans(); after != before {
		t.Errorf("the table was read %s times before and %s times after", before, after)
	}
	p = openPool(t, pg.DSN(db), 1) // whoever lists does read it, which shows that it would be noticed
	if _, err := pgstore.New(p, quiet).List(ctx, oncehttp.RecordQuery{Limit: 1}); err != nil {
		t.Fatal(err)
	}
	p.Close()
	eventually(t, "a list that reads the table is counted", func() bool { return scans() != before })
}
