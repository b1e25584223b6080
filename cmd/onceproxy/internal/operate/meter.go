package operate

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncehttp/oncehttp"
)

// A Meter measures one route. It is safe for concurrent use.
type Meter struct {
	route     string
	passed    atomic.Uint64
	outcomes  [oncehttp.OutcomeUnknown + 1]atomic.Uint64
	prevented atomic.Uint64
	inFlight  atomic.Int64
	classes   [6]atomic.Uint64 // of the upstream's answers: 1xx to 5xx

	mu       sync.Mutex
	refusals map[string]uint64 // by the problem's name, of which there are few
	fates    map[string]uint64

	durations [oncehttp.OutcomeUnknown + 1]prometheus.Observer // at 0: of those that passed
}

// Began counts a request that is under way until ended is called.
func (m *Meter) Began() (ended func()) {
	m.inFlight.Add(1)
	return m.end
}

func (m *Meter) end() { m.inFlight.Add(-1) }

// Passed counts a request that was not protected.
func (m *Meter) Passed(d time.Duration) {
	m.passed.Add(1)
	m.durations[0].Observe(d.Seconds())
}

// Protected counts a request with a key, or that should have had one.
func (m *Meter) Protected(o oncehttp.Outcome) {
	if o.Kind < 0 || int(o.Kind) >= len(m.outcomes) {
		return
	}
	m.outcomes[o.Kind].Add(1)
	m.durations[o.Kind].Observe(o.Duration.Seconds())
	if Prevented(o) {
		m.prevented.Add(1)
	}
	if o.Refusal != nil {
		m.Refused(o.Refusal)
	}
}

// Refused counts a refusal by its problem.
func (m *Meter) Refused(p *oncehttp.Refusal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refusals[problemName(p.Type)]++
}

// Failed counts a request that the upstream did not answer, by what became of it.
func (m *Meter) Failed(fate string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fates[fate]++
}

// Answered counts an answer of the upstream.
func (m *Meter) Answered(status int) {
	if c := status / 100; c > 0 && c < len(m.classes) {
		m.classes[c].Add(1)
	}
}

// Counts returns what was counted so far.
func (m *Meter) Counts() Counts {
	of := func(k oncehttp.OutcomeKind) uint64 { return m.outcomes[k].Load() }
	return Counts{
		Passed: m.passed.Load(), Executed: of(oncehttp.OutcomeRan), Released: of(oncehttp.OutcomeReleased),
		Attached: of(oncehttp.OutcomeAttached), Replayed: of(oncehttp.OutcomeReplayed),
		Refused: of(oncehttp.OutcomeRefused), Unknown: of(oncehttp.OutcomeUnknown), Prevented: m.prevented.Load(),
	}
}
