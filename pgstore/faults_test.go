package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

const (
	lease = 30 * time.Second
	keep  = time.Hour
)

func newOp(key string) oncehttp.Op { return oncehttp.Op{Key: key, Token: oncehttp.NewToken()} }

func mustClaim(t testing.TB, s oncehttp.Store, op oncehttp.Op, want oncehttp.ClaimStatus) oncehttp.Claim {
	t.Helper()
	c, err := s.Claim(context.Background(), op, lease, keep)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	if c.Status != want {
		t.Fatalf("Claim: got %v, want %v", c.Status, want)
	}
	return c
}

func TestALostReplyDoesNoHarm(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	p := newProxy(t, pg.Addr())
	dsn := strings.Replace(pg.DSN(pg.Database(t)), pg.Addr(), p.addr(), 1) + "&default_query_exec_mode=exec"
	ctx := context.Background()
	for _, v := range []struct {
		name string
		new  func(*testing.T, ...pgstore.Option) *pgstore.Store
	}{
		{"over a pool of pgx", overPool(t, dsn, 4)},
		{"over database/sql", overSQL(t, dsn, 4)},
	} {
		t.Run(v.name, func(t *testing.T) {
			s := v.new(t)
			op := newOp("lost replies")
			lose := func(text string, call func() error) {
				t.Helper()
				p.arm(losesReply, 2, text)
				if err := call(); err != nil {
					t.Errorf("%s: got error %v, want none", text, err)
				}
				if got := p.faults(); got != 2 {
					t.Errorf("%s: %d replies were lost, want 2", text, got)
				}
				p.arm(losesReply, 0, "")
			}
			lose("INSERT INTO", func() error {
				c, err := s.Claim(ctx, op, lease, keep)
				if err == nil && (c.Status != oncehttp.ClaimAcquired || c.Holder != 1) {
					err = fmt.Errorf("got %v by holder %d, want acquired by holder 1", c.Status, c.Holder)
				}
				return err
			})
			lose("UPDATE", func() error { return s.Renew(ctx, op, lease) })
			lose("UPDATE", func() error { return s.Renew(ctx, op, 0) })
			next := newOp(op.Key)
			lose("UPDATE", func() error {
				c, err := s.TakeOver(ctx, next, lease, keep)
				if err == nil && (c.Status != oncehttp.ClaimAcquired || c.Holder != 2) {
					err = fmt.Errorf("got %v by holder %d, want acquired by holder 2", c.Status, c.Holder)
				}
				return err
			})
			lose("UPDATE", func() error { return s.Complete(ctx, next, []byte("head"), nil, keep) })
			if c := mustClaim(t, s, newOp(op.Key), oncehttp.ClaimDone); string(c.Head) != "head" {
				t.Errorf("got head %q", c.Head)
			}
			other := newOp("released")
			mustClaim(t, s, other, oncehttp.ClaimAcquired)
			lose("DELETE", func() error { return s.Release(ctx, other) })
			mustClaim(t, s, newOp(other.Key), oncehttp.ClaimAcquired)
		})
	}
}

// A server that is started anew ends every connection of a pool, and a pool does not
// look at those that were in use a moment ago.
func TestAServerThatWasStartedAnewFailsNoCall(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	p := newProxy(t, pg.Addr())
	dsn := strings.Replace(pg.DSN(pg.Database(t)), pg.Addr(), p.addr(), 1) + "&default_query_exec_mode=exec"
	const most = 12
	ctx := context.Background()
	db, sqlDB := openPool(t, dsn, most), openSQL(t, dsn, most)
	for _, v := range []struct {
		name string
		s    *pgstore.Store
		open func() (done func(), err error)
	}{
		{"over a pool of pgx", pgstore.New(db, quiet, pgstore.WithTable(table())), func() (func(), error) {
			c, err := db.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			return c.Release, nil
		}},
		{"over database/sql", pgstore.NewSQL(sqlDB, quiet, pgstore.WithTable(table())), func() (func(), error) {
			c, err := sqlDB.Conn(ctx)
			return func() { c.Close() }, err
		}},
	} {
		t.Run(v.name, func(t *testing.T) {
			s := migrated(t, v.s)
			tx := s.Transactional()
			defer tx.Close()
			op, held := newOp("key"), newOp("claimed in a transaction")
			mustClaim(t, s, op, oncehttp.ClaimAcquired)
			for what, call := range map[string]func() error{
				"Renew": func() error { return s.Renew(ctx, op, lease) },
				"List": func() error {
					_, err := s.List(ctx, oncehttp.RecordQuery{})
					return err
				},
				"a transactional Claim": func() error {
					_, err := tx.Claim(ctx, held, lease, keep)
					return err
				},
			} {
				var done []func()
				for range most - 2 { // a claim keeps one
					f, err := v.open()
					if err != nil {
						t.Fatal(err)
					}
					done = append(done, f)
				}
				for _, f := range done {
					f()
				}
				p.breakAll(false)
				if err := call(); err != nil {
					t.Errorf("%s: got error %v, want none: the server is there", what, err)
				}
			}
		})
	}
}

