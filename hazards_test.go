package oncehttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/oncehttp/oncehttp"
)

// the caller's key follows a GET hop after a 303 to a foreign origin
func TestKeyDoesNotFollowTheSecondHopAfterA303(t *testing.T) {
	var got []string
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.URL.Path+"="+r.Header.Get("Idempotency-Key"))
		if r.URL.Path == "/x" {
			http.Redirect(w, r, "/y", 302)
		}
	}))
	defer foreign.Close()
	var own []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own = append(own, r.Method+r.URL.Path+"="+r.Header.Get("Idempotency-Key"))
		switch r.URL.Path {
		case "/a":
			http.Redirect(w, r, foreign.URL+"/x", 303)
		case "/b":
			http.Redirect(w, r, "/c", 303)
		case "/c":
			http.Redirect(w, r, "/d", 302)
		}
	}))
	defer srv.Close()
	c := &http.Client{Transport: &oncehttp.Transport{}}
	for _, p := range []string{"/a", "/b"} {
		req, _ := http.NewRequest("POST", srv.URL+p, strings.NewReader("x"))
		req.Header.Set("Idempotency-Key", "order-1")
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	t.Log(got, own)
	for _, s := range got {
		if !strings.HasSuffix(s, "=") {
			t.Errorf("foreign origin got the caller's key: %s", s)
		}
	}
	for _, s := range own {
		if strings.HasPrefix(s, "GET") && !strings.HasSuffix(s, "=") {
			t.Errorf("a GET after a 303 carries the key: %s", s)
		}
	}
}

// Base that retries by itself
func TestBaseThatRetriesDoesNotMakeUnknownNotSent(t *testing.T) {
	var sends atomic.Int32
	ln, _ := net.Listen("tcp", "127.0.0.1:0")
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.ReadAll(r.Body)
		sends.Add(1)
		ln.Close()
		hangUp(w)
	})}
	go srv.Serve(ln)
	inner := retryablehttp.NewClient()
	inner.Logger = nil
	inner.RetryMax = 1
	inner.RetryWaitMin, inner.RetryWaitMax = time.Millisecond, time.Millisecond
	tr := &oncehttp.Transport{Base: &retryablehttp.RoundTripper{Client: inner}, Attempts: 1, Honors: func(*http.Request) bool { return false }}
	req, _ := http.NewRequest("POST", "http://"+ln.Addr().String()+"/refund?secret=hunter2", strings.NewReader("x"))
	_, err := tr.RoundTrip(req)
	var e *oncehttp.Error
	errors.As(err, &e)
	t.Log(sends.Load(), err)
	if e.Certainty != oncehttp.CertaintyUnknown {
		t.Errorf("certainty %v want unknown", e.Certainty)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("query in the error")
	}
}

type wrapped struct{ http.RoundTripper }

// wrapper over http.Transport, bodyless declared POST on dying reused connection
func TestDeclaredBodylessPostUnderAWrapper(t *testing.T) {
	var n atomic.Int32
	ln, _ := net.Listen("tcp", "127.0.0.1:0")
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			return
		}
		ln.Close()
		hangUp(w)
	})}
	go srv.Serve(ln)
	base := &http.Transport{}
	tr := &oncehttp.Transport{Base: wrapped{base}, Attempts: 1}
	for i := range 2 {
		req, _ := http.NewRequest("POST", "http://"+ln.Addr().String()+"/refund", nil)
		req.Header["Idempotency-Key"] = nil
		resp, err := tr.RoundTrip(req)
		if i == 0 {
			if err != nil {
				t.Fatal(err)
			}
			io.ReadAll(resp.Body)
			resp.Body.Close()
			continue
		}
		var e *oncehttp.Error
		errors.As(err, &e)
		t.Log(n.Load(), err)
		if e.Certainty != oncehttp.CertaintyUnknown {
			t.Errorf("certainty %v want unknown", e.Certainty)
		}
	}
}

// ReplayReply cut by the attempt timeout hands on context.Canceled
func TestReplyCutByAttemptTimeoutDoesNotLookLikeCancel(t *testing.T) {
	n := newMemNet()
	synctest.Test(t, func(t *testing.T) {
		n.Serve(t, "pay.example", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(200)
			io.WriteString(w, "half")
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}))
		tr := &oncehttp.Transport{Base: n.Transport(t, false), AttemptTimeout: time.Second, ReplayReply: 1000, Honors: func(*http.Request) bool { return false }}
		req, _ := http.NewRequest("POST", "http://pay.example/", strings.NewReader("x"))
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		t.Logf("%q %v; tries %v", b, err, oncehttp.Attempts(resp))
		if errors.Is(err, context.Canceled) {
			t.Errorf("the caller cancelled nothing, but its body says %v", err)
		}
		n.Transport(t, false).CloseIdleConnections()
	})
}

