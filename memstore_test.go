package oncehttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Package storetest holds MemoryStore against the contract. Here is what it
// promises beyond that.

var memCtx = context.Background()

func memOp(n int) Op { return Op{Key: fmt.Sprintf("%064d", n), Token: fmt.Sprintf("%032d", n)} }

// memDone makes a done record.
func memDone(t testing.TB, s *MemoryStore, n int, head, body string, keep time.Duration) {
	t.Helper()
	memClaim(t, s, n, time.Minute, keep)
	if err := s.Complete(memCtx, memOp(n), []byte(head), []byte(body), keep); err != nil {
		t.Fatalf("Complete: %v", err)
	}
}

func memClaim(t testing.TB, s *MemoryStore, n int, lease, keep time.Duration) {
	t.Helper()
	c, err := s.Claim(memCtx, memOp(n), lease, keep)
	if err != nil || c.Status != ClaimAcquired {
		t.Fatalf("Claim: got %v, %v, want acquired", c.Status, err)
	}
}

// memSees says what a stranger sees of a record.
func memSees(s *MemoryStore, n int) string {
	r, err := s.Show(memCtx, memOp(n).Key)
	switch {
	case errors.Is(err, ErrNotFound):
		return "free"
	case err != nil:
		return err.Error()
	case r.BodyDropped:
		return fmt.Sprintf("%v %s dropped", r.Status, r.Head)
	case r.Status == ClaimDone:
		return fmt.Sprintf("%v %s %s", r.Status, r.Head, r.Body)
	}
	return r.Status.String()
}

func TestMemoryStoreFullOfProtectedRecordsRefusesNewKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &MemoryStore{MaxRecords: 3, Logger: slog.New(slog.DiscardHandler)}
		memClaim(t, s, 0, time.Hour, time.Hour)          // runs
		memClaim(t, s, 1, time.Second, time.Hour)        // will be orphaned
		memDone(t, s, 2, "head", "body", 30*time.Minute) // done
		time.Sleep(29 * time.Minute)
		for _, take := range []func(context.Context, Op, time.Duration, time.Duration) (Claim, error){s.Claim, s.TakeOver} {
			if c, err := take(memCtx, memOp(9), time.Hour, time.Hour); err != ErrFull {
				t.Errorf("a new key: got %v, %v, want ErrFull", c.Status, err)
			}
		}

		// Those who have a place are not disturbed.
		if c, err := s.Claim(memCtx, memOp(0), time.Hour, time.Hour); err != nil || c.Status != ClaimAcquired {
			t.Errorf("repeated Claim: got %v, %v, want acquired", c.Status, err)
		}
		if err := s.Renew(memCtx, memOp(0), time.Hour); err != nil {
			t.Errorf("Renew: got %v, want nil", err)
		}
		if err := s.Complete(memCtx, memOp(0), []byte("head"), []byte("body"), time.Hour); err != nil {
			t.Errorf("Complete: got %v, want nil", err)
		}
		if got, want := memSees(s, 1), "orphaned"; got != want {
			t.Errorf("got %v, want %v", got, want)
		}
		if got, want := memSees(s, 2), "done head body"; got != want {
			t.Errorf("got %v, want %v", got, want)
		}

		time.Sleep(time.Minute) // record 2 expires
		memClaim(t, s, 9, time.Hour, time.Hour)
		if c, err := s.Claim(memCtx, memOp(10), time.Hour, time.Hour); err != ErrFull {
			t.Errorf("one new key too many: got %v, %v, want ErrFull", c.Status, err)
		}
		if err := s.Release(memCtx, memOp(9)); err != nil {
			t.Fatal(err)
		}
		memClaim(t, s, 10, time.Hour, time.Hour)
	})
}

