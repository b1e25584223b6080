package sqlitestore

import (
	"context"
	"slices"
	"sync"
)

// A turn is this store's right to use its writing connection, or to hold the
// file's write lock in a transaction of its own. It is asked for in Go and not in
// SQLite, which lets those who wait sleep and try again, so that the last to come
// may be the first to get it.
//
// The writer and the transactions take turns: many handlers that queue for their
// transaction do not hold up the claims of others, nor the reverse.
type turn struct {
	mu       sync.Mutex
	taken    bool
	lent     bool          // to a transaction
	writer   chan struct{} // the writer waits; there is one
	handlers []chan struct{}
}

// lock waits for the turn, or for ctx. A handler's transaction is lent it.
func (t *turn) lock(ctx context.Context, lent bool) error {
	t.mu.Lock()
	if !t.taken {
		t.taken, t.lent = true, lent
		t.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	if lent {
		t.handlers = append(t.handlers, mine)
	} else {
		t.writer = mine
	}
	t.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.handlers, mine)
	switch {
	case i >= 0:
		t.handlers = slices.Delete(t.handlers, i, i+1)
	case t.writer == mine:
		t.writer = nil
	default: // it was given to us at that moment
		t.mu.Unlock()
		t.unlock()
		return ctx.Err()
	}
	t.mu.Unlock()
	return ctx.Err()
}

// tryLock takes the turn for the writer if nobody has it.
func (t *turn) tryLock() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken {
		return false
	}
	t.taken = true
	return true
}

// unlock hands the turn on: from a handler to the writer if that waits, and from
// the writer to the handler that has waited longest.
func (t *turn) unlock() {
	t.mu.Lock()
	defer t.mu.Unlock()
	var next chan struct{}
	switch {
	case t.writer != nil && (t.lent || len(t.handlers) == 0):
		next, t.writer = t.writer, nil
		t.lent = false
	case len(t.handlers) > 0:
		next = t.handlers[0]
		t.handlers = slices.Delete(t.handlers, 0, 1)
		t.lent = true
	default:
		t.taken, t.lent = false, false
		return
	}
	close(next)
}

// isLent reports whether a handler's transaction has the turn.
func (t *turn) isLent() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lent
}
