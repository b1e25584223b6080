// Package proxy puts oncehttp in front of an upstream: its Middleware, a standard
// ReverseProxy, its Transport.
package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/operate"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/scope"
)

// Env is what the routes of a process share.
type Env struct {
	Store    operate.Store
	Log      *slog.Logger
	Access   bool // a line for each request
	Timeouts config.Timeouts
	Stop     context.Context // ends, with ErrStopping, when running work has to
	Metrics  *operate.Metrics
	Limits   func(route string) *KeyLimit // survives a reload
}

// A Route is one upstream and what protects it. It is an http.Handler.
type Route struct {
	conf   config.Route
	env    Env
	label  string
	field  string // the header field with the key, in its canonical form
	target *url.URL
	log    *slog.Logger
	base   *http.Transport
	out    *oncehttp.Transport
	proxy  *httputil.ReverseProxy
	scope  scope.Func // nil: exact credentials
	meter  *operate.Meter

	guard, derivedGuard *oncehttp.Middleware // the latter for keys that were derived
	guarded, derived    http.Handler
}

// New makes a route of settings that config.Check has found right.
func New(conf config.Route, env Env) (*Route, error) {
	target, h2c, err := targetOf(conf.Upstream)
	if err != nil {
		return nil, err
	}
	rt := &Route{conf: conf, env: env, label: conf.Label(), target: target, log: env.Log, meter: env.Metrics.Meter(conf.Label())}
	if rt.field = http.CanonicalHeaderKey(conf.Key.Header); rt.field == "" {
		rt.field = oncehttp.Header
	}
	if rt.base, err = newBase(h2c, conf.UpstreamCA); err != nil {
		return nil, fmt.Errorf("route %s: upstream_ca: %w", rt.label, err)
	}
	if rt.scope, err = scope.New(conf.Scope); err != nil {
		return nil, fmt.Errorf("route %s: %w", rt.label, err)
	}
	rt.out = rt.newTransport(rt.base)
	rt.proxy = &httputil.ReverseProxy{
		Rewrite: rt.rewrite, Transport: rt.out, ModifyResponse: rt.answered, ErrorHandler: rt.failed,
		BufferPool: &buffers, ErrorLog: slog.NewLogLogger(env.Log.Handler(), slog.LevelDebug),
	}
	rt.guard = rt.newGuard(conf.Keep.Or(0))
	rt.guarded = rt.guard.Handler(http.HandlerFunc(rt.forward))
	if conf.Key.Derive != 0 {
		rt.derivedGuard = rt.newGuard(time.Duration(conf.Key.Derive))
		rt.derived = rt.derivedGuard.Handler(http.HandlerFunc(rt.forward))
	}
	return rt, nil
}

// newGuard makes the server half of a route.
func (rt *Route) newGuard(keep time.Duration) *oncehttp.Middleware {
	c := &rt.conf
	m := &oncehttp.Middleware{
		Store: rt.env.Store, KeyHeader: c.Key.Header, Keep: keep,
		Lease: c.Lease.Or(0), Wait: c.Wait.Or(0), Timeout: c.Timeout.Or(defaultTimeout),
		MaxBody: c.Limits.Body.Or(0), MaxResponse: c.Limits.Response.Or(0),
		OnOutcome: rt.report, Refuse: rt.refuse, Logger: rt.log,
		Scope: func(r *http.Request) (string, error) { return principalOf(r.Context()).scope, nil },
	}
	if n := c.Limits.Keys; n > 0 {
		m.Store = &limitedStore{rt.env.Store, rt.env.Limits(rt.label), n, c.Keep.Or(24 * time.Hour)}
	}
	if c.Key.Required {
		m.Required = func(*http.Request) bool { return true }
	}
	if c.Orphan == "rerun" {
		m.Orphan = oncehttp.OrphanRerun
	}
	if free := c.Record.Free; len(free) > 0 {
		m.Record = func(status int, _ http.Header) bool { return !slices.Contains(free, status) }
	}
	return m
}

