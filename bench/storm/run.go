package storm

import (
	"slices"
	"time"
)

// A Run is what became of one storm.
type Run struct {
	Peer   Peer
	Outage Outage
	Config Config

	// For each second: requests that arrived at the service, actions that were
	// begun, and how many of these succeeded.
	Sends, Begun, Good []int

	Outcome
}

// An Outcome is a Run in figures. Loads and sends are those of the service that
// fails.
type Outcome struct {
	SendsPerAction float64       // of the whole run
	OutageSends    float64       // sends per action begun, while the outage lasted
	Peak           float64       // sends in the busiest period, over full capacity: a round of all clients
	PeakSecond     float64       // the same of the busiest second
	Wasted         float64       // share of the sends that no successful action came of
	Failed         float64       // share of the actions
	Recovery       time.Duration // from the outage's end until 99 % of the actions begun succeed, for good

	// Of calls to the healthy host that were begun from the outage's start on.
	HealthyP99    time.Duration
	HealthyFailed float64
}

func newRun(peer Peer, o Outage, c Config, s *service, clients []*client) *Run {
	seconds := int(c.Length / time.Second)
	r := &Run{Peer: peer, Outage: o, Config: c, Sends: make([]int, seconds), Begun: make([]int, seconds), Good: make([]int, seconds)}
	for i := range s.arrived {
		r.Sends[i] = int(s.arrived[i].Load())
	}
	var meanwhile []time.Duration
	lost := 0
	for _, k := range clients {
		for _, a := range k.acts {
			sec := min(int(a.begun/time.Second), seconds-1)
			r.Begun[sec]++
			if a.ok {
				r.Good[sec]++
			}
		}
		for _, a := range k.asks {
			switch {
			case a.took == 0 || a.begun < c.From:
			case !a.ok:
				lost++
			default:
				meanwhile = append(meanwhile, a.took)
			}
		}
	}
	r.sum()
	r.HealthyP99 = quantile(meanwhile, 0.99)
	r.HealthyFailed = ratio(lost, lost+len(meanwhile))
	return r
}

func (r *Run) sum() {
	sends, begun, good := total(r.Sends), total(r.Begun), total(r.Good)
	from, until := int(r.Config.From/time.Second), int(r.Config.Until/time.Second)
	r.SendsPerAction = ratio(sends, begun)
	r.OutageSends = ratio(total(r.Sends[from:until]), total(r.Begun[from:until]))
	r.Peak, r.PeakSecond = r.busiest(period), r.busiest(time.Second)
	r.Wasted = ratio(sends-good, sends)
	r.Failed = ratio(begun-good, begun)
	for sec := until; sec < len(r.Begun); sec++ {
		if r.Good[sec]*100 < r.Begun[sec]*99 {
			r.Recovery = time.Duration(sec+1-until) * time.Second
		}
	}
}

// busiest is the load of the busiest time that is this long, over full capacity.
func (r *Run) busiest(long time.Duration) float64 {
	seconds, most := int(long/time.Second), 0
	for from := range len(r.Sends) - seconds + 1 {
		most = max(most, total(r.Sends[from:from+seconds]))
	}
	return float64(most) / float64(seconds) / (capacity * r.Config.scale())
}

func total(of []int) (n int) {
	for _, v := range of {
		n += v
	}
	return n
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(int(q*float64(len(d))), len(d)-1)]
}
