package oncehttp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// A call is one logical request on its way through a Transport. Its parts
// that every request needs are fields, not pointers: the common case, one
// attempt that is answered, allocates little.
type call struct {
	t      *Transport
	base   http.RoundTripper
	req    *http.Request // the caller's; never changed
	host   hostKey
	state  *hostState
	ctx    callContext
	latest *attempt
	ended  bool
	active atomic.Bool // an inner Transport stands down

	key      requestKey
	keyValue [1]string // the header's value

	getBody func() (io.ReadCloser, error) // makes an independent reader; nil: cannot
	tape    *tape
	handed  bool // req.Body belongs to an attempt's upload

	tries     []Attempt
	certainty Certainty // worst so far, once there are tries
	resp      *http.Response
	err       error // why the latest attempt has no response
	last      error // the last failure that is known, for the Error
	bodyErr   error // the caller's own body failed
	final     bool  // err is one that no repeat can help
	stop      error
	retryAt   time.Time
	again     bool          // decided: there is a next attempt
	pause     time.Duration // and the wait before it
	paid      bool          // a token was paid for it
	slot      reservation   // the limiter's, until the attempt is sent
	taken     time.Time     // when it was taken

	first attempt
	reply replyBody
}

// attempt is what one pass through Base needs.
type attempt struct {
	tries  [1]Attempt // room for call.tries, in the first attempt
	cancel context.CancelFunc
	*sending

	mu       sync.Mutex // guards timer against its own callback
	timer    *time.Timer
	timeout  time.Duration
	strict   bool // the time is fixed, whatever moves
	over     bool
	timedOut bool
	starved  bool // while it waited for the caller's body
}

// sending is what an attempt needs whose body or certainty matters: any but one of a
// safe method without a body.
type sending struct {
	up    upload
	trace connTrace
}

// laterAttempt is one after the first, in one piece.
type laterAttempt struct {
	attempt
	sending
}

// seen is what the connections tell.
func (a *attempt) seen() wire {
	if a.sending == nil {
		return wire{}
	}
	return a.trace.seen()
}

// callContext is the caller's context with the call in it.
type callContext struct {
	context.Context
	c *call
}

type callContextKey int

const (
	callKey   callContextKey = iota // the call that a response came from
	activeKey                       // the same, while it is under way
)

func (x *callContext) Value(k any) any {
	switch k {
	case callKey:
		return x.c
	case activeKey:
		if x.c.active.Load() {
			return x.c
		}
	case runKey{}:
		return nil // Release and Unknown are the handler's own, not those of whom it calls
	}
	return x.Context.Value(k)
}

// standsDown reports whether ctx belongs to a request that an outer Transport
// is already taking care of.
func standsDown(ctx context.Context) bool { return ctx.Value(activeKey) != nil }

func callOf(resp *http.Response) *call {
	if resp == nil || resp.Request == nil {
		return nil
	}
	c, _ := resp.Request.Context().Value(callKey).(*call)
	return c
}

func (c *call) do() (*http.Response, error) {
	defer c.abandon()
	if err := c.begin(); err != nil {
		c.stop = err
		return c.end()
	}
	c.active.Store(true)
	c.attempt(&c.first)
	c.decide()
	if c.again {
		c.repeat()
	}
	return c.end()
}

// begin settles what holds for all attempts: the key and the body.
func (c *call) begin() error {
	if err := c.t.check(); err != nil {
		return err
	}
	if err := c.t.budget.check(); err != nil {
		return err
	}
	if c.state = c.t.hosts.find(c.host); c.state == nil {
		c.state = c.t.hosts.get(c.host, time.Now())
	}
	c.getBody = c.req.GetBody
	if err := c.chooseKey(); err != nil {
		return err
	}
	if c.hasBody() && c.getBody == nil {
		limit := 0
		if (c.key.repeats() || idempotent(c.req.Method)) && c.most() > 1 && c.req.ContentLength <= remembered && !c.key.once {
			limit = remembered
		}
		c.tape = &tape{src: c.req.Body, limit: limit}
	}
	return nil
}

func (c *call) hasBody() bool { return c.req.Body != nil && c.req.Body != http.NoBody }
func (c *call) most() int     { return cmp.Or(c.t.Attempts, defaultAttempts) }

// refuse ends the request before another attempt starts.
func (c *call) refuse(reason error, retryAt time.Time) {
	c.stop = reason
	if !retryAt.IsZero() {
		c.retryAt = retryAt
	}
	c.refund()
}

