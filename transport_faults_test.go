package oncehttp_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// Faults that clients which repeat requests have had in the field, each as a kind.

// fault runs f in a bubble for HTTP/1 and HTTP/2. The server answers request n,
// counted from 1, with serve; a fault without one serves for itself.
func fault(t *testing.T, serve func(n int32, w http.ResponseWriter, r *http.Request), f func(t *testing.T, x *faulty)) {
	for _, proto := range []string{"http1", "http2"} {
		t.Run(proto, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := &faulty{T: t, h2: proto == "http2", net: newMemNet()}
				x.base = x.net.Transport(t, x.h2)
				x.tr = &oncehttp.Transport{Base: x.base, Logger: quiet(), Breaker: &oncehttp.Breaker{Disabled: true}, Budget: &oncehttp.Budget{Disabled: true}}
				if serve != nil {
					x.net.Serve(t, "a.example", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						n := x.sends.Add(1)
						io.Copy(io.Discard, r.Body)
						serve(n, w, r)
					}))
				}
				f(t, x)
			})
		})
	}
}

type faulty struct {
	*testing.T
	h2    bool
	net   *memNet
	base  *http.Transport
	tr    *oncehttp.Transport
	sends atomic.Int32
}

func (x *faulty) do(ctx context.Context, method, url, body string) (*http.Response, error) {
	x.Helper()
	resp, err := x.tr.RoundTrip(newRequest(x, ctx, method, url, body))
	if (resp == nil) == (err == nil) {
		x.Fatalf("got %v and %v, want exactly one", resp, err)
	}
	return resp, err
}

// ok makes a call that must succeed and returns what the Transport tells of it.
func (x *faulty) ok(method string) oncehttp.Result {
	x.Helper()
	resp, err := x.do(x.Context(), method, "http://a.example/x", "")
	if err != nil {
		x.Fatal(err)
	}
	bodyOf(x, resp)
	if resp.StatusCode != 200 {
		x.Fatalf("status: got %d, want 200", resp.StatusCode)
	}
	return oncehttp.Attempts(resp)
}

// fails makes a call that must come to nothing.
func (x *faulty) fails(ctx context.Context, method, body string) *oncehttp.Error {
	x.Helper()
	resp, err := x.do(ctx, method, "http://a.example/x", body)
	if err == nil {
		resp.Body.Close()
		x.Fatalf("got %s, want an error", resp.Status)
	}
	var e *oncehttp.Error
	if !errors.As(err, &e) {
		x.Fatalf("error: got a %T, want an *Error", err)
	}
	return e
}

func noPause(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return 0 }

func pauseOf(d time.Duration) func(_, _ time.Duration, _ int, _ *http.Response) time.Duration {
	return func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return d }
}

// A discarded answer is drained when that is cheap, so that its connection serves
// again, and otherwise closed on purpose: never left open.
func TestDiscardedAnswersKeepNoConnections(t *testing.T) {
	for _, row := range []struct {
		name  string
		size  int
		known bool // Content-Length is set
		dials int  // HTTP/1; 0: one for each attempt
	}{
		{"no body", 0, true, 1},
		{"a short body", 500, true, 1},
		{"a short body of unknown length", 500, false, 1},
		{"64 KiB", 64 << 10, true, 0},
		{"64 KiB of unknown length", 64 << 10, false, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			fault(t, func(n int32, w http.ResponseWriter, r *http.Request) {
				if row.known {
					w.Header().Set("Content-Length", fmt.Sprint(row.size))
				}
				if n%3 != 0 {
					w.WriteHeader(503)
				}
				if !row.known {
					http.NewResponseController(w).Flush()
				}
				w.Write(make([]byte, row.size))
			}, func(t *testing.T, x *faulty) {
				x.tr.Backoff = noPause
				for range 20 {
					if got := len(x.ok("POST").Tries); got != 3 {
						t.Fatalf("tries: got %d, want 3", got)
					}
				}
				synctest.Wait()
				if got := x.net.Open(); got > 1 {
					t.Errorf("connections after 60 attempts: got %d, want 1", got)
				}
				if got := x.net.Dials(); row.dials > 0 && got > row.dials {
					t.Errorf("dials for 60 attempts: got %d, want %d", got, row.dials)
				}
			})
		})
	}
}

func TestAnErrorBodyThatDripsDoesNotHoldTheRetry(t *testing.T) {
	for name, every := range map[string]time.Duration{"a byte each second": time.Second, "nothing for an hour": time.Hour} {
		t.Run(name, func(t *testing.T) {
			fault(t, func(n int32, w http.ResponseWriter, r *http.Request) {
				if n > 1 {
					return
				}
				w.WriteHeader(503)
				http.NewResponseController(w).Flush()
				for {
					select {
					case <-r.Context().Done():
						return
					case <-time.After(every):
						io.WriteString(w, "x")
						http.NewResponseController(w).Flush()
					}
				}
			}, func(t *testing.T, x *faulty) {
				x.tr.Backoff = noPause
				start := time.Now()
				x.ok("GET")
				if took := time.Since(start); took > 50*time.Millisecond {
					t.Errorf("it took %v, want at most the 50ms of a drain", took)
				}
			})
		})
	}
}

func TestAFailingHostCostsOthersNoConnections(t *testing.T) {
	for _, kind := range []string{"503", "reset", "refused"} {
		t.Run(kind, func(t *testing.T) {
			fault(t, func(n int32, w http.ResponseWriter, r *http.Request) {
				if kind == "reset" {
					reset(w)
				} else {
					w.WriteHeader(503)
				}
			}, func(t *testing.T, x *faulty) {
				x.net.Serve(t, "well.example", http.HandlerFunc(text("fine")))
				var reused []bool
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					GotConn: func(i httptrace.GotConnInfo) { reused = append(reused, i.Reused) },
				})
				for range 2 {
					resp, err := x.do(ctx, "GET", "http://well.example/", "")
					if err != nil {
						t.Fatal(err)
					}
					bodyOf(t, resp)
					bad := "http://a.example/"
					if kind == "refused" {
						bad = "http://nobody.example/"
					}
					if resp, err := x.do(t.Context(), "GET", bad, ""); err == nil {
						resp.Body.Close()
					}
				}
				if len(reused) != 2 || !reused[1] {
					t.Errorf("reused: got %v, want the second call on the first one's connection", reused)
				}
			})
		})
	}
}

