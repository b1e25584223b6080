package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// vanish does to a store what the system does when its process dies: it takes its
// locks away, and leaves its files.
func vanish(t testing.TB, s *Store) {
	t.Helper()
	if err := s.presence.lock.Close(); err != nil {
		t.Fatal(err)
	}
}

// owners counts the owner files beside a file.
func owners(t testing.TB, path string) (n int) {
	t.Helper()
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), filepath.Base(path)+ownerFile) {
			n++
		}
	}
	return n
}

// However soon after each other processes are killed, nobody who asks for their key
// has to wait, and what they had written is gone.
func TestTheKeyOfAProcessThatIsKilledIsFreeAtOnce(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	for i := range 6 {
		c := start(t, "tx holder", l.path, strconv.FormatBool(i%2 == 0))
		if got := c.line(t); got != "acquired" {
			t.Fatalf("process %d finds the key %s when the one before it was killed", i, got)
		}
		if i%2 == 0 {
			c.line(t) // its work has begun
		} else if got, err := l.Claim(t.Context(), newOp("k"), time.Minute, day); err != nil || got.Status != oncehttp.ClaimRunning {
			t.Errorf("the key of a process that lives: got %v, %v; want running", got.Status, err)
		}
		c.cmd.Process.Kill()
		c.cmd.Wait()
		if n := owners(t, l.path); n > 1 {
			t.Errorf("%d processes that were killed have left their owner files", n)
		}
	}
	if n, state := l.payments(t), l.state(t, "k"); n != 0 || state != "free" {
		t.Errorf("%d payments, and the key is %s; want none, free", n, state)
	}
}

func TestWhoWaitsForAProcessThatIsKilledIsWoken(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	c := start(t, "tx holder", l.path, "false")
	c.line(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // the lease is a minute
	defer cancel()
	var waits sync.WaitGroup
	for range 3 {
		waits.Go(func() {
			if err := l.Wait(ctx, "k"); err != nil {
				t.Errorf("Wait: %v", err)
			}
		})
	}
	for n := 0; n < 3; time.Sleep(time.Millisecond) {
		l.waits.mu.Lock()
		if r := l.waits.rooms["k"]; r != nil && r.owner != 0 {
			n = r.n
		}
		l.waits.mu.Unlock()
	}
	short, over := context.WithTimeout(ctx, 3*askEvery)
	defer over()
	if err := l.Wait(short, "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait while the holder lives: got %v, want %v", err, context.DeadlineExceeded)
	}
	c.cmd.Process.Kill()
	waits.Wait()
}

func TestOwnerFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "once.db")
	expect := func(what string, want int) {
		t.Helper()
		if n := owners(t, path); n != want {
			t.Errorf("%s: %d owner files, want %d", what, n, want)
		}
	}
	claim := func(s oncehttp.Store, key string) {
		t.Helper()
		if _, err := s.Claim(t.Context(), newOp(key), time.Minute, day); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, path)
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	claim(s, "a")
	expect("claims without a transaction", 0)
	claim(s.Transactional(), "b")
	claim(s.Transactional(), "c")
	expect("transactional claims", 1)
	if info, err := os.Stat(s.ownerPath(s.id)); err != nil || info.Mode().Perm() != 0o660 || info.Size() != 0 {
		t.Errorf("the owner file: got %v, %v; want the file's permissions and no content", info, err)
	}
	if err := os.Remove(s.ownerPath(s.id)); err != nil { // by somebody who does not know it
		t.Fatal(err)
	}
	claim(s.Transactional(), "again")
	expect("a claim after the owner file was removed", 1)
	strangers := []string{path + ownerFile, path + ownerFile + "mine", path + "-journal-of-mine"}
	for _, name := range strangers {
		if err := os.WriteFile(name, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	other := open(t, path)
	claim(other.Transactional(), "d")
	expect("another store", 2+2)
	vanish(t, s)
	third := open(t, path)
	claim(third.Transactional(), "e")
	expect("a third one, when the first has vanished", 2+2)
	for _, s := range []*Store{other, third} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	expect("they were closed", 2)
	for _, name := range strangers {
		if b, err := os.ReadFile(name); err != nil || string(b) != "mine" {
			t.Errorf("%s, which is somebody's: got %q, %v", name, b, err)
		}
	}
}

func TestAnOwnerFileThatCannotBeMade(t *testing.T) {
	t.Parallel()
	s := tempStore(t)
	if err := os.Mkdir(s.ownerPath(s.id), 0o700); err != nil {
		t.Fatal(err)
	}
	op := newOp("k")
	if _, err := s.Transactional().Claim(t.Context(), op, time.Minute, day); !errors.Is(err, ErrCannotOpen) || !strings.Contains(err.Error(), s.ownerPath(s.id)) {
		t.Errorf("got error %v, want %v that names the file", err, ErrCannotOpen)
	}
	if _, err := s.Show(t.Context(), op.Key); !errors.Is(err, oncehttp.ErrNotFound) {
		t.Errorf("a claim that failed is there: %v", err)
	}
	if err := os.Remove(s.ownerPath(s.id)); err != nil {
		t.Fatal(err)
	}
	if c, err := s.Transactional().Claim(t.Context(), op, time.Minute, day); err != nil || c.Status != oncehttp.ClaimAcquired {
		t.Errorf("when it can be made again: got %v, %v", c.Status, err)
	}
}

// Whoever sweeps may come between the making of a file and its locking.
func TestStoresThatAppearTogetherAllLive(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "once.db")
	s := open(t, path)
	var children []*child
	for i := range 3 {
		children = append(children, start(t, "appears", path, strconv.Itoa(i)))
	}
	for _, c := range children {
		c.line(t)
	}
	for _, c := range children {
		c.in.Close()
	}
	for _, c := range children {
		c.rest(t)
	}
	s.sweepOwners()
	if n := owners(t, path); n != 0 {
		t.Errorf("%d owner files are left", n)
	}
}

func init() {
	children["tx holder"] = func(args []string) {
		s, err := Open(args[0])
		if err != nil {
			die(err)
		}
		op := newOp("k")
		c, err := s.Transactional().Claim(context.Background(), op, time.Minute, day)
		if err != nil {
			die(err)
		}
		fmt.Println(c.Status)
		if args[1] == "true" {
			s.Transactional().Transact(context.Background(), op, day, func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
				if _, err := Tx(ctx).Exec("INSERT INTO payments VALUES ('refund')"); err != nil {
					die(err)
				}
				fmt.Println("works")
				untilTold()
				return nil, nil, oncehttp.TxCommit
			})
		}
		untilTold()
	}

	// It dies again and again, and lives each time until it does.
	children["appears"] = func(args []string) {
		fmt.Println("ready")
		untilTold()
		for i := range 20 {
			s, err := Open(args[0])
			if err != nil {
				die(err)
			}
			if _, err := s.Transactional().Claim(context.Background(), newOp(args[1]+"."+strconv.Itoa(i)), time.Minute, day); err != nil {
				die(err)
			}
			for range 10 {
				if _, err := os.Stat(s.ownerPath(s.id)); errors.Is(err, fs.ErrNotExist) {
					die("its owner file was removed while it lives")
				}
				time.Sleep(time.Millisecond)
			}
			s.presence.lock.Close()
			if i%2 == 0 {
				s.Close()
			}
		}
	}
}
