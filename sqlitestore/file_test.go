package sqlitestore

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

const day = 24 * time.Hour

func newOp(key string) oncehttp.Op { return oncehttp.Op{Key: key, Token: oncehttp.NewToken()} }

// raw is a connection to a file that is not the store's.
func raw(t testing.TB, path, params string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, time.Second)+params)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func mustExec(t testing.TB, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, stmt string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), stmt, args...); err != nil {
		t.Fatalf("%s: %v", stmt, err)
	}
}

// says checks that an error is of a kind and tells an operator what the matter is.
func says(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("got no error")
	}
	if kind != nil && !errors.Is(err, kind) {
		t.Errorf("got error %q, which is not %q", err, kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
	if n := strings.Count(err.Error(), "sqlitestore: "); n != 1 {
		t.Errorf("error %q names the package %d times", err, n)
	}
}

func TestOpenSaysWhatIsWrongWithAPath(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		what, path string
		kind       error
		says       string
	}{
		{"an empty path", "", nil, "empty"},
		{"a database in memory", ":memory:", nil, "oncehttp.MemoryStore"},
		{"a URI", "file:x?mode=memory", nil, "use New"},
		{"a directory", dir, ErrCannotOpen, "is not itself the path"},
		{"a file in a directory that is not there", filepath.Join(dir, "no", "once.db"), ErrCannotOpen, "its directory exists"},
	} {
		s, err := Open(c.path)
		if err == nil {
			s.Close()
			t.Errorf("%s: got no error", c.what)
			continue
		}
		says(t, err, c.kind, c.says)
	}
	if _, err := Open(filepath.Join(dir, "x.db"), WithBusyTimeout(-1)); err == nil {
		t.Error("a negative WithBusyTimeout: got no error")
	}
	if _, err := os.Stat(filepath.Join(dir, "x.db")); err == nil {
		t.Error("an Open that made no sense has made a file")
	}
}

func TestPathsMayHoldAnyBytes(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a b.db", "a?b.db", "a#b.db", "a%20b.db", "ä.db", "a&_pragma=x.db", "a'b\".db"} {
		s := open(t, filepath.Join(dir, name))
		if _, err := s.Claim(t.Context(), newOp("k"), day, day); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		s.Close()
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != 0o600 {
			t.Errorf("%q: others may read the file: mode %v", name, info.Mode())
		}
	}
}

func TestARelativePathIsThatOfOpen(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	s := open(t, "once.db")
	t.Chdir(t.TempDir())
	for range 20 { // more than there are connections yet
		if _, err := s.Show(t.Context(), "k"); !errors.Is(err, oncehttp.ErrNotFound) {
			t.Fatalf("got error %v, want %v", err, oncehttp.ErrNotFound)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "once.db")); err != nil {
		t.Error(err)
	}
}

func TestADamagedFileIsSaidToBe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "once.db")
	if err := os.WriteFile(path, bytes.Repeat([]byte("no database\n"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(path)
	says(t, err, ErrCorrupt, path, "backup")
}

func TestAClaimThatMeetsADamagedPageSaysSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "once.db")
	s := open(t, path)
	for i := range 200 {
		if _, err := s.Claim(t.Context(), newOp(fmt.Sprint("key ", i)), day, day); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	size, _ := f.Seek(0, io.SeekEnd)
	for at := int64(3 * page); at < size; at += page { // all but the schema and the two smallest pages
		f.WriteAt(bytes.Repeat([]byte{0x5a}, page), at)
	}
	f.Close()

	s, err = Open(path, WithLogger(quiet()))
	if err == nil {
		defer s.Close()
		_, err = s.Claim(t.Context(), newOp("key 7"), day, day)
	}
	says(t, err, ErrCorrupt, path, "backup")
}

func TestAFileOfANewerVersionIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "once.db")
	s := open(t, path)
	if _, err := s.Claim(t.Context(), newOp("k"), day, day); err != nil {
		t.Fatal(err)
	}
	mustExec(t, raw(t, path, ""), `UPDATE oncehttp_meta SET version = 7`)
	_, err := s.Claim(t.Context(), newOp("another"), day, day)
	says(t, err, ErrNewer, path, "version 7", "this one knows 1")
	s.Close()
	_, err = Open(path)
	says(t, err, ErrNewer, path, "version 7", "this one knows 1", "newer one")
}

