package lab

import (
	"bytes"
	"net/http"
	"sync/atomic"
	"time"
)

// A bodyKind is how a client hands over a request's body.
type bodyKind string

const (
	bodyNone    bodyKind = "no body"
	bodyBytes   bodyKind = "a body with GetBody"
	bodyReader  bodyKind = "a body without GetBody"
	bodyChunked bodyKind = "a body of unknown length"
	bodyPipe    bodyKind = "a body that comes in pieces"
)

// A body is the body of a client's request. It watches how it is used.
type body struct {
	w      *world
	id     callID
	r      *bytes.Reader
	pieces bool
	d      dice

	reading atomic.Bool
	closed  atomic.Int32
	done    chan struct{}
}

// longestRead is how long a Read of a body that comes in pieces takes at most.
const longestRead = 2*time.Second + 10*time.Microsecond

func (w *world) newBody(id callID, text []byte, pieces bool) *body {
	b := &body{w: w, id: id, r: bytes.NewReader(text), pieces: pieces, done: make(chan struct{}),
		d: w.seed.roll("body", id.client, id.action, id.call)}
	w.mu.Lock()
	w.bodies = append(w.bodies, b)
	w.mu.Unlock()
	return b
}

func (b *body) Read(p []byte) (int, error) {
	if b.reading.Swap(true) {
		b.w.broke(tryID{callID: b.id}, 5, "two readers read one request body at the same time")
	}
	defer b.reading.Store(false)
	if b.closed.Load() > 0 {
		return 0, http.ErrBodyReadAfterClose
	}
	if b.pieces {
		t := time.NewTimer(b.d.spread(time.Microsecond, longestRead))
		defer t.Stop()
		select {
		case <-t.C:
		case <-b.done:
			return 0, http.ErrBodyReadAfterClose
		}
		p = p[:min(len(p), 10)]
	}
	return b.r.Read(p)
}

func (b *body) Close() error {
	if b.closed.Add(1) == 1 {
		close(b.done)
	}
	return nil
}
