// Package proxy puts oncehttp in front of an upstream: its Middleware, a standard
// ReverseProxy, its Transport.
package proxy

import (
	"bytes"
	"context"
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
)

// Env is what the routes of a process share.
type Env struct {
	Store    Store
	Log      *slog.Logger
	Timeouts config.Timeouts
	Stop     context.Context                   // ends, with ErrStopping, when running work has to
	Tally    func(route string) *operate.Tally // survives a reload
}

// A Route is one upstream and what protects it. It is an http.Handler.
type Route struct {
	conf    config.Route
	env     Env
	label   string
	field   string // the header field with the key, in its canonical form
	target  *url.URL
	log     *slog.Logger
	base    *http.Transport
	out     *oncehttp.Transport
	proxy   *httputil.ReverseProxy
	guard   *oncehttp.Middleware
	guarded http.Handler
	tally   *operate.Tally
}

// New makes a route of settings that config.Check has found right.
func New(conf config.Route, env Env) (*Route, error) {
	target, h2c, err := targetOf(conf.Upstream)
	if err != nil {
		return nil, err
	}
	rt := &Route{conf: conf, env: env, label: conf.Label(), target: target, log: env.Log, tally: env.Tally(conf.Label())}
	if rt.field = http.CanonicalHeaderKey(conf.Key.Header); rt.field == "" {
		rt.field = oncehttp.Header
	}
	if rt.base, err = newBase(h2c, conf.UpstreamCA); err != nil {
		return nil, fmt.Errorf("route %s: upstream_ca: %w", rt.label, err)
	}
	rt.out = rt.newTransport(rt.base)
	rt.proxy = &httputil.ReverseProxy{
		Rewrite: rt.rewrite, Transport: rt.out, ModifyResponse: rt.answered, ErrorHandler: rt.failed,
		BufferPool: &buffers, ErrorLog: slog.NewLogLogger(env.Log.Handler(), slog.LevelDebug),
	}
	rt.guard = rt.newGuard(conf.Keep.Or(0))
	rt.guarded = rt.guard.Handler(http.HandlerFunc(rt.forward))
	return rt, nil
}

// newGuard makes the server half of a route.
func (rt *Route) newGuard(keep time.Duration) *oncehttp.Middleware {
	c := &rt.conf
	m := &oncehttp.Middleware{
		Store: rt.env.Store, KeyHeader: c.Key.Header, Keep: keep,
		Lease: c.Lease.Or(0), Wait: c.Wait.Or(0), Timeout: c.Timeout.Or(defaultTimeout),
		MaxBody: c.Limits.Body.Or(0), MaxResponse: c.Limits.Response.Or(0),
		OnOutcome: rt.report, Logger: rt.log,
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
	rt.tally.Count(o)
}

// ServeHTTP implements http.Handler.
func (rt *Route) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		refuseConnect().ServeHTTP(w, r)
		return
	}
	keyed := !isSafe(r.Method) && len(r.Header[rt.field]) > 0
	if refusal := rt.pace(w, r, keyed); refusal != nil {
		refusal.ServeHTTP(w, r)
		return
	}
	rt.guarded.ServeHTTP(w, r)
}

func refuseConnect() *oncehttp.Refusal {
	return &oncehttp.Refusal{
		Type: problem("method-refused"), Status: http.StatusMethodNotAllowed,
		Title:      "This proxy makes no tunnels",
		Detail:     "CONNECT is for proxies that a client chooses. This one stands in front of a server.",
		SafeNewKey: true, Outcome: "none",
	}
}

// pace bounds the time that a client may take to send the request's body, and its size.
func (rt *Route) pace(w http.ResponseWriter, r *http.Request, keyed bool) *oncehttp.Refusal {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	idle := rt.env.Timeouts.Body.Or(defaultIdle)
	body := &pacedBody{ReadCloser: r.Body, control: http.NewResponseController(w), idle: idle}
	if keyed {
		body.end = time.Now().Add(2 * idle) // it is small
	}
	r.Body = body
	if most := int64(rt.conf.Limits.AnyBody); most > 0 {
		if r.ContentLength > most {
			return refuseTooLarge()
		}
		r.Body = http.MaxBytesReader(w, body, most)
	}
	return nil
}

const defaultIdle = time.Minute

// forward passes a request on: one that is not protected, or the first with its key.
func (rt *Route) forward(w http.ResponseWriter, r *http.Request) {
	x := &exchange{route: rt}
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
		rt.tally.Pass()
	}
	r = r.WithContext(context.WithValue(ctx, exchangeKey{}, x))
	if x.keyed && r.Body != nil && r.Body != http.NoBody {
		if err := rewindable(r); err != nil {
			rt.failed(w, r, err)
			return
		}
	}
	rt.proxy.ServeHTTP(w, r)
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
func (rt *Route) Drain(ctx context.Context) error { return rt.guard.Drain(ctx) }

// Close closes the connections that nothing uses. It is called after Drain.
func (rt *Route) Close() { rt.base.CloseIdleConnections() }

// State is what an operator sees of the route.
func (rt *Route) State() operate.Route {
	u := *rt.target
	u.User = nil
	s := operate.Route{Name: rt.label, Match: rt.conf.Host + rt.conf.Prefix(), Upstream: u.String(), Counts: rt.tally.Counts()}
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
