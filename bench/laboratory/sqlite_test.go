package laboratory

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp/internal/lab"
	"github.com/oncehttp/oncehttp/sqlitestore"
)

// sqlite makes storages of files.
func sqlite(t *testing.T) func(lab.Setting) lab.Storage {
	dir := t.TempDir()
	return func(lab.Setting) lab.Storage {
		d, err := os.MkdirTemp(dir, "")
		if err != nil {
			panic(err)
		}
		return &sqliteWorld{d}
	}
}

type sqliteWorld struct{ dir string }

func (w *sqliteWorld) path(host string) string { return filepath.Join(w.dir, host+".db") }

func (w *sqliteWorld) Open(host string, log *slog.Logger) (lab.Store, error) {
	s, err := sqlitestore.Open(w.path(host), sqlitestore.WithLogger(log))
	if err != nil {
		return nil, err
	}
	return &sqliteStore{s, w.path(host)}, nil
}

// Jump does to the files what a process does whose clock is ahead: it remembers in
// them how late it is.
func (w *sqliteWorld) Jump(by time.Duration) {
	files, err := filepath.Glob(w.path("*"))
	if err != nil {
		panic(err)
	}
	for _, path := range files {
		conn, end := lock(path)
		if conn != nil {
			conn.ExecContext(context.Background(), "UPDATE oncehttp_meta SET late = max(late, ?1 - skew)", time.Now().Add(by).UnixMicro())
			conn.ExecContext(context.Background(), "COMMIT")
		}
		end()
	}
}

func (w *sqliteWorld) Close() { os.RemoveAll(w.dir) }

// lock takes the write lock of a file, or returns nil if others do not let go of it.
func lock(path string) (locked *sql.Conn, end func()) {
	ctx := context.Background()
	db, err := sql.Open("sqlite", "file://"+path+"?_pragma=busy_timeout(0)")
	if err != nil {
		panic(err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		panic(err)
	}
	for range 100 {
		if _, err = conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err == nil {
			return conn, func() {
				conn.ExecContext(ctx, "ROLLBACK")
				conn.Close()
				db.Close()
			}
		}
		time.Sleep(time.Millisecond)
	}
	return nil, func() {
		conn.Close()
		db.Close()
	}
}

// What happens to files.
const (
	locked  = "finds the file locked by somebody else"
	aMoment = ", for a moment"
)

type sqliteStore struct {
	*sqlitestore.Store
	path string
}

// Kill does nothing: what a process has asked of the file before it died may be
// done after.
func (s *sqliteStore) Kill() {}

func (s *sqliteStore) Close() { s.Store.Close() }

// Break has somebody else lock the file: for so long that the call fails, or for a
// moment.
func (s *sqliteStore) Break(moment bool) (what string, mend func()) {
	what = locked
	_, end := lock(s.path)
	if !moment {
		return what, end
	}
	unlock := time.AfterFunc(time.Second, end)
	return what + aMoment, func() {
		if unlock.Stop() {
			end()
		}
	}
}
