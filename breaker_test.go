package oncehttp

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A breakerCaller makes attempts to one host through a Breaker, in the virtual
// time of a bubble.
type breakerCaller struct {
	t *testing.T
	b *Breaker
	k hostKey

	attemptTimeout time.Duration
	unrepeatable   bool
}

func callerOf(t *testing.T, b *Breaker) *breakerCaller {
	return &breakerCaller{t: t, b: b, k: hostKey{"https", "api.example.com"}, attemptTimeout: time.Minute}
}

func (c *breakerCaller) ask() (ticket, error) {
	return c.b.allow(c.k, c.attemptTimeout, !c.unrepeatable, time.Now())
}

// start is ask where the breaker must not refuse.
func (c *breakerCaller) start() *ticket {
	c.t.Helper()
	tk, err := c.ask()
	if err != nil {
		c.t.Fatalf("refused: %v", err)
	}
	return &tk
}

// refused is ask where it must.
func (c *breakerCaller) refused() *OpenError {
	c.t.Helper()
	_, err := c.ask()
	var open *OpenError
	if !errors.As(err, &open) {
		c.t.Fatalf("not refused: %v", err)
	}
	return open
}

// make makes n attempts, one after the other, that all end with v at once.
func (c *breakerCaller) make(n int, v health) {
	c.t.Helper()
	for range n {
		c.start().done(v, time.Now())
	}
}

// trip opens the breaker and waits until it lets a probe through.
func (c *breakerCaller) trip() {
	c.t.Helper()
	c.make(max(c.b.Failures, 5), healthBad)
	c.waitOpen()
}

// waitOpen waits until an open breaker lets a probe through.
func (c *breakerCaller) waitOpen() {
	c.t.Helper()
	until, open := c.b.openUntil(c.k, time.Now())
	if !open {
		c.t.Fatal("not open")
	}
	time.Sleep(time.Until(until))
}

func (c *breakerCaller) state() BreakerState { return c.b.State(c.k.String()).State }

func (c *breakerCaller) wantState(want BreakerState) {
	c.t.Helper()
	if got := c.state(); got != want {
		c.t.Fatalf("the breaker is %v, want %v", got, want)
	}
}

// breakerTest runs f in a bubble with a caller of b.
func breakerTest(t *testing.T, b *Breaker, f func(t *testing.T, c *breakerCaller)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, callerOf(t, b)) })
}

func TestABreakerOpensAfterFiveFailuresInARow(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		c.make(4, healthBad)
		c.make(1, healthGood) // one success starts the row anew
		c.make(4, healthBad)
		c.wantState(BreakerClosed)
		c.make(1, healthBad)
		c.wantState(BreakerOpen)
		c.refused()
	})
}

func TestABreakerOpensWhenHalfOfAtLeastTenOutcomesAreFailures(t *testing.T) {
	for _, tt := range []struct {
		when     string
		b        *Breaker
		outcomes string // f, s or n
		want     BreakerState
	}{
		{"half of nine is not enough", &Breaker{}, "sfsfsfsff", BreakerClosed},
		{"half of ten is", &Breaker{}, "sfsfsfsfsf", BreakerOpen},
		{"less than half is not, however many", &Breaker{}, strings.Repeat("ssf", 500), BreakerClosed},
		{"neutral outcomes are no outcomes", &Breaker{}, "sfsfsfsff" + strings.Repeat("n", 100), BreakerClosed},
		{"nor do they dilute the others", &Breaker{}, strings.Repeat("n", 100) + "sfsfsfsfsf", BreakerOpen},
		{"only neutral outcomes never open it", &Breaker{}, strings.Repeat("n", 1000), BreakerClosed},
		{"neutral outcomes do not interrupt a row", &Breaker{}, "fnfnfnfnf", BreakerOpen},
		{"Failures is the length of the row", &Breaker{Failures: 2}, "ff", BreakerOpen},
		{"a long row is no matter until the ratio is", &Breaker{Failures: 20}, "fffffffff", BreakerClosed},
		{"which needs ten", &Breaker{Failures: 20}, "ffffffffff", BreakerOpen},
		{"or MinOutcomes", &Breaker{Failures: 20, MinOutcomes: 3}, "ssf" + "f", BreakerOpen},
		{"Ratio is the share", &Breaker{Ratio: 0.2}, "ssssssssff", BreakerOpen},
		{"and not less", &Breaker{Ratio: 0.2}, "sssssssssf", BreakerClosed},
		{"a Ratio of one needs all", &Breaker{Ratio: 1, Failures: 1000}, "s" + strings.Repeat("f", 999), BreakerClosed},
	} {
		breakerTest(t, tt.b, func(t *testing.T, c *breakerCaller) {
			for _, o := range tt.outcomes {
				c.make(1, map[rune]health{'s': healthGood, 'f': healthBad, 'n': healthNone}[o])
			}
			if got := c.state(); got != tt.want {
				t.Errorf("%s: after %.20s it is %v, want %v", tt.when, tt.outcomes, got, tt.want)
			}
		})
	}
}

