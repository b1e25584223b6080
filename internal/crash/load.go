package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A load is the clients. Each takes an action that is due, or a new one, and asks
// for it once through the Transport; an action that was not answered is due again
// later. One in four is asked for by two clients at the same time, and one in four
// once more after it was answered.
type load struct {
	config *Config
	epochs *epochs
	client *http.Client
	idle   func()

	wg       sync.WaitGroup
	mu       sync.Mutex
	actions  []*action
	due      []errand
	open     int // errands that are due or under way
	finished bool
	faults   []string
	refusals map[string]int // answers that were none, by what they said
	firsts   []time.Duration
	slowest  time.Duration // the longest time until a client was told that the store cannot be reached
	longest  time.Duration // the longest request
	last     time.Time     // when something was last answered as done
	seen     int           // the victim's lives in which something new was done
}

// An action is something to be done once.
type action struct {
	name     string
	first    time.Time // when it was first asked for
	took     time.Duration
	done     *done // the first answer that says it was done
	unknowns int
	replays  int
	stuck    bool
}

// A done is an answer by which an action was done.
type done struct {
	body     string
	recorded bool // the victim said that repeats get it too
	began    time.Time
	ended    time.Time
}

// An errand is an action to ask for, not before its time.
type errand struct {
	a     *action
	at    time.Time
	since time.Time // for how long an answer has been wanted
	again bool      // there was one already
}

// maxOpen is how many errands there are at most while new actions are thought of:
// where nothing is answered the load must not grow without end. An errand waits for
// those that are older, so this many, at the rate at which processes get something
// done between two kills, is the longest time to an answer. More would keep no client busier.
const maxOpen = 50

func newLoad(c *Config, e *epochs) *load {
	base := c.Base
	idle := func() {}
	if base == nil {
		t := &http.Transport{MaxIdleConnsPerHost: c.clients()}
		base, idle = t, t.CloseIdleConnections
	}
	l := &load{
		config: c, epochs: e, idle: idle, refusals: make(map[string]int),
		client: &http.Client{Transport: &oncehttp.Transport{
			Base:           base,
			Attempts:       3,
			AttemptTimeout: 30 * time.Second,
			BackoffBase:    5 * time.Millisecond,
			BackoffCap:     20 * time.Millisecond,
			MaxRetryAfter:  time.Millisecond, // the client asks for something else meanwhile
			Breaker:        &oncehttp.Breaker{Disabled: true},
			Budget:         &oncehttp.Budget{Disabled: true},
			Logger:         slog.New(slog.DiscardHandler),
		}},
	}
	return l
}

func (l *load) start(ctx context.Context) {
	for range l.config.clients() {
		l.wg.Go(func() {
			for {
				e, wait, ok := l.next(ctx)
				switch {
				case !ok:
					return
				case e.a == nil:
					sleep(ctx, wait)
				default:
					l.ask(ctx, e)
				}
			}
		})
	}
}

// finish waits until every action is answered, or has waited for too long. No new
// ones are thought of.
func (l *load) finish() {
	l.mu.Lock()
	l.finished = true
	l.mu.Unlock()
	l.wait()
}

func (l *load) wait() {
	l.wg.Wait()
	l.idle()
}

func (l *load) counts() (asked, answered int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.actions {
		if a.done != nil || a.unknowns > 0 {
			answered++
		}
	}
	return len(l.actions), answered
}

func (l *load) lastDone() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// told returns what clients were told that was no answer.
func (l *load) told() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.refusals)
}

// next returns what to ask for, or how long there is nothing to do, or false if
// nothing is left.
func (l *load) next(ctx context.Context) (errand, time.Duration, bool) {
	const nap = 5 * time.Millisecond
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return errand{}, 0, false
	}
	now := time.Now()
	if l.finished || l.open >= maxOpen || rand.N(2) == 0 { // or else those that wait for the dead keep everybody busy
		if i := l.oldest(now); i >= 0 {
			e := l.due[i]
			l.due = slices.Delete(l.due, i, i+1)
			return e, 0, true
		}
	}
	if l.finished {
		return errand{}, nap, l.open > 0
	}
	if l.open >= maxOpen {
		return errand{}, nap, true
	}
	a := &action{name: fmt.Sprintf("action-%d", len(l.actions)+1), first: now}
	l.actions = append(l.actions, a)
	e := errand{a: a, since: now}
	l.open++
	if rand.N(4) == 0 { // somebody else wants it too
		l.open++
		l.due = append(l.due, e)
	}
	return e, 0, true
}

// oldest returns the place of the errand that is due and has waited longest, or -1:
// with another order one could be left behind for as long as there are kills.
func (l *load) oldest(now time.Time) int {
	oldest := -1
	for i, e := range l.due {
		if !e.at.After(now) && (oldest < 0 || e.since.Before(l.due[oldest].since)) {
			oldest = i
		}
	}
	return oldest
}

