package oncehttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

func TestAttemptTimeoutHoldsForABaseThatHardlyLooks(t *testing.T) {
	const timeout = time.Minute
	for _, row := range []struct {
		name string
		wait func(ctx context.Context)
		want time.Duration
	}{
		{"one that never looks at its context is late all the same", func(context.Context) { time.Sleep(2 * timeout) }, 2 * timeout},
		{"one that looks late is ended on time", func(ctx context.Context) {
			time.Sleep(timeout / 2)
			<-ctx.Done()
		}, timeout},
		{"one that looks too late is ended at once", func(ctx context.Context) {
			time.Sleep(2 * timeout)
			<-ctx.Done()
		}, 2 * timeout},
	} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(row.name+", "+method, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					body := &closeCounter{Reader: strings.NewReader("late")}
					tr := &oncehttp.Transport{Attempts: 1, AttemptTimeout: timeout, Base: roundTrip(func(r *http.Request) (*http.Response, error) {
						row.wait(r.Context())
						return &http.Response{StatusCode: 200, ProtoMajor: 1, Header: http.Header{}, Body: body, Request: r}, nil
					})}
					start := time.Now()
					_, err := tr.RoundTrip(newRequest(t, t.Context(), method, "http://a.example/", ""))
					var e *oncehttp.Error
					if !errors.As(err, &e) || !e.Timeout() || e.Certainty != oncehttp.CertaintyUnknown {
						t.Errorf("got %v, want a timeout of unknown outcome", err)
					}
					if got := time.Since(start); got != row.want {
						t.Errorf("took %v, want %v", got, row.want)
					}
					if n := body.closed.Load(); n != 1 {
						t.Errorf("the late answer was closed %d times, want once", n)
					}
				})
			})
		}
	}
}

type closeCounter struct {
	io.Reader
	closed atomic.Int32
}

func (c *closeCounter) Close() error {
	c.closed.Add(1)
	return nil
}

func TestAnAttemptsContextEndsWithTheAnswersBody(t *testing.T) {
	for _, early := range []bool{true, false} {
		t.Run(fmt.Sprintf("somebody asked for it before that: %v", early), func(t *testing.T) {
			var ctx context.Context
			tr := &oncehttp.Transport{Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				if ctx = r.Context(); early {
					ctx.Done()
				}
				return noBase{}.RoundTrip(r)
			})}
			resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", ""))
			if err != nil {
				t.Fatal(err)
			}
			if early && ctx.Err() != nil {
				t.Errorf("before the body is read: got %v, want nil", ctx.Err())
			}
			resp.Body.Close()
			select {
			case <-ctx.Done():
			default:
				t.Error("the body is closed, and the attempt's context has not ended")
			}
			if ctx.Err() != context.Canceled {
				t.Errorf("got %v, want context.Canceled", ctx.Err())
			}
			if err := resp.Request.Context().Err(); err != nil {
				t.Errorf("the context of the answer's request has ended, too: %v", err)
			}
		})
	}
}

// attemptContext makes a call over a Base that is net/http's own or hides it, and hands
// the attempt's context to f. The server answers when f has returned.
func attemptContext(t *testing.T, ctx context.Context, netHTTP bool, f func(context.Context)) (*http.Response, error) {
	t.Helper()
	answer := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-answer:
			fmt.Fprint(w, "done")
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(srv.Close)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	tr := &oncehttp.Transport{Base: base, Attempts: 1}
	if !netHTTP {
		tr.Base = roundTrip(base.RoundTrip)
	}
	tr.Prepare = func(r *http.Request) error {
		go func() {
			defer close(answer)
			f(r.Context())
		}()
		return nil
	}
	return tr.RoundTrip(newRequest(t, ctx, "POST", srv.URL, ""))
}

// The caller's context ends an attempt, with its cause, though the attempt's own
// context is made late.
func TestAnAttemptHasTheCallersCancelCause(t *testing.T) {
	why := errors.New("no longer wanted")
	for _, netHTTP := range []bool{true, false} {
		for _, late := range []bool{true, false} {
			t.Run(fmt.Sprintf("net/http's own: %v, late: %v", netHTTP, late), func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				got := make(chan error) // received from when the call is over
				_, err := attemptContext(t, ctx, netHTTP, func(ctx context.Context) {
					if late {
						cancel(why)
						<-ctx.Done()
					}
					child, stop := context.WithCancel(ctx)
					defer stop()
					cancel(why)
					<-child.Done()
					if err := ctx.Err(); err != context.Canceled {
						t.Errorf("got %v, want context.Canceled", err)
					}
					got <- context.Cause(child)
				})
				if got := <-got; !errors.Is(err, context.Canceled) || !errors.Is(err, why) || got != why {
					t.Errorf("got %v, and %v in the Base, want both to say why", err, got)
				}
			})
		}
	}
}

