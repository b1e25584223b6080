package oncehttp

import (
	"container/heap"
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
	all      *deadlines

	mu    sync.Mutex
	done  chan struct{} // made when it is first needed
	after []*func()     // what to run at the end
	err   error

	place int // in all, from 1 on; 0: not there
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
			c.all.add(c)
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
	c.all.remove(c)
	close(c.done)
	for _, f := range c.after {
		go (*f)()
	}
	c.after = nil
}

// deadlines ends store calls whose time is over. They share one timer, which stays
// set when the call is over for which it was: to set one for each call and to stop
// it again, mostly some microseconds later, wakes a thread of the runtime each time
// and costs more than many a store's answer.
type deadlines struct {
	mu    sync.Mutex
	calls byDeadline
	timer *time.Timer
	next  time.Time // when the timer fires; zero: never
}

// add has a call ended at its deadline.
func (d *deadlines) add(c *callCtx) {
	d.mu.Lock()
	defer d.mu.Unlock()
	heap.Push(&d.calls, c)
	if d.next.IsZero() || c.deadline.Before(d.next) {
		d.set(c.deadline)
	}
}

// set sets the timer.
func (d *deadlines) set(at time.Time) {
	d.next = at
	if d.timer == nil {
		d.timer = time.AfterFunc(time.Until(at), d.expire)
		return
	}
	d.timer.Reset(time.Until(at))
}

// remove forgets a call that has ended.
func (d *deadlines) remove(c *callCtx) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.place > 0 {
		heap.Remove(&d.calls, c.place-1)
	}
}

// expire ends the calls whose time is over.
func (d *deadlines) expire() {
	for _, c := range d.due(time.Now()) {
		c.end(context.DeadlineExceeded)
	}
}

// due takes out what is due, and sets the timer for what is not.
func (d *deadlines) due(now time.Time) (calls []*callCtx) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.calls) > 0 && !now.Before(d.calls[0].deadline) {
		calls = append(calls, heap.Pop(&d.calls).(*callCtx))
	}
	d.next = time.Time{}
	if len(d.calls) > 0 {
		d.set(d.calls[0].deadline)
	}
	return calls
}

// byDeadline is a heap of calls, each of which knows its place.
type byDeadline []*callCtx

func (b byDeadline) Len() int           { return len(b) }
func (b byDeadline) Less(i, j int) bool { return b[i].deadline.Before(b[j].deadline) }

func (b byDeadline) Swap(i, j int) {
	b[i], b[j] = b[j], b[i]
	b[i].place, b[j].place = i+1, j+1
}

func (b *byDeadline) Push(x any) {
	c := x.(*callCtx)
	*b = append(*b, c)
	c.place = len(*b)
}

func (b *byDeadline) Pop() any {
	last := len(*b) - 1
	c := (*b)[last]
	(*b)[last] = nil
	*b, c.place = (*b)[:last], 0
	return c
}
