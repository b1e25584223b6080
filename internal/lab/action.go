package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp"
)

// An action is something that one or more clients want done once.
type action struct {
	n       int
	route   route
	host    *host
	mode    keyMode
	name    string // of the key, or action
	method  string
	path    string
	body    bodyKind
	ask     ask
	inner   *action  // what the handler asks of the bank
	errands []errand // who does it
	odd     []ask    // what else is asked under its key
	twin    *action  // another tenant's action with the same key

	// Under world.mu:
	runs      []*run
	effects   []effect
	answers   []*call           // that were successes
	claims    map[ask]bool      // what was asked by requests that acquired its key
	granted   bool              // or perhaps by others: their process died, or their connection, before they knew
	keys      map[string]string // what requests carried
	confirmed time.Duration     // when a client was first told a success that is recorded
	causes    [causes]int
	overran   bool // a handler ran for longer than its Timeout
	doubts    bool // or said Unknown
	large     bool // or gave an answer that is too large to keep
	panics    bool // or panicked
	streamed  bool // or sent its answer before it could be recorded
}

// A route is the first element of a path.
type route string

const (
	pay    route = "pay"    // protected
	again  route = "again"  // declared safe to run again: OrphanRerun
	scoped route = "scoped" // protected, for tenants whose keys may be equal
	via    route = "via"    // protected; has the work done by the bank, through a Transport
	plain  route = "plain"  // not protected, and clients know it
)

// A keyMode is how a client says which requests belong to one action.
type keyMode string

const (
	byAction  keyMode = "WithAction"
	byStep    keyMode = "WithAction, in an action"
	byKey     keyMode = "WithKey"
	byHeader  keyMode = "a key in the header"
	byRoute   keyMode = "the handler's own action" // of a handler that calls on
	minted    keyMode = "a key of the Transport's own"
	keyless   keyMode = "no key"
	forgotten keyMode = "no key, where one is required"
)

// An errand is one client's part in an action.
type errand struct {
	client int
	ask    ask
	at     time.Duration
}

// An ask is what a request asks for, and who asks.
type ask struct {
	amount int
	who    string
}

func (k ask) String() string { return fmt.Sprintf("%d for %s", k.amount, k.who) }

// A cause is what can leave an action without a clear answer.
type cause int

const (
	died        cause = iota // a process that had to do with it
	storeFailed              // a call for it
	unrecorded               // namely one that was to record its answer
	jumped                   // the store's clock
	causes
)

func (w *world) excuse(a *action, c cause) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a.causes[c]++
	if a.inner != nil && (c == died || c == jumped) {
		a.inner.causes[c]++
	}
}

func newAction(n int, h *host, k ask) *action {
	return &action{n: n, host: h, ask: k, claims: map[ask]bool{}, keys: map[string]string{}}
}

// work returns the action whose effect it is.
func (a *action) work() *action {
	if a.inner != nil {
		return a.inner
	}
	return a
}

// shared reports whether all requests for the action carry one key, whoever makes
// them.
func (a *action) shared() bool { return a.mode != minted && a.mode != keyless && a.mode != forgotten }

// innerActions is what the number of an action at the bank is counted from.
const innerActions = 1000

func (w *world) action(n int) *action {
	switch {
	case n > innerActions && n-innerActions <= len(w.actions):
		return w.actions[n-innerActions-1].inner
	case n > 0 && n <= len(w.actions):
		return w.actions[n-1]
	}
	return nil
}

// makeActions draws what is to be done.
func (w *world) makeActions() {
	var before *action
	for n := 1; n <= w.plan.actions; n++ {
		d := w.seed.roll("action", n)
		a := newAction(n, w.front, ask{100 + n, "alice"})
		if before != nil && before.twin == nil && before.mode != forgotten && (before.route == scoped || before.route == via) && d.chance(0.5) {
			// Another tenant, who happens to choose the same key.
			a.route, a.mode, a.name, a.method, a.path, a.body = before.route, before.mode, before.name, before.method, before.path, before.body
			a.ask = ask{before.ask.amount, "bob"}
			a.twin, before.twin = before, a
		} else {
			if a.route = again; !d.chance(w.plan.rerun) {
				a.route = pick(&d, pay, pay, pay, pay, scoped, via, plain)
			}
			a.mode = pick(&d, byAction, byAction, byStep, byKey, byHeader, minted)
			a.method = pick(&d, "POST", "POST", "POST", "PATCH", "DELETE", "PUT")
			a.body = pick(&d, bodyBytes, bodyBytes, bodyReader, bodyChunked, bodyPipe, bodyNone)
			if a.route == plain {
				a.mode, a.method = keyless, "POST"
			}
			if a.route == scoped && d.chance(0.15) {
				a.mode = forgotten
			}
			a.name = "order-" + strconv.Itoa(n)
			a.path = "/" + string(a.route)
			if d.chance(0.5) || a.body == bodyNone {
				a.path += "/" + strconv.Itoa(n)
			}
		}
		if a.route == via {
			a.inner = newAction(innerActions+n, w.bank, a.ask)
			a.inner.route, a.inner.mode, a.inner.method, a.inner.path, a.inner.body = pay, byRoute, "POST", "/pay", bodyBytes
		}
		a.draw(w, &d)
		if a.inner != nil {
			a.inner.odd = a.odd
		}
		w.actions = append(w.actions, a)
		before = a
	}
}