// One that breaks every connection once it is made, as a pooler does whose own server is
// away, shows in each new connection, and not in those of all who call at the time.
func TestAServerThatBreaksEachConnectionIsNotStormed(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	p := newProxy(t, pg.Addr())
	dsn := strings.Replace(pg.DSN(pg.Database(t)), pg.Addr(), p.addr(), 1) + "&default_query_exec_mode=exec"
	const most, callers, each = 16, 16, 5
	for _, v := range []struct {
		name string
		s    *pgstore.Store
	}{
		{"over a pool of pgx", pgstore.New(openPool(t, dsn, most), quiet, pgstore.WithTable(table()))},
		{"over database/sql", pgstore.NewSQL(openSQL(t, dsn, most), quiet, pgstore.WithTable(table()))},
	} {
		t.Run(v.name, func(t *testing.T) {
			s := migrated(t, v.s)
			p.arm(losesRequest, 1<<30, "INSERT INTO")
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for j := range each {
						if _, err := s.Claim(context.Background(), newOp(fmt.Sprint(i, j)), lease, keep); err == nil {
							t.Error("a claim that never came was answered")
						}
					}
				})
			}
			wg.Wait()
			got := p.faults()
			p.arm(losesRequest, 0, "")
			// Three of each call, and once each connection that was idle. To database/sql
			// one that has just broken is idle too.
			if limit := 2*3*callers*each + most; got > limit {
				t.Errorf("%d calls were tried %d times, want at most %d", callers*each, got, limit)
			}
		})
	}
}

func TestAServerThatIsGoneIsAnErrorAndNothingMore(t *testing.T) {
	pg := services.Postgres(t)
	p := newProxy(t, pg.Addr())
	dsn := strings.Replace(pg.DSN(pg.Database(t)), pg.Addr(), p.addr(), 1)
	s := overPool(t, dsn, 4)(t)
	op := newOp("key")
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	p.breakAll(true)
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Complete(ctx, op, nil, nil, keep); err == nil || errors.Is(err, oncehttp.ErrClaimLost) {
		t.Errorf("Complete without a server: got error %v", err)
	}
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("a refused connection took %v to be told of", d)
	}
	p.up()
	if err := s.Complete(context.Background(), op, nil, nil, keep); err != nil {
		t.Errorf("Complete after the server came back: %v", err)
	}
}

