package oncehttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// Fail fast: where waiting is pointless nobody waits, and the answer that says so
// is in the caller's hand.
func TestAWaitThatCannotBeKeptReturnsTheAnswerAtOnce(t *testing.T) {
	rows := []struct {
		name     string
		after    string // Retry-After
		deadline time.Duration
		set      func(*oncehttp.Transport)
		stop     error
		retry    time.Duration
	}{
		{"5 seconds and a deadline of 300ms", "5", 300 * time.Millisecond, nil, oncehttp.ErrDeadline, 5 * time.Second},
		{"60 seconds and no deadline", "60", 0, nil, oncehttp.ErrRetryAfter, time.Minute},
		{"60 seconds and a deadline of an hour", "60", time.Hour, nil, oncehttp.ErrRetryAfter, time.Minute},
		{"a date a minute away and no deadline", "Sat, 01 Jan 2000 00:01:00 GMT", 0, nil, oncehttp.ErrRetryAfter, time.Minute},
		{"three centuries", "9223372037", 0, nil, oncehttp.ErrRetryAfter, 0},
		{"more than any integer holds", "99999999999999999999", 0, nil, oncehttp.ErrRetryAfter, 0},
		{"2 seconds where 1 is the most", "2", 0, func(tr *oncehttp.Transport) { tr.MaxRetryAfter = time.Second }, oncehttp.ErrRetryAfter, 2 * time.Second},
		{"no wait, but a pause beyond the deadline", "", 300 * time.Millisecond, func(tr *oncehttp.Transport) {
			tr.Backoff = func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return time.Second }
		}, oncehttp.ErrDeadline, 0},
	}
	for _, row := range rows {
		for _, proto := range []string{"http1", "http2"} {
			for _, method := range []string{"GET", "POST"} {
				t.Run(row.name+"/"+method+" "+proto, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n := newMemNet()
						var sends atomic.Int32
						n.Serve(t, "a.example", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							sends.Add(1)
							if row.after != "" {
								w.Header().Set("Retry-After", row.after)
							}
							w.WriteHeader(503)
							io.WriteString(w, "try later")
						}))
						tr := &oncehttp.Transport{Base: n.Transport(t, proto == "http2"), Logger: quiet()}
						if row.set != nil {
							row.set(tr)
						}
						client := &http.Client{Transport: tr}
						ctx := t.Context()
						if row.deadline > 0 {
							var cancel context.CancelFunc
							ctx, cancel = context.WithTimeout(ctx, row.deadline)
							defer cancel()
						}
						start := time.Now()
						resp, err := client.Do(newRequest(t, ctx, method, "http://a.example/refunds", ""))
						if err != nil {
							t.Fatal(err)
						}
						if took := time.Since(start); took >= 20*time.Millisecond {
							t.Errorf("it took %v, want less than 20ms", took)
						}
						if resp.StatusCode != 503 || sends.Load() != 1 {
							t.Errorf("got %d after %d sends, want 503 after one", resp.StatusCode, sends.Load())
						}
						got := oncehttp.Attempts(resp)
						if !errors.Is(got.Stop, row.stop) || len(got.Tries) != 1 || got.Tries[0].Pause != 0 || got.Certainty != oncehttp.CertaintyAnswered {
							t.Errorf("Attempts: got %+v, want one answered try without a pause, stopped by %v", got, row.stop)
						}
						if at := got.RetryAt.Sub(start); row.retry > 0 && at != row.retry {
							t.Errorf("RetryAt: got %v from the start, want %v", at, row.retry)
						}
						if body := bodyOf(t, resp); body != "try later" {
							t.Errorf("body: got %q, want it whole", body)
						}
					})
				})
			}
		}
	}
}

func TestAClientTimeoutCountsAsADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		n.Serve(t, "a.example", status(503, "Retry-After", "5"))
		client := &http.Client{Transport: &oncehttp.Transport{Base: n.Transport(t, false)}, Timeout: 300 * time.Millisecond}
		start := time.Now()
		resp, err := client.Get("http://a.example/")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took >= 20*time.Millisecond || resp.StatusCode != 503 {
			t.Errorf("got %d after %v, want 503 at once", resp.StatusCode, took)
		}
		bodyOf(t, resp)
	})
}

