package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
	"golang.org/x/time/rate"
)

// A client is a machine that does its part of the actions. Its process may be
// killed and started again; then it does what was not done, under the same names.
type client struct {
	w *world
	n int

	mu    sync.Mutex
	gen   int
	lives []*life // the last is the present one
}

// A life is one process of a client: a Transport, and the calls made through it.
type life struct {
	c      *client
	gen    int
	ctx    context.Context // of everything it does
	kill   context.CancelCauseFunc
	base   *http.Transport
	t      *oncehttp.Transport
	direct bool // calls the Transport without an http.Client
	began  time.Time

	// Under world.mu:
	hosts  map[string]*seen
	lasted time.Duration // until its latest attempt
}

func newClient(w *world, n int) *client { return &client{w: w, n: n} }

// live does all that the client has to do.
func (c *client) live() {
	d := c.w.seed.roll("client", c.n)
	c.start()
	var errands sync.WaitGroup
	for _, a := range c.w.actions {
		for i, e := range a.errands {
			if e.client == c.n {
				errands.Go(func() { c.pursue(a, i, e) })
			}
		}
	}
	if d.chance(c.w.plan.restarts) {
		for range 1 + d.n(2) {
			wait, down := d.within(c.w.plan.span), d.spread(time.Millisecond, 3*time.Second)
			errands.Go(func() {
				time.Sleep(wait)
				c.w.did(tryID{callID: callID{client: c.n}}, "death", "a client dies")
				c.kill("the client died")
				time.Sleep(down)
				c.start()
			})
		}
	}
	errands.Wait()
}

// start starts the client's process.
func (c *client) start() {
	w := c.w
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gen++
	d := w.seed.roll("life", c.n, c.gen)
	l := &life{c: c, gen: c.gen, began: time.Now(), base: &http.Transport{DialContext: w.dial, DisableKeepAlives: d.chance(0.15)}, hosts: map[string]*seen{}}
	l.ctx, l.kill = context.WithCancelCause(context.Background())
	if w.plan.http2 {
		l.base.Protocols = new(http.Protocols)
		l.base.Protocols.SetUnencryptedHTTP2(true)
	}
	t := &oncehttp.Transport{
		Base:           l.base,
		Attempts:       pick(&d, 0, 0, 1, 2, 4, 6),
		AttemptTimeout: pick(&d, 0, 0, 300*time.Millisecond, 2*time.Second, 10*time.Second),
		BackoffBase:    pick(&d, 0, 10*time.Millisecond, 100*time.Millisecond),
		BackoffCap:     pick(&d, 0, time.Second),
		MaxRetryAfter:  pick(&d, 0, 0, 2*time.Second, time.Minute),
		ReplayReply:    pick[int64](&d, 0, 64<<10),
		QuoteKeys:      d.chance(0.3),
		HoldHost:       d.chance(0.2),
		Honors:         func(r *http.Request) bool { return !strings.HasPrefix(r.URL.Path, "/"+string(plain)) },
		Breaker:        &oncehttp.Breaker{Disabled: d.chance(0.5)},
		Budget:         &oncehttp.Budget{Disabled: d.chance(0.2), Tokens: pick[float64](&d, 0, 0, 3)},
		OnAttempt:      l.attempted,
		Logger:         w.logger(tryID{callID: callID{client: c.n}}, "client", nil),
	}
	if d.chance(0.15) {
		t.Limit, t.Burst = rate.Limit(1+d.n(20)), d.n(5)
	}
	if d.chance(0.7) {
		// The runtime's random numbers are not the seed's. These pauses are.
		t.Backoff = func(base, limit time.Duration, n int, _ *http.Response) time.Duration {
			d := w.seed.roll("pause", c.n, l.gen, n)
			return time.Duration(d.float() * float64(min(limit, base<<min(n, 20))))
		}
	}
	if c.n == auditor {
		*t = oncehttp.Transport{Base: l.base, Honors: t.Honors, OnAttempt: t.OnAttempt, Logger: t.Logger,
			Breaker: &oncehttp.Breaker{Disabled: true}, Budget: &oncehttp.Budget{}}
	}
	t.Breaker.OnStateChange = l.breakerChanged
	if d.chance(0.7) {
		t.Prepare = l.prepare
	} else {
		t.Base = stamping{l}
	}
	l.t, l.direct = t, d.chance(0.4)
	c.lives = append(c.lives, l)
}