// Eight writers, a server that is killed under them, and callers that repeat with
// the same Op what got no answer.
func TestNoKeyRunsTwiceThoughTheServerIsKilled(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t, services.Private())
	dsn := pg.DSN(pg.Database(t))
	stores := []*pgstore.Store{
		migrated(t, pgstore.New(openPool(t, dsn, 8), quiet)),
		migrated(t, pgstore.NewSQL(openSQL(t, dsn, 8), quiet)),
	}
	const keys, writers, kills = 400, 8, 3
	ran := make([]atomic.Int32, keys)
	var errs, lost atomic.Int32
	again := func(call func(ctx context.Context) error) {
		for {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			err := call(ctx)
			cancel()
			if err == nil {
				return
			}
			if errors.Is(err, oncehttp.ErrClaimLost) {
				lost.Add(1)
				return
			}
			errs.Add(1)
			time.Sleep(5 * time.Millisecond)
		}
	}
	var wg sync.WaitGroup
	var at atomic.Int32
	for w := range writers {
		wg.Go(func() {
			s := stores[w%len(stores)]
			for k := range keys { // all of them go for the same keys at the same time
				op := newOp(fmt.Sprintf("key %d", k))
				var c oncehttp.Claim
				again(func(ctx context.Context) (err error) {
					c, err = s.Claim(ctx, op, time.Hour, time.Hour)
					return err
				})
				if c.Status == oncehttp.ClaimAcquired {
					ran[k].Add(1)
					again(func(ctx context.Context) error {
						return s.Complete(ctx, op, []byte(op.Token), nil, time.Hour)
					})
				}
				at.Store(int32(k))
			}
		})
	}
	for i := range kills {
		for at.Load() < int32(keys*(i+1)/(kills+1)) {
			time.Sleep(time.Millisecond)
		}
		pg.Kill(t)
		pg.Start(t)
	}
	wg.Wait()
	for k := range ran {
		if n := ran[k].Load(); n != 1 {
			t.Errorf("key %d ran %d times, want 1", k, n)
		}
	}
	if n := lost.Load(); n > 0 {
		t.Errorf("%d claims were lost", n)
	}
	done, err := stores[0].List(context.Background(), oncehttp.RecordQuery{Status: oncehttp.ClaimDone, Limit: 1000})
	if err != nil || len(done) != keys {
		t.Errorf("got %d done records and error %v, want %d", len(done), err, keys)
	}
	t.Logf("%d calls failed while the server was down", errs.Load())
	if errs.Load() == 0 {
		t.Error("the server was never missed")
	}
}

func TestAPoolerThatForgetsStatementsIsNamed(t *testing.T) {
	pg := services.Postgres(t)
	b := services.PgBouncer(t, pg)
	db := pg.Database(t)
	migrated(t, pgstore.New(openPool(t, pg.DSN(db), 2), quiet))
	for _, v := range []struct {
		name string
		new  func(dsn string) *pgstore.Store
	}{
		{"over a pool of pgx", func(dsn string) *pgstore.Store { return pgstore.New(openPool(t, dsn, 16), quiet) }},
		{"over database/sql", func(dsn string) *pgstore.Store { return pgstore.NewSQL(openSQL(t, dsn, 16), quiet) }},
	} {
		t.Run(v.name, func(t *testing.T) {
			s := v.new(b.DSN(db))
			var first atomic.Value
			var wg sync.WaitGroup
			for w := range 16 {
				wg.Go(func() {
					for i := 0; i < 200 && first.Load() == nil; i++ {
						_, err := s.Claim(context.Background(), newOp(fmt.Sprintf("%s %d %d", v.name, w, i)), lease, keep)
						if err != nil {
							first.CompareAndSwap(nil, err)
						}
					}
				})
			}
			wg.Wait()
			err, _ := first.Load().(error)
			if err == nil || !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
				t.Errorf("got error %v, want one that names default_query_exec_mode=exec", err)
			}
		})
	}
}

