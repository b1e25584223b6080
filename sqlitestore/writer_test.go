package sqlitestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// hold keeps the writer from beginning until the function it returns is called.
func hold(t testing.TB, s *Store) (release func()) {
	t.Helper()
	if err := s.turn.lock(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	return s.turn.unlock
}

// waiting waits until n calls wait for the writer.
func waiting(t testing.TB, s *Store, n int) {
	t.Helper()
	for range 1000 {
		s.queue.mu.Lock()
		got := 0
		for c := s.queue.first; c != nil; c = c.next {
			got++
		}
		s.queue.mu.Unlock()
		if got == n {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("there are not %d calls that wait", n)
}

func TestCallsThatWaitShareATransaction(t *testing.T) {
	s := tempStore(t)
	size := func() int64 {
		info, err := os.Stat(s.path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	const n = 50
	claims := func(prefix string, together bool) int64 {
		before := size()
		release := func() {}
		if together {
			release = hold(t, s)
		}
		var wg sync.WaitGroup
		for i := range n {
			op := newOp(fmt.Sprint(prefix, i))
			if !together {
				if _, err := s.Claim(t.Context(), op, day, day); err != nil {
					t.Fatal(err)
				}
				continue
			}
			wg.Go(func() {
				if c, err := s.Claim(t.Context(), op, day, day); err != nil || c.Status != oncehttp.ClaimAcquired {
					t.Errorf("%v, %v", c.Status, err)
				}
			})
		}
		if together {
			waiting(t, s, n)
		}
		release()
		wg.Wait()
		return size() - before
	}
	// Every transaction writes the pages that it changes, whole.
	apart, together := claims("a", false), claims("b", true)
	if apart < 10*together {
		t.Errorf("%d claims one after another wrote %d bytes, and at the same time %d: they did not share a transaction", n, apart, together)
	}
}

func TestACallThatFailsDoesNotFailThoseBesideIt(t *testing.T) {
	s := tempStore(t)
	release := hold(t, s)
	var wg sync.WaitGroup
	broken := errors.New("broken")
	var ran atomic.Int32
	for i := range 20 {
		wg.Go(func() {
			if i%5 == 2 {
				err := s.submit(t.Context(), &call{what: "fail", do: func(w *writer, c *call) error {
					ran.Add(1)
					if _, err := w.insert(&call{op: newOp("never"), lease: 1e9, keep: 1e9}); err != nil {
						return err
					}
					return broken
				}})
				if !errors.Is(err, broken) {
					t.Errorf("a call that fails: got error %v", err)
				}
				return
			}
			op := newOp(fmt.Sprint("key ", i))
			if c, err := s.Claim(t.Context(), op, day, day); err != nil || c.Status != oncehttp.ClaimAcquired {
				t.Errorf("a claim beside one that fails: %v, %v", c.Status, err)
			}
		})
	}
	waiting(t, s, 20)
	release()
	wg.Wait()
	if ran.Load() < 5 {
		t.Errorf("the calls that fail ran %d times: they were not in one transaction with others", ran.Load())
	}
	list, err := s.List(t.Context(), oncehttp.RecordQuery{})
	if err != nil || len(list) != 16 {
		t.Errorf("got %d records, %v; want the 16 of those that did not fail", len(list), err)
	}
}

func TestACallWhoseContextEndsBeforeItsTurnIsNeverDone(t *testing.T) {
	s := tempStore(t)
	release := hold(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := s.Claim(ctx, newOp("k"), day, day)
		failed <- err
	}()
	waiting(t, s, 1)
	cancel()
	err := <-failed
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "transactional handler") {
		t.Errorf("got error %v", err)
	}
	release()
	if _, err := s.Show(t.Context(), "k"); !errors.Is(err, oncehttp.ErrNotFound) {
		t.Errorf("Show: got error %v, want ErrNotFound", err)
	}
	if c, err := s.Claim(t.Context(), newOp("k"), day, day); err != nil || c.Status != oncehttp.ClaimAcquired {
		t.Errorf("Claim by another: got %v, %v", c.Status, err)
	}
}

func TestBytesAreCopiedBeforeACallReturns(t *testing.T) {
	s := tempStore(t)
	op := newOp("k")
	if _, err := s.Claim(t.Context(), op, day, day); err != nil {
		t.Fatal(err)
	}
	release := hold(t, s)
	head, body := []byte("head"), []byte("body")
	done := make(chan error)
	go func() { done <- s.Complete(t.Context(), op, head, body, day) }()
	waiting(t, s, 1)
	copy(head, "XXXX") // a caller whose context had ended could do that
	copy(body, "XXXX")
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if r, err := s.Show(t.Context(), "k"); err != nil || string(r.Head) != "head" || string(r.Body) != "body" {
		t.Errorf("got %q and %q, %v", r.Head, r.Body, err)
	}
}

func TestCloseDrains(t *testing.T) {
	path := filepath.Join(t.TempDir(), "once.db")
	before := runtime.NumGoroutine()
	s := open(t, path)
	held := newOp("held")
	if _, err := s.Claim(t.Context(), held, day, day); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() { waits <- s.Wait(t.Context(), "held") }()
	for s.waits.size() == 0 {
		time.Sleep(time.Millisecond)
	}
	release := hold(t, s)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, err := s.Claim(t.Context(), newOp(fmt.Sprint("key ", i)), day, day); err != nil {
				t.Errorf("a claim that waits while the store is closed: %v", err)
			}
		})
	}
	waiting(t, s, 20)
	closed := make(chan error, 2)
	go func() { closed <- s.Close() }()
	go func() { closed <- s.Close() }()
	if err := <-waits; !errors.Is(err, ErrClosed) {
		t.Errorf("Wait on a store that is closed: got error %v, want %v", err, ErrClosed)
	}
	if err := s.Complete(t.Context(), held, nil, nil, day); !errors.Is(err, ErrClosed) {
		t.Errorf("Complete on a store that is being closed: got error %v, want %v", err, ErrClosed)
	}
	select {
	case <-closed:
		t.Error("Close returned before what was asked for was done")
	default:
	}
	release()
	wg.Wait()
	for range 2 {
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
	for what, err := range map[string]error{
		"Claim":   second(s.Claim(t.Context(), newOp("x"), day, day)),
		"Renew":   s.Renew(t.Context(), held, day),
		"Release": s.Release(t.Context(), held),
		"Show":    second(s.Show(t.Context(), "x")),
		"List":    second(s.List(t.Context(), oncehttp.RecordQuery{})),
		"Sweep":   second(s.Sweep(t.Context(), 0)),
		"Wait":    s.Wait(t.Context(), "held"),
		"Close":   s.Close(),
		"Transact": s.Transactional().Transact(t.Context(), held, day, func(context.Context) (head, body []byte, end oncehttp.TxEnd) {
			return nil, nil, oncehttp.TxRollback
		}),
	} {
		if want := ErrClosed; what == "Close" && err != nil || what != "Close" && !errors.Is(err, want) {
			t.Errorf("%s on a closed store: got error %v", what, err)
		}
	}

	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("a closed store leaves %d files, %v; want one", len(files), err)
	}
	for i := 0; runtime.NumGoroutine() > before; i++ {
		if i == 1000 {
			stack := make([]byte, 1<<16)
			t.Fatalf("goroutines are left:\n%s", stack[:runtime.Stack(stack, true)])
		}
		time.Sleep(time.Millisecond)
	}
	s = open(t, path)
	if list, err := s.List(t.Context(), oncehttp.RecordQuery{}); err != nil || len(list) != 21 {
		t.Errorf("got %d records, %v; want 21", len(list), err)
	}
}

func second[T any](_ T, err error) error { return err }

func (w *waits) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.rooms)
}

