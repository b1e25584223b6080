package oncehttp

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAMomentIsTheTimeThatItWasTakenAt(t *testing.T) {
	check := func(t *testing.T) {
		before := time.Now()
		m := thisMoment()
		after := time.Now()
		if got := m.time(); got.Before(before) || got.After(after) {
			t.Errorf("got %v, want from %v to %v", got, before, after)
		}
		if got := momentOf(before); got > m || m > momentOf(after) {
			t.Errorf("got %v and %v, want %v between them", got, momentOf(after), m)
		}
		if got := m.time().Sub(m.time()); got != 0 {
			t.Errorf("it is another time when it is asked again, by %v", got)
		}
		// The wall clock's part, too: two readings of both clocks are never at
		// quite the same time, hence the second.
		if d := m.time().Round(0).Sub(before.Round(0)); d < -time.Second || d > after.Sub(before)+time.Second {
			t.Errorf("the wall clock is %v from where it was", d)
		}
	}
	check(t)
	synctest.Test(t, func(t *testing.T) {
		check(t)
		time.Sleep(time.Hour)
		check(t)
		now := time.Now()
		time.Sleep(time.Hour)
		if got := momentOf(now).time(); got != now {
			t.Errorf("got %v an hour later, want %v", got, now)
		}
	})
}

// Timers are kept apart by it.
func TestAMomentKnowsWhetherItIsOfABubble(t *testing.T) {
	if thisMoment().bubbled() {
		t.Error("outside: got a moment of a bubble")
	}
	synctest.Test(t, func(t *testing.T) {
		if !thisMoment().bubbled() {
			t.Errorf("%v is not taken for a moment of a bubble", time.Duration(thisMoment()))
		}
	})
}
