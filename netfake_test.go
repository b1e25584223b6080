package oncehttp_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A memNet is a network inside the process, for bubbles: dialing, refusing,
// closing and resetting behave as on TCP. Its connections buffer without limit,
// because net/http writes HTTP/2 frames under a mutex, and a goroutine that waits
// for a mutex is not durably blocked: on a bare net.Pipe a stalled peer would stop
// the bubble's clock.
type memNet struct {
	mu        sync.Mutex
	listeners map[string]*memListener
	accepted  map[*memConn]bool // server-side ends that the server has not closed
	dials     int
}

func newMemNet() *memNet {
	return &memNet{listeners: map[string]*memListener{}, accepted: map[*memConn]bool{}}
}

// Listen opens host:port. Until then, and once the listener is closed, dialing it
// is refused.
func (n *memNet) Listen(addr string) *memListener {
	l := &memListener{net: n, addr: memAddr(addr), conns: make(chan *memConn), done: make(chan struct{})}
	n.mu.Lock()
	n.listeners[addr] = l
	n.mu.Unlock()
	return l
}

func (n *memNet) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.dials++
	n.mu.Unlock()
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: memAddr(addr), Err: err}
	}
	if l == nil {
		return fail(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	a, b := newMemHalf(), newMemHalf()
	client := &memConn{in: a, out: b, local: "client:1", remote: l.addr}
	server := &memConn{in: b, out: a, local: l.addr, remote: "client:1", net: n}
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return fail(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	case <-ctx.Done():
		return fail(ctx.Err())
	}
}

// Open is the number of connections that a server has accepted and not closed.
func (n *memNet) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.accepted)
}

// Dials is the number of dials, refused ones included.
func (n *memNet) Dials() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

// Reset breaks every connection, as a network does that loses its state.
func (n *memNet) Reset() {
	n.mu.Lock()
	var all []*memConn
	for c := range n.accepted {
		all = append(all, c)
	}
	n.mu.Unlock()
	for _, c := range all {
		c.Reset()
	}
}

// Transport returns a Transport that dials into n: HTTP/1, or HTTP/2 without TLS.
// It closes its idle connections when the test ends.
func (n *memNet) Transport(t testing.TB, h2 bool) *http.Transport {
	tr := &http.Transport{DialContext: n.DialContext, ExpectContinueTimeout: time.Second}
	if h2 {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// Serve runs h on host, port 80, for HTTP/1 and for HTTP/2 without TLS, until the
// test ends or stop is called; stop also breaks the host's connections.
func (n *memNet) Serve(t testing.TB, host string, h http.Handler) (stop func()) {
	l := n.Listen(host + ":80")
	srv := &http.Server{Handler: h, ErrorLog: quietLog, Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan struct{})
	go func() {
		srv.Serve(l)
		close(served)
	}()
	stop = sync.OnceFunc(func() {
		srv.Close()
		<-served
	})
	t.Cleanup(stop)
	return stop
}

type memAddr string

func (memAddr) Network() string  { return "tcp" }
func (a memAddr) String() string { return string(a) }

type memListener struct {
	net   *memNet
	addr  memAddr
	conns chan *memConn
	once  sync.Once
	done  chan struct{}
}

func (l *memListener) Addr() net.Addr { return l.addr }

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		l.net.mu.Lock()
		l.net.accepted[c] = true
		l.net.mu.Unlock()
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.net.mu.Lock()
		if l.net.listeners[string(l.addr)] == l {
			delete(l.net.listeners, string(l.addr))
		}
		l.net.mu.Unlock()
	})
	return nil
}

// A memConn is one end of a connection.
type memConn struct {
	in, out       *memHalf
	local, remote memAddr
	net           *memNet // server side only
}

func (c *memConn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *memConn) Write(p []byte) (int, error) { return c.out.write(p) }
func (c *memConn) LocalAddr() net.Addr         { return c.local }
func (c *memConn) RemoteAddr() net.Addr        { return c.remote }

func (c *memConn) Close() error {
	c.in.close(net.ErrClosed, syscall.EPIPE)
	c.out.close(io.EOF, net.ErrClosed)
	c.forget()
	return nil
}

// Reset ends the connection for both ends at once; what was under way is lost.
func (c *memConn) Reset() {
	c.in.reset()
	c.out.reset()
	c.forget()
}

func (c *memConn) forget() {
	if c.net != nil {
		c.net.mu.Lock()
		delete(c.net.accepted, c)
		c.net.mu.Unlock()
	}
}

func (c *memConn) SetDeadline(d time.Time) error {
	c.SetWriteDeadline(d)
	return c.SetReadDeadline(d)
}
func (c *memConn) SetReadDeadline(d time.Time) error {
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readBy = d
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	if wait := time.Until(d); !d.IsZero() && wait > 0 {
		h.timer = time.AfterFunc(wait, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.cond.Broadcast()
		})
	}
	h.cond.Broadcast()
	return nil
}
func (c *memConn) SetWriteDeadline(d time.Time) error {
	c.out.mu.Lock()
	c.out.writeBy = d
	c.out.mu.Unlock()
	return nil
}

