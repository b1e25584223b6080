package lab

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/oncehttp/oncehttp/internal/memnet"
)

// A wire is a client's end of a connection, with the network behind it. It knows
// HTTP/1 well enough to see where one exchange ends and the next begins. Of HTTP/2
// it sees bytes only; there the faults strike at the server's edge.
type wire struct {
	*memnet.Conn
	w      *world
	once   sync.Once
	closed chan struct{}

	mu    sync.Mutex
	x     *exchange
	fault netFault // of x, if it has not struck on another connection
	lost  bool     // nothing of x goes through any more
	wrote int      // of x, on this connection
	read  int
}

func (c *wire) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// end breaks the connection for the client, who has not closed it.
func (c *wire) end(reset bool) error {
	if reset {
		c.Conn.Reset()
		return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	}
	c.Conn.Close()
	return io.EOF
}

// pause waits, for as long as the client does.
func (c *wire) pause(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-c.closed:
		return net.ErrClosed
	}
}

// forever waits until the client gives up.
func (c *wire) forever() error {
	<-c.closed
	return net.ErrClosed
}

func (c *wire) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock() // nobody else writes, and who reads takes it only briefly
	id, first := tryIn(p)
	if first {
		c.begin(id)
	}
	x := c.x
	before := c.wrote
	c.wrote += len(p)
	switch {
	case x == nil:
		return c.Conn.Write(p)
	case c.lost:
		return len(p), nil
	case c.fault == netCut && c.wrote > x.bytes:
		c.lost = true
		if rest := x.bytes - before; rest > 0 {
			if first {
				c.w.deliver(x)
			}
			c.Conn.Write(p[:rest])
		}
		time.AfterFunc(x.after, func() { c.end(x.reset) })
		return len(p), nil
	case !first:
		return c.Conn.Write(p)
	}
	switch c.fault {
	case netLost:
		// The client's machine takes the bytes; that they went nowhere it learns
		// later.
		c.lost = true
		time.AfterFunc(x.after, func() { c.end(x.reset) })
		return len(p), nil
	case netSlow:
		c.mu.Unlock()
		err := c.pause(x.after)
		c.mu.Lock()
		if err != nil {
			return 0, err
		}
	case netLate:
		if wholeRequest(p) {
			c.lost = true
			c.w.deliver(x)
			c.w.again(x, c.RemoteAddr().String(), bytes.Clone(p))
			return len(p), nil
		}
	case netTwice:
		if wholeRequest(p) {
			c.w.again(x, c.RemoteAddr().String(), bytes.Clone(p))
		}
	case netReset:
		time.AfterFunc(x.after, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.x == x {
				c.end(x.reset)
			}
		})
	}
	c.w.deliver(x)
	return c.Conn.Write(p)
}

// begin starts an exchange. c.mu is held.
func (c *wire) begin(id tryID) {
	x := c.w.exchange(id)
	c.w.mu.Lock()
	x.begun++
	begun := x.begun
	c.w.mu.Unlock()
	c.x, c.fault, c.lost, c.wrote, c.read = x, x.fault, false, 0, 0
	if begun > 1 {
		c.fault = "" // net/http sends it again, and that is trouble enough
	}
	if c.fault != "" {
		c.w.did(id, "network", string(c.fault))
	}
}

func (c *wire) Read(p []byte) (int, error) {
	c.mu.Lock()
	if x := c.x; x != nil && c.fault == netReplyCut && c.read >= x.bytes {
		c.mu.Unlock()
		return 0, c.end(x.reset)
	}
	c.mu.Unlock()
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	x, fault, start := c.x, c.fault, c.read
	c.read += n
	c.mu.Unlock()
	if x == nil || n == 0 {
		return n, err
	}
	switch fault {
	case netReplyLost:
		return 0, c.end(x.reset)
	case netReplyNever:
		return 0, c.forever()
	case netReplySlow:
		if start == 0 {
			if err := c.pause(x.after); err != nil {
				return 0, err
			}
		}
	case netReplyCut:
		if start+n > x.bytes {
			if n = x.bytes - start; n <= 0 {
				return 0, c.end(x.reset)
			}
		}
	case netReplyDrip:
		// The first bytes are let through in one, the rest in four.
		for range 4 {
			if start > 0 {
				if err := c.pause(x.after / 4); err != nil {
					return 0, err
				}
			}
		}
	}
	c.w.mu.Lock()
	x.replied += n
	c.w.mu.Unlock()
	return n, err
}

// An exchange is one attempt as the network sees it.
type exchange struct {
	id    tryID
	fault netFault
	after time.Duration // when the fault strikes, if that is a matter of time
	bytes int           // or a matter of bytes
	reset bool          // and not an end

	// Under world.mu:
	begun     int // how often the client wrote the request
	delivered int // how often some of it reached the server, duplicates apart
	replied   int // bytes of the reply that the client was given
	arrivals  []*arrival
}

// answer returns the arrival whose answer may have come back: the latest, if
// net/http sent the request again. world.mu is held.
func (x *exchange) answer() (answer *arrival) {
	for _, a := range x.arrivals {
		if !a.ghost && a.status != 0 {
			answer = a
		}
	}
	return answer
}

