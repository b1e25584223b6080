package oncehttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/oncehttp/oncehttp"
)

// waiting answers after the time that the request's header asks for, and never
// without one.
var waiting = roundTrip(func(r *http.Request) (*http.Response, error) {
	var answer <-chan time.Time
	if d, err := time.ParseDuration(r.Header.Get("Answer-After")); err == nil {
		answer = time.After(d)
	}
	select {
	case <-answer:
		return noBase{}.RoundTrip(r)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
})

// takes checks how long a call of tr takes.
func takes(t *testing.T, tr *oncehttp.Transport, method, url, answerAfter string, want time.Duration) {
	t.Helper()
	r := newRequest(t, context.Background(), method, url, "")
	if answerAfter != "" {
		r.Header.Set("Answer-After", answerAfter)
	}
	start := time.Now()
	resp, err := tr.RoundTrip(r)
	if got := time.Since(start); got != want {
		t.Errorf("%s %s: took %v, want %v", method, url, got, want)
	}
	if (err == nil) != (answerAfter != "") {
		t.Errorf("%s %s: got %v", method, url, err)
	}
	if err == nil {
		resp.Body.Close()
	}
}

func TestEveryAttemptHasItsOwnTimeout(t *testing.T) {
	oncehttp.BubblesShareTimers(t)
	synctest.Test(t, func(t *testing.T) {
		tr := &oncehttp.Transport{Base: waiting, Attempts: 1, AttemptTimeout: time.Minute, Breaker: &oncehttp.Breaker{Disabled: true}}
		var wg sync.WaitGroup
		for i := range 90 {
			// Some are answered when they are first, last or in the middle of those
			// that wait, and at times nobody waits.
			after := ""
			want := time.Minute
			if i%3 > 0 || i > 80 {
				want = time.Duration(i*i%59) * time.Second
				after = want.String()
			}
			wg.Go(func() { takes(t, tr, "GET", "http://a.example/", after, want) })
			time.Sleep(time.Duration(i*7%5) * time.Second)
		}
		wg.Wait()
		time.Sleep(time.Hour)
		takes(t, tr, "GET", "http://a.example/", "", time.Minute)
	})
}

// A probe is due before those that have started earlier.
func TestAShorterTimeoutComesFirst(t *testing.T) {
	oncehttp.BubblesShareTimers(t)
	synctest.Test(t, func(t *testing.T) {
		tr := &oncehttp.Transport{Base: waiting, Attempts: 1, AttemptTimeout: time.Minute,
			Breaker: &oncehttp.Breaker{Failures: 1, OpenFor: 10 * time.Second, ProbeTimeout: 5 * time.Second}}
		takes(t, tr, "GET", "http://down.example/", "", time.Minute)
		time.Sleep(15 * time.Second)
		var wg sync.WaitGroup
		wg.Go(func() { takes(t, tr, "GET", "http://slow.example/", "", time.Minute) })
		time.Sleep(time.Second)
		wg.Go(func() { takes(t, tr, "GET", "http://slow.example/", "50s", 50*time.Second) })
		time.Sleep(time.Second)
		takes(t, tr, "GET", "http://down.example/", "", 5*time.Second)
		wg.Wait()
	})
}

// A Transport may outlive a synctest bubble, and be in use outside of one at the same
// time. A timer of a bubble does not fire outside, nor after its end, and whoever
// stops it outside ends the program.
func TestTimeoutsOutliveABubble(t *testing.T) {
	const timeout = 200 * time.Millisecond
	tr := &oncehttp.Transport{Base: waiting, Attempts: 1, AttemptTimeout: timeout, Breaker: &oncehttp.Breaker{Disabled: true}}
	bubble := func() {
		synctest.Test(t, func(t *testing.T) {
			takes(t, tr, "GET", "http://a.example/", "0s", 0)
			takes(t, tr, "GET", "http://a.example/", "", timeout)
			takes(t, tr, "GET", "http://a.example/", "20ms", 20*time.Millisecond)
		})
	}
	outside := func() {
		start := time.Now()
		if _, err := tr.RoundTrip(newRequest(t, context.Background(), "GET", "http://a.example/", "")); err == nil {
			t.Error("outside: got no error")
		}
		if got := time.Since(start); got < timeout {
			t.Errorf("outside: took %v, want at least %v", got, timeout)
		}
	}
	bubble()
	bubble()
	outside()
	var wg sync.WaitGroup
	done := make(chan bool)
	go func() {
		defer close(done)
		outside()
	}()
	for over := false; !over; {
		bubble()
		select {
		case <-done:
			over = true
		default:
		}
	}
	wg.Go(outside)
	bubble()
	wg.Wait()
}

// Parallel tests may share a client, each in a bubble of its own.
func TestTimeoutsInManyBubbles(t *testing.T) {
	const timeout = time.Minute
	tr := &oncehttp.Transport{Base: waiting, Attempts: 1, AttemptTimeout: timeout, Breaker: &oncehttp.Breaker{Disabled: true}}
	for i := range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for j := range 50 {
					time.Sleep(time.Duration((i*j)%7) * time.Second)
					after := time.Duration((i+j)%59) * time.Second
					takes(t, tr, "GET", "http://a.example/", after.String(), after)
					if j%10 == 0 {
						takes(t, tr, "GET", "http://a.example/", "", timeout)
					}
				}
			})
		})
	}
}