// refund gives back what was taken for an attempt that is not sent.
func (c *call) refund() {
	c.slot.cancel(c.taken)
	if c.paid {
		c.paid = false
		c.t.budget.refund(c.host, time.Now())
	}
}

// attempt makes one attempt and notes how it ended.
func (c *call) attempt(a *attempt) {
	c.again, c.resp, c.err, c.latest = false, nil, nil, a
	if !c.admit() {
		return
	}
	timeout := c.t.AttemptTimeout
	if timeout == 0 {
		timeout = defaultAttemptTimeout
	}
	start := time.Now()
	ticket, err := c.t.breaker.allowNear(&c.state.breaker, c.host, timeout, c.key.repeats() || idempotent(c.req.Method), start)
	if err != nil {
		var until time.Time
		if open, ok := asType[*OpenError](err); ok {
			until = open.Until
		}
		c.refuse(err, until)
		return
	}
	// Whatever happens from here, the breaker is told once: a probe whose
	// result never arrives would keep the host shut.
	seen := healthNone
	var end time.Time
	defer func() {
		if end.IsZero() {
			end = time.Now()
		}
		ticket.done(seen, end)
		if seen == healthGood {
			c.t.budget.earn(c.host, end)
		} else if seen == healthBad && len(c.tries) > 1 {
			c.t.budget.lost(c.host, end)
		}
	}()
	limit, probe := ticket.probe()
	if probe && (timeout <= 0 || timeout > limit) {
		timeout = limit
	}

	r, err := c.request(a, timeout)
	if err != nil {
		a.end()
		c.refuse(err, time.Time{})
		return
	}
	if c.t.Prepare != nil {
		start = time.Now() // that may have taken long
	}
	a.startTimer(timeout, c.hasBody(), probe, start)
	c.paid, c.slot = false, reservation{}
	seen = healthBad // stands if Base panics
	defer func() {
		if c.resp == nil {
			a.end()
		}
	}()
	resp, err := c.base.RoundTrip(r)
	switch {
	case err != nil && resp != nil && resp.Body != nil:
		resp.Body.Close() // both at once breaks the contract; the error counts
		resp = nil
	case err != nil:
		resp = nil
	case resp == nil:
		err = errNeither
	case resp.Body == nil:
		resp.Body = http.NoBody
	}
	if resp != nil && c.t.ReplayReply > 0 {
		err = readReply(resp, c.t.ReplayReply, c.req.Method)
	}
	late := a.stopTimer()

	end = time.Now()
	try := Attempt{N: len(c.tries) + 1, Start: start, Duration: end.Sub(start), Certainty: CertaintyAnswered}
	if a.sending != nil {
		try.Conns = int(a.trace.conns.Load())
	}
	if resp != nil {
		try.Status = resp.StatusCode
	}
	if late && c.over() == nil {
		if resp != nil && err == nil {
			resp.Body.Close() // its context has ended, so the rest is lost
			resp = nil
		}
		if err = errAttemptTimeout; a.starved {
			err = errStarved
		}
		if held, ok := bodyOf(resp).(*heldReply); ok {
			held.endsWith(err)
		}
	}
	if err != nil {
		if a.sending != nil && a.trace.again.Load() && c.over() == nil {
			err = errAgain
		}
		err = scrubbed(err, c.req.URL)
		try.Err = err
		try.Certainty = certaintyOf(err, a.seen())
		if resp != nil {
			try.Certainty = CertaintyUnknown // cut after its head
		}
		if unsendable(r) {
			try.Certainty = CertaintyNotSent
		}
		c.blameBody(a, late, err)
		c.last, c.final = err, finalError(err, r)
	}
	c.resp, c.err = resp, err
	if resp != nil && err == nil {
		c.answered(resp)
	}
	if resp != nil {
		c.wrap(a, resp, r)
	}
	seen = c.health(try)
	if len(c.tries) == 0 {
		c.certainty = try.Certainty
	} else {
		c.certainty = worse(c.certainty, try.Certainty)
	}
	c.tries = append(c.tries, try)
	if c.t.OnAttempt != nil {
		c.t.OnAttempt(c.req, try)
	}
}

// blameBody notes whether the attempt failed because the caller's own body did.
func (c *call) blameBody(a *attempt, late bool, err error) {
	if a.sending == nil || late {
		return
	}
	f := a.up.failed.Load()
	if f == nil {
		return
	}
	if c.bodyErr = *f; *f == errBodyLength {
		c.bodyErr = fmt.Errorf("%w: %w", errBodyLength, err) // net/http may say it with the numbers
	}
}

