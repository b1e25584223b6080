package dropin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var traceRows = []Row{
	{"context values reach Base, the dialer and the hooks", Both, Real, func(w *Wire) {
		var inBase, inDial, hooked atomic.Bool
		dial := w.Base.DialContext
		w.Base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			inDial.Store(ctx.Value(ctxKey{}) == "v")
			return dial(ctx, network, addr)
		}
		w.client.Transport = w.over(roundTrip(func(r *http.Request) (*http.Response, error) {
			inBase.Store(r.Context().Value(ctxKey{}) == "v")
			return w.Base.RoundTrip(r)
		}))
		r := w.request("GET", w.serve(text("x")), nil)
		ctx := context.WithValue(r.Context(), ctxKey{}, "v")
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { hooked.Store(true) }})
		w.do(r.WithContext(ctx))
		w.equal("Base", inBase.Load(), true)
		w.equal("dialer", inDial.Load(), true)
		w.equal("hook", hooked.Load(), true)
	}},
	{"httptrace hooks run once each, in order", Both, Real, func(w *Wire) {
		var mu sync.Mutex
		var order []string
		saw := func(s string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, s)
		}
		r := w.request("POST", w.serve(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }), strings.NewReader("x"))
		trace := &httptrace.ClientTrace{
			GetConn:              func(string) { saw("GetConn") },
			ConnectStart:         func(string, string) { saw("ConnectStart") },
			ConnectDone:          func(string, string, error) { saw("ConnectDone") },
			GotConn:              func(httptrace.GotConnInfo) { saw("GotConn") },
			WroteHeaders:         func() { saw("WroteHeaders") },
			GotFirstResponseByte: func() { saw("GotFirstResponseByte") },
		}
		want := []string{"GetConn", "ConnectStart", "ConnectDone", "GotConn", "WroteHeaders", "GotFirstResponseByte"}
		if w.H2 {
			trace.TLSHandshakeStart = func() { saw("TLSHandshakeStart") }
			trace.TLSHandshakeDone = func(tls.ConnectionState, error) { saw("TLSHandshakeDone") }
			want = slices.Insert(want, 3, "TLSHandshakeStart", "TLSHandshakeDone")
		}
		w.do(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
		mu.Lock()
		defer mu.Unlock()
		w.equal("order", order, want)
	}},
	{"two traces in one context both run", Both, Real, func(w *Wire) {
		var first, second atomic.Int32
		r := w.request("GET", w.serve(text("x")), nil)
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { first.Add(1) }})
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { second.Add(1) }})
		w.do(r.WithContext(ctx))
		w.equal("first", first.Load(), int32(1))
		w.equal("second", second.Load(), int32(1))
	}},
	{"WroteRequest carries the error of the body", HTTP1, Real, func(w *Wire) {
		errs := make(chan error, 1)
		r := w.request("POST", w.serve(report), brokenAfter("hello"))
		w.fails(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			WroteRequest: func(i httptrace.WroteRequestInfo) { errs <- i.Err },
		})))
		if err := <-errs; err == nil || !strings.Contains(err.Error(), errBroken.Error()) { // no Unwrap there
			w.Errorf("error: got %v, want %v", err, errBroken)
		}
	}},
}

type ctxKey struct{}

