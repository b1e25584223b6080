// Package storm is a laboratory for outages: many clients, one Transport each,
// call one service that fails for a while, and one that does not. Clients,
// servers and what is between them are the real net/http over a network in
// memory; only time is virtual, in a bubble of testing/synctest. So ten minutes
// of a thousand clients take seconds, and a pause is never shortened by a slow
// machine.
//
// `make storm` compares this library with others and draws what happens.
package storm

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp/internal/memnet"
)

// A Kind is a way to fail.
type Kind int

const (
	// None is a service that does not fail.
	None Kind = iota
	// Down answers nothing but 503, at once.
	Down
	// Slow takes twenty times as long for everything, so it can do a twentieth.
	Slow
	// BrownOut can do half.
	BrownOut
)

// An Outage is what happens to the service.
type Outage struct {
	Kind       Kind
	RetryAfter time.Duration // what every 503 asks for; 0: it asks for nothing
}

// Outages are all that are compared. Ten seconds are the period of the clients.
var Outages = []Outage{
	{Down, 0}, {Down, 10 * time.Second},
	{Slow, 0}, {Slow, 10 * time.Second},
	{BrownOut, 0}, {BrownOut, 10 * time.Second},
}

// Name is the outage's name in files.
func (o Outage) Name() string {
	name := []string{"none", "down", "slow", "brown-out"}[o.Kind]
	if o.RetryAfter > 0 {
		name += "-retry-after"
	}
	return name
}

// Title is the outage's name for readers.
func (o Outage) Title() string {
	title := []string{"No outage", "Hard down", "Latency × 20", "Brown-out"}[o.Kind]
	if o.RetryAfter > 0 {
		title += fmt.Sprintf(", Retry-After: %d", int(o.RetryAfter.Seconds()))
	}
	return title
}

// A Config is the size of a storm.
type Config struct {
	Clients int
	// Length is how long actions are begun, From and Until when the outage is.
	Length, From, Until time.Duration
	// Seed places the clients in time.
	Seed uint64
}

// Every client begins one action in each period, and one call to the healthy host
// in those from a minute before the outage to a minute after it.
const (
	period = 10 * time.Second
	around = time.Minute
)

func periods(d time.Duration) int { return int(d / period) }

// scale is the part of the whole service that these clients are offered, so that
// they are always 45 % of its capacity.
func (c Config) scale() float64 { return float64(c.Clients) / 1000 }

const (
	sickHost    = "pay.example:80"
	healthyHost = "search.example:80"
)

// An action is one thing that one client wanted, at either host.
type action struct {
	begun, took time.Duration
	ok          bool
}

// run lets a storm pass over peer.
func run(t *testing.T, peer Peer, outage Outage, c Config) (r *Run) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		sick := newService(c, outage, start)
		net := &memnet.Network{}
		defer serve(t, net, sickHost, sick)()
		defer serve(t, net, healthyHost, http.HandlerFunc(healthy))()

		clients := make([]*client, c.Clients)
		random := rand.New(rand.NewPCG(c.Seed, 1))
		var wg sync.WaitGroup
		for i := range clients {
			k := newClient(i, peer, net, start, c)
			clients[i] = k
			offset := time.Duration(random.Int64N(int64(period)))
			other := time.Duration(random.Int64N(int64(period)))
			wg.Go(func() { k.every(offset, 0, periods(c.Length), k.act) })
			wg.Go(func() { k.every(other, max(0, periods(c.From-around)), periods(min(c.Until+around, c.Length)), k.ask) })
		}
		wg.Wait()
		for _, k := range clients {
			k.base.CloseIdleConnections()
		}
		r = newRun(peer, outage, c, sick, clients)
	})
	return r
}

func serve(t *testing.T, net *memnet.Network, addr string, h http.Handler) (stop func()) {
	stop, err := net.Serve(addr, &http.Server{Handler: h})
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

// A client is one program: it has one Transport, with connections of its own.
type client struct {
	id    int
	http  *http.Client
	base  *http.Transport
	start time.Time

	acts, asks []action // one for each begun; each is written by its own goroutine
}

func newClient(id int, peer Peer, net *memnet.Network, start time.Time, c Config) *client {
	base := net.Transport(false)
	n := periods(c.Length)
	return &client{
		id: id, base: base, http: peer.client(base), start: start,
		acts: make([]action, n), asks: make([]action, n),
	}
}

// every begins do once in each period from first on, and waits for all that it
// began. What outlasts its period does not hold up the next. Goroutines that are
// done are used again: their stacks have grown.
func (k *client) every(offset time.Duration, first, end int, do func(n int)) {
	jobs := make(chan int)
	var wg sync.WaitGroup
	for n := first; n < end; n++ {
		time.Sleep(time.Until(k.start.Add(offset + time.Duration(n)*period)))
		select {
		case jobs <- n:
		default:
			wg.Go(func() {
				do(n)
				for n := range jobs {
					do(n)
				}
			})
		}
	}
	close(jobs)
	wg.Wait()
}

// act does the nth action: something that must not happen twice, under a key.
func (k *client) act(n int) {
	req, err := http.NewRequest("POST", "http://"+sickHost+"/payments", strings.NewReader(`{"amount":100}`))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Idempotency-Key", fmt.Sprintf("client-%d-action-%d", k.id, n))
	k.acts[n] = k.do(req)
}

// ask asks the healthy host.
func (k *client) ask(n int) {
	req, err := http.NewRequest("GET", fmt.Sprintf("http://%s/%d/%d", healthyHost, k.id, n), nil)
	if err != nil {
		panic(err)
	}
	k.asks[n] = k.do(req)
}

func (k *client) do(req *http.Request) action {
	begun := time.Now()
	resp, err := k.http.Do(req)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	return action{begun.Sub(k.start), time.Since(begun), err == nil && resp.StatusCode == http.StatusOK}
}

// healthy is a host that never fails. It takes from 10 to 60 ms, as its path says.
func healthy(w http.ResponseWriter, r *http.Request) {
	var client, n uint64
	fmt.Sscanf(r.URL.Path, "/%d/%d", &client, &n)
	time.Sleep(10*time.Millisecond + time.Duration(rand.New(rand.NewPCG(client, n)).Int64N(int64(50*time.Millisecond))))
	io.WriteString(w, `{"found":true}`)
}
