package oncehttp

import (
	"context"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"
)

// timerRounds is how much the random tests of shared timers do.
func timerRounds() int {
	if os.Getenv("ONCEHTTP_SOAK") == "1" {
		return 50
	}
	return 1
}

// atRest fails the test unless nobody waits for s and its timer is stopped.
func atRest[W waiting](t *testing.T, s *sharedTimer[W]) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first != nil || s.last != nil || len(s.own) > 0 {
		t.Error("at rest: somebody still waits")
	}
	if s.fires != 0 || s.timer != nil && s.timer.Stop() {
		t.Error("at rest: the timer is set")
	}
}

// A bell rings once for each time that it was wound.
type bell struct {
	alarm alarm[*bell]
	rang  chan moment
}

func (b *bell) timeUp() { b.rang <- thisMoment() }

// Many wait for random times, and some of them not to the end: nobody is told early, or
// after he has gone in time, and all others are told.
func TestASharedTimerByChance(t *testing.T) {
	for name, stops := range map[string]bool{"stops at rest": true, "fires in vain": false} {
		t.Run(name, func(t *testing.T) {
			s := &sharedTimer[*bell]{stops: stops}
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(i)))
					var gone []*bell
					for range 100 * timerRounds() {
						d := time.Millisecond // most wait for the same time
						if r.IntN(3) == 0 {
							d = time.Duration(r.Int64N(int64(2 * d)))
						}
						b := &bell{rang: make(chan moment, 1)}
						from := thisMoment()
						s.add(&b.alarm, b, from, d)
						if r.IntN(2) == 0 {
							select {
							case at := <-b.rang:
								if got := at.since(from); got < d {
									t.Errorf("told after %v, want %v", got, d)
								}
							case <-time.After(time.Minute):
								t.Errorf("not told after %v", d)
							}
							continue
						}
						if r.IntN(2) == 0 {
							time.Sleep(time.Duration(r.Int64N(int64(2 * d))))
						}
						s.remove(&b.alarm)
						if thisMoment().since(from) < d {
							gone = append(gone, b)
						}
						s.remove(&b.alarm) // again, which is nothing
					}
					for _, b := range gone {
						if len(b.rang) > 0 {
							t.Error("told after he had gone")
						}
					}
				})
			}
			wg.Wait()
			time.Sleep(3 * time.Millisecond) // nobody waits for longer
			for range 1000 {
				s.mu.Lock()
				set := s.fires != 0
				s.mu.Unlock()
				if !set || stops {
					break
				}
				time.Sleep(time.Millisecond)
			}
			atRest(t, s)
		})
	}
}

// A trial is an attempt with a timeout, which is answered, or whose caller leaves, or
// neither. Zero: never.
type trial struct {
	timeout, answered, left time.Duration
	moved                   []time.Duration // when its body moves
}

func newTrial(r *rand.Rand, longest time.Duration) trial {
	d := func() time.Duration {
		// A few times only, so that much happens at the same time.
		return longest * time.Duration(1+r.IntN(20)) / 20
	}
	x := trial{timeout: d()}
	if r.IntN(2) == 0 {
		x.answered = d()
	}
	if r.IntN(3) == 0 {
		x.left = d()
	}
	// Never when a timeout is over, since then it could be either.
	for at := longest/40 + 1; r.IntN(3) > 0; at += longest*time.Duration(1+r.IntN(10))/20 + 1 {
		x.moved = append(x.moved, at)
	}
	return x
}

// late is when its timeout is over, if nothing comes before.
func (x *trial) late() time.Duration {
	var from time.Duration
	for _, at := range x.moved {
		if at < from+x.timeout {
			from = at
		}
	}
	return from + x.timeout
}

