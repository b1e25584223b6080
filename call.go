package oncehttp

import (
	"cmp"
	"context"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// A call is one logical request on its way through a Transport. It is on the stack of
// the caller's goroutine, unless there is a second attempt.
type call struct {
	*trail
	t      *Transport
	host   *hostSlot[hostState]
	latest *attempt // nil: none, or one that needs nothing of its own
	resp   *http.Response
	key    requestKey

	safe   bool   // its method is
	n      int32  // attempts made
	status uint16 // that of the one attempt, if no other will be needed; 0: another might
	conns  uint16 // and its connections
	handed bool   // req.Body belongs to an attempt
	final  bool   // the failure is one that no repeat can help
	again  bool   // decided: there is a next attempt
	paid   bool   // a token was paid for it
}

// A trail is what a call leaves behind: the context of the request that its response
// points to, that request, and what there is to tell of it. The common case, one
// attempt that is answered, allocates little else. What few calls need is apart, in
// extra.
type trail struct {
	req   *http.Request // the caller's; never changed
	extra *extra        // nil: nothing in it
	key   string
	start moment        // of the one attempt
	took  uint32        // and its nanoseconds, if the outcome has a status
	ended atomic.Uint32 // its outcome; 0 while it is under way

	shown http.Request // in use once it has a URL
}

// extra is what few calls need.
type extra struct {
	err     error // why the latest attempt has no response
	stop    error
	tape    *tape
	getBody func() (io.ReadCloser, error) // of a body that was read ahead
	tries   []Attempt                     // all, unless the outcome tells of the only one
	first   [1]Attempt                    // the first of them
	last    error                         // the last failure that is known, for the Error
	bodyErr error                         // the caller's own body failed
	retryAt time.Time
	pause   time.Duration // before the next attempt
	slot    reservation   // the limiter's, until the attempt is sent
	taken   time.Time     // when it was taken
}

// more is c.extra, for use.
func (c *trail) more() *extra {
	if c.extra == nil {
		c.extra = new(extra)
	}
	return c.extra
}

// failure is why the latest attempt has no response.
func (c *trail) failure() error {
	if c.extra == nil {
		return nil
	}
	return c.extra.err
}

func (c *trail) tape() *tape {
	if c.extra == nil {
		return nil
	}
	return c.extra.tape
}

// An outcome is how a call ended, packed with what there is to tell of one attempt
// that needed no other.
type outcome uint32

const (
	callEnded   outcome = 1 << iota // else it is under way
	keyMinted                       // requestKey.minted
	keySupplied                     // requestKey.supplied

	statusBits = 3  // 9 of them: 0 if more than that one attempt is to be told
	connsBits  = 16 // 16 of them
)

func (o outcome) status() int { return int(o >> statusBits & 0x1ff) }
func (o outcome) conns() int  { return int(o >> connsBits) }

// outcome is how the call ended, if now is its end.
func (c *call) outcome() outcome {
	o := callEnded | outcome(c.status)<<statusBits | outcome(c.conns)<<connsBits
	if c.key.minted {
		o |= keyMinted
	}
	if c.key.supplied {
		o |= keySupplied
	}
	return o
}

// tries are the attempts so far.
func (c *trail) tries() []Attempt {
	if o := outcome(c.ended.Load()); o.status() != 0 {
		return []Attempt{{N: 1, Start: c.start.time(), Duration: time.Duration(c.took), Status: o.status(), Certainty: CertaintyAnswered, Conns: o.conns()}}
	}
	if c.extra == nil {
		return nil
	}
	return c.extra.tries
}

// note adds an attempt, whose Start is still missing.
func (c *call) note(try *Attempt, start moment) {
	if c.n++; c.n == 1 && try.Err == nil && try.Status > 0 && try.Status < 400 && try.Duration <= math.MaxUint32 && try.Conns <= math.MaxUint16 {
		c.start, c.took, c.status, c.conns = start, uint32(try.Duration), uint16(try.Status), uint16(try.Conns)
		return
	}
	x := c.more()
	switch c.n {
	case 1:
		x.tries = x.first[:0:1]
	case 2:
		x.tries = append(make([]Attempt, 0, min(c.most(), 4)), x.first[0])
	}
	x.tries = append(x.tries, *try)
	x.tries[c.n-1].Start = start.time()
}

// getBody makes an independent reader of the body; nil: nothing can.
func (c *trail) getBody() func() (io.ReadCloser, error) {
	if x := c.extra; x != nil && x.getBody != nil {
		return x.getBody
	}
	return c.req.GetBody
}

// newBody is what getBody makes. A nil one would be read in a goroutine of net/http's, and
// end the program.
func (c *trail) newBody() (io.ReadCloser, error) {
	body, err := c.getBody()()
	if err == nil && body == nil {
		err = errNilBody
	}
	return body, err
}

type callContextKey int

const (
	callKey   callContextKey = iota // the trail of the call that a response came from
	activeKey                       // the same, while it is under way
)

func (c *trail) Deadline() (time.Time, bool) { return c.req.Context().Deadline() }
func (c *trail) Done() <-chan struct{}       { return c.req.Context().Done() }
func (c *trail) Err() error                  { return c.req.Context().Err() }

// Value is the caller's context's, with the call in it.
func (c *trail) Value(k any) any {
	switch k {
	case callKey:
		return c
	case activeKey:
		if c.ended.Load() == 0 {
			return c
		}
	case runKey{}:
		return nil // Release and Unknown are the handler's own, not those of whom it calls
	}
	return c.req.Context().Value(k)
}

// standsDown reports whether ctx belongs to a request that an outer Transport
// is already taking care of.
func standsDown(ctx context.Context) bool { return ctx.Value(activeKey) != nil }

// callOf returns the trail of the call that resp came from; nil: there was none.
func callOf(resp *http.Response) *trail {
	if resp == nil || resp.Request == nil {
		return nil
	}
	c, _ := resp.Request.Context().Value(callKey).(*trail)
	return c
}

func (c *call) do() (*http.Response, error) {
	defer c.abandon()
	if err := c.begin(); err != nil {
		c.more().stop = err
		return c.end()
	}
	c.attempt()
	c.decide()
	if c.again {
		rest := *c
		return rest.repeat()
	}
	return c.end()
}

// begin settles what holds for all attempts: the key and the body.
func (c *call) begin() error {
	if c.t.bad != nil {
		return c.t.bad
	}
	c.host = c.t.hostOf(c.req.URL)
	if err := c.chooseKey(); err != nil {
		return err
	}
	if c.key.value != "" {
		c.trail.key = c.key.value
	}
	if c.hasBody() && c.getBody() == nil {
		limit := 0
		if (c.key.repeats() || idempotent(c.req.Method)) && c.most() > 1 && c.req.ContentLength <= remembered && !c.key.once {
			limit = remembered
		}
		c.more().tape = &tape{src: c.req.Body, limit: limit}
	}
	return nil
}

func (c *call) base() http.RoundTripper { return c.t.base() }

func (c *call) hasBody() bool { return c.req.Body != nil && c.req.Body != http.NoBody }
func (c *call) most() int     { return cmp.Or(c.t.Attempts, defaultAttempts) }

// refuse ends the request before another attempt starts.
func (c *call) refuse(reason error, retryAt time.Time) {
	x := c.more()
	x.stop = reason
	if !retryAt.IsZero() {
		x.retryAt = retryAt
	}
	c.refund()
}

// refund gives back what was taken for an attempt that is not sent.
func (c *call) refund() {
	if x := c.extra; x != nil {
		x.slot.cancel(x.taken)
	}
	if c.paid {
		c.paid = false
		c.t.budget.refund(c.host.key, time.Now())
	}
}

// sent says that what was taken for an attempt is used up.
func (c *call) sent() {
	c.paid = false
	if c.extra != nil {
		c.extra.slot = reservation{}
	}
}

// admit waits for the host and the limiter, or refuses.
func (c *call) admit() bool {
	if !c.unheld() {
		return false
	}
	if c.t.Limit == 0 {
		return true
	}
	now := time.Now()
	// Who would be refused anyway must not queue before those who would not.
	if until, open := c.t.breaker.openUntil(c.host.key, now); open {
		c.refuse(&OpenError{Host: c.host.key.String(), Until: until}, until)
		return false
	}
	within := time.Duration(math.MaxInt64)
	if deadline, ok := c.req.Context().Deadline(); ok {
		within = deadline.Sub(now)
	}
	wait, slot, ok := c.host.v.reserve(c.t.Limit, c.t.Burst, now, within)
	if !ok {
		c.refuse(ErrLimit, now.Add(wait))
		return false
	}
	x := c.more()
	x.slot, x.taken = slot, now
	if wait > 0 {
		err := c.sleep(wait)
		x.taken = time.Now()
		if err != nil {
			c.refuse(err, time.Time{})
			return false
		}
		return c.unheld() // the host may have asked for quiet meanwhile
	}
	return true
}

// unheld waits until the host is not held, or refuses.
func (c *call) unheld() bool {
	for c.t.HoldHost {
		now := time.Now()
		until, held := c.host.v.heldUntil(now)
		if !held {
			break
		}
		wait := serverPause(until.Sub(now), rand.Int64N)
		if until.Sub(now) > cmp.Or(c.t.MaxRetryAfter, defaultMaxRetryAfter) || c.tooLate(now.Add(wait)) {
			c.refuse(ErrRetryAfter, until)
			return false
		}
		if err := c.sleep(wait); err != nil {
			c.refuse(err, until)
			return false
		}
	}
	return true
}

// tooLate reports whether at is not before the context's deadline.
func (c *call) tooLate(at time.Time) bool {
	deadline, ok := c.req.Context().Deadline()
	return ok && !at.Before(deadline)
}

func (c *call) sleep(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.req.Context().Done():
	//lint:ignore SA1019 callers still use it
	case <-c.req.Cancel:
	}
	return c.over()
}