func TestAttemptsInFlightDoNotCount(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		for range 1000 {
			c.start() // and never heard of again, as after a panic
		}
		for range 4 {
			c.make(1, healthBad)
			c.make(1, healthGood)
		}
		c.wantState(BreakerClosed)
		c.make(2, healthBad)
		c.wantState(BreakerOpen)
	})
}

func TestOutcomesLeaveTheWindow(t *testing.T) {
	breakerTest(t, &Breaker{Failures: 1000}, func(t *testing.T, c *breakerCaller) {
		// The default window at an AttemptTimeout of a minute is two minutes.
		c.make(9, healthBad)
		time.Sleep(119 * time.Second)
		c.make(50, healthGood) // 9 of 59
		time.Sleep(30 * time.Second)
		c.make(20, healthBad)         // 20 of 70, but 29 of 79 with the first
		time.Sleep(133 * time.Second) // the window, and the tenth by which it rolls
		c.make(9, healthBad)          // 9 of 9: the 20 have left
		c.wantState(BreakerClosed)
		c.make(1, healthBad)
		c.wantState(BreakerOpen)
	})
	breakerTest(t, &Breaker{Failures: 1000}, func(t *testing.T, c *breakerCaller) {
		c.make(1, healthNone) // time is cut in tenths from here
		time.Sleep(11 * time.Second)
		c.make(9, healthBad)
		time.Sleep(119 * time.Second)
		c.make(1, healthBad)
		c.wantState(BreakerOpen) // they are all still in it
	})
}

func TestALoneCallerOfAHostThatHangsOpensIt(t *testing.T) {
	for _, timeout := range []time.Duration{time.Second, time.Minute, time.Hour, 0} {
		breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
			c.attemptTimeout = timeout
			hang := timeout
			if timeout == 0 {
				hang = 24 * time.Hour // until somebody above loses patience
			}
			for range 5 {
				tk := c.start()
				time.Sleep(hang)
				tk.done(healthBad, time.Now())
				time.Sleep(8 * time.Second)
			}
			c.t.Logf("attempts that hang for %v", hang)
			c.wantState(BreakerOpen)
		})
	}
}

func TestFailuresADayApartAreNotInARow(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		for range 100 {
			c.make(1, healthBad)
			time.Sleep(24 * time.Hour)
		}
		c.wantState(BreakerClosed)
	})
}

func TestABreakerIsOpenForTenSecondsMoreOrLess(t *testing.T) {
	for _, tt := range []struct{ openFor, least, most time.Duration }{
		{0, 8 * time.Second, 12 * time.Second},
		{time.Minute, 48 * time.Second, 72 * time.Second},
		{1, 1, 1},
		{5, 4, 6},
		{math.MaxInt64, longest - longest/5, longest + longest/5},
	} {
		breakerTest(t, &Breaker{OpenFor: tt.openFor}, func(t *testing.T, c *breakerCaller) {
			var seen []time.Duration
			for range 500 {
				c.make(5, healthBad)
				until := c.refused().Until
				seen = append(seen, time.Until(until))
				if tt.openFor == math.MaxInt64 {
					break
				}
				time.Sleep(time.Until(until) - 1)
				if tt.openFor > 1 {
					c.refused()
				}
				time.Sleep(2 * time.Nanosecond)
				c.make(1, healthGood)
			}
			lo, hi := slices.Min(seen), slices.Max(seen)
			if lo < tt.least || hi > tt.most {
				t.Errorf("OpenFor %v: open for %v to %v, want %v to %v", tt.openFor, lo, hi, tt.least, tt.most)
			}
			if spread := tt.most - tt.least; len(seen) > 1 && hi-lo < spread*9/10 {
				t.Errorf("OpenFor %v: open for %v to %v, which is not drawn anew from %v to %v", tt.openFor, lo, hi, tt.least, tt.most)
			}
		})
	}
}

