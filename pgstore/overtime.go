package pgstore

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// overtime is how much longer than its context a statement may take that is under
// way. To tear it off ends its connection, and leaves it to the server whether it
// takes effect, perhaps after the caller was told that it failed.
const overtime = 100 * time.Millisecond

// lateContext returns a context that ends some time after ctx. Call done after use.
func lateContext(ctx context.Context, by time.Duration) (late context.Context, done func()) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(by)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-late.Done():
		}
	})
	return late, func() {
		stop()
		cancel()
	}
}

// overtimes does the same for statements that are to cost less than the contexts of
// lateContext do: it looks from time to time which of those that are under way
// should have ended. Its zero value is ready to use.
type overtimes struct {
	mu    sync.Mutex
	first *flight
	timer *time.Timer
	set   bool // the timer is
}

// glance is how often overtimes looks, while there is something to look at.
const glance = overtime / 4

// A flight is a statement that is under way.
type flight struct {
	ctx   context.Context
	conn  *pgx.Conn
	ended time.Time        // when ctx was first seen to have ended
	torn  ctxwatch.Handler // what ended the statement; nil: nothing has

	prev, next *flight
}

// begin has f looked at until end is called.
func (o *overtimes) begin(f *flight) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f.next = o.first
	if f.next != nil {
		f.next.prev = f
	}
	o.first = f
	if o.set {
		return
	}
	o.set = true
	if o.timer == nil {
		o.timer = time.AfterFunc(glance, o.tick)
		return
	}
	o.timer.Reset(glance)
}

// end leaves f empty, and says why its context had it torn, if it had.
func (o *overtimes) end(f *flight) (cause error) {
	o.mu.Lock()
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		o.first = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	}
	o.mu.Unlock()
	if f.torn != nil {
		f.torn.HandleUnwatchAfterCancel()
		cause = f.ctx.Err()
	}
	*f = flight{}
	return cause
}

// tick tears off what goes on for too long, in the way that the connection was
// configured for.
func (o *overtimes) tick() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for f := o.first; f != nil; f = f.next {
		switch {
		case f.torn != nil || f.ctx.Err() == nil:
		case f.ended.IsZero():
			f.ended = now
		case now.Sub(f.ended) >= overtime:
			f.torn = f.conn.Config().BuildContextWatcherHandler(f.conn.PgConn())
			f.torn.HandleCancel(f.ctx)
		}
	}
	if o.set = o.first != nil; o.set {
		o.timer.Reset(glance)
	}
}
