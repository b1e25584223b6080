package oncehttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync/atomic"
	"time"
)

// attempt makes one attempt and notes how it ended.
func (c *call) attempt() {
	if err := c.over(); err != nil {
		c.refuse(err, time.Time{})
		return
	}
	if (c.t.HoldHost || c.t.Limit != 0) && !c.admit() {
		return
	}
	timeout := c.t.AttemptTimeout
	if timeout == 0 {
		timeout = defaultAttemptTimeout
	}
	start := thisMoment()
	var ticket ticket
	if !c.t.breaker.pass(&ticket, &c.host.v.breaker, timeout, start) {
		var err error
		if ticket, err = c.t.breaker.allowNear(&c.host.v.breaker, c.host.key, timeout, c.key.repeats() || idempotent(c.req.Method), start.time()); err != nil {
			c.refuseByBreaker(err)
			return
		}
	}
	// Whatever happens from here, the breaker is told once: a probe whose
	// result never arrives would keep the host shut.
	seen, end := healthNone, unended
	var a *attempt
	defer func() {
		if c.resp == nil {
			a.end()
		}
		if end == unended {
			end = thisMoment()
		}
		ticket.doneAt(seen, end)
		c.tellBudget(seen, end)
	}()
	limit, probe := ticket.probe()
	if probe && (timeout <= 0 || timeout > limit) {
		timeout = limit
	}

	r, err := c.request(timeout)
	a = c.latest
	if err != nil {
		c.refuse(err, time.Time{})
		return
	}
	if c.t.Prepare != nil {
		start = thisMoment() // that may have taken long
	}
	if a != nil {
		a.bound(timeout, probe, start)
	}
	c.sent()
	seen = healthBad // stands if Base panics
	resp, err := c.base().RoundTrip(r)
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
		c.resp = resp // to be closed if its body panics
		err = readReply(resp, c.t.ReplayReply, c.req.Method)
	}
	end = thisMoment()
	late, conns := false, 0
	if a != nil {
		late, conns = a.settle(end), int(a.traced().seen().conns)
	}

	try := Attempt{N: int(c.n) + 1, Duration: end.since(start), Certainty: CertaintyAnswered, Conns: conns}
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
		err = c.failed(&try, r, resp, late, err)
	}
	if c.resp = resp; err != nil {
		c.more().err = err
	}
	if resp != nil && err == nil {
		c.answered(resp)
	}
	if resp != nil {
		c.wrap(a, resp)
	}
	seen = c.health(&try)
	c.note(&try, start)
	if c.t.OnAttempt != nil {
		try.Start = start.time()
		c.t.OnAttempt(c.req, try)
	}
}

// unended is before any end of an attempt.
const unended moment = math.MinInt64

// refuseByBreaker ends the request because of what the breaker said.
func (c *call) refuseByBreaker(err error) {
	var until time.Time
	if open, ok := asType[*OpenError](err); ok {
		until = open.Until
	}
	c.refuse(err, until)
}

// tellBudget says how an attempt ended.
func (c *call) tellBudget(seen health, end moment) {
	switch b := c.t.budget; {
	case seen == healthGood && b.used.Load(): // else no host has a bucket
		b.earn(c.host.key, end.time())
	case seen == healthBad && c.n > 1:
		b.lost(c.host.key, end.time())
	}
}

// failed notes why an attempt failed, and what that proves. It returns the
// error as it may be shown.
func (c *call) failed(try *Attempt, r *http.Request, resp *http.Response, late bool, err error) error {
	a := c.latest
	t := a.traced()
	if t != nil && t.again.Load() && c.over() == nil {
		err = errAgain
	}
	err = scrubbed(err, c.req.URL)
	try.Err = err
	try.Certainty = certaintyOf(err, t.seen())
	if resp != nil {
		try.Certainty = CertaintyUnknown // cut after its head
	}
	if unsendable(r) {
		try.Certainty = CertaintyNotSent
	}
	x := c.more()
	x.last, c.final = err, finalError(err, r)
	if a == nil || a.up == nil || late {
		return err
	}
	if f := a.up.failed.Load(); f != nil { // the caller's own body did
		if x.bodyErr = *f; *f == errBodyLength {
			x.bodyErr = fmt.Errorf("%w: %w", errBodyLength, err) // net/http may say it with the numbers
		}
	}
	return err
}