func TestAnOpenBreakerRecoversByOneProbe(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		c.trip()
		var probes atomic.Int32
		var probe atomic.Pointer[ticket]
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if tk, err := c.ask(); err == nil {
					probes.Add(1)
					probe.Store(&tk)
				}
			})
		}
		wg.Wait()
		if n := probes.Load(); n != 1 {
			t.Fatalf("%d of 100 callers were let through, want 1", n)
		}
		c.wantState(BreakerHalfOpen)
		if limit, ok := probe.Load().probe(); limit != time.Minute || !ok {
			t.Errorf("the probe has a limit of %v, %v; want the AttemptTimeout", limit, ok)
		}
		probe.Load().done(healthGood, time.Now())
		c.wantState(BreakerClosed)
		c.make(100, healthGood)
		if tk := c.start(); tk.limit != 0 {
			t.Error("an ordinary attempt is a probe")
		}
		c.make(4, healthBad) // nothing is left of the time before
		c.wantState(BreakerClosed)
	})
}

func TestAProbeThatFailsOpensTheBreakerAnew(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		c.trip()
		for range 10 {
			c.make(1, healthBad)
			c.wantState(BreakerOpen)
			if left := time.Until(c.refused().Until); left < 8*time.Second || left > 12*time.Second {
				t.Fatalf("open for %v, want 8s to 12s", left)
			}
			c.waitOpen()
		}
		c.make(1, healthGood)
		c.wantState(BreakerClosed)
	})
}

func TestAProbeWithoutAVerdictMakesRoomForTheNext(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		c.trip()
		for range 100 { // callers that give up
			tk := c.start()
			c.refused()
			tk.done(healthNone, time.Now())
			c.wantState(BreakerHalfOpen)
		}
		c.make(1, healthGood)
		c.wantState(BreakerClosed)
	})
}

func TestAProbeThatNeverReportsDoesNotWedgeTheBreaker(t *testing.T) {
	for _, tt := range []struct {
		how  string
		call func(c *breakerCaller)
	}{
		{"it hangs", func(c *breakerCaller) { c.start() }},
		{"it panics", func(c *breakerCaller) {
			defer func() { recover() }()
			c.start()
			panic("in flight")
		}},
		{"it calls Goexit", func(c *breakerCaller) {
			done := make(chan bool)
			go func() {
				defer close(done)
				c.start()
				runtime.Goexit()
			}()
			<-done
		}},
	} {
		t.Run(tt.how, func(t *testing.T) {
			breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
				c.trip()
				for range 3 {
					tt.call(c)
					if got := c.refused().Until; !got.Equal(time.Now().Add(time.Minute)) {
						t.Errorf("while the probe is out: until %v from now, want its limit of 1m", time.Until(got))
					}
					time.Sleep(time.Minute - 1)
					c.refused()
					c.wantState(BreakerHalfOpen)
					time.Sleep(1 * time.Nanosecond)
					// It counts as failed now: one more open period.
					if left := time.Until(c.refused().Until); left < 8*time.Second || left > 12*time.Second {
						t.Errorf("after its limit: open for %v, want 8s to 12s", left)
					}
					c.wantState(BreakerOpen)
					c.waitOpen()
				}
				c.make(1, healthGood)
				c.wantState(BreakerClosed)
			})
		})
	}
}

func TestAProbesLimit(t *testing.T) {
	for _, tt := range []struct {
		when                         string
		probeTimeout, attemptTimeout time.Duration
		want                         time.Duration
	}{
		{"is the AttemptTimeout", 0, time.Minute, time.Minute},
		{"also if that is short", 0, time.Second, time.Second},
		{"is 30s if there is none", 0, 0, 30 * time.Second},
		{"is 30s if it is off", 0, -1, 30 * time.Second},
		{"is ProbeTimeout if that is set", 5 * time.Second, time.Minute, 5 * time.Second},
		{"or if it is the longer", time.Hour, time.Minute, time.Hour},
	} {
		breakerTest(t, &Breaker{ProbeTimeout: tt.probeTimeout}, func(t *testing.T, c *breakerCaller) {
			c.attemptTimeout = tt.attemptTimeout
			c.trip()
			if got, ok := c.start().probe(); got != tt.want || !ok {
				t.Errorf("%s: got %v, %v; want %v", tt.when, got, ok, tt.want)
			}
		})
	}
}

