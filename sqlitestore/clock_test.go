package sqlitestore

import (
	"testing"
	"time"
)

// A wall is a wall clock and a monotonic clock, for tests to set.
type wall struct {
	wall int64
	mono time.Duration
}

func (w *wall) pass(d time.Duration) { w.wall += d.Microseconds(); w.mono += d }
func (w *wall) set(d time.Duration)  { w.wall += d.Microseconds() }

// A fileTime is what a file remembers of time.
type fileTime struct{ skew, late int64 }

// write is what a transaction does about time.
func (m *fileTime) write(c *clock, w *wall) int64 {
	now, skew, tell := c.meetAt(m.skew, m.late, w.wall, w.mono)
	if tell {
		m.skew, m.late = skew, max(m.late, now)
		c.kept(skew)
	}
	return now
}

func TestTimeGoesOnWhateverIsDoneToTheWallClock(t *testing.T) {
	const start = int64(1_700_000_000_000_000)
	for _, step := range []time.Duration{time.Hour, -time.Hour, 50 * 365 * 24 * time.Hour, -50 * 365 * 24 * time.Hour, 3 * time.Second, -3 * time.Second} {
		w := &wall{wall: start}
		var file fileTime
		var a, b clock
		file.write(&a, w)
		file.write(&b, w)

		w.pass(10 * time.Second)
		w.set(step)
		want := start + 10_000_000
		if got := a.read(w.wall, w.mono); got != want {
			t.Errorf("set by %v: a process that reads reads %v, want %v", step, got-start, want-start)
		}
		if got := file.write(&a, w); got != want {
			t.Errorf("set by %v: a process that writes writes %v, want %v", step, got-start, want-start)
		}
		w.pass(time.Second)
		want += 1_000_000
		if got := file.write(&b, w); got != want {
			t.Errorf("set by %v: another process, which the file tells, has %v, want %v", step, got-start, want-start)
		}
		var later clock
		if got := file.write(&later, w); got != want {
			t.Errorf("set by %v: a process that opens the file then has %v, want %v", step, got-start, want-start)
		}
		w.pass(time.Minute)
		want += 60_000_000
		for i, c := range []*clock{&a, &b, &later} {
			if got := file.write(c, w); got != want {
				t.Errorf("set by %v: a minute later process %d has %v, want %v", step, i, got-start, want-start)
			}
		}
	}
}

func TestTimeDoesNotGoBackOverARestart(t *testing.T) {
	const start = int64(1_700_000_000_000_000)
	w := &wall{wall: start}
	var file fileTime
	var before clock
	file.write(&before, w)
	w.pass(time.Hour)
	last := file.write(&before, w)

	w.set(-10 * 365 * 24 * time.Hour) // a machine that starts without knowing the date
	w.mono = 0
	var after clock
	if got := file.write(&after, w); got < last {
		t.Errorf("after a restart with an old date it is %v earlier than before", time.Duration(last-got)*time.Microsecond)
	}
	w.pass(time.Minute)
	w.set(10 * 365 * 24 * time.Hour) // and is told
	w.pass(time.Minute)
	if got, want := file.write(&after, w), last+2*60_000_000; got != want {
		t.Errorf("two minutes after the restart %v have passed, want 2m", time.Duration(got-last)*time.Microsecond)
	}
}

func TestSmallDifferencesOfTheClocksAreNoJumps(t *testing.T) {
	const start = int64(1_700_000_000_000_000)
	w := &wall{wall: start}
	var c clock
	c.read(w.wall, w.mono)
	for range 100 { // a clock that is steered towards the right time
		w.pass(time.Second)
		w.set(-100 * time.Millisecond)
		c.read(w.wall, w.mono)
	}
	if got := c.read(w.wall, w.mono); got != w.wall {
		t.Errorf("the time is %v off the wall clock", time.Duration(got-w.wall)*time.Microsecond)
	}
}
