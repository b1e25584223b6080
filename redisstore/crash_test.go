package redisstore_test

import (
	"errors"
	"fmt"
	"slices"
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

func TestAServerThatIsKilledUnderLoad(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name   string
		opts   []services.RedisOption
		forget bool
	}{
		{"with appendfsync always nothing is lost", onDisk, false},
		{"without persistence what was recorded before is lost, and no more", []services.RedisOption{services.RedisPrivate()}, true},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			r := services.Redis(t, v.opts...)
			// No retries by the client: everything that goes wrong is seen here.
			client := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1, DialTimeout: time.Second, DialerRetries: 1})
			defer client.Close()
			l := load{t: t, store: open(t, client), forget: v.forget}
			l.run(r)
		})
	}
}

// A load is pairs of writers that want the same actions done, each once.
type load struct {
	t      *testing.T
	store  *redisstore.Store
	forget bool

	epoch   atomic.Int64 // odd while the server is down
	keys    atomic.Int64
	stopped atomic.Bool

	mu     sync.Mutex
	ran    map[string][]int64 // for each key, the epochs in which it was acquired
	done   map[string]int64   // for each key, the epoch in which its Claim began
	errors map[string]int
}

const crashes = 3

func (l *load) run(r *services.RedisServer) {
	l.ran, l.done, l.errors = map[string][]int64{}, map[string]int64{}, map[string]int{}
	var wg sync.WaitGroup
	for range 4 {
		// Two writers want each key, one after the other or at the same time.
		keys := make(chan string)
		wg.Go(func() {
			defer close(keys)
			for !l.stopped.Load() {
				k := fmt.Sprintf("crash %d", l.keys.Add(1))
				keys <- k
				l.do(k)
			}
		})
		wg.Go(func() {
			for k := range keys {
				l.do(k)
			}
		})
	}
	for range crashes {
		l.progress(150)
		l.epoch.Add(1)
		r.Kill(l.t)
		time.Sleep(50 * time.Millisecond)
		r.Start(l.t)
		l.epoch.Add(1)
	}
	l.progress(150)
	l.stopped.Store(true)
	wg.Wait()
	l.judge()
}

// progress waits until n more actions were begun.
func (l *load) progress(n int64) {
	until := l.keys.Load() + n
	soon(l.t, "progress", func() bool { return l.keys.Load() >= until })
}