func TestALateProbeCountsUnlessItHasBeenGivenUp(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		c.trip()
		late := c.start()
		time.Sleep(time.Hour) // and nobody has asked
		late.done(healthGood, time.Now())
		c.wantState(BreakerClosed)

		c.trip()
		late = c.start()
		time.Sleep(time.Hour)
		c.refused() // somebody has
		late.done(healthGood, time.Now())
		c.wantState(BreakerOpen)
		c.waitOpen()
		late.done(healthGood, time.Now())
		c.make(1, healthGood)
		c.wantState(BreakerClosed)
	})
}

func TestResultsFromBeforeAChangeOfStateDoNotCount(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		var changes []string
		c.b.OnStateChange = func(_ string, from, to BreakerState) { changes = append(changes, fmt.Sprint(from, " to ", to)) }
		var slow []*ticket
		for range 20 {
			slow = append(slow, c.start())
		}
		c.trip() // waits until a probe may go
		// gobreaker goes half-open when it is merely told of an old attempt.
		slow[0].done(healthGood, time.Now())
		slow[1].done(healthBad, time.Now())
		c.wantState(BreakerOpen)

		probe := c.start()
		slow[2].done(healthGood, time.Now())
		slow[3].done(healthBad, time.Now())
		slow[4].done(healthNone, time.Now())
		c.wantState(BreakerHalfOpen)
		c.refused() // nor do they make room for a second probe

		probe.done(healthGood, time.Now())
		for _, tk := range slow[5:] {
			tk.done(healthBad, time.Now())
		}
		c.wantState(BreakerClosed)
		c.make(4, healthBad)
		c.wantState(BreakerClosed)
		if got, want := strings.Join(changes, ", "), "closed to open, open to half-open, half-open to closed"; got != want {
			t.Errorf("got changes %s; want %s", got, want)
		}
	})
}

func TestATicketCountsOnce(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		tk := c.start()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { tk.done(healthBad, time.Now()) })
		}
		wg.Wait()
		c.wantState(BreakerClosed)
		c.make(4, healthBad)
		c.wantState(BreakerOpen)

		c.waitOpen()
		probe := c.start()
		probe.done(healthNone, time.Now())
		probe.done(healthGood, time.Now())
		c.wantState(BreakerHalfOpen)
		next := c.start()
		probe.done(healthGood, time.Now())
		c.wantState(BreakerHalfOpen)
		next.done(healthGood, time.Now())
		c.wantState(BreakerClosed)
	})
	var none ticket
	none.done(healthBad, time.Now()) // does nothing
	if _, ok := none.probe(); ok {
		t.Error("the zero ticket is a probe")
	}
}

func TestAnUnrepeatableRequestIsTheProbeOnlyIfNoBetterOneComes(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		post := callerOf(t, c.b)
		post.unrepeatable = true
		opened := time.Now()
		c.trip()
		period := time.Since(opened)
		until := post.refused().Until
		if left := time.Until(until); left != period {
			t.Errorf("refused for %v more, want for one more open period of %v", left, period)
		}
		c.make(1, healthBad) // a better one has come
		c.waitOpen()
		probe := c.start()
		probe.done(healthNone, time.Now()) // another, which says nothing
		post.refused()
		time.Sleep(time.Until(post.refused().Until) - 1)
		post.refused()
		time.Sleep(1 * time.Nanosecond)
		post.make(1, healthGood)
		c.wantState(BreakerClosed)
		post.make(1, healthGood) // nothing is held against it
	})
}

func TestHostsAreJudgedApart(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		c.make(5, healthBad)
		c.refused()
		for _, k := range []hostKey{{"http", c.k.host}, {"https", c.k.host + ":8443"}, {"https", "other.example.com"}} {
			other := callerOf(t, c.b)
			other.k = k
			other.make(10, healthGood)
		}
	})
}

