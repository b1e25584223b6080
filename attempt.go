package oncehttp

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// An attempt is what one pass through Base needs. It is the context of the
// request that Base gets, and makes what somebody can wait for only when
// somebody asks: a Base that answers from memory starts no timer.
type attempt struct {
	c     *call
	sent  http.Request // what Base gets
	ends  bool         // its context may end before the call's
	watch bool         // its certainty matters
	up    *upload      // its body; nil: it has none, or one that net/http knows to be in memory
	reply replyBody

	start   moment
	timeout time.Duration // 0: none
	strict  bool          // the time is fixed, whatever moves
	ended   atomic.Bool   // set under mu

	trace atomic.Pointer[connTrace] // nil until somebody asks for it

	mu       sync.Mutex
	ctx      context.Context // nil until somebody asks for it
	cancel   context.CancelFunc
	timer    *time.Timer
	over     bool // the headers are there, or never will be
	timedOut bool
	starved  bool // while it waited for the caller's body
}

// Deadline is the caller's. The attempt's own moves.
func (a *attempt) Deadline() (time.Time, bool) { return a.c.Deadline() }

func (a *attempt) Done() <-chan struct{} {
	if !a.ends {
		return a.c.Done()
	}
	return a.wake().Done()
}

func (a *attempt) Err() error {
	if !a.ends {
		return a.c.Err()
	}
	return a.wake().Err()
}

func (a *attempt) Value(k any) any {
	if a.watch && k == traceKey {
		return a.hooks()
	}
	a.mu.Lock()
	ctx := a.ctx
	a.mu.Unlock()
	if ctx != nil {
		return ctx.Value(k) // package context looks for its own type there
	}
	return a.c.Value(k)
}

// wake makes the context that can be waited for, and starts the timer.
func (a *attempt) wake() context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ctx != nil {
		return a.ctx
	}
	a.ctx, a.cancel = context.WithCancel(a.c)
	switch {
	case a.ended.Load():
		a.cancel()
	case a.timeout > 0 && !a.over:
		a.timer = time.AfterFunc(a.left(thisMoment()), a.expire)
	}
	return a.ctx
}

// bound limits the wait for headers.
func (a *attempt) bound(timeout time.Duration, strict bool, now moment) {
	if timeout <= 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.start, a.timeout, a.strict = now, timeout, strict
	if a.ctx != nil {
		a.timer = time.AfterFunc(timeout, a.expire) // Prepare has asked
	}
}

// left is how much of the timeout is left. It starts anew when the body moves.
func (a *attempt) left(now moment) time.Duration {
	gone := now.since(a.start)
	if a.up != nil && !a.strict {
		if moved := a.up.moved.Load(); moved != 0 {
			gone = min(gone, now.since(moment(moved)))
		}
	}
	return a.timeout - gone
}

// expire ends the attempt if its timeout has passed, and otherwise waits for
// the rest of it.
func (a *attempt) expire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	if left := a.left(thisMoment()); left > 0 {
		a.timer.Reset(left)
		return
	}
	a.over, a.timedOut = true, true
	a.starved = a.up != nil && a.up.asking.Load()
	a.cancel()
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
	case a.timer != nil:
		a.timer.Stop()
	default: // nobody could have noticed a timer
		a.timedOut = a.left(now) <= 0
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
	defer a.mu.Unlock()
	a.over = true
	a.ended.Store(true)
	if a.timer != nil {
		a.timer.Stop()
	}
	if a.cancel != nil {
		a.cancel()
	}
}