// request builds the private copy of the caller's request that Base gets.
func (c *call) request(timeout time.Duration) (*http.Request, error) {
	unsafe := !c.safe
	if c.n == 0 && timeout <= 0 && c.t.ReplayReply == 0 && !unsafe && !c.hasBody() && c.t.Prepare == nil && !c.key.changesHeader() {
		return c.show(), nil
	}
	a := &attempt{c: c.trail, t: c.t, watch: unsafe, ends: timeout > 0 || c.t.ReplayReply > 0 || unsafe && !c.hasBody()}
	c.latest = a
	a.sent = *c.req.WithContext(a)
	r := &a.sent
	if c.key.changesHeader() {
		r.Header = c.key.header(r.Header, c.t.keyField(), []string{formatKey(c.key.value, c.t.QuoteKeys)})
	}
	var body io.ReadCloser
	if c.hasBody() {
		var err error
		if body, err = c.openBody(a); err != nil {
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
		if body != nil && r.Body != body {
			if err != nil || r.Body == nil || r.Body == http.NoBody {
				body.Close()
			} else if a.up != nil {
				r.Body = &replacedBody{r.Body, body}
			}
		}
		if err != nil {
			return nil, &prepareError{err}
		}
	}
	// With a GetBody and a key, net/http sends the request again on its own when
	// a reused connection dies, and over HTTP/2 after some errors even without a
	// key. Sends equal attempts without. Over HTTP/1 and without a key it only
	// asks for the body again when nothing of the request was written.
	if body != nil && r.Body == body && c.getBody() != nil && !netHTTPResends(r.Header) && c.host.v.proto.Load() == 1 {
		r.GetBody = c.rewind(a)
	}
	return r, nil
}

// show returns the caller's request under the call's context, which is what a
// response points to.
func (c *trail) show() *http.Request {
	if c.shown.URL == nil {
		c.shown = *c.req.WithContext(c)
	}
	return &c.shown
}

// rewind lets net/http rewind the body within the attempt, once.
func (c *trail) rewind(a *attempt) func() (io.ReadCloser, error) {
	var once atomic.Bool
	return func() (io.ReadCloser, error) {
		if once.Swap(true) {
			return nil, errAgain
		}
		if t := a.traced(); t != nil {
			t.mu.Lock()
			conn := t.last
			t.mu.Unlock()
			if conn != nil && a.overHTTP2(conn) {
				return nil, errAgain
			}
		}
		body, err := c.newBody()
		if err != nil || a.up == nil {
			return body, err
		}
		return &resent{body, a.up}, nil
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

// openBody makes the reader for the next attempt. A small body in memory goes to
// net/http as it is, where the host speaks HTTP/1: there it leaves in one piece
// with the head, and there is nothing to see of how it moves.
func (c *call) openBody(a *attempt) (io.ReadCloser, error) {
	var body io.ReadCloser
	switch tape := c.tape(); {
	case tape != nil:
		body = tape.reader(a)
	case !c.handed && !c.key.ahead:
		c.handed = true
		body = c.req.Body
	default:
		var err error
		if body, err = c.newBody(); err != nil {
			return nil, &bodyError{err}
		}
	}
	if c.host.v.proto.Load() == 1 && inMemory(body, c.req.ContentLength) {
		return body, nil
	}
	a.up = &upload{src: body, length: c.req.ContentLength}
	return a.up, nil
}

type bodyError struct{ err error }

func (e *bodyError) Error() string        { return "the request's body: " + e.err.Error() }
func (e *bodyError) Unwrap() error        { return e.err }
func (e *bodyError) Is(target error) bool { return target == ErrBody }

func bodyOf(resp *http.Response) io.ReadCloser {
	if resp == nil {
		return nil
	}
	return resp.Body
}

// wrap gives resp the body and the request that the caller sees.
func (c *call) wrap(a *attempt, resp *http.Response) {
	resp.Request = c.show()
	if a == nil || !a.ends {
		return
	}
	a.reply = resp.Body
	b := (*replyBody)(a)
	switch {
	case resp.Body == http.NoBody:
		b.release()
	case resp.StatusCode == http.StatusSwitchingProtocols:
		if w, ok := resp.Body.(io.Writer); ok {
			resp.Body = &switchedBody{b, w}
			return
		}
		fallthrough
	default:
		resp.Body = b
	}
}

// answered learns from an answer what the host speaks, and whether it honours keys.
func (c *call) answered(resp *http.Response) {
	if proto := int32(resp.ProtoMajor); c.host.v.proto.Load() != proto {
		c.host.v.proto.Store(proto)
	}
	if c.key.value != "" && !c.host.v.honorsShown() && (first(resp.Header, headerStatus) != "" || replayed(resp.Header)) {
		c.host.v.showHonors()
	}
}

// health says what an attempt tells the breaker of its host.
func (c *call) health(try *Attempt) health {
	switch {
	case try.Err == nil:
		switch {
		case try.Status == http.StatusTooManyRequests:
			return healthNone
		case try.Status >= 500 && try.Status != http.StatusNotImplemented:
			return healthBad
		}
		return healthGood
	case c.more().bodyErr != nil:
		return healthNone // the caller's own body failed
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
