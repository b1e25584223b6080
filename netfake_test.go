package oncehttp_test

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/oncehttp/oncehttp/internal/memnet"
)

// A memNet is a network in memory that belongs to a test.
type memNet struct{ memnet.Network }

func newMemNet() *memNet { return &memNet{} }

// Transport returns a Transport that dials into n: HTTP/1, or HTTP/2 without TLS.
// It closes its idle connections when the test ends.
func (n *memNet) Transport(t testing.TB, h2 bool) *http.Transport {
	tr := n.Network.Transport(h2)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// Serve runs h on port 80 of host until the test ends or stop is called; stop also
// breaks the host's connections.
func (n *memNet) Serve(t testing.TB, host string, h http.Handler) (stop func()) {
	t.Helper()
	stop, _ = n.serve(t, host, h)
	return stop
}

func (n *memNet) serve(t testing.TB, host string, h http.Handler) (stop func(), srv *http.Server) {
	t.Helper()
	srv = &http.Server{Handler: h, ErrorLog: quietLog}
	stop, err := n.Network.Serve(host+":80", srv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return stop, srv
}

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
	case *memnet.Conn:
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

// text answers with s.
func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, s) }
}

// hang answers when the client has gone.
func hang(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

var errBroken = errors.New("the disk is broken")

// brokenAfter reads s and then fails with errBroken.
func brokenAfter(s string) io.Reader {
	return io.MultiReader(strings.NewReader(s), readerFunc(func([]byte) (int, error) { return 0, errBroken }))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

type ctxKey struct{}