// A host is a server that can be made to fail, with a client that counts.
type host struct {
	*testing.T
	net   *memNet
	tr    *oncehttp.Transport
	sends atomic.Int32 // what reached the network or, with a Base of one's own, that
	mode  atomic.Value // string: what the server does
	stop  func()
}

func newHost(t *testing.T, h2 bool, tr *oncehttp.Transport) *host {
	h := &host{T: t, net: newMemNet(), tr: tr}
	h.mode.Store("well")
	inner := h.net.Transport(t, h2)
	h.tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
		h.sends.Add(1)
		return inner.RoundTrip(r)
	})
	h.tr.Logger = quiet()
	h.start()
	return h
}

func (h *host) start() {
	h.stop = h.net.Serve(h.T, "a.example", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		switch h.mode.Load() {
		case "well":
			io.WriteString(w, "fine")
		case "slow":
			time.Sleep(time.Second)
			io.WriteString(w, "fine")
		case "hang":
			<-r.Context().Done()
		case "reset":
			reset(w)
		case "500":
			w.WriteHeader(500)
		}
	}))
}

func (h *host) become(mode string) {
	h.mode.Store(mode)
	if mode == "refuse" {
		h.stop()
		synctest.Wait()
	} else if h.stop != nil {
		h.stop()
		synctest.Wait()
		h.start()
	}
}

// call makes one GET and returns the response's status and the error.
func (h *host) call(ctx context.Context) (int, error) {
	resp, err := h.tr.RoundTrip(newRequest(h, ctx, "GET", "http://a.example/", ""))
	if err != nil {
		return 0, err
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode, nil
}

// refused returns the breaker's refusal in err, if it is one, after holding it to
// what a refusal must be.
func (h *host) refused(err error) *oncehttp.OpenError {
	h.Helper()
	if !errors.Is(err, oncehttp.ErrOpen) {
		return nil
	}
	var open *oncehttp.OpenError
	var e *oncehttp.Error
	if !errors.As(err, &open) || !errors.As(err, &e) {
		h.Fatalf("refusal: got %v, want an *OpenError in an *Error", err)
	}
	if open.Host != "http://a.example" || !open.Until.After(time.Now()) || !e.RetryAt.Equal(open.Until) {
		h.Errorf("refusal: got host %q until %v, retry at %v", open.Host, open.Until, e.RetryAt)
	}
	if len(e.Tries) == 0 && e.Certainty != oncehttp.CertaintyNotSent {
		h.Errorf("refusal: got certainty %v, want not sent", e.Certainty)
	}
	if s := err.Error(); strings.Contains(s, "too many requests") || strings.Contains(s, "answered") || e.Timeout() {
		h.Errorf("refusal: got %q (timeout %v), which looks like something else", s, e.Timeout())
	}
	return open
}

func TestAHostThatFailsTripsTheBreakerAndRecoversByOneProbe(t *testing.T) {
	for _, mode := range []string{"hang", "refuse", "reset", "500"} {
		for _, proto := range []string{"http1", "http2"} {
			t.Run(mode+"/"+proto, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHost(t, proto == "http2", &oncehttp.Transport{Attempts: 1})
					if code, err := h.call(t.Context()); code != 200 {
						t.Fatalf("a host that is well: got %d, %v", code, err)
					}
					h.become(mode)
					var open *oncehttp.OpenError
					h.sends.Store(0)
					for range 20 {
						_, err := h.call(t.Context())
						if open = h.refused(err); open != nil {
							break
						}
					}
					if open == nil {
						t.Fatal("20 failures in a row did not trip the breaker")
					}
					if got := h.sends.Load(); got != 5 {
						t.Errorf("sends until it tripped: got %d, want 5", got)
					}
					if d := time.Until(open.Until); d < 8*time.Second || d > 12*time.Second {
						t.Errorf("open for %v, want 10s ± 20%%", d)
					}

					// While it is open nothing is sent, and nobody waits.
					h.sends.Store(0)
					start := time.Now()
					for range 100 {
						if _, err := h.call(t.Context()); h.refused(err) == nil {
							t.Fatalf("an open breaker: got %v, want a refusal", err)
						}
					}
					if h.sends.Load() != 0 || time.Since(start) != 0 {
						t.Errorf("an open breaker: %d sends in %v, want none in no time", h.sends.Load(), time.Since(start))
					}

					// A probe that fails opens it anew.
					time.Sleep(time.Until(open.Until) + time.Millisecond)
					if _, err := h.call(t.Context()); err != nil && h.refused(err) != nil {
						t.Errorf("the first probe: got %v, want it sent", err)
					}
					_, err := h.call(t.Context())
					if open = h.refused(err); open == nil || h.sends.Load() != 1 {
						t.Fatalf("after a failed probe: got %v after %d sends, want a refusal after one", err, h.sends.Load())
					}

					// One probe that succeeds closes it; nobody else is sent meanwhile.
					h.become("slow")
					time.Sleep(time.Until(open.Until) + time.Millisecond)
					h.sends.Store(0)
					var well, refused atomic.Int32
					var calls sync.WaitGroup
					for range 50 {
						calls.Go(func() {
							code, err := h.call(t.Context())
							switch {
							case code == 200:
								well.Add(1)
							case h.refused(err) != nil:
								refused.Add(1)
							}
						})
					}
					calls.Wait()
					if well.Load() != 1 || refused.Load() != 49 || h.sends.Load() != 1 {
						t.Errorf("half open: got %d well, %d refused, %d sends, want 1, 49, 1", well.Load(), refused.Load(), h.sends.Load())
					}
					h.become("well")
					for range 20 {
						if code, err := h.call(t.Context()); code != 200 {
							t.Fatalf("recovered: got %d, %v, want 200", code, err)
						}
					}
				})
			})
		}
	}
}

