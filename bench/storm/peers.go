package storm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/timeout"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/oncehttp/oncehttp"
)

// What all peers are set to, as far as they can be.
const (
	attempts       = 3
	pauseBase      = 500 * time.Millisecond
	pauseCap       = 8 * time.Second
	attemptTimeout = 2 * time.Second
	openAfter      = 5 // failures in a row
	openFor        = 10 * time.Second
	openJitter     = 0.2
	retryTokens    = 10
	earned         = 10 // healthy answers for one token
)

// A Peer is something that a program calls a service through.
type Peer struct {
	Name    string
	Retries bool // false: shown, but not ranked

	// What it has of the policies above, in its own words.
	Pause, RetryAfter, Breaker, Budget string

	// client returns what one program has: a Transport of its own.
	client func(base *http.Transport) *http.Client
}

// Peers are all that are compared, this library first.
var Peers = []Peer{
	{
		Name: "oncehttp", Retries: true,
		Pause: "full jitter", RetryAfter: "yes, spread", Breaker: "per host", Budget: "tokens per host",
		client: func(base *http.Transport) *http.Client {
			return &http.Client{Transport: &oncehttp.Transport{
				Base:           base,
				AttemptTimeout: attemptTimeout, // the rest are its defaults
				Logger:         slog.New(slog.DiscardHandler),
			}}
		},
	},
	{
		Name: "go-retryablehttp", Retries: true,
		Pause: "no jitter", RetryAfter: "yes", Breaker: "none", Budget: "none",
		client: func(base *http.Transport) *http.Client {
			c := retryablehttp.NewClient()
			c.HTTPClient = &http.Client{Transport: base, Timeout: attemptTimeout} // of one attempt
			c.RetryMax = attempts - 1
			c.RetryWaitMin, c.RetryWaitMax = pauseBase, pauseCap
			c.Logger = nil
			return c.StandardClient()
		},
	},
	{
		Name: "failsafe-go", Retries: true,
		Pause: "half jitter", RetryAfter: "yes", Breaker: "one a host, by hand", Budget: "share of what is in flight",
		client: func(base *http.Transport) *http.Client {
			// A breaker of its round tripper is one for all hosts, and would
			// neither open for one of two nor spare the other.
			return &http.Client{Transport: &hostByHost{new: func() http.RoundTripper { return withFailsafe(base) }}}
		},
	},
	{
		Name: "rehttp", Retries: true,
		Pause: "full jitter", RetryAfter: "no", Breaker: "none", Budget: "none",
		client: func(base *http.Transport) *http.Client {
			t := rehttp.NewTransport(base,
				rehttp.RetryAll(rehttp.RetryMaxRetries(attempts-1), rehttp.RetryAny(
					rehttp.RetryStatusInterval(500, 600),
					rehttp.RetryIsErr(func(err error) bool { return err != nil }))),
				rehttp.ExpJitterDelay(pauseBase, pauseCap))
			t.PerAttemptTimeout = attemptTimeout
			return &http.Client{Transport: t}
		},
	},
	{
		Name: "backoff v5", Retries: true,
		Pause: "half jitter", RetryAfter: "yes, by hand", Breaker: "none", Budget: "none",
		client: func(base *http.Transport) *http.Client {
			return &http.Client{Transport: &byHand{base: base, again: retryWithBackoff}}
		},
	},
	{
		Name: "aws-sdk-go-v2", Retries: true,
		Pause: "full jitter", RetryAfter: "no", Breaker: "none", Budget: "tokens for all hosts",
		client: func(base *http.Transport) *http.Client {
			r := retry.NewStandard(func(o *retry.StandardOptions) {
				o.MaxAttempts, o.MaxBackoff, o.BaseDelay = attempts, pauseCap, pauseBase
				o.RateLimiter = ratelimit.NewTokenRateLimit(retryTokens * earned)
				o.RetryCost, o.ThrottlingRetryCost, o.NoRetryIncrement = earned, earned, 1
			})
			return &http.Client{Transport: &byHand{base: base, again: retryLikeAWS(r)}}
		},
	},
	{
		Name: "net/http alone", Retries: false,
		Pause: "never repeats", RetryAfter: "no", Breaker: "none", Budget: "none",
		client: func(base *http.Transport) *http.Client {
			return &http.Client{Transport: base, Timeout: attemptTimeout}
		},
	},
}

