package crash

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Report is what came of a Run.
type Report struct {
	Name             string
	Seed             uint64
	Exactly, Forgets bool
	Took             time.Duration

	Kills int
	// Hits counts the kills that landed while a claim was running: acquired, and
	// neither recorded nor freed.
	Hits int
	// Moments counts the kills by what else was going on; a kill can be at several.
	Moments struct{ Idle, Claiming, Before, During, After, Recording int }

	// Actions were asked for. Done of them were answered as done, Unknown only as
	// unknown. Effects counts all that took place.
	Actions, Done, Unknown, Effects int
	// Silent counts actions answered as unknown that had taken effect.
	Silent int
	// Repeated counts actions with more than one effect: a fault, but for a victim
	// that forgets.
	Repeated int
	// Replays counts the answers that came from a record.
	Replays int
	// Refusals counts the answers after which a client had to ask again.
	Refusals map[string]int

	// Request is the longest request. Where Longest is much longer, actions waited
	// for their turn, and not for the victim.
	Request time.Duration

	// Longest is the longest time from the first request for an action to its
	// answer. Recovery is the longest from the moment at which the victim served
	// again to the answer of an action that was new then.
	Longest, Recovery time.Duration
	// Refusal is the longest time until a client was told that the store could not
	// be reached.
	Refusal time.Duration

	// Faults are the promises that were broken, at most some of each kind. If there
	// are none the victim passes.
	Faults []string

	starts starts
}

// starts are the times that the victim took to start.
type starts struct{ shortest, longest time.Duration }

func (s *starts) add(d time.Duration) {
	if s.shortest == 0 || d < s.shortest {
		s.shortest = d
	}
	s.longest = max(s.longest, d)
}

func (r *Report) fault(format string, args ...any) {
	r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
}

// killed counts a kill.
func (r *Report) killed(p Phases) {
	r.Kills++
	if p == (Phases{}) {
		r.Moments.Idle++ // it had not started, or nobody had asked for anything yet
	}
	for _, c := range []struct {
		n     int
		total *int
	}{
		{p.Running, &r.Hits},
		{p.Claiming, &r.Moments.Claiming},
		{p.Before, &r.Moments.Before},
		{p.During, &r.Moments.During},
		{p.After, &r.Moments.After},
		{p.Recording, &r.Moments.Recording},
	} {
		if c.n > 0 {
			*c.total++
		}
	}
}

// judge compares what was answered with what took effect.
func (r *Report) judge(l *load, effects map[string][]Effect, e *epochs, phases bool, bound time.Duration) {
	r.Actions, r.Refusals, r.Refusal, r.Request = len(l.actions), l.refusals, l.slowest, l.longest
	r.Faults = append(r.Faults, l.faults...)
	j := judge{Report: r, epochs: e}
	asked := make(map[string]bool, len(l.actions))
	for _, a := range l.actions {
		asked[a.name] = true
		j.action(a, effects[a.name])
		r.Longest = max(r.Longest, a.took)
		r.Replays += a.replays
	}
	for name := range effects {
		if !asked[name] {
			j.fault("%s took effect, and nobody had asked for it", name)
		}
	}
	if len(l.firsts) > 0 {
		r.Recovery = slices.Max(l.firsts)
	}
	if r.Recovery > bound {
		j.fault("after a start it took %v until something new was done; it may take %v", r.Recovery, bound)
	}
	if r.Done == 0 {
		j.fault("nothing was done, so this says nothing")
	}
	if phases && 3*r.Hits < r.Kills {
		j.fault("%d of %d kills landed while a claim was running; with less than a third this says little", r.Hits, r.Kills)
	}
	if j.left < 0 {
		r.fault("and %d faults more", -j.left)
	}
}

// A judge passes sentence on actions, and does not go on for ever.
type judge struct {
	*Report
	epochs *epochs
	told   int
	left   int // below zero: faults that were not told
}

func (j *judge) fault(format string, args ...any) {
	if j.told++; j.told > maxFaults {
		j.left--
		return
	}
	j.Report.fault(format, args...)
}

func (j *judge) action(a *action, effects []Effect) {
	j.Effects += len(effects)
	if len(effects) > 1 {
		j.Repeated++
		if !j.Forgets || j.twiceInALife(effects) {
			j.fault("%s took effect %d times", a.name, len(effects))
		}
	}
	switch {
	case a.done != nil:
		j.Done++
		if !slices.ContainsFunc(effects, func(e Effect) bool { return did(a.name, e.Run) == a.done.body }) {
			j.fault("%s was answered %q, and no such run took effect", a.name, a.done.body)
		}
	case a.unknowns > 0:
		j.Unknown++
		if len(effects) > 0 {
			j.Silent++
		}
		if j.Exactly {
			j.fault("%s was answered as unknown, and took effect %d times", a.name, len(effects))
		}
	}
	if j.Exactly && len(effects) == 0 {
		j.fault("%s never took effect", a.name)
	}
}

// twiceInALife tells whether two of the runs surely belong to one life of what
// remembers: from before the claim of the first to after that of the last it did not
// die.
func (j *judge) twiceInALife(effects []Effect) bool {
	byTime := slices.SortedFunc(slices.Values(effects), func(a, b Effect) int { return a.Began.Compare(b.Began) })
	for i, e := range byTime[1:] {
		if j.epochs.same(byTime[i].Arrived, e.Began) {
			return true
		}
	}
	return false
}

// String returns the report in a few lines.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d kills in %v, seed %d\n", r.Name, r.Kills, r.Took.Round(10*time.Millisecond), r.Seed)
	m := r.Moments
	fmt.Fprintf(&b, "  kills: %d while a claim was running; %d at a claim, %d before an effect, %d during one, %d after one, %d while it was recorded; %d when nothing went on\n",
		r.Hits, m.Claiming, m.Before, m.During, m.After, m.Recording, m.Idle)
	fmt.Fprintf(&b, "  actions: %d, done %d, unknown %d (of which %d had taken effect); effects %d, actions with more than one %d; answers from a record %d\n",
		r.Actions, r.Done, r.Unknown, r.Silent, r.Effects, r.Repeated, r.Replays)
	fmt.Fprintf(&b, "  the longest time to an answer %v, of one request %v; from a start to something new done %v; starts took %v to %v\n",
		r.Longest.Round(time.Millisecond), r.Request.Round(time.Millisecond), r.Recovery.Round(time.Millisecond), r.starts.shortest.Round(time.Millisecond), r.starts.longest.Round(time.Millisecond))
	if r.Refusal > 0 {
		fmt.Fprintf(&b, "  the longest time to a 503 %v\n", r.Refusal.Round(time.Millisecond))
	}
	fmt.Fprint(&b, "  asked again after:")
	for _, what := range slices.Sorted(maps.Keys(r.Refusals)) {
		fmt.Fprintf(&b, " %s ×%d", what, r.Refusals[what])
	}
	for _, f := range r.Faults {
		fmt.Fprintf(&b, "\n  FAULT: %s", f)
	}
	return b.String()
}
