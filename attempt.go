package oncehttp

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// An attempt is what one pass through Base needs. It is the context of the
// request that Base gets, and makes what somebody can wait for only when
// somebody asks: a Base that answers from memory waits for no timer.
type attempt struct {
	c     *trail
	t     *Transport
	sent  http.Request              // what Base gets
	up    *upload                   // its body; nil: it has none, or one that net/http knows to be in memory
	reply io.ReadCloser             // its response's body
	trace atomic.Pointer[connTrace] // nil until somebody asks for it

	start   moment
	timeout time.Duration // 0: none

	alarm alarm[*attempt] // of its timeout

	// What can be waited for, nil until somebody asks. One of them: see wake.
	done chan struct{}
	made atomic.Pointer[madeContext]

	after *follower // who is to be told when done is closed

	mu       sync.Mutex
	ended    atomic.Bool // set under mu
	ends     bool        // its context may end before the call's
	watch    bool        // its certainty matters
	strict   bool        // the time is fixed, whatever moves
	timed    bool        // somebody waits, and so the timeout is kept
	over     bool        // the headers are there, or never will be
	timedOut bool
	starved  bool // while it waited for the caller's body
	closed   bool // its context has ended
}

// A madeContext is one that package context made.
type madeContext struct {
	context.Context
	cancel context.CancelFunc
}

// Deadline is the caller's. The attempt's own moves.
func (a *attempt) Deadline() (time.Time, bool) { return a.c.Deadline() }

func (a *attempt) Done() <-chan struct{} {
	if !a.ends {
		return a.c.Done()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if made := a.wake(); made != nil {
		return made.Done()
	}
	return a.done
}

func (a *attempt) Err() error {
	if !a.ends {
		return a.c.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if made := a.wake(); made != nil {
		return made.Err()
	}
	if !a.closed {
		return nil
	}
	return context.Canceled
}

func (a *attempt) Value(k any) any {
	if a.watch && k == traceKey {
		return a.hooks()
	}
	if made := a.made.Load(); made != nil {
		return made.Value(k) // package context looks for its own type there
	}
	return a.c.Value(k)
}

// AfterFunc is what package context asks for, so that a context that net/http makes
// of this one needs no goroutine to wait for its end. See [context.AfterFunc].
func (a *attempt) AfterFunc(f func()) (stop func() bool) {
	if !a.ends {
		return context.AfterFunc(a.c, f)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if made := a.wake(); made != nil {
		return context.AfterFunc(made, f)
	}
	w := &follower{a, f, a.after}
	if a.closed {
		go f()
	} else {
		a.after = w
	}
	return w.stop
}

// A follower has f called when a's context ends.
type follower struct {
	a    *attempt
	f    func()
	next *follower
}

// stop reports whether it kept f from being called.
func (w *follower) stop() bool {
	w.a.mu.Lock()
	defer w.a.mu.Unlock()
	for p := &w.a.after; *p != nil; p = &(*p).next {
		if *p == w {
			*p = w.next
			return true
		}
	}
	return false
}

// wake makes what can be waited for, and has the timeout kept. That is a context of
// package context, which is returned, or a channel where that is enough: where the
// caller's context never ends and Base is net/http's own, the one context that net/http
// makes of this one is told of the end by AfterFunc, which takes less than half of what a
// context and its list of one child do. But what AfterFunc calls has a goroutine of its
// own, and a caller who has left before the request is sent should find it unsent. And
// another Base may put a third context in between, as those that trace do, through which
// package context needs a goroutine to wait for one that is not its own. a.mu is held.
func (a *attempt) wake() *madeContext {
	made := a.made.Load()
	if a.done != nil || made != nil {
		return made
	}
	if a.t.overNetHTTP() && a.c.Done() == nil {
		a.done = make(chan struct{})
		if a.closed {
			close(a.done)
		}
	} else {
		ctx, cancel := context.WithCancel(a.c)
		made = &madeContext{ctx, cancel}
		a.made.Store(made)
		if a.closed {
			cancel()
		}
	}
	if a.timeout > 0 {
		a.wait()
	}
	return made
}

// overNetHTTP reports whether Base is net/http's own.
func (t *Transport) overNetHTTP() bool {
	_, ok := t.base().(*http.Transport)
	return ok
}

// close ends the context. a.mu is held, and what is returned is to be canceled when it no
// longer is, unless it is nil: that asks the caller's context, which may block, and the
// call should end without it.
func (a *attempt) close() *madeContext {
	if a.closed {
		return nil
	}
	a.closed = true
	if a.done != nil {
		close(a.done)
	}
	for ; a.after != nil; a.after = a.after.next {
		go a.after.f()
	}
	return a.made.Load()
}

// bound limits the wait for headers.
func (a *attempt) bound(timeout time.Duration, strict bool, now moment) {
	if timeout <= 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.start, a.timeout, a.strict = now, timeout, strict
	if a.done != nil || a.made.Load() != nil {
		a.wait() // Prepare has asked
	}
}

// wait has the attempt end when its timeout is over. a.mu is held.
func (a *attempt) wait() {
	if a.closed || a.over {
		return
	}
	a.timed = true
	a.t.timeouts.add(&a.alarm, a, a.timedFrom(), a.timeout)
}

// timedFrom is when the timeout begins. It starts anew when the body moves.
func (a *attempt) timedFrom() moment {
	from := a.start
	if a.up != nil && !a.strict {
		if moved := moment(a.up.moved.Load()); moved != 0 {
			from = max(from, moved)
		}
	}
	return from
}

// late reports whether the timeout is over.
func (a *attempt) late(now moment) bool {
	return a.timedFrom().after(a.timeout) <= now
}

// timeUp ends the attempt if its timeout is over, and otherwise waits for the rest
// of it.
func (a *attempt) timeUp() {
	a.mu.Lock()
	var made *madeContext
	switch {
	case a.over:
	case !a.late(thisMoment()):
		a.wait()
	default:
		a.over, a.timedOut = true, true
		a.starved = a.up != nil && a.up.asking.Load()
		made = a.close()
	}
	a.mu.Unlock()
	if made != nil {
		made.cancel()
	}
}

// settle says that the wait for headers is over, and reports whether it was
// too long.
func (a *attempt) settle(now moment) (late bool) {
	if a == nil || a.timeout <= 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.over:
	case a.timed:
		a.t.timeouts.remove(&a.alarm)
	default: // nobody could have noticed a timer
		a.timedOut = a.late(now)
	}
	a.over = true
	return a.timedOut
}

// end ends the attempt's context and frees what it holds.
func (a *attempt) end() {
	if a == nil || a.ended.Load() {
		return
	}
	a.mu.Lock()
	if a.timed && !a.over {
		a.t.timeouts.remove(&a.alarm)
	}
	a.over = true
	a.ended.Store(true)
	made := a.close()
	a.mu.Unlock()
	if made != nil {
		made.cancel()
	}
}