func TestExactlyOneOfAnswerAndErrorComesBack(t *testing.T) {
	var bodies bodyCount
	both := func(r *http.Request) (*http.Response, error) {
		resp, _ := answer(r, 200, "both")
		resp.Body = bodies.open(resp.Body)
		return resp, errBroken
	}
	tr := &oncehttp.Transport{Base: roundTrip(both), Attempts: 1}
	if resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", "")); resp != nil || !errors.Is(err, errBroken) {
		t.Errorf("both: got %v and %v, want the error alone", resp, err)
	}
	bodies.check(t, "response")

	tr = &oncehttp.Transport{Base: roundTrip(func(*http.Request) (*http.Response, error) { return nil, nil }), Attempts: 1}
	resp, err := tr.RoundTrip(newRequest(t, t.Context(), "POST", "http://a.example/", "b"))
	var e *oncehttp.Error
	if resp != nil || !errors.As(err, &e) || e.Certainty != oncehttp.CertaintyUnknown {
		t.Errorf("neither: got %v and %v, want an error whose outcome is unknown", resp, err)
	}

	tr = &oncehttp.Transport{Attempts: 1, Base: roundTrip(func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: 200}, nil })}
	if resp, err = tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", "")); err != nil || resp.Body == nil || resp.Request == nil {
		t.Errorf("an answer without a body: got %+v and %v, want one with", resp, err)
	}
}

func TestNoErrorIsWrappedTwice(t *testing.T) {
	inner := &url.Error{Op: "Get", URL: "http://a.example/x?token=s3cret", Err: &url.Error{Op: "Get", URL: "http://a.example/x?token=s3cret", Err: errBroken}}
	client := &http.Client{Transport: &oncehttp.Transport{Attempts: 1, Base: roundTrip(func(*http.Request) (*http.Response, error) { return nil, inner })}}
	_, err := client.Get("http://a.example/x")
	if n := strings.Count(err.Error(), "Get \""); n != 1 || !errors.Is(err, errBroken) {
		t.Errorf("got %q, want Get once and the cause", err)
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %q, want no query in it", err)
	}
}

// net/http notices such a body itself, but what it says of it depends on a race.
func TestABodyThatIsNotAsLongAsItSaysIsBlamed(t *testing.T) {
	for _, length := range []int64{3, 10} {
		sends := 0
		tr := &oncehttp.Transport{Breaker: &oncehttp.Breaker{Failures: 1}, Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			sends++
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
			return nil, errReset
		})}
		for range 2 { // the second finds the breaker closed: it is not the host's fault
			r := newRequest(t, t.Context(), "POST", "http://a.example/", "")
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("hello")), length
			_, err := tr.RoundTrip(r)
			if err == nil || !strings.Contains(strings.ToLower(strings.ReplaceAll(err.Error(), "-", "")), "contentlength") {
				t.Errorf("length %d: got %v, want the length blamed", length, err)
			}
		}
		if sends != 2 {
			t.Errorf("length %d: got %d sends of two calls, want one each", length, sends)
		}
	}
}

