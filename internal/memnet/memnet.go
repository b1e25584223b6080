// Package memnet is a network inside the process: dialing, refusing, closing,
// half-closing and resetting behave as on TCP, but nothing leaves the process
// and nothing waits for the operating system, so it works in the bubbles of
// testing/synctest.
//
// Its connections buffer. On a bare net.Pipe a write waits for the reader, and
// net/http writes HTTP/2 frames under a mutex; a goroutine that waits for a
// mutex is not durably blocked, so that a stalled peer would stop the bubble's
// clock.
package memnet

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// A Network connects dialers with listeners by address. Its zero value is ready
// to use, in the bubble in which it is used first. It is safe for concurrent use.
type Network struct {
	// Buffer is how many bytes each direction of a connection holds before a
	// write waits for the reader. Zero means 4 MiB, which is more than net/http
	// writes to a stalled HTTP/2 server before flow control stops it. It must not
	// be changed after the first dial.
	Buffer int

	mu        sync.Mutex
	listeners map[string]*Listener
	open      map[*Conn]struct{} // server-side ends that were accepted and not closed
	dials     int
	port      int
}

const (
	defaultBuffer = 4 << 20
	backlog       = 128
	firstPort     = 49152
)

// Listen opens addr, a host and port. Until then, and once the listener is
// closed, dialing it is refused. Like on TCP an address has one listener.
func (n *Network) Listen(addr string) (*Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: Addr(addr), Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	l := &Listener{net: n, addr: Addr(addr)}
	l.cond.L = &l.mu
	if n.listeners == nil {
		n.listeners = map[string]*Listener{}
	}
	n.listeners[addr] = l
	return l, nil
}

// DialContext connects to the listener at addr. As on TCP the connection stands
// before the listener has accepted it. Without a listener, or when 128
// connections wait to be accepted, the dial is [Refused].
func (n *Network) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.dials++
	if n.port == 0 {
		n.port = firstPort
	}
	// 192.0.2.0/24 is for examples (RFC 5737). The port goes round, as a machine's does.
	from := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: n.port}
	if n.port++; n.port > 65535 {
		n.port = firstPort
	}
	size := n.Buffer
	n.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: Addr(addr), Err: err}
	}
	if l == nil {
		return nil, Refused(addr)
	}
	if size <= 0 {
		size = defaultBuffer
	}
	up, down := newPipe(size), newPipe(size)
	client := &Conn{in: down, out: up, local: from, remote: l.addr}
	server := &Conn{in: up, out: down, local: l.addr, remote: from, net: n}
	if !l.queue(server) {
		return nil, Refused(addr)
	}
	return client, nil
}

// Refused is the error of a dial to an address where nobody listens.
func Refused(addr string) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: Addr(addr), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// Open returns the number of connections that servers have accepted and not
// closed.
func (n *Network) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.open)
}

// Dials returns the number of dials, refused ones included.
func (n *Network) Dials() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

// Break breaks every accepted connection for both of its ends, as a network does
// that loses its state.
func (n *Network) Break() {
	n.mu.Lock()
	all := make([]*Conn, 0, len(n.open))
	for c := range n.open {
		all = append(all, c)
	}
	n.mu.Unlock()
	for _, c := range all {
		c.in.fail(syscall.ECONNRESET, syscall.ECONNRESET, true)
		c.out.fail(syscall.ECONNRESET, syscall.ECONNRESET, true)
	}
}

// Transport returns a Transport that dials into n: for HTTP/1, or for HTTP/2
// without TLS.
func (n *Network) Transport(http2 bool) *http.Transport {
	t := &http.Transport{DialContext: n.DialContext, ExpectContinueTimeout: time.Second}
	if http2 {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return t
}

// Serve serves srv at addr, for HTTP/1 and, unless srv.Protocols says otherwise,
// for HTTP/2 without TLS. The function that it returns closes srv, breaks its
// connections and waits until it has stopped accepting.
func (n *Network) Serve(addr string, srv *http.Server) (stop func(), err error) {
	l, err := n.Listen(addr)
	if err != nil {
		return nil, err
	}
	if srv.Protocols == nil {
		srv.Protocols = new(http.Protocols)
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(l)
	}()
	return sync.OnceFunc(func() {
		srv.Close()
		l.Close() // Serve may not have got as far as telling srv of it
		<-served
	}), nil
}

func (n *Network) accepted(c *Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open == nil {
		n.open = map[*Conn]struct{}{}
	}
	n.open[c] = struct{}{}
}

func (n *Network) closed(c *Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.open, c)
}