// run runs the trial. In a bubble everything happens at its very time.
func (x *trial) run(t *testing.T, tr *Transport, bubble bool) {
	ctx := context.Background()
	if x.left > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(x.left, cancel).Stop()
	}
	req, _ := http.NewRequestWithContext(ctx, "POST", "http://a.example/", nil)
	a := &attempt{c: &trail{req: req}, t: tr, up: new(upload), ends: true}
	defer a.end()
	start := thisMoment()
	for _, at := range x.moved {
		defer time.AfterFunc(at, func() { a.up.moved.Store(int64(thisMoment())) }).Stop()
	}
	a.bound(x.timeout, false, start)
	var answered <-chan time.Time
	if x.answered > 0 {
		answered = time.After(x.answered)
	}
	hung := time.NewTimer(time.Hour)
	if !bubble {
		hung.Reset(time.Minute)
	}
	defer hung.Stop()
	select {
	case <-a.Done():
	case <-answered:
	case <-hung.C:
		t.Errorf("%+v: the attempt does not end", *x)
	}
	now := thisMoment()
	got, late := now.since(start), a.settle(now)
	if took := thisMoment().since(start); late && took < x.timeout { // the time may have come after now
		t.Errorf("%+v: timed out after %v", *x, took)
	}
	if !bubble {
		return
	}
	want, others := x.late(), time.Duration(0)
	for _, d := range []time.Duration{x.answered, x.left} {
		if d > 0 && (others == 0 || d < others) {
			others = d
		}
	}
	mayBe, mustBe := others == 0 || want <= others, others == 0 || want < others
	if others > 0 {
		want = min(want, others)
	}
	if got != want {
		t.Errorf("%+v: ended after %v, want %v", *x, got, want)
	}
	if late && !mayBe || !late && mustBe {
		t.Errorf("%+v: timed out: %v", *x, late)
	}
}

// Who was removed in a bubble and waits again is told when that is due, and not before.
func TestAnAlarmOfABubbleCanBeSetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sharedTimer[*bell]
		b := &bell{rang: make(chan moment, 2)}
		start := thisMoment()
		s.add(&b.alarm, b, start, time.Second)
		s.remove(&b.alarm)
		s.add(&b.alarm, b, start, time.Minute)
		if took := (<-b.rang).since(start); took != time.Minute {
			t.Errorf("told after %v, want %v", took, time.Minute)
		}
		atRest(t, &s)
	})
}

// Attempts with random timeouts are answered, given up or kept alive at random: none ends
// early, none is forgotten, and with the last of them the timer stops.
func TestTimeoutsByChance(t *testing.T) {
	trials := func(t *testing.T, longest time.Duration, bubble bool) {
		for _, base := range []http.RoundTripper{nil, &foreignBase{}} { // their contexts differ
			tr := &Transport{Base: base}
			tr.init()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			var wg sync.WaitGroup
			for i := range 32 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(i)))
					for range 20 * timerRounds() {
						x := newTrial(r, longest)
						x.run(t, tr, bubble)
					}
				})
			}
			wg.Wait()
			atRest(t, &tr.timeouts)
		}
	}
	t.Run("outside", func(t *testing.T) { trials(t, 4*time.Millisecond, false) })
	t.Run("in a bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { trials(t, time.Second, true) })
	})
	t.Run("in a bubble, with one timer", func(t *testing.T) {
		BubblesShareTimers(t)
		synctest.Test(t, func(t *testing.T) { trials(t, time.Second, true) })
	})
}

type foreignBase struct{ http.RoundTripper }

// Who is done with a Middleware or a Transport is done with it at once: a timer that will
// fire in vain does not keep it, nor a store in memory and its records.
func TestASharedTimerKeepsNothing(t *testing.T) {
	once := func() weak.Pointer[Once] {
		o := &Once{Store: &MemoryStore{}}
		if _, err := o.Do(context.Background(), Op{Key: "key"}, func(context.Context) (head, body []byte, err error) { return nil, nil, nil }); err != nil {
			t.Fatal(err)
		}
		if o.beats.timer == nil {
			t.Fatal("the timer of first heartbeats is not set, so this proves nothing")
		}
		return weak.Make(o)
	}()
	transport := func() weak.Pointer[Transport] {
		tr := &Transport{Base: asking(func(r *http.Request) (*http.Response, error) {
			r.Context().Done() // asks for the timeout to be kept
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}}, nil
		})}
		r, err := http.NewRequest("POST", "http://a.example", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tr.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		if tr.timeouts.timer == nil {
			t.Fatal("the timer of timeouts is not set, so this proves nothing")
		}
		return weak.Make(tr)
	}()
	for range 100 {
		runtime.GC()
		if once.Value() == nil && transport.Value() == nil {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("still kept: the Once %t, the Transport %t", once.Value() != nil, transport.Value() != nil)
}

type asking func(*http.Request) (*http.Response, error)

func (f asking) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