func TestAHostThatHangsForManyAtOnceTripsTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, false, &oncehttp.Transport{Attempts: 1})
		h.become("hang")
		var calls sync.WaitGroup
		for range 10 {
			calls.Go(func() { h.call(t.Context()) })
		}
		calls.Wait()
		if _, err := h.call(t.Context()); h.refused(err) == nil {
			t.Errorf("after ten hung calls: got %v, want a refusal", err)
		}
	})
}

// An http.Client tells its Timeout in two ways at once, by the context's deadline and
// by the deprecated Request.Cancel. Whichever is seen first, the host had its time.
func TestAHostThatHangsBeyondTheClientsTimeoutTripsTheBreaker(t *testing.T) {
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			h := newHost(t, false, &oncehttp.Transport{})
			h.become("hang")
			client := &http.Client{Transport: h.tr, Timeout: 5 * time.Second}
			var err error
			for n := 0; n < 6 && !errors.Is(err, oncehttp.ErrOpen); n++ {
				_, err = client.Get("http://a.example/")
			}
			if !errors.Is(err, oncehttp.ErrOpen) {
				t.Errorf("after five hung calls: got %v, want a refusal", err)
			}
		})
	}
}

// A request that cannot be repeated should it fail is a poor probe.
func TestAPOSTThatNothingProtectsIsNotTheFirstProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, false, &oncehttp.Transport{Attempts: 1, Honors: noKeys})
		post := func() error {
			resp, err := h.tr.RoundTrip(newRequest(t, t.Context(), "POST", "http://a.example/", "b"))
			if err == nil {
				resp.Body.Close()
			}
			return err
		}
		trip := func() *oncehttp.OpenError {
			h.become("500")
			for {
				if _, err := h.call(t.Context()); err != nil {
					return h.refused(err)
				}
			}
		}
		open := trip()
		h.become("well")
		time.Sleep(time.Until(open.Until) + time.Millisecond)
		if h.refused(post()) == nil {
			t.Error("a POST without protection was the first probe")
		}
		if _, err := h.call(t.Context()); err != nil {
			t.Errorf("a GET as the first probe: got %v", err)
		}
		if err := post(); err != nil {
			t.Errorf("a POST once the breaker is closed: got %v", err)
		}

		open = trip()
		h.become("well")
		time.Sleep(time.Until(open.Until) + 12*time.Second) // and nothing better comes
		if err := post(); err != nil {
			t.Errorf("a POST after one more period: got %v", err)
		}
	})
}

func TestTheBreakerCountsAttemptsNotCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, false, &oncehttp.Transport{Attempts: 10})
		h.become("500")
		code, err := h.call(t.Context())
		if code != 500 || h.sends.Load() != 5 {
			t.Errorf("one call: got %d, %v after %d sends, want the 500 after 5", code, err, h.sends.Load())
		}
		if _, err := h.call(t.Context()); h.refused(err) == nil {
			t.Errorf("the next call: got %v, want a refusal", err)
		}
	})
}

func TestCallersWhoGiveUpDoNotTripTheBreaker(t *testing.T) {
	for _, row := range []struct {
		name string
		call func(h *host)
	}{
		{"cancelled one after the other", func(h *host) {
			ctx, cancel := context.WithCancel(h.Context())
			time.AfterFunc(500*time.Millisecond, cancel)
			h.call(ctx)
		}},
		{"with a short deadline of their own", func(h *host) {
			ctx, cancel := context.WithTimeout(h.Context(), 500*time.Millisecond)
			defer cancel()
			h.call(ctx)
		}},
		{"cancelled after a long time", func(h *host) {
			ctx, cancel := context.WithCancel(h.Context())
			time.AfterFunc(30*time.Second, cancel)
			h.call(ctx)
		}},
		{"cancelled before the call", func(h *host) {
			ctx, cancel := context.WithCancel(h.Context())
			cancel()
			h.call(ctx)
		}},
		{"with a body that fails", func(h *host) {
			r := newRequest(h, h.Context(), "POST", "http://a.example/", "")
			r.Body = io.NopCloser(brokenAfter("x"))
			if _, err := h.tr.RoundTrip(r); !errors.Is(err, errBroken) {
				h.Errorf("got %v, want the body's error", err)
			}
		}},
	} {
		for _, proto := range []string{"http1", "http2"} {
			for _, at := range []string{"one by one", "at once"} {
				t.Run(row.name+"/"+at+" "+proto, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						h := newHost(t, proto == "http2", &oncehttp.Transport{})
						h.become("hang")
						var calls sync.WaitGroup
						for range 100 {
							if at == "at once" {
								calls.Go(func() { row.call(h) })
							} else {
								row.call(h)
							}
						}
						calls.Wait()
						h.become("well")
						if code, err := h.call(t.Context()); code != 200 {
							t.Errorf("after 100 callers gave up: got %d, %v, want 200", code, err)
						}
					})
				})
			}
		}
	}
}

