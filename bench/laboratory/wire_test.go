package laboratory

import (
	"bytes"
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// wires are a process's connections to its server.
type wires struct {
	tick func() // sets the server's clock
	said *atomic.Int64

	mu   sync.Mutex
	open map[*wire]bool
	dead bool
	trap *trap
}

// What happens to connections.
const (
	nothingArrives = "meets a connection that breaks, and nothing arrives"
	replyIsLost    = "meets a connection that breaks, and the reply is lost"
)

// A trap is for the next thing that is said to the server.
type trap struct{ after bool }

func newWires(tick func(), said *atomic.Int64) *wires {
	return &wires{tick: tick, said: said, open: map[*wire]bool{}}
}

func (ws *wires) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &wire{tcp: conn, raw: raw, ws: ws, changed: make(chan struct{}, 1)}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.dead {
		conn.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	ws.open[w] = true
	return w, nil
}

// kill breaks all connections, for good.
func (ws *wires) kill() {
	ws.mu.Lock()
	ws.dead = true
	var all []*wire
	for w := range ws.open {
		all = append(all, w)
	}
	ws.mu.Unlock()
	for _, w := range all {
		w.Close()
	}
}

// Break implements lab.Breakable.
func (ws *wires) Break(after bool) (what string, mend func()) {
	t := &trap{after}
	ws.mu.Lock()
	ws.trap = t
	ws.mu.Unlock()
	what = nothingArrives
	if after {
		what = replyIsLost
	}
	return what, func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if ws.trap == t {
			ws.trap = nil
		}
	}
}

func (ws *wires) trapped() *trap {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	t := ws.trap
	ws.trap = nil
	return t
}

// A wire is a real connection in a bubble. Whoever waits for a reply waits for real,
// while the bubble's clock stands still. But who only listens would keep it standing
// for ever, so that is a wait in the bubble: with a look at the connection now and
// then.
type wire struct {
	tcp net.Conn
	raw syscall.RawConn
	ws  *wires

	mu      sync.Mutex
	listens bool // for what comes unasked
	owed    bool // a reply
	lost    bool // and it will not arrive
	closed  bool
	until   time.Time // for Read
	said    int64     // by anybody to the server, when it was last looked at
	changed chan struct{}
}

func (w *wire) Write(p []byte) (int, error) {
	w.ws.tick()
	w.ws.said.Add(1)
	t := w.ws.trapped()
	w.mu.Lock()
	w.owed = true
	w.lost = t != nil && t.after
	w.listens = w.listens || bytes.Contains(p, []byte("LISTEN ")) || bytes.Contains(p, []byte("subscribe"))
	w.mu.Unlock()
	w.wake()
	if t != nil && !t.after {
		return 0, w.reset("write")
	}
	return w.tcp.Write(p)
}

func (w *wire) reset(op string) error {
	w.Close()
	return &net.OpError{Op: op, Net: "tcp", Err: os.NewSyscallError(op, syscall.ECONNRESET)}
}

const (
	leastNap = time.Millisecond
	mostNap  = 100 * time.Millisecond
)

func (w *wire) Read(p []byte) (int, error) {
	for nap := leastNap; ; nap = min(2*nap, mostNap) {
		w.mu.Lock()
		closed, late := w.closed, !w.until.IsZero() && !time.Now().Before(w.until)
		blocks := w.owed || !w.listens
		left := mostNap
		if !w.until.IsZero() {
			left = time.Until(w.until)
		}
		said := w.ws.said.Load()
		news := said != w.said
		w.said = said
		w.mu.Unlock()
		switch {
		case closed:
			return 0, net.ErrClosed
		case late:
			return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
		case blocks || w.ready(news):
			n, err := w.tcp.Read(p)
			w.mu.Lock()
			lost := w.lost
			w.owed = false
			w.mu.Unlock()
			if lost {
				return 0, w.reset("read")
			}
			return n, err
		}
		t := time.NewTimer(min(nap, left))
		select {
		case <-t.C:
		case <-w.changed:
		}
		t.Stop()
	}
}

// ready reports whether there is something to read. After something was said to the
// server it gives that the time to answer.
func (w *wire) ready(news bool) (yes bool) {
	for try := range 10 {
		w.raw.Read(func(fd uintptr) bool {
			var b [1]byte
			_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			yes = err != syscall.EAGAIN
			return true
		})
		if yes || !news || try == 9 {
			return yes
		}
		// In a bubble time.Sleep would be no wait.
		syscall.Nanosleep(&syscall.Timespec{Nsec: 100_000}, nil)
	}
	return yes
}

// wake has a Read look again.
func (w *wire) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *wire) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.wake()
	w.ws.mu.Lock()
	delete(w.ws.open, w)
	w.ws.mu.Unlock()
	return w.tcp.Close()
}

func (w *wire) SetReadDeadline(t time.Time) error {
	w.mu.Lock()
	w.until = t
	w.mu.Unlock()
	w.wake()
	// A Read that waits for a reply waits in real time: of that only "now" can be
	// told.
	if t.IsZero() || !time.Now().Before(t) {
		return w.tcp.SetReadDeadline(t)
	}
	return nil
}

func (w *wire) SetWriteDeadline(t time.Time) error {
	if t.IsZero() || !time.Now().Before(t) {
		return w.tcp.SetWriteDeadline(t)
	}
	return nil
}

func (w *wire) SetDeadline(t time.Time) error {
	w.SetWriteDeadline(t)
	return w.SetReadDeadline(t)
}

func (w *wire) LocalAddr() net.Addr  { return w.tcp.LocalAddr() }
func (w *wire) RemoteAddr() net.Addr { return w.tcp.RemoteAddr() }