// the caller's stalled body opens the breaker
func TestStalledCallerBodyDoesNotOpenTheBreaker(t *testing.T) {
	n := newMemNet()
	synctest.Test(t, func(t *testing.T) {
		n.Serve(t, "pay.example", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.ReadAll(r.Body) }))
		tr := &oncehttp.Transport{Base: n.Transport(t, false), Attempts: 1, AttemptTimeout: time.Second}
		for range 5 {
			pr, pw := io.Pipe()
			go func() { time.Sleep(3 * time.Second); pw.Close() }()
			req, _ := http.NewRequest("POST", "http://pay.example/", pr)
			_, err := tr.RoundTrip(req)
			t.Log(err)
			time.Sleep(3 * time.Second)
		}
		resp, err := tr.RoundTrip(newRequest(t, context.Background(), "POST", "http://pay.example/", "x"))
		if err != nil {
			t.Errorf("host is healthy, five callers were slow: %v", err)
		} else {
			resp.Body.Close()
		}
	})
}

// a Prepare that replaces the body, or panics
type closeSpy struct {
	io.Reader
	closed atomic.Bool
}

func (c *closeSpy) Close() error { c.closed.Store(true); return nil }

func TestPrepareThatReplacesTheBodyAndFails(t *testing.T) {
	for _, fail := range []bool{false, true} {
		spy := &closeSpy{Reader: strings.NewReader("x")}
		tr := &oncehttp.Transport{Base: script(200), Prepare: func(r *http.Request) error {
			b, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(b)))
			if fail {
				return errors.New("no")
			}
			return nil
		}}
		req, _ := http.NewRequest("POST", "http://pay.example/", spy)
		resp, err := tr.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		if !spy.closed.Load() {
			t.Errorf("fail=%v: caller's body left open", fail)
		}
	}
}

// A Prepare may put a reader around the body, to sign or count what is sent.
func TestPrepareMayWrapTheBody(t *testing.T) {
	for _, rewinds := range []bool{true, false} {
		var got []string
		base := roundTrip(func(r *http.Request) (*http.Response, error) {
			defer r.Body.Close()
			b, err := io.ReadAll(r.Body)
			got = append(got, string(b))
			if err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: 503 - 303*(len(got)/2), ProtoMajor: 1, Header: http.Header{}, Body: http.NoBody}, nil
		})
		tr := &oncehttp.Transport{Base: base, BackoffBase: time.Nanosecond, Logger: quiet(), Prepare: func(r *http.Request) error {
			r.Body = io.NopCloser(io.TeeReader(r.Body, io.Discard))
			return nil
		}}
		spy := &closeSpy{Reader: strings.NewReader("amount=1")}
		req, _ := http.NewRequest("POST", "http://pay.example/", spy)
		if rewinds {
			req.ContentLength = 8
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("amount=1")), nil }
		}
		resp, err := tr.RoundTrip(req)
		if err != nil || resp.StatusCode != 200 || !slices.Equal(got, []string{"amount=1", "amount=1"}) {
			t.Errorf("rewinds=%v: sent %q, error %v", rewinds, got, err)
		}
		if !spy.closed.Load() {
			t.Errorf("rewinds=%v: the caller's body was left open", rewinds)
		}
	}
}

// A Read of a nil body would be in a goroutine of net/http's, where nobody can recover.
func TestAGetBodyThatReturnsNothing(t *testing.T) {
	for _, ctx := range []context.Context{context.Background(), oncehttp.WithAction(context.Background(), "refund")} {
		b := script(errReset, 200)
		req := newRequest(t, ctx, "POST", "http://pay.example/", "b")
		req.GetBody = func() (io.ReadCloser, error) { return nil, nil }
		_, err := (&oncehttp.Transport{Base: b, BackoffBase: time.Nanosecond, Logger: quiet()}).RoundTrip(req)
		if !errors.Is(err, oncehttp.ErrBody) {
			t.Errorf("error %v, want one about the body", err)
		}
	}
}

// Whoever recovers from what a reply's reader panics with has no reply to close.
func TestAReplyThatPanicsIsClosed(t *testing.T) {
	spy := &closeSpy{Reader: readerFunc(func([]byte) (int, error) { panic("reader") })}
	tr := &oncehttp.Transport{ReplayReply: 100, Base: script(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: spy}, nil
	})}
	func() {
		defer func() { recover() }()
		tr.RoundTrip(newRequest(t, context.Background(), "GET", "http://pay.example/", ""))
	}()
	if !spy.closed.Load() {
		t.Error("the reply was left open")
	}
}

func TestRetryAtIsThatOfTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, last := range []int{200, 404} {
			b := script(with(503, "Retry-After", "2"), last)
			resp, err := (&oncehttp.Transport{Base: b}).RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", ""))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if at := oncehttp.Attempts(resp).RetryAt; !at.IsZero() {
				t.Errorf("after a %d RetryAt is %v, want none", last, at)
			}
		}
	})
}

