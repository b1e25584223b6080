package redisstore_test

import (
	"context"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/redisstore"
)

// A watcher is a hook that a user of the client may have added, for traces.
type watcher struct{ see func(redis.Cmder) }

func (watcher) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w watcher) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		w.see(cmd)
		return next(ctx, cmd)
	}
}

func (w watcher) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			w.see(cmd)
		}
		return next(ctx, cmds)
	}
}

// hasLine makes calls until one went over a line.
func hasLine(t testing.TB, s *redisstore.Store) {
	t.Helper()
	soon(t, "there is a line", func() bool {
		mustClaim(t, s, newOp(), oncehttp.ClaimAcquired)
		all, _ := redisstore.Lines(s)
		return all > 0
	})
}

func TestALoneCallerSendsForHimself(t *testing.T) {
	t.Parallel()
	client := connect(t, services.Redis(t))
	var mu sync.Mutex
	seen := make(map[string]string)
	client.AddHook(watcher{func(cmd redis.Cmder) {
		mu.Lock()
		defer mu.Unlock()
		seen[cmd.Name()] = string(debug.Stack())
	}})
	s := open(t, client)
	hasLine(t, s)
	mu.Lock() // another line may just be opened
	clear(seen)
	mu.Unlock()
	op := newOp()
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	if err := s.Complete(ctx, op, []byte("head"), nil, time.Hour); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, name := range []string{"set", "evalsha"} {
		if !strings.Contains(seen[name], "TestALoneCallerSendsForHimself") {
			t.Errorf("%s was not sent by the test's goroutine, or not past the client's hooks:\n%s", name, seen[name])
		}
	}
}

func TestACallOverALineOutlivesAServerThatHangsForAWhile(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	s := open(t, connect(t, r))
	hasLine(t, s)
	r.Pause(t)
	time.AfterFunc(600*time.Millisecond, func() { r.Resume(t) })
	op := newOp()
	// Nobody knows whether the claim over the line came to be, and so it is asked again.
	if c := mustClaim(t, s, op, oncehttp.ClaimAcquired); c.Holder != 1 {
		t.Errorf("got holder %d, want 1", c.Holder)
	}
	mustClaim(t, s, newTwin(op), oncehttp.ClaimRunning)
	if err := s.Complete(ctx, op, []byte("head"), nil, time.Hour); err != nil {
		t.Fatal(err)
	}
	if c := mustClaim(t, s, newTwin(op), oncehttp.ClaimDone); string(c.Head) != "head" {
		t.Errorf("got head %q", c.Head)
	}
	hasLine(t, s)
}

func TestWhoSendsForHimselfLeavesInTime(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	s := open(t, connect(t, r))
	hasLine(t, s)
	r.Pause(t)
	defer r.Resume(t)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := s.Claim(short, newOp(), time.Minute, time.Hour)
	says(t, err, "redisstore: claim: the server has not answered; whether it did what it was asked is not known", "deadline exceeded")
	// 20 ms and a quarter of a second, and what a loaded machine takes.
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestAHookThatPanicsStopsNobodyElse(t *testing.T) {
	t.Parallel()
	client := connect(t, services.Redis(t))
	var panics atomic.Bool
	client.AddHook(watcher{func(redis.Cmder) {
		if panics.Load() {
			panic("hook")
		}
	}})
	s := open(t, client)
	hasLine(t, s)
	panics.Store(true)
	says(t, claimErr(s, newOp()), "redisstore: claim: ", "the client panicked: hook")
	panics.Store(false)
	hasLine(t, s)
}

func TestASmallPoolIsLeftAlone(t *testing.T) {
	t.Parallel()
	r := services.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: r.Addr(), PoolSize: 1})
	defer client.Close()
	s := open(t, client)
	for range 100 {
		op := newOp()
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		if _, err := s.Show(ctx, op.Key); err != nil {
			t.Fatal(err)
		}
		if err := client.Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if all, _ := redisstore.Lines(s); all > 0 {
		t.Errorf("%d lines over a pool of one connection", all)
	}
}

func TestLinesGoFromCallerToCallerWhoeverLeaves(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	s := open(t, connect(t, r))
	hasLine(t, s)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			large := make([]byte, 100<<10) // not for a line
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(5000))*time.Microsecond)
				op := newOp()
				if _, err := s.Claim(short, op, time.Minute, time.Hour); err == nil {
					s.Complete(short, op, nil, large[:i%10/9*len(large)], time.Hour)
				}
				cancel()
			}
		})
	}
	for range 3 {
		time.Sleep(150 * time.Millisecond)
		r.Pause(t)
		time.Sleep(150 * time.Millisecond)
		r.Resume(t)
	}
	close(stop)
	wg.Wait()
	soon(t, "nobody has a line, and nothing waits", func() bool {
		_, held := redisstore.Lines(s)
		return held == 0 && redisstore.Queued(s) == 0
	})
	hasLine(t, s)
}
