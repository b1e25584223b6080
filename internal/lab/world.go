package lab

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/oncehttp/oncehttp/internal/memnet"
)

// A world is one run of the laboratory: clients, a network, two servers with
// their stores, and a seed that decides what befalls them. It lives in a bubble.
type world struct {
	seed seed
	plan plan
	born time.Time
	net  memnet.Network

	storage Storage

	front   *host // what clients call
	bank    *host // what a handler of front calls in turn
	actions []*action
	clients []*client

	calm atomic.Bool // nothing fails any more

	mu        sync.Mutex // guards what follows, and everything below it
	events    []event
	broken    []string // promises
	exchanges map[tryID]*exchange
	ghosts    map[string]bool // the addresses that duplicates come from
	claims    map[string]int  // numbers of tokens
	calls     map[callID]*call
	bodies    []*body
	requests  []held
	jumps     int
	tally     map[string]int
}

// A held is a request of which nothing must be left when it has ended.
type held struct {
	p     weak.Pointer[http.Request]
	id    callID
	where string
}

// longest is how long the clients of a world may be at it, calls that nobody
// answers included.
const longest = 2 * time.Hour

func newWorld(s seed, storage func(Setting) Storage) *world {
	w := &world{
		seed: s, plan: newPlan(s), born: time.Now(),
		exchanges: map[tryID]*exchange{}, ghosts: map[string]bool{}, claims: map[string]int{}, calls: map[callID]*call{}, tally: map[string]int{},
	}
	w.storage = storage(Setting{w.plan.maxRecords, w.plan.maxBytes, w.logger(tryID{}, "store", nil)})
	w.front = newHost(w, "pay.example", 0)
	w.bank = newHost(w, "bank.example", 1)
	w.makeActions()
	for i := range w.plan.clients {
		w.clients = append(w.clients, newClient(w, i+1))
	}
	return w
}

// run lets the world live, and judges it.
func (w *world) run() {
	before := runtime.NumGoroutine()
	w.note(tryID{}, "", "%v", &w.plan)
	w.front.boot()
	w.bank.boot()
	for _, j := range w.plan.jumps {
		time.AfterFunc(j.at, func() { w.jump(j.by) })
	}
	var rollouts sync.WaitGroup
	for _, at := range w.plan.rollouts {
		rollouts.Go(func() {
			time.Sleep(at)
			w.front.rollout()
		})
	}
	var clients sync.WaitGroup
	for _, c := range w.clients {
		clients.Go(c.live)
	}
	done := make(chan struct{})
	go func() { clients.Wait(); close(done) }()
	stuck := time.NewTimer(longest)
	select {
	case <-done:
	case <-stuck.C:
		w.broke(tryID{}, 5, "the clients are not done after %v", longest)
		for _, c := range w.clients {
			c.kill("the laboratory gives up")
		}
		<-done
	}
	stuck.Stop()

	// Whatever was to fail has failed. Everything that runs ends, in time.
	w.calm.Store(true)
	rollouts.Wait()
	time.Sleep(w.plan.timeout + 2*w.plan.lease + longestDial)
	w.unread()
	for _, c := range w.clients {
		c.close()
	}
	w.audit()
	w.judge()
	w.front.retire()
	w.bank.retire()
	w.left(before)
	w.storage.Close()
}

// sleep waits, for as long as ctx lasts.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