func TestDefaultCheckRetryKnowsWhatIsHopeless(t *testing.T) {
	for err, want := range map[error]bool{
		&net.DNSError{Err: "no such host", IsNotFound: true}: false,
		&net.DNSError{Err: "timeout", IsTimeout: true}:       true,
		errReset: true,
	} {
		if got, _ := oncehttp.DefaultCheckRetry(t.Context(), nil, err); got != want {
			t.Errorf("DefaultCheckRetry(%v) = %v, want %v", err, got, want)
		}
	}
}

func TestNoWayToPrintAResultShowsItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const key = "canary-key"
		ctx := oncehttp.WithKey(t.Context(), key)
		resp, err := (&oncehttp.Transport{Base: script(503, 200)}).RoundTrip(newRequest(t, ctx, "POST", "http://a.example/", "b"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		_, err = (&oncehttp.Transport{Base: script(errReset)}).RoundTrip(newRequest(t, ctx, "POST", "http://a.example/", "b"))
		var log strings.Builder
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "result", oncehttp.Attempts(resp), "err", err)
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "result", oncehttp.Attempts(resp), "err", err)
		for _, v := range []any{oncehttp.Attempts(resp), err} {
			for _, verb := range []string{"%v", "%+v", "%s", "%q"} {
				fmt.Fprintf(&log, verb, v)
			}
			j, _ := json.Marshal(v)
			log.Write(j)
		}
		fmt.Fprintf(&log, "%#v", oncehttp.Attempts(resp))
		if strings.Contains(log.String(), key) {
			t.Errorf("the key is shown:\n%s", &log)
		}
		if got := oncehttp.Attempts(resp).Key; got != key {
			t.Errorf("Key = %q, want it where it is asked for", got)
		}
	})
}

// Release frees the key of the handler that says it, not of one that called it in
// the same process.
func TestReleaseDoesNotReachThroughATransport(t *testing.T) {
	runs := 0
	inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { oncehttp.Release(r.Context()) })
	client := &http.Client{Transport: &oncehttp.Transport{Base: roundTrip(func(r *http.Request) (*http.Response, error) {
		rec := httptest.NewRecorder()
		inner.ServeHTTP(rec, r)
		return rec.Result(), nil
	})}}
	h := (&oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		req, _ := http.NewRequestWithContext(r.Context(), "GET", "http://inner.example/", nil)
		resp, err := client.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
	}))
	for range 2 {
		postTo(h, "/refunds", "k", "b")
	}
	if runs != 1 {
		t.Errorf("the handler ran %d times, want once", runs)
	}
}

func TestAKeyDoesNotComeBackBehindAHopThatHonoursNone(t *testing.T) {
	var got []string
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.URL.Path+"="+r.Header.Get(oncehttp.Header))
		if r.URL.Path == "/x" {
			http.Redirect(w, r, "/y", 307)
		}
	}))
	defer foreign.Close()
	own := httptest.NewServer(http.RedirectHandler(foreign.URL+"/x", 307))
	defer own.Close()
	client := &http.Client{Transport: &oncehttp.Transport{Honors: func(r *http.Request) bool { return r.URL.Path != "/x" }}}
	req := newRequest(t, t.Context(), "POST", own.URL, "b")
	req.Header.Set(oncehttp.Header, "order-1")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if want := []string{"/x=", "/y=" + oncehttp.DeriveKey("order-1", foreign.URL)}; !slices.Equal(got, want) {
		t.Errorf("the other host got %q, want %q", got, want)
	}
}

// deafConn takes one request and then fails every write before a byte of it.
type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c deafConn) Write(p []byte) (int, error) {
	if c.deaf.Load() {
		return 0, errors.New("write: broken pipe")
	}
	return c.Conn.Write(p)
}

// An idle connection that has died is nobody's fault and no reason for an attempt:
// nothing was written, so net/http dials again.
func TestAConnectionThatDiedIdleCostsAnUnkeyedPOSTNothing(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }))
	defer srv.Close()
	var deaf []*atomic.Bool
	base := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		deaf = append(deaf, new(atomic.Bool))
		return deafConn{c, deaf[len(deaf)-1]}, err
	}}
	defer base.CloseIdleConnections()
	tr := &oncehttp.Transport{Base: base, Attempts: 1, Honors: func(*http.Request) bool { return false }}
	for i := range 2 {
		resp, err := tr.RoundTrip(newRequest(t, t.Context(), "POST", srv.URL, "body"))
		if err != nil {
			t.Fatalf("request %d: %v", i+1, err)
		}
		if got, _ := io.ReadAll(resp.Body); string(got) != "body" {
			t.Errorf("request %d: the server read %q", i+1, got)
		}
		resp.Body.Close()
		deaf[0].Store(true)
	}
	if len(deaf) != 2 {
		t.Errorf("%d connections, want 2", len(deaf))
	}
}
