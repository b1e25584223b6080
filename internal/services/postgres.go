package services

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A PG is a PostgreSQL server. Everyone on this machine may connect to it, as the
// superuser User and without a password. Its methods are safe for concurrent use,
// but for Kill, Stop and Start.
type PG struct {
	Host   string // 127.0.0.1
	Port   int
	Socket string // the folder of its Unix socket
	User   string
	Bin    string // the folder of its programs: psql, pgbench …

	server
}

// A PGOption says what kind of server a test needs.
type PGOption func(*pgOptions)

type pgOptions struct {
	private  bool
	settings []string
	env      []string
}

// Private asks for a server of the test's own: one that it may kill, stop and
// start, and that ends with the test.
func Private() PGOption { return func(o *pgOptions) { o.private = true } }

// Set changes a line of postgresql.conf. It implies Private.
func Set(name, value string) PGOption {
	return func(o *pgOptions) {
		o.private = true
		o.settings = append(o.settings, "-c", name+"="+value)
	}
}

// Postgres returns a running server: the one that all tests of the binary share,
// each with databases of its own, unless opts ask for a private one.
//
// fsync is off unless Set says otherwise. Nothing is lost by a kill all the same,
// only by the end of the whole machine.
func Postgres(t testing.TB, opts ...PGOption) *PG {
	t.Helper()
	var o pgOptions
	for _, opt := range opts {
		opt(&o)
	}
	if o.private {
		pg, err := newPostgres(o)
		need(t, err)
		t.Cleanup(func() {
			if err := pg.stop(); err != nil {
				t.Errorf("services: %v", err)
			}
			os.RemoveAll(pg.dir)
		})
		return pg
	}
	sharedPG.once.Do(func() { sharedPG.pg, sharedPG.err = newPostgres(pgOptions{}) })
	need(t, sharedPG.err)
	return sharedPG.pg
}

var sharedPG struct {
	once sync.Once
	pg   *PG
	err  error
}

func newPostgres(o pgOptions) (*PG, error) {
	initdb, err := install(findInitdb, "postgresql")
	if err != nil {
		return nil, err
	}
	uid, gid, err := account("postgres")
	if err != nil {
		return nil, err
	}
	dir, err := folder("pg")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	if uid >= 0 {
		if err := os.Chown(data, uid, gid); err != nil {
			return nil, err
		}
	}
	pg := &PG{
		Host:   "127.0.0.1",
		Socket: data, // the one folder that is the server's own
		User:   "postgres",
		Bin:    filepath.Dir(initdb),
		server: server{name: "postgres", dir: dir, env: o.env, uid: uid, gid: gid},
	}
	if _, err := run(uid, gid, dir, initdb, "-D", data, "-U", pg.User, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"); err != nil {
		return nil, err
	}
	return pg, onFreePort(func(port int) error {
		pg.Port = port
		pg.argv = append([]string{filepath.Join(pg.Bin, "postgres"), "-D", data, "-p", strconv.Itoa(port), "-k", pg.Socket,
			"-c", "listen_addresses=" + pg.Host, "-c", "fsync=off", "-c", "max_connections=300",
			"-c", "log_min_messages=warning"}, o.settings...)
		return pg.start()
	})
}

// findInitdb returns the initdb of the newest installed version.
func findInitdb() string {
	if path := newest("/usr/lib/postgresql/*/bin/initdb", func(p string) string {
		return filepath.Base(filepath.Dir(filepath.Dir(p)))
	}); path != "" {
		return path
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return ""
	}
	return path
}

func (pg *PG) start() error {
	if err := pg.server.start(); err != nil {
		return err
	}
	return pg.ready(func() error {
		_, err := pg.psql("postgres", "select 1")
		return err
	})
}

// stop ends the server in order, but does not wait for its clients.
func (pg *PG) stop() error {
	select {
	case <-pg.gone:
		return nil
	default:
	}
	if err := pg.signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return pg.ended()
}

// Kill ends the server and all its processes at once, as kill -9 does.
func (pg *PG) Kill(t testing.TB) {
	t.Helper()
	pg.mu.Lock()
	pid := pg.cmd.Process.Pid
	pg.mu.Unlock()
	need(t, killTree(pid))
	need(t, pg.ended())
}

// Stop ends the server in order. Its clients' connections break.
func (pg *PG) Stop(t testing.TB) {
	t.Helper()
	need(t, pg.stop())
}

// Start starts a server that was killed or stopped, on the same port, and waits
// until it answers.
func (pg *PG) Start(t testing.TB) {
	t.Helper()
	// For a moment after a kill the port and the shared memory can still be taken.
	var err error
	for range 20 {
		if err = pg.start(); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	need(t, err)
}

// Addr is where the server listens.
func (pg *PG) Addr() string { return net.JoinHostPort(pg.Host, strconv.Itoa(pg.Port)) }

// DSN returns the connection string of a database.
func (pg *PG) DSN(database string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", pg.User, pg.Addr(), database)
}

// Database makes an empty database that is the test's own, and returns its name.
// It is dropped when the test ends, whoever is connected.
func (pg *PG) Database(t testing.TB) string {
	t.Helper()
	name := "test_" + strconv.FormatInt(databases.Add(1), 10)
	pg.SQL(t, "postgres", "create database "+name)
	t.Cleanup(func() {
		if _, err := pg.psql("postgres", "drop database if exists "+name+" with (force)"); err != nil {
			t.Logf("services: %v", err) // the test may have left the server killed
		}
	})
	return name
}

var databases atomic.Int64

// SQL runs statements in a database and returns what psql prints of them,
// without headers and trailing space.
func (pg *PG) SQL(t testing.TB, database, statements string) string {
	t.Helper()
	out, err := pg.psql(database, statements)
	need(t, err)
	return out
}

func (pg *PG) psql(database, statements string) (string, error) {
	out, err := run(-1, -1, pg.dir, filepath.Join(pg.Bin, "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", pg.DSN(database), "-c", statements)
	return strings.TrimSpace(out), err
}
