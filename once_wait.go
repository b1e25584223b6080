package oncehttp

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// A wait is one call's waiting for work that runs in another.
type wait struct {
	until     time.Time // shared by everything that is waited for
	joined    bool
	at        int // the room's releases when this call joined it
	room      *room
	naps      int // how often it has slept
	takeOvers int
}

const (
	// maxReleases is how often a key may be released before those who wait for
	// it give up. The first release may have had a reason that was its caller's
	// own; after the second, running the work for one after another of them
	// would keep each busy with work that does not succeed.
	maxReleases = 2

	minNap = 10 * time.Millisecond
	maxNap = 250 * time.Millisecond
	// maxNapWoken is the longest nap with a store that wakes us up.
	maxNapWoken = time.Second
)

// pause waits until the key may have changed. It reports false when the time for
// waiting is over or the caller is gone. left is the rest of the lease.
func (o *Once) pause(ctx context.Context, w *wait, key string, left time.Duration) bool {
	longest := maxNap
	waiter, wakes := o.Store.(Waiter)
	if wakes {
		longest = maxNapWoken
	}
	// Naps grow because a wake-up may be lost between our look at the key and the
	// store's; they vary so that many who wait do not look all at once.
	nap := min(minNap<<min(w.naps, 10), longest)
	nap = min(nap-rand.N(nap/4), left+time.Millisecond, time.Until(w.until))
	w.naps++
	if nap <= 0 {
		return false
	}
	nctx, cancel := context.WithTimeout(ctx, nap)
	defer cancel()
	began := time.Now()
	if !wakes || o.awake(waiter, nctx, key) != nil {
		<-nctx.Done() // also when Wait itself has failed
	} else if woken := time.Since(began); w.naps > 1 && woken < minNap {
		// Woken at once, again: without this a store that wakes for nothing
		// would be asked as fast as it answers.
		select {
		case <-nctx.Done():
		case <-time.After(minNap - woken):
		}
	}
	return ctx.Err() == nil && time.Now().Before(w.until)
}

func (o *Once) awake(waiter Waiter, ctx context.Context, key string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = o.panicked("Wait", p)
		}
	}()
	return waiter.Wait(ctx, key)
}

// rooms holds, for every key that calls of this Once wait for, how often it was
// released meanwhile.
type rooms struct {
	mu    sync.Mutex
	byKey map[string]*room
}

type room struct{ waiting, releases int }

func (s *rooms) join(w *wait, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.byKey[key]
	if r == nil {
		if s.byKey == nil {
			s.byKey = make(map[string]*room)
		}
		r = new(room)
		s.byKey[key] = r
	}
	r.waiting++
	w.joined, w.room, w.at = true, r, r.releases
}

func (s *rooms) leave(w *wait, key string) {
	if !w.joined {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.room.waiting--; w.room.waiting == 0 {
		delete(s.byKey, key)
	}
}

// released counts a release by this process. It is called before the store is
// told, so that whoever finds the key free also finds the count.
func (s *rooms) released(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.byKey[key]; r != nil {
		r.releases++
	}
}

// releases is how often the key was released while w waited.
func (s *rooms) releases(w *wait) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.room.releases - w.at
}

// enter says whether w, which has waited and now holds the claim, may run. If
// nobody here has released the key then somebody elsewhere has.
func (s *rooms) enter(w *wait) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.room.releases == w.at {
		w.room.releases++
	}
	return w.room.releases-w.at < maxReleases
}
