package oncehttp_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

func TestAServersWaitIsKept(t *testing.T) {
	for _, r := range []struct {
		name     string
		header   []string
		min, max time.Duration
	}{
		{"seconds", []string{"Retry-After", "7"}, 7 * time.Second, 7700 * time.Millisecond},
		{"never earlier, and at most a second later", []string{"Retry-After", "20"}, 20 * time.Second, 21 * time.Second},
		{"milliseconds", []string{"Retry-After-Ms", "1500"}, 1500 * time.Millisecond, 1650 * time.Millisecond},
		{"0 is no hint", []string{"Retry-After", "0"}, 0, 500 * time.Millisecond},
		{"no hint", nil, 0, 500 * time.Millisecond},
	} {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := script(with(503, r.header...), 200)
				resp, err := (&oncehttp.Transport{Base: b}).RoundTrip(newRequest(t, t.Context(), "GET", "http://refund.example/", ""))
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				pause := b.seen[1].at.Sub(b.seen[0].at)
				if pause < r.min || pause > r.max {
					t.Errorf("paused %v, want %v to %v", pause, r.min, r.max)
				}
				if got := oncehttp.Attempts(resp).Tries[0].Pause; got != pause {
					t.Errorf("Attempt.Pause = %v, want the %v that passed", got, pause)
				}
			})
		})
	}
}

func TestACustomBackoffStillWaitsAsLongAsTheServerAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := script(with(503, "Retry-After", "3"), 503, 200)
		resp, err := (&oncehttp.Transport{Base: b, Backoff: func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return time.Second }}).
			RoundTrip(newRequest(t, t.Context(), "GET", "http://refund.example/", ""))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := b.seen[1].at.Sub(b.seen[0].at); got < 3*time.Second {
			t.Errorf("first pause %v, want at least the server's 3s", got)
		}
		if got := b.seen[2].at.Sub(b.seen[1].at); got != time.Second {
			t.Errorf("second pause %v, want the 1s of Backoff", got)
		}
	})
}

func TestAHeldHostIsWaitedForOrRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &oncehttp.Transport{HoldHost: true, Attempts: 1}
		send := func(ctx context.Context, url string) error {
			resp, err := tr.RoundTrip(newRequest(t, ctx, "GET", url, ""))
			if err == nil {
				resp.Body.Close()
			}
			return err
		}
		b := script(with(429, "Retry-After", "10"), 200)
		tr.Base = b
		start := time.Now()
		send(t.Context(), "http://a.example/1") // is told to wait
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := send(ctx, "http://a.example/2"); !errors.Is(err, oncehttp.ErrRetryAfter) {
			t.Errorf("a request that cannot wait: %v, want ErrRetryAfter", err)
		} else if at := err.(*oncehttp.Error).RetryAt; at.Sub(start) != 10*time.Second {
			t.Errorf("RetryAt is after %v, want 10s", at.Sub(start))
		}
		if time.Since(start) != 0 {
			t.Errorf("it took %v to refuse, want no time", time.Since(start))
		}
		if err := send(t.Context(), "http://b.example/"); err != nil || time.Since(start) != 0 {
			t.Errorf("another host: %v after %v, want to be served at once", err, time.Since(start))
		}
		if err := send(t.Context(), "http://A.example:80/3"); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("the next request went out after %v, want 10 to 11s", took)
		}
	})
}

func TestAHostThatAsksForQuietWhileARequestQueuesGetsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := script(with(503, "Retry-After", "10"), 200)
		tr := &oncehttp.Transport{Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			time.Sleep(500 * time.Millisecond)
			return b.RoundTrip(r)
		}), HoldHost: true, Attempts: 1, Limit: 1}
		start := time.Now()
		done := make(chan time.Duration, 2)
		for range 2 { // the second waits a second at the limiter
			go func() {
				resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", ""))
				if err != nil {
					t.Error(err)
				} else {
					resp.Body.Close()
				}
				done <- time.Since(start)
			}()
			synctest.Wait()
		}
		<-done
		if got := <-done; got < 11*time.Second {
			t.Errorf("the second was served after %v, want it to wait for the 10s that the first was told", got)
		}
	})
}

func TestTheLimitSpacesAttemptsOrRefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := script(200)
		tr := &oncehttp.Transport{Base: b, Limit: 2, Burst: 1}
		start := time.Now()
		for range 5 {
			resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", ""))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		if got := time.Since(start); got != 2*time.Second {
			t.Errorf("five attempts at 2 a second took %v, want 2s", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start = time.Now()
		_, err := tr.RoundTrip(newRequest(t, ctx, "GET", "http://a.example/", ""))
		if !errors.Is(err, oncehttp.ErrLimit) || time.Since(start) != 0 {
			t.Errorf("error = %v after %v, want ErrLimit at once", err, time.Since(start))
		}
	})
}

func TestACallerWhoLeavesDuringThePauseIsNotKept(t *testing.T) {
	cause := errors.New("the user closed the tab")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		b := script(with(503, "Retry-After", "20"), 200)
		start := time.Now()
		_, err := (&oncehttp.Transport{Base: b}).RoundTrip(newRequest(t, ctx, "POST", "http://refund.example/refunds", "b"))
		if got := time.Since(start); got != time.Second {
			t.Errorf("returned after %v, want 1s", got)
		}
		if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
			t.Errorf("error = %v, want context.Canceled and its cause", err)
		}
		const want = "POST refund.example/refunds: gave up after 1 attempt: context canceled: the user closed the tab: the server answered 503 Service Unavailable"
		if err.Error() != want {
			t.Errorf("text\n got %v\nwant %s", err, want)
		}
		if len(b.seen) != 1 {
			t.Errorf("%d sends, want 1", len(b.seen))
		}
	})
}

func TestTheDeprecatedCancelChannelEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cancel := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(cancel) })
		req := newRequest(t, t.Context(), "GET", "http://refund.example/", "")
		req.Cancel = cancel //lint:ignore SA1019 it still has to work
		start := time.Now()
		_, err := (&oncehttp.Transport{Base: script(with(503, "Retry-After", "20"))}).RoundTrip(req)
		if !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
			t.Errorf("error = %v after %v, want context.Canceled after 1s", err, time.Since(start))
		}
	})
}

func TestNonsenseInAFieldIsAnErrorThatNamesIt(t *testing.T) {
	for field, tr := range map[string]*oncehttp.Transport{
		"Attempts":      {Attempts: -1},
		"BackoffBase":   {BackoffBase: -1},
		"BackoffCap":    {BackoffCap: -1},
		"MaxRetryAfter": {MaxRetryAfter: -1},
		"ReplayReply":   {ReplayReply: -1},
		"Limit":         {Limit: -1},
		"Burst":         {Burst: -1},
		"KeyHeader":     {KeyHeader: "no header"},
	} {
		b := script(200)
		tr.Base = b
		_, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://refund.example/", ""))
		if err == nil || len(b.seen) > 0 {
			t.Errorf("%s: error = %v after %d sends, want one before any", field, err, len(b.seen))
			continue
		}
		if want := "Transport." + field + " is "; !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want it to say %q", err, want)
		}
	}
}

func TestPrepareSeesEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := script(503, 200)
		var n int
		tr := &oncehttp.Transport{Base: b, Logger: quiet(), Prepare: func(r *http.Request) error {
			n++
			if r.Header.Get(oncehttp.Header) == "" {
				t.Error("Prepare does not see the key")
			}
			r.Header.Set("X-Date", time.Now().Format(time.RFC3339Nano))
			r.URL.RawQuery = "signature=" + string(rune('0'+n))
			return nil
		}}
		req := newRequest(t, t.Context(), "POST", "http://refund.example/refunds", "b")
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if b.seen[0].header.Get("X-Date") == b.seen[1].header.Get("X-Date") || b.seen[0].url == b.seen[1].url {
			t.Errorf("the second attempt was not prepared anew: %+v", b.seen)
		}
		if req.Header.Get("X-Date") != "" || req.URL.RawQuery != "" {
			t.Error("Prepare changed the caller's request")
		}
		broken := errors.New("no signing key")
		tr = &oncehttp.Transport{Base: b, Prepare: func(*http.Request) error { return broken }}
		if _, err := tr.RoundTrip(req); !errors.Is(err, broken) || !errors.Is(err, oncehttp.ErrFinal) {
			t.Errorf("error = %v, want Prepare's, and final", err)
		}
	})
}

func TestCheckRetryCanOnlySayNo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		always := func(context.Context, *http.Response, error) (bool, error) { return true, nil }
		never := func(context.Context, *http.Response, error) (bool, error) { return false, nil }
		for _, r := range []struct {
			name   string
			check  func(context.Context, *http.Response, error) (bool, error)
			method string
			status int
			sends  int
		}{
			{"always, an unkeyed POST", always, "POST", 503, 1},
			{"always, a 404", always, "GET", 404, 1},
			{"always, a 503", always, "GET", 503, 3},
			{"never, a 503", never, "GET", 503, 1},
		} {
			b := script(r.status)
			tr := &oncehttp.Transport{Base: b, CheckRetry: r.check, Honors: func(*http.Request) bool { return false }}
			resp, err := tr.RoundTrip(newRequest(t, t.Context(), r.method, "http://refund.example/", ""))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if len(b.seen) != r.sends {
				t.Errorf("%s: %d sends, want %d", r.name, len(b.seen), r.sends)
			}
		}
	})
}

func TestNestedTransportsDoNotMultiplyAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := script(503)
		inner := &oncehttp.Transport{Base: b}
		outer := &oncehttp.Transport{Base: inner}
		resp, err := outer.RoundTrip(newRequest(t, t.Context(), "GET", "http://refund.example/", ""))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if len(b.seen) != 3 {
			t.Errorf("%d sends, want 3", len(b.seen))
		}
		// A later request made with the response's context is one of its own.
		b.seen = nil
		resp, err = inner.RoundTrip(newRequest(t, resp.Request.Context(), "GET", "http://refund.example/", ""))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if len(b.seen) != 3 {
			t.Errorf("%d sends for a request of its own, want 3", len(b.seen))
		}
	})
}

func TestRefusedRequestsDoNotQueueBeforeTheProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := script(500, 500, 500, 500, 500, 200)
		tr := &oncehttp.Transport{Base: b, Attempts: 1, Limit: 1, Burst: 10}
		send := func() error {
			resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", ""))
			if err == nil {
				resp.Body.Close()
			}
			return err
		}
		for range 5 {
			send() // opens the breaker
		}
		for range 100 {
			start := time.Now()
			if err := send(); !errors.Is(err, oncehttp.ErrOpen) || time.Since(start) != 0 {
				t.Fatalf("error = %v after %v, want ErrOpen at once", err, time.Since(start))
			}
		}
		time.Sleep(13 * time.Second) // the breaker's 10s ± 20 %
		start := time.Now()
		if err := send(); err != nil || time.Since(start) != 0 {
			t.Errorf("the probe: %v after %v, want it served at once", err, time.Since(start))
		}
	})
}
