package redisstore

import (
	"container/list"
	"fmt"
)

// A queue holds the calls that nobody has sent yet, in their order. While the
// server hangs it must not take the program's memory.
type queue struct {
	calls    list.List
	bytes    int // of all arguments
	max      int // calls
	maxBytes int
}

const (
	// A server that is well takes so many calls in a fifth of a second.
	maxQueued      = 10_000
	maxQueuedBytes = 64 << 20

	// What one batch holds at most: with more the first of its calls would wait
	// for the last.
	maxBatch      = 128
	maxBatchBytes = 1 << 20
)

func (q *queue) add(c *call) error {
	size := c.bytes()
	if q.calls.Len() >= q.max || q.bytes+size > q.maxBytes {
		return errCrowded(int64(q.calls.Len()))
	}
	q.bytes += size
	c.place = q.calls.PushBack(c)
	return nil
}

// remove reports whether the call was there.
func (q *queue) remove(c *call) bool {
	if c.place == nil {
		return false
	}
	q.calls.Remove(c.place)
	q.bytes -= c.bytes()
	c.place = nil
	return true
}

// take appends to a batch what may still go with it.
func (q *queue) take(batch []*call) []*call {
	for bytes := 0; len(batch) < maxBatch && bytes < maxBatchBytes && q.calls.Len() > 0; {
		c := q.calls.Front().Value.(*call)
		q.remove(c)
		bytes += c.bytes()
		batch = append(batch, c)
	}
	return batch
}

func errCrowded(calls int64) error {
	return fmt.Errorf("not sent: %d calls already wait for the server, which does not answer, or is slower than it is asked", calls)
}
