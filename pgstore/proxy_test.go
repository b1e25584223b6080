package pgstore_test

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A proxy stands between a pool and its server, and breaks connections when they
// send what it looks for. The statements' text must be in what is sent, so pools
// that go through it use default_query_exec_mode=exec.
type proxy struct {
	l      net.Listener
	target string

	mu    sync.Mutex
	text  []byte
	what  fault
	times int
	down  bool
	conns map[net.Conn]bool
	met   int
	told  func() // of what isLate
	away  int    // who was not connected
	sent  int    // what clients have sent, counted in reads
}

type fault int

const (
	// losesReply: the server gets the statement, the client gets no answer.
	losesReply fault = iota
	// losesRequest: the server does not get it.
	losesRequest
	// goesDown: the server does not get it, and nobody else is or can be connected
	// until up.
	goesDown
	// losesReplyAndGoesDown: as losesReply, and nobody else is or can be connected
	// until up.
	losesReplyAndGoesDown
	// isLate: told is called, and the server gets the statement a while later.
	isLate
)

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, target: target, conns: make(map[net.Conn]bool)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.breakAll(true)
		wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

// arm makes the proxy do what to the next so many statements that contain text.
func (p *proxy) arm(what fault, times int, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what, p.times, p.text, p.met = what, times, []byte(text), 0
}

// faults is how often it has since.
func (p *proxy) faults() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met
}

// refusals is how many could not be connected.
func (p *proxy) refusals() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.away
}

func (p *proxy) requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent
}

func (p *proxy) up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

func (p *proxy) breakAll(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = p.down || down
	for c := range p.conns {
		c.Close()
	}
}

func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		p.away++
		c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

func (p *proxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	c.Close()
}

// see returns what to do about a client's bytes.
func (p *proxy) see(client net.Conn, b []byte) (f fault, hit bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent++
	if p.times == 0 || !bytes.Contains(b, p.text) {
		return 0, false
	}
	p.times--
	p.met++
	if p.what == goesDown || p.what == losesReplyAndGoesDown {
		p.down = true
		for c := range p.conns {
			if c != client { // it may have taken long to connect, and be of use to another call now
				c.Close()
			}
		}
	}
	return p.what, true
}

func (p *proxy) serve(client net.Conn) {
	if !p.keep(client) {
		return
	}
	defer p.forget(client)
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()

	var muted atomic.Bool
	go func() {
		defer client.Close()
		b := make([]byte, 32<<10)
		for {
			n, err := server.Read(b)
			if n > 0 && muted.Load() {
				return // the statement was answered, and the answer is lost
			}
			if n > 0 {
				client.Write(b[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	b := make([]byte, 32<<10)
	for {
		n, err := client.Read(b)
		if err != nil {
			return
		}
		switch f, hit := p.see(client, b[:n]); {
		case hit && (f == losesRequest || f == goesDown):
			return
		case hit && f == isLate:
			p.told()
			time.Sleep(300 * time.Millisecond)
		case hit:
			muted.Store(true)
		}
		if _, err := server.Write(b[:n]); err != nil {
			return
		}
	}
}