// do has an action done, whatever it takes.
func (l *load) do(key string) {
	op := oncehttp.Op{Key: key, Token: oncehttp.NewToken()}
	for {
		epoch := l.epoch.Load()
		c, err := l.store.Claim(ctx, op, time.Minute, time.Hour)
		switch {
		case err != nil:
			l.failed(err)
		case c.Status == oncehttp.ClaimAcquired:
			l.mu.Lock()
			l.ran[key] = append(l.ran[key], epoch)
			l.mu.Unlock()
			l.complete(op, epoch)
			return
		case c.Status == oncehttp.ClaimDone:
			if string(c.Head) != "head of "+key {
				l.t.Errorf("got head %q of %q", c.Head, key)
			}
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (l *load) complete(op oncehttp.Op, epoch int64) {
	for {
		err := l.store.Complete(ctx, op, []byte("head of "+op.Key), []byte("body"), time.Hour)
		switch {
		case err == nil:
			l.mu.Lock()
			l.done[op.Key] = epoch
			l.mu.Unlock()
			return
		case errors.Is(err, oncehttp.ErrClaimLost):
			if !l.forget {
				l.t.Errorf("a claim was lost though nothing is forgotten")
			} else if now := l.epoch.Load(); now == epoch {
				l.t.Errorf("a claim was lost while the server ran")
			}
			return
		}
		l.failed(err)
		time.Sleep(2 * time.Millisecond)
	}
}

func (l *load) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errors[err.Error()]++
}

func (l *load) judge() {
	last := l.epoch.Load()
	lost := 0
	for key, epoch := range l.done {
		c, err := l.store.Claim(ctx, oncehttp.Op{Key: key, Token: oncehttp.NewToken()}, time.Minute, time.Hour)
		switch {
		case err != nil:
			l.t.Fatal(err)
		case c.Status == oncehttp.ClaimDone:
			if string(c.Head) != "head of "+key || string(c.Body) != "body" {
				l.t.Errorf("got head %q and body %q of %q", c.Head, c.Body, key)
			}
		case !l.forget:
			l.t.Errorf("%q was done and is %v, though nothing is forgotten", key, c.Status)
		case epoch == last:
			l.t.Errorf("%q was done since the last restart and is %v", key, c.Status)
		default:
			lost++
		}
	}
	twice := 0
	for key, epochs := range l.ran {
		if len(epochs) == 1 {
			continue
		}
		twice++
		slices.Sort(epochs)
		if !l.forget || slices.Compact(slices.Clone(epochs))[0] == last {
			l.t.Errorf("%q was acquired %d times, in epochs %v", key, len(epochs), epochs)
		}
	}
	clear := []string{"no server can be reached", "the connection broke", "it has just started", "has not answered"}
	for text, n := range l.errors {
		l.t.Logf("%4d × %s", n, text)
		if !strings.HasPrefix(text, "redisstore: ") || !slices.ContainsFunc(clear, func(part string) bool { return strings.Contains(text, part) }) {
			l.t.Errorf("an error that does not say what happened: %s", text)
		}
	}
	if len(l.errors) == 0 {
		l.t.Error("no call failed, so the server was not killed under load")
	}
	l.t.Logf("%d actions done, %d of them forgotten, %d run twice; %d crashes", len(l.done), lost, twice, crashes)
	if l.forget && lost == 0 {
		l.t.Error("nothing was forgotten, though the server had no disk")
	}
}

func TestAClusterWhoseNodeWasKilledRecovers(t *testing.T) {
	t.Parallel()
	nodes := services.RedisCluster(t, onDisk...)
	s := open(t, connectCluster(t, nodes))
	var ops []oncehttp.Op
	for range 30 {
		op := newOp()
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		ops = append(ops, op)
	}
	nodes[1].Kill(t)
	failed := 0
	for _, op := range ops {
		if err := s.Renew(ctx, op, time.Minute); err != nil {
			failed++
			if errors.Is(err, oncehttp.ErrClaimLost) {
				t.Errorf("Renew while a node is down: %v", err)
			}
		}
	}
	if failed == 0 || failed == len(ops) {
		t.Errorf("%d of %d calls failed while one of three nodes was down", failed, len(ops))
	}
	nodes[1].Start(t)
	for _, op := range ops {
		soon(t, "the cluster recovers", func() bool { return s.Complete(ctx, op, []byte("head"), nil, time.Hour) == nil })
	}
	for _, op := range ops {
		mustClaim(t, s, newTwin(op), oncehttp.ClaimDone)
	}
}

func TestAFailoverThatASentinelMakesLosesNothingThatReplicasKnew(t *testing.T) {
	t.Parallel()
	master := services.Redis(t, services.RedisPrivate())
	rep := replica(t, master)
	sentinel := services.RedisSentinel(t, master, 1)
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel.Addr()}, MaxRetries: -1})
	defer client.Close()
	name := redisstore.WithPrefix(prefix())
	careful := redisstore.New(client, quiet, name, redisstore.WithReplicas(1, 5*time.Second))
	defer careful.Close()
	var done []oncehttp.Op
	for range 20 {
		op := newOp()
		mustClaim(t, careful, op, oncehttp.ClaimAcquired)
		if err := careful.Complete(ctx, op, []byte("head"), nil, time.Hour); err != nil {
			t.Fatal(err)
		}
		done = append(done, op)
	}
	running := newOp()
	mustClaim(t, careful, running, oncehttp.ClaimAcquired)
	master.Kill(t)
	if err := careful.Complete(ctx, running, nil, nil, time.Hour); err == nil || errors.Is(err, oncehttp.ErrClaimLost) {
		t.Errorf("Complete while there is no master: got %v, want an error of the connection", err)
	}
	// The new master has no replica, so only a store that asks for none works.
	s := redisstore.New(client, quiet, name)
	defer s.Close()
	soon(t, "the replica is the master", func() bool { return s.Complete(ctx, running, []byte("head"), nil, time.Hour) == nil })
	for _, op := range append(done, running) {
		if c := mustClaim(t, s, newTwin(op), oncehttp.ClaimDone); string(c.Head) != "head" {
			t.Errorf("got head %q, want %q", c.Head, "head")
		}
	}
	says(t, claimErr(careful, newOp()), "only 0 of 1 replicas")
	if got := connect(t, rep).Do(ctx, "role").String(); !strings.Contains(got, "master") {
		t.Errorf("the replica's role is %s", got)
	}
}
