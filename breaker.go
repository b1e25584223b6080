package oncehttp

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// A Breaker refuses attempts to a host that keeps failing, so that callers fail
// at once instead of waiting for it, and the host gets room to recover. Hosts
// are told apart by scheme, name and port.
//
// It opens for a host after Failures attempts have failed in a row, or when the
// failed share of at least MinOutcomes in Window reaches Ratio. While it is open
// attempts are refused with an [*OpenError]. After OpenFor it lets one attempt
// through as a probe: success closes it, failure opens it anew. An attempt that
// cannot be repeated should it fail, such as a POST without a key, is kept from
// being the probe for one more such period, in case a better one comes.
//
// The zero value is ready to use with the defaults below. A Breaker may be
// shared by Transports, which then learn from each other; it is safe for
// concurrent use, but its fields must not change once it is in use, and it must
// not be copied. It remembers 1024 hosts, and more only while it is open for
// more: up to 8192, the least recently used of which are forgotten if there are
// even more.
type Breaker struct {
	// Disabled lets every attempt through and keeps no record of any.
	Disabled bool

	// Failures is how many attempts must fail in a row. Zero means 5; negative
	// is an error. Failures with nothing but silence for a whole Window between
	// them are not in a row.
	Failures int

	// Ratio is the share of failed attempts among those that were decided in
	// Window, above 0 and up to 1. Zero means 0.5.
	Ratio float64

	// MinOutcomes is how many must be decided before Ratio counts. Zero means
	// 10; negative is an error.
	MinOutcomes int

	// Window is the time over which Ratio is taken. It rolls on in tenths.
	// Zero means 60s or twice the Transport's AttemptTimeout, whichever is
	// longer. Anything else below twice the AttemptTimeout is an error: attempts
	// that hang would have left the window before they count.
	Window time.Duration

	// OpenFor is how long the breaker stays open before a probe. Zero means
	// 10s; negative is an error. Each time up to a fifth is added or taken off
	// at random, so that clients do not probe together.
	OpenFor time.Duration

	// ProbeTimeout is how long a probe may take. Zero means the Transport's
	// AttemptTimeout, or 30s when that is off; negative is an error.
	ProbeTimeout time.Duration

	// OnStateChange, if set, is told of every change, in order and one at a
	// time, after it has happened. It may use the Breaker. It runs in the
	// goroutine of some attempt, which waits for it, so it should be brief.
	OnStateChange func(host string, from, to BreakerState)

	hosts hostMap[hostBreaker, *hostBreaker]

	mu      sync.Mutex
	changes []stateChange // not yet delivered
	busy    bool          // somebody is delivering
}

// A BreakerState is the state of a [Breaker] for one host.
type BreakerState int

const (
	// BreakerClosed: attempts go through. The zero value.
	BreakerClosed BreakerState = iota
	// BreakerHalfOpen: one attempt, the probe, is under way or about to be;
	// others are refused.
	BreakerHalfOpen
	// BreakerOpen: attempts are refused.
	BreakerOpen
)

// String returns the state in lower case.
func (s BreakerState) String() string {
	switch s {
	case BreakerClosed:
		return "closed"
	case BreakerHalfOpen:
		return "half-open"
	case BreakerOpen:
		return "open"
	}
	return fmt.Sprintf("BreakerState(%d)", int(s))
}

// ErrOpen is what every [*OpenError] is, for errors.Is.
var ErrOpen = errors.New("oncehttp: breaker is open")

// An OpenError says that a [Breaker] refused an attempt: nothing was sent.
// errors.Is reports it as [ErrOpen].
type OpenError struct {
	// Host is the origin the breaker is open for: scheme, name, and the port
	// where it is not the scheme's own, as in https://api.example.com:8443.
	Host string

	// Until is when the next attempt may go. While a probe is under way it is
	// when the probe must have ended, and may turn out to be sooner.
	Until time.Time
}

// Error names the host and when the next attempt may go.
func (e *OpenError) Error() string {
	return fmt.Sprintf("oncehttp: breaker is open for %s, whose latest attempts failed: attempts are refused until %s",
		e.Host, e.Until.Format("2006-01-02T15:04:05.000Z07:00"))
}

