package oncehttp

import (
	"sync"
	"time"
)

// beats has the first heartbeat of every run happen when it is due. They share one
// timer, since most work is over long before its first heartbeat, and to set a timer
// for it and to stop that again costs more than MemoryStore's share of the call. A run
// that gets as far as its first heartbeat has a timer of its own from then on.
//
// All runs of a Once have the same lease, so who starts first is due first. The timer
// stays set when nobody waits any more: it fires once, in vain. It is made anew each time
// and not reset, since one from a synctest bubble cannot be reset outside of it.
type beats struct {
	mu          sync.Mutex
	first, last *run // a list by run.prevBeat and run.nextBeat
	set         bool
	due         time.Time // then: when fire is called
	nth         int       // counts the timers: only the latest counts
}

// add has r.heartbeat called in a goroutine of its own, unless remove comes before.
func (b *beats) add(r *run) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.waits = true
	if r.prevBeat = b.last; b.last == nil {
		b.first = r
	} else {
		b.last.nextBeat = r
	}
	b.last = r
	// A timer that is late or set for later was left behind in a bubble.
	if at := r.firstBeat(); !b.set || at.Before(b.due) || r.acquired.Sub(b.due) > r.once.lease()/3 {
		b.arm(at)
	}
}

// firstBeat is when the first heartbeat is due.
func (r *run) firstBeat() time.Time { return r.acquired.Add(r.once.lease() / 3) }

func (b *beats) arm(at time.Time) {
	b.nth++
	n := b.nth
	b.set, b.due = true, at
	time.AfterFunc(time.Until(at), func() { b.fire(n) })
}

// remove forgets a run, if it still waits.
func (b *beats) remove(r *run) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !r.waits {
		return
	}
	if r.prevBeat == nil {
		b.first = r.nextBeat
	} else {
		r.prevBeat.nextBeat = r.nextBeat
	}
	if r.nextBeat == nil {
		b.last = r.prevBeat
	} else {
		r.nextBeat.prevBeat = r.prevBeat
	}
	r.waits, r.prevBeat, r.nextBeat = false, nil, nil
}

// fire calls those that are due, and waits for the next one.
func (b *beats) fire(n int) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if n != b.nth {
		return
	}
	b.set = false
	for r := b.first; r != nil; r = b.first {
		if at := r.firstBeat(); at.After(now) {
			b.arm(at)
			return
		}
		if b.first = r.nextBeat; b.first == nil {
			b.last = nil
		} else {
			b.first.prevBeat = nil
		}
		r.waits, r.nextBeat = false, nil
		go r.heartbeat()
	}
}
