package sqlitestore

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/storetest"
)

func open(t testing.TB, path string, opts ...Option) *Store {
	t.Helper()
	s, err := Open(path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func tempStore(t testing.TB, opts ...Option) *Store {
	t.Helper()
	return open(t, filepath.Join(t.TempDir(), "once.db"), opts...)
}

func TestStoreKeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Config{
		New: func(t *testing.T) oncehttp.Store { return tempStore(t) },
		// What a crash leaves is what is in the files. The store that crashed goes on,
		// on files that nobody looks at again.
		Reopen: func(t *testing.T, s oncehttp.Store) oncehttp.Store {
			from, to := s.(*Store).path, filepath.Join(t.TempDir(), "once.db")
			for _, suffix := range []string{"", "-wal"} {
				b, err := os.ReadFile(from + suffix)
				if err == nil {
					err = os.WriteFile(to+suffix, b, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			return open(t, to)
		},
		Unit: 60 * time.Millisecond,
	})
}

// Without Reopen: that a transactional claim is gone after a crash is what it is
// for.
func TestTransactionalStoreKeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Config{
		New: func(t *testing.T) oncehttp.Store {
			db := raw(t, filepath.Join(t.TempDir(), "once.db"), "&_pragma=foreign_keys(1)")
			mustExec(t, db, `CREATE TABLE accounts (id INTEGER PRIMARY KEY);
				CREATE TABLE entries (account INTEGER REFERENCES accounts DEFERRABLE INITIALLY DEFERRED)`)
			s, err := New(db)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s.Transactional()
		},
		// No account has this number, and that is looked at when it is committed.
		RefuseCommit: func(ctx context.Context) { mustExec(t, Tx(ctx), `INSERT INTO entries VALUES (7)`) },
		Unit:         60 * time.Millisecond,
	})
}
