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
// stays set when nobody waits any more: it fires once, in vain.
type beats struct {
	mu          sync.Mutex
	first, last *run // a list by run.prevBeat and run.nextBeat
	timer       *time.Timer
	set         bool
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
	if !b.set {
		b.arm(time.Until(r.firstBeat()))
	}
}

// firstBeat is when the first heartbeat is due.
func (r *run) firstBeat() time.Time { return r.acquired.Add(r.once.lease() / 3) }

func (b *beats) arm(after time.Duration) {
	b.set = true
	if b.timer == nil {
		b.timer = time.AfterFunc(after, b.fire)
		return
	}
	b.timer.Reset(after)
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
func (b *beats) fire() {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set = false
	for r := b.first; r != nil; r = b.first {
		if left := r.firstBeat().Sub(now); left > 0 {
			b.arm(left)
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