// Is reports whether target is [ErrOpen].
func (e *OpenError) Is(target error) bool { return target == ErrOpen }

// A BreakerStatus is what a [Breaker] thinks of one host.
type BreakerStatus struct {
	Host  string       // as in OpenError
	State BreakerState // as of its latest attempt

	// Until is when an open breaker lets a probe through, and when the probe
	// of a half-open one must have ended. In the past it means that the next
	// attempt decides. It is zero for a closed breaker.
	Until time.Time
}

// Status returns the state of every host that the Breaker remembers, sorted by
// host. It is a snapshot for operators' pages and changes nothing.
func (b *Breaker) Status() []BreakerStatus {
	var all []BreakerStatus
	b.hosts.each(func(k hostKey, h *hostBreaker) {
		state, until := h.status()
		all = append(all, BreakerStatus{k.String(), state, until})
	})
	slices.SortFunc(all, func(x, y BreakerStatus) int { return strings.Compare(x.Host, y.Host) })
	return all
}

// State returns the state of one host, given as a URL or an origin such as
// https://api.example.com. A host that the Breaker does not know is closed.
func (b *Breaker) State(host string) BreakerStatus {
	u, err := url.Parse(host)
	if err != nil {
		return BreakerStatus{Host: host}
	}
	k := hostKeyOf(u)
	s := BreakerStatus{Host: k.String()}
	if h := b.hosts.find(k); h != nil {
		s.State, s.Until = h.status()
	}
	return s
}

// A health is what an attempt says of its host, in a Breaker's eyes.
type health uint8

const (
	healthGood health = iota
	healthBad
	healthNone // says nothing about the host
)

// How they look to a gobreaker.
var (
	errFailure = errors.New("failure")
	errNeutral = errors.New("neutral")
)

// allow asks whether an attempt to k may go. attemptTimeout is that of the
// Transport, not positive for none; repeatable says whether the request may be
// sent again should this attempt fail. The ticket of an attempt that may go must
// be told how it ended. The error is an *OpenError, or names a field of b that
// makes no sense.
func (b *Breaker) allow(k hostKey, attemptTimeout time.Duration, repeatable bool, now time.Time) (ticket, error) {
	var near hostNear[hostBreaker]
	return b.allowNear(&near, k, attemptTimeout, repeatable, now)
}

// pass is allowNear for what is by far the most frequent: a breaker that is closed,
// and known to near. It fills in t and reports whether this was one; if not,
// allowNear decides.
func (b *Breaker) pass(t *ticket, near *hostNear[hostBreaker], attemptTimeout time.Duration, now moment) bool {
	if b.Disabled {
		return true
	}
	s := near.slot.Load()
	if s == nil {
		return false
	}
	c := s.v.calm.Load()
	if c == nil || attemptTimeout > c.attemptTimeout {
		return false
	}
	b.hosts.touch(s)
	t.b, t.h, t.good, t.generation, t.start = b, &s.v, c.good, c.generation, now
	return true
}

// allowNear is allow for those who remember where k's breaker is.
func (b *Breaker) allowNear(near *hostNear[hostBreaker], k hostKey, attemptTimeout time.Duration, repeatable bool, now time.Time) (ticket, error) {
	if !b.Disabled {
		b.hosts.near(near, k, now)
	}
	var t ticket
	if b.pass(&t, near, attemptTimeout, momentOf(now)) {
		return t, nil
	}
	if err := b.check(attemptTimeout); err != nil {
		return ticket{}, err
	}
	for {
		a := b.hosts.near(near, k, now).allow(b, k, attemptTimeout, repeatable, now)
		if a.gone {
			near.forget() // evicted since; the next one is current
			continue
		}
		if a.changed {
			b.deliver()
		}
		if a.refused {
			return ticket{}, &OpenError{Host: k.String(), Until: a.until}
		}
		return a.ticket, nil
	}
}

// openUntil reports whether an attempt to k would be refused now even if it can
// be repeated, and until when. It changes nothing.
func (b *Breaker) openUntil(k hostKey, now time.Time) (until time.Time, open bool) {
	h := b.hosts.find(k)
	if b.Disabled || h == nil {
		return time.Time{}, false
	}
	if _, until = h.status(); now.Before(until) {
		return until, true
	}
	return time.Time{}, false
}

