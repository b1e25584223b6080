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
	"syscall"
	"testing"
)

// A Bouncer is a PgBouncer in front of a PG.
type Bouncer struct {
	Host string
	Port int

	pg *PG
	server
}

// PgBouncer starts one that pools by transaction, with few connections of its
// own, so that clients do share them. Each setting is a line of the section
// [pgbouncer] of its configuration, and comes last. It ends with the test.
func PgBouncer(t testing.TB, pg *PG, settings ...string) *Bouncer {
	t.Helper()
	b, err := newPgBouncer(pg, settings)
	need(t, err)
	t.Cleanup(func() {
		b.signal(syscall.SIGTERM)
		if err := b.ended(); err != nil {
			t.Errorf("services: %v", err)
		}
		os.RemoveAll(b.dir)
	})
	return b
}

func newPgBouncer(pg *PG, settings []string) (*Bouncer, error) {
	program, err := install(findPgBouncer, "pgbouncer")
	if err != nil {
		return nil, err
	}
	uid, gid, err := account("postgres")
	if err != nil {
		return nil, err
	}
	dir, err := folder("pgbouncer")
	if err != nil {
		return nil, err
	}
	b := &Bouncer{Host: pg.Host, pg: pg, server: server{name: "pgbouncer", dir: dir, uid: uid, gid: gid}}
	conf := filepath.Join(dir, "pgbouncer.ini")
	b.argv = []string{program, conf}
	return b, onFreePort(func(port int) error {
		b.Port = port
		lines := append([]string{
			"[databases]",
			fmt.Sprintf("* = host=%s port=%d user=%s", pg.Host, pg.Port, pg.User),
			"[pgbouncer]",
			"listen_addr = " + b.Host,
			"listen_port = " + strconv.Itoa(port),
			"unix_socket_dir =",
			"auth_type = any",
			"pool_mode = transaction",
			"default_pool_size = 4",
			"max_client_conn = 500",
			"ignore_startup_parameters = extra_float_digits",
		}, settings...)
		if err := os.WriteFile(conf, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			return err
		}
		if err := b.start(); err != nil {
			return err
		}
		return b.ready(func() error {
			_, err := run(-1, -1, dir, filepath.Join(pg.Bin, "psql"), "-XAtq", "-d", b.DSN("postgres"), "-c", "select 1")
			return err
		})
	})
}

func findPgBouncer() string {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path
	}
	const debian = "/usr/sbin/pgbouncer" // which not everyone's PATH has
	if _, err := os.Stat(debian); errors.Is(err, os.ErrNotExist) {
		return ""
	}
	return debian
}

// DSN returns the connection string of a database of the PG, through the
// PgBouncer.
func (b *Bouncer) DSN(database string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", b.pg.User, net.JoinHostPort(b.Host, strconv.Itoa(b.Port)), database)
}