// A netFault is what the network does to an exchange.
type netFault string

const (
	netLost       netFault = "the request is lost, and the connection"
	netCut        netFault = "the request is cut short, and the connection is gone"
	netSlow       netFault = "the request takes its time"
	netLate       netFault = "the request arrives late, by another way, and no reply comes"
	netTwice      netFault = "the request arrives twice"
	netReset      netFault = "the connection breaks while the server works"
	netReplyLost  netFault = "the reply is lost, and the connection"
	netReplyCut   netFault = "the reply is cut short"
	netReplySlow  netFault = "the reply takes its time"
	netReplyNever netFault = "the reply never comes"
	netReplyDrip  netFault = "the reply comes in drips"
)

var netFaults = []netFault{
	netLost, netCut, netSlow, netLate, netTwice, netReset,
	netReplyLost, netReplyCut, netReplySlow, netReplyNever, netReplyDrip,
}

// exchange returns the exchange of an attempt, which is drawn when it begins.
func (w *world) exchange(id tryID) *exchange {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.exchanges[id]
	if x == nil {
		x = &exchange{id: id}
		if !w.calm.Load() {
			d := w.seed.roll("network", id.with()...)
			x.fault = w.plan.network.choose(&d)
			x.after = d.spread(100*time.Microsecond, 10*time.Second)
			x.bytes = d.n(700)
			x.reset = d.chance(0.5)
			if a := w.action(id.action); a != nil && a.route == plain && (x.fault == netTwice || x.fault == netLate) {
				x.fault = "" // nobody protects that route from its network
			}
		}
		w.exchanges[id] = x
	}
	return x
}

func (w *world) deliver(x *exchange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x.delivered++
}

// again delivers a request by another connection, some time later, and goes away
// without waiting for the reply, or with it.
func (w *world) again(x *exchange, addr string, request []byte) {
	d := w.seed.roll("again", x.id.with()...)
	wait, patience := d.spread(time.Microsecond, 20*time.Second), d.spread(time.Microsecond, 20*time.Second)
	go func() {
		time.Sleep(wait)
		conn, err := w.net.DialContext(context.Background(), "tcp", addr)
		if err != nil {
			return
		}
		w.mu.Lock()
		w.ghosts[conn.LocalAddr().String()] = true
		w.mu.Unlock()
		conn.Write(request)
		conn.SetReadDeadline(time.Now().Add(patience))
		io.Copy(io.Discard, conn)
		conn.Close()
	}()
}

// tryIn finds the attempt that a request's first bytes belong to.
func tryIn(p []byte) (id tryID, ok bool) {
	_, after, ok := bytes.Cut(p, []byte("\r\n"+labField+": "))
	if !ok {
		return id, false
	}
	value, _, _ := bytes.Cut(after, []byte("\r\n"))
	return parseTry(string(value))
}

// wholeRequest reports whether p is a request to its last byte.
func wholeRequest(p []byte) bool {
	head, body, ok := bytes.Cut(p, []byte("\r\n\r\n"))
	if !ok || bytes.Contains(head, []byte("\r\nTransfer-Encoding: ")) {
		return false
	}
	_, length, ok := bytes.Cut(head, []byte("\r\nContent-Length: "))
	if !ok {
		return true
	}
	length, _, _ = bytes.Cut(length, []byte("\r\n"))
	n, err := strconv.Atoi(string(length))
	return err == nil && n == len(body)
}

// A dialFault is what happens to a new connection.
type dialFault string

const (
	dialRefused dialFault = "the connection is refused"
	dialSlow    dialFault = "connecting takes its time"
	dialHang    dialFault = "connecting hangs"
)

var dialFaults = []dialFault{dialRefused, dialSlow, dialHang}

// longestDial is how long a connection hangs at most. net/http goes on dialling when
// the request for which it did has been given up.
const longestDial = 3 * time.Minute

// dial connects a client to a server. The first request that waits for the
// connection decides about its fate.
func (w *world) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var id tryID
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		id = tryID{c.id, c.trying()}
		d := w.seed.roll("dial", id.with(c.dialled())...)
		if f := w.plan.dials.choose(&d); f != "" && !w.calm.Load() {
			w.did(id, "network", string(f))
			switch f {
			case dialRefused:
				return nil, memnet.Refused(addr)
			case dialSlow:
				if err := sleep(ctx, d.spread(time.Millisecond, 5*time.Second)); err != nil {
					return nil, err
				}
			case dialHang:
				err := sleep(ctx, d.spread(longestDial/10, longestDial))
				if err == nil {
					err = os.NewSyscallError("connect", syscall.ETIMEDOUT)
				}
				return nil, &net.OpError{Op: "dial", Net: network, Addr: memnet.Addr(addr), Err: err}
			}
		}
	}
	conn, err := w.net.DialContext(ctx, network, addr)
	if err != nil {
		w.note(id, "network", "nobody listens")
		return nil, err
	}
	return &wire{Conn: conn.(*memnet.Conn), w: w, closed: make(chan struct{})}, nil
}
