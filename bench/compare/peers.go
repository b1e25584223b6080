package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/timeout"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/oncehttp/oncehttp"
)

// What all peers are set to, as far as they can be.
const (
	attempts       = 3
	attemptTimeout = 60 * time.Second
)

// A peer wraps a base. base is the pause before a repeat.
type peer struct {
	name, features string
	wrap           func(base http.RoundTripper, pause time.Duration) http.RoundTripper
}

var silent = slog.New(slog.DiscardHandler)

func noPause(time.Duration, time.Duration, int, *http.Response) time.Duration { return 0 }

var (
	bare = peer{"bare", "nothing", func(base http.RoundTripper, _ time.Duration) http.RoundTripper { return base }}

	oncehttpNoTimeout = peer{"oncehttp, AttemptTimeout off", "retries, keys, breaker, budget", func(base http.RoundTripper, pause time.Duration) http.RoundTripper {
		return newOnce(base, pause, -1)
	}}
	oncehttpDefaults = peer{"oncehttp, all defaults", "retries, keys, breaker, budget, timeout", func(base http.RoundTripper, pause time.Duration) http.RoundTripper {
		return newOnce(base, pause, 0)
	}}
	hashicorp = peer{"go-retryablehttp", "retries", func(base http.RoundTripper, pause time.Duration) http.RoundTripper {
		c := retryablehttp.NewClient()
		c.HTTPClient = &http.Client{Transport: base}
		c.Logger = nil
		c.RetryMax = attempts - 1
		if pause == 0 {
			c.Backoff = noPause
		}
		return &retryablehttp.RoundTripper{Client: c}
	}}
	failsafe = peer{"failsafehttp", "retries, breaker, timeout", func(base http.RoundTripper, pause time.Duration) http.RoundTripper {
		retries := failsafehttp.NewRetryPolicyBuilder().WithMaxRetries(attempts - 1).ReturnLastFailure()
		if pause > 0 {
			retries = retries.WithBackoff(pause, 16*pause).WithJitterFactor(0.5)
		}
		breaker := circuitbreaker.NewBuilder[*http.Response]().
			HandleIf(func(r *http.Response, err error) bool { return err != nil || r.StatusCode >= 500 }).
			WithFailureThreshold(5).WithDelay(10 * time.Second).Build()
		return failsafehttp.NewRoundTripper(base, retries.Build(), breaker, timeout.New[*http.Response](attemptTimeout))
	}}
	puerkito = peer{"rehttp", "retries", func(base http.RoundTripper, pause time.Duration) http.RoundTripper {
		delay := rehttp.ConstDelay(0)
		if pause > 0 {
			delay = rehttp.ExpJitterDelay(pause, 16*pause)
		}
		return rehttp.NewTransport(base, rehttp.RetryAll(rehttp.RetryMaxRetries(attempts-1), rehttp.RetryAny(
			rehttp.RetryStatusInterval(500, 600), rehttp.RetryIsErr(func(err error) bool { return err != nil }))), delay)
	}}
)

// cancelOnly is the least that a wrapper does which can end an attempt: it gives each
// request a context, and ends that with the response's body.
var cancelOnly = peer{"a context for each request", "nothing", func(base http.RoundTripper, _ time.Duration) http.RoundTripper {
	return roundTripFunc(func(req *http.Request) (*http.Response, error) {
		ctx, cancel := context.WithCancel(req.Context())
		resp, err := base.RoundTrip(req.WithContext(ctx))
		if err != nil {
			cancel()
			return nil, err
		}
		resp.Body = &cancelingBody{resp.Body, cancel}
		return resp, nil
	})
}}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

type cancelingBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelingBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

func newOnce(base http.RoundTripper, pause, timeout time.Duration) *oncehttp.Transport {
	t := &oncehttp.Transport{Base: base, AttemptTimeout: timeout, Logger: silent}
	if pause == 0 {
		t.Backoff = noPause
	}
	return t
}
