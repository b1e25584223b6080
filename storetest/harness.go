package storetest

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
)

// tb is what the suite needs of a *testing.T. The suite's own tests put a
// recorder in its place, to see what it says of a wrong store.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

// A suite runs cases.
type suite struct {
	new      func() oncehttp.Store
	reopen   func(oncehttp.Store) oncehttp.Store
	refuse   func(ctx context.Context)
	advance  func(time.Duration)
	unit     time.Duration
	patience time.Duration
}

// A kase is one thing to check.
type kase struct {
	name string
	rule rule // the one quoted when a call fails that should not
	run  func(*harness)
}

// run runs a case, and again with longer units if time passed too fast to
// judge.
func (s suite) run(t tb, k kase) {
	t.Helper()
	const tries = 5
	for range tries {
		if !s.try(t, k) {
			return
		}
		s.unit *= 2
	}
	t.Errorf("storetest: too slow to judge: with a Unit of %v the calls of the store still took longer than the time they had", s.unit/2)
}

func (s suite) try(t tb, k kase) (late bool) {
	t.Helper()
	h := &harness{suite: s, t: t, rule: k.rule, started: time.Now()}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	defer h.cancel()
	// New and Reopen may call t.Fatal, so they run here. The case has a
	// goroutine of its own, which it may end at any point.
	h.store = s.new()
	h.main = make(chan func())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				h.fail("storetest: panic: %v\n%s", p, debug.Stack())
			}
		}()
		k.run(h)
	}()
	for ended := false; !ended; {
		select {
		case f := <-h.main:
			f()
		case <-done:
			ended = true
		}
	}
	h.cancel()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if h.failure != "" {
		t.Errorf("%s", h.failure)
		return false
	}
	return h.late
}

// A harness is what a case works with. Its calls of the store are watched.
type harness struct {
	suite
	t       tb
	rule    rule
	store   oncehttp.Store
	keys    int // done with
	ctx     context.Context
	cancel  context.CancelFunc
	started time.Time
	main    chan func() // to be run by the test's own goroutine

	mu       sync.Mutex
	advanced time.Duration
	failure  string // the first one
	late     bool
	over     bool
	tokens   int
}

// u is n units of time.
func (h *harness) u(n int) time.Duration { return time.Duration(n) * h.unit }

// A long time is one that no case lives to see the end of.
func (h *harness) long() time.Duration { return h.u(100_000) }

// pass lets time pass.
func (h *harness) pass(d time.Duration) {
	h.advance(d)
	h.mu.Lock()
	h.advanced += d
	h.mu.Unlock()
}

// now is a time on the case's clock that is not behind the store's.
func (h *harness) now() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(time.Since(h.started), h.advanced)
}

// before ends the case as too slow to judge if it is later than it must be for
// what was just observed to mean anything.
func (h *harness) before(at time.Duration) {
	if h.now() >= at {
		h.mu.Lock()
		h.late = true
		h.mu.Unlock()
		runtime.Goexit()
	}
}

// fail records a failure; the case goes on.
func (h *harness) fail(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failure == "" && !h.over {
		h.failure = fmt.Sprintf(format, args...)
	}
}

// broken ends the case: the store broke a rule.
func (h *harness) broken(r rule, format string, args ...any) {
	h.fail("%s", message(r, fmt.Sprintf(format, args...)))
	runtime.Goexit()
}

func message(r rule, text string) string {
	return fmt.Sprintf("the store breaks %s:\n\t%s\n%s", r, strings.ReplaceAll(r.text(), "\n", "\n\t"), text)
}

// join waits for goroutines of the case and ends it if one of them failed.
func (h *harness) join(wg *sync.WaitGroup) {
	wg.Wait()
	h.mu.Lock()
	failed := h.failure != "" || h.late
	h.mu.Unlock()
	if failed {
		runtime.Goexit()
	}
}

