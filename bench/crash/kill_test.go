package crash_test

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/oncehttp/oncehttp/internal/crash"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
	"github.com/oncehttp/oncehttp/sqlitestore"
)

var (
	kills    = flag.Int("kills", 30, "how often TestKill kills the server of each store and mode")
	killSeed = flag.Uint64("killseed", 0, "what decides when TestKill kills; 0: a random number, which it prints")
)

// A server is killed at random points and started again while its clients ask for
// every action until it is answered.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name string
		make func(t *testing.T, tx bool) setup
		tx   bool
	}{
		{"SQLite", onSQLite, false},
		{"SQLite, transactional", onSQLite, true},
		{"Postgres", onPostgres, false},
		{"Postgres, transactional", onPostgres, true},
		{"Redis", onRedis, false},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			c := config(t, v.make(t, v.tx))
			c.Name, c.Kills, c.Seed, c.StartUp = v.name, *kills, *killSeed, true
			if *kills > 100 {
				c.Log = func(line string) { fmt.Fprintln(os.Stdout, line) }
			}
			holds(t, c)
		})
	}
}

// config has a server of the setup killed.
func config(t *testing.T, s setup) crash.Config {
	t.Helper()
	addr, err := crash.Addr()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s.Addr, s.Journal, s.Progress = addr, filepath.Join(dir, "journal"), filepath.Join(dir, "progress")
	return crash.Config{
		Victim:  &crash.Process{Command: s.command, Addr: addr},
		URL:     "http://" + addr + "/actions",
		Effects: s.effects,
		Running: s.running,
		Exactly: s.Tx,
		Phases: func() crash.Phases {
			p, err := crash.ReadPhases(s.Progress)
			if err != nil {
				t.Error(err)
			}
			os.Remove(s.Progress) // a server that dies before it has one was doing nothing
			return p
		},
	}
}

// holds runs c and fails the test for every promise that was broken.
func holds(t *testing.T, c crash.Config) *crash.Report {
	t.Helper()
	r, err := crash.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	for _, f := range r.Faults {
		t.Error(f)
	}
	return r
}

func onSQLite(t *testing.T, tx bool) setup {
	path := filepath.Join(t.TempDir(), "once.db")
	if tx {
		store, err := sqlitestore.Open(path) // so that the file is a log already
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		execute(t, "sqlite", path, createEffects)
	}
	return setup{Store: "sqlite", DSN: path, Tx: tx}
}

func onPostgres(t *testing.T, tx bool) setup {
	pg := services.Postgres(t)
	return inPostgres(t, pg, tx)
}

func inPostgres(t *testing.T, pg *services.PG, tx bool) setup {
	database := pg.Database(t)
	s := setup{Store: "postgres", DSN: pg.DSN(database), Tx: tx}
	o, err := s.postgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	if err := o.base.(*pgstore.Store).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tx {
		pg.SQL(t, database, createEffects)
	}
	return s
}

func onRedis(t *testing.T, _ bool) setup {
	return inRedis(services.Redis(t), t.Name())
}

func inRedis(r *services.RedisServer, name string) setup {
	return setup{Store: "redis", DSN: r.Addr(), Name: name + ":"}
}

func execute(t *testing.T, driver, dsn, statement string) {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(context.Background(), statement); err != nil {
		t.Fatal(err)
	}
}