func TestAnAttemptsTimeoutEndsTheAttemptNotTheCall(t *testing.T) {
	fault(t, func(n int32, w http.ResponseWriter, r *http.Request) {
		if n < 3 {
			<-r.Context().Done()
		}
	}, func(t *testing.T, x *faulty) {
		x.tr.AttemptTimeout, x.tr.Backoff = 100*time.Millisecond, noPause
		start := time.Now()
		if got := x.ok("GET"); len(got.Tries) != 3 {
			t.Errorf("tries: got %d, want 3", len(got.Tries))
		}
		if took := time.Since(start); took != 200*time.Millisecond {
			t.Errorf("it took %v, want two timeouts of 100ms", took)
		}
	})
	fault(t, func(_ int32, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, func(t *testing.T, x *faulty) {
		x.tr.AttemptTimeout, x.tr.Backoff = 100*time.Millisecond, noPause
		e := x.fails(t.Context(), "POST", "b")
		if len(e.Tries) != 3 || e.Stop != oncehttp.ErrAttempts || e.Certainty != oncehttp.CertaintyUnknown {
			t.Errorf("got %+v, want three tries of unknown outcome", e.Result)
		}
		if !e.Timeout() {
			t.Error("the error is no timeout")
		}
		// It was not the caller who gave up, and nobody may think so.
		if errors.Is(e, context.Canceled) {
			t.Errorf("got %v, want no context.Canceled in it", e)
		}
	})
}

func TestTheAttemptTimeoutIsAMinuteUnlessSet(t *testing.T) {
	fault(t, func(_ int32, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, func(t *testing.T, x *faulty) {
		x.tr.Attempts = 1
		start := time.Now()
		x.fails(t.Context(), "GET", "")
		if took := time.Since(start); took != time.Minute {
			t.Errorf("zero: it took %v, want a minute", took)
		}
	})
	fault(t, func(_ int32, _ http.ResponseWriter, r *http.Request) { time.Sleep(time.Hour) }, func(t *testing.T, x *faulty) {
		x.tr.AttemptTimeout = -1
		start := time.Now()
		x.ok("GET")
		if took := time.Since(start); took != time.Hour {
			t.Errorf("negative: it took %v, want the hour that the server takes", took)
		}
	})
}

func TestNobodyPausesAfterTheLastAttempt(t *testing.T) {
	fault(t, func(_ int32, w http.ResponseWriter, r *http.Request) { reset(w) }, func(t *testing.T, x *faulty) {
		x.tr.Backoff = pauseOf(7 * time.Second)
		start := time.Now()
		e := x.fails(t.Context(), "GET", "")
		if took := time.Since(start); took != 14*time.Second {
			t.Errorf("it took %v, want two pauses of 7s", took)
		}
		for i, want := range []time.Duration{7 * time.Second, 7 * time.Second, 0} {
			if got := e.Tries[i].Pause; got != want {
				t.Errorf("pause after try %d: got %v, want %v", i+1, got, want)
			}
		}
	})
}

// Wherever a call waits, its caller can end it at once, and the error has all of
// it: that it was cancelled, why, and the last real failure.
func TestACallThatWaitsCanBeCancelled(t *testing.T) {
	cause := errors.New("the user closed the tab")
	for _, row := range []struct {
		name  string
		set   func(*faulty)
		serve func(n int32, w http.ResponseWriter, r *http.Request)
		first bool // a call before sets the scene
		last  func(x *faulty, e *oncehttp.Error) bool
	}{
		{name: "in a pause after a reset", set: func(x *faulty) { x.tr.Backoff = pauseOf(time.Minute) },
			serve: func(_ int32, w http.ResponseWriter, r *http.Request) { reset(w) },
			last:  func(x *faulty, e *oncehttp.Error) bool { return x.h2 || errors.Is(e, syscall.ECONNRESET) }},
		{name: "in a pause after a 503", set: func(x *faulty) { x.tr.Backoff = pauseOf(time.Minute) },
			serve: func(_ int32, w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) },
			last:  func(_ *faulty, e *oncehttp.Error) bool { return strings.Contains(e.Error(), "503") }},
		{name: "in a wait that the server asked for",
			serve: func(_ int32, w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", "25")
				w.WriteHeader(429)
			},
			last: func(_ *faulty, e *oncehttp.Error) bool { return strings.Contains(e.Error(), "429") }},
		{name: "for headers",
			serve: func(_ int32, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{name: "for the second attempt's headers", set: func(x *faulty) { x.tr.Backoff = noPause },
			serve: func(n int32, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					hangUp(w)
					return
				}
				<-r.Context().Done()
			}},
		{name: "for the limiter", set: func(x *faulty) { x.tr.Limit = 0.01 }, first: true,
			serve: func(_ int32, w http.ResponseWriter, r *http.Request) {}},
		{name: "for a host that is held", set: func(x *faulty) { x.tr.HoldHost, x.tr.Attempts = true, 1 }, first: true,
			serve: func(_ int32, w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", "25")
				w.WriteHeader(503)
			}},
	} {
		t.Run(row.name, func(t *testing.T) {
			fault(t, row.serve, func(t *testing.T, x *faulty) {
				if row.set != nil {
					row.set(x)
				}
				if row.first {
					if resp, err := x.do(t.Context(), "GET", "http://a.example/", ""); err == nil {
						resp.Body.Close()
					}
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(10*time.Second, func() { cancel(cause) })
				start := time.Now()
				e := x.fails(ctx, "POST", "b")
				if took := time.Since(start); took != 10*time.Second {
					t.Errorf("it took %v, want the 10s until it was cancelled", took)
				}
				if !errors.Is(e, context.Canceled) || !errors.Is(e, cause) || !errors.Is(e.Stop, context.Canceled) && len(e.Tries) == 0 {
					t.Errorf("got %v, stopped by %v, want context.Canceled and the cause in it", e, e.Stop)
				}
				if e.Timeout() {
					t.Error("a cancelled call is no timeout")
				}
				if row.last != nil && !row.last(x, e) {
					t.Errorf("got %v, want the last failure in it", e)
				}
			})
		})
	}
}

func TestAServersWaitIsKeptWhateverItsForm(t *testing.T) {
	for _, row := range []struct {
		name        string
		status      int
		header      []string
		least, most time.Duration
	}{
		{"seconds", 503, []string{"Retry-After", "3"}, 3 * time.Second, 3300 * time.Millisecond},
		{"seconds on 429", 429, []string{"Retry-After", "3"}, 3 * time.Second, 3300 * time.Millisecond},
		{"seconds on 500", 500, []string{"Retry-After", "3"}, 3 * time.Second, 3300 * time.Millisecond},
		{"seconds on 408", 408, []string{"Retry-After", "3"}, 3 * time.Second, 3300 * time.Millisecond},
		{"seconds on a 409 in progress", 409, []string{"Retry-After", "3"}, 3 * time.Second, 3300 * time.Millisecond},
		{"milliseconds", 503, []string{"Retry-After-Ms", "1500"}, 1500 * time.Millisecond, 1650 * time.Millisecond},
		{"Azure's milliseconds", 503, []string{"X-Ms-Retry-After-Ms", "1500"}, 1500 * time.Millisecond, 1650 * time.Millisecond},
		{"a long wait, of which a second is added at most", 503, []string{"Retry-After", "20"}, 20 * time.Second, 21 * time.Second},
		{"a date by a clock that runs an hour ahead", 503, []string{"Date", "Sat, 01 Jan 2000 01:00:00 GMT", "Retry-After", "Sat, 01 Jan 2000 01:00:05 GMT"}, 5 * time.Second, 5500 * time.Millisecond},
		{"a date by a clock that runs a day behind", 503, []string{"Date", "Fri, 31 Dec 1999 00:00:00 GMT", "Retry-After", "Fri, 31 Dec 1999 00:00:05 GMT"}, 5 * time.Second, 5500 * time.Millisecond},
		{"zero, which is no hint", 503, []string{"Retry-After", "0"}, 0, 500 * time.Millisecond},
		{"garbage, which is no hint", 503, []string{"Retry-After", "soon"}, 0, 500 * time.Millisecond},
		{"a negative wait, which is no hint", 503, []string{"Retry-After", "-5"}, 0, 500 * time.Millisecond},
	} {
		t.Run(row.name, func(t *testing.T) {
			fault(t, func(n int32, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					for i := 0; i < len(row.header); i += 2 {
						w.Header().Set(row.header[i], row.header[i+1])
					}
					w.WriteHeader(row.status)
				}
			}, func(t *testing.T, x *faulty) {
				start := time.Now()
				got := x.ok("POST")
				if took := time.Since(start); took < row.least || took > row.most {
					t.Errorf("it took %v, want %v to %v", took, row.least, row.most)
				}
				if p := got.Tries[0].Pause; p != time.Since(start) {
					t.Errorf("pause: got %v, want the %v that passed", p, time.Since(start))
				}
			})
		})
	}
}

func TestClientsToldTheSameWaitDoNotComeBackTogether(t *testing.T) {
	fault(t, func(n int32, w http.ResponseWriter, r *http.Request) {
		if n <= 100 {
			w.Header().Set("Retry-After", "10")
			w.WriteHeader(503)
		}
	}, func(t *testing.T, x *faulty) {
		start := time.Now()
		var mu sync.Mutex
		var least, most time.Duration
		var calls sync.WaitGroup
		for range 100 {
			calls.Go(func() {
				tr := &oncehttp.Transport{Base: x.base, Logger: quiet()} // each its own client
				resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", ""))
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
				took := time.Since(start)
				mu.Lock()
				defer mu.Unlock()
				if least == 0 || took < least {
					least = took
				}
				most = max(most, took)
			})
		}
		calls.Wait()
		if least < 10*time.Second || most > 11*time.Second {
			t.Errorf("they came back after %v to %v, want 10s to 11s", least, most)
		}
		if most-least < 500*time.Millisecond {
			t.Errorf("they came back within %v, want them spread over a second", most-least)
		}
	})
}

func TestHooksSeeTheAnswerBeforeItIsDiscarded(t *testing.T) {
	fault(t, func(n int32, w http.ResponseWriter, r *http.Request) {
		if n < 3 {
			w.WriteHeader(503)
		}
		fmt.Fprint(w, "answer ", n)
	}, func(t *testing.T, x *faulty) {
		var checked, paused []string
		x.tr.CheckRetry = func(ctx context.Context, resp *http.Response, err error) (bool, error) {
			b := make([]byte, 8)
			io.ReadFull(resp.Body, b)
			checked = append(checked, fmt.Sprint(resp.StatusCode, " ", string(b)))
			return oncehttp.DefaultCheckRetry(ctx, resp, err)
		}
		x.tr.Backoff = func(_, _ time.Duration, n int, resp *http.Response) time.Duration {
			paused = append(paused, fmt.Sprint(n, " ", resp.StatusCode, " ", resp.Header.Get("Content-Type")))
			return 0
		}
		x.ok("GET")
		if got, want := fmt.Sprint(checked), "[503 answer 1 503 answer 2]"; got != want {
			t.Errorf("CheckRetry: got %v, want %v", got, want)
		}
		if got, want := fmt.Sprint(paused), "[0 503 text/plain; charset=utf-8 1 503 text/plain; charset=utf-8]"; got != want {
			t.Errorf("Backoff: got %v, want %v", got, want)
		}
	})
}

// net/http sends a request with an Idempotency-Key again by itself when a reused
// connection dies: golang/go#19943. The Transport decides about repeats, so its
// attempts must be all there is, or be counted.
func TestSendsEqualAttempts(t *testing.T) {
	serve := func(n int32, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/warm" {
			hangUp(w)
		}
	}
	warm := func(t *testing.T, x *faulty, rt http.RoundTripper) {
		resp, err := rt.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/warm", ""))
		if err != nil {
			t.Fatal(err)
		}
		bodyOf(t, resp)
		synctest.Wait()
		x.sends.Store(0)
	}
	t.Run("net/http alone sends twice", func(t *testing.T) {
		fault(t, serve, func(t *testing.T, x *faulty) {
			warm(t, x, x.base)
			r := newRequest(t, t.Context(), "POST", "http://a.example/x", "b")
			r.Header.Set("Idempotency-Key", "k")
			if resp, err := x.base.RoundTrip(r); err == nil {
				resp.Body.Close()
			}
			if got := x.sends.Load(); !x.h2 && got != 2 {
				t.Errorf("sends: got %d, want 2, or this shows nothing", got)
			}
		})
	})
	for _, row := range []struct {
		name   string
		method string
		body   string
		set    func(*oncehttp.Transport)
		spoil  func(*http.Request)
	}{
		{"a POST with a fresh key", "POST", "b", nil, nil},
		{"a PUT with a fresh key", "PUT", "b", nil, nil},
		{"a POST with the caller's key", "POST", "b", nil, func(r *http.Request) { r.Header.Set("Idempotency-Key", "k") }},
		{"a POST with a key in another field", "POST", "b", func(tr *oncehttp.Transport) { tr.KeyHeader = "X-Idempotency-Key" }, nil},
		{"a POST with the field that net/http knows besides", "POST", "b", nil, func(r *http.Request) { r.Header.Set("X-Idempotency-Key", "k") }},
		{"a POST with a nil entry", "POST", "b", nil, func(r *http.Request) { r.Header["Idempotency-Key"] = nil }},
		{"a POST to a host that honours no keys", "POST", "b", func(tr *oncehttp.Transport) { tr.Honors = noKeys }, nil},
		{"a POST without a body", "POST", "", nil, nil},
		{"a DELETE without a body", "DELETE", "", nil, nil},
		{"a PATCH with a key that Prepare sets", "PATCH", "b", func(tr *oncehttp.Transport) {
			tr.Honors = noKeys
			tr.Prepare = func(r *http.Request) error { r.Header.Set("Idempotency-Key", "k"); return nil }
		}, nil},
	} {
		for _, most := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, at most %d attempts", row.name, most), func(t *testing.T) {
				fault(t, serve, func(t *testing.T, x *faulty) {
					x.tr.Attempts, x.tr.Backoff = most, noPause
					if row.set != nil {
						row.set(x.tr)
					}
					warm(t, x, x.tr)
					r := newRequest(t, t.Context(), row.method, "http://a.example/x", row.body)
					if row.spoil != nil {
						row.spoil(r)
					}
					_, err := x.tr.RoundTrip(r)
					var e *oncehttp.Error
					if !errors.As(err, &e) {
						t.Fatalf("got %v, want an *Error", err)
					}
					sends, conns := int(x.sends.Load()), 0
					for _, try := range e.Tries {
						conns += try.Conns
					}
					if row.body != "" && sends != len(e.Tries) {
						t.Errorf("sends: got %d for %d attempts, want as many", sends, len(e.Tries))
					}
					if row.body == "" && sends != conns {
						t.Errorf("sends: got %d, want the %d connections that the tries tell of", sends, conns)
					}
					if e.Certainty != oncehttp.CertaintyUnknown {
						t.Errorf("certainty: got %v, want unknown", e.Certainty)
					}
				})
			})
		}
	}
	t.Run("a second send that cannot dial is not taken for nothing sent", func(t *testing.T) {
		for _, method := range []string{"DELETE", "POST"} {
			synctest.Test(t, func(t *testing.T) {
				n := newMemNet()
				var stop func()
				stop = n.Serve(t, "a.example", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == method {
						stop() // takes the connection with it
					}
				}))
				tr := &oncehttp.Transport{Base: n.Transport(t, false), Attempts: 1}
				resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/warm", ""))
				if err != nil {
					t.Fatal(err)
				}
				bodyOf(t, resp)
				synctest.Wait()
				_, err = tr.RoundTrip(newRequest(t, t.Context(), method, "http://a.example/x", ""))
				var e *oncehttp.Error
				if !errors.As(err, &e) || e.Certainty != oncehttp.CertaintyUnknown || !saysUnknown.MatchString(err.Error()) {
					t.Errorf("%s: got %v, want an error of unknown outcome", method, err)
				}
			})
		}
	})
}

