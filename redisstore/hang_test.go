package redisstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
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

// These tests stop a server as a debugger would (SIGSTOP): its connections stay,
// and nothing is answered. They are not parallel, because they look at what the
// whole process has: goroutines and memory.

func TestCallersOfAServerThatHangsGet503AndAreServedOnceItGoesOn(t *testing.T) {
	r := services.Redis(t, services.RedisPrivate())
	before := runtime.NumGoroutine()
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	s := redisstore.New(client, quiet)
	if err := s.Check(ctx); err != nil {
		t.Fatal(err)
	}
	const limit = 40
	redisstore.LimitQueue(s, limit)
	var ran atomic.Int64
	m := &oncehttp.Middleware{Store: s, Lease: 4500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)} // so a call of the store has 1.5s
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ran.Add(1)
		w.WriteHeader(http.StatusCreated)
	}))
	ask := func(i int) *httptest.ResponseRecorder {
		req := httptest.NewRequest("POST", "/refunds", strings.NewReader("{}"))
		req.Header.Set(oncehttp.Header, fmt.Sprintf("hang-%d", i))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w
	}

	r.Pause(t)
	const requests = 1000
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			if n := redisstore.Queued(s); n > limit {
				t.Errorf("%d calls wait, want at most %d", n, limit)
			}
			w := ask(i)
			var p struct{ Type string }
			json.Unmarshal(w.Body.Bytes(), &p)
			if w.Code != http.StatusServiceUnavailable || !strings.HasSuffix(p.Type, "store-unavailable") || w.Header().Get("Retry-After") == "" {
				t.Errorf("got %d %v %s, want a 503 that says that the store is unavailable, and when to come again", w.Code, w.Header(), w.Body)
			}
		})
	}
	soon(t, "a call is refused because the queue is full", func() bool {
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		_, err := s.Claim(short, newOp(), time.Minute, time.Hour)
		return err != nil && strings.Contains(err.Error(), "redisstore: claim: not sent: 40 calls already wait for the server, which does not answer")
	})
	wg.Wait()
	if n := ran.Load(); n > 0 {
		t.Errorf("the handler ran %d times without a claim", n)
	}

	r.Resume(t)
	soon(t, "a request is served again", func() bool { return ask(requests).Code == http.StatusCreated })
	for i := range requests {
		// A claim that was sent may still be held, until its lease has lapsed. And the
		// Middleware tries for a while to release what it may have claimed.
		soon(t, "a request that was refused is answered", func() bool {
			code := ask(i).Code
			return code == http.StatusCreated || code == http.StatusConflict
		})
	}
	if n := ran.Load(); n < requests/2 {
		t.Errorf("the handler ran for %d of %d keys", n, requests)
	}
	if err := m.Drain(ctx); err != nil {
		t.Error(err)
	}
	s.Close()
	client.Close()
	soon(t, "every goroutine has ended", func() bool { return runtime.NumGoroutine() <= before })
}

func TestACallThatWasGivenUpIsNeitherKeptNorSent(t *testing.T) {
	r := services.Redis(t, services.RedisPrivate())
	client := connect(t, r)
	name := prefix()
	s := redisstore.New(client, quiet, redisstore.WithPrefix(name))
	defer s.Close()
	if err := s.Check(ctx); err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	r.Pause(t)
	// 64 MB may wait, and four batches of 1 MB may be under way.
	const calls, refused = 100, 100 - 64 - 8
	body := make([]byte, 1<<20)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var unsent []oncehttp.Op
	crowded := 0
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	for range calls {
		wg.Go(func() {
			op := newOp()
			err := s.Complete(short, op, nil, body, time.Hour)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				t.Error("a server that hangs has recorded something")
			case strings.Contains(err.Error(), "already wait for the server"):
				if crowded++; crowded == refused {
					cancel()
				}
			case strings.Contains(err.Error(), "not sent"):
				unsent = append(unsent, op)
			}
		})
	}
	wg.Wait()
	if n := redisstore.Queued(s); n > 0 {
		t.Errorf("%d calls still wait whose callers have gone", n)
	}
	if crowded < refused || len(unsent) == 0 {
		t.Errorf("%d calls were refused and %d given up, of %d with 1 MB each", crowded, len(unsent), calls)
	}
	if now := heap(); now > before+32<<20 {
		t.Errorf("%d bytes are kept for callers that have gone", now-before)
	}
	r.Resume(t)
	for _, op := range unsent {
		// What was not sent did not overtake this claim, and does not follow it.
		if c := mustClaim(t, s, newTwin(op), oncehttp.ClaimAcquired); c.Holder != 1 {
			t.Errorf("got holder %d, want 1", c.Holder)
		}
	}
}

func TestAClusterThatHangsIsNotAskedByEverMoreGoroutines(t *testing.T) {
	nodes := services.RedisCluster(t, services.RedisPrivate())
	s := open(t, connectCluster(t, nodes))
	if err := s.Check(ctx); err != nil {
		t.Fatal(err)
	}
	for _, r := range nodes {
		r.Pause(t)
	}
	const calls = 300
	redisstore.LimitApart(s, calls/2)
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var crowded atomic.Int64
	for range calls {
		wg.Go(func() {
			if _, err := s.Claim(short, newOp(), time.Minute, time.Hour); err == nil {
				t.Error("a cluster that hangs has taken a claim")
			} else if strings.Contains(err.Error(), "already wait for the server") {
				if crowded.Add(1) == calls/2 {
					cancel()
				}
			}
		})
	}
	wg.Wait() // which takes for ever if nobody is refused
	// Those that wait for a connection give up with their callers; the others have
	// one, of which there are ten for each core and node.
	most := 10 * runtime.GOMAXPROCS(0) * len(nodes)
	soon(t, "calls whose callers have gone end", func() bool { return redisstore.Apart(s) <= most })
	for _, r := range nodes {
		r.Resume(t)
	}
	soon(t, "a claim after the cluster has gone on", func() bool { return claimErr(s, newOp()) == nil })
	soon(t, "every call has ended", func() bool { return redisstore.Apart(s) == 0 })
}
