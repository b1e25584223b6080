package proxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/oncehttp/oncehttp"
)

// What becomes of a request that the upstream did not answer.
const (
	fateNotSent = "not-sent" // no byte of it reached the upstream
	fateUnknown = "unknown"  // it was sent, and there is no answer, or only a part
	fateLeft    = "left"     // its client went away
	fateRefused = "refused"  // its body was too large, or came too slowly
)

// errCut says that an answer ended before its end.
var errCut = errors.New("the upstream's answer was cut short")

// ErrStopping is why a request ends that still runs when the proxy has to.
var ErrStopping = errors.New("the proxy is stopping")

// fateOf judges a request that came to nothing.
func fateOf(ctx context.Context, keyed bool, err error) string {
	if !keyed && ctx.Err() != nil && context.Cause(ctx) != ErrStopping {
		return fateLeft
	}
	var e *oncehttp.Error
	if errors.As(err, &e) && e.Certainty == oncehttp.CertaintyNotSent {
		return fateNotSent
	}
	return fateUnknown
}

// failed answers a request that the upstream did not answer, or not to the end.
func (rt *Route) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	p, fate := refuseBody(err), fateRefused
	if p == nil {
		fate = fateOf(r.Context(), x.keyed, err)
		p = refusal(fate, r.Method, x.keyed, err)
	}
	rt.meter.Failed(fate)
	x.status = p.Status
	switch fate {
	case fateLeft:
		// Nobody reads it. A bare ReverseProxy answers this, too.
		w.WriteHeader(http.StatusBadGateway)
		return
	case fateNotSent:
		x.release()
	default:
		x.unknown()
	}
	rt.log.WarnContext(r.Context(), "the upstream did not answer", "route", rt.label, "method", r.Method,
		"path", r.URL.EscapedPath(), "fate", fate, "with_key", x.keyed, "err", err.Error())
	p.ServeHTTP(w, r)
}

// refusal says what happened, in the form in which oncehttp says such things.
func refusal(fate, method string, keyed bool, err error) *oncehttp.Refusal {
	if fate == fateNotSent {
		return &oncehttp.Refusal{
			Type: problem("upstream-unreachable"), Status: http.StatusServiceUnavailable,
			Title:        "The server behind this proxy cannot be reached",
			Detail:       "This request was not sent to it, so nothing was done. Send the same request again later.",
			RetrySameKey: true, SafeNewKey: true, Outcome: "none", RetryAfter: retryAfter(err, time.Now()), Err: err,
		}
	}
	p := &oncehttp.Refusal{Status: http.StatusBadGateway, Err: err}
	if timedOut(err) {
		p.Status = http.StatusGatewayTimeout
	}
	switch {
	case isSafe(method):
		p.Type, p.Title = problem("upstream-silent"), "The server behind this proxy did not answer"
		p.Detail = "The request changes nothing by its method, so it can be sent again."
		p.RetrySameKey, p.SafeNewKey, p.Outcome = true, true, "none"
	case keyed:
		p.Type, p.Title = problem("outcome-unknown"), "Nobody knows whether this request took effect"
		p.Detail = "It was sent to the server behind this proxy, which did not answer, or not to the end. It is not sent again on a guess. Look up what it did before you do anything else; a new key, or a changed request, could do it twice."
		p.Outcome = "unknown"
	default:
		p.Type, p.Title = problem("outcome-unknown"), "Nobody knows whether this request took effect"
		p.Detail = "It was sent to the server behind this proxy, which did not answer, or not to the end. It had no idempotency key, so sending it again could do it twice. Look up what it did before you do anything else."
		p.Outcome = "unknown"
	}
	return p
}

func problem(name string) string { return "urn:oncehttp:" + name }

func timedOut(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}

// retryAfter is when another try makes sense: what the breaker or the upstream said, or
// else soon.
func retryAfter(err error, now time.Time) time.Duration {
	var e *oncehttp.Error
	if errors.As(err, &e) && e.RetryAt.After(now) {
		return max(time.Second, e.RetryAt.Sub(now))
	}
	return 2 * time.Second
}
