package lab

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A seen is what a client's Transport has been seen to do to one host, as far as it
// binds what it does next. It is guarded by world.mu.
type seen struct {
	sends   int         // attempts
	healthy int         // answers that earn tokens
	log     []attempted // since the breaker last changed
	changed time.Time
	held    time.Time // until when the host wants nothing
	told    time.Time // when it said so
}

// An attempted is an attempt as the breaker should see it.
type attempted struct {
	start, end time.Time
	bad        bool // it may count as a failure
	surely     bool // it must
}

// host returns what was seen of a host. world.mu is held.
func (l *life) host(name string) *seen {
	s := l.hosts[name]
	if s == nil {
		s = new(seen)
		l.hosts[name] = s
	}
	return s
}

// attempted is the Transport's OnAttempt.
func (l *life) attempted(r *http.Request, try oncehttp.Attempt) {
	c := r.Context().Value(callKey{}).(*call)
	id := tryID{c.id, try.N}
	failed := try.Err != nil || try.Status >= 500 && try.Status != http.StatusNotImplemented
	gone, now := r.Context().Err(), time.Now()
	e := attempted{start: try.Start, end: now,
		bad:    failed && (try.Err == nil || gone == nil || gone == context.DeadlineExceeded && try.Duration >= time.Second),
		surely: failed && (try.Err == nil || gone == nil && c.a.body != bodyPipe)} // the host may have waited for the body
	w := l.c.w
	w.mu.Lock()
	s := l.host(r.URL.Host)
	s.log = append(s.log, e)
	if !failed && try.Status != http.StatusTooManyRequests {
		s.healthy++
	}
	if x := w.exchanges[id]; x != nil && try.Err == nil && (try.Status == http.StatusTooManyRequests || try.Status == http.StatusServiceUnavailable) {
		a := x.answer()
		if a != nil && a.retryAfter > 0 && !a.settled() && now.Add(a.retryAfter).After(s.held) {
			s.held, s.told = now.Add(a.retryAfter), now
		}
	}
	w.mu.Unlock()
	if try.Err != nil {
		w.note(id, "client", "%v: %v", try.Certainty, try.Err)
	} else {
		w.note(id, "client", "%v: %d", try.Certainty, try.Status)
	}
}

// breakerChanged is the Breaker's OnStateChange.
func (l *life) breakerChanged(origin string, from, to oncehttp.BreakerState) {
	w := l.c.w
	id := tryID{callID: callID{client: l.c.n}}
	name := strings.TrimPrefix(origin, "http://")
	bad := 0
	w.mu.Lock()
	s := l.host(name)
	for _, e := range s.log {
		if e.bad {
			bad++
		}
	}
	s.log, s.changed = nil, time.Now()
	w.tally["breaker: "+to.String()]++
	w.mu.Unlock()
	w.note(id, "client", "breaker for %s: %v, was %v", name, to, from)
	if from == oncehttp.BreakerClosed && bad < 5 {
		w.broke(id, everyAnswerHasAReason, "the breaker opens after %d failures", bad)
	}
}

// passes is called with each attempt that the breaker lets through.
func (l *life) passes(id tryID, name string) {
	w, now := l.c.w, time.Now()
	w.mu.Lock()
	s := l.host(name)
	early := s.held.Sub(now)
	if !s.told.Before(now) {
		early = 0 // at the same moment
	}
	row := 0
	for i := len(s.log) - 1; i >= 0 && s.log[i].surely && s.log[i].end.Before(now); i-- {
		if !s.log[i].start.After(s.changed) {
			continue // what began before the latest change no longer counts
		}
		if row > 0 && s.log[i+1].start.Sub(s.log[i].end) > time.Minute {
			break
		}
		row++
	}
	w.mu.Unlock()
	if l.t.HoldHost && early > 0 {
		w.broke(id, everyAnswerHasAReason, "an attempt is made %v before its host wants any", early)
	}
	if row >= 5 && !l.t.Breaker.Disabled && l.t.Breaker.State("http://"+name).State == oncehttp.BreakerClosed {
		w.broke(id, everyAnswerHasAReason, "the breaker is closed after %d failures in a row", row)
	}
}