// A probe whose result never comes must not keep the host shut for ever.
func TestAProbeThatEndsBadlyDoesNotWedgeTheBreaker(t *testing.T) {
	for _, row := range []struct {
		name  string
		probe func(r *http.Request, end <-chan struct{}) (*http.Response, error)
		off   bool // no attempt timeout
		most  time.Duration
	}{
		{"panics", func(*http.Request, <-chan struct{}) (*http.Response, error) { panic("probe") }, false, 14 * time.Second},
		{"calls Goexit", func(*http.Request, <-chan struct{}) (*http.Response, error) { runtime.Goexit(); return nil, nil }, false, 14 * time.Second},
		{"hangs until its context ends", func(r *http.Request, _ <-chan struct{}) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, false, 74 * time.Second},
		{"hangs until its context ends, without an attempt timeout", func(r *http.Request, _ <-chan struct{}) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, true, 44 * time.Second},
		{"hangs whatever its context says", func(_ *http.Request, end <-chan struct{}) (*http.Response, error) {
			<-end
			return nil, errReset
		}, false, 74 * time.Second},
		{"hangs whatever its context says, without an attempt timeout", func(_ *http.Request, end <-chan struct{}) (*http.Response, error) {
			<-end
			return nil, errReset
		}, true, 44 * time.Second},
		{"answers, with a body that never ends", func(r *http.Request, end <-chan struct{}) (*http.Response, error) {
			resp, err := answer(r, 200, "")
			resp.Body = io.NopCloser(readerFunc(func([]byte) (int, error) { <-end; return 0, io.EOF }))
			return resp, err
		}, false, time.Second},
		{"returns neither", func(*http.Request, <-chan struct{}) (*http.Response, error) { return nil, nil }, false, 14 * time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end := make(chan struct{})
				var mode atomic.Value
				mode.Store("down")
				tr := &oncehttp.Transport{Attempts: 1, Logger: quiet(), Base: roundTrip(func(r *http.Request) (*http.Response, error) {
					switch mode.Load() {
					case "down":
						return nil, errReset
					case "probe":
						mode.Store("well")
						return row.probe(r, end)
					}
					return answer(r, 200, "fine")
				})}
				if row.off {
					tr.AttemptTimeout = -1
				}
				call := func() (err error) {
					done := make(chan struct{})
					go func() { // a Goexit ends this goroutine only
						defer close(done)
						defer func() {
							if p := recover(); p != nil {
								err = fmt.Errorf("panic: %v", p)
							}
						}()
						err = errors.New("the goroutine ended")
						var resp *http.Response
						if resp, err = tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", "")); err == nil {
							io.Copy(io.Discard, resp.Body)
							resp.Body.Close()
						}
					}()
					<-done
					return err
				}
				var open *oncehttp.OpenError
				for range 20 {
					if err := call(); errors.As(err, &open) {
						break
					}
				}
				if open == nil {
					t.Fatal("the breaker did not trip")
				}
				time.Sleep(time.Until(open.Until) + time.Millisecond)
				mode.Store("probe")
				start := time.Now()
				var probe sync.WaitGroup
				probe.Go(func() { call() })
				synctest.Wait()
				var err error
				for time.Since(start) < 10*time.Minute {
					time.Sleep(time.Second)
					if err = call(); err == nil {
						break
					}
				}
				if took := time.Since(start); err != nil || took > row.most {
					t.Errorf("recovered after %v (%v), want at most %v", took, err, row.most)
				}
				close(end)
				probe.Wait()
			})
		})
	}
}

// A storm is a host with outages, and clients that keep calling it.
type storm struct {
	rate    float64         // calls a second
	phases  []time.Duration // well, down, well, down, …
	failure any             // a step of script: what a call meets while the host is down
}

// hold runs the storm through tr, whose Base it sets, and holds the retries to the
// bound: 10 + 0.2 × seconds + 0.1 × healthy answers, from the start and from the
// beginning of each outage. It returns the number of retries.
func (s storm) hold(t *testing.T, tr *oncehttp.Transport) int {
	t.Helper()
	type event struct {
		at      time.Time
		retry   bool // else a healthy answer
		outages int  // begun so far
	}
	type sent struct{}
	var (
		mu     sync.Mutex
		events []event
		start  = time.Now()
		begun  = []time.Time{start} // and of each outage
		total  time.Duration
		calls  sync.WaitGroup
	)
	for i, d := range s.phases {
		if total += d; i%2 == 0 {
			begun = append(begun, start.Add(total))
		}
	}
	down := func(now time.Time) (is bool, outages int) {
		at := now.Sub(start)
		for i, d := range s.phases {
			if at -= d; at < 0 {
				return i%2 == 1, (i + 1) / 2
			}
		}
		return false, len(s.phases) / 2
	}
	fail := script(s.failure).reply
	tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
		now := time.Now()
		is, outages := down(now)
		n := r.Context().Value(sent{}).(*atomic.Int32).Add(1)
		mu.Lock()
		defer mu.Unlock()
		if n > 1 {
			events = append(events, event{now, true, outages})
		}
		if is {
			return fail(1, r)
		}
		events = append(events, event{now, false, outages})
		return answer(r, 200, "")
	})
	for i := 0; ; i++ {
		at := start.Add(time.Duration(float64(i) / s.rate * float64(time.Second)))
		if at.Sub(start) >= total {
			break
		}
		time.Sleep(time.Until(at))
		method := []string{"GET", "POST"}[i%2]
		calls.Go(func() {
			resp, err := tr.RoundTrip(newRequest(t, context.WithValue(t.Context(), sent{}, new(atomic.Int32)), method, "http://a.example/", "b"))
			if err == nil {
				resp.Body.Close()
			}
		})
	}
	calls.Wait()
	retries := 0
	for i, from := range begun {
		n, healthy := 0, 0
		for _, e := range events {
			if e.at.Before(from) {
				continue
			}
			if !e.retry {
				healthy++
				continue
			}
			n++
			// Exactly at the bound is allowed; so is a token that trickled in within
			// a nanosecond of when it is spent.
			if most := 10 + 0.2*e.at.Sub(from).Seconds() + 0.1*float64(healthy) + 1e-6; float64(n) > most {
				t.Errorf("%v after the start: retry %d since outage %d began, %v ago, with %d healthy answers: want at most %.2f",
					e.at.Sub(start), n, i, e.at.Sub(from), healthy, most)
				return n
			}
		}
		if i == 0 {
			retries = n
		}
	}
	return retries
}