// report is told how each request with a key ended.
func (rt *Route) report(r *http.Request, o oncehttp.Outcome) {
	rt.meter.Protected(o)
	level := slog.LevelDebug
	if o.Refusal != nil || rt.env.Access {
		level = slog.LevelInfo
	}
	if !rt.log.Enabled(r.Context(), level) {
		return
	}
	attrs := []any{"route", rt.label, "method", r.Method, "path", r.URL.EscapedPath(), "status", o.Status, "outcome", o.Kind.String(), "key", o.Key, "ms", o.Duration.Milliseconds()}
	if o.Refusal != nil {
		attrs = append(attrs, "problem", o.Refusal.Type)
	}
	rt.log.Log(r.Context(), level, "request", attrs...)
}

// ServeHTTP implements http.Handler.
func (rt *Route) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer rt.meter.Began()()
	if r.Method == http.MethodConnect || r.Method == "PRI" { // the latter begins a broken HTTP/2
		rt.turnAway(w, r, refuseMethod())
		return
	}
	safe := isSafe(r.Method)
	keyed := !safe && len(r.Header[rt.field]) > 0
	r, refusal := rt.pace(w, r, keyed)
	if refusal != nil {
		rt.turnAway(w, r, refusal)
		return
	}
	if safe || !keyed && rt.derived == nil {
		rt.guarded.ServeHTTP(w, r)
		return
	}
	who, refusal := rt.identify(r)
	switch {
	case refusal == nil:
		r = rt.underOneHost(r, who)
	case keyed:
		rt.turnAway(w, r, refusal)
		return
	default: // the upstream has its own word on who may come without a key
		rt.guarded.ServeHTTP(w, r)
		return
	}
	if keyed {
		rt.guarded.ServeHTTP(w, r)
		return
	}
	ok, err := rt.derive(r, who)
	switch {
	case err != nil:
		rt.turnAway(w, r, refuseUnread(err))
	case ok:
		rt.derived.ServeHTTP(w, r)
	default:
		rt.guarded.ServeHTTP(w, r)
	}
}

// underOneHost returns the request with its client in the context. Its Host is where the
// upstream is, since the Middleware compares it: a repeat may come by another name of
// this proxy, or to another proxy over the same store.
func (rt *Route) underOneHost(r *http.Request, who *principal) *http.Request {
	who.host = r.Host
	r = r.WithContext(context.WithValue(r.Context(), principalKey{}, who))
	if !rt.conf.PreserveHost {
		r.Host = rt.conf.Upstream
	}
	return r
}

// turnAway refuses a request before its key was looked at.
func (rt *Route) turnAway(w http.ResponseWriter, r *http.Request, p *oncehttp.Refusal) {
	rt.meter.Refused(p)
	rt.log.InfoContext(r.Context(), "request", "route", rt.label, "method", r.Method, "path", r.URL.EscapedPath(), "status", p.Status, "outcome", "refused", "problem", p.Type)
	if p.Status == http.StatusUnauthorized {
		var e *scope.Error
		if errors.As(p.Err, &e) {
			w.Header().Set("WWW-Authenticate", e.Challenge)
		}
	}
	p.ServeHTTP(w, r)
}

func refuseMethod() *oncehttp.Refusal {
	return &oncehttp.Refusal{
		Type: problem("method-refused"), Status: http.StatusMethodNotAllowed,
		Title:      "This proxy does not pass on requests of this method",
		Detail:     "CONNECT is for proxies that a client chooses, and PRI belongs to HTTP/2. Nothing was done.",
		SafeNewKey: true, Outcome: "none",
	}
}

