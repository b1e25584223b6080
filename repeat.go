package oncehttp

import (
	"context"
	"net/http"
)

// DefaultCheckRetry is the default of [Transport.CheckRetry]. It answers
// whether another attempt could help, judged by the outcome alone: every
// failure except a final one (a refused certificate, a name that does not
// exist), the statuses 408, 425, 429, 500, 502, 503, 504 and 529, and a 409 with
// a Retry-After field, by which a server says that the first request under the
// key is still in progress. A response that says it is a replay
// (Idempotent-Replayed: true), that its 5xx was recorded (Idempotency-Status:
// executed), or that nobody should retry (x-should-retry or
// Stripe-Should-Retry: false) is final. Whether the request may be sent again
// is another question, which the Transport asks first and no CheckRetry can
// answer for it.
func DefaultCheckRetry(ctx context.Context, resp *http.Response, err error) (bool, error) {
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if resp == nil {
		return err != nil && !hopeless(err), nil
	}
	return retryableStatus(resp.StatusCode, resp.Header), nil
}

// retryableStatus answers by status, then by what the server says of it.
func retryableStatus(status int, h http.Header) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout, 529:
	case http.StatusConflict:
		// IETF Idempotency-Key draft, section 2.6: a request still in progress.
		if len(h["Retry-After"]) == 0 {
			return false
		}
	default:
		return false
	}
	return !settled(status, h)
}

// settled reports whether the server says that this answer will not change.
func settled(status int, h http.Header) bool {
	if replayed(h) {
		return true
	}
	if first(h, headerStatus) == executed && status >= 500 {
		return true
	}
	return first(h, "X-Should-Retry") == "false" || first(h, "Stripe-Should-Retry") == "false"
}

func replayed(h http.Header) bool {
	return first(h, headerReplayed) == "true" || first(h, "Idempotency-Replayed") == "true"
}

// first is h.Get for a name that is in its canonical form, as those of an answer are.
func first(h http.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// facts are what the decision about a repeat stands on.
type facts struct {
	method    string
	keyed     bool      // carries a key that the server honours, or is declared idempotent
	certainty Certainty // of the attempt that just ended
	status    int       // its status, 0 if it had none
	help      bool      // CheckRetry: another attempt could help
	body      bool      // the body can be sent again
	tries     int       // attempts made
	most      int       // attempts allowed
}

// mayRepeat returns nil if the request may be sent again, and otherwise why not.
// It does no I/O and looks at no clock.
func mayRepeat(f facts) error {
	switch {
	case !f.help:
		return ErrFinal
	case f.status == http.StatusConflict && !f.keyed:
		return ErrFinal // "in progress" means something under a key only
	case !idempotent(f.method) && !f.keyed && f.certainty != CertaintyNotSent:
		return ErrUnsafe
	case !f.body:
		return ErrBody
	case f.tries >= f.most:
		return ErrAttempts
	}
	return nil
}

// isSafe reports whether method is safe (RFC 9110, section 9.2.1; QUERY: draft-ietf-httpbis-
// safe-method-w-body). Methods are case-sensitive.
func isSafe(method string) bool {
	switch method {
	case "", "GET", "HEAD", "OPTIONS", "TRACE", "QUERY":
		return true
	}
	return false
}

// idempotent reports whether method is idempotent (RFC 9110, section 9.2.2).
func idempotent(method string) bool {
	return isSafe(method) || method == "PUT" || method == "DELETE"
}