// draw decides who does it, and when.
func (a *action) draw(w *world, d *dice) {
	add := func(k ask) {
		a.errands = append(a.errands, errand{1 + d.n(w.plan.clients), k, d.within(w.plan.span)})
	}
	add(a.ask)
	if !a.shared() {
		return // a second client would do it a second time
	}
	if d.chance(0.4) || w.plan.contended {
		at := a.errands[0].at
		for range 1 + d.few(4) {
			add(a.ask)
			if d.chance(0.7) { // at about the same time
				a.errands[len(a.errands)-1].at = at + d.spread(time.Microsecond, 3*time.Second)
			}
		}
	}
	if d.chance(0.15) { // "try a smaller amount"
		a.odd = append(a.odd, ask{a.ask.amount / 2, a.ask.who})
	}
	if a.route != scoped && a.route != via && d.chance(0.15) {
		a.odd = append(a.odd, ask{pick(d, a.ask.amount, a.ask.amount/3), "mallory"})
	}
	for _, k := range a.odd {
		add(k)
	}
}

// context is what a client makes its request in.
func (a *action) context(ctx context.Context) context.Context {
	switch a.mode {
	case byAction:
		return oncehttp.WithAction(ctx, a.name)
	case byStep:
		return oncehttp.WithAction(oncehttp.WithAction(ctx, "basket"), a.name)
	case byKey:
		return oncehttp.WithKey(ctx, a.name)
	}
	return ctx
}

// request makes a client's request. How the same thing is written differs from
// call to call: a model that asks again does not repeat itself to the letter.
func (a *action) request(ctx context.Context, w *world, c *call) *http.Request {
	d := w.seed.roll("request", c.id.client, c.id.action, c.id.call)
	url := "http://" + a.host.name + a.path
	var text []byte
	if a.body == bodyNone {
		url += "?amount=" + strconv.Itoa(c.ask.amount)
	} else {
		text = fmt.Appendf(nil, pick(&d, `{"action":%d,"amount":%d}`, ` {"action" : %d, "amount":%d.00 }`, `{"action":%[1]d,"amount":%[2]d}`+"\n", `{"amount":%[2]d,"action":%[1]d}`), a.n, c.ask.amount)
	}
	r, err := http.NewRequestWithContext(ctx, a.method, url, nil)
	if err != nil {
		panic(err)
	}
	if text != nil {
		r.Header.Set("Content-Type", "application/json")
		r.Body = w.newBody(c.id, text, a.body == bodyPipe)
		r.ContentLength = int64(len(text))
		switch a.body {
		case bodyBytes:
			r.GetBody = func() (io.ReadCloser, error) { return w.newBody(c.id, text, false), nil }
		case bodyChunked, bodyPipe:
			r.ContentLength = -1
		}
	}
	r.Header.Set("Authorization", "Bearer "+c.ask.who)
	switch c.mode {
	case byHeader:
		r.Header.Set(oncehttp.Header, pick(&d, a.name, `"`+a.name+`"`))
	case forgotten:
		r.Header[oncehttp.Header] = nil // net/http's way to say: may be repeated, send nothing
	}
	return r
}

// read is what the handler reads of a request. Somebody must have asked for
// exactly that.
func (a *action) read(r *http.Request) (ask, error) {
	var k ask
	k.who = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return k, err
	}
	if a.body == bodyNone {
		if len(b) > 0 {
			return k, fmt.Errorf("a body of %d bytes, where none was sent", len(b))
		}
		k.amount, _ = strconv.Atoi(r.URL.Query().Get("amount"))
	} else {
		var in struct {
			Action int
			Amount float64
		}
		if err := json.Unmarshal(b, &in); err != nil {
			return k, fmt.Errorf("the body is %q: %v", b, err)
		}
		if in.Action != a.n {
			return k, fmt.Errorf("the body is %q, of another action", b)
		}
		k.amount = int(in.Amount)
	}
	if k != a.ask && !slices.Contains(a.odd, k) {
		return k, fmt.Errorf("nobody asked for %v", k)
	}
	return k, nil
}