func TestMemoryStoreMakesRoomInOrder(t *testing.T) {
	body := strings.Repeat("b", 10)
	for _, row := range []struct {
		name  string
		store *MemoryStore
		fill  func(t *testing.T, s *MemoryStore)
		want  []string // of records 0, 1, 2 …
	}{
		{"while there is room nothing goes", &MemoryStore{MaxBytes: 100}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "h", body, time.Hour)
			time.Sleep(11 * time.Minute)
			memDone(t, s, 1, "h", body, time.Hour)
		}, []string{"done h " + body, "done h " + body}},

		{"expired records go before bodies", &MemoryStore{MaxBytes: 25}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "h", body, time.Hour)
			memDone(t, s, 1, "h", body, 12*time.Minute)
			time.Sleep(12 * time.Minute)
			memDone(t, s, 2, "h", body, time.Hour)
		}, []string{"done h " + body, "free", "done h " + body}},

		{"all that has expired goes for a body, however much that is", &MemoryStore{MaxBytes: 1011}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "h", body, time.Hour)
			for n := range 100 {
				memDone(t, s, n+10, "", body, 9*time.Minute)
			}
			time.Sleep(9 * time.Minute)
			memDone(t, s, 1, "h", strings.Repeat("b", 999), time.Hour)
		}, []string{"done h " + body, "done h " + strings.Repeat("b", 999)}},

		{"all that has expired goes before a body, however little that helps", &MemoryStore{MaxBytes: 21}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "h", body, time.Hour)
			for n := range 100 {
				memDone(t, s, n+10, "", "", 12*time.Minute)
			}
			memDone(t, s, 1, "", body, 12*time.Minute)
			time.Sleep(12 * time.Minute)
			memClaim(t, s, 2, time.Hour, time.Hour)
		}, []string{"done h " + body, "free", "running"}},

		{"the oldest completed bodies go first, and no more than needed", &MemoryStore{MaxBytes: 40}, func(t *testing.T, s *MemoryStore) {
			memClaim(t, s, 0, time.Hour, time.Hour) // claimed first, completed last
			memDone(t, s, 1, "h", body, time.Hour)
			memDone(t, s, 2, "h", body, time.Hour)
			if err := s.Complete(memCtx, memOp(0), []byte("h"), []byte(body), time.Hour); err != nil {
				t.Fatal(err)
			}
			time.Sleep(11 * time.Minute)
			memDone(t, s, 3, "h", body, time.Hour)
		}, []string{"done h " + body, "done h dropped", "done h " + body, "done h " + body}},

		{"a body completed less than ten minutes ago stays, and the new one is not kept", &MemoryStore{MaxBytes: 25}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "h", body, time.Hour)
			time.Sleep(9 * time.Minute)
			memDone(t, s, 1, "h", body, time.Hour)
			memDone(t, s, 2, "h", body, time.Hour)
		}, []string{"done h " + body, "done h " + body, "done h dropped"}},

		{"a body larger than everything costs no other its place", &MemoryStore{MaxBytes: 25}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "h", body, time.Hour)
			time.Sleep(11 * time.Minute)
			memDone(t, s, 1, "h", strings.Repeat(body, 10), time.Hour)
		}, []string{"done h " + body, "done h dropped"}},

		{"a body that would not fit if all that may go went costs no other its place", &MemoryStore{MaxBytes: 30}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "h", body, time.Hour)
			time.Sleep(11 * time.Minute)
			memDone(t, s, 1, "h", body, time.Hour)
			memDone(t, s, 2, "h", body+body, time.Hour)
		}, []string{"done h " + body, "done h " + body, "done h dropped"}},

		{"an empty body is not a dropped one", &MemoryStore{MaxBytes: 3}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "hhh", "", time.Hour)
		}, []string{"done hhh "}},

		{"a head is kept though there is no room", &MemoryStore{MaxBytes: 3}, func(t *testing.T, s *MemoryStore) {
			memClaim(t, s, 1, time.Hour, time.Hour)
			memDone(t, s, 0, "hhh", body, time.Hour)
			if err := s.Complete(memCtx, memOp(1), []byte("head"), []byte(body), time.Hour); err != nil {
				t.Fatal(err)
			}
		}, []string{"done hhh dropped", "done head dropped"}},

		{"without DropAfter a record never goes", &MemoryStore{MaxRecords: 2}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "h", body, 100*time.Hour)
			memDone(t, s, 1, "h", body, 100*time.Hour)
			time.Sleep(99 * time.Hour)
			if c, err := s.Claim(memCtx, memOp(2), time.Hour, time.Hour); err != ErrFull {
				t.Errorf("a new key: got %v, %v, want ErrFull", c.Status, err)
			}
		}, []string{"done h " + body, "done h " + body, "free"}},

		{"with DropAfter the oldest completed record goes, once it is that old", &MemoryStore{MaxRecords: 3, DropAfter: time.Hour}, func(t *testing.T, s *MemoryStore) {
			memClaim(t, s, 0, 3*time.Hour, 100*time.Hour)
			memDone(t, s, 1, "h", body, 100*time.Hour)
			time.Sleep(time.Minute)
			memDone(t, s, 2, "h", body, 100*time.Hour)
			time.Sleep(58 * time.Minute)
			if c, err := s.Claim(memCtx, memOp(3), time.Hour, time.Hour); err != ErrFull {
				t.Errorf("a new key before DropAfter: got %v, %v, want ErrFull", c.Status, err)
			}
			time.Sleep(time.Minute)
			memClaim(t, s, 3, time.Hour, time.Hour)
		}, []string{"running", "free", "done h " + body, "running"}},

		{"a DropAfter of less than ten minutes does not touch fresh records", &MemoryStore{MaxRecords: 1, DropAfter: time.Second}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "h", body, time.Hour)
			time.Sleep(9 * time.Minute)
			if c, err := s.Claim(memCtx, memOp(1), time.Hour, time.Hour); err != ErrFull {
				t.Errorf("a new key: got %v, %v, want ErrFull", c.Status, err)
			}
		}, []string{"done h " + body, "free"}},

		{"heads go for want of bytes too, after all bodies", &MemoryStore{MaxBytes: 30, DropAfter: time.Hour}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "hhhhh", "", 100*time.Hour)
			memDone(t, s, 1, "hhhhh", body, 100*time.Hour)
			time.Sleep(time.Hour)
			memDone(t, s, 2, "hhhhh", body+body, 100*time.Hour)
		}, []string{"free", "done hhhhh dropped", "done hhhhh " + body + body}},

		{"orphans stay", &MemoryStore{MaxRecords: 1, DropAfter: time.Hour}, func(t *testing.T, s *MemoryStore) {
			memClaim(t, s, 0, time.Second, 100*time.Hour)
			time.Sleep(99 * time.Hour)
			if c, err := s.Claim(memCtx, memOp(1), time.Hour, time.Hour); err != ErrFull {
				t.Errorf("a new key: got %v, %v, want ErrFull", c.Status, err)
			}
		}, []string{"orphaned", "free"}},

		{"a new key needs room for an average answer", &MemoryStore{MaxBytes: 6400}, func(t *testing.T, s *MemoryStore) {
			for n := range 63 {
				memDone(t, s, n+10, "", strings.Repeat("b", 99), time.Hour)
			}
			memDone(t, s, 0, strings.Repeat("h", 90), "", time.Hour) // 73 bytes are left, 98 wanted
			if c, err := s.Claim(memCtx, memOp(1), time.Hour, time.Hour); err != ErrFull {
				t.Errorf("a new key: got %v, %v, want ErrFull", c.Status, err)
			}
			time.Sleep(10 * time.Minute)
			memClaim(t, s, 2, time.Hour, time.Hour)
			if got, want := memSees(s, 10), "done  dropped"; got != want {
				t.Errorf("the oldest body: got %q, want %q", got, want)
			}
		}, []string{"done " + strings.Repeat("h", 90) + " ", "free", "running"}},

		{"one huge answer does not turn away everyone after it", &MemoryStore{MaxBytes: 6400}, func(t *testing.T, s *MemoryStore) {
			memDone(t, s, 0, "h", strings.Repeat("b", 6000), time.Hour)
			memDone(t, s, 1, "h", body, time.Hour)
		}, []string{"done h " + strings.Repeat("b", 6000), "done h " + body}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := row.store
				s.Logger = slog.New(slog.DiscardHandler)
				row.fill(t, s)
				for n, want := range row.want {
					if got := memSees(s, n); got != want {
						t.Errorf("record %d: got %q, want %q", n, got, want)
					}
				}
				memCheck(t, s)
			})
		})
	}
}

func TestMemoryStoreGivesABodyBackToNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &MemoryStore{MaxBytes: 10, Logger: slog.New(slog.DiscardHandler)}
		memDone(t, s, 0, "head", "body", time.Hour)
		c, err := s.Claim(memCtx, memOp(0), time.Hour, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		_ = append(c.Head, "XXXX"...)
		_ = append(c.Body, "XXXX"...)
		time.Sleep(11 * time.Minute)
		memDone(t, s, 1, "h", "12345", time.Hour) // drops the body
		if got, want := string(c.Head)+string(c.Body), "headbody"; got != want {
			t.Errorf("what was returned before the body was dropped: got %q, want %q", got, want)
		}
		if got, want := memSees(s, 0), "done head dropped"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if c, err := s.Claim(memCtx, memOp(0), time.Hour, time.Hour); err != nil || !c.BodyDropped || c.Body != nil {
			t.Errorf("Claim after the body was dropped: got BodyDropped %v, Body %q, %v", c.BodyDropped, c.Body, err)
		}
		if err := s.Complete(memCtx, memOp(0), []byte("head"), []byte("body"), time.Hour); err != nil {
			t.Errorf("Complete repeated after the body was dropped: got %v, want nil", err)
		}
	})
}

func TestMemoryStoreWarnsOnceWhenItIsNearlyFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &MemoryStore{MaxRecords: 100, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		n := 0
		add := func(count int) {
			for range count {
				memClaim(t, s, n, time.Minute, time.Hour)
				n++
				time.Sleep(500 * time.Millisecond) // 2 keys a second
			}
		}
		add(79)
		if log.Len() > 0 {
			t.Errorf("at 79 %%: got %s, want nothing", &log)
		}
		add(21)
		if got := strings.Count(log.String(), "level=WARN"); got != 1 {
			t.Errorf("at 100 %%: got %d warnings, want 1:\n%s", got, &log)
		}
		for _, want := range []string{"80 % full", "MaxRecords", "records=80", "max_records=100", "new_keys_per_second=2", "keep=1h0m0s", "records_needed=7", "bytes_needed="} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("got %s, want %q in it", &log, want)
			}
		}
		for i := n - 25; i < n; i++ {
			s.Release(memCtx, memOp(i))
		}
		add(20)
		if got := strings.Count(log.String(), "level=WARN"); got != 1 {
			t.Errorf("at 75 and again at 95 %%: got %d warnings, want 1:\n%s", got, &log)
		}
		time.Sleep(2 * time.Hour)
		add(90)
		if got := strings.Count(log.String(), "level=WARN"); got != 2 {
			t.Errorf("after it was empty, and at 90 %% again: got %d warnings, want 2:\n%s", got, &log)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &MemoryStore{MaxBytes: 100, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		memDone(t, s, 0, "", strings.Repeat("b", 80), time.Hour)
		memClaim(t, s, 1, time.Minute, time.Hour)
		memClaim(t, s, 2, time.Minute, time.Hour)
		if got := strings.Count(log.String(), "bytes=80 max_bytes=100"); got != 1 {
			t.Errorf("at 80 %% of the bytes: got %d warnings, want 1:\n%s", got, &log)
		}
	})
}

