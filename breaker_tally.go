package oncehttp

import (
	"sync/atomic"
	"time"
)

// A tally counts the outcomes of the latest window of time, which rolls on in
// tenths. gobreaker has one too, but reads the clock twice for each attempt to
// keep it, which costs more than all the rest of a breaker that is closed.
//
// It belongs to whoever holds the breaker's lock, apart from latest.
type tally struct {
	tenth time.Duration
	start time.Time
	at    int64         // the tenth that is being filled, counted from start
	rolls time.Duration // from start to where that ends

	good, bad       [tallied]uint32
	allGood, allBad uint64

	latest *goods // of the tenth that is being filled, and not yet in good
}

// goods counts good outcomes without a lock, for as long as the tenth lasts and
// there is no failure that a good outcome would end the row of. It is alone in its
// cache lines: it is the one thing that all good attempts to a host write to.
type goods struct {
	n     atomic.Uint32
	row   atomic.Bool  // the latest outcome was a failure
	until atomic.Int64 // the moment at which the tenth ends
	_     [112]byte
}

// add counts a good outcome, or reports that it takes the lock to do so.
func (g *goods) add(now moment) bool {
	if now >= moment(g.until.Load()) || g.row.Load() {
		return false
	}
	g.n.Add(1)
	return true
}

// tallied is eleven tenths, as the last one is never whole.
const tallied = 11

// reset forgets everything.
func (t *tally) reset(window time.Duration, now time.Time) {
	*t = tally{tenth: window/10 + 1, start: now, latest: new(goods)}
	t.rollsAfter(t.tenth)
}

// rollsAfter sets how long after start the tenth ends that is being filled.
func (t *tally) rollsAfter(d time.Duration) {
	t.rolls = d
	t.latest.until.Store(int64(momentOf(t.start).after(d)))
}

// settle takes over what was counted without the lock.
func (t *tally) settle() {
	n := t.latest.n.Swap(0)
	t.good[t.at%tallied] += n
	t.allGood += uint64(n)
}

// roll forgets what has left the window. A now that is earlier than one before
// belongs to the tenth that is being filled.
func (t *tally) roll(now time.Time) {
	since := now.Sub(t.start)
	if since < t.rolls {
		return
	}
	t.settle()
	to := int64(since / t.tenth)
	for n := min(to-t.at, tallied); n > 0; n-- {
		i := (to - n + 1) % tallied
		t.allGood -= uint64(t.good[i])
		t.allBad -= uint64(t.bad[i])
		t.good[i], t.bad[i] = 0, 0
	}
	t.at = to
	t.rollsAfter(time.Duration(to+1) * t.tenth)
}

func (t *tally) add(good bool, now time.Time) {
	t.roll(now)
	i := t.at % tallied
	if good {
		t.good[i]++
		t.allGood++
		return
	}
	t.bad[i]++
	t.allBad++
}