func TestACertificateThatIsRefusedIsRefusedOnce(t *testing.T) {
	for _, row := range []struct {
		name string
		set  func(c *tls.Config, srv *httptest.Server)
		is   func(error) bool
	}{
		{"an unknown authority", func(c *tls.Config, _ *httptest.Server) { c.RootCAs = x509.NewCertPool() }, func(err error) bool {
			var e x509.UnknownAuthorityError
			return errors.As(err, &e)
		}},
		{"another host's name", func(c *tls.Config, _ *httptest.Server) { c.ServerName = "other.example" }, func(err error) bool {
			var e x509.HostnameError
			return errors.As(err, &e)
		}},
		{"a certificate that has expired", func(c *tls.Config, srv *httptest.Server) {
			after := srv.Certificate().NotAfter.Add(time.Hour)
			c.Time = func() time.Time { return after }
		}, func(err error) bool {
			var e x509.CertificateInvalidError
			return errors.As(err, &e) && e.Reason == x509.Expired
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var conns atomic.Int32
			srv := httptest.NewUnstartedServer(http.HandlerFunc(text("x")))
			srv.Config.ErrorLog = quietLog
			srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					conns.Add(1)
				}
			}
			srv.StartTLS()
			defer srv.Close()
			base := srv.Client().Transport.(*http.Transport).Clone()
			row.set(base.TLSClientConfig, srv)
			tr := &oncehttp.Transport{Base: base}
			_, err := tr.RoundTrip(newRequest(t, t.Context(), "POST", srv.URL, "b"))
			var e *oncehttp.Error
			if !errors.As(err, &e) || !row.is(err) {
				t.Fatalf("got %v, want an *Error with the certificate's", err)
			}
			if conns.Load() != 1 || len(e.Tries) != 1 || e.Stop != oncehttp.ErrFinal || e.Certainty != oncehttp.CertaintyNotSent {
				t.Errorf("got %d connections, %+v, want one try that was not sent and is final", conns.Load(), e.Result)
			}
		})
	}
}