// A Logger may use the store: it is not called under the lock.
func TestMemoryStoreWarnsWithoutHoldingItsLock(t *testing.T) {
	s := &MemoryStore{MaxRecords: 1}
	s.Logger = slog.New(memLooks{slog.DiscardHandler, func() { s.Show(memCtx, "key") }})
	memClaim(t, s, 0, time.Hour, time.Hour)
}

type memLooks struct {
	slog.Handler
	look func()
}

func (l memLooks) Enabled(context.Context, slog.Level) bool { l.look(); return true }

func TestMemoryStoreNamesTheFieldThatMakesNoSense(t *testing.T) {
	for _, row := range []struct {
		store *MemoryStore
		want  string
	}{
		{&MemoryStore{MaxRecords: -1}, "MaxRecords"},
		{&MemoryStore{MaxBytes: -1}, "MaxBytes"},
		{&MemoryStore{DropAfter: -1}, "DropAfter"},
	} {
		_, err := row.store.Claim(memCtx, memOp(0), time.Hour, time.Hour)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("got %v, want an error that names %s", err, row.want)
		}
	}
}

func TestMemoryStoreWaitersLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(MemoryStore)
		memClaim(t, s, 0, 10*time.Second, time.Hour)

		// Those who give up.
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := s.Wait(ctx, memOp(0).Key); err != context.Canceled {
					t.Errorf("Wait: got %v, want %v", err, context.Canceled)
				}
			})
		}
		synctest.Wait()
		if got := len(s.waiting); got != 1 {
			t.Errorf("ten wait for one key: got %d entries, want 1", got)
		}
		cancel()
		wg.Wait()
		if got := len(s.waiting); got != 0 {
			t.Errorf("nobody waits: got %d entries, want 0", got)
		}

		// Those who wait for a lease that is renewed twice and then lapses.
		began := time.Now()
		wg.Go(func() {
			if err := s.Wait(t.Context(), memOp(0).Key); err != nil {
				t.Errorf("Wait: got %v, want nil", err)
			}
			if got, want := time.Since(began), 22*time.Second; got != want {
				t.Errorf("Wait ended after %v, want %v, when the lease lapsed", got, want)
			}
		})
		for range 2 {
			time.Sleep(6 * time.Second)
			if err := s.Renew(memCtx, memOp(0), 10*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
		if got := len(s.waiting); got != 0 {
			t.Errorf("nobody waits: got %d entries, want 0", got)
		}

		// Those who wait when the record is made an orphan, is purged or expires.
		for name, end := range map[string]func(){
			"Renew with a lease of 0": func() { s.Renew(memCtx, memOp(1), 0) },
			"Complete":                func() { s.Complete(memCtx, memOp(1), nil, nil, time.Hour) },
			"Release":                 func() { s.Release(memCtx, memOp(1)) },
			"expiry":                  func() { time.Sleep(2 * time.Hour) },
		} {
			memClaim(t, s, 1, time.Hour, time.Hour)
			began := time.Now()
			wg.Go(func() {
				if err := s.Wait(t.Context(), memOp(1).Key); err != nil {
					t.Errorf("Wait, ended by %s: got %v, want nil", name, err)
				}
				if took := time.Since(began); took > 0 && name != "expiry" || took > time.Hour {
					t.Errorf("Wait, ended by %s: took %v", name, took)
				}
			})
			synctest.Wait()
			end()
			wg.Wait()
			s.Purge(memCtx, memOp(1).Key)
			memCheck(t, s)
		}

		// Nobody waits for a key that is not running.
		memDone(t, s, 2, "head", "body", time.Hour)
		began = time.Now()
		for _, key := range []string{"free", memOp(0).Key, memOp(2).Key} {
			if err := s.Wait(t.Context(), key); err != nil || time.Since(began) > 0 {
				t.Errorf("Wait for a key that is not running: got %v after %v, want nil at once", err, time.Since(began))
			}
		}

		// Nor does anyone stumble when all records go at the same moment.
		for n := range 10 * memSweep {
			memClaim(t, s, 10+n, 24*time.Hour, 24*time.Hour)
		}
		for range 10 {
			wg.Go(func() {
				if err := s.Wait(t.Context(), memOp(20).Key); err != nil {
					t.Errorf("Wait: got %v, want nil", err)
				}
			})
		}
		wg.Wait()
		memCheck(t, s)
	})
}

