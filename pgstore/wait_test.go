package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

// eventually waits until ok is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("waited a minute for this: %s", what)
		}
	}
}

func listeners(t testing.TB, pg *services.PG, db string) string {
	t.Helper()
	return query(t, pg, db, "select count(*) from pg_stat_activity where query like 'LISTEN%' and datname = current_database()")
}

func flagged(t testing.TB, pg *services.PG, db string) bool {
	t.Helper()
	return query(t, pg, db, "select count(*) from oncehttp_records where waited") != "0"
}

// wait waits in the background.
func wait(s *pgstore.Store, key string) (since func() time.Duration, err <-chan error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	c := make(chan error, 1)
	var mu sync.Mutex
	began := time.Now()
	go func() {
		defer cancel()
		err := s.Wait(ctx, key)
		mu.Lock()
		defer mu.Unlock()
		c <- err
	}()
	return func() time.Duration { return time.Since(began) }, c
}

func TestThoseWhoWaitInAnotherProcessAreNotified(t *testing.T) {
	pg := services.Postgres(t)
	for _, v := range []struct {
		name string
		new  func(t *testing.T, dsn string) *pgstore.Store
	}{
		{"over a pool of pgx", func(t *testing.T, dsn string) *pgstore.Store { return pgstore.New(openPool(t, dsn, 4), quiet) }},
		{"over database/sql", func(t *testing.T, dsn string) *pgstore.Store { return pgstore.NewSQL(openSQL(t, dsn, 4), quiet) }},
	} {
		t.Run(v.name, func(t *testing.T) {
			db := pg.Database(t)
			here := migrated(t, v.new(t, pg.DSN(db)))
			there := v.new(t, pg.DSN(db))
			t.Cleanup(here.Close)
			t.Cleanup(there.Close)
			ctx := context.Background()
			// woken is how long after a change the one who waits elsewhere is woken.
			woken := func(t *testing.T, op oncehttp.Op, end func(op oncehttp.Op) error) time.Duration {
				mustClaim(t, here, op, oncehttp.ClaimAcquired)
				if flagged(t, pg, db) {
					t.Fatal("a row is flagged for which nobody waits")
				}
				_, woken := wait(there, op.Key)
				eventually(t, "a row that is waited for is flagged", func() bool { return flagged(t, pg, db) })
				if got := listeners(t, pg, db); got != "1" {
					t.Errorf("got %s connections that listen, want 1", got)
				}
				select {
				case err := <-woken:
					t.Fatalf("Wait returned before anything happened: %v", err)
				case <-time.After(50 * time.Millisecond):
				}
				began := time.Now()
				if err := end(op); err != nil {
					t.Fatal(err)
				}
				if err := <-woken; err != nil {
					t.Errorf("Wait: %v", err)
				}
				d := time.Since(began)
				here.Purge(ctx, op.Key)
				return d
			}
			for i, end := range []func(op oncehttp.Op) error{
				func(op oncehttp.Op) error { return here.Complete(ctx, op, nil, nil, keep) },
				func(op oncehttp.Op) error { return here.Release(ctx, op) },
				func(op oncehttp.Op) error { return here.Renew(ctx, op, 0) },
			} {
				// Without a notification it looks every two seconds. A slow machine may take
				// as long now and then, but not each time.
				var d time.Duration
				for try := range 5 {
					if d = woken(t, newOp(fmt.Sprint("key ", i, try)), end); d < time.Second {
						break
					}
				}
				if d >= time.Second {
					t.Errorf("Wait returned %v after the key had changed", d)
				}
			}
			there.Close()
			eventually(t, "nothing listens after Close", func() bool { return listeners(t, pg, db) == "0" })
			if err := there.Wait(ctx, "key"); err == nil {
				t.Error("Wait after Close: got no error")
			}
		})
	}
}

