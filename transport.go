package oncehttp

import (
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"golang.org/x/time/rate"

	"github.com/oncehttp/oncehttp/internal/calmlog"
)

// A Transport is an [http.RoundTripper] that sends a request again only when
// that is safe, under one Idempotency-Key for all its attempts, waits as long
// as the server asks, and stops early when waiting is pointless.
//
//	client := &http.Client{Transport: &oncehttp.Transport{}}
//
// Its zero value is ready to use, and it is safe for concurrent use. It must not
// be copied, nor its fields be changed, after the first request. A value that makes no sense, such as
// a negative number of attempts, fails every request with an error that names
// the field.
//
// A response, if there is one, comes with a nil error and its body unread,
// whatever its status; [Attempts] tells how it came about. Otherwise the error
// is an *[Error].
//
// Requests whose URL scheme is not http or https go straight to Base, and so
// do those of a Transport that is itself the Base of another: nested layers
// never multiply attempts.
type Transport struct {
	// Base makes each attempt. Nil means http.DefaultTransport.
	Base http.RoundTripper

	// Attempts is how often a request is sent at most, the first time
	// included. Zero means 3; 1 means never again.
	Attempts int

	// AttemptTimeout is how long one attempt may take until the response's
	// headers. It starts anew while bytes of the request still move, unless
	// that is a small body in memory, and does not bound the response's body. Zero means 60s, negative means none.
	AttemptTimeout time.Duration

	// BackoffBase and BackoffCap shape the pause before attempt n+1: uniform
	// in [0, min(BackoffCap, BackoffBase·2ⁿ⁻¹)), "full jitter". Zero means
	// 500ms and 8s.
	BackoffBase time.Duration
	BackoffCap  time.Duration

	// MaxRetryAfter is the longest wait a server may ask for. A longer one
	// stops the request at once. Zero means 30s.
	MaxRetryAfter time.Duration

	// ReplayReply makes replies of up to this many bytes be read inside the
	// attempt, so that one which is cut short counts as lost and is asked for
	// again where that is safe. Event streams, switched protocols and larger
	// replies are never held back. Zero means off.
	ReplayReply int64

	// KeyHeader names the header field that carries the key. Empty means
	// Idempotency-Key.
	KeyHeader string

	// QuoteKeys sends keys as RFC 9651 strings, in double quotes, as the IETF
	// Idempotency-Key draft asks; most servers expect them bare. A key that
	// the bare form cannot carry is always quoted.
	QuoteKeys bool

	// Honors says whether the request's server honours keys. Nil means that
	// all do. Where it says no, no key is sent, because the field alone makes
	// net/http resend on a dying connection, and requests that are not
	// idempotent are sent once.
	Honors func(*http.Request) bool

	// RetryUnhonored repeats requests that are not idempotent even where no
	// key protects them. Each such repeat can make the effect happen again and
	// is logged as a warning.
	RetryUnhonored bool

	// CheckRetry can say no to a repeat that [DefaultCheckRetry], which is
	// what nil means, and safety allow; it cannot say yes to another. If it
	// reads the response's body and says no, the caller gets what is left.
	CheckRetry retryablehttp.CheckRetry

	// Backoff chooses the pause; it gets BackoffBase, BackoffCap, the attempt
	// counted from 0, and the response. A server's wait still is a lower
	// bound. Nil means full jitter, as above.
	Backoff retryablehttp.Backoff

	// Breaker refuses requests to hosts that keep failing. Nil means one of
	// this Transport's own, with defaults. One value may be shared.
	Breaker *Breaker

	// Budget bounds the retries of each host. Nil means one of this
	// Transport's own, with defaults. One value may be shared.
	Budget *Budget

	// HoldHost applies a wait that a server asks for with a 429 or 503 to its
	// whole host: other requests through this Transport wait too, or fail
	// fast, instead of each finding out alone. A host is held for an hour at
	// the most.
	HoldHost bool

	// Limit is how many attempts a second go to one host, with bursts of
	// Burst (0: 1). Attempts wait for their turn, or fail at once when that
	// would pass their deadline. Zero means no limit.
	Limit rate.Limit
	Burst int

	// Prepare is called before each attempt with a private copy of the
	// request, key included, to sign or date it anew. It may put another body
	// in place, also one that reads from the body that it found. An error ends
	// the request.
	Prepare func(*http.Request) error

	// OnAttempt is called after each attempt, before the decision about the
	// next, with the caller's request. It must not keep or change it.
	OnAttempt func(*http.Request, Attempt)

	// Logger gets warnings about what a person should know: repeats that
	// nothing protects, keys that differ. It never gets queries, bodies or
	// keys. Nil means slog.Default(). A panic of its handler is told on standard
	// error, without what it panicked with, and goes no further.
	Logger *slog.Logger

	once    sync.Once
	hosts   hostMap[hostState, *hostState]
	first   hostNear[hostState]     // one of hosts: most Transports have no other
	near    [64]hostNear[hostState] // some of hosts, by a hash of their names
	breaker *Breaker
	budget  *Budget
	bad     error // a field that makes no sense

	timeouts sharedTimer[*attempt]
}