// over returns why the caller no longer waits, or nil. http.Client tells its
// Timeout to a Transport it does not know in two ways at once, by the context's
// deadline and by closing the deprecated Request.Cancel, and either may be seen
// first.
func (c *call) over() error {
	if err := c.req.Context().Err(); err != nil {
		return err
	}
	if !c.cancelled() {
		return nil
	}
	if c.tooLate(time.Now()) {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// cancelled reports whether the caller closed Request.Cancel.
func (c *call) cancelled() bool {
	//lint:ignore SA1019 callers still use it
	cancel := c.req.Cancel
	if cancel == nil {
		return false
	}
	select {
	case <-cancel:
		return true
	default:
		return false
	}
}

// decide says whether there is another attempt, and pays for it.
func (c *call) decide() {
	if x := c.extra; x != nil {
		if x.stop != nil {
			return
		}
		x.retryAt = time.Time{} // what an earlier answer said is over
	}
	if c.resp != nil && c.failure() == nil && c.resp.StatusCode < 400 {
		return
	}
	x := c.more()
	now := time.Now()
	ctx := c.req.Context()
	var wait time.Duration // what the server asks for
	var asked bool
	help := x.err != nil
	if c.resp != nil && x.err == nil {
		help = retryableStatus(c.resp.StatusCode, c.resp.Header)
		if help {
			wait, asked = RetryAfter(c.resp.Header, now)
		}
	} else if x.bodyErr != nil || c.final {
		help = false
	}
	if asked {
		x.retryAt = now.Add(wait)
		if s := c.resp.StatusCode; c.t.HoldHost && (s == http.StatusTooManyRequests || s == http.StatusServiceUnavailable) {
			c.host.v.hold(now.Add(min(wait, longestHold)))
		}
	}
	if x.stop = c.over(); x.stop != nil {
		return
	}
	if help && c.t.CheckRetry != nil {
		ok, err := c.t.CheckRetry(ctx, c.whole(), x.err)
		if !ok && err != nil {
			x.stop = &checkError{err}
			return
		}
		help = ok
	}
	try := &c.tries()[c.n-1]
	if x.stop = mayRepeat(facts{
		method:    c.req.Method,
		keyed:     c.key.repeats(),
		certainty: try.Certainty,
		status:    try.Status,
		help:      help,
		body:      c.bodyAgain(),
		tries:     int(c.n),
		most:      c.most(),
	}); x.stop != nil {
		return
	}
	pause := c.backoff(int(c.n) - 1)
	if asked {
		if wait > cmp.Or(c.t.MaxRetryAfter, defaultMaxRetryAfter) {
			x.stop = ErrRetryAfter
			return
		}
		if c.t.Backoff == nil {
			pause = 0 // the server's wait replaces ours
		}
		pause = max(pause, serverPause(wait, rand.Int64N))
	}
	if c.tooLate(now.Add(pause)) {
		x.stop = ErrDeadline
		return
	}
	if until, open := c.t.breaker.openUntil(c.host.key, now); open && now.Add(pause).Before(until) {
		x.stop, x.retryAt = &OpenError{Host: c.host.key.String(), Until: until}, until
		return
	}
	if !asked && c.t.budget.inVain(c.host.key, int(c.n)-1, now) {
		x.stop = ErrBudget
		return
	}
	if !c.t.budget.pay(c.host.key, now) {
		x.stop = ErrBudget
		return
	}
	c.paid = true
	c.warn()
	if c.resp != nil {
		if x.err == nil {
			x.last = statusError(c.resp.StatusCode)
		}
		drain(c.resp)
		c.resp = nil
	}
	try.Pause = pause
	x.pause, c.again = pause, true
}

// whole is the response as CheckRetry and Backoff may see it: not one that was
// cut, for which there is an error.
func (c *call) whole() *http.Response {
	if c.failure() != nil {
		return nil
	}
	return c.resp
}

type checkError struct{ err error }

func (e *checkError) Error() string        { return "Transport.CheckRetry: " + e.err.Error() }
func (e *checkError) Unwrap() error        { return e.err }
func (e *checkError) Is(target error) bool { return target == ErrFinal }

func (c *call) backoff(n int) time.Duration {
	base, most := cmp.Or(c.t.BackoffBase, defaultBackoffBase), cmp.Or(c.t.BackoffCap, defaultBackoffCap)
	if c.t.Backoff != nil {
		return max(0, c.t.Backoff(base, most, n, c.whole()))
	}
	return fullJitter(base, most, n, rand.Int64N)
}

// bodyAgain reports whether the body can be sent once more.
func (c *call) bodyAgain() bool {
	return !c.hasBody() || c.getBody() != nil || c.extra.tape.rewindable()
}

// warn tells a person of repeats that nothing is known to protect.
func (c *call) warn() {
	if idempotent(c.req.Method) {
		return
	}
	if c.key.unhonored {
		if c.tries()[c.n-1].Certainty != CertaintyNotSent {
			c.t.logger().Warn("oncehttp: repeating a request that no key protects, because RetryUnhonored is set; its effect may happen again",
				"method", c.req.Method, "host", c.req.URL.Host, "path", c.req.URL.EscapedPath(), "attempt", c.n+1)
		}
		return
	}
	if c.key.minted && !c.host.v.honorsShown() && c.host.v.warnOnce() {
		c.t.logger().Warn("oncehttp: repeating a request under a key, but this host has never shown that it honours keys; if it does not, the effect may happen again: set Transport.Honors",
			"method", c.req.Method, "host", c.req.URL.Host, "path", c.req.URL.EscapedPath())
	}
}

// repeat makes the attempts after the first, and ends the call.
func (c *call) repeat() (*http.Response, error) {
	defer c.abandon()
	c.loop()
	return c.end()
}

// loop runs the attempts after the first in go-retryablehttp's loop. It gets
// a shell of a request and stand-ins for the responses: its http.Client would
// follow redirects, read a Location it cannot parse as a failure, overwrite
// the body and empty the idle pool. The decision, the pause and the attempt are
// the call's own.
func (c *call) loop() {
	ctx := c.req.Context()
	//lint:ignore SA1019 callers still use it
	if cancel := c.req.Cancel; cancel != nil {
		var stop context.CancelFunc
		ctx, stop = context.WithCancel(ctx)
		defer stop()
		go func() {
			select {
			case <-cancel:
				stop()
			case <-ctx.Done():
			}
		}()
	}
	shell := (&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: c.host.key.scheme, Host: c.host.key.host}, Header: http.Header{}}).WithContext(ctx)
	loop := retryablehttp.Client{
		HTTPClient: &http.Client{Transport: &shellTransport{c: c}},
		RetryMax:   c.most(),
		CheckRetry: func(context.Context, *http.Response, error) (bool, error) { return c.again, nil },
		Backoff:    func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return c.extra.pause },
	}
	loop.Do(&retryablehttp.Request{Request: shell})
	if c.again {
		// The pause was interrupted.
		c.again = false
		c.refuse(cmp.Or(c.over(), context.Canceled), c.extra.retryAt)
	}
}