func TestAnAttemptsContextEndsWithTheCallersDeadline(t *testing.T) {
	for _, netHTTP := range []bool{true, false} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		got := make(chan error)
		_, err := attemptContext(t, ctx, netHTTP, func(ctx context.Context) {
			<-ctx.Done()
			got <- ctx.Err()
		})
		if got := <-got; !errors.Is(err, context.DeadlineExceeded) || got != context.DeadlineExceeded {
			t.Errorf("net/http's own %v: got %v, and %v in the Base, want context.DeadlineExceeded", netHTTP, err, got)
		}
	}
}

// What a caller no longer wants before it is sent is not sent. Nothing promises that, but
// net/http has it so nearly always, and a goroutine on the way to it would lose the race.
func TestACallerThatLeavesBeforeItsRequestIsSentFindsItUnsent(t *testing.T) {
	var ran atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran.Add(1) }))
	defer srv.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	tr := &oncehttp.Transport{Base: base, Breaker: &oncehttp.Breaker{Disabled: true}, Logger: quiet()}
	const n = 200
	for range n {
		ctx, cancel := context.WithCancel(context.Background())
		trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { cancel() }}
		resp, err := tr.RoundTrip(newRequest(t, httptrace.WithClientTrace(ctx, trace), "POST", srv.URL, "{}"))
		if err == nil {
			resp.Body.Close()
		}
	}
	if got := ran.Load(); got > n/2 {
		t.Errorf("%d of %d requests were sent although the caller had left", got, n)
	}
}

// An attempt may be over before somebody looks at its context.
func TestAnAttemptsContextCanBeAskedForLate(t *testing.T) {
	for _, netHTTP := range []bool{true, false} {
		var ctx context.Context
		tr := &oncehttp.Transport{Prepare: func(r *http.Request) error {
			ctx = r.Context()
			return errors.New("unprepared")
		}}
		if !netHTTP {
			tr.Base = noBase{}
		}
		if _, err := tr.RoundTrip(newRequest(t, context.Background(), "POST", "http://a.example/", "")); err == nil {
			t.Fatal("got no error")
		}
		select {
		case <-ctx.Done():
		default:
			t.Errorf("net/http's own %v: the attempt is over, and its context has not ended", netHTTP)
		}
		if got := ctx.Err(); got != context.Canceled {
			t.Errorf("net/http's own %v: got %v, want context.Canceled", netHTTP, got)
		}
	}
}

// A caller that has left is seen to at once.
func TestAnAttemptsContextIsNotBehindTheCallers(t *testing.T) {
	for _, base := range []http.RoundTripper{&http.Transport{}, noBase{}} {
		for _, asked := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			tr := &oncehttp.Transport{Base: base, Attempts: 1, Prepare: func(r *http.Request) error {
				ctx := r.Context()
				if asked {
					ctx.Done()
				}
				cancel()
				if asked && ctx.Err() != context.Canceled {
					t.Errorf("%T: got %v, want context.Canceled", base, ctx.Err())
				}
				select {
				case <-ctx.Done():
				default:
					t.Errorf("%T, asked before: %v: the caller's context has ended, and the attempt's has not", base, asked)
				}
				return nil
			}}
			if resp, err := tr.RoundTrip(newRequest(t, ctx, "POST", "http://127.0.0.1:1/", "")); err == nil {
				resp.Body.Close() // of a base that looks at no context
			}
		}
	}
}

// afterFunc is context.AfterFunc by the attempt's own, which that hides.
func afterFunc(ctx context.Context, f func()) (stop func() bool) {
	return ctx.(interface {
		AfterFunc(func()) func() bool
	}).AfterFunc(f)
}

