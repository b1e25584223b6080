// Package serve runs onceproxy: it opens what the settings name, serves, reloads, and
// stops without leaving anything half done.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/operate"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/proxy"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/stores"
)

// Options are what Run gets beside the settings.
type Options struct {
	Version string
	Out     io.Writer // for people: where it listens, and the like
	Err     io.Writer // for the log

	// Page makes the operator's page, which asks for token. Nil means that there is
	// none. What it answers is served at the admin address.
	Page func(state *operate.State, token string) http.Handler
}

// A Proxy is a running onceproxy.
type Proxy struct {
	line *config.Line
	opts Options
	log  *slog.Logger

	conf     *config.Config // of the latest good load; guarded by mu
	began    time.Time
	store    *stores.Opened
	router   atomic.Pointer[proxy.Router]
	files    atomic.Pointer[tlsFiles]
	stopping atomic.Bool
	stop     context.CancelCauseFunc // ends what runs
	env      proxy.Env
	metrics  *operate.Metrics

	mu     sync.Mutex
	limits map[string]*proxy.KeyLimit
	old    []*proxy.Route // replaced by a reload, perhaps with work that still runs

	public net.Listener
	admin  net.Listener // nil: none
	token  string       // what the operator's page asks for
	made   bool         // token was made here, and has to be told
	probes net.Listener // nil: none
	server *http.Server
	inner  []*http.Server
	failed chan error
}

// Start opens everything and begins to serve. Call Stop in the end.
func Start(ctx context.Context, line *config.Line, opts Options) (*Proxy, error) {
	conf, err := line.Load()
	if err != nil {
		return nil, err
	}
	p := &Proxy{began: time.Now(), line: line, opts: opts, conf: conf, log: newLog(opts.Err, conf.Log), limits: map[string]*proxy.KeyLimit{}, metrics: operate.NewMetrics(opts.Version), failed: make(chan error, 3)}
	if err := p.open(ctx); err != nil {
		p.closeAll()
		return nil, err
	}
	p.serve()
	p.tell()
	return p, nil
}

