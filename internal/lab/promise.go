package lab

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// The promises. The first five are checked word by word:
//
//  1. An action's effect happened at most once, unless its route was declared
//     re-runnable.
//  2. It happened exactly once if any client was told success; and every success
//     answer for a key is equal in status and body.
//  3. Nobody was told that nothing happened (outcome none, or a typed refusal that
//     says so) when the effect did happen.
//  4. No key is stuck: after the longest lease and the retention everything is
//     done, free or expired.
//  5. No goroutine, connection, body or timer is left, no request was mutated, and
//     no more was sent than the budget allows.
//
// The sixth is what these rest on, as far as it shows from outside: every answer
// has a reason.
const everyAnswerHasAReason = 6

// hears judges what a client was told.
func (w *world) hears(c *call) {
	broke := func(promise int, text string, args ...any) { w.broke(tryID{callID: c.id}, promise, text, args...) }
	if c.success != nil {
		w.succeeds(c)
	}
	if c.refusal != nil {
		w.mu.Lock()
		effects := len(c.a.work().effects)
		why := w.reason(c)
		w.mu.Unlock()
		switch {
		case c.refusal.Outcome == "none" && effects > 0:
			broke(3, "outcome none, and the effect has happened")
		case c.refusal.Outcome == "applied" && effects == 0:
			broke(3, "outcome applied, and nothing has happened")
		case !why:
			broke(everyAnswerHasAReason, "%d %s, for no reason", c.status, c.refusal.kind())
		}
	}
	w.mu.Lock()
	tries, a := c.tries, c.a
	calm := a.causes == [causes]int{} && !a.overran
	w.mu.Unlock()
	if c.header.Get("Idempotent-Replayed") != "" {
		switch strings.TrimSpace(string(c.body)) {
		case saysUnknown:
			broke(everyAnswerHasAReason, "an unknown outcome is replayed: %d %q", c.status, c.body)
		case saysReleased, saysBusy, saysWho, saysNotAsked, saysBankBusy:
			if calm {
				broke(everyAnswerHasAReason, "a refusal to act is replayed: %d %q", c.status, c.body)
			}
		}
	}

	// Of its attempts.
	res, t := &c.result, c.l.t
	if len(res.Tries) != tries {
		broke(5, "%d attempts were made, %d are told of", tries, len(res.Tries))
		return
	}
	if tries > cmp.Or(t.Attempts, 3) {
		broke(5, "%d attempts, where %d are allowed", tries, t.Attempts)
	}
	worst := oncehttp.CertaintyNotSent
	for i := range res.Tries {
		worst = min(worst, w.tried(c, i))
	}
	if c.certainty > worst {
		broke(3, "the client is told %q of its request, and the worst of its attempts is %q", c.certainty, worst)
	} else if c.certainty != worst {
		broke(everyAnswerHasAReason, "the client is told %q, which is %q", c.certainty, worst)
	}
	w.intime(c)
	if e := (*oncehttp.Error)(nil); errors.As(c.err, &e) {
		if s := e.Error(); strings.Contains(s, "amount=") || a.name != "" && strings.Contains(s, a.name) {
			broke(everyAnswerHasAReason, "the error shows what it should not: %v", s)
		}
	}
}

// succeeds judges what a client was told of success.
func (w *world) succeeds(c *call) {
	a := c.a
	w.mu.Lock()
	effects := len(a.work().effects)
	a.answers = append(a.answers, c)
	if a.confirmed == 0 && (c.header.Get("Idempotent-Replayed") != "" || !a.streamed && c.header.Get("Idempotency-Status") != "") {
		a.confirmed = c.told
	}
	w.mu.Unlock()
	if effects == 0 {
		w.broke(tryID{callID: c.id}, 2, "the client is told success, and nothing happened")
	}
	if s := c.success; c.whole && (s.Action != a.n || s.Amount != c.ask.amount || s.Who != c.ask.who) {
		w.broke(tryID{callID: c.id}, 2, "the answer is for %d for %s, and not what was asked", s.Amount, s.Who)
	}
}