// What is made of an attempt's context ends with it.
func TestAnAttemptsContextHasFollowers(t *testing.T) {
	for _, netHTTP := range []bool{true, false} {
		t.Run(fmt.Sprintf("net/http's own: %v", netHTTP), func(t *testing.T) {
			var (
				parent, child context.Context
				called, never atomic.Int32
				stops         []func() bool
			)
			ready, calls := make(chan bool), make(chan bool, 9)
			resp, err := attemptContext(t, context.Background(), netHTTP, func(ctx context.Context) {
				defer close(ready)
				parent = ctx
				var cancel context.CancelFunc
				child, cancel = context.WithCancel(ctx)
				t.Cleanup(cancel)
				for i := range 6 {
					if i%2 == 0 {
						afterFunc(ctx, func() { called.Add(1); calls <- true })
						continue
					}
					stops = append(stops, afterFunc(ctx, func() { never.Add(1) }))
				}
				for _, stop := range stops {
					if !stop() || stop() {
						t.Error("stop did not say that it kept a function from being called, once")
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			<-ready
			if child.Err() != nil || called.Load() != 0 {
				t.Errorf("before the body is closed: got %v, and %d functions called", child.Err(), called.Load())
			}
			resp.Body.Close()
			select {
			case <-child.Done():
			case <-time.After(10 * time.Second):
				t.Error("the body is closed, and a context of the attempt's has not ended")
			}
			if afterFunc(parent, func() { called.Add(1); calls <- true })() {
				t.Error("after the end: stop said that it kept a function from being called")
			}
			for range 4 { // three at the end and one after it
				select {
				case <-calls:
				case <-time.After(10 * time.Second):
					t.Fatal("a function was not called")
				}
			}
			if called, never := called.Load(), never.Load(); called != 4 || never != 0 {
				t.Errorf("called %d functions, want three at the end and one after it; and %d that were stopped", called, never)
			}
		})
	}
}

// Package context starts a goroutine for each context that is made of one it knows
// nothing of.
func TestNoGoroutineWaitsForAnAttempt(t *testing.T) {
	for _, netHTTP := range []bool{true, false} {
		t.Run(fmt.Sprintf("net/http's own: %v", netHTTP), func(t *testing.T) {
			resp, err := attemptContext(t, context.Background(), netHTTP, func(ctx context.Context) {
				if !netHTTP { // such as one that traces
					ctx = context.WithValue(ctx, new(int), 1)
				}
				const n = 200
				before := runtime.NumGoroutine()
				for range n {
					_, cancel := context.WithCancel(ctx)
					defer cancel()
				}
				if got := runtime.NumGoroutine() - before; got > n/2 {
					t.Errorf("%d contexts started %d goroutines", n, got)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		})
	}
}

// countedConn counts what is written at once.
type countedConn struct {
	net.Conn
	writes *atomic.Int32
}

func (c countedConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

func TestASmallBodyInMemoryIsSentInOnePieceWithItsHead(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Header.Get("Fail") != "" && r.Header.Get("Idempotency-Key") != "" {
			w.WriteHeader(503)
		}
		fmt.Fprint(w, len(b))
	}))
	defer srv.Close()
	var writes atomic.Int32
	base := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return countedConn{c, &writes}, err
	}}
	defer base.CloseIdleConnections()
	tr := &oncehttp.Transport{Base: base, Attempts: 2, Backoff: noPause, Logger: quiet(),
		Breaker: &oncehttp.Breaker{Disabled: true}, Budget: &oncehttp.Budget{Disabled: true}}
	send := func(body io.Reader, header string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL, body)
		if err != nil {
			t.Fatal(err)
		}
		if header != "" {
			r.Header.Set(header, "yes")
		}
		length := r.ContentLength
		writes.Store(0)
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := bodyOf(t, resp); length > 0 && got != fmt.Sprint(length) {
			t.Errorf("the server read %s bytes, want %d", got, length)
		}
		return int(writes.Load())
	}
	send(nil, "") // now the host is known to speak HTTP/1
	text := strings.Repeat("x", 1000)
	for _, row := range []struct {
		name   string
		body   io.Reader
		header string
		want   int
	}{
		{"bytes.Reader", bytes.NewReader([]byte(text)), "", 1},
		{"strings.Reader", strings.NewReader(text), "", 1},
		{"bytes.Buffer", bytes.NewBufferString(text), "", 1},
		{"sent twice", strings.NewReader(text), "Fail", 2},
		{"a reader of another kind", io.MultiReader(strings.NewReader(text)), "", 2},
	} {
		if got := send(row.body, row.header); row.want == 1 && got != 1 || got < row.want || row.header != "" && got != row.want {
			t.Errorf("%s: %d writes, want %d", row.name, got, row.want)
		}
	}
}

// A caller's own trace sees each connection once, and so does ours.
func TestTheCallersTraceIsHeeded(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	tr := &oncehttp.Transport{Base: base}
	var got, dialled atomic.Int32
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { got.Add(1) },
		ConnectStart: func(string, string) { dialled.Add(1) },
	})
	resp, err := tr.RoundTrip(newRequest(t, ctx, "POST", srv.URL, "x"))
	if err != nil {
		t.Fatal(err)
	}
	bodyOf(t, resp)
	if got.Load() != 1 || dialled.Load() != 1 {
		t.Errorf("GotConn ran %d times and ConnectStart %d times, want once each", got.Load(), dialled.Load())
	}
	if n := oncehttp.Attempts(resp).Tries[0].Conns; n != 1 {
		t.Errorf("Conns = %d, want 1: net/http has not found the attempt's own trace", n)
	}
}