func TestOutagesAddNoMoreRetriesThanTheBudgetAllows(t *testing.T) {
	for _, row := range []struct {
		rate   float64
		phases []time.Duration
	}{
		{0.1, []time.Duration{10 * time.Minute, time.Hour, 10 * time.Minute, 20 * time.Minute, time.Hour}},
		{1, []time.Duration{2 * time.Minute, 10 * time.Minute, 5 * time.Minute, 5 * time.Minute, time.Minute}},
		{100, []time.Duration{10 * time.Second, 30 * time.Second, 5 * time.Second, 15 * time.Second, 5 * time.Second}},
	} {
		for _, failure := range []any{503, errReset} {
			for _, guarded := range []bool{false, true} {
				name := fmt.Sprintf("%v calls a second that meet %v", row.rate, failure)
				if guarded {
					name += ", with a breaker"
				}
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						tr := &oncehttp.Transport{Attempts: 10, Logger: quiet(), Breaker: &oncehttp.Breaker{Disabled: !guarded}}
						retries := storm{row.rate, row.phases, failure}.hold(t, tr)
						if least := 10; !guarded && retries < least {
							t.Errorf("retries: got %d, want at least the %d that the budget holds, or this shows nothing", retries, least)
						}
					})
				})
			}
		}
	}
}

func TestHealthyTrafficEarnsOneRetryInTen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Every other call fails once: without a budget half of all calls are retries.
		var calls, retries atomic.Int32
		tr := &oncehttp.Transport{Logger: quiet(), Breaker: &oncehttp.Breaker{Disabled: true}, BackoffBase: time.Microsecond}
		type first struct{}
		tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.Context().Value(first{}).(*atomic.Int32).Add(1) > 1 {
				retries.Add(1)
				return answer(r, 200, "")
			}
			if calls.Add(1)%2 == 0 {
				return nil, errReset
			}
			return answer(r, 200, "")
		})
		healthy := 0
		for range 2000 {
			resp, err := tr.RoundTrip(newRequest(t, context.WithValue(t.Context(), first{}, new(atomic.Int32)), "GET", "http://a.example/", ""))
			if err == nil {
				healthy++
				resp.Body.Close()
			}
		}
		most := 10 + 0.1*float64(healthy) + 1
		if got := float64(retries.Load()); got > most || got < most/2 {
			t.Errorf("retries: got %v for %d healthy answers, want about %v and no more", got, healthy, most)
		}
	})
}

// The worst of all attempts: what a later attempt learns says nothing about the
// one that was lost.

var (
	saysUnknown = regexp.MustCompile(`may have taken effect`)
	// What nobody may say once an attempt was lost.
	saysNothingHappened = regexp.MustCompile(`(?i)nothing (happened|was|has)|not sent|never sent|no effect|did not happen|not reach`)
)