// reason tells whether there was one to refuse a client. w.mu is held.
func (w *world) reason(c *call) bool {
	a, bad := c.a, c.a.causes
	switch c.refusal.kind() {
	case "missing-key":
		return c.mode == forgotten
	case "key-reused":
		for k := range a.claims {
			if k.who == c.ask.who && k.amount != c.ask.amount {
				return true
			}
		}
		return a.granted
	case "principal-changed":
		for k := range a.claims {
			if k.who != c.ask.who {
				return true
			}
		}
		return a.granted
	case "in-progress":
		return (a.claims[c.ask] || a.granted) && (a.confirmed == 0 || c.began <= a.confirmed)
	case "outcome-unknown":
		if !a.claims[c.ask] && !a.granted || a.confirmed > 0 && c.began > a.confirmed {
			return false
		}
		if len(a.runs) == 0 {
			// A claim whose reply was lost is released, again and again.
			return bad[died] > 0 || bad[jumped] > 0 || bad[storeFailed] > 4
		}
		for _, rn := range a.runs {
			if !rn.ended && time.Since(rn.began) >= w.plan.timeout {
				return true
			}
		}
		return bad != [causes]int{} || a.overran || a.doubts
	case "store-unavailable":
		return bad[storeFailed] > 0
	case "store-full":
		return w.plan.maxRecords > 0 || w.plan.maxBytes > 0
	case "response-gone":
		return a.large && w.plan.maxResponse > 0 || w.plan.maxBytes > 0
	case "handler-failed":
		return a.panics
	}
	return false
}

// drained is how long a Transport may take to get rid of a response.
const drained = 51 * time.Millisecond

// intime judges when a client was told.
func (w *world) intime(c *call) {
	broke := func(text string, args ...any) {
		w.broke(tryID{callID: c.id}, everyAnswerHasAReason, text, args...)
	}
	res, t := &c.result, c.l.t
	if c.deadline > 0 && c.told > max(c.deadline, c.began)+drained {
		broke("the client is told %v after its deadline", c.told-c.deadline)
	}
	if len(res.Tries) == 0 {
		return
	}
	last := res.Tries[len(res.Tries)-1]
	end := last.Start.Add(last.Duration)
	waited := w.born.Add(c.told).Sub(end)
	switch stop := res.Stop; stop {
	case nil, oncehttp.ErrFinal, oncehttp.ErrUnsafe, oncehttp.ErrBody, oncehttp.ErrAttempts, oncehttp.ErrBudget, oncehttp.ErrDeadline:
		if waited > drained {
			broke("the client waited %v for nothing: %v", waited, stop)
		}
	}
	if res.Stop == oncehttp.ErrAttempts && len(res.Tries) < cmp.Or(t.Attempts, 3) {
		broke("no attempts are left after %d", len(res.Tries))
	}
	for _, try := range res.Tries {
		longest := max(cmp.Or(t.BackoffCap, 8*time.Second), cmp.Or(t.MaxRetryAfter, 30*time.Second)+time.Second)
		if try.Pause > longest {
			broke("a pause of %v, where %v is the longest", try.Pause, longest)
		}
		if c.deadline > 0 && try.Pause > 0 && !try.Start.Add(try.Duration+try.Pause).Before(w.born.Add(c.deadline)) {
			broke("a pause of %v would outlast the deadline", try.Pause)
		}
		limit := cmp.Or(t.AttemptTimeout, time.Minute) + time.Millisecond
		switch c.a.body { // it starts anew while the body moves
		case bodyNone:
		case bodyPipe:
			limit += limit + 12*longestRead
		default:
			limit += limit
		}
		if try.Duration > limit {
			broke("an attempt took %v, where %v is the longest", try.Duration, limit)
		}
	}
}

