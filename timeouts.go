package oncehttp

import (
	"sync"
	"sync/atomic"
	"time"
)

// timeouts ends the attempts of a Transport whose time is over. Those that are under way
// at the same time share one timer, since nearly all are answered long before: to set a
// timer for each and to stop it again costs as much as the rest of its context. The last
// of them stops it, and the next one makes another: nothing of a Transport at rest is
// left in the runtime.
type timeouts struct {
	t           *Transport
	mu          sync.Mutex
	first, last *attempt    // a list by attempt.prev and attempt.next: who is due first comes first
	timer       *time.Timer // nil: nobody waits
}

// timeoutsOf returns those for an attempt that starts now. A timer of a synctest bubble
// must not meet what is outside of it, nor in another, and a Transport can be used in
// many.
func (t *Transport) timeoutsOf(now moment) *timeouts {
	if now.bubbled() && !bubblesShare.Load() {
		return &timeouts{t: t}
	}
	return &t.timeouts
}

var bubblesShare atomic.Bool // the Transport's, in tests of these

// add has a.expire called at due, unless remove comes before.
func (w *timeouts) add(a *attempt, due moment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	prev := w.last // nearly always: most have the same timeout
	for prev != nil && prev.due > due {
		prev = prev.prev
	}
	next := w.first
	if prev != nil {
		next = prev.next
	}
	a.prev, a.next, a.due = prev, next, due
	w.link(prev, a)
	w.link(a, next)
	switch {
	case prev != nil:
	case w.timer == nil:
		w.timer = time.AfterFunc(due.since(thisMoment()), w.expire)
	default:
		w.timer.Reset(due.since(thisMoment()))
	}
}

// link makes b the one after a. Nil is the end of the list.
func (w *timeouts) link(a, b *attempt) {
	if a == nil {
		w.first = b
	} else {
		a.next = b
	}
	if b == nil {
		w.last = a
	} else {
		b.prev = a
	}
}

// remove forgets an attempt, if it still waits.
func (w *timeouts) remove(a *attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.due != 0 {
		w.drop(a)
	}
}

func (w *timeouts) drop(a *attempt) {
	w.link(a.prev, a.next)
	a.prev, a.next, a.due = nil, nil, 0
	if w.first == nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// expire ends the attempts whose time is over, and waits for the next one's.
func (w *timeouts) expire() {
	for {
		now := thisMoment()
		a := w.take(now)
		if a == nil {
			return
		}
		a.expire(now)
	}
}

// take takes out the first attempt if it is due, and sets the timer for it if not.
func (w *timeouts) take(now moment) *attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.first
	if a == nil {
		return nil // it was removed while the timer fired
	}
	if left := a.due.since(now); left > 0 {
		w.timer.Reset(left)
		return nil
	}
	w.drop(a)
	return a
}
