package storm

import (
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// The service that the clients call, as it is while all is well. It is a queue
// in front of something that takes one request after another, and has a latency
// besides.
const (
	// capacity is how many requests a second it can answer.
	capacity = 1000 / 4.5
	// latency is how long one takes that does not have to queue.
	latency = 90 * time.Millisecond
	// queueLimit is the longest wait in the queue. Who would wait longer is
	// answered 503 at once.
	queueLimit = 1500 * time.Millisecond
	// A queue makes the service slower, as contention does: from crowded on, a
	// request takes 1+crowding as much of the capacity.
	crowding = 0.3
	crowded  = 200 * time.Millisecond
	// slowness is how many times as long everything takes in a slow outage.
	slowness = 20
	// refusal is how much of its time it takes to turn a request away: reading
	// it is work, too.
	refusal = 2500 * time.Microsecond
)

// A service is the modelled service, an http.Handler. What a request costs is
// settled when it arrives, and a caller that hangs up gives nothing back: its
// request is worked on all the same.
type service struct {
	start   time.Time
	outage  Outage
	config  Config
	arrived []atomic.Int64 // in each second since start

	mu   sync.Mutex
	next time.Time // when the next request in the queue is begun
}

func newService(c Config, o Outage, start time.Time) *service {
	return &service{start: start, outage: o, config: c, arrived: make([]atomic.Int64, int(c.Length/time.Second))}
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	if sec := int(now.Sub(s.start) / time.Second); sec < len(s.arrived) {
		s.arrived[sec].Add(1)
	}
	io.Copy(io.Discard, r.Body)
	wait, ok := s.admit(now)
	if !ok {
		if s.outage.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(s.outage.RetryAfter/time.Second)))
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	time.Sleep(wait)
	io.WriteString(w, `{"done":true}`)
}

// admit says how long a request that arrives now takes, if it is let in.
func (s *service) admit(now time.Time) (time.Duration, bool) {
	rate, slow := capacity*s.config.scale(), time.Duration(1)
	if at := now.Sub(s.start); at >= s.config.From && at < s.config.Until {
		switch s.outage.Kind {
		case Down:
			return 0, false
		case Slow:
			rate, slow = rate/slowness, slowness
		case BrownOut:
			rate /= 2
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next.Before(now) {
		s.next = now
	}
	wait := s.next.Sub(now)
	if wait > queueLimit {
		if wait < 2*queueLimit {
			s.next = s.next.Add(time.Duration(float64(refusal) / s.config.scale()))
		}
		return 0, false
	}
	cost := 1 + crowding*min(1, wait.Seconds()/crowded.Seconds())
	s.next = s.next.Add(time.Duration(cost / rate * float64(time.Second)))
	return wait + slow*latency, true
}