// shellTransport is where go-retryablehttp's loop meets the call.
type shellTransport struct {
	c    *call
	next bool // the first attempt was made before the loop
}

func (s *shellTransport) RoundTrip(shell *http.Request) (*http.Response, error) {
	if s.next {
		s.c.again, s.c.resp, s.c.latest, s.c.extra.err = false, nil, nil, nil
		s.c.attempt()
		s.c.decide()
	}
	s.next = true
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: shell}, nil
}

// result is what the call has to tell.
func (c *trail) result() Result {
	r := Result{Tries: c.tries(), Certainty: CertaintyNotSent, Key: c.key}
	for i := range r.Tries {
		r.Certainty = worse(r.Certainty, r.Tries[i].Certainty)
	}
	if x := c.extra; x != nil {
		r.Stop, r.RetryAt = x.stop, x.retryAt
	}
	return r
}

// end closes what is open and returns what the caller gets.
func (c *call) end() (*http.Response, error) {
	c.ended.Store(uint32(c.outcome()))
	c.closeBody()
	if c.resp != nil {
		return c.resp, nil
	}
	e := &Error{
		Result: c.result(),
		Method: cmp.Or(c.req.Method, http.MethodGet),
		Host:   c.req.URL.Host,
		Path:   c.req.URL.EscapedPath(),
		action: c.key.supplied,
	}
	if x := c.extra; x != nil {
		e.last = x.last
		if x.bodyErr != nil {
			e.last = &bodyError{x.bodyErr}
		}
	}
	if e.ctxErr = c.over(); e.ctxErr != nil {
		if cause := context.Cause(c.req.Context()); cause != nil && cause != e.ctxErr {
			e.cause = cause
		}
	}
	return nil, e
}

// abandon cleans up when Base, or a hook, ended the goroutine or panicked.
func (c *call) abandon() {
	if c.ended.Load() != 0 {
		return
	}
	c.ended.Store(uint32(callEnded))
	c.refund()
	if c.resp != nil {
		c.resp.Body.Close()
	}
	if a := c.latest; a != nil {
		a.end()
		if a.up != nil {
			a.up.Close()
		}
	}
	c.closeBody()
}

// closeBody closes the caller's body, unless an attempt still has it.
func (c *call) closeBody() {
	switch {
	case !c.hasBody():
	case c.tape() != nil:
		c.tape().end()
	case !c.handed:
		c.req.Body.Close()
	}
}
