package oncehttp_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A renewing store notes when each key was renewed.
type renewing struct {
	*oncehttp.MemoryStore
	mu sync.Mutex
	at map[string][]time.Time
}

func (s *renewing) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	s.mu.Lock()
	s.at[op.Key] = append(s.at[op.Key], time.Now())
	s.mu.Unlock()
	return s.MemoryStore.Renew(ctx, op, lease)
}

// Many runs start at different times and end in another order: each is renewed every
// third of its own lease for as long as it runs, and never again.
func TestEveryRunHasItsOwnHeartbeat(t *testing.T) {
	oncehttp.BubblesShareTimers(t)
	synctest.Test(t, func(t *testing.T) {
		const lease = 30 * time.Second
		store := &renewing{MemoryStore: &oncehttp.MemoryStore{}, at: make(map[string][]time.Time)}
		o := &oncehttp.Once{Store: store, Lease: lease, Logger: quiet()}
		var wg sync.WaitGroup
		began := make([]time.Time, 60)
		lasts := func(i int) time.Duration { return time.Duration(i*37%60)*700*time.Millisecond + time.Millisecond }
		for i := range began {
			began[i] = time.Now()
			wg.Go(func() {
				a, err := o.Do(t.Context(), oncehttp.Op{Key: fmt.Sprint(i)}, func(context.Context) (head, body []byte, err error) {
					time.Sleep(lasts(i))
					return nil, nil, nil
				})
				if err != nil || a.Kind != oncehttp.OutcomeRan {
					t.Errorf("run %d: %v, %v", i, a.Kind, err)
				}
			})
			time.Sleep(time.Duration(i%7) * time.Second)
		}
		wg.Wait()
		time.Sleep(10 * lease)
		for i := range began {
			got := store.at[fmt.Sprint(i)]
			if want := int(lasts(i) / (lease / 3)); len(got) != want {
				t.Errorf("run %d, which took %v, was renewed %d times, want %d", i, lasts(i), len(got), want)
			}
			for n, at := range got {
				if want := time.Duration(n+1) * lease / 3; at.Sub(began[i]) != want {
					t.Errorf("run %d was renewed after %v, want %v", i, at.Sub(began[i]), want)
				}
			}
		}
	})
}

// A Once may outlive a bubble.
func TestHeartbeatsOutliveABubble(t *testing.T) {
	store := &renewing{MemoryStore: &oncehttp.MemoryStore{}, at: make(map[string][]time.Time)}
	o := &oncehttp.Once{Store: store, Lease: 3 * time.Second, Logger: quiet()}
	do := func(key string, lasts time.Duration) {
		if _, err := o.Do(context.Background(), oncehttp.Op{Key: key}, func(context.Context) (head, body []byte, err error) {
			time.Sleep(lasts)
			return nil, nil, nil
		}); err != nil {
			t.Error(err)
		}
	}
	synctest.Test(t, func(*testing.T) {
		do("a", 4500*time.Millisecond) // the timer fires, and is set again
		do("b", 0)
	})
	do("c", 0)
	synctest.Test(t, func(*testing.T) { do("d", 4500*time.Millisecond) })
	if n := len(store.at["a"]); n != 4 {
		t.Errorf("got %d heartbeats, want 4", n)
	}
	if n := len(store.at["d"]); n != 4 {
		t.Errorf("got %d heartbeats in another bubble, want 4", n)
	}
}