// check returns an error that names the first field that makes no sense.
func (b *Breaker) check(attemptTimeout time.Duration) error {
	switch {
	case b.Failures < 0:
		return fmt.Errorf("oncehttp: Breaker.Failures is %d: set how many failures in a row open it, or 0 for 5", b.Failures)
	case !(b.Ratio >= 0 && b.Ratio <= 1): // NaN, too
		return fmt.Errorf("oncehttp: Breaker.Ratio is %v: set a share above 0 and up to 1, or 0 for 0.5", b.Ratio)
	case b.MinOutcomes < 0:
		return fmt.Errorf("oncehttp: Breaker.MinOutcomes is %d: set how many outcomes Ratio needs, or 0 for 10", b.MinOutcomes)
	case b.Window < 0:
		return fmt.Errorf("oncehttp: Breaker.Window is %v: set a duration, or 0 for 60s or more", b.Window)
	case b.Window > 0 && b.Window/2 < attemptTimeout:
		return fmt.Errorf("oncehttp: Breaker.Window is %v, shorter than twice the AttemptTimeout of %v, so attempts that hang would not count: lengthen it or shorten that, or set 0",
			b.Window, attemptTimeout)
	case b.OpenFor < 0:
		return fmt.Errorf("oncehttp: Breaker.OpenFor is %v: set a duration, or 0 for 10s", b.OpenFor)
	case b.ProbeTimeout < 0:
		return fmt.Errorf("oncehttp: Breaker.ProbeTimeout is %v: set a duration, or 0 for the AttemptTimeout", b.ProbeTimeout)
	}
	return nil
}

// longest bounds durations that are still to be multiplied or added up.
const longest = math.MaxInt64 / 4

func (b *Breaker) windowFor(attemptTimeout time.Duration) time.Duration {
	if b.Window > 0 {
		return min(b.Window, longest)
	}
	return max(time.Minute, 2*min(attemptTimeout, longest/2))
}

func (b *Breaker) probeLimit(attemptTimeout time.Duration) time.Duration {
	switch {
	case b.ProbeTimeout > 0:
		return b.ProbeTimeout
	case attemptTimeout > 0:
		return attemptTimeout
	}
	return 30 * time.Second
}

// A stateChange waits to be told to OnStateChange.
type stateChange struct {
	k        hostKey
	from, to BreakerState
}

// deliver tells OnStateChange what has happened, unless somebody else is at it,
// who then does that too. No lock is held while it runs, so it may come back
// here: gobreaker's own hook runs under its lock (sony/gobreaker#37).
func (b *Breaker) deliver() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy {
		return
	}
	b.busy = true
	defer func() { b.busy = false }() // also if the hook panics
	for len(b.changes) > 0 {
		c := b.changes[0]
		b.changes = b.changes[1:]
		func() {
			b.mu.Unlock()
			defer b.mu.Lock()
			b.OnStateChange(c.k.String(), c.from, c.to)
		}()
	}
	b.changes = nil
}

// A hostBreaker is the breaker of one host: a gobreaker, and what is needed to
// close its traps.
//
// Everything that reaches the gobreaker goes through here under mu, so state is
// always the state it is in. It is never told anything that is out of date, as
// it would change state on that occasion.
type hostBreaker struct {
	mu     sync.Mutex
	gone   bool // no longer in the Breaker's map
	cb     *gobreaker.TwoStepCircuitBreaker[struct{}]
	window time.Duration // that of cb
	now    time.Time     // of the call in progress

	state      BreakerState
	generation uint64 // counts changes of state: results from before one are void
	changed    bool   // the call in progress has changed state

	calm           atomic.Pointer[calm]
	attemptTimeout time.Duration // the longest in window that has asked

	// Closed. gobreaker is only told of the failure that opens it. It would count
	// failures in a row within its window only, so that a lone caller of a host
	// that hangs would never reach five.
	inRow    int
	lastFail moment // once there was one
	tally    tally

	// Open and half-open: when a probe may go, and when any attempt may be it.
	until, untilAny time.Time

	// Half-open, with a probe under way.
	probing   bool
	probeEnds time.Time
	probeDone func(error)
}

