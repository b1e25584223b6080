package oncehttp

import (
	"hash/maphash"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// A hostState is what one Transport knows of one host, apart from the host's
// health (that is the Breaker's) and the allowance of retries (the Budget's).
// Its zero value is ready to use. It is safe for concurrent use.
type hostState struct {
	held   atomic.Pointer[time.Time] // nil: not held
	honors atomic.Bool
	warned atomic.Bool
	proto  atomic.Int32 // the major version of HTTP in its latest answer; 0: none yet

	breaker hostNear[hostBreaker] // where the Transport's Breaker has this host

	mu   sync.Mutex
	lim  *rate.Limiter // nil until the first reservation
	last time.Time     // the latest time that lim was told
}

// reserve takes the next free slot of a host that may be sent limit requests a
// second, with at most burst at once (0: 1), if it comes within the given time.
// The caller waits for wait before it sends, or cancels the slot. If the slot
// would come too late, ok is false, wait says how late, and nothing is taken. A
// limit of zero is no limit.
func (s *hostState) reserve(limit rate.Limit, burst int, now time.Time, within time.Duration) (wait time.Duration, slot reservation, ok bool) {
	if limit == 0 {
		return 0, reservation{}, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lim == nil {
		s.lim = rate.NewLimiter(limit, max(burst, 1))
	}
	now = s.forward(now)
	r := s.lim.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > within {
		// Under the lock, because a slot behind which others have queued is not
		// given back: callers refused side by side would push the queue ahead
		// of them for ever.
		r.CancelAt(now)
		return wait, reservation{}, false
	}
	return wait, reservation{s, *r}, true
}

// forward keeps lim's clock from going back: it takes an earlier time at face
// value and would count the time in between twice. s.mu is held.
func (s *hostState) forward(now time.Time) time.Time {
	if now.Before(s.last) {
		return s.last
	}
	s.last = now
	return now
}

// A reservation is a slot that a hostState has given out. The zero value is the
// slot of a host without a limit.
type reservation struct {
	s *hostState
	r rate.Reservation
}

// cancel gives the slot back. It must come before the slot's time, or at the
// very time of an immediate one; later the slot is lost, which never sends too
// much.
func (r *reservation) cancel(now time.Time) {
	if r.s == nil {
		return
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.r.CancelAt(r.s.forward(now))
	r.s = nil
}

// hold keeps requests away from the host until the given time. It never
// shortens a hold.
func (s *hostState) hold(until time.Time) {
	for {
		old := s.held.Load()
		if old != nil && !until.After(*old) || s.held.CompareAndSwap(old, &until) {
			return
		}
	}
}

// heldUntil reports whether the host is held, and until when.
func (s *hostState) heldUntil(now time.Time) (until time.Time, held bool) {
	p := s.held.Load()
	if p == nil || !now.Before(*p) {
		return time.Time{}, false
	}
	return *p, true
}

// showHonors records that the host has shown that it honours keys.
func (s *hostState) showHonors() {
	if !s.honors.Load() {
		s.honors.Store(true)
	}
}

// honorsShown reports whether it has.
func (s *hostState) honorsShown() bool { return s.honors.Load() }

// warnOnce is true the first time it is called.
func (s *hostState) warnOnce() bool { return !s.warned.Load() && s.warned.CompareAndSwap(false, true) }

// leave lets go of a host that is not held and whose limit is unused. What it
// has shown and whether it was warned about is learned again.
func (s *hostState) leave(now time.Time, must bool) bool {
	if must {
		return true
	}
	if _, held := s.heldUntil(now); held {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lim == nil || s.lim.TokensAt(now) >= float64(s.lim.Burst())
}

// hostOf returns what is known of u's host. A host whose URLs are spelled like its
// key is found without a lock, if it came before others to its place in near, and at
// once if it is the only one.
func (t *Transport) hostOf(u *url.URL) *hostSlot[hostState] {
	if first := t.first.slot.Load(); isHost(first, u) {
		t.hosts.touch(first)
		return first
	}
	near := &t.near[maphash.String(hostSeed, u.Host)%uint64(len(t.near))].slot
	old := near.Load()
	if isHost(old, u) {
		t.hosts.touch(old)
		return old
	}
	k := hostKeyOf(u)
	s := t.hosts.slot(k)
	if s == nil {
		s = t.hosts.insert(k, time.Now())
	}
	if k.host == u.Host && (old == nil || old.gone.Load()) {
		near.CompareAndSwap(old, s)
		if first := t.first.slot.Load(); first == nil || first.gone.Load() {
			t.first.slot.CompareAndSwap(first, s)
		}
	}
	return s
}

// isHost reports whether s is u's host, spelled as in its key. Both schemes are http
// or https, and so differ in length.
func isHost(s *hostSlot[hostState], u *url.URL) bool {
	return s != nil && s.key.host == u.Host && len(s.key.scheme) == len(u.Scheme) && !s.gone.Load()
}

var hostSeed = maphash.MakeSeed()