func TestAReadOnlyFileIsSaidToBe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "once.db")
	open(t, path).Close()
	_, err := New(raw(t, path, "&mode=ro"))
	says(t, err, ErrReadOnly, path)
}

func init() {
	children["open"] = func(args []string) {
		_, err := Open(args[0], WithLogger(quiet()))
		fmt.Println(err)
	}
}

func TestALockedFileIsSaidToBe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "once.db")
	open(t, path).Close()
	other := start(t, "lock", path, "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; UPDATE oncehttp_meta SET skew = skew; COMMIT")
	if got := other.line(t); got != "locked" {
		t.Fatal(got)
	}
	began := time.Now()
	_, err := Open(path, WithBusyTimeout(200*time.Millisecond))
	says(t, err, ErrLocked, path, "WithBusyTimeout")
	if took := time.Since(began); took < 200*time.Millisecond || took > 5*time.Second {
		t.Errorf("Open gave up after %v, want 200ms", took)
	}
	time.AfterFunc(100*time.Millisecond, func() { other.in.Close() })
	s, err := Open(path)
	if err != nil {
		t.Fatalf("Open of a file that was locked for 100ms: %v", err)
	}
	s.Close()
}

func TestACallThatMeetsTheWriteLockOfAnotherProcessSaysSo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "once.db")
	s := open(t, path, WithBusyTimeout(150*time.Millisecond))
	done := newOp("done")
	if _, err := s.Claim(t.Context(), done, day, day); err != nil {
		t.Fatal(err)
	}
	if err := s.Complete(t.Context(), done, []byte("200"), nil, day); err != nil {
		t.Fatal(err)
	}
	other := start(t, "lock", path, "BEGIN IMMEDIATE")
	other.line(t)
	_, err := s.Claim(t.Context(), newOp("k"), day, day)
	says(t, err, ErrLocked, path, "WithBusyTimeout")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Claim(ctx, newOp("k"), day, day); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Claim whose context ends first: got error %v", err)
	}
	if c, err := s.Claim(t.Context(), newOp("done"), day, day); err != nil || c.Status != oncehttp.ClaimDone {
		t.Errorf("a replay while the file is locked for writing: got %v, %v", c.Status, err)
	}
	other.end(t)
	if c, err := s.Claim(t.Context(), newOp("k"), day, day); err != nil || c.Status != oncehttp.ClaimAcquired {
		t.Errorf("after the lock is gone: got %v, %v; was a call that failed done after all?", c.Status, err)
	}
}

func init() {
	children["lock"] = func(args []string) {
		db, err := sql.Open("sqlite", dsn(args[0], time.Second))
		if err != nil {
			die(err)
		}
		db.SetMaxOpenConns(1)
		if _, err := db.Exec(args[1]); err != nil {
			die(err)
		}
		fmt.Println("locked")
		untilTold()
	}
}