// A record has expired when its time has come, not when something has swept it.
func TestMemoryStoreDoesNotShowWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(MemoryStore)
		memClaim(t, s, 0, time.Hour, 100*time.Hour)
		for n := range 10 * memSweep {
			memDone(t, s, 1+n, "head", "body", time.Hour)
		}
		time.Sleep(time.Hour)
		if got, want := memSees(s, 10*memSweep), "free"; got != want {
			t.Errorf("got %v, want %v", got, want)
		}
		if s.table.n < memSweep {
			t.Error("everything was swept: this shows nothing")
		}
		if got, err := s.List(memCtx, RecordQuery{Limit: 1000}); len(got) != 1 || err != nil {
			t.Errorf("List: got %d records, %v, want 1", len(got), err)
		}
		memCheck(t, s)
	})
}

// The memory of records that are gone is given back, whether they go all at once
// or in the course of many calls.
func TestMemoryStoreGivesMemoryBack(t *testing.T) {
	const most = 16 << 20
	n := 100_000
	if testing.Short() {
		n = 40_000
	}
	body := bytes.Repeat([]byte("b"), 200)
	fill := func(s *MemoryStore, keep func(int) time.Duration) {
		for i := range n {
			op := memOp(i)
			s.Claim(memCtx, op, time.Second, keep(i))
			s.Complete(memCtx, op, body, body, keep(i))
		}
	}
	for _, row := range []struct {
		name string
		keep func(int) time.Duration
		end  func(s *MemoryStore)
	}{
		{"all have expired when the next call comes", func(int) time.Duration { return time.Hour }, func(s *MemoryStore) {
			time.Sleep(time.Hour)
		}},
		{"all have expired, and they were kept for many different times", func(i int) time.Duration { return time.Hour + time.Duration(i%1000) }, func(s *MemoryStore) {
			time.Sleep(2 * time.Hour)
			for range n / memSweep {
				s.Show(memCtx, "key")
			}
		}},
		{"all but a few have expired", func(i int) time.Duration {
			if i%1000 == 0 {
				return 100 * time.Hour
			}
			return time.Hour
		}, func(s *MemoryStore) {
			time.Sleep(time.Hour)
			for range n / memSweep {
				s.Show(memCtx, "key")
			}
		}},
		{"all were purged", func(int) time.Duration { return time.Hour }, func(s *MemoryStore) {
			for i := range n {
				s.Purge(memCtx, memOp(i).Key)
			}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := new(MemoryStore)
				empty := memLiveHeap()
				fill(s, row.keep)
				if full := memLiveHeap() - empty; full < int64(n)*400 {
					t.Fatalf("%d records with 400 bytes each take %d bytes: they are not there", n, full)
				}
				row.end(s)
				memClaim(t, s, n, time.Hour, time.Hour)
				if left := memLiveHeap() - empty; left > most {
					t.Errorf("got %d bytes more than when it was empty, want at most %d", left, most)
				}
				memCheck(t, s)
			})
		})
	}
}