// byHand is the loop that a program writes around a library that does not know
// HTTP. The requests of the storm can all be rewound.
type byHand struct {
	base  http.RoundTripper
	again func(ctx context.Context, once func() (*http.Response, error)) (*http.Response, error)
}

func (b *byHand) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.again(req.Context(), func() (*http.Response, error) {
		ctx, cancel := context.WithTimeout(req.Context(), attemptTimeout)
		r := req.WithContext(ctx)
		if req.GetBody != nil {
			r.Body, _ = req.GetBody()
		}
		resp, err := b.base.RoundTrip(r)
		if err != nil {
			cancel()
			return nil, err
		}
		resp.Body = &cancels{resp.Body, cancel}
		if resp.StatusCode >= 500 {
			io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
			resp.Body.Close()
			return resp, &statusError{resp}
		}
		return resp, nil
	})
	if err != nil {
		return nil, err // never both
	}
	return resp, nil
}

type cancels struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c *cancels) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}

// statusError is the answer of a service that failed.
type statusError struct{ resp *http.Response }

func (e *statusError) Error() string       { return fmt.Sprintf("status %d", e.resp.StatusCode) }
func (e *statusError) HTTPStatusCode() int { return e.resp.StatusCode }

func retryWithBackoff(ctx context.Context, once func() (*http.Response, error)) (*http.Response, error) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval, pauses.Multiplier = pauseBase, pauseCap, 2
	return backoff.Retry(ctx, func() (*http.Response, error) {
		resp, err := once()
		if resp != nil && err != nil {
			if s, convErr := strconv.Atoi(resp.Header.Get("Retry-After")); convErr == nil {
				return nil, backoff.RetryAfter(s)
			}
		}
		return resp, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxTries(attempts))
}

// retryLikeAWS does what the SDK's middleware does with its retryer.
func retryLikeAWS(r *retry.Standard) func(context.Context, func() (*http.Response, error)) (*http.Response, error) {
	return func(ctx context.Context, once func() (*http.Response, error)) (*http.Response, error) {
		first, err := r.GetAttemptToken(ctx)
		if err != nil {
			return nil, err
		}
		paid := func(error) error { return nil }
		for n := 1; ; n++ {
			resp, err := once()
			if n == 1 {
				first(err)
			}
			paid(err)
			if err == nil || n == r.MaxAttempts() || !r.IsErrorRetryable(retryable(err)) {
				return resp, err
			}
			var noToken error
			if paid, noToken = r.GetRetryToken(ctx, err); noToken != nil {
				return nil, errors.Join(err, noToken)
			}
			pause, delayErr := r.RetryDelay(n, err)
			if delayErr != nil {
				return nil, delayErr
			}
			time.Sleep(pause)
		}
	}
}

// retryable returns err as the SDK's transport would: a failure to get an answer
// is a connection error.
func retryable(err error) error {
	if _, ok := err.(*statusError); ok {
		return err
	}
	return &connectionError{err}
}

type connectionError struct{ error }

func (connectionError) ConnectionError() bool { return true }

func withFailsafe(base *http.Transport) http.RoundTripper {
	retries := failsafehttp.NewRetryPolicyBuilder().
		WithMaxRetries(attempts-1).
		WithBackoff(pauseBase, pauseCap).
		WithJitterFactor(0.5).
		WithBudget(budget.New()).
		ReturnLastFailure().
		Build()
	breaker := circuitbreaker.NewBuilder[*http.Response]().
		HandleIf(func(r *http.Response, err error) bool { return err != nil || r.StatusCode >= 500 }).
		WithFailureThreshold(openAfter).
		WithDelay(openFor).
		WithJitterFactor(openJitter).
		WithSuccessThreshold(1).
		Build()
	return failsafehttp.NewRoundTripper(base, retries, breaker, timeout.New[*http.Response](attemptTimeout))
}

// hostByHost gives each host a RoundTripper of its own.
type hostByHost struct {
	new func() http.RoundTripper

	mu    sync.Mutex
	hosts map[string]http.RoundTripper
}

func (h *hostByHost) RoundTrip(req *http.Request) (*http.Response, error) {
	h.mu.Lock()
	t := h.hosts[req.URL.Host]
	if t == nil {
		if h.hosts == nil {
			h.hosts = map[string]http.RoundTripper{}
		}
		t = h.new()
		h.hosts[req.URL.Host] = t
	}
	h.mu.Unlock()
	return t.RoundTrip(req)
}
