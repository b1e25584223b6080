package sqlitestore

import (
	"sync"
	"sync/atomic"
	"time"
)

// A clock is the store's clock: microseconds that go on from where the file was
// last, whatever is done to the wall clock meanwhile.
//
// Processes on one machine have the wall clock in common, and nothing else that
// outlives them. But it can be set, and then leases would lapse at once, or
// never. So the file keeps a skew, which is taken from the wall clock:
//
//   - A process that sees the wall clock jump (it moves while the monotonic clock
//     does not, or the reverse) changes the skew by as much, so that its own time
//     goes on as if nothing had happened, and writes that to the file with its
//     next transaction, where the others find it with theirs.
//   - The file also remembers, to the minute, how late it was. A process that opens
//     it, or finds itself behind with a wall clock that was set back while nobody
//     looked, goes on from there.
//
// What remains is a clock that is set ahead while no process has the file open:
// that cannot be told from time that has passed.
type clock struct {
	mu   sync.Mutex
	seen bool
	wall int64         // when it was last read
	mono time.Duration // likewise
	skew int64         // wall - skew is the time
	file int64         // the skew that the file is known to have

	shift atomic.Int64 // by how much a test has set the wall clock
}

// jump is by how much wall clock and monotonic clock must disagree to be called a
// jump: more than a reading of both can be apart, less than matters to a lease.
const jump = int64(time.Second / time.Microsecond)

// remembered is how often the file is told how late it is.
const remembered = int64(time.Minute / time.Microsecond)

var processStart = time.Now()

// now returns the time.
func (c *clock) now() int64 { return c.read(c.clocks()) }

func (c *clock) clocks() (wall int64, mono time.Duration) {
	t := time.Now()
	return t.UnixMicro() + c.shift.Load(), t.Sub(processStart)
}

func (c *clock) read(wall int64, mono time.Duration) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readLocked(wall, mono)
}

func (c *clock) readLocked(wall int64, mono time.Duration) int64 {
	if c.seen {
		moved := wall - c.wall - (mono - c.mono).Microseconds()
		if moved > jump || moved < -jump {
			c.skew += moved
		}
	}
	// Callers race, so the readings need not come in order; a difference in both
	// is none between them.
	c.seen, c.wall, c.mono = true, wall, mono
	return wall - c.skew
}

// meet compares the clock with what the file says and returns the time, and
// whether the file should be told skew and time. If it is, kept must be called.
func (c *clock) meet(skew, late int64) (now int64, newSkew int64, tell bool) {
	wall, mono := c.clocks()
	return c.meetAt(skew, late, wall, mono)
}

func (c *clock) meetAt(skew, late int64, wall int64, mono time.Duration) (now int64, newSkew int64, tell bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now = c.readLocked(wall, mono)
	if skew != c.file {
		// Another process has seen the jump before us, or one that we have not
		// seen: there is one time, and it is the file's.
		c.file, c.skew = skew, skew
		now = wall - skew
	}
	if now < late {
		c.skew -= late - now
		now = late
	}
	return now, c.skew, c.skew != c.file || now-late >= remembered
}

// kept says that the file now has this skew.
func (c *clock) kept(skew int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file = skew
}