func TestTransportsWithUnequalTimeoutsCanShareABreaker(t *testing.T) {
	breakerTest(t, &Breaker{Failures: 1000}, func(t *testing.T, c *breakerCaller) {
		c.attemptTimeout = time.Second
		c.make(9, healthGood)
		patient := callerOf(t, c.b)
		patient.attemptTimeout = 10 * time.Minute // its window is 20 minutes
		var hung []*ticket
		for range 10 {
			hung = append(hung, patient.start())
		}
		time.Sleep(10 * time.Minute)
		for _, tk := range hung {
			tk.done(healthBad, time.Now())
		}
		c.wantState(BreakerOpen)
	})
}

func TestOnStateChangeMayUseTheBreaker(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		var changes []string
		depth := 0
		c.b.OnStateChange = func(host string, from, to BreakerState) {
			if depth++; depth > 1 {
				t.Error("called again before it has returned")
			}
			defer func() { depth-- }()
			changes = append(changes, fmt.Sprintf("%s %v to %v", host, from, to))
			if s := c.b.State(host); s.State != to {
				t.Errorf("in the callback the host is %v, want %v", s.State, to)
			}
			c.b.Status()
			if to == BreakerOpen && len(changes) == 1 {
				// Change it again from here: told afterwards, not in between.
				other := callerOf(t, c.b)
				other.k.host = "other.example.com"
				other.make(5, healthBad)
				changes = append(changes, "end of the first")
			}
		}
		c.trip()
		c.make(1, healthGood)
		want := []string{
			"https://api.example.com closed to open",
			"end of the first",
			"https://other.example.com closed to open",
			"https://api.example.com open to half-open",
			"https://api.example.com half-open to closed",
		}
		if !slices.Equal(changes, want) {
			t.Errorf("got %q, want %q", changes, want)
		}
	})
}

func TestOnStateChangeIsCalledInOrderWhoeverCausesTheChange(t *testing.T) {
	breakerTest(t, &Breaker{OpenFor: time.Millisecond, Failures: 1}, func(t *testing.T, c *breakerCaller) {
		last := map[string]BreakerState{}
		running, told := 0, 0
		c.b.OnStateChange = func(host string, from, to BreakerState) { // unguarded: one at a time
			running++
			if running != 1 || last[host] != from {
				t.Errorf("%s: %v to %v after it was %v; %d at a time", host, from, to, last[host], running)
			}
			last[host] = to
			told++
			running--
		}
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				for range 500 {
					mine := callerOf(t, c.b)
					mine.k = nth(r.IntN(4))
					if tk, err := mine.ask(); err == nil {
						time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
						tk.done(health(r.IntN(3)), time.Now())
					} else {
						time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
					}
				}
			})
		}
		wg.Wait()
		for _, s := range c.b.Status() {
			if last[s.Host] != s.State {
				t.Errorf("%s is %v, and the last that was told is %v", s.Host, s.State, last[s.Host])
			}
		}
		if told < 100 {
			t.Errorf("only %d changes were told: nothing is tested", told)
		}
	})
}

func TestAPanicInOnStateChangeDoesNoHarm(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		told := 0
		c.b.OnStateChange = func(string, BreakerState, BreakerState) { told++; panic("in the callback") }
		mayPanic := func(f func()) {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not reach the caller")
				}
			}()
			f()
		}
		mayPanic(func() { c.make(5, healthBad) })
		c.wantState(BreakerOpen)
		c.waitOpen()
		mayPanic(func() { c.ask() })
		c.wantState(BreakerHalfOpen)
		time.Sleep(time.Minute) // that ticket is lost
		mayPanic(func() { c.ask() })
		c.wantState(BreakerOpen)
		c.b.OnStateChange = func(string, BreakerState, BreakerState) { told++ }
		c.waitOpen()
		c.make(1, healthGood)
		if told != 5 {
			t.Errorf("%d changes were told, want 5", told)
		}
	})
}