// An Addr is the address of a listener: host and port.
type Addr string

// Network returns "tcp".
func (Addr) Network() string { return "tcp" }

// String returns host and port.
func (a Addr) String() string { return string(a) }

// A Listener accepts the connections to one address.
type Listener struct {
	net  *Network
	addr Addr

	mu     sync.Mutex
	cond   sync.Cond
	queued []*Conn
	closed bool
}

var _ net.Listener = (*Listener)(nil)

// Addr returns the address that was listened to.
func (l *Listener) Addr() net.Addr { return l.addr }

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queued) == 0 {
		if l.closed {
			return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
		}
		l.cond.Wait()
	}
	c := l.queued[0]
	l.queued = l.queued[1:]
	l.net.accepted(c)
	return c, nil
}

// Close frees the address. Connections that wait to be accepted are reset,
// accepted ones stay.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return &net.OpError{Op: "close", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
	}
	l.closed = true
	waiting := l.queued
	l.queued = nil
	l.cond.Broadcast()
	l.mu.Unlock()

	l.net.mu.Lock()
	delete(l.net.listeners, string(l.addr))
	l.net.mu.Unlock()
	for _, c := range waiting {
		c.Reset()
	}
	return nil
}

func (l *Listener) queue(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.queued) == backlog {
		return false
	}
	l.queued = append(l.queued, c)
	l.cond.Signal()
	return true
}

// A Conn is one end of a connection. Its errors are those of a TCP connection.
type Conn struct {
	in, out       *pipe
	local, remote net.Addr
	net           *Network // on the server's side only
}

var _ net.Conn = (*Conn)(nil)

// Read reads what the other end has written, then io.EOF once that has closed.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	return n, c.opError("read", err)
}

// Write waits only while the buffer of its direction is full.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	return n, c.opError("write", err)
}

// Close ends both directions. The other end reads what was written, and then
// io.EOF; its writes fail.
func (c *Conn) Close() error {
	if !c.in.fail(net.ErrClosed, syscall.EPIPE, false) {
		return c.opError("close", net.ErrClosed)
	}
	c.out.fail(io.EOF, net.ErrClosed, false)
	c.forget()
	return nil
}

// CloseWrite ends the direction to the other end, which reads what was written,
// and then io.EOF.
func (c *Conn) CloseWrite() error {
	c.out.fail(io.EOF, syscall.EPIPE, false)
	return nil
}

// CloseRead makes reads at this end return io.EOF. The other end does not notice:
// what it writes vanishes.
func (c *Conn) CloseRead() error {
	c.in.drop()
	return nil
}

// Reset ends the connection as a RST does: what was under way is lost, in both
// directions, and the other end's calls fail with ECONNRESET.
func (c *Conn) Reset() error {
	if !c.in.fail(net.ErrClosed, syscall.ECONNRESET, true) {
		return c.opError("close", net.ErrClosed)
	}
	c.out.fail(syscall.ECONNRESET, net.ErrClosed, true)
	c.forget()
	return nil
}

func (c *Conn) forget() {
	if c.net != nil {
		c.net.closed(c)
	}
}

// LocalAddr returns the listener's address on the server's side, and an invented
// one on the client's.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address of the other end.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(d time.Time) error {
	if err := c.SetReadDeadline(d); err != nil {
		return err
	}
	return c.SetWriteDeadline(d)
}

// SetReadDeadline makes reads, those that wait included, fail with
// os.ErrDeadlineExceeded from d on. The zero time means never.
func (c *Conn) SetReadDeadline(d time.Time) error { return c.opError("set", c.in.readBy(d)) }

// SetWriteDeadline does the same for writes.
func (c *Conn) SetWriteDeadline(d time.Time) error { return c.opError("set", c.out.writeBy(d)) }

func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF { // callers compare with io.EOF
		return err
	}
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}
