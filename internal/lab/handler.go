package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"weak"

	"github.com/oncehttp/oncehttp"
)

// A deed is how a handler ends.
type deed string

const (
	deedOK         deed = "" // the effect, and a 201
	panicBefore    deed = "panics before the effect"
	panicAfter     deed = "panics after the effect"
	failAfter      deed = "answers a 5xx after the effect"
	failReleased   deed = "answers a 5xx before the effect, and says Release"
	busy           deed = "is busy, and says when to come back"
	unauthorized   deed = "answers 401 before the effect"
	rejects        deed = "rejects the request for good, before the effect"
	unknownAfter   deed = "says Unknown after the effect"
	unknownBefore  deed = "says Unknown before the effect"
	panicUnknown   deed = "says Unknown after the effect, and panics"
	streams        deed = "streams its answer"
	streamsAndDies deed = "panics in the middle of its stream"
	large          deed = "gives a large answer"
	abandons       deed = "stops when its context ends, but its work goes on"
)

var deeds = []deed{
	panicBefore, panicAfter, failAfter, failReleased, busy, unauthorized, rejects,
	unknownAfter, unknownBefore, panicUnknown, streams, streamsAndDies, large, abandons,
}

// What handlers say that did nothing. None of it may be replayed.
const (
	saysReleased = "nothing happened"
	saysUnknown  = "cannot tell"
	saysBusy     = "busy"
	saysWho      = "who are you?"
	saysNotAsked = "the bank was not asked"
	saysBankBusy = "the bank was busy"
)

// A run is one run of a handler.
type run struct {
	w       *world
	p       *process
	a       *action
	arrival *arrival
	ask     ask
	n       int
	began   time.Time
	rw      http.ResponseWriter
	ctx     context.Context

	// What it is to do:
	end           deed
	before, after time.Duration // the effect
	heeds         bool          // the end of its context
	d             dice

	receipt string // under world.mu, like what follows
	ended   bool
}

// serve is the handler.
func (p *process) serve(rw http.ResponseWriter, r *http.Request) {
	at := r.Context().Value(arrivalKey{}).(*arrival)
	asked, err := at.a.read(r)
	switch {
	case err != nil && p.dead():
		panic(http.ErrAbortHandler)
	case err != nil && at.a.route == plain:
		http.Error(rw, "the body did not arrive", http.StatusBadRequest)
		return
	case err != nil:
		p.w.broke(at.id, 1, "the handler got a request that nobody made: %v", err)
		return
	}
	rn := p.begin(at, asked, rw, r)
	defer rn.over()
	p.step(at.id, at.n, handlerWorks)
	if err := rn.works(rn.before, rn.heeds); err != nil {
		p.w.note(at.id, "handler", "stops before the effect: %v", err)
		http.Error(rw, "stopped", http.StatusServiceUnavailable)
		return
	}
	if rn.refuses() || !rn.acts() {
		return
	}
	p.step(at.id, at.n, effectHappened)
	if err := rn.works(rn.after, rn.heeds); err != nil {
		p.w.note(at.id, "handler", "stops after the effect: %v", err)
		http.Error(rw, "stopped", http.StatusInternalServerError)
		return
	}
	if !rn.fails() {
		rn.answers()
	}
}

// begin draws what a run is to do, and notes that it runs.
func (p *process) begin(at *arrival, asked ask, rw http.ResponseWriter, r *http.Request) *run {
	w, a := p.w, at.a
	rn := &run{w: w, p: p, a: a, arrival: at, ask: asked, began: time.Now(), rw: rw, ctx: r.Context(), d: w.seed.roll("handler", at.id.with(at.n)...)}
	d := &rn.d
	if !w.calm.Load() {
		if end := w.plan.handler.choose(d); a.does(end) {
			rn.end = end
		}
		if d.chance(w.plan.slow) {
			rn.before = d.spread(time.Millisecond, w.plan.slowest)
		}
		if d.chance(w.plan.slow) {
			rn.after = d.spread(time.Millisecond, w.plan.slowest)
		}
	}
	rn.heeds = d.chance(w.plan.heeds)

	twin := false
	w.mu.Lock()
	for _, o := range a.runs {
		twin = twin || !o.ended && !o.p.dead()
	}
	rn.n = len(a.runs) + 1
	a.runs = append(a.runs, rn)
	at.began = rn.began
	a.doubts = a.doubts || rn.end == unknownBefore || rn.end == unknownAfter || rn.end == panicUnknown
	a.panics = a.panics || rn.end == panicBefore || rn.end == panicAfter || rn.end == panicUnknown || rn.end == streamsAndDies
	a.large = a.large || rn.end == large
	a.streamed = a.streamed || rn.end == streams || rn.end == streamsAndDies || rn.end == large && w.plan.maxResponse > 0
	if w.calm.Load() {
		w.requests = append(w.requests, held{weak.Make(r), at.id.callID, "server"})
	}
	w.mu.Unlock()

	w.note(at.id, "handler", "run %d begins: %v", rn.n, asked)
	if rn.end != deedOK {
		w.did(at.id, "handler", string(rn.end))
	}
	if twin && a.route != again && a.route != plain {
		w.broke(at.id, 1, "two handlers run for action %d at the same time", a.n)
	}
	if key, ok := oncehttp.KeyFromContext(rn.ctx); a.route != plain && (!ok || key != strings.Trim(at.key, `"`)) {
		w.broke(at.id, 1, "the handler sees the key %q, the caller sent %q", key, at.key)
	}
	return rn
}