const (
	defaultAttempts       = 3
	defaultAttemptTimeout = 60 * time.Second
	defaultBackoffBase    = 500 * time.Millisecond
	defaultBackoffCap     = 8 * time.Second
	defaultMaxRetryAfter  = 30 * time.Second
	longestHold           = time.Hour
)

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL == nil || req.Header == nil || req.URL.Scheme != "http" && req.URL.Scheme != "https" ||
		req.Method == http.MethodConnect || standsDown(req.Context()) {
		return t.base().RoundTrip(req)
	}
	t.once.Do(t.init)
	var c call
	c.trail, c.t = &trail{req: req}, t
	return c.do()
}

func (t *Transport) init() {
	t.timeouts.stops = true
	if t.breaker = t.Breaker; t.breaker == nil {
		t.breaker = new(Breaker)
	}
	if t.budget = t.Budget; t.budget == nil {
		t.budget = new(Budget)
	}
	if t.bad = t.check(); t.bad == nil {
		t.bad = t.budget.check()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// CloseIdleConnections closes the idle connections of Base, if it can. The
// Transport never does so by itself: others share them.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// check finds the first field whose value makes no sense.
func (t *Transport) check() error {
	switch {
	case t.Attempts < 0:
		return fieldError("Attempts", t.Attempts, "use 1 for no repeats")
	case t.BackoffBase < 0:
		return fieldError("BackoffBase", t.BackoffBase, "")
	case t.BackoffCap < 0:
		return fieldError("BackoffCap", t.BackoffCap, "")
	case t.MaxRetryAfter < 0:
		return fieldError("MaxRetryAfter", t.MaxRetryAfter, "")
	case t.ReplayReply < 0:
		return fieldError("ReplayReply", t.ReplayReply, "use 0 for off")
	case !(t.Limit >= 0):
		return fieldError("Limit", t.Limit, "use 0 for no limit")
	case t.Burst < 0:
		return fieldError("Burst", t.Burst, "")
	case t.KeyHeader != "" && !isToken(t.KeyHeader):
		return fieldError("KeyHeader", fmt.Sprintf("%q", t.KeyHeader), "use a header field name")
	}
	return nil
}

func fieldError(field string, value any, hint string) error {
	if hint != "" {
		hint = "; " + hint
	}
	return fmt.Errorf("oncehttp: Transport.%s is %v, which makes no sense%s", field, value, hint)
}

func (t *Transport) keyField() string {
	if t.KeyHeader == "" {
		return Header
	}
	return http.CanonicalHeaderKey(t.KeyHeader)
}

func (t *Transport) logger() *slog.Logger { return calmlog.Logger(t.Logger) }