func TestAPanicInOnStateChangeLosesNoOtherChange(t *testing.T) {
	breakerTest(t, &Breaker{Failures: 1}, func(t *testing.T, c *breakerCaller) {
		var told []string
		c.b.OnStateChange = func(host string, _, to BreakerState) {
			if told = append(told, fmt.Sprint(host, " ", to)); len(told) == 1 {
				other := callerOf(t, c.b)
				other.k.host = "other.example.com"
				other.make(1, healthBad)
				panic("in the callback")
			}
		}
		func() {
			defer func() { recover() }()
			c.make(1, healthBad)
		}()
		c.waitOpen()
		c.start()
		want := []string{"https://api.example.com open", "https://other.example.com open", "https://api.example.com half-open"}
		if !slices.Equal(told, want) {
			t.Errorf("got %q, want %q", told, want)
		}
	})
}

func TestAHostBreakerThatIsForgottenAdmitsNothing(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		old := c.b.hosts.get(c.k, time.Now())
		if !old.leave(time.Now(), false) {
			t.Error("a breaker that was never used stays")
		}
		if a := old.allow(c.b, c.k, time.Minute, true, time.Now()); !a.gone || a.ticket.h != nil {
			t.Errorf("got %+v, want to be sent to the next breaker", a)
		}
	})
}

func TestAnOpenErrorSaysWhichHostAndUntilWhen(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		c.k.host = "api.example.com:8443"
		c.make(5, healthBad)
		open := c.refused()
		if !errors.Is(fmt.Errorf("wrapped: %w", open), ErrOpen) {
			t.Error("is not ErrOpen")
		}
		text := open.Error()
		for _, part := range []string{"https://api.example.com:8443", open.Until.Format("15:04:05.000")} {
			if !strings.Contains(text, part) {
				t.Errorf("%q does not say %q", text, part)
			}
		}
		// Nobody may take it for an answer of the server's (sony/gobreaker#30).
		for _, part := range []string{http.StatusText(429), http.StatusText(503), "too many", "429", "503"} {
			if strings.Contains(strings.ToLower(text), strings.ToLower(part)) {
				t.Errorf("%q says %q", text, part)
			}
		}
		if until, ok := c.b.openUntil(c.k, time.Now()); !ok || !until.Equal(open.Until) {
			t.Errorf("openUntil says %v, %v; the error %v", until, ok, open.Until)
		}
		if s := c.b.State(open.Host); s.State != BreakerOpen || !s.Until.Equal(open.Until) || s.Host != open.Host {
			t.Errorf("State says %+v; the error %v", s, open)
		}
	})
}

func TestLookingChangesNothing(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		told := 0
		if _, open := c.b.openUntil(c.k, time.Now()); open || len(c.b.hosts.m) != 0 {
			t.Error("a host nobody has asked for is open, or remembered now")
		}
		if s := c.b.State("https://api.example.com"); s != (BreakerStatus{Host: "https://api.example.com"}) {
			t.Errorf("a host nobody has asked for: got %+v", s)
		}
		c.b.State("::")
		c.trip()
		c.b.OnStateChange = func(string, BreakerState, BreakerState) { told++ }
		time.Sleep(time.Hour)
		for range 3 {
			if until, open := c.b.openUntil(c.k, time.Now()); open {
				t.Errorf("open for %v more, though a probe may go", time.Until(until))
			}
			if s := c.b.Status(); len(s) != 1 || s[0].State != BreakerOpen || !s[0].Until.Before(time.Now()) {
				t.Errorf("got %+v, want open until some time ago", s)
			}
		}
		if told != 0 {
			t.Errorf("looking has changed the state %d times", told)
		}
		c.start()
		if until, open := c.b.openUntil(c.k, time.Now()); !open || !until.Equal(time.Now().Add(time.Minute)) {
			t.Errorf("while a probe is out: got %v, %v; want its limit", until, open)
		}
	})
}

func TestADisabledBreakerRefusesNothing(t *testing.T) {
	b := &Breaker{Disabled: true, Failures: -1}
	c := callerOf(t, b)
	c.make(1000, healthBad)
	if n := len(b.Status()); n != 0 {
		t.Errorf("%d hosts are remembered, want none", n)
	}
}

