package oncehttp

import (
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// A sharedTimer has many wait for a time each, by one timer of the runtime: attempts for
// their timeouts, store calls for their deadlines, runs for their first heartbeats. Nearly
// all of them are over long before. To set a timer for each and to stop it again wakes a
// thread of the runtime and costs more than the rest of an attempt's context, than many a
// store's answer, and than a MemoryStore's share of a call.
//
// A timer of a synctest bubble must not meet what is outside of it, nor in another, and a
// Transport, a Once or a Middleware can be used in many. So who waits in a bubble has a
// timer of its own.
type sharedTimer[W waiting] struct {
	stops bool // at rest: it stops the timer when nobody waits. Else that fires once, in vain

	mu          sync.Mutex
	first, last *alarm[W] // a list: who is due first comes first
	timer       *time.Timer
	fires       moment // when timer does; 0: it is stopped
	own         map[*alarm[W]]*time.Timer
}

// waiting is who waits.
type waiting interface {
	// timeUp is called in a goroutine of its own: it may call what others have written,
	// and nobody else's time should wait for that. It may come during remove, but not
	// after it if remove comes before the time.
	timeUp()
}

// An alarm is the place of one who waits.
type alarm[W waiting] struct {
	who        W
	prev, next *alarm[W]
	due        moment // 0: nobody waits
}

var bubblesShare atomic.Bool // a timer, in tests of this

// add has who.timeUp called d after from, unless remove comes before. from is in the
// same bubble as the caller, if any.
func (s *sharedTimer[W]) add(a *alarm[W], who W, from moment, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.who, a.due = who, from.after(d)
	if from.bubbled() && !bubblesShare.Load() {
		if s.own == nil {
			s.own = make(map[*alarm[W]]*time.Timer)
		}
		s.own[a] = time.AfterFunc(a.due.since(thisMoment()), func() { s.fireOwn(a) })
		return
	}
	prev := s.last // nearly always: most wait for the same time
	for prev != nil && prev.due > a.due {
		prev = prev.prev
	}
	next := s.first
	if prev != nil {
		next = prev.next
	}
	s.link(prev, a)
	s.link(a, next)
	if s.fires == 0 || a.due < s.fires {
		s.set(a.due)
	}
}

// remove forgets who waits, if somebody does.
func (s *sharedTimer[W]) remove(a *alarm[W]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.due == 0 {
		return
	}
	if len(s.own) > 0 && s.own[a] != nil {
		s.own[a].Stop()
		s.dropOwn(a)
		return
	}
	s.drop(a)
	if s.first == nil && s.stops {
		s.timer.Stop()
		s.fires = 0
	}
}

// fire tells those whose time is over, and waits for the next one's.
func (s *sharedTimer[W]) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fires = 0
	now := thisMoment()
	for a := s.first; a != nil; a = s.first {
		if a.due > now {
			s.set(a.due)
			return
		}
		s.drop(a)
		go a.who.timeUp()
	}
}

func (s *sharedTimer[W]) set(at moment) {
	s.fires = at
	left := at.since(thisMoment())
	if s.timer == nil {
		// A timer that fires in vain must not be what keeps all that s is a part of, as a
		// Middleware with a store in memory. Who waits keeps s himself.
		weakly := weak.Make(s)
		s.timer = time.AfterFunc(left, func() {
			if s := weakly.Value(); s != nil {
				s.fire()
			}
		})
	} else {
		s.timer.Reset(left)
	}
}

// link makes b the one after a. Nil is the end of the list.
func (s *sharedTimer[W]) link(a, b *alarm[W]) {
	if a == nil {
		s.first = b
	} else {
		a.next = b
	}
	if b == nil {
		s.last = a
	} else {
		b.prev = a
	}
}

func (s *sharedTimer[W]) drop(a *alarm[W]) {
	s.link(a.prev, a.next)
	a.prev, a.next, a.due = nil, nil, 0
}

// fireOwn tells one in a bubble.
func (s *sharedTimer[W]) fireOwn(a *alarm[W]) {
	s.mu.Lock()
	waits := s.own[a] != nil
	if waits {
		s.dropOwn(a)
	}
	s.mu.Unlock()
	if waits {
		a.who.timeUp()
	}
}

func (s *sharedTimer[W]) dropOwn(a *alarm[W]) {
	delete(s.own, a)
	a.due = 0
}