func (c *client) alive() *life {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lives[len(c.lives)-1]
}

// kill ends the client's process.
func (c *client) kill(why string) {
	l := c.alive()
	l.kill(errors.New(why))
	l.base.CloseIdleConnections()
}

// idle closes the connections that are not in use.
func (c *client) idle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lives {
		l.base.CloseIdleConnections()
	}
}

// close ends the client in peace.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lives {
		l.base.CloseIdleConnections()
		l.kill(errors.New("the client is closed"))
	}
}

// A stamping transport gives each attempt its name where Prepare does not. To the
// Transport it is a Base of an unknown kind.
type stamping struct{ l *life }

func (s stamping) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if err := s.l.prepare(r); err != nil {
		return nil, err
	}
	return s.l.base.RoundTrip(r)
}

// prepare names an attempt.
func (l *life) prepare(r *http.Request) error {
	c := r.Context().Value(callKey{}).(*call)
	w := l.c.w
	w.mu.Lock()
	c.tries++
	id := tryID{c.id, c.tries}
	l.host(r.URL.Host).sends++
	l.lasted = time.Since(l.began)
	w.mu.Unlock()
	r.Header.Set(labField, id.header())
	l.passes(id, r.URL.Host)
	return nil
}

// pursue does a client's part of an action: it asks, and asks again, as programs
// and models do.
func (c *client) pursue(a *action, part int, e errand) {
	w := c.w
	d := w.seed.roll("pursue", c.n, a.n, part)
	time.Sleep(e.at)
	fresh := ""
	for k := 1; ; k++ {
		t := c.ask(a, e.ask, 10*part+k, fresh)
		if k == 5 || a.mode == keyless {
			return
		}
		odds := 0.7
		switch {
		case t.success != nil && t.whole:
			odds = 0.25 // for no good reason
		case t.result.Stop != nil && errors.Is(t.result.Stop, context.Canceled):
			odds = 1 // the process was killed, and the next one finds the work undone
		}
		if a.mode == minted {
			// Only what is known not to have happened is done under another key.
			if t.certainty != oncehttp.CertaintyNotSent {
				return
			}
		} else if t.refusal != nil && t.refusal.SafeNewKey {
			fresh = fmt.Sprintf("fresh-%d-%d", a.n, k)
		}
		if !d.chance(odds) {
			return
		}
		time.Sleep(d.spread(time.Millisecond, 20*time.Second))
	}
}

// ask makes one call in the client's present life.
func (c *client) ask(a *action, k ask, n int, fresh string) *call {
	l := c.alive()
	d := c.w.seed.roll("ask", c.n, a.n, n)
	deadline := d.spread(50*time.Millisecond, 2*time.Minute)
	if d.chance(0.5) {
		deadline = 2 * time.Minute
	}
	if d.chance(0.3) || c.n == auditor {
		return l.do(l.ctx, a, k, n, fresh) // nothing ends what it leaves behind
	}
	ctx, cancel := context.WithTimeout(l.ctx, deadline)
	defer cancel()
	if d.chance(0.05) {
		stop := time.AfterFunc(d.spread(time.Microsecond, 5*time.Second), cancel)
		defer stop.Stop()
	}
	return l.do(ctx, a, k, n, fresh)
}

// do makes one call in the present life, from inside a handler.
func (c *client) do(ctx context.Context, a *action, k ask, n int) *call {
	return c.alive().do(ctx, a, k, n, "")
}
