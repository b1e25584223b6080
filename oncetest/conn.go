package oncetest

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"
)

// A conn is the server's side of a connection. It does TLS itself, because on
// HTTP/2 it must see the frames.
type conn struct {
	net.Conn
	raw net.Conn
	tls *tls.Conn

	mu      sync.Mutex
	cond    sync.Cond
	http2   bool // the server speaks it, and this client may
	writing bool
	in, out frames
	greeted bool            // the server's first frame is out, which has to be its SETTINGS
	streams map[uint32]bool // requests that are not answered
	last    uint32          // the highest of all
	waiting int             // requests that wait until only they are left
	unsure  bool            // a client gave up meanwhile, perhaps on one of those
	mute    bool            // GOAWAY was said: nothing is written any more, and what comes does not run
	ended   bool
	serving *send // on HTTP/1, from the arrival of the request until its reply was written
}

func (c *conn) connectionState() *tls.ConnectionState {
	if c.tls == nil {
		return nil
	}
	state := c.tls.ConnectionState()
	return &state
}

// Reset breaks the connection for both sides.
func (c *conn) Reset() {
	reset(c.raw)
	c.end()
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.end()
	return err
}

func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.cond.Broadcast()
}

// CloseWrite lets net/http close in two steps, so that its last words arrive.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.http2 {
		c.http2 = c.in.scan(p[:n])
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	if c.lock(); c.mute {
		c.unlock(nil)
		return len(p), nil
	}
	n, err := c.Conn.Write(p)
	c.unlock(p[:n])
	if err != nil {
		c.undelivered()
	}
	return n, err
}

// serves notes whose reply is written to c now. Net/http writes much of it when
// the handler has returned.
func (c *conn) serves(x *send) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving = x
}

// served notes that nothing more of it will be written.
func (c *conn) served() {
	c.mu.Lock()
	x := c.serving
	c.serving = nil
	c.mu.Unlock()
	if x != nil {
		x.note(x.s.ended)
	}
}

// undelivered notes that not all of it was.
func (c *conn) undelivered() {
	c.mu.Lock()
	x := c.serving
	c.mu.Unlock()
	if x != nil {
		x.note(func() {
			if x.sent {
				x.sent, x.fate = false, "client gone"
			}
		})
	}
}

// lock waits for the right to write. It is no mutex: a goroutine that waits for
// one is not durably blocked, and would stop the clock of a bubble while the
// client does not read.
func (c *conn) lock() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writing {
		c.cond.Wait()
	}
	c.writing = true
}

func (c *conn) unlock(written []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.http2 {
		c.out.scan(written)
	}
	c.writing = false
	c.cond.Broadcast()
}

// received and sent follow the streams. The lock is held.
func (c *conn) received(typ, _ byte, stream uint32) {
	switch {
	case typ == frameReset:
		delete(c.streams, stream)
		c.unsure = c.unsure || c.waiting > 0
	case typ == frameHeaders && stream > c.last: // else they are trailers
		if c.streams == nil {
			c.streams = map[uint32]bool{}
		}
		c.last, c.streams[stream] = stream, true
	}
	c.cond.Broadcast()
}

func (c *conn) sent(typ, flags byte, stream uint32) {
	c.greeted = true
	if (typ == frameData || typ == frameHeaders) && flags&flagEndStream != 0 || typ == frameReset {
		delete(c.streams, stream)
	}
}

// isMute reports whether a request that comes now must not run.
func (c *conn) isMute() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mute
}

// retire announces that the connection will close, which leaves that to the client:
// it may still have sent something (RFC 9113, section 6.8).
func (c *conn) retire() { c.goAway(leaving) }

// What a GOAWAY says of the requests on the connection.
type farewell int

const (
	leaving     farewell = iota // they will be answered
	processed                   // they may have been processed, but will not be answered
	unprocessed                 // those that wait in goAway were not processed
)

// goAway says GOAWAY and, unless it is only leaving, nothing after it. To say
// unprocessed it waits until all others are answered; if the client gives one up
// meanwhile, there is no telling which are left, and it says processed instead. On
// HTTP/1 it does nothing. Net/http writes its SETTINGS in a goroutine of its own; a
// GOAWAY before them would be an error of protocol (RFC 9113, section 3.4).
func (c *conn) goAway(f farewell) {
	c.mu.Lock()
	if f == unprocessed {
		c.waiting++
		c.cond.Broadcast()
	}
	for c.http2 && !c.ended && (c.writing || !c.greeted || !c.out.between() || f == unprocessed && len(c.streams) > c.waiting && !c.unsure) {
		c.cond.Wait()
	}
	if f == unprocessed && c.unsure {
		f = processed
	}
	if !c.http2 || c.ended || c.mute {
		c.mu.Unlock()
		return
	}
	last := c.last
	switch f {
	case leaving:
		last = 1<<31 - 1
	case unprocessed:
		for id := range c.streams {
			last = min(last, id-1)
		}
	}
	c.writing, c.mute = true, f != leaving
	c.mu.Unlock()
	c.Conn.Write(goAwayFrame(last))
	if f != leaving {
		// Closed at once, the connection would answer what the client still writes
		// with a RST, which can overtake the last replies.
		c.CloseWrite()
		time.AfterFunc(time.Second, func() { c.Close() })
	}
	c.unlock(nil)
}