// pace bounds the time that a client may take to send the request's body, and its size.
// It returns a copy: by the Body of its own request the server knows whether a client
// still waits for leave to send it.
func (rt *Route) pace(w http.ResponseWriter, r *http.Request, keyed bool) (*http.Request, *oncehttp.Refusal) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, nil
	}
	idle := rt.env.Timeouts.Body.Or(defaultIdle)
	body := &pacedBody{ReadCloser: r.Body, control: http.NewResponseController(w), idle: idle}
	if keyed {
		body.end = time.Now().Add(2 * idle) // it is small
	}
	r = r.WithContext(r.Context())
	r.Body = body
	// Also for a body that nobody reads: the server does, before it answers.
	body.control.SetReadDeadline(time.Now().Add(idle))
	if most := int64(rt.conf.Limits.AnyBody); most > 0 {
		if r.ContentLength > most {
			return r, refuseTooLarge()
		}
		r.Body = http.MaxBytesReader(w, body, most)
	}
	return r, nil
}

const defaultIdle = time.Minute

// forward passes a request on: one that is not protected, or the first with its key.
func (rt *Route) forward(w http.ResponseWriter, r *http.Request) {
	x := &exchange{}
	ctx := r.Context()
	if _, x.keyed = oncehttp.KeyFromContext(ctx); x.keyed {
		// A client that leaves does not end it, but the proxy's end does.
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		stop := context.AfterFunc(rt.env.Stop, func() { cancel(context.Cause(rt.env.Stop)) })
		defer stop()
		defer cancel(nil)
		x.work = ctx
	} else {
		defer rt.passed(r, x, time.Now())
	}
	r = r.WithContext(context.WithValue(ctx, exchangeKey{}, x))
	if who := principalOf(ctx); who != nil {
		r.Host = who.host
	}
	if x.keyed && r.Body != nil && r.Body != http.NoBody {
		if err := rewindable(r); err != nil {
			rt.failed(w, r, err)
			return
		}
	}
	rt.proxy.ServeHTTP(w, r)
}

// passed notes a request that was not protected.
func (rt *Route) passed(r *http.Request, x *exchange, began time.Time) {
	took := time.Since(began)
	rt.meter.Passed(took)
	if rt.env.Access {
		rt.log.InfoContext(r.Context(), "request", "route", rt.label, "method", r.Method, "path", r.URL.EscapedPath(), "status", x.status, "outcome", "passed", "ms", took.Milliseconds())
	}
}

// rewindable gives a request its body in a form that can be read again: the Middleware
// has it in memory. So a connection that its server has closed in the meantime does
// not make an unknown outcome of a request that was never written to it.
func rewindable(r *http.Request) error {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	r.Body, _ = r.GetBody()
	return nil
}

// answered is told of an answer before it is passed on.
func (rt *Route) answered(resp *http.Response) error {
	stripControls(resp.Header)
	x := exchangeOf(resp.Request.Context())
	x.status = resp.StatusCode
	rt.meter.Answered(resp.StatusCode)
	if !x.keyed {
		return nil
	}
	if oncehttp.Attempts(resp).Certainty == oncehttp.CertaintyUnknown {
		x.unknown()
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	return rt.hold(resp, x)
}

// Drain waits until no work runs and nothing is left to tell the store.
func (rt *Route) Drain(ctx context.Context) error {
	err := rt.guard.Drain(ctx)
	if rt.derivedGuard != nil {
		err = errors.Join(err, rt.derivedGuard.Drain(ctx))
	}
	return err
}

// Close closes the connections that nothing uses. It is called after Drain.
func (rt *Route) Close() { rt.base.CloseIdleConnections() }

// State is what an operator sees of the route.
func (rt *Route) State() operate.Route {
	u := *rt.target
	u.User = nil
	s := operate.Route{Name: rt.label, Match: rt.conf.Host + rt.conf.Prefix(), Upstream: u.String(), Counts: rt.meter.Counts()}
	if rt.conf.Breaker {
		s.Breakers = rt.out.Breaker.Status()
	}
	return s
}

// buffers are what answers are copied through.
var buffers bufferPool

type bufferPool struct{ sync.Pool }

// Get implements httputil.BufferPool.
func (p *bufferPool) Get() []byte {
	if b, ok := p.Pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

// Put implements httputil.BufferPool.
func (p *bufferPool) Put(b []byte) { p.Pool.Put(&b) }
