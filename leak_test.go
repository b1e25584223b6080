package oncehttp_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A thousand calls, of which half fail in every way that leaves something to
// clean up, leave nothing: no goroutine, no connection, no open body.

func TestAThousandCallsInABubbleLeaveNothingBehind(t *testing.T) {
	for _, proto := range []string{"http1", "http2"} {
		for _, guarded := range []bool{false, true} {
			name := proto
			if guarded {
				name += ", with breaker and budget"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newMemNet()
					n.Serve(t, "a.example", http.HandlerFunc(misbehave))
					base := n.Transport(t, proto == "http2")
					tr := &oncehttp.Transport{AttemptTimeout: 5 * time.Second, Logger: quiet()}
					if !guarded {
						tr.Breaker, tr.Budget = &oncehttp.Breaker{Disabled: true}, &oncehttp.Budget{Disabled: true}
					}
					c := thousandCalls{t: t, tr: tr, url: "http://a.example", dead: "http://nobody.example", hung: time.Minute, loose: guarded, answers: 500}
					if guarded {
						c.answers = 5 // then the breaker opens
					}
					synctest.Wait()
					before := inBubbles()
					c.run(base, 1000)
					time.Sleep(time.Minute)
					if got := n.Open(); got > http.DefaultMaxIdleConnsPerHost {
						t.Errorf("connections kept: got %d, want at most %d", got, http.DefaultMaxIdleConnsPerHost)
					}
					tr.CloseIdleConnections()
					time.Sleep(time.Minute)
					synctest.Wait()
					if got := n.Open(); got != 0 {
						t.Errorf("connections at the server: got %d, want 0", got)
					}
					if got := inBubbles(); got > before {
						t.Errorf("goroutines: got %d, want %d\n%s", got, before, stacks())
					}
					c.check()
				})
			})
		}
	}
}

func TestAThousandCallsOverTCPLeaveNothingBehind(t *testing.T) {
	for _, proto := range []string{"http1", "http2"} {
		t.Run(proto, func(t *testing.T) {
			var open atomic.Int32
			srv := httptest.NewUnstartedServer(http.HandlerFunc(misbehave))
			srv.Config.ErrorLog = quietLog
			srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
				switch s {
				case http.StateNew:
					open.Add(1)
				case http.StateClosed, http.StateHijacked: // a hijacked one is closed at once
					open.Add(-1)
				}
			}
			if srv.EnableHTTP2 = proto == "http2"; srv.EnableHTTP2 {
				srv.StartTLS()
			} else {
				srv.Start()
			}
			defer srv.Close()
			dead := httptest.NewServer(nil)
			dead.Close()
			base := srv.Client().Transport.(*http.Transport).Clone()
			tr := &oncehttp.Transport{
				AttemptTimeout: 100 * time.Millisecond, BackoffBase: time.Millisecond, Logger: quiet(),
				Breaker: &oncehttp.Breaker{Disabled: true}, Budget: &oncehttp.Budget{Disabled: true},
			}
			c := thousandCalls{t: t, tr: tr, url: srv.URL, dead: dead.URL, hung: 200 * time.Millisecond, loose: true, answers: 500}
			before := runtime.NumGoroutine()
			c.run(base, 1000)
			// The settling time: what is on its way out may go.
			var goroutines int
			for range 200 {
				tr.CloseIdleConnections()
				if goroutines = runtime.NumGoroutine(); goroutines <= before && open.Load() == 0 {
					break
				}
				time.Sleep(25 * time.Millisecond)
			}
			if got := open.Load(); got != 0 {
				t.Errorf("connections at the server: got %d, want 0", got)
			}
			if goroutines > before {
				t.Errorf("goroutines: got %d, want %d\n%s", goroutines, before, stacks())
			}
			c.check()
		})
	}
}

