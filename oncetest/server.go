package oncetest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/memnet"
)

// A TB is what this package needs of a *testing.T.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// A Server is an HTTP server for one test, with a network in front of it that
// misbehaves on script. Its methods are safe for concurrent use.
type Server struct {
	// URL is the server's base URL, without a slash at the end. In memory its
	// host is known only to Client and DialContext of this package's servers.
	URL string

	t       TB
	handler http.Handler
	config  config
	host    string // as in URL
	addr    string // host and port
	network *memnet.Network
	http    http.Server
	cert    *x509.Certificate
	base    *http.Transport
	served  chan struct{}
	closing context.Context // ends with Close
	close   func()

	mu      sync.Mutex
	idle    sync.Cond // a run of the handler has ended
	sends   []*send
	seen    map[string]*send // by what a Client of ours wrote into the request: the latest
	lastID  int
	seq     int // orders what happened, which the clock does not where it stands still
	start   time.Time
	running int // runs of the handler, and copies that are still to be delivered
	dialing int // dials of our own that the listener has not seen
	stopped bool
}

// The clock of a bubble starts at the beginning of the year 2000, which is when no
// test has run for real.
func inBubble() bool { y := time.Now().Year(); return 2000 <= y && y < 2015 }

// NewServer starts a server that runs h behind faults, for the length of a test.
// Options other than faults may stand anywhere among them. What makes no sense,
// such as Status(42), ends the test.
//
// When the test ends the server closes its connections and waits for h to return;
// if h does not within 10 seconds, the test fails.
func NewServer(t TB, h http.Handler, faults ...Option) *Server {
	t.Helper()
	s := &Server{t: t, handler: h, served: make(chan struct{}), seen: map[string]*send{}, start: time.Now()}
	s.idle.L = &s.mu
	s.config = config{memory: inBubble(), keyHeader: oncehttp.Header}
	for _, o := range faults {
		o.configure(&s.config)
	}
	if h == nil && s.config.err == nil {
		s.config.err = fmt.Errorf("NewServer: the handler is nil")
	}
	if s.config.err != nil {
		t.Fatalf("oncetest: %v", s.config.err)
		panic(s.config.err) // a TB whose Fatalf returns
	}
	s.closing, s.close = context.WithCancel(context.Background())
	l, err := s.listen()
	if err != nil {
		t.Fatalf("oncetest: %v", err)
		panic(err)
	}
	s.http.Handler = http.HandlerFunc(s.serve)
	s.http.ErrorLog = log.New(io.Discard, "", 0)
	s.http.Protocols = new(http.Protocols)
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetUnencryptedHTTP2(s.config.http2) // conn does TLS itself
	s.http.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey, c)
	}
	s.http.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateIdle || state == http.StateClosed || state == http.StateHijacked {
			c.(*conn).served()
		}
	}
	s.base = s.transport()
	go func() {
		defer close(s.served)
		s.http.Serve(l)
	}()
	t.Cleanup(s.Close)
	return s
}

// Close closes the server and its connections, and waits for the handler to
// return. NewServer has it called when the test ends; calling it earlier, or
// twice, does no harm.
func (s *Server) Close() {
	s.mu.Lock()
	first := !s.stopped
	s.stopped = true
	s.mu.Unlock()
	if !first {
		return
	}
	s.close()
	s.base.CloseIdleConnections()
	s.http.Close()
	<-s.served
	inMemory.Delete(s.addr)
	if !s.settle(10 * time.Second) {
		s.t.Errorf("oncetest: the handler has not returned 10s after its request's context ended:\n%s", s.Timeline())
	}
}

// settle waits until nothing runs, for the length of patience at most, and reports
// whether that was so.
func (s *Server) settle(patience time.Duration) bool {
	late := false
	timer := time.AfterFunc(patience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.idle.Broadcast()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.running > 0 && !late {
		s.idle.Wait()
	}
	return s.running == 0
}

// Certificate returns the certificate of a server with TLS, for the RootCAs of a
// client that is not the server's own. Without TLS it returns nil.
func (s *Server) Certificate() *x509.Certificate { return s.cert }

func (s *Server) listen() (net.Listener, error) {
	var l net.Listener
	var err error
	if s.config.memory {
		s.network = new(memnet.Network)
		introduce(s)
		l, err = s.network.Listen(s.addr)
	} else if l, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
		s.addr = l.Addr().String()
		s.host = s.addr
	}
	if err != nil {
		return nil, err
	}
	scheme := "http://"
	wrapped := &listener{Listener: l, s: s}
	if s.config.tls {
		scheme = "https://"
		cert := certificate()
		s.cert = cert.Leaf
		wrapped.tls = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}}
		if s.config.http2 {
			wrapped.tls.NextProtos = []string{"h2", "http/1.1"}
		}
	}
	s.URL = scheme + s.host
	return wrapped, nil
}
