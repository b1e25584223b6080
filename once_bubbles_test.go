package oncehttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// Parallel tests may share a Once or a Middleware, each in a synctest bubble. A timer of
// one of them that another, or what is outside, sets or stops ends the program, or fires
// for the wrong one.

// A keyedCall is one call of what is shared. Its store knows it by its context.
type keyedCall struct {
	asked func() // by the store, which does not answer when asked for the claim; nil: it does
	work  func()

	mu      sync.Mutex
	renewed []time.Time
}

type keyedCallKey struct{}

func keyedCallOf(ctx context.Context) *keyedCall { return ctx.Value(keyedCallKey{}).(*keyedCall) }

// An aware store looks at the context of every call, and remembers nothing: bubbles have
// different times.
type aware struct{ oncehttp.MemoryStore }

func (*aware) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	done := ctx.Done()
	if asked := keyedCallOf(ctx).asked; asked != nil {
		asked()
		<-done
		return oncehttp.Claim{}, ctx.Err()
	}
	return oncehttp.Claim{Status: oncehttp.ClaimAcquired, Fingerprint: op.Fingerprint, Binding: op.Binding, Holder: 1, Left: lease}, nil
}

func (*aware) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	ctx.Done()
	c := keyedCallOf(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewed = append(c.renewed, time.Now())
	return nil
}

func (*aware) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	ctx.Done()
	return nil
}

func (*aware) Release(ctx context.Context, op oncehttp.Op) error {
	ctx.Done()
	return nil
}

// sharers are what can be shared. What they return reports whether the work was done.
var sharers = map[string]func(lease time.Duration) func(*keyedCall) bool{
	"Once": func(lease time.Duration) func(*keyedCall) bool {
		o := &oncehttp.Once{Store: new(aware), Lease: lease, Logger: quiet()}
		return func(c *keyedCall) bool {
			ctx := context.WithValue(context.Background(), keyedCallKey{}, c)
			_, err := o.Do(ctx, oncehttp.Op{Key: "k"}, func(context.Context) (head, body []byte, err error) {
				c.work()
				return nil, nil, nil
			})
			return err == nil
		}
	},
	"Middleware": func(lease time.Duration) func(*keyedCall) bool {
		m := &oncehttp.Middleware{Store: new(aware), Lease: lease, Logger: quiet()}
		h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { keyedCallOf(r.Context()).work() }))
		return func(c *keyedCall) bool {
			ctx := context.WithValue(context.Background(), keyedCallKey{}, c)
			r := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", "k")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code == 200
		}
	},
}

// unanswered makes a call whose store does not answer, in a bubble, and checks how long it
// takes.
func unanswered(t *testing.T, do func(*keyedCall) bool, lease time.Duration, asked func()) {
	t.Helper()
	start := time.Now()
	if do(&keyedCall{asked: asked}) {
		t.Error("without an answer from the store the work was done")
	}
	if got, want := time.Since(start), 2*(lease/3); got != want { // the store is asked twice
		t.Errorf("a store that does not answer took %v, want %v", got, want)
	}
}

// works makes a call whose work takes a time, in a bubble, and checks when it is renewed.
func works(t *testing.T, do func(*keyedCall) bool, lease time.Duration, work func()) {
	t.Helper()
	c := &keyedCall{work: work}
	start := time.Now()
	if !do(c) {
		t.Error("the work was not done")
	}
	lasts := time.Since(start)
	if got, want := len(c.renewed), int(lasts/(lease/3)); got != want {
		t.Errorf("work that took %v was renewed %d times, want %d", lasts, got, want)
	}
	for i, at := range c.renewed {
		if got, want := at.Sub(start), time.Duration(i+1)*(lease/3); got != want {
			t.Errorf("renewal %d came after %v, want %v", i+1, got, want)
		}
	}
}

func TestAOnceInManyBubbles(t *testing.T) {
	const lease = 3 * time.Second
	for name, share := range sharers {
		t.Run(name, func(t *testing.T) {
			do := share(lease)
			for i := range 8 {
				t.Run("", func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						for j := range 30 {
							time.Sleep(time.Duration(i*j%7) * time.Second)
							lasts := time.Duration(i+j)%13*370*time.Millisecond + time.Millisecond
							works(t, do, lease, func() { time.Sleep(lasts) })
							if j%5 == 0 {
								unanswered(t, do, lease, func() {})
							}
						}
						time.Sleep(2 * lease) // until it no longer tells the store of claims without an answer
					})
				})
			}
		})
	}
}

// A bubble's clock stands while it waits for what is outside. So each can be held while
// the other goes on, whichever came first.
func TestAOnceInABubbleAndOutside(t *testing.T) {
	const lease = 300 * time.Millisecond
	for name, share := range sharers {
		outside := func(t *testing.T, do func(*keyedCall) bool) {
			start := time.Now()
			if do(&keyedCall{asked: func() {}}) {
				t.Error("outside: without an answer from the store the work was done")
			}
			if got, want := time.Since(start), 2*(lease/3); got < want {
				t.Errorf("outside: a store that does not answer took %v, want at least %v", got, want)
			}
			if !do(beating(t)) {
				t.Error("outside: the work was not done")
			}
		}
		// A bubble in which work and a store call wait while outside goes on.
		around := func(t *testing.T, do func(*keyedCall) bool, during func()) {
			begun, goOn := make(chan bool, 10), make(chan bool)
			hold := func() {
				begun <- true
				<-goOn
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				synctest.Test(t, func(t *testing.T) {
					var wg sync.WaitGroup
					wg.Go(func() {
						works(t, do, lease, func() {
							hold()
							time.Sleep(2*lease + time.Millisecond)
						})
					})
					wg.Go(func() { unanswered(t, do, lease, hold) })
					wg.Wait()
					time.Sleep(2 * lease)
				})
			})
			<-begun
			<-begun
			during()
			close(goOn)
			wg.Wait()
		}
		t.Run(name+", the bubble first", func(t *testing.T) {
			do := share(lease)
			around(t, do, func() { outside(t, do) })
		})
		t.Run(name+", outside first", func(t *testing.T) {
			do := share(lease)
			c := beating(t)
			beats := c.work
			c.work = func() {
				around(t, do, func() {})
				beats()
			}
			var wg sync.WaitGroup
			begun := make(chan bool, 10)
			wg.Go(func() {
				if do(&keyedCall{asked: func() { begun <- true }}) {
					t.Error("outside: without an answer from the store the work was done")
				}
			})
			<-begun
			if !do(c) {
				t.Error("outside: the work was not done")
			}
			wg.Wait()
		})
		t.Run(name+", one bubble around another", func(t *testing.T) {
			do := share(lease)
			around(t, do, func() { around(t, do, func() {}) })
			outside(t, do)
		})
	}
}

// beating returns a call whose work goes on until the claim was renewed twice.
func beating(t *testing.T) *keyedCall {
	c := new(keyedCall)
	c.work = func() {
		for range 1000 {
			c.mu.Lock()
			n := len(c.renewed)
			c.mu.Unlock()
			if n >= 2 {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error("outside: the claim was not renewed twice in ten seconds")
	}
	return c
}
