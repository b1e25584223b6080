package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A presence tells the other processes on the file that this store lives, for as
// long as its transactional claims may. It is the lock on an owner file: an empty
// database beside the file, which the store has in an exclusive transaction. The
// system gives that lock back when the process dies, however it dies, so whether a
// claim's owner lives can be seen by anybody, at once, and without a clock.
//
// The lock is taken by SQLite, so it works wherever the locks on the file itself do.
//
// Who is wrong about an owner takes its turn away, and no more than that: a holder
// verifies its claim when it has the write lock, before its work starts.
type presence struct {
	mu   sync.Mutex
	lock *sql.DB // nil: not yet
}

const ownerFile = "-owner-" // between the name of the file and the owner's number

func (s *Store) ownerPath(id int64) string { return s.file + ownerFile + strconv.FormatInt(id, 16) }

// appear makes the store one that lives. It is called before each transactional claim.
func (s *Store) appear() error {
	s.presence.mu.Lock()
	defer s.presence.mu.Unlock()
	path := s.ownerPath(s.id)
	if s.presence.lock != nil {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		s.presence.lock.Close() // somebody has tidied up
		s.presence.lock = nil
	}
	for until := time.Now().Add(s.busy()); ; time.Sleep(time.Millisecond) {
		lock, err := lockOwner(path, "rwc")
		if err == nil {
			// Whoever sweeps may have found the file before it was locked.
			if _, err = os.Stat(path); err == nil {
				s.presence.lock = lock
				break
			}
			lock.Close()
		}
		if passing := isBusy(err) || errors.Is(err, fs.ErrNotExist); !passing || time.Now().After(until) {
			return err
		}
	}
	// Who may write to the file may ask whether its owners live.
	if info, err := os.Stat(s.file); err == nil {
		os.Chmod(path, info.Mode().Perm())
	}
	s.sweepOwners()
	return nil
}

// vanish ends what appear began.
func (s *Store) vanish() {
	s.presence.mu.Lock()
	defer s.presence.mu.Unlock()
	if s.presence.lock != nil {
		removeOwner(s.ownerPath(s.id), s.presence.lock)
		s.presence.lock = nil
	}
}

// lives reports whether another store on the file does: one of which that cannot be
// told does.
func (s *Store) lives(owner int64) bool {
	path := s.ownerPath(owner)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	lock, err := lockOwner(path, "rw")
	if err != nil {
		return true
	}
	removeOwner(path, lock)
	return false
}

// sweepOwners removes the owner files of processes that have died.
func (s *Store) sweepOwners() {
	files, _ := os.ReadDir(filepath.Dir(s.file))
	for _, f := range files {
		number, ok := strings.CutPrefix(f.Name(), filepath.Base(s.file)+ownerFile)
		if !ok {
			continue
		}
		if id, err := strconv.ParseInt(number, 16, 64); err == nil && id != s.id {
			s.lives(id)
		}
	}
}

// lockOwner takes the lock of an owner file, without waiting for it. Closing what it
// returns gives it back.
func lockOwner(path, mode string) (*sql.DB, error) {
	// A journal on the disk would be one more file.
	db, err := sql.Open("sqlite", dsn(path, 0)+"&_pragma=journal_mode(memory)&mode="+mode)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(context.Background(), "BEGIN EXCLUSIVE"); err != nil {
		db.Close()
		return nil, fmt.Errorf("the file %s, which says that this store lives: %w", path, err)
	}
	return db, nil
}

// removeOwner removes an owner file while its lock is held, so that nobody else can
// have locked it. Where open files cannot be removed, one that is free again can, and
// one that its owner has just opened cannot.
func removeOwner(path string, lock *sql.DB) {
	err := os.Remove(path)
	lock.Close()
	if err != nil {
		os.Remove(path)
	}
}