// Eight who claim, renew, complete, release, take over and look, on a few keys: no
// two of them hold one at the same time, and whoever completed it is believed.
func TestEightWritersNeverHoldOneKeyTogether(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "once.db")
	stores := []*Store{open(t, path), open(t, path)} // as two processes have it open
	var holders [5]atomic.Int32
	var answers [5]sync.Map // the tokens that completed it
	until := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	var acquired, waited atomic.Int32
	for i := range 8 {
		s := stores[i%2]
		r := rand.New(rand.NewPCG(uint64(i), 1))
		wg.Go(func() {
			for time.Now().Before(until) {
				k := r.IntN(len(holders))
				op := newOp(fmt.Sprint("key ", k))
				c, err := s.Claim(context.Background(), op, time.Minute, time.Hour)
				switch {
				case err != nil:
					t.Errorf("Claim: %v", err)
					return
				case c.Status == oncehttp.ClaimDone:
					// Which of them it is may have changed since: it can be purged.
					if _, ok := answers[k].Load(string(c.Head)); !ok {
						t.Errorf("key %d is done with the head %q, which nobody has given it", k, c.Head)
					}
					if r.IntN(4) == 0 {
						s.Purge(context.Background(), op.Key)
					}
					continue
				case c.Status == oncehttp.ClaimRunning:
					waited.Add(1)
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
					s.Wait(ctx, op.Key)
					cancel()
					continue
				case c.Status == oncehttp.ClaimOrphaned:
					c, err = s.TakeOver(context.Background(), op, time.Minute, time.Hour)
					if err != nil {
						t.Errorf("TakeOver: %v", err)
						return
					}
					if c.Status != oncehttp.ClaimAcquired {
						continue
					}
				}
				acquired.Add(1)
				if n := holders[k].Add(1); n != 1 {
					t.Errorf("key %d has %d holders", k, n)
				}
				if err := s.Renew(context.Background(), op, time.Minute); err != nil {
					t.Errorf("Renew by the holder: %v", err)
				}
				switch r.IntN(3) {
				case 0:
					holders[k].Add(-1)
					err = s.Release(context.Background(), op)
				case 1:
					holders[k].Add(-1)
					err = s.Renew(context.Background(), op, 0)
				case 2:
					answers[k].Store(op.Token, true)
					holders[k].Add(-1)
					err = s.Complete(context.Background(), op, []byte(op.Token), nil, time.Hour)
				}
				if err != nil {
					t.Errorf("the end of a claim, by its holder: %v", err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d claims acquired, %d that met another's", acquired.Load(), waited.Load())
	if acquired.Load() < 20 || waited.Load() < 5 {
		t.Error("too few to mean anything")
	}
}

func TestExpiredRecordsGoByThemselves(t *testing.T) {
	t.Parallel()
	s := tempStore(t)
	const n = 120
	for i := range n {
		op := newOp(fmt.Sprint("key ", i))
		if _, err := s.Claim(t.Context(), op, time.Millisecond, time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			s.Complete(t.Context(), op, []byte("200"), bytes.Repeat([]byte("b"), 5000), time.Millisecond)
		}
	}
	for i := 0; count(t, s) > 0; i++ {
		if i == 1000 {
			t.Fatalf("%d expired records are still there", count(t, s))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func count(t testing.TB, s *Store) (n int) {
	t.Helper()
	if err := s.db.QueryRow("SELECT count(*) FROM oncehttp_records").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSweepForgetsNoMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	s := tempStore(t, WithoutSweep())
	live := newOp("live")
	if _, err := s.Claim(t.Context(), live, day, day); err != nil {
		t.Fatal(err)
	}
	for i := range 250 {
		if _, err := s.Claim(t.Context(), newOp(fmt.Sprint("key ", i)), time.Millisecond, time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(5 * time.Millisecond)
	for _, c := range []struct{ limit, want int }{{30, 30}, {120, 120}, {0, 100}, {0, 0}} {
		if got, err := s.Sweep(t.Context(), c.limit); got != c.want || err != nil {
			t.Errorf("Sweep with a limit of %d: got %d, %v; want %d", c.limit, got, err, c.want)
		}
	}
	if n := count(t, s); n != 1 {
		t.Errorf("%d records are left, want the one that has not expired", n)
	}
	if _, err := s.Sweep(t.Context(), -1); err == nil {
		t.Error("Sweep with a negative limit: got no error")
	}
}

// One row after another that has expired must not keep a claim waiting for all of
// them.
func TestASweepIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	s := tempStore(t, WithoutSweep())
	body := bytes.Repeat([]byte("b"), 1<<20)
	for i := range 12 {
		op := newOp(fmt.Sprint("key ", i))
		if _, err := s.Claim(t.Context(), op, time.Millisecond, time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := s.Complete(t.Context(), op, nil, body, time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(5 * time.Millisecond)
	c := &call{what: "sweep", do: doSweep, limit: sweepMost}
	if err := s.submit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if c.swept < 1 || c.swept > 6 {
		t.Errorf("%d records of 1 MiB were swept in one transaction, want about 4", c.swept)
	}
	if got, err := s.Sweep(t.Context(), 0); got != 12-c.swept || err != nil {
		t.Errorf("Sweep: got %d, %v; want the other %d", got, err, 12-c.swept)
	}
}

// What traffic asks for must not depend on how much there is in the file.
func TestEveryStatementFindsItsRowsByAnIndex(t *testing.T) {
	s := tempStore(t)
	for name, stmt := range map[string]string{
		"load": sqlLoad, "load state": sqlLoadState, "insert": sqlInsert, "hold": sqlHold, "renew": sqlRenew,
		"complete": sqlComplete, "release": sqlRelease, "resolve": sqlResolve, "remove": sqlRemove,
		"expired": sqlExpired, "due": sqlDue, "verify": sqlVerify, "record": sqlRecord, "state": sqlState,
		"list": sqlListAll, "list claimed": sqlListClaimed,
	} {
		n := 0
		for i := 1; strings.Contains(stmt, fmt.Sprint("?", i)); i++ {
			n = i
		}
		rows, err := s.db.Query("EXPLAIN QUERY PLAN "+stmt, make([]any, n)...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for rows.Next() {
			var id, parent, x int
			var detail string
			if err := rows.Scan(&id, &parent, &x, &detail); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(detail, "SCAN") || strings.Contains(detail, "TEMP") && name != "list claimed" {
				t.Errorf("%s: %s", name, detail)
			}
		}
		rows.Close()
	}
}

func TestWaitIsWokenByAnotherStoreOnTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "once.db")
	a, b := open(t, path), open(t, path)
	for i := range 5 {
		op := newOp(fmt.Sprint("key ", i))
		if _, err := a.Claim(t.Context(), op, time.Minute, day); err != nil {
			t.Fatal(err)
		}
		woken := make(chan error)
		go func() { woken <- b.Wait(t.Context(), op.Key) }()
		for b.waits.size() == 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(i) * 20 * time.Millisecond)
		select {
		case err := <-woken:
			t.Fatalf("Wait returned before anything changed: %v", err)
		default:
		}
		if err := a.Complete(t.Context(), op, nil, nil, day); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-woken:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("Wait was not woken by what another store did")
		}
	}
}

func TestWhoWaitsIsWokenBeforeTheChangeIsAnswered(t *testing.T) {
	s := tempStore(t)
	op := newOp("k")
	if _, err := s.Claim(t.Context(), op, time.Minute, day); err != nil {
		t.Fatal(err)
	}
	room := s.waits.join("k")
	defer s.waits.leave("k", room)
	if err := s.Complete(t.Context(), op, nil, nil, day); err != nil {
		t.Fatal(err)
	}
	select {
	case <-room.changed:
	default:
		t.Error("Complete has returned, and who waits was not woken")
	}
}

func TestDurationsAreRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, 999: 1, 1000: 1, 1001: 2, math.MaxInt64: math.MaxInt64/1000 + 1} {
		if got := micros(d); got != want {
			t.Errorf("%v is %d microseconds, want %d", d, got, want)
		}
	}
	if got := duration(micros(math.MaxInt64) + 1); got != math.MaxInt64 {
		t.Errorf("a time longer than a Duration can express is %v", got)
	}
}

// A change that came after somebody looked at the key, and before the store had
// anything to look after, must not be taken for old.
func TestWaitSeesWhatChangedJustBeforeItBegan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "once.db")
	a, b := open(t, path), open(t, path)
	busy, op := newOp("busy"), newOp("k")
	for _, op := range []oncehttp.Op{busy, op} {
		if _, err := a.Claim(t.Context(), op, time.Minute, day); err != nil {
			t.Fatal(err)
		}
	}
	go b.Wait(t.Context(), busy.Key) // so that b looks at the file all the time
	room := b.waits.join(op.Key)
	row, _, err := b.read(t.Context(), op.Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Complete(t.Context(), op, nil, nil, day); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * lookEvery) // it has seen that something changed
	b.waits.watch(room, &row)
	defer b.waits.leave(op.Key, room)
	select {
	case <-room.changed:
	case <-time.After(30 * time.Second):
		t.Error("whoever waits is not woken by what has happened already")
	}
}

func TestWaitReturnsWhenTheLeaseLapses(t *testing.T) {
	s := tempStore(t)
	if _, err := s.Claim(t.Context(), newOp("k"), 50*time.Millisecond, day); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.Wait(ctx, "k"); err != nil {
		t.Error(err)
	}
	if c, err := s.Claim(t.Context(), newOp("k"), day, day); err != nil || c.Status != oncehttp.ClaimOrphaned {
		t.Errorf("after Wait: got %v, %v", c.Status, err)
	}
}

func TestLeasesOutliveAClockThatIsSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "once.db")
	a, b := open(t, path), open(t, path)
	op := newOp("k")
	if _, err := a.Claim(t.Context(), op, time.Minute, day); err != nil {
		t.Fatal(err)
	}
	const set = time.Hour
	for round := range 2 {
		for _, s := range []*Store{a, b} {
			s.clock.shift.Add(set.Microseconds())
		}
		for i, s := range []*Store{a, b} {
			for _, when := range []string{"before", "after"} {
				c, err := s.Claim(t.Context(), newOp("k"), time.Minute, day)
				if err != nil || c.Status != oncehttp.ClaimRunning || c.Left > time.Minute {
					t.Fatalf("set %d times, store %d, %s it has written: got %v with %v left, %v; want running", round+1, i, when, c.Status, c.Left, err)
				}
				if when == "after" {
					break
				}
				if _, err := s.Claim(t.Context(), newOp(fmt.Sprint(round, i)), time.Minute, day); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	a.Close()
	b.Close()
	later := open(t, path)
	later.clock.shift.Add(2 * set.Microseconds())
	if c, err := later.Claim(t.Context(), newOp("k"), time.Minute, day); err != nil || c.Status != oncehttp.ClaimRunning || c.Left > time.Minute {
		t.Errorf("a store opened later: got %v with %v left, %v; want running", c.Status, c.Left, err)
	}
}

// Claims that come while others are written share their transaction, not their time.
func TestALeaseBeginsAfterItWasAskedFor(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "once.db"))
	begun, goOn := make(chan struct{}), make(chan struct{})
	slow := make(chan error, 1)
	go func() {
		slow <- s.write(context.Background(), &call{what: "wait", do: func(*writer, *call) error {
			close(begun)
			<-goOn
			return nil
		}})
	}()
	<-begun
	time.Sleep(10 * time.Millisecond)
	asked := s.clock.now()
	claimed := make(chan error, 1)
	go func() {
		_, err := s.Claim(context.Background(), newOp("k"), time.Minute, day)
		claimed <- err
	}()
	waiting(t, s, 1)
	close(goOn)
	if err := errors.Join(<-slow, <-claimed); err != nil {
		t.Fatal(err)
	}
	r, found, err := s.read(t.Context(), "k")
	if err != nil || !found || r.lapses < asked+time.Minute.Microseconds() {
		t.Errorf("the lease ends %v early: found %v, error %v", duration(asked+time.Minute.Microseconds()-r.lapses), found, err)
	}
}
