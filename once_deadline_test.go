package oncehttp_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// claiming is a store whose Claim is a function.
type claiming struct {
	oncehttp.MemoryStore
	claim func(ctx context.Context) error
}

func (c *claiming) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return oncehttp.Claim{}, c.claim(ctx)
}

func doNothing(context.Context) (head, body []byte, err error) { return nil, nil, nil }

func TestEveryStoreCallEndsAtItsOwnDeadline(t *testing.T) {
	oncehttp.BubblesShareTimers(t)
	synctest.Test(t, func(t *testing.T) {
		const lease, patience = 3 * time.Second, time.Second // a third of the lease
		var mu sync.Mutex
		var took []time.Duration
		s := &claiming{claim: func(ctx context.Context) error {
			began := time.Now()
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
			return ctx.Err()
		}}
		o := &oncehttp.Once{Store: s, Lease: lease, Logger: quiet()}
		var wg sync.WaitGroup
		const calls = 20
		for i := range calls {
			time.Sleep(70 * time.Millisecond)
			wg.Go(func() {
				_, err := o.Do(t.Context(), oncehttp.Op{Key: fmt.Sprint(i)}, doNothing)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want a deadline that was exceeded", err)
				}
			})
		}
		wg.Wait()
		if len(took) != 2*calls { // each claim is asked for twice
			t.Errorf("got %d store calls, want %d", len(took), 2*calls)
		}
		for _, d := range took {
			if d != patience {
				t.Errorf("a store call ended after %v, want %v", d, patience)
			}
		}
		o.Drain(t.Context())
	})
}

func TestAContextMadeOfAStoreCallsEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran, stopped := make(chan bool, 10), false
		s := &claiming{claim: func(ctx context.Context) error {
			if _, ok := ctx.(interface {
				AfterFunc(func()) func() bool
			}); !ok {
				t.Error("a store call's context has no AfterFunc, so its children need goroutines")
			}
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			context.AfterFunc(ctx, func() { ran <- true })
			stop := context.AfterFunc(ctx, func() { stopped = true })
			if !stop() || stop() {
				t.Error("AfterFunc's stop: want true, and then false")
			}
			<-child.Done()
			if child.Err() != context.DeadlineExceeded {
				t.Errorf("the child ended with %v, want %v", child.Err(), context.DeadlineExceeded)
			}
			context.AfterFunc(ctx, func() { ran <- true })
			return child.Err()
		}}
		o := &oncehttp.Once{Store: s, Logger: quiet()}
		o.Do(t.Context(), oncehttp.Op{Key: "k"}, doNothing)
		o.Drain(t.Context())
		synctest.Wait()
		if len(ran) != 4 || stopped { // two claims
			t.Errorf("got %d functions that ran, and a stopped one that did: %v; want 4, false", len(ran), stopped)
		}
	})
}
