package onceotel

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncehttp/oncehttp"
)

// Transport returns a RoundTripper that is t with a client span and a measurement for each
// attempt, by the semantic conventions for HTTP: http.request.resend_count is there on
// attempts after the first. A span ends with the response's headers, or the failure. The
// context of the span goes into the attempt's headers before t.Prepare is called, so that a
// signature may cover them. A request that was refused before its first attempt has no span,
// but counts in oncehttp.client.requests with its reason.
//
// It sets t.Prepare and t.OnAttempt, which keep what they were set to, so t must not be in
// use yet, and is to be instrumented once.
func (o *Telemetry) Transport(t *oncehttp.Transport) http.RoundTripper {
	o.once.Do(o.init)
	prepare, onAttempt := t.Prepare, t.OnAttempt
	t.Prepare = func(r *http.Request) error {
		if c, ok := r.Context().Value(callKey{}).(*call); ok {
			c.begin(r)
		}
		if prepare != nil {
			return prepare(r)
		}
		return nil
	}
	t.OnAttempt = func(r *http.Request, a oncehttp.Attempt) {
		if c, ok := r.Context().Value(callKey{}).(*call); ok {
			c.ended(a)
		}
		if onAttempt != nil {
			onAttempt(r, a)
		}
	}
	return &transport{o, t}
}

type transport struct {
	o *Telemetry
	t *oncehttp.Transport
}

type callKey struct{}

// A call is one logical request.
type call struct {
	o      *Telemetry
	parent context.Context
	method string
	url    *url.URL

	mu    sync.Mutex // Prepare runs in the call's goroutine; a Base that panics leaves the span to finish
	n     int
	open  trace.Span
	attrs []attribute.KeyValue // of the metrics of every attempt
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL == nil {
		return t.t.RoundTrip(req)
	}
	host, port := hostAndPort(req.URL)
	c := &call{o: t.o, parent: req.Context(), method: method(req.Method), url: req.URL}
	c.attrs = []attribute.KeyValue{str(attrMethod, c.method), str(attrAddress, t.o.host(host)), attribute.Int(attrPort, port)}
	if c.attrs[1].Value.AsString() == OtherHost {
		c.attrs = c.attrs[:2]
	}
	defer c.finish(nil, true)
	resp, err := t.t.RoundTrip(req.WithContext(context.WithValue(req.Context(), callKey{}, c)))
	c.finish(err, false)
	c.count(resp, err)
	return resp, err
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] calls.
func (t *transport) CloseIdleConnections() { t.t.CloseIdleConnections() }

// begin starts the span of an attempt.
func (c *call) begin(r *http.Request) {
	host, port := hostAndPort(c.url)
	shown := url.URL{Scheme: c.url.Scheme, Host: c.url.Host, Path: c.url.Path, RawPath: c.url.RawPath}
	attrs := []attribute.KeyValue{
		str(attrMethod, c.method), str(attrAddress, host), attribute.Int(attrPort, port), str(attrURL, shown.String()),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n > 0 {
		attrs = append(attrs, attribute.Int(attrResend, c.n))
	}
	c.n++
	name := c.method
	if name == "_OTHER" {
		name = "HTTP"
	}
	ctx, span := c.o.spans.Start(c.parent, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
	c.open = span
	c.o.propagator().Inject(ctx, propagation.HeaderCarrier(r.Header))
}

// ended ends the span of an attempt and measures it.
func (c *call) ended(a oncehttp.Attempt) {
	c.mu.Lock()
	span := c.open
	c.open = nil
	c.mu.Unlock()
	attrs := append(c.attrs[:len(c.attrs):len(c.attrs)], outcomeOf(a)...)
	c.o.attempt.Record(c.parent, a.Duration.Seconds(), metric.WithAttributes(attrs...))
	if a.N > 1 {
		c.o.resend.Add(c.parent, 1, metric.WithAttributes(c.attrs...))
	}
	if span == nil {
		return
	}
	span.SetAttributes(outcomeOf(a)...)
	span.SetAttributes(str(attrCertainty, a.Certainty.String()))
	if a.Conns > 1 {
		span.SetAttributes(attribute.Int(attrSends, a.Conns))
	}
	if a.Err != nil {
		span.SetStatus(codes.Error, a.Err.Error())
	} else if a.Status >= 400 {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// outcomeOf are the attributes that tell how an attempt ended.
func outcomeOf(a oncehttp.Attempt) []attribute.KeyValue {
	var attrs []attribute.KeyValue
	if a.Status != 0 {
		attrs = append(attrs, attribute.Int(attrStatus, a.Status))
	}
	switch {
	case a.Err != nil:
		attrs = append(attrs, str(attrError, errorType(a.Err)))
	case a.Status >= 400:
		attrs = append(attrs, str(attrError, strconv.Itoa(a.Status)))
	}
	return attrs
}

// finish ends a span that no attempt has ended: Prepare failed, or Base panicked.
func (c *call) finish(err error, panicked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		return
	}
	kind, text := "panic", "the attempt panicked"
	if !panicked {
		kind, text = "prepare", "the attempt could not be prepared"
	}
	c.open.SetAttributes(str(attrError, kind))
	c.open.SetStatus(codes.Error, text)
	c.open.End()
	c.open = nil
}

// count counts the logical request.
func (c *call) count(resp *http.Response, err error) {
	var res oncehttp.Result
	var failed *oncehttp.Error
	switch {
	case errors.As(err, &failed):
		res = failed.Result
	case resp != nil:
		res = oncehttp.Attempts(resp)
	}
	attrs := append(c.attrs[:len(c.attrs):len(c.attrs)],
		str(attrCertainty, res.Certainty.String()), str(attrStop, stopOf(res.Stop)))
	c.o.request.Add(c.parent, 1, metric.WithAttributes(attrs...))
}

// stops are the values of oncehttp.stop.
var stops = []struct {
	is   error
	name string
}{
	{context.Canceled, "canceled"},
	{oncehttp.ErrUnsafe, "unsafe"},
	{oncehttp.ErrBody, "body"},
	{oncehttp.ErrAttempts, "attempts"},
	{oncehttp.ErrBudget, "budget"},
	{oncehttp.ErrDeadline, "deadline"},
	{context.DeadlineExceeded, "deadline"},
	{oncehttp.ErrRetryAfter, "retry_after"},
	{oncehttp.ErrOpen, "breaker_open"},
	{oncehttp.ErrLimit, "limit"},
	{oncehttp.ErrFinal, "final"},
}

func stopOf(err error) string {
	if err == nil {
		return "none"
	}
	for _, s := range stops {
		if errors.Is(err, s.is) {
			return s.name
		}
	}
	return "_other"
}

// errorType is a failure's class, of few: error.type must have a low cardinality.
func errorType(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.As(err, &dns):
		return "name_resolution"
	case errors.As(err, &op) && op.Op == "dial":
		return "connect"
	case errors.As(err, &op):
		return "connection"
	}
	return "_OTHER"
}