// A calm is a time in which a breaker is closed and in the Breaker's map. Attempts
// of no longer a timeout go without a lock.
type calm struct {
	good           *goods
	generation     uint64
	attemptTimeout time.Duration
}

// An admission is the answer to one attempt that asks to go.
type admission struct {
	ticket  ticket
	until   time.Time // if refused
	refused bool
	gone    bool // nobody is here to answer
	changed bool // there are state changes to deliver
}

func (h *hostBreaker) allow(b *Breaker, k hostKey, attemptTimeout time.Duration, repeatable bool, now time.Time) (a admission) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == BreakerClosed && h.cb != nil && !h.gone && b.windowFor(attemptTimeout) <= h.window {
		h.attemptTimeout = max(h.attemptTimeout, attemptTimeout)
		h.calmDown()
		a.ticket = h.ticket(b, now)
		return a
	}
	if h.gone {
		return admission{gone: true}
	}
	h.now, h.changed = now, false
	defer func() { a.changed = h.changed }()

	if h.state == BreakerClosed {
		h.fresh(b, k, b.windowFor(attemptTimeout))
		h.attemptTimeout = attemptTimeout
		h.calmDown()
		a.ticket = h.ticket(b, now)
		return a
	}
	if h.probing && !now.Before(h.probeEnds) {
		// The probe's result will not come any more: a panic, Goexit or a hang
		// must not keep the breaker half-open for ever.
		h.probeDone(errFailure)
	}
	if h.probing {
		return admission{refused: true, until: h.probeEnds}
	}
	if until := h.opens(repeatable); now.Before(until) {
		return admission{refused: true, until: until}
	}

	done, err := h.cb.Allow()
	if err != nil { // gobreaker has a clock of its own
		return admission{refused: true, until: h.opens(repeatable)}
	}
	a.ticket = ticket{b: b, h: h, tell: done, generation: h.generation, start: momentOf(now)}
	if h.state == BreakerHalfOpen {
		a.ticket.limit = b.probeLimit(attemptTimeout)
		h.probing, h.probeDone, h.probeEnds = true, done, now.Add(a.ticket.limit)
	}
	return a
}

// ticket is the leave to make an attempt while the state is closed. h.mu is held.
func (h *hostBreaker) ticket(b *Breaker, now time.Time) ticket {
	return ticket{b: b, h: h, good: h.tally.latest, generation: h.generation, start: momentOf(now)}
}

// opens is when a breaker that is open may be probed.
func (h *hostBreaker) opens(repeatable bool) time.Time {
	if repeatable {
		return h.until
	}
	return h.untilAny
}

// fresh puts a new gobreaker in place. Results of attempts that the old one let
// through are void. h.mu is held and the state is closed.
func (h *hostBreaker) fresh(b *Breaker, k hostKey, window time.Duration) {
	openFor := min(cmp.Or(b.OpenFor, 10*time.Second), longest)
	h.window = window
	h.tally.reset(window, h.now)
	h.inRowNow(h.inRow)
	h.generation++
	h.cb = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		// How long it stays open is drawn anew each time, below. This is less
		// than the least of that, and not zero, which would mean a minute.
		Timeout:      openFor/2 + 1,
		IsSuccessful: func(err error) bool { return err == nil },
		IsExcluded:   func(err error) bool { return err == errNeutral },
		ReadyToTrip:  func(gobreaker.Counts) bool { return true }, // it is told of no other failure
		OnStateChange: func(_ string, from, to gobreaker.State) {
			h.change(b, k, BreakerState(from), BreakerState(to), openFor)
		},
	})
}

// trips reports whether the failures that are counted are enough to open it.
func (h *hostBreaker) trips(b *Breaker) bool {
	h.tally.settle()
	// Not the attempts in flight, nor neutral ones.
	decided := h.tally.allGood + h.tally.allBad
	return h.inRow >= cmp.Or(b.Failures, 5) ||
		decided >= uint64(cmp.Or(b.MinOutcomes, 10)) && float64(h.tally.allBad) >= cmp.Or(b.Ratio, 0.5)*float64(decided)
}