var endRows = []Row{
	{"Client.Timeout ends the wait for headers with a timeout", Both, Virtual, func(w *Wire) {
		w.client.Timeout = 5 * time.Second
		start := time.Now()
		err := w.fails(w.request("GET", w.serve(hang), nil))
		w.equal("after", time.Since(start), 5*time.Second)
		w.isTimeout(err)
	}},
	{"Client.Timeout ends the body with a timeout", Both, Virtual, func(w *Wire) {
		w.client.Timeout = 5 * time.Second
		start := time.Now()
		resp := w.get(w.serve(func(rw http.ResponseWriter, r *http.Request) {
			io.WriteString(rw, "hello")
			http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		}))
		b, err := io.ReadAll(resp.Body)
		w.equal("what came", string(b), "hello")
		w.equal("after", time.Since(start), 5*time.Second)
		w.isTimeout(err)
	}},
	{"a deadline in the context ends the call with a timeout", Both, Virtual, func(w *Wire) {
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		err := w.fails(w.request("POST", w.serve(hang), strings.NewReader("x")).WithContext(ctx))
		w.equal("after", time.Since(start), 5*time.Second)
		w.isTimeout(err)
	}},
	{"a context that is already cancelled sends nothing", Both, Real, func(w *Wire) {
		var calls atomic.Int32
		body := &tracked{r: strings.NewReader("x")}
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		url := w.serve(func(http.ResponseWriter, *http.Request) { calls.Add(1) })
		if err := w.fails(w.request("POST", url, body).WithContext(ctx)); !errors.Is(err, context.Canceled) {
			w.Errorf("error: got %v, want context.Canceled", err)
		}
		w.equal("calls", calls.Load(), int32(0))
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
	}},
	{"cancelling ends the wait for headers, here and at the server", Both, Real, func(w *Wire) {
		arrived, gone := make(chan bool), make(chan bool)
		url := w.serve(func(_ http.ResponseWriter, r *http.Request) {
			arrived <- true
			<-r.Context().Done()
			close(gone)
		})
		ctx, cancel := context.WithCancel(w.Context())
		go func() {
			<-arrived
			cancel()
		}()
		if err := w.fails(w.request("GET", url, nil).WithContext(ctx)); !errors.Is(err, context.Canceled) {
			w.Errorf("error: got %v, want context.Canceled", err)
		}
		<-gone
	}},
	{"cancelling ends the body", Both, Real, func(w *Wire) {
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		resp := w.do(w.request("GET", w.serve(func(rw http.ResponseWriter, r *http.Request) {
			io.WriteString(rw, "hello")
			http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		}), nil).WithContext(ctx))
		b := make([]byte, 5)
		if _, err := io.ReadFull(resp.Body, b); err != nil {
			w.Fatal(err)
		}
		cancel()
		if _, err := resp.Body.Read(b); !errors.Is(err, context.Canceled) {
			w.Errorf("error: got %v, want context.Canceled", err)
		}
	}},
	{"the cause of a cancellation comes back", HTTP1, Real, func(w *Wire) {
		cause := errors.New("the user closed the tab")
		arrived := make(chan bool)
		ctx, cancel := context.WithCancelCause(w.Context())
		go func() {
			<-arrived
			cancel(cause)
		}()
		url := w.serve(func(_ http.ResponseWriter, r *http.Request) {
			arrived <- true
			<-r.Context().Done()
		})
		if err := w.fails(w.request("GET", url, nil).WithContext(ctx)); !errors.Is(err, cause) {
			w.Errorf("error: got %v, want the cause", err)
		}
	}},
	{"Request.Cancel ends the call", Both, Real, func(w *Wire) {
		cancel := make(chan struct{})
		r := w.request("GET", w.serve(func(_ http.ResponseWriter, r *http.Request) {
			close(cancel)
			<-r.Context().Done()
		}), nil)
		r.Cancel = cancel //lint:ignore SA1019 deprecated, and still honoured
		w.fails(r)
	}},
	{"ResponseHeaderTimeout of Base is a timeout", Both, Virtual, func(w *Wire) {
		w.Base.ResponseHeaderTimeout = 5 * time.Second
		err := w.fails(w.request("GET", w.serve(hang), nil))
		var t interface{ Timeout() bool }
		if !errors.As(err, &t) || !t.Timeout() {
			w.Errorf("error: got %v, want a timeout", err)
		}
		if !strings.Contains(err.Error(), "timeout awaiting response headers") {
			w.Errorf("error: got %q, want what the transport said in it", err)
		}
	}},
	{"the error of a call names method and URL once", Both, Virtual, func(w *Wire) {
		w.serve(text("x"))
		err := w.fails(w.request("GET", "http://nobody.example/path", nil))
		var ue *url.Error
		if !errors.As(err, &ue) || ue.Op != "Get" || ue.URL != "http://nobody.example/path" {
			w.Errorf("error: got %#v, want a *url.Error of Get and the URL", err)
		}
		if n := strings.Count(err.Error(), `Get "`); n != 1 {
			w.Errorf(`error: got %q, want Get "…" once in it`, err)
		}
	}},
	{"a refused connection is ECONNREFUSED", Both, Virtual, func(w *Wire) {
		err := w.fails(w.request("GET", "http://nobody.example/", nil))
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" || !errors.Is(err, syscall.ECONNREFUSED) {
			w.Errorf("error: got %v, want a dial error of ECONNREFUSED", err)
		}
	}},
	{"a name that does not exist is a DNSError", Both, Virtual, func(w *Wire) {
		w.Base.DialContext = func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "nobody.example", IsNotFound: true}}
		}
		var dns *net.DNSError
		if err := w.fails(w.request("GET", "http://nobody.example/", nil)); !errors.As(err, &dns) || !dns.IsNotFound {
			w.Errorf("error: got %v, want a DNSError", err)
		}
	}},
	{"an unknown certificate authority is an error of its type", Both, Real, func(w *Wire) {
		url := w.serveTLS(text("x"))
		w.Base.TLSClientConfig.RootCAs = x509.NewCertPool()
		var unknown x509.UnknownAuthorityError
		if err := w.fails(w.request("GET", url, nil)); !errors.As(err, &unknown) {
			w.Errorf("error: got %v, want an x509.UnknownAuthorityError", err)
		}
	}},
}

// isTimeout holds err to all the ways in which programs ask for a timeout.
func (w *Wire) isTimeout(err error) {
	w.Helper()
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		w.Errorf("error: got %v, want a net.Error with Timeout", err)
	}
	if !os.IsTimeout(err) {
		w.Errorf("error: got %v, want os.IsTimeout", err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		w.Errorf("error: got %v, want context.DeadlineExceeded", err)
	}
}