// A memHalf is one direction of a connection.
type memHalf struct {
	mu         sync.Mutex
	cond       *sync.Cond
	buf        []byte
	rerr, werr error // what reading ends with once buf is empty, and what writing does
	readBy     time.Time
	writeBy    time.Time // needs no timer: a write never waits
	timer      *time.Timer
}

func newMemHalf() *memHalf {
	h := &memHalf{}
	h.cond = sync.NewCond(&h.mu)
	return h
}

func (h *memHalf) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case past(h.readBy):
			return 0, os.ErrDeadlineExceeded
		case h.rerr == net.ErrClosed: // our own end is closed: what is left is not ours to read
			return 0, h.rerr
		case len(p) == 0:
			return 0, nil
		case len(h.buf) > 0:
			n := copy(p, h.buf)
			h.buf = h.buf[n:]
			return n, nil
		case h.rerr != nil:
			return 0, h.rerr
		}
		h.cond.Wait()
	}
}

func (h *memHalf) write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if past(h.writeBy) {
		return 0, os.ErrDeadlineExceeded
	}
	if h.werr != nil {
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: h.werr}
	}
	h.buf = append(h.buf, p...)
	h.cond.Broadcast()
	return len(p), nil
}

// close sets what reading and writing this half end with; the first cause stands,
// but for one's own Close.
func (h *memHalf) close(rerr, werr error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rerr == nil || rerr == net.ErrClosed {
		h.rerr = rerr
	}
	if h.werr == nil || werr == net.ErrClosed {
		h.werr = werr
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.cond.Broadcast()
}

func (h *memHalf) reset() {
	h.mu.Lock()
	h.buf = nil
	h.mu.Unlock()
	h.close(&net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, syscall.ECONNRESET)
}

func past(d time.Time) bool { return !d.IsZero() && !time.Now().Before(d) }

// hangUp closes the connection under w after its request was read: the work was
// done, the reply is lost. On HTTP/2 it breaks the stream.
func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	conn.Close()
}

// reset is hangUp with a reset in place of an end.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	switch c := conn.(type) {
	case *memConn:
		c.Reset()
	case *net.TCPConn:
		c.SetLinger(0)
		c.Close()
	default:
		conn.Close()
	}
}

// cut sends the head and the first bytes of a reply, and then nothing more.
func cut(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Length", "1000")
	w.WriteHeader(status)
	io.WriteString(w, "the first bytes")
	http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

var quietLog = log.New(io.Discard, "", 0)

// onlyReader hides every method but Read, so that net/http knows neither length nor
// GetBody.
func onlyReader(s string) io.Reader { return struct{ io.Reader }{strings.NewReader(s)} }

// bodyOf reads and closes the body of a response.
func bodyOf(t testing.TB, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading the body: %v", err)
	}
	return string(b)
}

func TestMemNetBehavesLikeTCP(t *testing.T) {
	for _, proto := range []string{"http/1", "http/2"} {
		t.Run(proto, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newMemNet()
				stop := n.Serve(t, "a.example", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					switch r.URL.Path {
					case "/echo":
						io.Copy(w, r.Body)
					case "/hang":
						<-r.Context().Done()
					case "/reset":
						reset(w)
					}
				}))
				client := &http.Client{Transport: n.Transport(t, proto == "http/2")}

				resp, err := client.Post("http://a.example/echo", "", onlyReader("hello"))
				if err != nil {
					t.Fatal(err)
				}
				if got := bodyOf(t, resp); got != "hello" {
					t.Errorf("echo: got %q, want hello", got)
				}
				if got := n.Open(); got != 1 {
					t.Errorf("open connections: got %d, want 1", got)
				}

				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				start := time.Now()
				req, _ := http.NewRequestWithContext(ctx, "GET", "http://a.example/hang", nil)
				if _, err = client.Do(req); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Hour {
					t.Errorf("a hung call: got %v after %v, want the deadline after an hour", err, time.Since(start))
				}

				if _, err = client.Get("http://a.example/reset"); err == nil {
					t.Error("a reset connection: got no error")
				} else if proto == "http/1" && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("a reset connection: got %v, want ECONNRESET", err)
				}

				stop()
				synctest.Wait() // the client has seen it
				if _, err = client.Get("http://a.example/echo"); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("a stopped server: got %v, want ECONNREFUSED", err)
				}
				synctest.Wait()
				if got := n.Open(); got != 0 {
					t.Errorf("open connections at the end: got %d, want 0", got)
				}
			})
		})
	}
}