func TestOneLostAttemptMakesTheOutcomeUnknownForGood(t *testing.T) {
	type row struct {
		name   string
		second func(h *lostHost)            // happens once the first attempt is lost
		set    func(tr *oncehttp.Transport) // of the Transport
		method string
		status int // 0: an error
		is     []error
	}
	for _, r := range []row{
		{name: "the second is refused a connection", second: (*lostHost).gone, is: []error{oncehttp.ErrAttempts}},
		{name: "all others are refused a connection", second: (*lostHost).gone, set: func(tr *oncehttp.Transport) { tr.Attempts = 5 }, is: []error{oncehttp.ErrAttempts}},
		{name: "the budget is empty", set: func(tr *oncehttp.Transport) { tr.Budget = &oncehttp.Budget{Tokens: 1, Rate: -1}; tr.Attempts = 3 },
			second: (*lostHost).gone, is: []error{oncehttp.ErrBudget}},
		{name: "the breaker opens", set: func(tr *oncehttp.Transport) { tr.Breaker = &oncehttp.Breaker{Failures: 1} }, is: []error{oncehttp.ErrOpen}},
		{name: "the limit delays the second past the deadline", set: func(tr *oncehttp.Transport) { tr.Limit = 0.0001 }, is: []error{oncehttp.ErrLimit}},
		{name: "Prepare fails for the second", set: func(tr *oncehttp.Transport) { tr.Prepare = failsFrom(2) }, is: []error{errBroken}},
		{name: "the caller gives up in the pause", second: func(h *lostHost) { h.cancel() }, is: []error{context.Canceled}},
		{name: "the second hangs until the deadline", second: func(h *lostHost) { h.mode.Store(hangs) },
			set: func(tr *oncehttp.Transport) { tr.AttemptTimeout = -1 }, is: []error{context.DeadlineExceeded}},
		{name: "one attempt is all", set: func(tr *oncehttp.Transport) { tr.Attempts = 1 }, is: []error{oncehttp.ErrAttempts}},
		{name: "no key protects it", set: func(tr *oncehttp.Transport) { tr.Honors = noKeys }, is: []error{oncehttp.ErrUnsafe}},
		{name: "the second is answered 503", second: func(h *lostHost) { h.mode.Store(503) }, status: 503, is: []error{oncehttp.ErrAttempts}},
		{name: "the second is answered 404, for a DELETE", method: "DELETE", second: func(h *lostHost) { h.mode.Store(404) }, status: 404, is: []error{oncehttp.ErrFinal}},
		{name: "the second is answered 412", method: "PUT", second: func(h *lostHost) { h.mode.Store(412) }, status: 412, is: []error{oncehttp.ErrFinal}},
		{name: "the second succeeds", second: func(h *lostHost) { h.mode.Store(200) }, status: 200},
	} {
		for _, proto := range []string{"http1", "http2"} {
			t.Run(r.name+"/"+proto, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var log bytes.Buffer
					tr := &oncehttp.Transport{Attempts: 2, Logger: slog.New(slog.NewTextHandler(&log, nil))}
					if r.set != nil {
						r.set(tr)
					}
					var said []oncehttp.Attempt
					tr.OnAttempt = func(_ *http.Request, a oncehttp.Attempt) { said = append(said, a) }
					h := &lostHost{net: newMemNet(), second: r.second}
					tr.Base = h.net.Transport(t, proto == "http2")
					h.stop = h.net.Serve(t, "a.example", h)
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					h.cancel = cancel
					method := r.method
					if method == "" {
						method = "POST"
					}
					resp, err := tr.RoundTrip(newRequest(t, ctx, method, "http://a.example/refunds/7", "b"))

					var got oncehttp.Result
					if err != nil {
						var e *oncehttp.Error
						if !errors.As(err, &e) {
							t.Fatalf("error: got a %T, want an *Error", err)
						}
						got = e.Result
						if s := err.Error(); !saysUnknown.MatchString(s) || saysNothingHappened.MatchString(s) {
							t.Errorf("text: got %q, want it to say that the effect is unknown", s)
						}
						for _, want := range r.is {
							if !errors.Is(err, want) {
								t.Errorf("error: got %v, want %v in it", err, want)
							}
						}
						if r.status != 0 {
							t.Errorf("error: got %v, want a %d", err, r.status)
						}
					} else {
						defer resp.Body.Close()
						got = oncehttp.Attempts(resp)
						if resp.StatusCode != r.status {
							t.Errorf("status: got %d, want %d", resp.StatusCode, r.status)
						}
						for _, want := range r.is {
							if !errors.Is(got.Stop, want) {
								t.Errorf("stop: got %v, want %v", got.Stop, want)
							}
						}
					}
					if got.Certainty != oncehttp.CertaintyUnknown {
						t.Errorf("certainty: got %v, want unknown", got.Certainty)
					}
					if len(got.Tries) == 0 || got.Tries[0].Certainty != oncehttp.CertaintyUnknown || got.Tries[0].Err == nil {
						t.Errorf("tries: got %+v, want the first unknown", got.Tries)
					}
					if len(said) != len(got.Tries) {
						t.Errorf("OnAttempt: got %d calls for %d tries", len(said), len(got.Tries))
					}
					for _, try := range got.Tries {
						if try.Err != nil && saysNothingHappened.MatchString(try.Err.Error()) {
							t.Errorf("try %d: got %q", try.N, try.Err)
						}
					}
					if saysNothingHappened.MatchString(log.String()) {
						t.Errorf("log: got %s", &log)
					}
				})
			})
		}
	}
}