// REFUSED_STREAM and a GOAWAY with a lower last stream say that the request was
// not processed (RFC 9113, section 8.7), so even a POST that nothing protects may
// go again. Neither comes from net/http's server at will, so this one speaks frames.
func TestARequestThatWasNotProcessedIsSentAgainWhateverItsMethod(t *testing.T) {
	const (
		refuse = iota
		goAway
		hangs
	)
	for _, row := range []struct {
		name   string
		does   int
		sends  int
		unsafe bool // it must not be sent again
	}{
		{"REFUSED_STREAM", refuse, 2, false},
		{"GOAWAY", goAway, 2, false},
		{"the connection's end", hangs, 1, true},
	} {
		for _, rewind := range []bool{true, false} {
			for _, body := range []string{"", "hello"} {
				if body == "" && rewind {
					continue
				}
				row := row
				if row.does == goAway && body == "" {
					// net/http would send it again over another connection, as it does
					// after errors that say nothing of the kind; the two look alike.
					row.sends, row.unsafe = 1, true
				}
				t.Run(fmt.Sprintf("%s, body %q, GetBody %v", row.name, body, rewind), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n := newMemNet()
						l, err := n.Listen("a.example:80")
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { l.Close() })
						var sends atomic.Int32
						go serveFrames(l, func(c *frameConn, stream uint32) {
							switch {
							case sends.Add(1) > 1:
								c.frame(frameHeaders, flagEndHeaders|flagEndStream, stream, []byte{0x88}) // :status 200
							case row.does == refuse:
								c.frame(frameRSTStream, 0, stream, binary.BigEndian.AppendUint32(nil, 7))
							case row.does == goAway:
								c.frame(frameGoAway, 0, 0, make([]byte, 8)) // last stream 0, no error
							default:
								c.Close()
							}
						})
						base := n.Transport(t, true)
						tr := &oncehttp.Transport{Base: base, Honors: noKeys, Logger: quiet(), Backoff: noPause}
						r := newRequest(t, t.Context(), "POST", "http://a.example/", body)
						if !rewind {
							r.GetBody = nil
						}
						resp, err := tr.RoundTrip(r)
						if int(sends.Load()) != row.sends {
							// A body without GetBody may be gone, and then is not sent again.
							var e *oncehttp.Error
							if !(body != "" && !rewind && errors.As(err, &e) && errors.Is(e.Stop, oncehttp.ErrBody) && e.Certainty == oncehttp.CertaintyNotSent) {
								t.Errorf("sends: got %d (%v), want %d", sends.Load(), err, row.sends)
							}
						}
						if row.unsafe {
							var e *oncehttp.Error
							if !errors.As(err, &e) || e.Stop != oncehttp.ErrUnsafe || e.Certainty != oncehttp.CertaintyUnknown {
								t.Errorf("got %v, want ErrUnsafe and an unknown outcome", err)
							}
						}
						if err == nil {
							bodyOf(t, resp)
						}
						synctest.Wait()
						n.Break() // a stream whose answer came before its body's end is not idle
					})
				})
			}
		}
	}
}