// misbehave does what its path says.
func misbehave(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	if r.URL.Path != "/early" {
		io.Copy(io.Discard, r.Body)
	}
	switch r.URL.Path {
	case "/ok":
		io.WriteString(w, strings.Repeat("fine ", 100))
	case "/500":
		w.WriteHeader(500)
		io.WriteString(w, "sorry")
	case "/reset":
		reset(w)
	case "/hangup":
		hangUp(w)
	case "/cut":
		cut(w, 200)
	case "/cut503":
		cut(w, 503)
	case "/hang":
		<-r.Context().Done()
	case "/big":
		w.WriteHeader(503)
		w.Write(make([]byte, 64<<10))
	case "/drip":
		w.WriteHeader(503)
		for r.Context().Err() == nil {
			io.WriteString(w, "x")
			if rc.Flush() != nil {
				return
			}
			select {
			case <-r.Context().Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	case "/stream":
		io.WriteString(w, "x")
		rc.Flush()
		<-r.Context().Done()
	case "/early":
		w.WriteHeader(413)
	}
}

// How the failing half fails.
var failures = []string{"/500", "/reset", "/hangup", "/cut", "/cut503", "/hang", "/big", "/drip", "/stream", "/early", "dead", "cancelled", "cancelled in a pause"}

type thousandCalls struct {
	t         *testing.T
	tr        *oncehttp.Transport
	url, dead string
	hung      time.Duration // how long a caller waits for what never ends
	loose     bool          // a good call may fail too: refused by the breaker, or too slow for TCP
	answers   int           // the least that Base must have had

	requests, responses bodyCount
	good, bad           atomic.Int32
}

func (c *thousandCalls) run(base *http.Transport, n int) {
	c.requests.lax, c.responses.lax = true, true // a drain that takes too long is ended by Close
	c.tr.Base = watchedBase{base, &c.responses}
	next := make(chan int)
	var workers sync.WaitGroup
	for range 20 {
		workers.Go(func() {
			for i := range next {
				c.call(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
}

// A watchedBase counts the bodies of the responses that it hands out.
type watchedBase struct {
	*http.Transport
	bodies *bodyCount
}

func (b watchedBase) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.Transport.RoundTrip(r)
	if resp != nil {
		body := b.bodies.open(resp.Body).(*countedBody)
		body.close = resp.Body.Close
		resp.Body = body
	}
	return resp, err
}

func (c *thousandCalls) call(i int) {
	url, ctx, cancel := c.url+"/ok", c.t.Context(), context.CancelFunc(func() {})
	fails := i%2 == 1
	if fails {
		kind := failures[i/2%len(failures)]
		switch kind {
		case "dead":
			url = c.dead
		case "cancelled":
			url = c.url + "/hang"
			ctx, cancel = context.WithTimeout(ctx, c.hung/20)
		case "cancelled in a pause":
			url = c.url + "/500"
			ctx, cancel = context.WithCancel(ctx)
			time.AfterFunc(time.Millisecond, cancel)
		case "/stream", "/drip": // never end by themselves
			url = c.url + kind
			ctx, cancel = context.WithTimeout(ctx, c.hung)
		default:
			url = c.url + kind
		}
	}
	defer cancel()
	method := []string{"GET", "POST", "PUT"}[i%3]
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		c.t.Error(err)
		return
	}
	if method != "GET" {
		open := func() (io.ReadCloser, error) { return c.requests.open(strings.NewReader("hello")), nil }
		r.Body, _ = open()
		if r.ContentLength = -1; i%5 < 3 {
			r.GetBody, r.ContentLength = open, 5
		}
		if url == c.url+"/early" {
			r.Body.(*countedBody).r = io.MultiReader(strings.NewReader("hello"), readerFunc(func([]byte) (int, error) {
				time.Sleep(c.hung / 100)
				return 0, io.EOF
			}))
			r.GetBody, r.ContentLength = nil, -1
		}
	}
	resp, err := c.tr.RoundTrip(r)
	ok := err == nil && resp.StatusCode < 400
	if resp != nil {
		if i%7 != 0 { // now and then close without reading
			_, err = io.Copy(io.Discard, resp.Body)
			ok = ok && err == nil
		} else if fails {
			ok = false
		}
		resp.Body.Close()
	}
	if ok {
		c.good.Add(1)
	} else {
		c.bad.Add(1)
	}
}

func (c *thousandCalls) check() {
	c.t.Helper()
	good, bad := c.good.Load(), c.bad.Load()
	if good+bad != 1000 || !c.loose && good != 500 || bad < 400 {
		c.t.Errorf("calls: got %d good and %d bad, want 500 of each", good, bad)
	}
	c.requests.check(c.t, "request")
	c.responses.check(c.t, "response")
	if n := len(c.responses.bodies); n < c.answers {
		c.t.Errorf("responses: got %d, want %d or more", n, c.answers)
	}
}

func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

// inBubbles counts the goroutines that are in a bubble. runtime.NumGoroutine also
// counts what earlier tests and the runtime have running.
func inBubbles() int { return strings.Count(stacks(), ", synctest bubble ") }