// admit waits for the host and the limiter, or refuses.
func (c *call) admit() bool {
	ctx := c.req.Context()
	if err := c.over(); err != nil {
		c.refuse(err, time.Time{})
		return false
	}
	if !c.unheld() {
		return false
	}
	if c.t.Limit == 0 {
		return true
	}
	now := time.Now()
	// Who would be refused anyway must not queue before those who would not.
	if until, open := c.t.breaker.openUntil(c.host, now); open {
		c.refuse(&OpenError{Host: c.host.String(), Until: until}, until)
		return false
	}
	within := time.Duration(math.MaxInt64)
	if deadline, ok := ctx.Deadline(); ok {
		within = deadline.Sub(now)
	}
	wait, slot, ok := c.state.reserve(c.t.Limit, c.t.Burst, now, within)
	if !ok {
		c.refuse(ErrLimit, now.Add(wait))
		return false
	}
	c.slot, c.taken = slot, now
	if wait > 0 {
		err := c.sleep(wait)
		c.taken = time.Now()
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
		until, held := c.state.heldUntil(now)
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

// request builds the private copy of the caller's request that Base gets.
func (c *call) request(a *attempt, timeout time.Duration) (*http.Request, error) {
	ctx := context.Context(&c.ctx)
	unsafe := !isSafe(c.req.Method)
	if a.sending == nil && (unsafe || c.hasBody()) {
		a.sending = new(sending)
	}
	if unsafe {
		ctx = c.watch(ctx, a)
	}
	if timeout > 0 || c.t.ReplayReply > 0 || unsafe && !c.hasBody() {
		ctx, a.cancel = context.WithCancel(ctx)
	}
	r := c.req.WithContext(ctx)
	if c.key.changesHeader() {
		r.Header = c.key.header(r.Header, c.t.keyField(), c.keyValue[:1:1])
	}
	if c.hasBody() {
		body, err := c.openBody(ctx, a)
		if err != nil {
			return nil, err
		}
		r.Body = body
		r.GetBody = nil
	}
	if c.t.Prepare != nil {
		u := *r.URL
		r.URL, r.Header = &u, r.Header.Clone()
		err := c.t.Prepare(r)
		if err != nil && r.Body != nil {
			r.Body.Close()
		}
		if c.hasBody() && (err != nil || r.Body != io.ReadCloser(&a.up)) {
			a.up.Close()
		}
		if err != nil {
			return nil, &prepareError{err}
		}
	}
	// With a GetBody and a key, net/http sends the request again on its own when
	// a reused connection dies, and over HTTP/2 after some errors even without a
	// key. Sends equal attempts without. Over HTTP/1 and without a key it only
	// asks for the body again when nothing of the request was written.
	if c.hasBody() && r.Body == io.ReadCloser(&a.up) && c.getBody != nil && !netHTTPResends(r.Header) && c.state.proto.Load() == 1 {
		r.GetBody = c.rewind(a)
	}
	return r, nil
}

// rewind lets net/http rewind the body within the attempt, once.
func (c *call) rewind(a *attempt) func() (io.ReadCloser, error) {
	var once atomic.Bool
	return func() (io.ReadCloser, error) {
		a.trace.mu.Lock()
		conn := a.trace.last
		a.trace.mu.Unlock()
		if once.Swap(true) || conn != nil && c.overHTTP2(conn) {
			return nil, errAgain
		}
		body, err := c.getBody()
		if err != nil {
			return nil, err
		}
		return &resent{body, &a.up}, nil
	}
}

// netHTTPResends reports whether net/http takes the header as leave to send
// again a request that is not idempotent. See Request.isReplayable there.
func netHTTPResends(h http.Header) bool {
	_, ok := h["Idempotency-Key"]
	if !ok {
		_, ok = h["X-Idempotency-Key"]
	}
	return ok
}

type prepareError struct{ err error }

func (e *prepareError) Error() string        { return "Transport.Prepare: " + e.err.Error() }
func (e *prepareError) Unwrap() error        { return e.err }
func (e *prepareError) Is(target error) bool { return target == ErrFinal }

// openBody makes the reader for the next attempt.
func (c *call) openBody(ctx context.Context, a *attempt) (io.ReadCloser, error) {
	switch {
	case c.tape != nil:
		a.up.src = c.tape.reader(ctx)
	case !c.handed && c.key.body == nil:
		c.handed = true
		a.up.src = c.req.Body
	default:
		body, err := c.getBody()
		if err != nil {
			return nil, &bodyError{err}
		}
		a.up.src = body
	}
	a.up.length = c.req.ContentLength
	return &a.up, nil
}

type bodyError struct{ err error }

func (e *bodyError) Error() string        { return "the request's body: " + e.err.Error() }
func (e *bodyError) Unwrap() error        { return e.err }
func (e *bodyError) Is(target error) bool { return target == ErrBody }

// connTrace counts the connections that net/http obtains for an attempt whose
// certainty matters. The Base may be, or hide, something that sends more than
// once, and then the last error says nothing of the sends before.
type connTrace struct {
	httptrace.ClientTrace
	asked atomic.Bool
	conns atomic.Int32
	again atomic.Bool // the attempt was ended before net/http sent it again

	mu   sync.Mutex
	last net.Conn
}

// watch returns ctx with the attempt's trace in it.
func (c *call) watch(ctx context.Context, a *attempt) context.Context {
	if _, ok := c.base.(*http.Transport); ok {
		// net/http's own: it proves something if no connection was obtained.
		a.trace.GetConn = func(string) { a.trace.asked.Store(true) }
	}
	a.trace.GotConn = func(info httptrace.GotConnInfo) { c.gotConn(a, info.Conn) }
	return httptrace.WithClientTrace(ctx, &a.trace.ClientTrace)
}

// gotConn ends an attempt that net/http is about to send again over another
// HTTP/2 connection. It does so after a stream error PROTOCOL_ERROR, for any
// method, without a pause and without an end, while that error also comes from
// proxies to which the answer of work that was done looked malformed:
// golang/go#47635. A stream that was refused is sent again over the same one.
func (c *call) gotConn(a *attempt, conn net.Conn) {
	t := &a.trace
	t.mu.Lock()
	other := t.last != nil && t.last != conn
	t.last = conn
	t.mu.Unlock()
	if other && a.cancel != nil && c.overHTTP2(conn) {
		t.again.Store(true)
		a.cancel()
		return
	}
	t.conns.Add(1)
}

// overHTTP2 reports whether conn, or else the host's latest answer, is HTTP/2.
func (c *call) overHTTP2(conn net.Conn) bool {
	if tlsConn, ok := conn.(*tls.Conn); ok {
		return tlsConn.ConnectionState().NegotiatedProtocol == "h2"
	}
	if t, ok := c.base.(*http.Transport); ok && t.Protocols != nil && t.Protocols.UnencryptedHTTP2() {
		return true
	}
	return c.state.proto.Load() == 2
}

func (t *connTrace) seen() wire { return wire{asked: t.asked.Load(), conns: t.conns.Load()} }

// startTimer bounds the wait for headers.
func (a *attempt) startTimer(timeout time.Duration, body, strict bool, now time.Time) {
	if timeout <= 0 {
		return
	}
	if !body {
		a.timer = time.AfterFunc(timeout, a.cancel)
		return
	}
	a.up.moved.Store(now.UnixNano())
	a.timeout, a.strict = timeout, strict
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(timeout, a.expire)
}

// expire ends an attempt whose body has not moved for the whole timeout, and
// otherwise waits for the rest of it.
func (a *attempt) expire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	if rest := a.timeout - time.Since(time.Unix(0, a.up.moved.Load())); rest > 0 && !a.strict {
		a.timer.Reset(rest)
		return
	}
	a.timedOut, a.starved = true, a.up.asking.Load()
	a.cancel()
}

// stopTimer reports whether the timer ended the attempt.
func (a *attempt) stopTimer() (late bool) {
	if a.timer == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timeout == 0 {
		late = !a.timer.Stop() && !a.over
		a.over = true
		return late
	}
	a.over = true
	a.timer.Stop()
	return a.timedOut
}

func bodyOf(resp *http.Response) io.ReadCloser {
	if resp == nil {
		return nil
	}
	return resp.Body
}

// end frees what the attempt holds.
func (a *attempt) end() {
	a.stopTimer()
	if a.cancel != nil {
		a.cancel()
	}
}

// wrap gives resp the body and the request that the caller sees.
func (c *call) wrap(a *attempt, resp *http.Response, r *http.Request) {
	if r.Context() != context.Context(&c.ctx) || r.Body != c.req.Body || c.t.Prepare != nil || c.key.changesHeader() {
		r = c.req.WithContext(&c.ctx)
	}
	resp.Request = r
	var up *upload
	if c.hasBody() {
		up = &a.up
	}
	if a.cancel == nil {
		return
	}
	b := &c.reply
	if a != &c.first {
		b = new(replyBody)
	}
	*b = replyBody{rc: resp.Body, end: a.cancel, up: up}
	switch {
	case resp.Body == http.NoBody:
		b.release()
	case resp.StatusCode == http.StatusSwitchingProtocols:
		if w, ok := resp.Body.(io.Writer); ok {
			resp.Body = &switchedBody{replyBody{rc: resp.Body, end: a.cancel}, w}
			return
		}
		fallthrough
	default:
		resp.Body = b
	}
}

// answered learns from an answer what the host speaks, and whether it honours keys.
func (c *call) answered(resp *http.Response) {
	if proto := int32(resp.ProtoMajor); c.state.proto.Load() != proto {
		c.state.proto.Store(proto)
	}
	if c.key.value != "" && (resp.Header.Get(headerStatus) != "" || replayed(resp.Header)) {
		c.state.showHonors()
	}
}

// health says what an attempt tells the breaker of its host.
func (c *call) health(try Attempt) health {
	switch {
	case c.bodyErr != nil:
		return healthNone // the caller's own body failed
	case try.Err == nil:
		switch {
		case try.Status == http.StatusTooManyRequests:
			return healthNone
		case try.Status >= 500 && try.Status != http.StatusNotImplemented:
			return healthBad
		}
		return healthGood
	case errors.Is(try.Err, errAttemptTimeout):
		return healthBad
	case errors.Is(try.Err, errStarved):
		return healthNone // the host waited for the caller
	}
	switch ctxErr := c.over(); {
	case ctxErr == nil && c.final && !badCertificate(try.Err):
		return healthNone // no such name, or a header that cannot be sent
	case ctxErr == nil:
		return healthBad
	case errors.Is(ctxErr, context.DeadlineExceeded) && try.Duration >= time.Second:
		return healthBad // the host had time enough
	}
	return healthNone
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
	select {
	//lint:ignore SA1019 callers still use it
	case <-c.req.Cancel:
		return true
	default:
		return false
	}
}

// decide says whether there is another attempt, and pays for it.
func (c *call) decide() {
	if c.stop != nil {
		return
	}
	c.retryAt = time.Time{} // what an earlier answer said is over
	if c.resp != nil && c.err == nil && c.resp.StatusCode < 400 {
		return
	}
	now := time.Now()
	ctx := c.req.Context()
	var wait time.Duration // what the server asks for
	var asked bool
	help := c.err != nil
	if c.resp != nil && c.err == nil {
		help = retryableStatus(c.resp.StatusCode, c.resp.Header)
		if help {
			wait, asked = RetryAfter(c.resp.Header, now)
		}
	} else if c.bodyErr != nil || c.final {
		help = false
	}
	if asked {
		c.retryAt = now.Add(wait)
		if s := c.resp.StatusCode; c.t.HoldHost && (s == http.StatusTooManyRequests || s == http.StatusServiceUnavailable) {
			c.state.hold(now.Add(min(wait, longestHold)))
		}
	}
	if c.stop = c.over(); c.stop != nil {
		return
	}
	if help && c.t.CheckRetry != nil {
		ok, err := c.t.CheckRetry(ctx, c.whole(), c.err)
		if !ok && err != nil {
			c.stop = &checkError{err}
			return
		}
		help = ok
	}
	if c.stop = mayRepeat(facts{
		method:    c.req.Method,
		keyed:     c.key.repeats(),
		certainty: c.tries[len(c.tries)-1].Certainty,
		status:    c.tries[len(c.tries)-1].Status,
		help:      help,
		body:      c.bodyAgain(),
		tries:     len(c.tries),
		most:      c.most(),
	}); c.stop != nil {
		return
	}
	pause := c.backoff(len(c.tries) - 1)
	if asked {
		if wait > cmp.Or(c.t.MaxRetryAfter, defaultMaxRetryAfter) {
			c.stop = ErrRetryAfter
			return
		}
		if c.t.Backoff == nil {
			pause = 0 // the server's wait replaces ours
		}
		pause = max(pause, serverPause(wait, rand.Int64N))
	}
	if c.tooLate(now.Add(pause)) {
		c.stop = ErrDeadline
		return
	}
	if until, open := c.t.breaker.openUntil(c.host, now); open && now.Add(pause).Before(until) {
		c.stop, c.retryAt = &OpenError{Host: c.host.String(), Until: until}, until
		return
	}
	if !asked && c.t.budget.inVain(c.host, len(c.tries)-1, now) {
		c.stop = ErrBudget
		return
	}
	if !c.t.budget.pay(c.host, now) {
		c.stop = ErrBudget
		return
	}
	c.paid = true
	c.warn()
	if c.resp != nil {
		if c.err == nil {
			c.last = statusError(c.resp.StatusCode)
		}
		drain(c.resp)
		c.resp = nil
	}
	c.tries[len(c.tries)-1].Pause = pause
	c.pause, c.again = pause, true
}

// whole is the response as CheckRetry and Backoff may see it: not one that was
// cut, for which there is an error.
func (c *call) whole() *http.Response {
	if c.err != nil {
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
	return !c.hasBody() || c.getBody != nil || c.tape.rewindable()
}

// warn tells a person of repeats that nothing is known to protect.
func (c *call) warn() {
	if idempotent(c.req.Method) {
		return
	}
	if c.key.unhonored {
		if c.tries[len(c.tries)-1].Certainty != CertaintyNotSent {
			c.t.logger().Warn("oncehttp: repeating a request that no key protects, because RetryUnhonored is set; its effect may happen again",
				"method", c.req.Method, "host", c.req.URL.Host, "path", c.req.URL.EscapedPath(), "attempt", len(c.tries)+1)
		}
		return
	}
	if c.key.minted && !c.state.honorsShown() && c.state.warnOnce() {
		c.t.logger().Warn("oncehttp: repeating a request under a key, but this host has never shown that it honours keys; if it does not, the effect may happen again: set Transport.Honors",
			"method", c.req.Method, "host", c.req.URL.Host, "path", c.req.URL.EscapedPath())
	}
}

// repeat runs the attempts after the first in go-retryablehttp's loop. It gets
// a shell of a request and stand-ins for the responses: its http.Client would
// follow redirects, read a Location it cannot parse as a failure, overwrite
// the body and empty the idle pool. The decision, the pause and the attempt are
// the call's own.
func (c *call) repeat() {
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
	shell := (&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: c.host.scheme, Host: c.host.host}, Header: http.Header{}}).WithContext(ctx)
	loop := retryablehttp.Client{
		HTTPClient: &http.Client{Transport: &shellTransport{c: c}},
		RetryMax:   c.most(),
		CheckRetry: func(context.Context, *http.Response, error) (bool, error) { return c.again, nil },
		Backoff:    func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return c.pause },
	}
	loop.Do(&retryablehttp.Request{Request: shell})
	if c.again {
		// The pause was interrupted.
		c.again = false
		c.refuse(cmp.Or(c.over(), context.Canceled), c.retryAt)
	}
}

