package oncehttp

import "time"

// A tally counts the outcomes of the latest window of time, which rolls on in
// tenths. gobreaker has one too, but reads the clock twice for each attempt to
// keep it, which costs more than all the rest of a breaker that is closed.
type tally struct {
	tenth time.Duration
	start time.Time
	at    int64         // the tenth that is being filled, counted from start
	rolls time.Duration // from start to where that ends

	good, bad       [tallied]uint32
	allGood, allBad uint64
}

// tallied is eleven tenths, as the last one is never whole.
const tallied = 11

// reset forgets everything.
func (t *tally) reset(window time.Duration, now time.Time) {
	*t = tally{tenth: window/10 + 1, start: now}
	t.rolls = t.tenth
}

// roll forgets what has left the window. A now that is earlier than one before
// belongs to the tenth that is being filled.
func (t *tally) roll(now time.Time) {
	since := now.Sub(t.start)
	if since < t.rolls {
		return
	}
	to := int64(since / t.tenth)
	for n := min(to-t.at, tallied); n > 0; n-- {
		i := (to - n + 1) % tallied
		t.allGood -= uint64(t.good[i])
		t.allBad -= uint64(t.bad[i])
		t.good[i], t.bad[i] = 0, 0
	}
	t.at = to
	t.rolls = time.Duration(to+1) * t.tenth
}

func (t *tally) add(good bool, now time.Time) {
	t.roll(now)
	i := t.at % tallied
	if good {
		t.good[i]++
		t.allGood++
		return
	}
	t.bad[i]++
	t.allBad++
}