// A blockingContext can be made to block whoever asks for its end.
type blockingContext struct {
	context.Context
	blocks atomic.Bool
	goOn   chan bool
}

func (c *blockingContext) Done() <-chan struct{} {
	if c.blocks.Load() {
		<-c.goOn
	}
	return c.Context.Done()
}

// Package context asks the caller's context when the attempt's ends. That holds up neither
// the call nor the timeouts of others.
func TestACallersContextHoldsUpNoTimeout(t *testing.T) {
	oncehttp.BubblesShareTimers(t)
	synctest.Test(t, func(t *testing.T) {
		tr := &oncehttp.Transport{Base: waiting, Attempts: 1, AttemptTimeout: time.Minute, Breaker: &oncehttp.Breaker{Disabled: true}}
		ctx := &blockingContext{Context: t.Context(), goOn: make(chan bool)}
		var wg sync.WaitGroup
		wg.Go(func() {
			start := time.Now()
			tr.RoundTrip(newRequest(t, ctx, "GET", "http://a.example/", ""))
			if got := time.Since(start); got != time.Minute {
				t.Errorf("the call itself took %v, want %v", got, time.Minute)
			}
		})
		time.Sleep(time.Second)
		ctx.blocks.Store(true)
		takes(t, tr, "GET", "http://a.example/", "", time.Minute)
		takes(t, tr, "GET", "http://a.example/", "2s", 2*time.Second)
		close(ctx.goOn)
		wg.Wait()
	})
}

// What holds an attempt lets go of it with its answer, though others still wait and the
// caller's context goes on.
func TestAnAnsweredAttemptIsForgotten(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		after, err := time.ParseDuration(r.Header.Get("Answer-After"))
		if err != nil {
			after = time.Hour
		}
		select {
		case <-time.After(after):
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	for name, base := range map[string]http.RoundTripper{"net/http's own": base, "another": waiting} {
		t.Run(name, func(t *testing.T) {
			tr := &oncehttp.Transport{Base: base, Attempts: 1, AttemptTimeout: time.Hour}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			waiting := 0
			waits := func() {
				wg.Go(func() { tr.RoundTrip(newRequest(t, ctx, "GET", srv.URL, "")) })
				for waiting++; oncehttp.AttemptsWaiting(tr) < waiting; {
					time.Sleep(time.Millisecond)
				}
			}
			freed := make(chan bool)
			call := func() {
				held := new([1 << 10]byte)
				runtime.SetFinalizer(held, func(any) { close(freed) })
				r := newRequest(t, context.WithValue(ctx, held, held), "GET", srv.URL, "")
				r.Header.Set("Answer-After", "1ms")
				resp, err := tr.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
			}
			waits()
			call()
			waits()
			for range 200 {
				runtime.GC()
				select {
				case <-freed:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
			t.Error("something holds on to the context of an attempt that was answered")
		})
	}
}

// The last attempt that waits stops the timer: nothing of a Transport at rest is left in
// the runtime.
func TestATransportAtRestIsForgotten(t *testing.T) {
	call := func() weak.Pointer[oncehttp.Transport] {
		tr := &oncehttp.Transport{Base: waiting, Attempts: 1, AttemptTimeout: time.Hour}
		r := newRequest(t, context.Background(), "GET", "http://a.example/", "")
		r.Header.Set("Answer-After", "0s")
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return weak.Make(tr)
	}
	// The runtime takes its time to drop timers that were stopped, unless they are many.
	const n = 500
	var trs []weak.Pointer[oncehttp.Transport]
	for range n {
		trs = append(trs, call())
	}
	runtime.GC()
	kept := 0
	for _, tr := range trs {
		if tr.Value() != nil {
			kept++
		}
	}
	if kept > n/2 {
		t.Errorf("something holds on to %d of %d Transports that nobody uses", kept, n)
	}
}