// together runs f(0) … f(n-1) at the same time.
func (h *harness) together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer func() {
				if p := recover(); p != nil {
					h.fail("storetest: panic: %v\n%s", p, debug.Stack())
				}
			}()
			<-start
			f(i)
		}()
	}
	close(start)
	h.join(&wg)
}

// watch runs one call of the store and ends the calling goroutine if the call
// does not return, or panics.
func (h *harness) watch(method string, call func()) {
	returned := make(chan struct{})
	ok := false
	go func() {
		defer close(returned)
		defer func() {
			if p := recover(); p != nil {
				h.fail("%s", message(h.rule, fmt.Sprintf("%s panicked: %v\n%s", method, p, debug.Stack())))
			}
		}()
		call()
		ok = true
	}()
	limit := time.NewTimer(h.patience)
	defer limit.Stop()
	select {
	case <-returned:
		if !ok {
			h.fail("%s", message(h.rule, method+" ended its goroutine"))
			runtime.Goexit()
		}
	case <-limit.C:
		h.fail("%s", message(h.rule, fmt.Sprintf("%s has not returned for %v", method, h.patience)))
		h.cancel()
		runtime.Goexit()
	}
}

// What the calls of one action have in common.
func (h *harness) op(key string) oncehttp.Op {
	h.mu.Lock()
	h.tokens++
	n := h.tokens
	h.mu.Unlock()
	op := oncehttp.Op{Key: key, Token: oncehttp.NewToken()}
	for i := range op.Fingerprint {
		op.Fingerprint[i] = byte(n + i)
		op.Binding[i] = byte(n ^ i<<1)
	}
	return op
}

func (h *harness) claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (c oncehttp.Claim, err error) {
	s := h.store
	h.watch("Claim", func() { c, err = s.Claim(ctx, op, lease, keep) })
	return c, err
}

func (h *harness) takeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (c oncehttp.Claim, err error) {
	s := h.store
	h.watch("TakeOver", func() { c, err = s.TakeOver(ctx, op, lease, keep) })
	return c, err
}

func (h *harness) renew(ctx context.Context, op oncehttp.Op, lease time.Duration) (err error) {
	s := h.store
	h.watch("Renew", func() { err = s.Renew(ctx, op, lease) })
	return err
}

func (h *harness) complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) (err error) {
	s := h.store
	h.watch("Complete", func() { err = s.Complete(ctx, op, head, body, keep) })
	return err
}

func (h *harness) release(ctx context.Context, op oncehttp.Op) (err error) {
	s := h.store
	h.watch("Release", func() { err = s.Release(ctx, op) })
	return err
}

// The same, where the case says what must come of it.

func (h *harness) mustClaim(r rule, op oncehttp.Op, lease, keep time.Duration, want oncehttp.ClaimStatus, when string) oncehttp.Claim {
	c, err := h.claim(h.ctx, op, lease, keep)
	h.status(r, "Claim", when, c, err, want)
	return c
}

func (h *harness) mustTakeOver(r rule, op oncehttp.Op, lease, keep time.Duration, want oncehttp.ClaimStatus, when string) oncehttp.Claim {
	c, err := h.takeOver(h.ctx, op, lease, keep)
	h.status(r, "TakeOver", when, c, err, want)
	return c
}

func (h *harness) status(r rule, method, when string, c oncehttp.Claim, err error, want oncehttp.ClaimStatus) {
	switch {
	case err != nil:
		h.broken(r, "%s %s: got error %v, want %v", method, when, show(err), want)
	case c.Status != want:
		h.broken(r, "%s %s: got %v, want %v", method, when, c.Status, want)
	}
}

// must checks the error of Renew, Complete or Release.
func (h *harness) must(r rule, got, want error, format string, args ...any) {
	if !is(got, want) {
		h.broken(r, "%s: got error %v, want %v", fmt.Sprintf(format, args...), show(got), show(want))
	}
}