// Frames of RFC 9113.
const (
	frameHeaders    = 0x1
	frameRSTStream  = 0x3
	frameSettings   = 0x4
	framePing       = 0x6
	frameGoAway     = 0x7
	flagAck         = 0x1
	flagEndStream   = 0x1
	flagEndHeaders  = 0x4
	clientPrefaceOf = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
)

type frameConn struct{ net.Conn }

func (c *frameConn) frame(kind, flags byte, stream uint32, payload []byte) {
	n := len(payload)
	head := binary.BigEndian.AppendUint32([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags}, stream)
	c.Write(append(head, payload...))
}

// serveFrames calls request for each request that begins on a connection of l.
func serveFrames(l net.Listener, request func(c *frameConn, stream uint32)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			c, in := &frameConn{conn}, bufio.NewReader(conn)
			in.Discard(clientPrefaceOf)
			c.frame(frameSettings, 0, 0, nil)
			var head [9]byte
			for {
				if _, err := io.ReadFull(in, head[:]); err != nil {
					return
				}
				payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
				if _, err := io.ReadFull(in, payload); err != nil {
					return
				}
				switch kind, flags := head[3], head[4]; {
				case kind == frameSettings && flags&flagAck == 0:
					c.frame(frameSettings, flagAck, 0, nil)
				case kind == framePing && flags&flagAck == 0:
					c.frame(framePing, flagAck, 0, payload)
				case kind == frameHeaders:
					request(c, binary.BigEndian.Uint32(head[5:])&^(1<<31))
				}
			}
		}()
	}
}

// Until a connection stands nothing can have been sent, so even a POST that nothing
// protects may go again.
func TestWhatNeverGotAConnectionWasNotSent(t *testing.T) {
	for _, row := range []struct {
		name string
		dial func(ctx context.Context) (net.Conn, error)
		set  func(*http.Transport)
		url  string
	}{
		{"a dial that hangs", func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() },
			func(b *http.Transport) {
				dial := b.DialContext
				b.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					ctx, cancel := context.WithTimeout(ctx, time.Hour) // net/http keeps dialing when the call is gone
					defer cancel()
					return dial(ctx, network, addr)
				}
			}, "http://a.example/"},
		{"a dial that fails in its own words", func(context.Context) (net.Conn, error) { return nil, errBroken }, nil, "http://a.example/"},
		{"a lookup that fails for now", func(context.Context) (net.Conn, error) {
			return nil, &net.DNSError{Err: "server misbehaving", Name: "a.example", IsTemporary: true}
		}, nil, "http://a.example/"},
		{"a TLS handshake that hangs", answered(func(conn net.Conn) { io.Copy(io.Discard, conn) }),
			func(b *http.Transport) { b.TLSHandshakeTimeout = 5 * time.Second }, "https://a.example/"},
		{"a TLS handshake with a server that speaks none", answered(func(conn net.Conn) {
			conn.Read(make([]byte, 5))
			io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
		}), nil, "https://a.example/"},
		{"a TLS handshake that is cut", answered(func(conn net.Conn) { conn.Read(make([]byte, 5)) }), nil, "https://a.example/"},
		{"a proxy that refuses", answered(func(conn net.Conn) {
			http.ReadRequest(bufio.NewReader(conn))
			io.WriteString(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		}), func(b *http.Transport) {
			b.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.example"})
		}, "https://a.example/"},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var dials atomic.Int32
				base := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					dials.Add(1)
					return row.dial(ctx)
				}}
				if row.set != nil {
					row.set(base)
				}
				tr := &oncehttp.Transport{Base: base, Honors: noKeys, Logger: quiet(), Backoff: pauseOf(time.Minute)}
				_, err := tr.RoundTrip(newRequest(t, t.Context(), "POST", row.url, "b"))
				var e *oncehttp.Error
				if !errors.As(err, &e) {
					t.Fatalf("got %v, want an *Error", err)
				}
				if dials.Load() != 3 || len(e.Tries) != 3 || e.Stop != oncehttp.ErrAttempts || e.Certainty != oncehttp.CertaintyNotSent {
					t.Errorf("got %d dials, %+v, want three tries that were not sent", dials.Load(), e.Result)
				}
				if !strings.Contains(err.Error(), "this request was not sent") {
					t.Errorf("text: got %q, want it to say that nothing was sent", err)
				}
				time.Sleep(2 * time.Hour) // what still dials gives up
			})
		})
	}
}

// answered dials a server that does as serve says, and then closes.
func answered(serve func(net.Conn)) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var n memNet
		l, err := n.Listen("it:1")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		client, err := n.DialContext(ctx, "tcp", "it:1")
		if err != nil {
			return nil, err
		}
		server, err := l.Accept()
		if err != nil {
			return nil, err
		}
		go func() {
			defer server.Close()
			serve(server)
		}()
		return client, nil
	}
}