// tried judges an attempt, and returns its certainty.
func (w *world) tried(c *call, i int) oncehttp.Certainty {
	id := tryID{c.id, i + 1}
	broke := func(promise int, text string, args ...any) { w.broke(id, promise, text, args...) }
	try := c.result.Tries[i]
	w.mu.Lock()
	var x exchange
	if p := w.exchanges[id]; p != nil {
		x = *p
	}
	answer := x.answer()
	w.mu.Unlock()

	reached := x.delivered > 0 || len(x.arrivals) > 0
	switch {
	case try.Certainty == oncehttp.CertaintyNotSent && reached:
		broke(3, "an attempt that reached the server is %q: %v", try.Certainty, try.Err)
	case try.Certainty == oncehttp.CertaintyAnswered && (answer == nil || answer.status != try.Status):
		broke(everyAnswerHasAReason, "an attempt is answered %d, but not by the server", try.Status)
	case try.Certainty == oncehttp.CertaintyAnswered && try.Err != nil:
		broke(3, "an attempt without a whole answer is %q: %v", try.Certainty, try.Err)
	case try.Certainty != oncehttp.CertaintyNotSent && try.Conns == 0 && x.begun == 0 && isDial(try.Err):
		broke(everyAnswerHasAReason, "an attempt without a connection is %q: %v", try.Certainty, try.Err)
	}
	if x.delivered > 1 && (c.a.body != bodyNone || try.Conns < x.delivered) {
		broke(5, "one attempt was sent %d times, over %d connections", x.delivered, try.Conns)
	}
	if i+1 == len(c.result.Tries) {
		return try.Certainty
	}

	// It was made again. Was that right?
	keyed := c.mode != keyless || c.a.method == http.MethodPut || c.a.method == http.MethodDelete
	gap := c.result.Tries[i+1].Start.Sub(try.Start.Add(try.Duration))
	switch {
	case !keyed && try.Certainty != oncehttp.CertaintyNotSent:
		broke(1, "a request without a key was made again after an attempt that is %q", try.Certainty)
	case try.Err != nil || answer == nil:
	case answer.replayed:
		broke(everyAnswerHasAReason, "a request was made again after a replay")
	case answer.executed && answer.status >= 500:
		broke(everyAnswerHasAReason, "a request was made again after a failure that is recorded")
	case !retryable(answer.status) && !(answer.status == 409 && answer.retryAfter > 0):
		broke(everyAnswerHasAReason, "a request was made again after a %d", answer.status)
	case gap < answer.retryAfter:
		broke(everyAnswerHasAReason, "a request was made again after %v, where the server had said %v", gap, answer.retryAfter)
	}
	return try.Certainty
}

func retryable(status int) bool {
	switch status {
	case 408, 425, 429, 500, 502, 503, 504, 529:
		return true
	}
	return false
}

func isDial(err error) bool {
	op := (*net.OpError)(nil)
	return errors.As(err, &op) && op.Op == "dial"
}

// audit asks about every action, now that nothing fails any more.
func (w *world) audit() {
	c := newClient(w, auditor)
	c.start()
	for _, a := range w.actions {
		if !a.shared() {
			continue
		}
		t := c.ask(a, a.ask, 1, "")
		kind := t.refusal.kind()
		switch {
		case t.err != nil, kind == "in-progress", kind == "store-unavailable", kind == "outcome-unknown" && a.route == again:
			w.broke(tryID{callID: t.id}, 4, "the key of action %d is stuck: %v", a.n, t)
		case kind == "outcome-unknown" && len(a.answers) > 0 && a.causes[died] == 0 && !a.doubts:
			w.broke(tryID{callID: t.id}, 2, "clients were told that action %d succeeded, and it was never recorded", a.n)
		}
	}
	c.close()
}

// judge looks at the whole.
func (w *world) judge() {
	synctest.Wait() // net/http closes bodies when it comes to it
	w.mu.Lock()     // which nobody who could still write needs after this
	exchanges, calls, bodies := w.exchanges, w.calls, w.bodies
	w.mu.Unlock()
	for _, a := range w.actions {
		w.agree(a)
	}
	w.bounds(calls)
	for id, x := range exchanges {
		c := calls[id.callID]
		if id.try <= len(c.result.Tries) && c.result.Tries[id.try-1].Certainty == oncehttp.CertaintyNotSent && len(x.arrivals) > 0 {
			w.broke(id, 3, "an attempt that was told to be not sent has arrived since")
		}
	}
	for _, b := range bodies {
		if b.closed.Load() == 0 {
			w.broke(tryID{callID: b.id}, 5, "a request's body was not closed")
		}
	}
	w.stuck(oncehttp.RecordQuery{Status: oncehttp.ClaimRunning}, "is still running")
}

// agree looks at what all clients were told of an action.
func (w *world) agree(a *action) {
	if n := len(a.work().effects); len(a.answers) > 0 && (n == 0 || n > 1 && a.route != again) {
		w.broke(tryID{}, 2, "clients were told that action %d succeeded, and its effect happened %d times", a.n, n)
	}
	first := map[string]*call{} // by key
	for _, c := range a.answers {
		if !c.whole || !a.shared() {
			continue
		}
		if a.route == again && a.causes[unrecorded] > 0 && c.header.Get("Idempotent-Replayed") == "" &&
			c.header.Get("Idempotency-Status") == "" {
			continue // it could not be recorded, and did not say that it is
		}
		f := first[c.fresh]
		if f == nil {
			first[c.fresh] = c
		} else if f.status != c.status || string(f.body) != string(c.body) {
			w.broke(tryID{callID: c.id}, 2, "two success answers for one key differ: %d %q and %d %q", f.status, f.body, c.status, c.body)
		}
	}
}

