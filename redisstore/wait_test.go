package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/redisstore"
)

func TestAWaiterIsWokenByAnotherProcess(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name   string
		client func() redis.UniversalClient
	}{
		{"on a server", func() redis.UniversalClient { return connect(t, services.Redis(t)) }},
		{"on a cluster", func() redis.UniversalClient { return connectCluster(t, services.RedisCluster(t)) }},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			name := redisstore.WithPrefix(prefix())
			here, there := redisstore.New(v.client(), quiet, name), redisstore.New(v.client(), quiet, name)
			defer here.Close()
			defer there.Close()
			for what, act := range map[string]func(op oncehttp.Op) error{
				"Complete": func(op oncehttp.Op) error { return there.Complete(ctx, op, nil, nil, time.Hour) },
				"Release":  func(op oncehttp.Op) error { return there.Release(ctx, op) },
				"Renew 0":  func(op oncehttp.Op) error { return there.Renew(ctx, op, 0) },
			} {
				op := newOp()
				mustClaim(t, there, op, oncehttp.ClaimAcquired)
				woken := make(chan error, 3)
				for range cap(woken) {
					go func() { woken <- here.Wait(ctx, op.Key) }()
				}
				soon(t, "the record is flagged", func() bool { return redisstore.Flagged(there, op.Key) })
				if err := act(op); err != nil {
					t.Error(err)
				}
				for range cap(woken) {
					select {
					case err := <-woken:
						if err != nil {
							t.Errorf("%s: Wait: %v", what, err)
						}
					case <-time.After(30 * time.Second):
						t.Fatalf("%s: nobody was woken", what)
					}
				}
			}
			// A lease that lapses wakes, too, though nobody does anything.
			op := newOp()
			if _, err := there.Claim(ctx, op, 200*time.Millisecond, time.Hour); err != nil {
				t.Fatal(err)
			}
			patient, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			if err := here.Wait(patient, op.Key); err != nil {
				t.Errorf("Wait for a lease that lapses: %v", err)
			}
		})
	}
}

func TestNothingIsPublishedWhenNobodyWaits(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	s := open(t, connect(t, r))
	for range 20 {
		op := newOp()
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		if err := s.Complete(ctx, op, nil, nil, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if stats := r.Do(t, "info", "commandstats"); strings.Contains(stats, "cmdstat_publish") {
		t.Errorf("something was published:\n%s", stats)
	}
}

func TestASubscriptionThatBreaksIsMadeAgain(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	c := connect(t, r)
	name := prefix()
	here, there := redisstore.New(c, quiet, redisstore.WithPrefix(name)), redisstore.New(c, quiet, redisstore.WithPrefix(name))
	defer here.Close()
	defer there.Close()
	op := newOp()
	mustClaim(t, there, op, oncehttp.ClaimAcquired)
	ended := make(chan error, 1)
	go func() { ended <- here.Wait(ctx, op.Key) }()
	soon(t, "the record is flagged", func() bool { return redisstore.Flagged(there, op.Key) })
	r.Do(t, "client", "kill", "type", "pubsub")
	select {
	case <-ended: // with or without an error: whoever waits looks for himself
	case <-time.After(30 * time.Second):
		t.Fatal("Wait does not notice that its subscription is gone")
	}
	soon(t, "another subscription", func() bool {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		return errors.Is(here.Wait(short, op.Key), context.DeadlineExceeded)
	})
	go func() { ended <- here.Wait(ctx, op.Key) }()
	time.Sleep(50 * time.Millisecond)
	if err := there.Complete(ctx, op, nil, nil, time.Hour); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Wait after its subscription was made again: %v", err)
	}
}

func TestCloseEndsEveryWait(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	c := connect(t, r)
	s := open(t, c)
	var wg sync.WaitGroup
	var ops []oncehttp.Op
	errs := make(chan error, 10)
	for range cap(errs) {
		op := newOp()
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		ops = append(ops, op)
		wg.Go(func() { errs <- s.Wait(ctx, op.Key) })
	}
	for _, op := range ops {
		soon(t, "the record is flagged", func() bool { return redisstore.Flagged(s, op.Key) })
	}
	s.Close()
	wg.Wait()
	for range cap(errs) {
		says(t, <-errs, "the store is closed")
	}
	says(t, s.Wait(ctx, ops[0].Key), "the store is closed")
	soon(t, "the subscription is gone", func() bool {
		return !strings.Contains(r.Do(t, "client", "list", "type", "pubsub"), "addr=")
	})
	if err := s.Complete(ctx, ops[0], nil, nil, time.Hour); err != nil {
		t.Errorf("Complete after Close: %v", err)
	}
}

// Who waits goes and comes back all the time, as Once does.
func TestAChannelIsLeftWhenItsLastWaiterGoes(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	c := connect(t, r)
	s := open(t, c)
	op := newOp()
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				short, cancel := context.WithTimeout(ctx, time.Duration(1+i)*time.Millisecond)
				s.Wait(short, op.Key)
				cancel()
			}
		})
	}
	wg.Wait()
	soon(t, "no channels", func() bool { return r.Do(t, "pubsub", "channels") == "" })
	woken := make(chan error, 1)
	go func() { woken <- s.Wait(ctx, op.Key) }()
	soon(t, "the channel", func() bool { return r.Do(t, "pubsub", "channels") != "" })
	if err := s.Complete(ctx, op, nil, nil, time.Hour); err != nil {
		t.Error(err)
	}
	if err := <-woken; err != nil {
		t.Error(err)
	}
}