// What the Transport itself refuses is not sent, not repeated, not waited for and
// not to be mistaken for what a server says.
func TestALocalRefusalIsNoAnswerAndIsNotRepeated(t *testing.T) {
	for _, row := range []struct {
		name  string
		set   func(*oncehttp.Transport)
		is    error
		first int // the status of the call that sets the scene; 0: none
		ctx   func(context.Context) context.Context
	}{
		{"by the breaker", func(tr *oncehttp.Transport) { tr.Breaker = &oncehttp.Breaker{Failures: 1} }, oncehttp.ErrOpen, 503, nil},
		{"by the limiter", func(tr *oncehttp.Transport) { tr.Limit = 0.001 }, oncehttp.ErrLimit, 200, nil},
		{"by a host that is held", func(tr *oncehttp.Transport) { tr.HoldHost = true }, oncehttp.ErrRetryAfter, 503, nil},
		{"by Prepare", func(tr *oncehttp.Transport) { tr.Prepare = failsFrom(1) }, errBroken, 0, nil},
		{"by an invalid key", nil, oncehttp.ErrBadKey, 0, func(ctx context.Context) context.Context { return oncehttp.WithKey(ctx, "a b") }},
	} {
		t.Run(row.name, func(t *testing.T) {
			fault(t, func(_ int32, w http.ResponseWriter, r *http.Request) {
				if row.first == 503 {
					w.Header().Set("Retry-After", "3600")
					w.WriteHeader(503)
				}
			}, func(t *testing.T, x *faulty) {
				if row.set != nil {
					row.set(x.tr)
				}
				if row.first != 0 {
					resp, err := x.do(t.Context(), "GET", "http://a.example/", "")
					if err != nil || resp.StatusCode != row.first {
						t.Fatalf("the call before: got %v, %v", resp, err)
					}
					resp.Body.Close()
				}
				x.sends.Store(0)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if row.ctx != nil {
					ctx = row.ctx(ctx)
				}
				start := time.Now()
				e := x.fails(ctx, "POST", "b")
				if !errors.Is(e, row.is) || len(e.Tries) != 0 || e.Certainty != oncehttp.CertaintyNotSent {
					t.Errorf("got %v (%+v), want %v, no tries and not sent", e, e.Result, row.is)
				}
				if x.sends.Load() != 0 || time.Since(start) != 0 {
					t.Errorf("got %d sends in %v, want none in no time", x.sends.Load(), time.Since(start))
				}
				for _, s := range []string{"answered", "too many requests", "Service Unavailable"} {
					if strings.Contains(e.Error(), s) {
						t.Errorf("text: got %q, which looks like a server's", e)
					}
				}
				if e.Timeout() || errors.Is(e, context.DeadlineExceeded) {
					t.Errorf("got %v, which looks like a timeout", e)
				}
			})
		})
	}
}

func TestOneKeyForAllAttemptsAndAnotherForTheNextCall(t *testing.T) {
	b := script(503, errReset, 200, errReset, 200)
	tr := &oncehttp.Transport{Base: b, Logger: quiet(), Backoff: noPause}
	r := newRequest(t, t.Context(), "POST", "http://a.example/", "")
	for range 2 { // the very same request, twice
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := oncehttp.Attempts(resp).Key; got == "" || got != resp.Request.Header.Get(oncehttp.Header) && r.Header.Get(oncehttp.Header) != "" {
			t.Errorf("Attempts(resp).Key: got %q", got)
		}
		if len(r.Header) != 0 {
			t.Errorf("the caller's header: got %v, want it empty", r.Header)
		}
	}
	k := b.keys()
	if len(k) != 4 && len(k) != 5 || k[0] == "" || k[1] != k[0] || k[2] != k[0] || k[3] == k[0] {
		t.Errorf("keys: got %q, want three equal ones and then another", k)
	}
}

// A header name need not be canonical to be sent, so a key under such a name is the
// caller's all the same: with a second one beside it the server would see two.
func TestTheCallersKeyCountsHoweverItIsSpelled(t *testing.T) {
	for _, name := range []string{"idempotency-key", "IDEMPOTENCY-KEY"} {
		fault(t, func(n int32, w http.ResponseWriter, r *http.Request) {
			if got := r.Header["Idempotency-Key"]; len(got) != 1 || got[0] != "mine" {
				t.Errorf("%s: the server got the keys %q, want the caller's alone", name, got)
			}
			if n == 1 {
				w.WriteHeader(503)
			}
		}, func(t *testing.T, x *faulty) {
			x.tr.Backoff = noPause
			r := newRequest(t, t.Context(), "POST", "http://a.example/", "b")
			r.Header[name] = []string{"mine"}
			resp, err := x.tr.RoundTrip(r)
			if err != nil {
				return // to refuse it is as good
			}
			resp.Body.Close()
			if got := oncehttp.Attempts(resp).Key; got != "mine" {
				t.Errorf("%s: Attempts(resp).Key: got %q, want the caller's", name, got)
			}
		})
	}
}

func TestPrepareChangesOneAttemptOnly(t *testing.T) {
	fault(t, func(n int32, w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Attempt") != fmt.Sprint(n) || r.URL.RawQuery != fmt.Sprint("attempt=", n) || len(r.Header["X-Sum"]) != 1 {
			w.WriteHeader(400)
		} else if n < 3 {
			w.WriteHeader(503)
		}
	}, func(t *testing.T, x *faulty) {
		var keys []string
		x.tr.Prepare = func(r *http.Request) error {
			keys = append(keys, r.Header.Get(oncehttp.Header))
			r.Header.Add("X-Sum", "signature") // of one attempt, not of all
			r.Header.Set("X-Attempt", fmt.Sprint(len(keys)))
			r.URL.RawQuery = fmt.Sprint("attempt=", len(keys))
			return nil
		}
		if got := x.ok("POST"); len(got.Tries) != 3 || len(keys) != 3 || keys[0] == "" || keys[1] != keys[0] || keys[2] != keys[0] || keys[0] != got.Key {
			t.Errorf("got %d tries and keys %q, want three of each, the keys equal", len(got.Tries), keys)
		}
	})
}

func TestARetryThatIsNeverSentCostsNothing(t *testing.T) {
	fault(t, func(_ int32, w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) }, func(t *testing.T, x *faulty) {
		x.tr.Budget = &oncehttp.Budget{Rate: -1, Earn: -1} // ten retries, and that is all
		x.tr.Backoff = pauseOf(time.Minute)
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			x.fails(ctx, "GET", "")
		}
		x.tr.Backoff = noPause
		x.tr.Attempts = 100
		resp, err := x.do(t.Context(), "GET", "http://a.example/", "")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := oncehttp.Attempts(resp); len(got.Tries) != 11 || got.Stop != oncehttp.ErrBudget {
			t.Errorf("got %d tries, stopped by %v, want 11 and ErrBudget", len(got.Tries), got.Stop)
		}
	})
}