// shellTransport is where go-retryablehttp's loop meets the call.
type shellTransport struct {
	c    *call
	next bool // the first attempt was made before the loop
}

func (s *shellTransport) RoundTrip(shell *http.Request) (*http.Response, error) {
	if s.next {
		a := new(laterAttempt)
		a.attempt.sending = &a.sending
		s.c.attempt(&a.attempt)
		s.c.decide()
	}
	s.next = true
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: shell}, nil
}

// result is what the call has to tell.
func (c *call) result() Result {
	r := Result{Tries: c.tries, Stop: c.stop, RetryAt: c.retryAt, Certainty: c.certainty, Key: c.key.value}
	if len(c.tries) == 0 {
		r.Certainty = CertaintyNotSent
	}
	return r
}

// end closes what is open and returns what the caller gets.
func (c *call) end() (*http.Response, error) {
	c.ended = true
	c.active.Store(false)
	c.closeBody()
	if c.resp != nil {
		return c.resp, nil
	}
	e := &Error{
		Result: c.result(),
		Method: cmp.Or(c.req.Method, http.MethodGet),
		Host:   c.req.URL.Host,
		Path:   c.req.URL.EscapedPath(),
		last:   c.last,
		action: c.key.supplied,
	}
	if c.bodyErr != nil {
		e.last = &bodyError{c.bodyErr}
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
	if c.ended {
		return
	}
	c.active.Store(false)
	c.refund()
	if c.resp != nil {
		c.resp.Body.Close()
	}
	if c.latest != nil {
		c.latest.end()
		if c.latest.sending != nil && c.latest.up.src != nil {
			c.latest.up.Close()
		}
	}
	c.closeBody()
}

// closeBody closes the caller's body, unless an attempt still has it.
func (c *call) closeBody() {
	switch {
	case !c.hasBody():
	case c.tape != nil:
		c.tape.end()
	case !c.handed:
		c.req.Body.Close()
	}
}
