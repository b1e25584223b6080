package oncehttp

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

func TestALimitSpacesRequestsOut(t *testing.T) {
	var s hostState
	now := time.Now()
	for i, want := range []time.Duration{0, 0, 500 * time.Millisecond, time.Second, 1500 * time.Millisecond} {
		if got, _, ok := s.reserve(2, 2, now, time.Hour); got != want || !ok {
			t.Errorf("request %d at 2 a second and a burst of 2: got a wait of %v, %v; want %v", i+1, got, ok, want)
		}
	}
	if got, _, _ := s.reserve(2, 2, now.Add(3*time.Second), time.Hour); got != 0 {
		t.Errorf("after the queue has passed: got a wait of %v, want none", got)
	}
}

func TestALimitOfZeroOrInfinityIsNone(t *testing.T) {
	var s, inf hostState
	now := time.Now()
	for range 1000 {
		if wait, _, ok := s.reserve(0, 0, now, 0); wait != 0 || !ok {
			t.Fatalf("no limit: got a wait of %v, %v", wait, ok)
		}
		if wait, _, ok := inf.reserve(rate.Inf, 0, now, 0); wait != 0 || !ok {
			t.Fatalf("infinite limit: got a wait of %v, %v", wait, ok)
		}
	}
}

func TestABurstOfZeroIsOne(t *testing.T) {
	var s hostState
	now := time.Now()
	s.reserve(1, 0, now, time.Hour)
	if wait, _, ok := s.reserve(1, 0, now, time.Hour); wait != time.Second || !ok {
		t.Errorf("second request: got a wait of %v, %v; want 1s", wait, ok)
	}
}

func TestASlotTooFarAwayIsRefusedAndNotTaken(t *testing.T) {
	var s hostState
	now := time.Now()
	s.reserve(1, 1, now, 0)
	// A thousand callers that cannot wait, at once: none of them may push the
	// queue ahead of one that can.
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			if wait, slot, ok := s.reserve(1, 1, now, 300*time.Millisecond); ok || wait != time.Second || slot.s != nil {
				t.Errorf("got a wait of %v, %v; want a refusal and 1s", wait, ok)
			}
		})
	}
	wg.Wait()
	if wait, _, ok := s.reserve(1, 1, now, time.Minute); !ok || wait != time.Second {
		t.Errorf("the caller that can wait: got %v, %v; want 1s", wait, ok)
	}
	if wait, _, ok := s.reserve(1, 1, now, -time.Second); ok || wait != 2*time.Second {
		t.Errorf("a caller behind it, whose deadline has passed: got %v, %v; want a refusal and 2s", wait, ok)
	}
	var slow hostState
	slow.reserve(1e-12, 1, now, 0)
	if wait, _, ok := slow.reserve(1e-12, 1, now, time.Hour); ok || wait < time.Hour {
		t.Errorf("a limit slower than a Duration can tell: got %v, %v; want a refusal", wait, ok)
	}
}

func TestACancelledSlotGoesToTheNext(t *testing.T) {
	var s hostState
	now := time.Now()
	_, first, _ := s.reserve(1, 1, now, 0)
	first.cancel(now) // the breaker said no
	if wait, _, _ := s.reserve(1, 1, now, time.Hour); wait != 0 {
		t.Errorf("after a cancelled immediate slot: got a wait of %v, want none", wait)
	}
	_, queued, _ := s.reserve(1, 1, now, time.Hour)
	queued.cancel(now.Add(500 * time.Millisecond)) // the caller gave up
	queued.cancel(now.Add(500 * time.Millisecond)) // once is enough
	if wait, _, _ := s.reserve(1, 1, now.Add(500*time.Millisecond), time.Hour); wait != 500*time.Millisecond {
		t.Errorf("after a cancelled queued slot: got a wait of %v, want 500ms", wait)
	}
	var none reservation
	none.cancel(now) // does nothing
}

func TestAStaleClockNeverLetsMoreThrough(t *testing.T) {
	var s hostState
	now := time.Now()
	sent := 0
	for i := range 10_000 {
		// Every other caller has looked at the clock ten seconds too early.
		at := now.Add(time.Duration(i) * time.Millisecond)
		if i%2 == 1 {
			at = at.Add(-10 * time.Second)
		}
		if _, _, ok := s.reserve(1, 5, at, 0); ok {
			sent++
		}
	}
	if most := 5 + 10; sent > most {
		t.Errorf("%d sent in 10s at 1 a second and a burst of 5, want at most %d", sent, most)
	}
}

func TestAHoldIsNeverShortened(t *testing.T) {
	var s hostState
	now := time.Now()
	if until, held := s.heldUntil(now); held || !until.IsZero() {
		t.Errorf("a new host is held until %v", until)
	}
	s.hold(now.Add(30 * time.Second))
	s.hold(now.Add(5 * time.Second))
	if until, held := s.heldUntil(now.Add(29 * time.Second)); !held || !until.Equal(now.Add(30*time.Second)) {
		t.Errorf("got %v, %v; want the longer hold", until, held)
	}
	if _, held := s.heldUntil(now.Add(30 * time.Second)); held {
		t.Error("held at the very end of its hold")
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() { s.hold(now.Add(time.Duration(i) * time.Minute)) })
	}
	wg.Wait()
	if until, _ := s.heldUntil(now); !until.Equal(now.Add(99 * time.Minute)) {
		t.Errorf("got %v, want the longest of a hundred", until.Sub(now))
	}
}

func TestAHostIsWarnedAboutOnce(t *testing.T) {
	var s hostState
	var warnings atomic.Int32
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if s.warnOnce() {
				warnings.Add(1)
			}
		})
	}
	wg.Wait()
	if n := warnings.Load(); n != 1 {
		t.Errorf("got %d warnings, want 1", n)
	}
	if s.honorsShown() {
		t.Error("a host that has shown nothing is said to honour keys")
	}
	s.showHonors()
	s.showHonors()
	if !s.honorsShown() {
		t.Error("a host that has shown it is not said to honour keys")
	}
}

func TestAHostThatIsHeldOrHasALimitInUseIsNotForgotten(t *testing.T) {
	now := time.Now()
	var fresh, held, limited hostState
	held.hold(now.Add(time.Second))
	limited.reserve(1, 2, now, 0)
	limited.reserve(1, 2, now, 0)
	for _, tt := range []struct {
		what  string
		s     *hostState
		after time.Duration
		must  bool
		want  bool
	}{
		{"a fresh one may go", &fresh, 0, false, true},
		{"a held one stays", &held, 0, false, false},
		{"a held one goes if it must", &held, 0, true, true},
		{"one that was held may go", &held, time.Second, false, true},
		{"one with its burst spent stays", &limited, time.Second, false, false},
		{"one with its burst back may go", &limited, 2 * time.Second, false, true},
	} {
		if got := tt.s.leave(now.Add(tt.after), tt.must); got != tt.want {
			t.Errorf("%s: got %v", tt.what, got)
		}
	}
}

func TestTheHostGateAllocatesNothing(t *testing.T) {
	var s hostState
	now := time.Now()
	s.reserve(1e6, 1, now, math.MaxInt64)
	s.hold(now)
	if n := testing.AllocsPerRun(100, func() {
		s.heldUntil(now)
		_, slot, _ := s.reserve(1e6, 1, now, math.MaxInt64)
		slot.cancel(now)
		s.showHonors()
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

func BenchmarkLimit(b *testing.B) {
	b.ReportAllocs()
	var s hostState
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.reserve(1e9, 1000, time.Now(), time.Second)
		}
	})
}