func TestMemoryStoreRecordIsSmall(t *testing.T) {
	const n, most = 100_000, 600
	for _, row := range []struct {
		name string
		done bool
		body int
	}{
		{"running", false, 0},
		{"done", true, 1000},
	} {
		s := &MemoryStore{MaxBytes: 1 << 40}
		empty := memLiveHeap()
		head, body := make([]byte, 100), make([]byte, row.body)
		for i := range n {
			op := memOp(i)
			s.Claim(memCtx, op, time.Hour, time.Hour)
			if row.done {
				s.Complete(memCtx, op, head, body, time.Hour)
			}
		}
		if got := (memLiveHeap()-empty)/n - int64(row.body); got > most {
			t.Errorf("a %s record of %d: got %d bytes beside its body, want at most %d", row.name, n, got, most)
		}
		runtime.KeepAlive(s)
	}
}

func memLiveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestMemoryStoreAllocatesLittle(t *testing.T) {
	s, single := new(MemoryStore), new(MemoryStore)
	head, body := []byte("head"), []byte("body")
	ops := make([]Op, 20_000)
	for i := range ops {
		ops[i] = memOp(i)
	}
	claimed, completed := -1, -1
	for _, row := range []struct {
		name string
		most float64
		call func()
	}{
		{"a Claim that acquires", 0, func() { claimed++; s.Claim(memCtx, ops[claimed], time.Hour, time.Hour) }},
		{"Complete", 0, func() { completed++; s.Complete(memCtx, ops[completed], head, body, time.Hour) }},
		{"a Claim of a done key", 1, func() { s.Claim(memCtx, ops[0], time.Hour, time.Hour) }},
		{"Renew", 0, func() { s.Renew(memCtx, ops[claimed], time.Minute) }},
		{"Release and Claim", 0, func() {
			s.Release(memCtx, ops[len(ops)-1]) // which is not done
			s.Claim(memCtx, ops[len(ops)-1], time.Hour, time.Hour)
		}},
		{"Claim and Release of the only key", 0, func() {
			single.Claim(memCtx, ops[0], time.Hour, time.Hour)
			single.Release(memCtx, ops[0])
		}},
	} {
		if got := testing.AllocsPerRun(5000, row.call); got > row.most {
			t.Errorf("%s: got %v allocations, want at most %v", row.name, got, row.most)
		}
	}
}

// However many calls meet, and however little room there is, the store's books
// are in order.
func TestMemoryStoreKeepsItsBooks(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			s := &MemoryStore{Logger: slog.New(slog.DiscardHandler)}
			s.table.coarse = uint8(56 + rnd.IntN(2)*6) // many keys have the same hash
			if rnd.IntN(2) == 0 {
				s.MaxRecords, s.MaxBytes = 150, 1500
			}
			if rnd.IntN(2) == 0 {
				s.DropAfter = 20 * time.Minute
			}
			s.tick()
			span := func() time.Duration { return time.Duration(1+rnd.IntN(20)) * time.Minute }
			for step := range 3000 {
				n := rnd.IntN(300)
				op := memOp(n)
				if rnd.IntN(10) == 0 {
					op.Token = "another"
				}
				switch rnd.IntN(12) {
				case 0, 1, 2, 3:
					s.Claim(memCtx, op, span(), span())
				case 4:
					s.TakeOver(memCtx, op, span(), span())
				case 5:
					s.Renew(memCtx, op, time.Duration(rnd.IntN(3))*time.Minute)
				case 6, 7, 8:
					s.Complete(memCtx, op, make([]byte, rnd.IntN(10)), make([]byte, rnd.IntN(40)), span())
				case 9:
					s.Release(memCtx, op)
				case 10:
					s.Resolve(memCtx, op.Key, Resolution{Applied: rnd.IntN(2) == 0, Body: make([]byte, 10)})
				case 11:
					s.Purge(memCtx, op.Key)
				}
				if rnd.IntN(20) == 0 {
					time.Sleep(time.Duration(rnd.IntN(120)) * time.Second)
				}
				if step%10 == 0 {
					memCheck(t, s)
				}
			}
			time.Sleep(time.Hour)
			for s.tick(); s.table.n > 0; s.tick() {
			}
			memCheck(t, s)
		})
	}
}