// ask asks for an action once.
func (l *load) ask(ctx context.Context, e errand) {
	began := time.Now()
	status, header, body, at, err := l.send(ctx, e.a.name)
	ended := time.Now()

	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, ended.Sub(began))
	answered := true
	switch kind := problem(status, header, body); {
	case ctx.Err() != nil:
	case err != nil:
		l.refusals["no answer"]++
		answered = false
	case status == http.StatusCreated:
		l.last = ended
		l.done(e.a, done{string(body), recorded(header), began, ended})
		if header.Get("Idempotent-Replayed") == "true" {
			e.a.replays++
		}
	case kind == "outcome-unknown":
		l.unknown(e.a, began)
	case kind == "in-progress", kind == "store-unavailable", kind == "store-full", kind == "rolled-back":
		if header.Get("Retry-After") == "" {
			l.fault("%s: a %d that does not say when to come back: %q", e.a.name, status, body)
		}
		l.refusals[fmt.Sprintf("%d %s", status, kind)]++
		if kind == "store-unavailable" {
			l.slowest = max(l.slowest, ended.Sub(began))
		}
		answered = false
	case status == http.StatusInternalServerError && l.config.Exactly && !recorded(header):
		l.refusals["500 and rolled back"]++ // the work failed, and its transaction with it
		answered = false
	default:
		l.fault("%s: an answer that is none: %d %q", e.a.name, status, body)
	}
	if answered {
		l.answered(e, ended)
		return
	}
	if ended.Sub(e.since) > l.config.bound() {
		if !e.a.stuck {
			l.fault("%s is stuck: not answered within %v; at last: %d %s, error %v", e.a.name, l.config.bound(), status, problem(status, header, body), err)
		}
		e.a.stuck = true
		l.open--
		return
	}
	e.at = ended.Add(10*time.Millisecond + rand.N(20*time.Millisecond))
	if at.After(e.at) {
		e.at = at
	}
	l.due = append(l.due, e)
}

// send sends one request for an action, and returns the answer and when to come
// back, if the server said so.
func (l *load) send(ctx context.Context, name string) (int, http.Header, []byte, time.Time, error) {
	req, err := http.NewRequestWithContext(oncehttp.WithAction(ctx, name), http.MethodPost, l.config.URL, strings.NewReader(name))
	if err != nil {
		return 0, nil, nil, time.Time{}, err
	}
	req.Header.Set("Content-Type", "text/plain")
	resp, err := l.client.Do(req)
	if err != nil {
		return 0, nil, nil, time.Time{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	return resp.StatusCode, resp.Header, body, oncehttp.Attempts(resp).RetryAt, err
}

// problem returns what kind of refusal an answer is, "" if none.
func problem(status int, header http.Header, body []byte) string {
	if status < 400 || header.Get("Content-Type") != "application/problem+json" {
		return ""
	}
	var p struct {
		Type   string
		Status int
	}
	if json.Unmarshal(body, &p) != nil || p.Status != status {
		return ""
	}
	return strings.TrimPrefix(p.Type, "urn:oncehttp:")
}

func recorded(h http.Header) bool {
	return h.Get("Idempotency-Status") == "executed" || h.Get("Idempotent-Replayed") == "true"
}

// answered notes that an errand has ended. Some are followed by another, to see the
// answer again in another life of the victim.
func (l *load) answered(e errand, now time.Time) {
	l.open--
	if e.again {
		return
	}
	e.a.took = max(e.a.took, now.Sub(e.a.first))
	if lives, began := l.epochs.since(); lives > l.seen && e.a.first.After(began) {
		l.seen = lives // the first new action since the victim serves again
		l.firsts = append(l.firsts, now.Sub(began))
	}
	if !l.finished && rand.N(4) == 0 {
		at := now.Add(rand.N(500 * time.Millisecond))
		l.open++
		l.due = append(l.due, errand{a: e.a, at: at, since: at, again: true})
	}
}

// done compares an answer with the first one.
func (l *load) done(a *action, d done) {
	first := a.done
	if first == nil {
		a.done = &d
		return
	}
	if first.body != d.body && !(l.config.Forgets && !l.epochs.same(first.began, d.ended)) {
		l.fault("%s was answered %q and then %q", a.name, first.body, d.body)
	}
	if d.recorded && (!first.recorded || d.body != first.body) {
		a.done = &d
	}
}

func (l *load) unknown(a *action, began time.Time) {
	a.unknowns++
	if a.done != nil && a.done.recorded && a.done.ended.Before(began) && !l.config.Forgets {
		l.fault("%s was answered, and unknown after that", a.name)
	}
}

// audit asks for every action once more.
func (l *load) audit(ctx context.Context) {
	work := make(chan *action)
	var wg sync.WaitGroup
	for range l.config.clients() {
		wg.Go(func() {
			for a := range work {
				l.again(ctx, a)
			}
		})
	}
	for _, a := range l.actions {
		if !a.stuck {
			work <- a
		}
	}
	close(work)
	wg.Wait()
	l.idle()
}

// again asks for an action until there is an answer.
func (l *load) again(ctx context.Context, a *action) {
	l.mu.Lock()
	l.open++
	l.mu.Unlock()
	now := time.Now()
	for e := (errand{a: a, since: now, again: true}); ctx.Err() == nil; {
		l.ask(ctx, e)
		l.mu.Lock()
		open := false
		for i := range l.due {
			if l.due[i].a == a {
				e, open = l.due[i], true
				l.due = slices.Delete(l.due, i, i+1)
				break
			}
		}
		l.mu.Unlock()
		if !open {
			return
		}
		sleep(ctx, time.Until(e.at))
	}
}

// maxFaults is how many faults are told: the first ones say what is wrong.
const maxFaults = 20

func (l *load) fault(format string, args ...any) {
	if len(l.faults) < maxFaults {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}
