package lab

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/memnet"
)

// An arrival is a request that has reached a process.
type arrival struct {
	id    tryID
	n     int // of those of one attempt: there may be duplicates
	ghost bool
	p     *process
	a     *action
	x     *exchange
	key   string

	// Under world.mu:
	storeOps int       // calls of the store
	began    time.Time // when its handler began; zero: never
	own      time.Time // until when its claim is its own
	jumps    int       // of the store's clock before that was said
	lost     time.Time // when the store said that the claim is lost

	// What it was answered, once it was:
	status     int
	retryAfter time.Duration
	replayed   bool
	executed   bool
}

// settled reports whether the answer says that it will not change.
func (a *arrival) settled() bool { return a.replayed || a.executed && a.status >= 500 }

type arrivalKey struct{}

// edge is where requests come in.
func (p *process) edge(rw http.ResponseWriter, r *http.Request) {
	w := p.w
	id, ok := parseTry(r.Header.Get(labField))
	if !ok || p.dead() {
		panic(http.ErrAbortHandler)
	}
	a := &arrival{id: id, p: p, a: w.action(id.action), key: r.Header.Get(oncehttp.Header)}
	a.x = w.exchange(id)
	w.mu.Lock()
	a.ghost = w.ghosts[r.RemoteAddr]
	a.n = len(a.x.arrivals)
	a.x.arrivals = append(a.x.arrivals, a)
	w.mu.Unlock()
	w.named(a)
	p.mu.Lock()
	p.served[a.a] = true
	p.mu.Unlock()
	dup := ""
	if a.ghost {
		dup = " (by the other way)"
	}
	w.note(id, p.h.name, "%s %s arrives%s", r.Method, r.URL.RequestURI(), dup)
	p.step(id, a.n, beforeMiddleware)
	if p.dead() {
		panic(http.ErrAbortHandler)
	}
	w.atEdge(a, rw, r.WithContext(context.WithValue(r.Context(), arrivalKey{}, a)), func(rw http.ResponseWriter, r *http.Request) {
		ew := &edgeWriter{ResponseWriter: rw, a: a}
		p.mux.ServeHTTP(ew, r)
		if p.dead() {
			panic(http.ErrAbortHandler)
		}
		p.step(id, a.n, beforeResponse)
	})
}

// named looks at the key of an arrival.
func (w *world) named(at *arrival) {
	a, key := at.a, strings.Trim(at.key, `"`)
	w.mu.Lock()
	c := w.calls[at.id.callID]
	first := c.key
	if c.key == "" {
		c.key = key
	}
	what := c.fresh
	if c.mode == byRoute {
		what = c.ask.String() // a changed request has a key of its own
	}
	same := a.keys[what]
	if same == "" {
		a.keys[what] = key
	}
	others := ""
	if c.mode == byRoute {
		outer := w.actions[a.n-innerActions-1]
		others = outer.keys[""]
		if outer.twin != nil && key == outer.twin.inner.keys[what] {
			others = key
		}
	}
	w.mu.Unlock()
	switch {
	case (key == "") != (c.mode == keyless || c.mode == forgotten):
		w.broke(at.id, 1, "the request carries the key %q, under %s", key, c.mode)
	case first != "" && first != key:
		w.broke(at.id, 1, "two attempts of one request carry two keys")
	case c.mode != minted && same != "" && same != key:
		w.broke(at.id, 1, "two requests of one action carry two keys")
	case others != "" && others == key:
		w.broke(at.id, 1, "a handler's request carries the key of its caller, or of another tenant's request")
	}
}

// An edgeWriter sees what a request is answered.
type edgeWriter struct {
	http.ResponseWriter
	a    *arrival
	done bool
}

func (e *edgeWriter) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *edgeWriter) WriteHeader(status int) {
	if !e.done && status >= 200 {
		e.done = true
		e.head(status)
	}
	e.ResponseWriter.WriteHeader(status)
}

func (e *edgeWriter) Write(p []byte) (int, error) {
	if !e.done {
		e.WriteHeader(http.StatusOK)
	}
	return e.ResponseWriter.Write(p)
}

func (e *edgeWriter) head(status int) {
	h, a := e.Header(), e.a
	marks := ""
	w := a.p.w
	if a.p.dead() {
		return // nobody will hear it
	}
	w.mu.Lock()
	a.status = status
	if s := h.Get("Retry-After"); s != "" {
		n, _ := strconv.Atoi(s)
		a.retryAfter = time.Duration(n) * time.Second
		marks += ", Retry-After " + s
	}
	if a.replayed = h.Get("Idempotent-Replayed") == "true"; a.replayed {
		marks += ", replayed"
	}
	if a.executed = h.Get("Idempotency-Status") == "executed"; a.executed {
		marks += ", executed"
	}
	w.mu.Unlock()
	w.note(a.id, a.p.h.name, "answers %d%s", status, marks)
}

// An edgeFault is what becomes of a request at the server's edge, where HTTP/2
// is understood.
type edgeFault string

const (
	edgeBefore edgeFault = "the connection breaks before the handler"
	edgeAfter  edgeFault = "the connection breaks after the handler"
	edgeDuring edgeFault = "the connection breaks while the handler works"
	edgeSlow   edgeFault = "the request takes its time"
)

var edgeFaults = []edgeFault{edgeBefore, edgeAfter, edgeDuring, edgeSlow}

type connKey struct{}

// atEdge serves a request that the network may spoil.
func (w *world) atEdge(a *arrival, rw http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request)) {
	conn, _ := r.Context().Value(connKey{}).(*memnet.Conn)
	d := w.seed.roll("edge", a.id.with(a.n)...)
	f := w.plan.edge.choose(&d)
	if f == "" || w.calm.Load() {
		next(rw, r)
		return
	}
	w.did(a.id, "network", string(f))
	after := d.spread(100*time.Microsecond, 5*time.Second)
	switch f {
	case edgeBefore:
		conn.Reset()
		panic(http.ErrAbortHandler)
	case edgeDuring:
		time.AfterFunc(after, func() { conn.Reset() })
	case edgeSlow:
		time.Sleep(after)
		if a.p.dead() {
			panic(http.ErrAbortHandler)
		}
	case edgeAfter:
		defer panic(http.ErrAbortHandler)
		defer conn.Reset()
	}
	next(rw, r)
}
