package pgstore_test

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
	"github.com/oncehttp/oncehttp/storetest"
)

// unit is long enough for a quiet machine. On another one the suite takes longer
// ones by itself.
const unit = 45 * time.Millisecond

// patience is enough for a call that waits for dozens of new connections. The suite
// takes a tenth of it for a Wait that is not woken, which is less than the two seconds
// after which a store looks by itself.
const patience = 18 * time.Second

func TestMain(m *testing.M) {
	// The longest tests mostly wait: for leases to lapse, and for servers to start.
	flag.Parse()
	if n := flag.Lookup("test.parallel"); n.Value.String() == n.DefValue {
		n.Value.Set("8")
	}
	m.Run()
}

func TestTheStoreKeepsItsContract(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	bouncer := services.PgBouncer(t, pg)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { t.Run("over a server that is killed", testDurable) })
	for _, v := range []struct {
		name string
		new  func(t *testing.T, opts ...pgstore.Option) *pgstore.Store
		tx   bool
	}{
		{"over a pool of pgx", overPool(t, pg.DSN(pg.Database(t)), 20), false},
		{"over database/sql", overSQL(t, pg.DSN(pg.Database(t)), 20), false},
		{"through PgBouncer", overPool(t, bouncer.DSN(pg.Database(t))+"&default_query_exec_mode=exec", 20), false},
		{"through PgBouncer, over database/sql, by the simple protocol", overSQL(t, bouncer.DSN(pg.Database(t))+"&default_query_exec_mode=simple_protocol", 20), false},
		// Claims keep their connections here, and one case claims 120 keys.
		{"with transactions, over a pool of pgx", overPool(t, pg.DSN(pg.Database(t)), 140), true},
		{"with transactions, over database/sql", overSQL(t, pg.DSN(pg.Database(t)), 140), true},
	} {
		// Not t.Parallel, which lets as many run as there are processors: these
		// mostly sleep.
		limit := patience
		if v.tx {
			limit = time.Minute // they look several times a second
		}
		all.Go(func() {
			t.Run(v.name, func(t *testing.T) {
				storetest.Run(t, storetest.Config{
					New: func(t *testing.T) oncehttp.Store {
						s := v.new(t)
						if v.tx {
							tx := s.Transactional()
							t.Cleanup(tx.Close)
							return tx
						}
						t.Cleanup(s.Close)
						return s
					},
					// After a statement that fails the server commits nothing.
					RefuseCommit: func(ctx context.Context) {
						if inTx(ctx, "select 1 / 0") == nil {
							t.Error("a division by zero is no error")
						}
					},
					Unit:     unit,
					Patience: limit,
				})
			})
		})
	}
}

// testDurable runs the suite on a server that is killed and started again where the
// suite wants to see what is left.
func testDurable(t *testing.T) {
	pg := services.Postgres(t, services.Private())
	dsn := pg.DSN(pg.Database(t))
	pool := openPool(t, dsn, 20)
	var name string
	open := func(t *testing.T) *pgstore.Store {
		s := pgstore.New(pool, quiet, pgstore.WithTable(name))
		t.Cleanup(s.Close)
		return s
	}
	storetest.Run(t, storetest.Config{
		New: func(t *testing.T) oncehttp.Store {
			name = table()
			return migrated(t, open(t))
		},
		Reopen: func(inner *testing.T, _ oncehttp.Store) oncehttp.Store {
			pg.Kill(inner)
			pg.Start(inner)
			pool = openPool(t, dsn, 20)
			return open(inner)
		},
		Unit:     unit,
		Patience: patience,
	})
}

// quiet keeps warnings of a server without fsync out of the tests' output.
var quiet = pgstore.WithLogger(slog.New(slog.DiscardHandler))

var tables atomic.Int64

// table is a name that no other test of the binary uses.
func table() string { return fmt.Sprintf("records_%d", tables.Add(1)) }

// openPool opens a pool that lasts as long as the test.
func openPool(t testing.TB, dsn string, most int) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = int32(most)
	p, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func openSQL(t testing.TB, dsn string, most int) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	t.Cleanup(func() { db.Close() })
	return db
}

// overPool returns what makes stores with tables of their own.
func overPool(t *testing.T, dsn string, most int) func(*testing.T, ...pgstore.Option) *pgstore.Store {
	p := openPool(t, dsn, most)
	return func(t *testing.T, opts ...pgstore.Option) *pgstore.Store {
		return migrated(t, pgstore.New(p, append([]pgstore.Option{quiet, pgstore.WithTable(table())}, opts...)...))
	}
}

func overSQL(t *testing.T, dsn string, most int) func(*testing.T, ...pgstore.Option) *pgstore.Store {
	db := openSQL(t, dsn, most)
	return func(t *testing.T, opts ...pgstore.Option) *pgstore.Store {
		return migrated(t, pgstore.NewSQL(db, append([]pgstore.Option{quiet, pgstore.WithTable(table())}, opts...)...))
	}
}

func migrated(t testing.TB, s *pgstore.Store) *pgstore.Store {
	t.Helper()
	if err := s.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNoTwoTokensOrKeysAreTakenForOne(t *testing.T) {
	hex := "00112233445566778899aabbccddeeff"
	raw := "\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff"
	seen := make(map[string]string)
	for _, token := range []string{
		hex, strings.ToUpper(hex), hex[:31], hex + "0", hex[:31] + "g", raw, "\x00" + raw, "\x01" + raw,
		"\x01" + hex, "t", "\x00", "\x00\x00", "\x01", strings.Repeat("z", 32),
	} {
		packed := string(pgstore.PackToken(token))
		if other, ok := seen[packed]; ok {
			t.Errorf("tokens %q and %q are the same to the server", token, other)
		}
		seen[packed] = token
	}
	if got := len(pgstore.PackToken(oncehttp.NewToken())); got != 17 {
		t.Errorf("a token takes %d bytes, want 17", got)
	}
	if got, want := pgstore.RowID("abc"), "ba7816bf-8f01-cfea-4141-40de5dae2223"; got != want {
		t.Errorf("got row id %s, want %s, which FIPS 180 has for abc", got, want)
	}
}
