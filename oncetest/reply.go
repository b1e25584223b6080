package oncetest

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"
)

// A reply is what the handler answers in a bad network: kept as the handler writes
// it, and passed on as the network sees fit. It is the handler's ResponseWriter.
type reply struct {
	w http.ResponseWriter // for the deadlines only; nil: a copy, without a connection

	mu      sync.Mutex
	more    sync.Cond
	header  http.Header
	status  int
	pieces  []piece
	deaf    bool // nobody is interested
	broken  bool // and the handler is to know
	over    bool
	how     ending
	trailer http.Header // what header had become at the end
}

// A piece of a reply: a head, informational or not, or bytes of the body, or a
// flush.
type piece struct {
	status int
	header http.Header
	body   []byte
	flush  bool
}

var errBroken = errors.New("oncetest: the connection is broken")

func newReply(w http.ResponseWriter) *reply {
	q := &reply{w: w, header: http.Header{}}
	q.more.L = &q.mu
	return q
}

func (q *reply) Header() http.Header { return q.header }

func (q *reply) WriteHeader(code int) {
	if code < 100 || code > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", code)) // as net/http does
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writeHeader(code)
}

func (q *reply) writeHeader(code int) {
	if q.status != 0 {
		return
	}
	if code >= 200 || code == http.StatusSwitchingProtocols {
		q.status = code
	}
	q.push(piece{status: code, header: q.header.Clone()})
}

func (q *reply) Write(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.status == 0 {
		q.writeHeader(http.StatusOK)
	}
	switch {
	case q.status < 200 || q.status == http.StatusNoContent || q.status == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	case q.broken:
		return 0, errBroken
	}
	if len(b) > 0 {
		q.push(piece{body: append([]byte(nil), b...)})
	}
	return len(b), nil
}

func (q *reply) Flush() { q.FlushError() }

func (q *reply) FlushError() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.status == 0 {
		q.writeHeader(http.StatusOK)
	}
	if q.broken {
		return errBroken
	}
	q.push(piece{flush: true})
	return nil
}

// Hijack fails: what the handler would say on a connection of its own could not
// meet the send's faults.
func (q *reply) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, fmt.Errorf("oncetest: a send with a fault cannot be hijacked: %w", http.ErrNotSupported)
}

func (q *reply) SetReadDeadline(t time.Time) error {
	if q.w == nil {
		return nil
	}
	return http.NewResponseController(q.w).SetReadDeadline(t)
}

func (q *reply) SetWriteDeadline(t time.Time) error {
	if q.w == nil {
		return nil
	}
	return http.NewResponseController(q.w).SetWriteDeadline(t)
}

// EnableFullDuplex has nothing to do: the body was read before.
func (q *reply) EnableFullDuplex() error { return nil }

func (q *reply) push(p piece) {
	if !q.deaf {
		q.pieces = append(q.pieces, p)
		q.more.Broadcast()
	}
}

// finish notes how the handler ended.
func (q *reply) finish(how ending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.status == 0 && how.ok() {
		q.writeHeader(http.StatusOK)
	}
	q.over, q.how, q.trailer = true, how, q.header.Clone()
	q.more.Broadcast()
}

// answer is what a fault answers in place of a handler.
func (q *reply) answer(f Fault) {
	q.header.Set("Content-Type", "text/plain; charset=utf-8")
	maps.Copy(q.header, f.header)
	q.WriteHeader(f.status)
	fmt.Fprintln(q, f.status, http.StatusText(f.status))
	q.finish(ending{})
}

// next waits for the next piece; without one the handler has ended.
func (q *reply) next() (p piece, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.pieces) == 0 && !q.over {
		q.more.Wait()
	}
	if len(q.pieces) == 0 {
		return piece{}, false
	}
	p = q.pieces[0]
	q.pieces = q.pieces[1:]
	return p, true
}

// swallow waits until the handler has ended and notes what it would have answered.
func (q *reply) swallow(x *send) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.deaf, q.pieces = true, nil
	for !q.over {
		q.more.Wait()
	}
	x.note(func() { x.lost = q.status })
}

// leave makes the handler find its connection broken.
func (q *reply) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.deaf, q.broken, q.pieces = true, true, nil
}

// pass hands the reply on to w and reports whether it did so to the end. If it
// did not, the exchange must be broken off.
func (q *reply) pass(w http.ResponseWriter, r *http.Request, x *send, p *plan) (whole bool) {
	defer q.leave()
	ctx := r.Context()
	o := &observer{ResponseWriter: w, head: r.Method == http.MethodHead, declared: -1}
	cut := -1
	if p.ends(cutBody) && !o.head {
		cut = p.end.bytes
	}
	preset := w.Header().Clone()
	waited, dripped := false, false
	for {
		part, ok := q.next()
		if !waited {
			waited = true
			if !wait(ctx, p.delay) {
				x.note(func() { x.lost, x.fate = part.status, "client gone" })
				return false
			}
		}
		switch {
		case !ok:
			maps.Copy(w.Header(), q.trailer) // net/http takes what was announced
			o.report(x, q.how, ctx.Err())
			if cut >= 0 && o.written > 0 {
				return o.breakAfter(x)
			}
			if v := q.how.panicked; v != nil {
				panic(v)
			}
			if p.ends(cutBody) { // there was nothing to cut
				x.note(func() { p.end.hits--; x.faults = without(x.faults, p.end.name) })
			}
			return q.how.ok()
		case part.flush:
			o.Flush()
		case part.status != 0:
			clear(w.Header())
			maps.Copy(w.Header(), preset)
			maps.Copy(w.Header(), part.header)
			o.WriteHeader(part.status)
			if cut >= 0 && o.declared > 0 {
				// With all of its declared length the body would be whole.
				if cut = min(cut, int(o.declared)-1); cut == 0 {
					return o.breakAfter(x)
				}
			}
		}
		for b := part.body; len(b) > 0; {
			n := len(b)
			if p.drip != nil {
				if dripped && !wait(ctx, p.drip.wait) {
					o.report(x, ending{}, ctx.Err())
					return false
				}
				dripped = true
				n = min(n, p.drip.bytes)
			}
			if cut >= 0 {
				n = min(n, cut-int(o.written))
			}
			if n > 0 {
				if _, err := o.Write(b[:n]); err != nil {
					o.report(x, ending{}, ctx.Err())
					return false
				}
			}
			if cut >= 0 && int(o.written) >= cut {
				return o.breakAfter(x)
			}
			if b = b[n:]; p.drip != nil {
				o.Flush()
			}
		}
	}
}

func without(names []string, name string) (rest []string) {
	for _, n := range names {
		if n != name {
			rest = append(rest, n)
		}
	}
	return rest
}