func TestHostsHaveBudgetsAndBreakersOfTheirOwn(t *testing.T) {
	b := script(503)
	tr := &oncehttp.Transport{Base: b, Logger: quiet(), Backoff: noPause, Budget: &oncehttp.Budget{Tokens: 1, Rate: -1}, Breaker: &oncehttp.Breaker{Failures: 3}}
	call := func(url string) (int, error) {
		before := len(b.seen)
		resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", url, ""))
		if err == nil {
			resp.Body.Close()
		}
		return len(b.seen) - before, err
	}
	// One failing host, under the names that are the same to a server (RFC 3986,
	// section 6.2).
	if n, err := call("http://a.example/"); n != 2 || err != nil {
		t.Errorf("the first call: got %d sends, %v, want 2", n, err)
	}
	if n, err := call("http://A.Example:80/x"); n != 1 || err != nil {
		t.Errorf("its budget is spent: got %d sends, %v, want 1", n, err)
	}
	if n, err := call("http://a.EXAMPLE"); n != 0 || !errors.Is(err, oncehttp.ErrOpen) {
		t.Errorf("its breaker is open: got %d sends, %v, want none", n, err)
	}
	for _, other := range []string{"http://b.example/", "http://a.example:8080/", "https://a.example/"} {
		if n, err := call(other); n != 2 || err != nil {
			t.Errorf("%s: got %d sends, %v, want 2", other, n, err)
		}
	}
}

func TestTheLimiterRefusesAtOnceWhatWouldBeTooLate(t *testing.T) {
	fault(t, func(_ int32, w http.ResponseWriter, r *http.Request) {}, func(t *testing.T, x *faulty) {
		x.tr.Limit = 1
		x.ok("GET")
		start := time.Now()
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			if e := x.fails(ctx, "GET", ""); !errors.Is(e, oncehttp.ErrLimit) || e.RetryAt.IsZero() {
				t.Errorf("got %v, retry at %v, want ErrLimit and a time", e, e.RetryAt)
			}
			cancel()
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("ten refusals took %v, want no time", took)
		}
		for range 10 { // and these give their turns back when they leave
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Millisecond, cancel)
			x.fails(ctx, "GET", "")
		}
		x.ok("GET")
		if took := time.Since(start); took > time.Second {
			t.Errorf("the next call waited until %v, want a second at the most: others still hold their turns", took)
		}
	})
}

// Layers multiply: a Transport in a Transport, by way of an SDK and an
// application that both mean well, must not make nine attempts of three.
func TestLayersOfTransportsMakeNoMoreAttemptsThanOne(t *testing.T) {
	for _, row := range []struct {
		name string
		wrap func(inner http.RoundTripper) http.RoundTripper
	}{
		{"directly", func(inner http.RoundTripper) http.RoundTripper { return inner }},
		{"behind another layer", func(inner http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				r = r.Clone(context.WithValue(r.Context(), ctxKey{}, 1))
				return inner.RoundTrip(r)
			})
		}},
		{"behind a client", func(inner http.RoundTripper) http.RoundTripper {
			client := &http.Client{Transport: inner}
			return roundTrip(func(r *http.Request) (*http.Response, error) { return client.Do(r) })
		}},
		{"twice", func(inner http.RoundTripper) http.RoundTripper {
			return &oncehttp.Transport{Base: inner, Logger: quiet()}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, failure := range []any{503, errReset} {
				synctest.Test(t, func(t *testing.T) {
					b := script(failure)
					inner := &oncehttp.Transport{Base: b, Logger: quiet()}
					outer := &oncehttp.Transport{Base: row.wrap(inner), Logger: quiet()}
					resp, err := outer.RoundTrip(newRequest(t, t.Context(), "POST", "http://a.example/", "b"))
					if err == nil {
						resp.Body.Close()
						if got := oncehttp.Attempts(resp); len(got.Tries) != 3 || !errors.Is(got.Stop, oncehttp.ErrAttempts) {
							t.Errorf("Attempts: got %d tries, stopped by %v, want the outer one's 3", len(got.Tries), got.Stop)
						}
					}
					if len(b.seen) != 3 {
						t.Errorf("sends: got %d, want 3", len(b.seen))
					}
					for _, k := range b.keys() {
						if k == "" || k != b.keys()[0] {
							t.Errorf("keys: got %q, want one", b.keys())
						}
					}
				})
			}
		})
	}
	t.Run("a call that follows another is not nested in it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := script(200, 503, 200)
			tr := &oncehttp.Transport{Base: b, Logger: quiet()}
			resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", ""))
			if err != nil {
				t.Fatal(err)
			}
			resp, err = tr.RoundTrip(newRequest(t, resp.Request.Context(), "POST", "http://a.example/next", "b"))
			if err != nil || resp.StatusCode != 200 || len(b.seen) != 3 {
				t.Errorf("got %v, %v after %d sends, want 200 after 3", resp, err, len(b.seen))
			}
		})
	})
}

// A body that can seek is not rewound under the reader that may still have it:
// golang/go#12796.
func TestBodiesAreNeverRewoundBySeeking(t *testing.T) {
	fault(t, func(n int32, w http.ResponseWriter, r *http.Request) {
		if n < 3 {
			w.WriteHeader(503)
		}
	}, func(t *testing.T, x *faulty) {
		x.tr.Backoff = noPause
		r := newRequest(t, t.Context(), "POST", "http://a.example/", "")
		r.Body, r.ContentLength = seekTrap{strings.NewReader("hello"), t}, 5
		resp, err := x.tr.RoundTrip(r)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("got %v, %v, want 200", resp, err)
		}
		resp.Body.Close()
	})
}

type seekTrap struct {
	io.Reader
	t *testing.T
}

func (s seekTrap) Seek(int64, int) (int64, error) { s.t.Error("Seek was called"); return 0, nil }
func (s seekTrap) Close() error                   { return nil }