func TestABreakerNamesTheFieldThatMakesNoSense(t *testing.T) {
	for _, tt := range []struct {
		b     *Breaker
		field string // "": none
	}{
		{&Breaker{}, ""},
		{&Breaker{Failures: 1, Ratio: 1, MinOutcomes: 1, Window: 2 * time.Minute, OpenFor: 1, ProbeTimeout: 1}, ""},
		{&Breaker{Window: math.MaxInt64, OpenFor: math.MaxInt64, ProbeTimeout: math.MaxInt64}, ""},
		{&Breaker{Failures: -1}, "Failures"},
		{&Breaker{Ratio: -0.1}, "Ratio"},
		{&Breaker{Ratio: 1.1}, "Ratio"},
		{&Breaker{Ratio: math.NaN()}, "Ratio"},
		{&Breaker{MinOutcomes: -1}, "MinOutcomes"},
		{&Breaker{Window: -1}, "Window"},
		{&Breaker{Window: 2*time.Minute - 1}, "Window"},
		{&Breaker{OpenFor: -1}, "OpenFor"},
		{&Breaker{ProbeTimeout: -1}, "ProbeTimeout"},
	} {
		_, err := callerOf(t, tt.b).ask()
		if tt.field == "" && err != nil || tt.field != "" && (err == nil || !strings.Contains(err.Error(), "Breaker."+tt.field+" ")) {
			t.Errorf("got %v, want %q named", err, tt.field)
		}
		if errors.Is(err, ErrOpen) {
			t.Errorf("%v is ErrOpen", err)
		}
	}
}

func TestExtremeTimesDoNotOverflow(t *testing.T) {
	for _, tt := range []struct{ window, attemptTimeout, want time.Duration }{
		{0, -1, time.Minute},
		{0, 30 * time.Second, time.Minute},
		{0, 31 * time.Second, 62 * time.Second},
		{0, math.MaxInt64, longest - 1},
		{time.Hour, time.Minute, time.Hour},
		{math.MaxInt64, time.Minute, longest},
	} {
		b := Breaker{Window: tt.window}
		if got := b.windowFor(tt.attemptTimeout); got != tt.want {
			t.Errorf("Window %v, AttemptTimeout %v: got %v, want %v", tt.window, tt.attemptTimeout, got, tt.want)
		}
	}
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		c.attemptTimeout = math.MaxInt64
		c.trip()
		c.make(1, healthGood)
		c.wantState(BreakerClosed)
	})
	breakerTest(t, &Breaker{Window: math.MaxInt64}, func(t *testing.T, c *breakerCaller) {
		c.trip()
		c.make(1, healthGood)
		c.wantState(BreakerClosed)
	})
}

func TestAnOpenBreakerIsNotForgotten(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		c.make(5, healthBad)
		idle := callerOf(t, c.b)
		idle.k.host = "idle.example.com"
		var inFlight []*ticket
		for range 5 {
			inFlight = append(inFlight, idle.start())
		}
		crowd := func() {
			for i := range 10_000 {
				other := callerOf(t, c.b)
				other.k = nth(i)
				other.make(1, healthGood)
			}
		}
		crowd()
		c.refused()
		c.waitOpen()
		probe := c.start()
		time.Sleep(30 * time.Second)
		crowd()
		c.refused()
		probe.done(healthGood, time.Now())
		c.wantState(BreakerClosed)
		crowd()
		if c.b.hosts.find(c.k) != nil || c.b.hosts.find(idle.k) != nil {
			t.Error("a host that is well and not used is remembered after 10000 others")
		}
		if n := len(c.b.hosts.m); n > hostsKept {
			t.Errorf("%d hosts are remembered, want at most %d", n, hostsKept)
		}
		// What was in flight when its host was forgotten says nothing now.
		told := 0
		c.b.OnStateChange = func(string, BreakerState, BreakerState) { told++ }
		for _, tk := range inFlight {
			tk.done(healthBad, time.Now())
		}
		idle.make(4, healthBad)
		idle.wantState(BreakerClosed)
		if told != 0 {
			t.Errorf("%d changes were told", told)
		}
	})
}

