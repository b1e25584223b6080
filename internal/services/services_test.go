package services

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func TestTestsShareAServerAndHaveDatabasesOfTheirOwn(t *testing.T) {
	pg := Postgres(t)
	if again := Postgres(t); again != pg {
		t.Errorf("got a second server on port %d, want the one on port %d", again.Port, pg.Port)
	}
	one, two := pg.Database(t), pg.Database(t)
	pg.SQL(t, one, "create table only_here (n int)")
	if got := pg.SQL(t, two, "select count(*) from pg_tables where tablename = 'only_here'"); got != "0" {
		t.Errorf("got %s tables in the other database, want 0", got)
	}
}

func TestAKilledServerIsGoneAndKeepsItsData(t *testing.T) {
	pg := Postgres(t, Set("fsync", "on"))
	if got := pg.SQL(t, "postgres", "show fsync"); got != "on" {
		t.Errorf("fsync: got %s, want on", got)
	}
	db := pg.Database(t)
	pg.SQL(t, db, "create table kept as select 42 as n")
	for range 2 {
		pg.Kill(t)
		if c, err := net.Dial("tcp", pg.Addr()); err == nil {
			c.Close()
			t.Error("a killed server still accepts connections")
		}
		pg.Start(t)
		if got := pg.SQL(t, db, "select n from kept"); got != "42" {
			t.Errorf("after a kill: got %s, want 42", got)
		}
	}
	pg.Stop(t)
	pg.Start(t)
	if got := pg.SQL(t, db, "select n from kept"); got != "42" {
		t.Errorf("after a stop: got %s, want 42", got)
	}
}

// Else a client that dials a server which is dead could be connected to itself, and the
// server not be started again on its port.
func TestServersHavePortsThatNoClientGets(t *testing.T) {
	for range 100 {
		port := 0
		if err := onFreePort(func(p int) error { port = p; return nil }); err != nil {
			t.Fatal(err)
		}
		if port < 1024 || port >= 32768 {
			t.Fatalf("got port %d, want one that outgoing connections have neither on Linux nor elsewhere", port)
		}
	}
}

func TestPgBouncerPoolsByTransaction(t *testing.T) {
	pg := Postgres(t)
	b := PgBouncer(t, pg)
	db := pg.Database(t)
	out, err := run(-1, -1, b.dir, filepath.Join(pg.Bin, "psql"), "-XAtq", "-d", b.DSN("pgbouncer"), "-c", "show config")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "pool_mode|transaction|") {
		t.Errorf("the pool mode is not transaction:\n%s", out)
	}
	if _, err := run(-1, -1, b.dir, filepath.Join(pg.Bin, "psql"), "-XAtq", "-d", b.DSN(db), "-c", "select 1"); err != nil {
		t.Error(err)
	}
}
