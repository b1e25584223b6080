package lab

import (
	"fmt"
	"strings"
	"time"
)

// A plan is what a seed chooses for a world as a whole. What happens to a single
// request, connection or store call is chosen when it happens, with these odds.
type plan struct {
	clients int
	actions int
	span    time.Duration // the time over which clients start their actions
	http2   bool

	lease, keep, wait, timeout time.Duration // of every Middleware
	maxResponse                int64
	maxRecords                 int   // of every store
	maxBytes                   int64 // likewise
	waiter                     bool  // stores wake those who wait

	dials   odds[dialFault]
	network odds[netFault]
	edge    odds[edgeFault]
	store   odds[storeFault]
	breaks  odds[storeBreak] // of stores that are Breakable
	handler odds[deed]
	slow    float64       // the share of handlers that take their time
	slowest time.Duration // and how long at most
	heeds   float64       // the share of handlers that stop when their context ends

	contended bool
	rerun     float64         // the share of actions whose route is declared re-runnable
	death     float64         // that a server dies at a given step
	deaths    int             // how often at most
	rollouts  []time.Duration // when front's server is replaced in peace
	outages   []window
	jumps     []jump
	restarts  float64 // the share of clients that are restarted half-way
}

// A window is a time in which no store answers.
type window struct{ from, to time.Duration }

// A jump is a step of the store's clock.
type jump struct{ at, by time.Duration }

// odds are the kinds of fault that can happen at one place, with the chance of each.
type odds[F ~string] []struct {
	fault F
	p     float64
}

// draw gives each of the kinds a level, or none of them any.
func draw[F ~string](d *dice, calm, hi float64, kinds ...F) odds[F] {
	if d.chance(calm) {
		return nil
	}
	var o odds[F]
	for _, f := range kinds {
		if p := d.level(hi); p > 0 {
			o = append(o, struct {
				fault F
				p     float64
			}{f, p})
		}
	}
	return o
}

// choose returns a fault, or "" for none.
func (o odds[F]) choose(d *dice) F {
	x := d.float()
	for _, f := range o {
		if x -= f.p; x < 0 {
			return f.fault
		}
	}
	return ""
}

func newPlan(s seed) plan {
	d := s.roll("plan")
	p := plan{
		clients: 1 + d.n(8),
		actions: 5 + min(d.n(46), d.n(46)),
		span:    d.spread(100*time.Millisecond, 90*time.Second),
		http2:   d.chance(0.12),

		lease:       d.spread(300*time.Millisecond, 30*time.Second),
		keep:        pick(&d, 0, 2*time.Hour),
		wait:        d.spread(20*time.Millisecond, 5*time.Second),
		timeout:     d.spread(time.Second, 60*time.Second),
		maxResponse: pick[int64](&d, 0, 0, 300),
		waiter:      d.chance(0.6),
		slow:        d.level(0.8),
		rerun:       pick(&d, 0.2, 0.2, 0.8),
		heeds:       pick[float64](&d, 0, 0.5, 1),
	}
	p.slowest = d.spread(100*time.Millisecond, 2*p.timeout)
	if d.chance(0.05) {
		p.maxRecords = 1 + d.n(p.actions)
	}
	if d.chance(0.05) {
		p.maxBytes = int64(200 + d.n(3000))
	}

	p.dials = draw(&d, 0.5, 0.2, dialFaults...)
	if p.http2 {
		p.edge = draw(&d, 0.2, 0.15, edgeFaults...)
	} else {
		p.network = draw(&d, 0.15, 0.15, netFaults...)
	}
	p.store = draw(&d, 0.35, 0.12, storeFaults...)
	p.handler = draw(&d, 0.15, 0.2, deeds...)
	if d.chance(0.5) {
		p.death, p.deaths = 0.05*d.float()*d.float(), 1+d.n(3)
	}
	if d.chance(0.15) {
		from := d.within(p.span)
		p.outages = append(p.outages, window{from, from + d.spread(50*time.Millisecond, 3*p.lease)})
	}
	if d.chance(0.3) {
		for range 1 + d.few(8) {
			p.jumps = append(p.jumps, jump{d.within(p.span), d.spread(p.lease/4, 10*time.Minute)})
		}
	}
	if d.chance(0.5) {
		p.restarts = d.float()
	}
	if d.chance(0.15) {
		for range 1 + d.n(2) {
			p.rollouts = append(p.rollouts, d.within(p.span))
		}
	}
	if d.chance(0.2) {
		p.contend(&d)
	}
	p.breaks = draw(&d, 0.4, 0.15, storeBreaks...)
	return p
}

// contend makes a world in which claims are lost more often than in life: handlers
// take longer than leases, the store's clock makes many steps, and somebody is
// always there to take over.
func (p *plan) contend(d *dice) {
	p.contended = true
	p.rerun, p.heeds = 0.8, 0
	p.slow, p.slowest = 0.7, max(4*p.lease, time.Second)
	p.span = min(p.span, 20*time.Second)
	p.jumps = nil
	for range 3 + d.n(10) {
		p.jumps = append(p.jumps, jump{d.within(2 * p.span), d.spread(p.lease/2, 2*p.lease)})
	}
}

func (p *plan) keeps() time.Duration {
	if p.keep == 0 {
		return 24 * time.Hour
	}
	return p.keep
}

// String is the first lines of a timeline.
func (p *plan) String() string {
	var b strings.Builder
	proto := "HTTP/1"
	if p.http2 {
		proto = "HTTP/2"
	}
	fmt.Fprintf(&b, "%d actions by %d clients within %v over %s; lease %v, wait %v, timeout %v, keep %v",
		p.actions, p.clients, short(p.span), proto, short(p.lease), short(p.wait), short(p.timeout), p.keeps())
	if p.maxRecords > 0 {
		fmt.Fprintf(&b, "; room for %d records", p.maxRecords)
	}
	if p.maxBytes > 0 {
		fmt.Fprintf(&b, "; room for %d bytes", p.maxBytes)
	}
	if p.maxResponse > 0 {
		fmt.Fprintf(&b, "; responses over %d bytes are not recorded", p.maxResponse)
	}
	for _, o := range p.outages {
		fmt.Fprintf(&b, "; the store is out from %v to %v", short(o.from), short(o.to))
	}
	return b.String()
}

func short(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