// does reports whether the action's handler can end like that.
func (a *action) does(end deed) bool {
	switch end {
	case failReleased, unknownBefore:
		return a.route != plain // where nobody would listen
	case unknownAfter, panicUnknown, abandons:
		return a.route != plain && a.route != via
	case panicAfter, failAfter:
		return a.route != via // whose effect is another handler's
	}
	return true
}

func (rn *run) over() {
	w := rn.w
	w.mu.Lock()
	rn.ended = true
	rn.a.overran = rn.a.overran || time.Since(rn.began) >= w.plan.timeout
	w.mu.Unlock()
	w.note(rn.arrival.id, "handler", "run %d ends", rn.n)
}

// works passes time. A handler that heeds its context stops when that ends; none
// survives its process.
func (rn *run) works(d time.Duration, heeds bool) error {
	done := rn.ctx.Done()
	if !heeds {
		done = nil
	}
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-rn.p.gone:
		case <-done:
		}
	}
	if rn.p.dead() {
		panic(http.ErrAbortHandler)
	}
	if rn.a.route == plain {
		return nil
	}
	w, id := rn.w, rn.arrival.id
	w.mu.Lock()
	lost := rn.arrival.lost
	w.mu.Unlock()
	err, cause := rn.ctx.Err(), context.Cause(rn.ctx)
	over := time.Since(rn.began) >= w.plan.timeout
	switch {
	case err != nil && !over && !errors.Is(cause, oncehttp.ErrClaimLost):
		// The client's leaving is no reason.
		w.broke(id, everyAnswerHasAReason, "the handler's context ended although it had time and the claim: %v", cause)
	case err == nil && over:
		w.broke(id, everyAnswerHasAReason, "the handler's time is over, and its context goes on")
	case err == nil && !lost.IsZero() && lost.Before(time.Now()):
		w.broke(id, everyAnswerHasAReason, "the handler's claim is lost, and its context goes on")
	}
	if heeds && err != nil {
		return cause
	}
	return nil
}

// refuses ends a run that does nothing, if this is one.
func (rn *run) refuses() bool {
	rw, d := rn.rw, &rn.d
	switch rn.end {
	case panicBefore:
		panic("on purpose")
	case failReleased:
		oncehttp.Release(rn.ctx)
		http.Error(rw, saysReleased, pick(d, 500, 502, 503, 504))
	case busy:
		rw.Header().Set("Retry-After", strconv.Itoa(1+d.n(pick(d, 3, 60))))
		http.Error(rw, saysBusy, pick(d, 429, 503))
	case unauthorized:
		http.Error(rw, saysWho, http.StatusUnauthorized)
	case rejects:
		http.Error(rw, "no", pick(d, 400, 402, 404, 422))
	case unknownBefore:
		oncehttp.Unknown(rn.ctx)
		http.Error(rw, saysUnknown, http.StatusBadGateway)
	default:
		return false
	}
	return true
}

// acts makes the effect happen, in one of three ways. If it reports false the run
// has answered.
func (rn *run) acts() bool {
	switch {
	case rn.a.route == via:
		return rn.forwards()
	case rn.end == abandons:
		return rn.abandons()
	}
	if !rn.effect() {
		panic(http.ErrAbortHandler)
	}
	return true
}

// fails ends a run that fails after the effect, if this is one.
func (rn *run) fails() bool {
	switch rn.end {
	case panicAfter:
		panic("on purpose")
	case panicUnknown:
		oncehttp.Unknown(rn.ctx)
		panic("on purpose")
	case failAfter:
		http.Error(rn.rw, "something failed", pick(&rn.d, 500, 502, 503, 504))
	case unknownAfter:
		oncehttp.Unknown(rn.ctx)
		http.Error(rn.rw, saysUnknown, pick(&rn.d, 500, 502, 503, 504))
	default:
		return false
	}
	return true
}