// change records a change of state. h.mu is held.
func (h *hostBreaker) change(b *Breaker, k hostKey, from, to BreakerState, openFor time.Duration) {
	h.state = to
	h.generation++
	h.calm.Store(nil)
	h.probing, h.probeDone = false, nil
	switch to {
	case BreakerOpen:
		fifth := openFor / 5
		d := openFor - fifth + time.Duration(rand.Int64N(int64(2*fifth)+1))
		h.until = h.now.Add(d)
		h.untilAny = h.until.Add(d)
	case BreakerClosed:
		h.until, h.untilAny = time.Time{}, time.Time{}
		h.tally.reset(h.window, h.now)
		h.inRowNow(h.inRow)
		h.calmDown()
	}
	if b.OnStateChange == nil {
		return
	}
	h.changed = true
	b.mu.Lock()
	b.changes = append(b.changes, stateChange{k, from, to})
	b.mu.Unlock()
}

// calmDown lets attempts go without a lock. h.mu is held and the state is closed.
func (h *hostBreaker) calmDown() {
	h.calm.Store(&calm{h.tally.latest, h.generation, h.attemptTimeout})
}

// inRowNow sets how many attempts have failed in a row. h.mu is held.
func (h *hostBreaker) inRowNow(n int) {
	h.inRow = n
	h.tally.latest.row.Store(n > 0)
}

// status returns the state, and until when it refuses attempts.
func (h *hostBreaker) status() (BreakerState, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.probing {
		return h.state, h.probeEnds
	}
	return h.state, h.until
}

// leave lets go of a breaker, unless it is open or waits for its probe.
func (h *hostBreaker) leave(now time.Time, must bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = must || !now.Before(h.untilAny) && !(h.probing && now.Before(h.probeEnds))
	if h.gone {
		h.calm.Store(nil)
	}
	return h.gone
}

// A ticket is a Breaker's leave to make one attempt. It is told how the attempt
// ended, once. One that is never told does no harm. The zero ticket is that of
// no breaker. A ticket is not to be copied once it is in use.
type ticket struct {
	b          *Breaker
	h          *hostBreaker
	good       *goods      // nil: a probe
	tell       func(error) // of a probe
	generation uint64
	start      moment
	limit      time.Duration // of a probe
	told       bool          // under h.mu
}

// probe reports whether the attempt is the probe of a half-open breaker, which
// must end within limit: after that it counts as failed.
func (t *ticket) probe() (limit time.Duration, ok bool) { return t.limit, t.limit > 0 }

// done says how the attempt ended. Only the first call counts, and only while
// the breaker is still in the state in which it let the attempt through.
func (t *ticket) done(v health, now time.Time) { t.doneAt(v, momentOf(now)) }

func (t *ticket) doneAt(v health, now moment) {
	switch {
	case t.h == nil:
	// By far the most frequent. If the breaker has changed its state since, or is
	// forgotten, nobody will look at what is counted here.
	case v == healthGood && t.good != nil && !t.told && t.good.add(now):
		t.told = true
	case t.h.done(t, v, now.time()):
		t.b.deliver()
	}
}

func (h *hostBreaker) done(t *ticket, v health, now time.Time) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.told {
		return false
	}
	t.told = true
	if h.gone || t.generation != h.generation {
		return false
	}
	h.now, h.changed = now, false
	h.probing, h.probeDone = false, nil
	switch v {
	case healthGood:
		h.inRowNow(0)
		h.tell(t, nil)
	case healthBad:
		if t.start.since(h.lastFail) > h.window {
			h.inRow = 0
		}
		h.inRowNow(h.inRow + 1)
		h.lastFail = momentOf(now)
		h.tell(t, errFailure)
	default:
		h.tell(t, errNeutral)
	}
	return h.changed
}

// tell counts an outcome, or hands that of a probe on.
func (h *hostBreaker) tell(t *ticket, err error) {
	if t.tell != nil {
		t.tell(err)
		return
	}
	if err == errNeutral {
		return
	}
	h.tally.add(err == nil, h.now)
	if err == nil || !h.trips(t.b) {
		return
	}
	if done, refused := h.cb.Allow(); refused == nil {
		done(errFailure)
	}
}