func TestAFullFileRefusesNewKeysAndKeepsTheOutcomesOfOldOnes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "once.db")
	s, err := New(raw(t, path, "&_pragma=max_page_count(30)"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	body := bytes.Repeat([]byte("b"), 20_000)
	var held []oncehttp.Op
	for i := 0; ; i++ {
		op := newOp(fmt.Sprint("key ", i))
		_, err := s.Claim(t.Context(), op, day, day)
		if err != nil {
			if !errors.Is(err, oncehttp.ErrFull) {
				t.Errorf("got error %q, want ErrFull", err)
			}
			says(t, err, ErrNoSpace, path, "max_page_count")
			break
		}
		held = append(held, op)
		if i > 10_000 {
			t.Fatal("the file does not fill up")
		}
	}
	// Make a little room.
	for _, op := range held[:10] {
		if err := s.Release(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	for _, op := range held[10:15] {
		if err := s.Complete(t.Context(), op, []byte("201"), body, day); err != nil {
			t.Fatalf("Complete with a body that finds no room: %v", err)
		}
		c, err := s.Claim(t.Context(), newOp(op.Key), day, day)
		if err != nil || c.Status != oncehttp.ClaimDone || string(c.Head) != "201" || !c.BodyDropped || c.Body != nil {
			t.Fatalf("after that: got %v, head %q, body dropped %v, %v", c.Status, c.Head, c.BodyDropped, err)
		}
	}
	for _, op := range held[15:] {
		if err := s.Renew(t.Context(), op, day); err != nil {
			t.Fatalf("Renew on a full file: %v", err)
		}
		if err := s.Release(t.Context(), op); err != nil {
			t.Fatalf("Release on a full file: %v", err)
		}
	}
	if c, err := s.Claim(t.Context(), newOp("new"), day, day); err != nil || c.Status != oncehttp.ClaimAcquired {
		t.Errorf("Claim when there is room again: got %v, %v", c.Status, err)
	}
}

func TestNewWantsADatabaseThatItCanUse(t *testing.T) {
	if _, err := New(nil); err == nil {
		t.Error("no database: got no error")
	}
	path := filepath.Join(t.TempDir(), "once.db")
	few := raw(t, path, "")
	few.SetMaxOpenConns(3)
	if _, err := New(few); err == nil || !strings.Contains(err.Error(), "SetMaxOpenConns") {
		t.Errorf("3 connections: got error %v", err)
	}
	memory, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	_, err = New(memory)
	says(t, err, nil, "oncehttp.MemoryStore")
}

// A foreign is a driver whose errors have no code.
type foreign struct{ driver.Conn }

func (f foreign) Connect(context.Context) (driver.Conn, error) { return f, nil }
func (f foreign) Driver() driver.Driver                        { return nil }
func (f foreign) Close() error                                 { return nil }
func (f foreign) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	if strings.HasPrefix(query, "PRAGMA") {
		return driver.RowsAffected(0), nil
	}
	return nil, errors.New("no such function")
}

func TestNewWantsADriverWhoseErrorsItUnderstands(t *testing.T) {
	db := sql.OpenDB(foreign{})
	defer db.Close()
	_, err := New(db)
	says(t, err, nil, "modernc.org/sqlite", "no such function")
}

func TestNewLeavesTheDatabaseToItsOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "once.db")
	db := raw(t, path, "&_pragma=synchronous(NORMAL)")
	db.SetMaxOpenConns(4)
	mustExec(t, db, "CREATE TABLE mine (x)")
	s, err := New(db)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), newOp("k"), day, day); err != nil {
		t.Fatal(err)
	}
	mustExec(t, db, "INSERT INTO mine VALUES (1)")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 4 { // every connection there can be
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var synchronous, timeout, cache int
		if err := conn.QueryRowContext(t.Context(), "PRAGMA synchronous").Scan(&synchronous); err != nil {
			t.Fatal(err)
		}
		if err := conn.QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&timeout); err != nil {
			t.Fatal(err)
		}
		if err := conn.QueryRowContext(t.Context(), "PRAGMA cache_size").Scan(&cache); err != nil {
			t.Fatal(err)
		}
		if synchronous != 1 || timeout != 1000 || cache != -2000 {
			t.Errorf("a connection was left with synchronous %d, busy_timeout %d, cache_size %d", synchronous, timeout, cache)
		}
	}
}

func TestWhatIsCommittedIsOnTheDisk(t *testing.T) {
	s := tempStore(t)
	tx := s.Transactional()
	if _, err := tx.Claim(t.Context(), newOp("k"), day, day); err != nil {
		t.Fatal(err)
	}
	conn, err := tx.txConn()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]*sql.Conn{"the writer": s.writer.conn, "transactions": conn} {
		var mode string
		var synchronous int
		if err := errors.Join(
			c.QueryRowContext(t.Context(), "PRAGMA journal_mode").Scan(&mode),
			c.QueryRowContext(t.Context(), "PRAGMA synchronous").Scan(&synchronous)); err != nil {
			t.Fatal(err)
		}
		if mode != "wal" || synchronous != 2 {
			t.Errorf("%s: journal mode %s, synchronous %d; want wal, 2 (FULL)", what, mode, synchronous)
		}
	}
}