func TestABreakerAlwaysRecoversAndNeverSendsTwoProbes(t *testing.T) {
	for seed := range uint64(20) {
		breakerTest(t, &Breaker{Failures: 2, OpenFor: 50 * time.Millisecond, ProbeTimeout: 100 * time.Millisecond}, func(t *testing.T, c *breakerCaller) {
			c.attemptTimeout = 100 * time.Millisecond
			var mu sync.Mutex
			var out time.Time // the time until which a probe is out
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(i)))
					mine := callerOf(t, c.b)
					mine.attemptTimeout = c.attemptTimeout
					for range 100 {
						time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
						mine.unrepeatable = r.IntN(2) == 0
						tk, err := mine.ask()
						if err != nil {
							continue
						}
						limit, isProbe := tk.probe()
						if isProbe {
							mu.Lock()
							if time.Now().Before(out) {
								t.Errorf("seed %d: a second probe", seed)
							}
							out = time.Now().Add(limit)
							mu.Unlock()
						}
						time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
						if r.IntN(5) == 0 {
							continue // lost
						}
						if isProbe {
							mu.Lock()
							out = time.Time{}
							mu.Unlock()
						}
						tk.done(health(r.IntN(3)), time.Now())
					}
				})
			}
			wg.Wait()
			// Whatever state that has left it in, a healthy host gets through.
			for tries := 0; c.state() != BreakerClosed; tries++ {
				if tries > 10 {
					t.Fatalf("seed %d: still %v", seed, c.state())
				}
				if tk, err := c.ask(); err == nil {
					tk.done(healthGood, time.Now())
				}
				time.Sleep(time.Second)
			}
		})
	}
}

// Good outcomes are counted without a lock, and none may be lost.
func TestEveryGoodOutcomeCountsHoweverManyComeAtOnce(t *testing.T) {
	const each, callers = 50, 16
	breakerTest(t, &Breaker{Failures: math.MaxInt, Window: 10 * time.Second}, func(t *testing.T, c *breakerCaller) {
		c.attemptTimeout = time.Second
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range each {
					tk, err := c.ask()
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(100 * time.Millisecond) // so that they come in five of the window's tenths
					tk.done(healthGood, time.Now())
				}
			})
		}
		wg.Wait()
		c.make(each*callers-1, healthBad)
		c.wantState(BreakerClosed)
		c.make(1, healthBad)
		c.wantState(BreakerOpen)
	})
}

func TestAGoodOutcomeEndsTheRowOfFailuresWhileOthersAreUnderWay(t *testing.T) {
	breakerTest(t, &Breaker{MinOutcomes: math.MaxInt}, func(t *testing.T, c *breakerCaller) {
		for range 3 {
			early := c.start()
			c.make(4, healthBad)
			early.done(healthGood, time.Now())
			c.wantState(BreakerClosed)
		}
		c.make(5, healthBad)
		c.wantState(BreakerOpen)
	})
}

func TestAGoodOutcomeFromBeforeABreakerOpenedIsVoid(t *testing.T) {
	breakerTest(t, &Breaker{}, func(t *testing.T, c *breakerCaller) {
		var before []*ticket
		for range 100 {
			before = append(before, c.start())
		}
		c.trip()
		c.make(1, healthGood) // the probe
		c.wantState(BreakerClosed)
		c.make(5, healthGood)
		for _, tk := range before {
			tk.done(healthGood, time.Now())
		}
		c.make(4, healthBad)
		c.make(1, healthGood)
		c.make(1, healthBad)
		c.wantState(BreakerClosed)
		c.make(1, healthBad) // six of twelve
		c.wantState(BreakerOpen)
	})
}

func TestABreakerAllocatesOnlyForGobreaker(t *testing.T) {
	c := callerOf(t, &Breaker{})
	c.make(1, healthGood)
	if n := testing.AllocsPerRun(100, func() {
		tk, _ := c.ask()
		tk.done(healthGood, time.Now())
	}); n > 1 {
		t.Errorf("got %v allocations, want one", n)
	}
}

func BenchmarkBreaker(b *testing.B) {
	for _, hosts := range []int{1, 1000, 10_000} {
		keys := make([]hostKey, hosts)
		for i := range keys {
			keys[i] = nth(i)
		}
		b.Run(fmt.Sprint(hosts), func(b *testing.B) {
			b.ReportAllocs()
			var breaker Breaker
			var next atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				i := int(next.Add(7919))
				for ; pb.Next(); i++ {
					tk, err := breaker.allow(keys[i%hosts], time.Minute, true, time.Now())
					if err != nil {
						b.Fatal(err)
					}
					tk.done(healthGood, time.Now())
				}
			})
		})
	}
}