func newLog(w io.Writer, c config.Log) *slog.Logger {
	level := slog.LevelInfo
	if c.Level != "" {
		level.UnmarshalText([]byte(c.Level)) // Check has seen it
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

func (p *Proxy) open(ctx context.Context) (err error) {
	c := p.conf
	if c.TLS.Cert != "" {
		files, err := loadTLS(&c.TLS)
		if err != nil {
			return err
		}
		p.files.Store(files)
	}
	if p.public, err = listen(c); err != nil {
		return err
	}
	if p.admin, err = listenAdmin(c); err != nil {
		return err
	}
	if p.token, p.made, err = pageToken(c, config.Environ); err != nil {
		return err
	}
	if c.Metrics != "" {
		if p.probes, err = net.Listen("tcp", c.Metrics); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	if p.store, err = stores.Open(ctx, c.StoreURL(), p.log); err != nil {
		return err
	}
	base, stop := context.WithCancelCause(context.Background())
	p.stop = stop
	p.env = proxy.Env{
		Store: p.metrics.Measured(p.store), Log: p.log, Access: c.Log.Access, Timeouts: c.Timeouts,
		Stop: base, Metrics: p.metrics, Limits: p.limit,
	}
	routes, err := p.routes(c)
	if err != nil {
		return err
	}
	p.router.Store(proxy.NewRouter(routes))
	p.metrics.Watch(func() []operate.Route { return p.router.Load().States() })
	p.server = newServer(c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.router.Load().ServeHTTP(w, r) }), base, p.log)
	return nil
}

func (p *Proxy) routes(c *config.Config) ([]*proxy.Route, error) {
	var routes []*proxy.Route
	for _, rc := range c.Routes {
		rt, err := proxy.New(rc, p.env)
		if err != nil {
			return nil, err
		}
		routes = append(routes, rt)
	}
	return routes, nil
}

// limit returns the limit of keys of the route with a name, which outlives the route.
func (p *Proxy) limit(route string) *proxy.KeyLimit {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.limits[route]
	if l == nil {
		l = new(proxy.KeyLimit)
		p.limits[route] = l
	}
	return l
}

func (p *Proxy) serve() {
	run := func(name string, f func() error) {
		go func() {
			if err := f(); !errors.Is(err, http.ErrServerClosed) {
				p.failed <- fmt.Errorf("%s: %w", name, err)
			}
		}()
	}
	if p.files.Load() != nil {
		p.server.TLSConfig = tlsConfig(&p.conf.TLS, &p.files)
		run("listen", func() error { return p.server.ServeTLS(p.public, "", "") })
	} else {
		run("listen", func() error { return p.server.Serve(p.public) })
	}
	if p.admin != nil {
		mux := http.NewServeMux()
		p.health(mux)
		if p.opts.Page != nil {
			mux.Handle("/", p.opts.Page(p.State(), p.token))
		}
		s := newInner(mux)
		p.inner = append(p.inner, s)
		run("admin", func() error { return s.Serve(p.admin) })
	}
	if p.probes != nil {
		mux := http.NewServeMux()
		p.health(mux)
		s := newInner(mux)
		p.inner = append(p.inner, s)
		run("metrics", func() error { return s.Serve(p.probes) })
	}
}

// State is what an operator sees of the proxy.
func (p *Proxy) State() *operate.State {
	return &operate.State{
		Version: p.opts.Version, Started: p.began, Listen: p.URL(), Store: p.store.Name, Keys: p.store, Log: p.log,
		Routes: func() []operate.Route { return p.router.Load().States() },
	}
}

// URL is where clients connect.
func (p *Proxy) URL() string {
	if p.files.Load() != nil {
		return "https://" + p.public.Addr().String()
	}
	return "http://" + p.public.Addr().String()
}

// AdminURL is where the operator's page, health and metrics are, or "".
func (p *Proxy) AdminURL() string {
	if p.admin == nil {
		return ""
	}
	return "http://" + p.admin.Addr().String()
}

// tell says to people what was started.
func (p *Proxy) tell() {
	say := func(format string, args ...any) { fmt.Fprintf(p.opts.Out, "onceproxy: "+format+"\n", args...) }
	say("listening at %s", p.URL())
	say("keys are kept in: %s", p.store.Name)
	if p.admin != nil {
		link := ""
		if p.made && p.opts.Page != nil { // the only time that it is told
			link = fmt.Sprintf(" – open it with %s/sign-in?token=%s", p.AdminURL(), p.token)
		}
		say("operator's page, health and metrics at %s%s", p.AdminURL(), link)
	}
	if p.probes != nil {
		say("health and metrics at http://%s", p.probes.Addr())
	}
	for _, rt := range p.router.Load().States() {
		say("%s goes to %s", rt.Name, rt.Upstream)
	}
	for _, warning := range p.conf.Warnings() {
		say("warning: %s", warning)
		p.log.Warn(warning)
	}
}

// Failed is sent an error when something stops serving by itself.
func (p *Proxy) Failed() <-chan error { return p.failed }

// Stop ends the proxy in order: it takes no more requests, lets what runs finish within
// the time for draining, and marks what then still runs as unknown. It reports what was
// left undone.
func (p *Proxy) Stop() error {
	p.stopping.Store(true)
	limit := p.conf.Timeouts.Drain.Or(defaultDrain)
	p.log.Info("stopping", "drain", limit.String())
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := p.server.Shutdown(ctx)
	err = errors.Join(err, p.drain(ctx))

	// What still runs, and what was upgraded, ends now. Work with a key is told to the
	// store as unknown, which takes it a moment.
	p.stop(proxy.ErrStopping)
	if err != nil {
		p.log.Warn("some requests still run; those with a key become unknown", "err", err)
		ctx, cancel := context.WithTimeout(context.Background(), marking)
		defer cancel()
		err = errors.Join(p.server.Shutdown(ctx), p.drain(ctx))
	}
	p.closeAll()
	p.log.Info("stopped", "err", errText(err))
	return err
}

// marking is how long the store gets to be told of what was cut off.
const marking = 5 * time.Second

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// drain waits for work with keys, of the present routes and of earlier ones.
func (p *Proxy) drain(ctx context.Context) error {
	p.mu.Lock()
	routes := append(p.router.Load().Routes(), p.old...)
	p.mu.Unlock()
	var errs []error
	for _, rt := range routes {
		errs = append(errs, rt.Drain(ctx))
	}
	return errors.Join(errs...)
}

func (p *Proxy) closeAll() {
	if p.stop != nil {
		p.stop(proxy.ErrStopping)
	}
	if p.server != nil {
		p.server.Close()
	}
	for _, s := range p.inner {
		s.Close()
	}
	for _, l := range []net.Listener{p.public, p.admin, p.probes} {
		if l != nil {
			l.Close()
		}
	}
	if r := p.router.Load(); r != nil {
		for _, rt := range r.Routes() {
			rt.Close()
		}
	}
	if p.store != nil {
		p.store.Close()
	}
}
