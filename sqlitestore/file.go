package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver
)

// dsn is how the driver is told to open a file.
func dsn(path string, busy time.Duration) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") { // C:/…
		path = "/" + path
	}
	u := url.URL{Path: path}
	return fmt.Sprintf("file://%s?_pragma=busy_timeout(%d)", u.EscapedPath(), busy.Milliseconds())
}

var creating sync.Mutex

// create makes an empty file that only its owner can read, if there is none. What
// handlers answer is not everybody's.
//
// A file that exists is not opened: to close it again would drop the locks that
// SQLite has on it in this process (https://sqlite.org/howtocorrupt.html, section
// 2.2).
func create(path string) error {
	creating.Lock()
	defer creating.Unlock()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// connect returns a connection to write with. It waits for locks that are in its
// way as long as WithBusyTimeout says.
func (s *Store) connect(ctx context.Context) (*sql.Conn, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(s.busy())
	for {
		err := s.prepare(ctx, conn)
		if err == nil {
			return conn, nil
		}
		if !isBusy(err) || time.Now().After(until) {
			discard(conn)
			return nil, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// prepare makes a connection one that writes durably, and sees that the file is
// what it should be.
func (s *Store) prepare(ctx context.Context, conn *sql.Conn) error {
	// Waiting for locks is done in Go, where it can be given up.
	if _, err := conn.ExecContext(ctx, "PRAGMA busy_timeout = 0"); err != nil {
		return err
	}
	// Errors that cannot be told apart would make a lock look like a disaster.
	_, err := conn.ExecContext(ctx, "SELECT oncehttp_no_such_function()")
	switch c := code(err); {
	case c == codeError:
	case c != 0:
		return err
	default:
		return fmt.Errorf("sqlitestore: the database must be opened with the driver of modernc.org/sqlite: another one's errors mean nothing here (%v)", err)
	}
	var path string
	err = conn.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&path)
	if err != nil {
		return err
	}
	if path == "" {
		return errors.New("sqlitestore: the database is in memory or temporary, and so gone when its connection is: use a file, or oncehttp.MemoryStore")
	}
	if s.file == "" {
		s.file = path
		s.path = cmp.Or(s.path, path)
	}
	if readOnly(conn) {
		return &fault{what: "open", path: s.path, kind: ErrReadOnly}
	}

	// The journal must be a write-ahead log: readers then wait for nobody.
	var mode string
	if err := conn.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("sqlitestore: %s: the journal mode stays %q where it has to be WAL: put the file on a local disk, not a network's", s.path, mode)
	}
	for _, pragma := range []string{
		"synchronous = FULL", // a commit is on the disk when it returns
		"fullfsync = ON",     // and not in the drive's own memory, which macOS leaves it in otherwise
		"checkpoint_fullfsync = ON",
		"wal_autocheckpoint = 4000",
		"journal_size_limit = 67108864",
		"cache_size = -16000",
	} {
		if _, err := conn.ExecContext(ctx, "PRAGMA "+pragma); err != nil {
			return err
		}
	}
	var synchronous int
	if err := conn.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous); err != nil {
		return err
	}
	if synchronous < 2 {
		return fmt.Errorf("sqlitestore: %s: synchronous is %d where it has to be FULL (2)", s.path, synchronous)
	}
	return s.migrate(ctx, conn)
}

// readOnly reports whether SQLite could only open the file for reading.
func readOnly(conn *sql.Conn) (ro bool) {
	conn.Raw(func(c any) error {
		if c, ok := c.(interface{ IsReadOnly(string) (bool, error) }); ok {
			ro, _ = c.IsReadOnly("main")
		}
		return nil
	})
	return ro
}

// migrate makes the tables, if they are not there, and looks at their version.
func (s *Store) migrate(ctx context.Context, conn *sql.Conn) error {
	v, skew, late, err := meta(ctx, conn)
	if code(err) == codeError || errors.Is(err, sql.ErrNoRows) { // no such table, or an interrupted attempt
		if err := makeTables(ctx, conn); err != nil {
			return err
		}
		v, skew, late, err = meta(ctx, conn)
	}
	switch {
	case err != nil:
		return err
	case v != version:
		return s.newer(v)
	}
	s.clock.meet(skew, late)
	return makeView(ctx, conn)
}

func meta(ctx context.Context, conn *sql.Conn) (v, skew, late int64, err error) {
	err = conn.QueryRowContext(ctx, sqlMeta).Scan(&v, &skew, &late)
	return v, skew, late, err
}

func makeTables(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for _, stmt := range append(schema[:len(schema):len(schema)], "COMMIT") {
		if _, err := conn.ExecContext(ctx, stmt); err != nil {
			conn.ExecContext(ctx, "ROLLBACK")
			return err
		}
	}
	return nil
}