// An effect is what must not happen twice.
type effect struct {
	at  time.Duration
	run *run
}

// effect makes the effect happen, unless the process is dead.
func (rn *run) effect() bool {
	w, a := rn.w, rn.a
	w.mu.Lock()
	if rn.p.dead() {
		w.mu.Unlock()
		return false
	}
	a.effects = append(a.effects, effect{time.Since(w.born), rn})
	n := len(a.effects)
	rn.receipt = fmt.Sprintf("%d-%d", a.n, n)
	w.mu.Unlock()
	w.note(rn.arrival.id, "handler", "THE EFFECT of action %d: %v", a.n, rn.ask)
	if n > 1 && a.route != again {
		w.broke(rn.arrival.id, 1, "the effect of action %d happened %d times", a.n, n)
	}
	return true
}

// abandons has the effect happen in another goroutine, as http.TimeoutHandler and
// many a database driver do, and reports whether it has happened before the
// context ended. If not, it says that it did not act, which it cannot know.
func (rn *run) abandons() bool {
	p, d := rn.p, &rn.d
	done := make(chan struct{})
	t := time.NewTimer(d.spread(p.w.plan.timeout/2, 2*p.w.plan.timeout))
	go func() {
		defer t.Stop()
		select {
		case <-t.C:
			if rn.effect() {
				close(done)
			}
		case <-p.gone:
		}
	}()
	select {
	case <-done:
		return true
	case <-rn.ctx.Done():
		if d.chance(0.5) {
			oncehttp.Release(rn.ctx)
		}
		rn.rw.Header().Set("Retry-After", "1")
		http.Error(rn.rw, "too late", http.StatusServiceUnavailable)
	case <-p.gone:
		panic(http.ErrAbortHandler)
	}
	return false
}

// forwards is what a handler does that has the work done by another server.
func (rn *run) forwards() bool {
	w := rn.w
	t := rn.p.out.do(rn.ctx, rn.a.inner, rn.ask, 100*rn.p.n+rn.n)
	if rn.p.dead() {
		panic(http.ErrAbortHandler)
	}
	w.note(rn.arrival.id, "handler", "the bank says: %v", t)
	nothing := saysNotAsked
	switch {
	case t.success != nil && t.whole:
		w.mu.Lock()
		rn.receipt = t.success.Receipt
		w.mu.Unlock()
		return true
	case t.certainty == oncehttp.CertaintyUnknown, t.success != nil,
		t.refusal != nil && t.refusal.Outcome == "unknown" && !t.refusal.RetrySameKey:
		w.mu.Lock()
		rn.a.doubts = true
		w.mu.Unlock()
		oncehttp.Unknown(rn.ctx)
		http.Error(rn.rw, saysUnknown, http.StatusBadGateway)
		return false
	case t.refusal != nil && t.refusal.RetrySameKey, t.status == 503, t.status == 429, t.status == 401:
		nothing = saysBankBusy
	case t.status != 0:
		http.Error(rn.rw, "the bank failed", http.StatusBadGateway)
		return false
	}
	oncehttp.Release(rn.ctx)
	http.Error(rn.rw, nothing, http.StatusServiceUnavailable)
	return false
}

// answers tells of the effect.
func (rn *run) answers() {
	rw, d := rn.rw, &rn.d
	s := success{Action: rn.a.n, Who: rn.ask.who, Amount: rn.ask.amount, Receipt: rn.receipt}
	if rn.end == large {
		s.Note = strings.Repeat("large ", 100+d.n(100))
	}
	b, _ := json.Marshal(s)
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("X-Receipt", rn.receipt)
	status := pick(d, 200, 201, 202)
	if rn.end != streams && rn.end != streamsAndDies {
		if d.chance(0.3) {
			rw.Header().Set("Content-Length", strconv.Itoa(len(b)))
		}
		rw.WriteHeader(status)
		rw.Write(b)
		return
	}
	half := 1 + d.n(len(b)-1)
	rw.WriteHeader(status)
	rw.Write(b[:half])
	http.NewResponseController(rw).Flush()
	rn.works(d.spread(time.Millisecond, 5*time.Second), false)
	rn.p.step(rn.arrival.id, rn.arrival.n, midStream)
	if rn.end == streamsAndDies {
		panic("on purpose")
	}
	rn.works(0, false)
	rw.Write(b[half:])
}

// A success is what a client gets for an effect.
type success struct {
	Action  int    `json:"action"`
	Who     string `json:"who"`
	Amount  int    `json:"amount"`
	Receipt string `json:"receipt"`
	Note    string `json:"note,omitempty"`
}
