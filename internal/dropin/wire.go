package dropin

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp/internal/memnet"
)

// A Wire is a client, a network and the servers of one row.
type Wire struct {
	*testing.T
	H2   bool
	Row  *Row
	Base *http.Transport // the client's own; may be configured until the first call

	setup  Setup
	net    *memnet.Network // nil: TCP
	client *http.Client

	opened, closed atomic.Int32 // server-side connections
	servers        int
	stop           func(context.Context) error // the latest server's graceful shutdown
}

func (w *Wire) run(t *testing.T, bubble bool, row func(*Wire)) {
	w.T = t
	if bubble {
		w.net = new(memnet.Network)
		w.Base = w.net.Transport(w.H2)
	} else {
		w.Base = http.DefaultTransport.(*http.Transport).Clone()
		w.Base.Proxy = nil
		w.Base.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
	}
	t.Cleanup(w.Base.CloseIdleConnections)
	w.client = &http.Client{Transport: w.over(w.Base)}
	row(w)
}

// over is the transport under test over base.
func (w *Wire) over(base http.RoundTripper) http.RoundTripper {
	if w.setup.Over != nil {
		return w.setup.Over(base)
	}
	return base
}

// serve runs h on a fresh server and returns its URL.
func (w *Wire) serve(h http.HandlerFunc) string {
	w.Helper()
	if w.net != nil {
		w.servers++
		host := fmt.Sprintf("server%d.example", w.servers)
		srv := &http.Server{Handler: h, ErrorLog: quietLog}
		stop, err := w.net.Serve(host+":80", srv)
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(stop)
		w.stop = srv.Shutdown
		return "http://" + host
	}
	return w.serveTCP(h, w.H2)
}

// serveTLS is serve over TLS whatever the protocol.
func (w *Wire) serveTLS(h http.HandlerFunc) string { return w.serveTCP(h, true) }

func (w *Wire) serveTCP(h http.HandlerFunc, secret bool) string {
	srv := httptest.NewUnstartedServer(h)
	if w.setup.Front != nil {
		srv.Listener.Close()
		srv.Listener = w.setup.Front.Listen(w)
	}
	srv.EnableHTTP2 = w.H2
	w.watch(srv)
	if secret {
		srv.StartTLS()
		w.Base.TLSClientConfig.RootCAs.AddCert(srv.Certificate())
	} else {
		srv.Start()
	}
	if w.setup.Front != nil {
		return w.setup.Front.URL(w, srv.Listener, secret)
	}
	return srv.URL
}

func (w *Wire) watch(srv *httptest.Server) {
	srv.Config.ErrorLog = quietLog
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			w.opened.Add(1)
		case http.StateClosed, http.StateHijacked:
			w.closed.Add(1)
		}
	}
	w.stop = srv.Config.Shutdown
	w.Cleanup(func() {
		w.Base.CloseIdleConnections()
		srv.CloseClientConnections()
		srv.Close()
	})
}

// serveRaw answers each connection with answer, after it has read a request.
func (w *Wire) serveRaw(answer func(conn net.Conn, r *http.Request, head string)) string {
	var l net.Listener
	var err error
	w.servers++
	addr := fmt.Sprintf("raw%d.example:80", w.servers)
	if w.net != nil {
		l, err = w.net.Listen(addr)
	} else if w.setup.Front != nil {
		l = w.setup.Front.Listen(w)
	} else if l, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
		addr = l.Addr().String()
	}
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				var head bytes.Buffer
				r, err := http.ReadRequest(bufio.NewReader(io.TeeReader(conn, &head)))
				if err == nil {
					answer(conn, r, head.String())
				}
			}()
		}
	}()
	if w.setup.Front != nil {
		return w.setup.Front.URL(w, l, false)
	}
	return "http://" + addr
}

func (w *Wire) request(method, url string, body io.Reader) *http.Request {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, url, body)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *Wire) do(r *http.Request) *http.Response {
	w.Helper()
	resp, err := w.client.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (w *Wire) get(url string) *http.Response {
	w.Helper()
	return w.do(w.request("GET", url, nil))
}

// fails sends r and returns the error that must come of it.
func (w *Wire) fails(r *http.Request) error {
	w.Helper()
	resp, err := w.client.Do(r)
	if err == nil {
		resp.Body.Close()
		w.Fatalf("got %s, want an error", resp.Status)
	}
	if resp != nil {
		w.Errorf("got a response (%s) and an error (%v), want one of them", resp.Status, err)
	}
	return err
}

// tells sends r to a server of report and returns what it saw.
func (w *Wire) tells(r *http.Request) told {
	w.Helper()
	resp := w.do(r)
	var s told
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		w.Fatal(err)
	}
	return s
}

// A told is a request as its handler saw it.
type told struct {
	Method, Proto, Host, URI string
	Length                   int64
	Coding                   []string
	Header, Trailer          http.Header
	Body                     string
	BodyError                string
}

func report(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	s := told{
		Method: r.Method, Proto: r.Proto, Host: r.Host, URI: r.RequestURI, Length: r.ContentLength,
		Coding: r.TransferEncoding, Header: r.Header, Trailer: r.Trailer, Body: string(b),
	}
	if err != nil {
		s.BodyError = err.Error()
	}
	json.NewEncoder(w).Encode(s)
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

func (w *Wire) equal(what string, got, want any) {
	w.Helper()
	if !reflect.DeepEqual(got, want) {
		w.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// atOnce holds that no time was waited since start.
func (w *Wire) atOnce(start time.Time) {
	w.Helper()
	if took := time.Since(start); w.net != nil && took != 0 || took > 20*time.Second {
		w.Errorf("after: got %v, want at once", took)
	}
}

// eventually waits for what another goroutine does soon.
func (w *Wire) eventually(what string, ok func() bool) {
	w.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	w.Errorf("not within 5s: %s", what)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

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
