package redisstore

import (
	"container/list"
	"fmt"
	"slices"
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
	if q.calls.Len() >= q.max || q.bytes+c.size > q.maxBytes {
		return errCrowded(int64(q.calls.Len()))
	}
	q.bytes += c.size
	c.place = q.calls.PushBack(c)
	return nil
}

// restore puts calls that were taken back to the front. There may be too many then,
// by a batch.
func (q *queue) restore(calls []*call) {
	for _, c := range slices.Backward(calls) {
		q.bytes += c.size
		c.place = q.calls.PushFront(c)
	}
}

func (q *queue) first() *call { return q.calls.Front().Value.(*call) }

// remove reports whether the call was there.
func (q *queue) remove(c *call) bool {
	if c.place == nil {
		return false
	}
	q.calls.Remove(c.place)
	q.bytes -= c.size
	c.place = nil
	return true
}

// take appends to a batch what may go with it, while that has fewer bytes than most.
// It ends before the first that does not fit, if not all do.
func (q *queue) take(batch []*call, most int, fits func(*call) bool) []*call {
	bytes := 0
	for _, c := range batch {
		bytes += c.size
	}
	for len(batch) < maxBatch && bytes < most && q.calls.Len() > 0 {
		c := q.first()
		if fits != nil && !fits(c) {
			break
		}
		q.remove(c)
		bytes += c.size
		batch = append(batch, c)
	}
	return batch
}

func errCrowded(calls int64) error {
	return fmt.Errorf("not sent: %d calls already wait for the server, which does not answer, or is slower than it is asked", calls)
}
