package redisstore_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/redisstore"
)

func TestCallsThatWereGivenUpBeforeTheyWereSentDoNothing(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	c := connect(t, r)
	s := open(t, c)
	if err := s.Check(ctx); err != nil {
		t.Fatal(err)
	}
	r.Pause(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var unsent []oncehttp.Op
	for range 30 {
		time.Sleep(5 * time.Millisecond) // the first ones have all lanes to themselves
		wg.Go(func() {
			op := newOp()
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			if _, err := s.Claim(short, op, time.Minute, time.Hour); err != nil && strings.Contains(err.Error(), "not sent") {
				mu.Lock()
				defer mu.Unlock()
				unsent = append(unsent, op)
			}
		})
	}
	wg.Wait()
	r.Resume(t)
	if len(unsent) == 0 {
		t.Error("every call was sent to a server that did not answer")
	}
	for _, op := range unsent {
		if c := mustClaim(t, s, newTwin(op), oncehttp.ClaimAcquired); c.Holder != 1 {
			t.Errorf("got holder %d, want 1", c.Holder)
		}
	}
}

func TestWithReplicasNothingIsSaidThatNoReplicaKnows(t *testing.T) {
	t.Parallel()
	master := services.Redis(t, services.RedisPrivate())
	rep := replica(t, master)
	copied := connect(t, rep)
	name := prefix()
	s := redisstore.New(connect(t, master), quiet, redisstore.WithPrefix(name), redisstore.WithReplicas(1, time.Second))
	defer s.Close()
	for range 50 {
		op := newOp()
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		if got := copied.GetRange(ctx, name+op.Key, 1, 1).Val(); got != "R" {
			t.Errorf("after Claim the replica has state %q, want R", got)
		}
		if err := s.Complete(ctx, op, []byte("head"), nil, time.Hour); err != nil {
			t.Fatal(err)
		}
		if got := copied.GetRange(ctx, name+op.Key, 1, 1).Val(); got != "D" {
			t.Errorf("after Complete the replica has state %q, want D", got)
		}
	}
	done, running := newOp(), newOp()
	mustClaim(t, s, done, oncehttp.ClaimAcquired)
	mustClaim(t, s, running, oncehttp.ClaimAcquired)
	if err := s.Complete(ctx, done, nil, nil, time.Hour); err != nil {
		t.Fatal(err)
	}
	// WAIT promises something about writes only, so whoever learns what others have
	// written writes something too.
	for want, call := range map[string]func() error{
		"cmdstat_pexpire:calls=1,":  func() error { return claimErr(s, newTwin(done)) },
		"cmdstat_setrange:calls=1,": func() error { return s.Complete(ctx, done, nil, nil, time.Hour) },
	} {
		master.Do(t, "config", "resetstat")
		if err := call(); err != nil {
			t.Error(err)
		}
		if stats := master.Do(t, "info", "commandstats"); !strings.Contains(stats, want) {
			t.Errorf("want %s in\n%s", want, stats)
		}
	}
	rep.Pause(t)
	for range 2 { // from another process
		s := redisstore.New(connect(t, master), quiet, redisstore.WithPrefix(name), redisstore.WithReplicas(1, time.Second))
		defer s.Close()
		says(t, s.Complete(ctx, running, []byte("head"), nil, time.Hour), "only 0 of 1 replicas")
		s = redisstore.New(connect(t, master), quiet, redisstore.WithPrefix(name), redisstore.WithReplicas(1, time.Second))
		defer s.Close()
		says(t, claimErr(s, newTwin(done)), "only 0 of 1 replicas")
	}
	says(t, claimErr(s, newOp()), "claim", "only 0 of 1 replicas have acknowledged")
	rep.Resume(t)
	soon(t, "the replica catches up", func() bool { return s.Complete(ctx, running, nil, nil, time.Hour) == nil })
	if c := mustClaim(t, s, newTwin(running), oncehttp.ClaimDone); string(c.Head) != "head" {
		t.Errorf("got head %q, want that of the first Complete", c.Head)
	}
	if ttl := copied.PTTL(ctx, name+done.Key).Val(); ttl > time.Hour+10*time.Millisecond {
		t.Errorf("replays have made the record last %v, want an hour", ttl)
	}
}
