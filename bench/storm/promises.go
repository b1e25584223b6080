package storm

import (
	"fmt"
	"time"
)

// What this library promises in a storm.
const (
	mostSends    = 1.15             // per action begun, hard down
	worseBy      = 0.02             // of all actions, failed more than the best that retries, hard down
	recoverIn    = 15 * time.Second // to 99 % of the actions that are begun
	healthySlack = 1.1              // over the run without an outage
	repeats      = 0.05             // as near as a storm repeats: less is no difference
)

// A Promise is one of them, and what came of it.
type Promise struct {
	Outage    Outage
	Text      string
	Got, Need string
	Kept      bool
}

// Judge holds the first peer's runs to the promises. calm is its run without an
// outage.
func Judge(runs []*Run, calm *Run) []Promise { return judge(Outages, runs, calm) }

func judge(outages []Outage, runs []*Run, calm *Run) (all []Promise) {
	add := func(o Outage, text string, kept bool, format string, got, need any) {
		all = append(all, Promise{o, text, fmt.Sprintf(format, got), fmt.Sprintf(format, need), kept})
	}
	for _, o := range outages {
		ours, others := rivals(runs, o)
		sends, failed, peak := best(others, func(r *Run) float64 { return r.SendsPerAction }),
			best(others, func(r *Run) float64 { return r.Failed }),
			best(others, func(r *Run) float64 { return r.Peak })
		switch o.Kind {
		case Down:
			add(o, "sends per action begun", ours.SendsPerAction <= mostSends, "%.3f", ours.SendsPerAction, mostSends)
			add(o, "sends per action begun, least of all that retry", ours.SendsPerAction < sends, "%.3f", ours.SendsPerAction, sends)
			add(o, "failed actions, against the best that retries and 2 points", ours.Failed <= failed+worseBy, "%.1f %%", 100*ours.Failed, 100*(failed+worseBy))
		case BrownOut:
			add(o, "peak load, lowest of all that retry, within 5 %", ours.Peak <= peak*(1+repeats), "%.2f", ours.Peak, peak)
		}
		add(o, "recovery to 99 %", ours.Recovery <= recoverIn, "%v", ours.Recovery, recoverIn)
		limit := time.Duration(healthySlack * float64(calm.HealthyP99))
		add(o, "p99 of the healthy host", ours.HealthyP99 <= limit && ours.HealthyFailed <= calm.HealthyFailed, "%v",
			ours.HealthyP99.Round(time.Millisecond/10), limit.Round(time.Millisecond/10))
	}
	return all
}

// rivals are the runs of o: the first peer's, and those of the others that retry.
func rivals(runs []*Run, o Outage) (ours *Run, others []*Run) {
	for _, r := range runs {
		switch {
		case r.Outage != o:
		case r.Peer.Name == Peers[0].Name:
			ours = r
		case r.Peer.Retries:
			others = append(others, r)
		}
	}
	return ours, others
}

func best(runs []*Run, of func(*Run) float64) float64 {
	least := of(runs[0])
	for _, r := range runs[1:] {
		least = min(least, of(r))
	}
	return least
}