// Wherever a record keeps its bytes, in itself or elsewhere, they are what was given.
func TestMemoryStoreKeepsBytesOfAnyLength(t *testing.T) {
	lengths := []int{1, 43, memText - 33, memText - 32, memText - 31, memText - 1, memText, memText + 1, 1000}
	s := &MemoryStore{}
	type kept struct {
		op         Op
		head, body string
	}
	var all []kept
	fill := func(n int) string { return strings.Repeat(string(rune('a'+len(all)%26)), n) }
	for _, key := range lengths {
		for _, answer := range lengths {
			for _, head := range []int{0, answer / 2, answer} {
				op := Op{Key: fmt.Sprint(len(all), " ", fill(key+5))[:max(key, 5)], Token: NewToken()}
				all = append(all, kept{op, fill(head), fill(answer - head)})
			}
		}
	}
	for _, k := range all {
		s.Claim(memCtx, k.op, time.Hour, time.Hour)
	}
	for _, k := range all {
		if err := s.Complete(memCtx, k.op, []byte(k.head), []byte(k.body), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 2 {
		for i, k := range all {
			c, err := s.Claim(memCtx, Op{Key: k.op.Key, Token: "another"}, time.Hour, time.Hour)
			if err != nil || c.Status != ClaimDone || string(c.Head) != k.head || string(c.Body) != k.body {
				t.Fatalf("round %d, record %d, key of %d bytes, head of %d, body of %d: got %v, %v, head %q, body %q",
					round, i, len(k.op.Key), len(k.head), len(k.body), c.Status, err, c.Head, c.Body)
			}
			s.table.setAnswer(s.table.find(k.op.Key), c.Head, nil) // as when the body is dropped
			all[i].body = ""
		}
	}
}

func TestMemoryStoreUnderConcurrentUse(t *testing.T) {
	s := &MemoryStore{MaxRecords: 200, MaxBytes: 2000, Logger: slog.New(slog.DiscardHandler)}
	var ran [300]atomic.Int32
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 3))
			for range 2000 {
				n := rnd.IntN(len(ran))
				op := Op{Key: memOp(n).Key, Token: NewToken()}
				ctx, cancel := context.WithTimeout(memCtx, time.Millisecond)
				c, err := s.Claim(ctx, op, time.Minute, time.Hour)
				switch {
				case err == nil && c.Status == ClaimAcquired:
					if ran[n].Add(1) != 1 {
						t.Errorf("two hold one key")
					}
					s.Renew(memCtx, op, time.Minute)
					ran[n].Add(-1)
					if rnd.IntN(3) == 0 {
						s.Complete(memCtx, op, []byte("head"), make([]byte, rnd.IntN(50)), time.Hour)
						s.Purge(memCtx, op.Key)
					} else {
						s.Release(memCtx, op)
					}
				case err == nil && c.Status == ClaimRunning:
					s.Wait(ctx, op.Key)
				}
				if rnd.IntN(200) == 0 {
					s.List(memCtx, RecordQuery{})
				}
				cancel()
			}
		})
	}
	wg.Wait()
	memCheck(t, s)
}

