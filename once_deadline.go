package oncehttp

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A callCtx is the context of one store call: the values of the work's caller, a
// deadline, and not the caller's end, since a claim that is torn off half-way
// is the beginning of every double effect. It differs from one made by
// context.WithTimeout in that it costs nothing until a store looks at Done, and
// no timer of its own then.
type callCtx struct {
	context.Context
	deadline time.Time
	all      *sharedTimer[*callCtx]

	mu    sync.Mutex
	done  chan struct{} // made when it is first needed
	after []*func()     // what to run at the end
	err   error

	alarm alarm[*callCtx] // of the deadline
}

// newCall returns the context of a store call that may take d.
func (o *Once) newCall(base context.Context, d time.Duration) *callCtx {
	return &callCtx{Context: base, deadline: time.Now().Add(d), all: &o.deadlines}
}

// Deadline implements context.Context.
func (c *callCtx) Deadline() (time.Time, bool) { return c.deadline, true }

// Done implements context.Context.
func (c *callCtx) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		} else {
			c.all.add(&c.alarm, c, momentOf(c.deadline), 0)
		}
	}
	return c.done
}

// AfterFunc is what package context asks for, so that contexts that a store makes
// of this one need no goroutine to wait for its end. See [context.AfterFunc].
func (c *callCtx) AfterFunc(f func()) (stop func() bool) {
	c.Done() // has the deadline watched
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	c.after = append(c.after, &f)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.after, &f)
		if i < 0 {
			return false
		}
		c.after = slices.Delete(c.after, i, i+1)
		return true
	}
}

// Err implements context.Context.
func (c *callCtx) Err() error {
	if !time.Now().Before(c.deadline) {
		c.end(context.DeadlineExceeded)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// timeUp ends the context because of its deadline.
func (c *callCtx) timeUp() { c.end(context.DeadlineExceeded) }

// end ends the context, unless it has ended.
func (c *callCtx) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	if c.done == nil {
		return
	}
	c.all.remove(&c.alarm)
	close(c.done)
	for _, f := range c.after {
		go (*f)()
	}
	c.after = nil
}