// bounds compares what was sent with what may be.
func (w *world) bounds(calls map[callID]*call) {
	type line struct { // from a client's process to a host
		l    *life
		host string
	}
	retries := map[line]int{}
	for _, c := range calls {
		retries[line{c.l, c.a.host.name}] += max(0, c.tries-1)
	}
	const crumb = 0.01 // tokens trickle
	for to, n := range retries {
		id, t, s, lasted := tryID{callID: callID{client: to.l.c.n}}, to.l.t, to.l.host(to.host), to.l.lasted.Seconds()
		most := cmp.Or(t.Budget.Tokens, 10) + 0.2*lasted + 0.1*float64(s.healthy) + crumb
		if !t.Budget.Disabled && float64(n) > most {
			w.broke(id, 5, "%d retries to %s, where the budget allows %.1f", n, to.host, most)
		}
		most = float64(max(t.Burst, 1)) + float64(t.Limit)*lasted + crumb
		if t.Limit > 0 && float64(s.sends) > most {
			w.broke(id, 5, "%d attempts at %s, where the limit allows %.1f", s.sends, to.host, most)
		}
	}
}

// stuck looks for records that should not be there.
func (w *world) stuck(q oncehttp.RecordQuery, what string) {
	for _, h := range []*host{w.front, w.bank} {
		s, err := w.storage.Open(h.name, w.logger(tryID{}, "store", nil))
		if err != nil {
			w.broke(tryID{}, 4, "the store of %s cannot be opened: %v", h.name, err)
			continue
		}
		rs, err := s.List(context.Background(), q)
		s.Close()
		if err != nil {
			w.broke(tryID{}, 4, "the records of %s cannot be listed: %v", h.name, err)
		}
		for _, r := range rs {
			w.broke(tryID{}, 4, "a record of %s %s: %v, holder %d, %v old", h.name, what, r.Status, r.Holder, r.Age)
		}
	}
}

// unread looks for connections that wait for somebody to read or close a response.
func (w *world) unread() {
	for _, c := range w.clients {
		c.idle()
	}
	for _, h := range []*host{w.front, w.bank} {
		h.idle()
	}
	synctest.Wait()
	if n := w.net.Open(); n > 0 {
		w.broke(tryID{}, 5, "%d connections are open although all calls have ended", n)
	}
}

// dropStoppedTimers has the runtime let go of timers that were stopped. It keeps
// them, and all that they refer to, among the others of their bubble until they come
// to the front, or until one that was set to an earlier time has the others gone
// through (Go's runtime/time.go, timers.adjust).
func dropStoppedTimers() {
	done := make(chan struct{})
	t := time.AfterFunc(time.Hour, func() { close(done) }) // NewTimer's would not be among them before somebody waits
	t.Reset(time.Nanosecond)
	<-done
}

// left looks for what is left when everything has ended.
func (w *world) left(goroutines int) {
	synctest.Wait()
	if n := w.net.Open(); n > 0 {
		w.broke(tryID{}, 5, "%d connections are left", n)
	}
	if runtime.NumGoroutine() > goroutines {
		// Perhaps: one that is just ending is counted too.
		buf := make([]byte, 4<<20)
		_, ours, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), "synctest bubble ") // there may be others
		ours, _, _ = strings.Cut(ours, "]")
		var left []string
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "synctest bubble "+ours+"]") && !strings.Contains(g, "testing/synctest.") {
				left = append(left, g)
			}
		}
		if len(left) > 0 {
			w.broke(tryID{}, 5, "%d goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
		}
	}
	if w.seed%5 == 0 {
		// A timer that was not stopped holds on to what it is for. Nothing else
		// tells of it.
		dropStoppedTimers()
		runtime.GC()
		runtime.GC()
		for _, r := range w.requests {
			if r.p.Value() != nil {
				w.broke(tryID{callID: r.id}, 5, "something holds on to a request that has ended, at the %s: a timer?", r.where)
			}
		}
	}
	time.Sleep(w.plan.keeps() + w.plan.timeout + w.plan.lease)
	w.stuck(oncehttp.RecordQuery{}, "is left after its retention")
}