// What a caller was given stays as it is when the record changes, or its place is
// another's.
func TestMemoryStoreDoesNotChangeWhatItGave(t *testing.T) {
	for _, size := range []int{1, 20, 40, 100} {
		s := &MemoryStore{MaxBytes: 1 << 20}
		head, body := strings.Repeat("h", size), strings.Repeat("b", size)
		memDone(t, s, 1, head, body, time.Hour)
		c, err := s.Claim(memCtx, Op{Key: memOp(1).Key, Token: "another"}, time.Hour, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		shown, err := s.Show(memCtx, memOp(1).Key)
		if err != nil {
			t.Fatal(err)
		}
		s.Purge(memCtx, memOp(1).Key)
		memDone(t, s, 2, strings.Repeat("x", size), strings.Repeat("y", size), time.Hour)
		for _, got := range [][2][]byte{{c.Head, c.Body}, {shown.Head, shown.Body}} {
			if string(got[0]) != head || string(got[1]) != body {
				t.Errorf("%d bytes: got %q and %q, want %q and %q", size, got[0], got[1], head, body)
			}
			if cap(got[0]) != size {
				t.Errorf("%d bytes: an append to the head would reach the body", size)
			}
		}
	}
}

// memCheck checks the books: everything that is kept twice is kept alike.
func memCheck(t *testing.T, s *MemoryStore) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	tab := &s.table
	wrong := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("the books are wrong: "+format, args...)
	}

	seen, ended, bodied := map[memRef]bool{}, 0, 0
	var held int64
	for i := range tab.index {
		g, taken := &tab.index[i], 0
		for _, slot := range g.slots {
			if slot.id == 0 {
				continue
			}
			taken++
			r := tab.at(slot.id)
			if seen[r.id] || tab.find(string(tab.keyOf(r))) != r {
				wrong("record %d is not found by its key, or more than once", r.id)
			}
			seen[r.id] = true
			head, body := tab.answer(r)
			held += int64(len(head) + len(body))
			if r.ended {
				ended++
			} else if len(head)+len(body) > 0 {
				wrong("record %d has bytes and is not done", r.id)
			}
			if len(body) > 0 {
				bodied++
			}
		}
		if n := len(g.slots); taken != g.n || n&(n-1) != 0 || 4*taken > 3*n || n > memFewSlots && 8*taken < n {
			wrong("%d of %d slots are taken, and counted as %d", taken, n, g.n)
		}
	}
	if len(seen) != tab.n || held != tab.bytes {
		wrong("%d records with %d bytes are counted as %d with %d", len(seen), held, tab.n, tab.bytes)
	}
	if s.MaxRecords > 0 && tab.n > s.MaxRecords {
		wrong("%d records, want at most %d", tab.n, s.MaxRecords)
	}

	queued := 0
	for i, q := range tab.due {
		if q.at != i || tab.queues[q.lasts] != q || q.n == 0 || i > 0 && tab.due[(i-1)/2].due > q.due {
			wrong("queue %d is not in its place", i)
		}
		last := time.Duration(0)
		n := 0
		for r := tab.at(q.first); r != nil; r = tab.at(r.links[memByExpiry].next) {
			if n == 0 && q.due != r.expires || r.expires < last || r.lasts != q.lasts || !seen[r.id] {
				wrong("record %d is in the wrong place of its queue", r.id)
			}
			last = r.expires
			n++
		}
		if n != q.n {
			wrong("a queue of %d counts %d", n, q.n)
		}
		queued += n
	}
	if queued != tab.n || len(tab.queues) != len(tab.due) {
		wrong("%d of %d records are in queues", queued, tab.n)
	}

	for _, l := range []struct {
		memList
		by, want int
	}{{tab.done, memByDone, ended}, {tab.bodied, memByBody, bodied}} {
		n, last := 0, time.Duration(0)
		for r := tab.at(l.first); r != nil; r = tab.at(r.links[l.by].next) {
			if r.completed < last || !r.ended {
				wrong("record %d is in the wrong place of a list", r.id)
			}
			last = r.completed
			n++
		}
		if n != l.want || l.n != n {
			wrong("a list of %d records has %d and counts %d", l.want, n, l.n)
		}
	}

	used, roomy, empty := 0, 0, 0
	for at, sl := range tab.slabs {
		if sl == nil {
			continue
		}
		used += bits.OnesCount64(sl.used)
		if sl.used != 1<<memSlabSize-1 {
			roomy++
		}
		if sl.used == 0 {
			empty++
		}
		for i := range sl.records {
			id := memRef(at*memSlabSize + i + 1)
			long := sl.long != nil && sl.long[i] != nil
			if in := sl.used&(1<<i) != 0; in != seen[id] || in != (sl.records[i].id == id) || !in && long {
				wrong("place %d is in use, or not, and is not marked so", id)
			}
			if r := &sl.records[i]; long != (r.longName || r.longAnswer) || r.longName && r.longAnswer {
				wrong("record %d has bytes elsewhere, or not, and is not marked so", id)
			}
		}
	}
	listed := 0
	for at := tab.room; at != 0; at = tab.slabs[at-1].next {
		listed++
	}
	if used != tab.n || listed != roomy || empty > 1 {
		wrong("%d places used for %d records; %d slabs have room, %d are listed; %d are empty", used, tab.n, roomy, listed, empty)
	}

	for id, w := range s.waiting {
		if !seen[id] || w.n <= 0 {
			wrong("somebody waits for record %d, which is not there, or nobody does", id)
		}
	}
}

// What a call costs does not depend on how many records there are.
func BenchmarkMemoryStore(b *testing.B) {
	head, body := make([]byte, 100), make([]byte, 100)
	for _, n := range []int{100, 10_000, 1_000_000} {
		s := &MemoryStore{MaxRecords: 1 << 30, MaxBytes: 1 << 40}
		for i := range n {
			op := memOp(i)
			s.Claim(memCtx, op, time.Second, time.Hour)
			s.Complete(memCtx, op, head, body, time.Hour)
		}
		b.Run(fmt.Sprintf("first/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			op := memOp(n)
			for b.Loop() {
				s.Claim(memCtx, op, time.Second, time.Hour)
				s.Complete(memCtx, op, head, body, time.Hour)
				s.Purge(memCtx, op.Key)
			}
		})
		b.Run(fmt.Sprintf("replay/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			ops := make([]Op, 1000)
			for i := range ops {
				ops[i] = memOp(i * 7919 % n)
			}
			i := 0
			for b.Loop() {
				s.Claim(memCtx, ops[i%len(ops)], time.Second, time.Hour)
				i++
			}
		})
	}
}