// Each of the two errors that it can come to, one after the other.
func TestBothErrorsOfForgottenStatementsAreNamed(t *testing.T) {
	pg := services.Postgres(t)
	b := services.PgBouncer(t, pg, "default_pool_size = 1")
	for name, open := range map[string]func(dsn string) *pgstore.Store{
		"over a pool of pgx": func(dsn string) *pgstore.Store { return pgstore.New(openPool(t, dsn, 1), quiet) },
		"over database/sql":  func(dsn string) *pgstore.Store { return pgstore.NewSQL(openSQL(t, dsn, 1), quiet) },
	} {
		t.Run(name, func(t *testing.T) {
			db := pg.Database(t)
			migrated(t, pgstore.New(openPool(t, pg.DSN(db), 2), quiet))
			n := 0
			claim := func(s *pgstore.Store) error {
				n++
				_, err := s.Claim(t.Context(), newOp(fmt.Sprint(n)), lease, keep)
				return err
			}
			named := func(err error, code string) bool {
				return err != nil && strings.Contains(err.Error(), "SQLSTATE "+code) && strings.Contains(err.Error(), "default_query_exec_mode=exec")
			}
			s := open(b.DSN(db))
			if err := claim(s); err != nil {
				t.Fatal(err)
			}
			// The server connection has the statement, and another client prepares it.
			if err := claim(open(b.DSN(db))); !named(err, "42P05") {
				t.Errorf("got error %v, want one with 42P05 that names default_query_exec_mode=exec", err)
			}
			// It goes, and the client that has prepared it is given another one.
			var err error
			for range 20 { // until PgBouncer has noticed before the client asks
				query(t, pg, db, "select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
				if err = claim(s); err != nil {
					break
				}
			}
			if !named(err, "26000") {
				t.Errorf("got error %v, want one with 26000 that names default_query_exec_mode=exec", err)
			}
		})
	}
}

func TestAStatementTimeoutIsAnErrorThatPasses(t *testing.T) {
	pg := services.Postgres(t)
	db := pg.Database(t)
	s := migrated(t, pgstore.New(openPool(t, pg.DSN(db)+"&statement_timeout=200", 4), quiet))
	op := newOp("key")
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	locker := openPool(t, pg.DSN(db), 1)
	tx, err := locker.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(context.Background(), "SELECT * FROM oncehttp_records FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	mustClaim(t, s, newOp(op.Key), oncehttp.ClaimRunning) // reads need no lock
	if err := s.Complete(context.Background(), op, nil, nil, keep); err == nil || !strings.Contains(err.Error(), "57014") {
		t.Errorf("Complete of a locked row: got error %v, want SQLSTATE 57014", err)
	}
	tx.Rollback(context.Background())
	if err := s.Complete(context.Background(), op, nil, nil, keep); err != nil {
		t.Errorf("Complete of the row that was locked: %v", err)
	}
}

// A role may have another isolation level, in which statements that meet fail where
// otherwise one would wait for the other.
func TestEveryIsolationLevelWillDo(t *testing.T) {
	pg := services.Postgres(t)
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			s := overPool(t, pg.DSN(pg.Database(t))+"&default_transaction_isolation="+strings.ReplaceAll(level, " ", "%20"), 8)(t)
			const keys, writers = 50, 8
			ran := make([]atomic.Int32, keys)
			var wg sync.WaitGroup
			for range writers {
				wg.Go(func() {
					for k := range keys {
						op := newOp(fmt.Sprint("key ", k))
						c, err := s.Claim(context.Background(), op, lease, keep)
						if err != nil {
							t.Error(err)
							return
						}
						if c.Status != oncehttp.ClaimAcquired {
							continue
						}
						ran[k].Add(1)
						for _, err := range []error{
							s.Renew(context.Background(), op, lease),
							s.Complete(context.Background(), op, nil, nil, keep),
						} {
							if err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			wg.Wait()
			for k := range ran {
				if n := ran[k].Load(); n != 1 {
					t.Errorf("key %d ran %d times, want 1", k, n)
				}
			}
		})
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	pg := services.Postgres(t)
	db := pg.Database(t)
	p := openPool(t, pg.DSN(db), 2)
	query(t, pg, db, `create table somebodys (n int);
		create table later (n int); comment on table later is 'oncehttp records, version 99';
		create role weak_`+db+` login`)
	migrated(t, pgstore.New(p, quiet))
	for _, v := range []struct {
		name  string
		store *pgstore.Store
		want  string
	}{
		{"a table that is not there", pgstore.New(p, quiet, pgstore.WithTable("missing")), "call Migrate"},
		{"a schema that is not there", pgstore.New(p, quiet, pgstore.WithTable("no.where")), "call Migrate"},
		{"a table that is somebody else's", pgstore.New(p, quiet, pgstore.WithTable("somebodys")), "not one of this package"},
		{"a table of a later version", pgstore.New(p, quiet, pgstore.WithTable("later")), "upgrade the program"},
		{"a table name with three parts", pgstore.New(p, quiet, pgstore.WithTable("a.b.c")), "WithTable"},
		{"an empty table name", pgstore.New(p, quiet, pgstore.WithTable("")), "WithTable"},
		{"a table name that is too long", pgstore.New(p, quiet, pgstore.WithTable(strings.Repeat("n", 64))), "WithTable"},
		{"no pool", pgstore.New(nil, quiet), "the pool is nil"},
		{"no database", pgstore.NewSQL(nil, quiet), "the database is nil"},
		{"commits that do not wait", pgstore.New(openPool(t, pg.DSN(db)+"&synchronous_commit=off", 1), quiet), "synchronous_commit"},
		{"a role without rights", pgstore.New(openPool(t, strings.Replace(pg.DSN(db), "postgres@", "weak_"+db+"@", 1), 1), quiet), "SELECT, INSERT"},
		{"a standby", pgstore.New(openPool(t, pg.DSN(db)+"&default_transaction_read_only=on", 1), quiet), "target_session_attrs"},
	} {
		t.Run(v.name, func(t *testing.T) {
			_, err := v.store.Claim(context.Background(), newOp("secret-key"), lease, keep)
			if err == nil || !strings.Contains(err.Error(), v.want) || !strings.HasPrefix(err.Error(), "pgstore: ") {
				t.Errorf("got error %v, want one of pgstore that says %q", err, v.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret-key") {
				t.Errorf("the error shows the key: %v", err)
			}
		})
	}
	_, err := pgstore.New(p, quiet).Claim(context.Background(), newOp(strings.Repeat("k", 2049)), lease, keep)
	if err == nil || !strings.Contains(err.Error(), "longer than 2048") {
		t.Errorf("Claim of a long key: got error %v", err)
	}
}

// A statement that has begun when another process makes the table knows the table's
// name, and does not see its comment.
func TestATableThatIsMadeWhileItIsLookedAtIsNotAStrangers(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	db := pg.Database(t)
	pool := openPool(t, pg.DSN(db), 1)
	migrated(t, pgstore.New(pool, quiet, pgstore.WithTable("warm"))) // so that the server knows all that it needs for this
	s := pgstore.New(pool, quiet)
	other, err := pgx.Connect(t.Context(), pg.DSN(db))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	do := func(q string) {
		t.Helper()
		if _, err := other.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	do("begin; lock table pg_class in access exclusive mode")
	done := make(chan error, 1)
	go func() { done <- s.Migrate(context.Background()) }()
	eventually(t, "Migrate waits to look at the table", func() bool {
		var waits bool
		if err := other.QueryRow(t.Context(), "select exists (select from pg_locks where not granted)").Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	do(s.Schema())
	do("commit")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestMigrateMayRunAtOnceAndAgainAndNamesAreTakenAsTheyAre(t *testing.T) {
	pg := services.Postgres(t)
	db := pg.Database(t)
	p := openPool(t, pg.DSN(db), 16)
	query(t, pg, db, `create schema "Odd ""schema"`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := pgstore.New(p, quiet).Migrate(context.Background()); err != nil {
				t.Errorf("Migrate beside others: %v", err)
			}
		})
	}
	wg.Wait()
	for _, name := range []string{`Odd "schema.Records; drop table x`, "public.plain", "Upper"} {
		s := migrated(t, pgstore.New(p, quiet, pgstore.WithTable(name)))
		op := newOp("key")
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		if err := s.Complete(context.Background(), op, nil, nil, keep); err != nil {
			t.Errorf("Complete in %s: %v", name, err)
		}
		if n, err := s.Sweep(context.Background(), 0); n != 0 || err != nil {
			t.Errorf("Sweep in %s: got %d, %v", name, n, err)
		}
	}
	s := pgstore.New(p, quiet, pgstore.WithTable("by_hand"))
	query(t, pg, db, s.Schema())
	query(t, pg, db, "create role plain_"+db+" login; grant select, insert, update, delete on by_hand to plain_"+db)
	s = pgstore.New(openPool(t, strings.Replace(pg.DSN(db), "postgres@", "plain_"+db+"@", 1), 2), quiet, pgstore.WithTable("by_hand"))
	if err := s.Migrate(context.Background()); err != nil {
		t.Errorf("Migrate of a table that is there, by a role that could not make it: %v", err)
	}
	op := newOp("key")
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	if err := s.Complete(context.Background(), op, nil, nil, keep); err != nil {
		t.Errorf("Complete by a role with no more than it needs: %v", err)
	}
	if _, err := s.Sweep(context.Background(), 0); err != nil {
		t.Errorf("Sweep by a role with no more than it needs: %v", err)
	}
	if err := pgstore.New(p, quiet, pgstore.WithTable("no.where")).Migrate(context.Background()); err == nil || !strings.Contains(err.Error(), "make the schema") {
		t.Errorf("Migrate into a schema that is not there: got error %v", err)
	}
}