// A lostHost reads its first request, works, and loses the reply.
type lostHost struct {
	net    *memNet
	stop   func()
	cancel context.CancelFunc
	second func(*lostHost)
	mode   atomic.Int32 // a status, or one of:
}

const (
	loses int32 = 0
	hangs int32 = -1
)

func (h *lostHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	switch mode := h.mode.Load(); mode {
	case loses:
		if h.second != nil {
			h.second(h)
		}
		hangUp(w)
	case hangs:
		<-r.Context().Done()
	default:
		w.WriteHeader(int(mode))
	}
}

// gone is a host that crashes with the reply.
func (h *lostHost) gone() { h.stop() }

// A key that the caller supplied may have been used by others, so its texts speak
// of this request only.
func TestWhatWasNotSentSaysNothingOfOthersUnderTheKey(t *testing.T) {
	for _, row := range []struct {
		name, host, header string
		ctx                func(context.Context) context.Context
	}{
		{"WithKey", "nobody.example", "", func(ctx context.Context) context.Context { return oncehttp.WithKey(ctx, "order-1") }},
		{"WithAction", "nobody.example", "", func(ctx context.Context) context.Context { return oncehttp.WithAction(ctx, "refund A-17") }},
		{"a header, and a redirect", "a.example", "order-1", func(ctx context.Context) context.Context { return ctx }},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newMemNet()
				n.Serve(t, "a.example", http.RedirectHandler("http://nobody.example/", 307))
				tr := &oncehttp.Transport{Base: n.Transport(t, false), Logger: quiet()}
				r := newRequest(t, row.ctx(t.Context()), "POST", "http://"+row.host+"/", "b")
				if row.header != "" {
					r.Header.Set(oncehttp.Header, row.header)
				}
				_, err := (&http.Client{Transport: tr}).Do(r)
				var e *oncehttp.Error
				if !errors.As(err, &e) || e.Certainty != oncehttp.CertaintyNotSent || len(e.Tries) != 3 {
					t.Fatalf("got %v (%+v), want an *Error of three tries that were not sent", err, e)
				}
				if s := err.Error(); !strings.Contains(s, "this request was not sent, which says nothing of others") || regexp.MustCompile(`(?i)nothing (happened|was)`).MatchString(s) {
					t.Errorf("text: got %q, want it to speak of this request", s)
				}
			})
		})
	}
}
