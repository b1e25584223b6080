package memnet

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A pipe is one direction of a connection.
type pipe struct {
	mu         sync.Mutex
	cond       sync.Cond // whatever is waited for has changed
	buf        []byte
	limit      int
	rerr, werr error // what reading ends with once buf is empty, and what writing ends with
	deaf       bool  // the reader has gone, unnoticed by the writer
	rby, wby   deadline
}

func newPipe(limit int) *pipe {
	p := &pipe{limit: limit}
	p.cond.L = &p.mu
	return p
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.rerr == net.ErrClosed: // what is left is no longer ours to read
			return 0, p.rerr
		case p.rby.passed:
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case len(p.buf) > 0:
			n := copy(b, p.buf)
			if p.buf = p.buf[n:]; len(p.buf) == 0 {
				p.buf = nil // the array would else only ever grow at its end
			}
			p.cond.Broadcast()
			return n, nil
		case p.rerr != nil:
			return 0, p.rerr
		case p.deaf:
			return 0, io.EOF
		}
		p.cond.Wait()
	}
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for {
		switch {
		case p.werr != nil:
			return n, p.werr
		case p.wby.passed:
			return n, os.ErrDeadlineExceeded
		case p.deaf:
			return n + len(b), nil
		}
		if room := min(p.limit-len(p.buf), len(b)); room > 0 {
			p.buf = append(p.buf, b[:room]...)
			b = b[room:]
			n += room
			p.cond.Broadcast()
		}
		if len(b) == 0 {
			return n, nil
		}
		p.cond.Wait()
	}
}

// fail sets what reading and writing end with, and reports whether that was
// news. The first cause stands, except that one's own Close always does: it is
// net.ErrClosed on one's own side.
func (p *pipe) fail(rerr, werr error, lose bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	news := false
	if p.rerr == nil || rerr == net.ErrClosed && p.rerr != rerr {
		p.rerr, news = rerr, true
	}
	if p.werr == nil || werr == net.ErrClosed && p.werr != werr {
		p.werr, news = werr, true
	}
	if lose || rerr == net.ErrClosed {
		p.buf = nil
	}
	p.rby.stop()
	p.wby.stop()
	p.cond.Broadcast()
	return news
}

func (p *pipe) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf, p.buf = true, nil
	p.cond.Broadcast()
}

func (p *pipe) readBy(d time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rerr == net.ErrClosed {
		return p.rerr
	}
	p.rby.set(d, p)
	return nil
}

func (p *pipe) writeBy(d time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.werr == net.ErrClosed {
		return p.werr
	}
	p.wby.set(d, p)
	return nil
}

// A deadline wakes those who wait when it passes.
type deadline struct {
	passed bool
	timer  *time.Timer // nil: none is running
}

func (d *deadline) set(at time.Time, p *pipe) {
	d.stop()
	wait := time.Until(at)
	d.passed = !at.IsZero() && wait <= 0
	if !at.IsZero() && wait > 0 {
		var t *time.Timer
		t = time.AfterFunc(wait, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if d.timer == t { // and was not replaced at the last moment
				d.passed = true
				p.cond.Broadcast()
			}
		})
		d.timer = t
	}
	p.cond.Broadcast()
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