func TestThoseWhoWaitPollWhenThereIsNothingToListenOn(t *testing.T) {
	pg := services.Postgres(t)
	b := services.PgBouncer(t, pg)
	for _, v := range []struct {
		name string
		new  func(t *testing.T, direct, pooled string) *pgstore.Store
	}{
		{"through PgBouncer", func(t *testing.T, _, pooled string) *pgstore.Store {
			return pgstore.New(openPool(t, pooled+"&default_query_exec_mode=exec", 4), quiet)
		}},
		{"with a pool of one connection", func(t *testing.T, direct, _ string) *pgstore.Store {
			return pgstore.New(openPool(t, direct, 1), quiet)
		}},
		{"with a database of one connection", func(t *testing.T, direct, _ string) *pgstore.Store {
			return pgstore.NewSQL(openSQL(t, direct, 1), quiet)
		}},
		{"when told not to listen", func(t *testing.T, direct, _ string) *pgstore.Store {
			return pgstore.New(openPool(t, direct, 4), quiet, pgstore.WithoutListen())
		}},
	} {
		t.Run(v.name, func(t *testing.T) {
			db := pg.Database(t)
			here := migrated(t, pgstore.New(openPool(t, pg.DSN(db), 2), quiet))
			there := v.new(t, pg.DSN(db), b.DSN(db))
			t.Cleanup(there.Close)
			op := newOp("key")
			mustClaim(t, here, op, oncehttp.ClaimAcquired)
			_, woken := wait(there, op.Key)
			time.Sleep(300 * time.Millisecond)
			if flagged(t, pg, db) || listeners(t, pg, db) != "0" {
				t.Error("the row is flagged, or something listens")
			}
			began := time.Now()
			if err := here.Complete(context.Background(), op, nil, nil, keep); err != nil {
				t.Fatal(err)
			}
			if err := <-woken; err != nil {
				t.Errorf("Wait: %v", err)
			}
			if d := time.Since(began); d > 20*time.Second { // the lease is longer
				t.Errorf("Wait returned %v after the key had changed", d)
			}
		})
	}
}

func TestAListenerThatIsLostIsMissedByNobody(t *testing.T) {
	pg := services.Postgres(t)
	db := pg.Database(t)
	here := migrated(t, pgstore.New(openPool(t, pg.DSN(db), 2), quiet))
	there := pgstore.New(openPool(t, pg.DSN(db), 4), quiet)
	t.Cleanup(there.Close)
	op := newOp("key")
	mustClaim(t, here, op, oncehttp.ClaimAcquired)
	_, woken := wait(there, op.Key)
	eventually(t, "the row is flagged", func() bool { return flagged(t, pg, db) })
	query(t, pg, db, "select pg_terminate_backend(pid) from pg_stat_activity where query like 'LISTEN%' and datname = current_database()")
	began := time.Now()
	if err := here.Complete(context.Background(), op, nil, nil, keep); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; err != nil {
		t.Errorf("Wait: %v", err)
	}
	if d := time.Since(began); d > 20*time.Second { // the lease is longer
		t.Errorf("Wait returned %v after the key had changed", d)
	}
}

func TestWaitEndsWhenALeaseLapses(t *testing.T) {
	pg := services.Postgres(t)
	s := overPool(t, pg.DSN(pg.Database(t)), 4)(t)
	t.Cleanup(s.Close)
	if _, err := s.Claim(context.Background(), newOp("key"), 300*time.Millisecond, keep); err != nil {
		t.Fatal(err)
	}
	since, woken := wait(s, "key")
	if err := <-woken; err != nil {
		t.Errorf("Wait: %v", err)
	}
	if d := since(); d > 20*time.Second {
		t.Errorf("Wait for a lease of 300ms took %v", d)
	}
}

func TestAThousandWhoWaitAskAsOne(t *testing.T) {
	pg := services.Postgres(t)
	p := newProxy(t, pg.Addr())
	s := overPool(t, strings.Replace(pg.DSN(pg.Database(t)), pg.Addr(), p.addr(), 1), 4)(t, pgstore.WithoutListen())
	t.Cleanup(s.Close)
	op := newOp("key")
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			if err := s.Wait(ctx, op.Key); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("Wait: %v", err)
			}
		})
	}
	before, began := p.requests(), time.Now()
	time.Sleep(time.Second)
	eventually(t, "the server is asked 4 times", func() bool { return p.requests()-before >= 4 })
	// 20 ms and half as much again each time, up to 200 ms: at most a dozen in a
	// second, whoever waits.
	if n, d := p.requests()-before, time.Since(began); float64(n) > 30*d.Seconds() {
		t.Errorf("the server was asked %d times in %v, want 30 a second at most", n, d)
	}
	if err := s.Complete(ctx, op, nil, nil, keep); err != nil {
		t.Fatal(err)
	}
	wg.Wait() // all of them are woken, by this process itself
}
