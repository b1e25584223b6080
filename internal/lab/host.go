package lab

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/memnet"
)

// A host is a machine with a store. Its server process may die and be started
// again; the store stays.
type host struct {
	w    *world
	name string
	n    int

	mu     sync.Mutex
	proc   *process
	procs  []*process // all there were
	outs   []*client  // of all its processes
	booted int
	deaths int
	closed bool // no process is started any more
}

func newHost(w *world, name string, n int) *host {
	return &host{w: w, name: name, n: n}
}

// A process is one life of a host's server.
type process struct {
	w    *world
	h    *host
	n    int
	gone chan struct{} // closed when it ends: none of its goroutines does anything after that

	store   Store
	forgets sync.Once // closes it

	srv  *http.Server
	stop func()
	mws  []*oncehttp.Middleware
	mux  http.Handler
	out  *client // with which its handlers call the bank

	died   atomic.Bool // and was not shut down
	mu     sync.Mutex
	opened []*memnet.Conn // connections
	served map[*action]bool
}

// boot starts a process.
func (h *host) boot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.booted++
	p := &process{w: h.w, h: h, n: h.booted, gone: make(chan struct{}), served: map[*action]bool{}}
	var err error
	if p.store, err = h.w.storage.Open(h.name, h.w.logger(tryID{}, "store", p.dead)); err != nil {
		h.w.broke(tryID{}, 4, "the store of %s cannot be opened: %v", h.name, err)
		return
	}
	h.procs = append(h.procs, p)
	p.routes()
	p.srv = &http.Server{
		Handler:  http.HandlerFunc(p.edge),
		ErrorLog: log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			conn := c.(*memnet.Conn)
			p.mu.Lock()
			p.opened = append(p.opened, conn)
			p.mu.Unlock()
			return context.WithValue(ctx, connKey{}, conn)
		},
	}
	stop, err := h.w.net.Serve(h.name+":80", p.srv)
	if err != nil {
		panic(err)
	}
	p.stop = stop
	h.proc = p
	h.outs = append(h.outs, p.out)
	h.w.note(tryID{}, h.name, "process %d listens", p.n)
}

// routes wires the server as a program would.
func (p *process) routes() {
	w := p.w
	protect := func(m *oncehttp.Middleware) http.Handler {
		m.Store = p.shelf()
		m.Lease, m.Keep, m.Wait, m.Timeout = w.plan.lease, w.plan.keep, w.plan.wait, w.plan.timeout
		m.MaxResponse = w.plan.maxResponse
		m.Logger = w.logger(tryID{}, "server", p.dead)
		m.OnOutcome = p.outcome
		p.mws = append(p.mws, m)
		return m.Handler(http.HandlerFunc(p.serve))
	}
	scope := func(r *http.Request) (string, error) {
		if who, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
			return who, nil
		}
		return "", errors.New("nobody")
	}
	mux := http.NewServeMux()
	for r, h := range map[route]http.Handler{
		pay:   protect(&oncehttp.Middleware{}),
		again: protect(&oncehttp.Middleware{Orphan: oncehttp.OrphanRerun}),
		scoped: protect(&oncehttp.Middleware{Scope: scope, Required: func(*http.Request) bool {
			return true
		}}),
		via:   protect(&oncehttp.Middleware{Scope: scope}),
		plain: http.HandlerFunc(p.serve),
	} {
		mux.Handle("/"+string(r), h)
		mux.Handle("/"+string(r)+"/", h)
	}
	p.mux = mux
	p.out = newClient(w, gateway)
	p.out.gen = p.h.booted
	p.out.start()
}

// outcome counts how requests ended, by the Middleware's own account.
func (p *process) outcome(_ *http.Request, o oncehttp.Outcome) {
	s := "outcome: " + o.Kind.String()
	if o.Refusal != nil {
		s += " " + strings.TrimPrefix(o.Refusal.Type, "urn:oncehttp:")
	}
	p.w.count(s)
}

// dead tells whether the process has died. What its goroutines do after that must
// have no effect: they are only still there because nothing can kill a goroutine.
func (p *process) dead() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// Where a process can die.
const (
	beforeMiddleware = "before the middleware"
	beforeResponse   = "before the response is sent"
	handlerWorks     = "before the handler works"
	effectHappened   = "after the effect"
	midStream        = "in the middle of a stream"
	beforeThe        = "before the store's "
	afterThe         = "after the store's "
)

// rolledOut is how a process ends in peace.
const rolledOut = "a server is shut down, and the next one started"

// step is a moment between two steps of a request, at which the process may die:
// sooner there where there is more to lose.
func (p *process) step(id tryID, n int, where string) {
	w := p.w
	if w.plan.deaths == 0 || w.calm.Load() {
		return
	}
	odds := w.plan.death
	switch where {
	case handlerWorks, effectHappened, midStream, beforeThe + "Complete", afterThe + "Complete", beforeThe + "TakeOver", afterThe + "TakeOver":
		odds *= 8
	}
	d := w.seed.roll(where, id.with(n, p.h.n)...)
	if !d.chance(odds) {
		return
	}
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if p.h.proc != p || p.h.deaths == w.plan.deaths || p.h.closed {
		return
	}
	p.h.deaths++
	p.h.proc = nil
	w.did(id, "death", where)
	p.mu.Lock()
	p.died.Store(true)
	close(p.gone)
	for a := range p.served {
		w.excuse(a, died)
		if _, ok := p.store.(Breakable); ok { // what was on its way to it may arrive
			w.doubt(a)
		}
	}
	reset := d.chance(0.5)
	opened := p.opened
	p.mu.Unlock()
	p.store.Kill()
	for _, c := range opened {
		if reset {
			c.Reset()
		} else {
			c.Close()
		}
	}
	p.stop()
	p.out.kill("its process died")
	p.out.close()
	time.AfterFunc(d.spread(time.Millisecond, 10*time.Second), p.h.boot)
}

// rollout ends the host's process in peace and starts the next.
func (h *host) rollout() {
	h.mu.Lock()
	p := h.proc
	h.proc = nil
	h.mu.Unlock()
	if p == nil {
		return // it is dead
	}
	h.w.did(tryID{}, "death", rolledOut)
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	if err := p.srv.Shutdown(ctx); err != nil {
		h.w.broke(tryID{}, 5, "%s does not shut down: %v", h.name, err)
	}
	p.drain(ctx)
	close(p.gone)
	p.stop()
	p.forgets.Do(p.store.Close)
	h.boot()
}

// drain waits until the process owes its store nothing.
func (p *process) drain(ctx context.Context) {
	for _, m := range p.mws {
		if err := m.Drain(ctx); err != nil {
			p.w.broke(tryID{}, 5, "%s is not drained: %v", p.h.name, err)
		}
	}
	p.out.close()
}

// idle closes the connections to the bank that no handler uses.
func (h *host) idle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.outs {
		c.idle()
	}
}

// retire ends the host's last process, which has nothing to do any more.
func (h *host) retire() {
	h.mu.Lock()
	h.closed = true
	p := h.proc
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if p != nil {
		p.drain(ctx)
		p.stop()
	}
	for _, p := range h.procs {
		p.forgets.Do(p.store.Close)
	}
}
