package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A call is something that one method wants written. The writer does it, with
// others, in one transaction.
type call struct {
	what string // for errors
	do   func(*writer, *call) error
	op   oncehttp.Op

	lease, keep int64 // microseconds
	orphans     bool  // TakeOver
	owner       int64 // of a transactional claim; else 0
	head, body  []byte
	dropBody    bool // there is no room for it
	resolution  oncehttp.Resolution
	limit       int // Sweep

	// running is what a claim is answered with if the write lock cannot be had
	// soon: the key has a transactional claim of another store on this file, and
	// whoever holds the lock may be running it.
	running *oncehttp.Claim

	gone int64 // a store on this file that is known to have ended; 0: none

	claim   oncehttp.Claim
	swept   int
	err     error
	changed bool // those who wait for the key are to be woken
	done    chan struct{}

	queue      *queue // that it waits in; nil: not any more
	prev, next *call
	abandoned  <-chan struct{}
}

// reset forgets what was done of a call, because it was rolled back.
func (c *call) reset() {
	c.claim, c.swept, c.err, c.changed = oncehttp.Claim{}, 0, nil, false
}

// size is what a call weighs in a transaction.
func (c *call) size() int { return 256 + len(c.head) + len(c.body) }

// A queue holds calls in the order in which they came.
type queue struct {
	mu          sync.Mutex
	first, last *call
	closed      bool
	ready       chan struct{} // holds a token when there may be something to do
}

// glance is how long to wait for the write lock only to see whether it is free.
const glance = 50 * time.Millisecond

// write is submit for methods that have not entered the store.
func (s *Store) write(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.users.Done()
	return s.submit(ctx, c)
}

// submit has the writer do c and waits for it, for ctx, or until no write lock was
// to be had for as long as WithBusyTimeout says. A call that was not begun by then
// never will be.
func (s *Store) submit(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// The caller may use its slices for something else as soon as we return, and
	// we return when ctx ends, whatever the writer is doing then.
	c.head, c.body = slices.Clone(c.head), slices.Clone(c.body)
	c.done = make(chan struct{})
	c.abandoned = ctx.Done()
	if !s.queue.push(c) {
		return ErrClosed
	}
	wait := s.busy()
	if c.running != nil {
		wait = min(wait, glance)
	}
	patience := time.NewTimer(wait)
	defer patience.Stop()
	late := patience.C
	for {
		select {
		case <-c.done:
			return s.answer(ctx, c)
		case <-ctx.Done():
			if !s.queue.remove(c) && c.settled() {
				return s.answer(ctx, c)
			}
			return s.waited(c.what, ctx)
		case <-late:
			switch {
			case !s.queue.remove(c):
				late = nil // it is being done
			case c.running != nil:
				c.claim = *c.running
				return nil
			default:
				return s.lockedOut(c.what)
			}
		}
	}
}

// settled waits for a call that is being done although its context has ended: who
// looks at the key next had better see all of it or nothing. But a disk that hangs
// is not waited for.
func (c *call) settled() bool {
	stall := time.NewTimer(time.Second)
	defer stall.Stop()
	select {
	case <-c.done:
		return true
	case <-stall.C:
		return false
	}
}

func (s *Store) answer(ctx context.Context, c *call) error {
	if c.err == errAbandoned {
		return s.waited(c.what, ctx)
	}
	return explain(c.what, s.path, c.err)
}

var errAbandoned = errors.New("the caller's context had ended")

// lockedOut is the error of a call that waited in vain for the write lock.
func (s *Store) lockedOut(what string) error {
	return &fault{what: what, path: s.path, kind: ErrLocked, cause: fmt.Errorf("no write lock for %v", s.busy())}
}

// push adds a call, unless the store is closed.
func (q *queue) push(c *call) bool {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return false
	}
	c.queue = q
	if c.prev = q.last; c.prev == nil {
		q.first = c
	} else {
		c.prev.next = c
	}
	q.last = c
	q.mu.Unlock()
	q.wake()
	return true
}

// wake lets the writer look at the queue.
func (q *queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// remove takes a call back and reports whether that was in time.
func (q *queue) remove(c *call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.unlink(c)
}

func (q *queue) unlink(c *call) bool {
	if c.queue == nil {
		return false
	}
	if c.prev == nil {
		q.first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		q.last = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.queue, c.prev, c.next = nil, nil, nil
	return true
}

// pop takes the first call, or returns nil.
func (q *queue) pop() *call {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.first
	if c != nil {
		q.unlink(c)
	}
	return c
}

// empty reports whether nobody waits, and whether nobody will.
func (q *queue) empty() (empty, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.first == nil, q.closed
}

// close lets no more calls in.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.wake()
}
