package oncehttp

import "testing"

// RaceEnabled tells the tests of package oncehttp_test that the race detector is
// on, which allocates too.
const RaceEnabled = raceEnabled

// BubblesShareTimers has those who wait in a synctest bubble share a timer, as they do
// outside, until the end of the test.
func BubblesShareTimers(t testing.TB) {
	bubblesShare.Store(true)
	t.Cleanup(func() { bubblesShare.Store(false) })
}

// AttemptsWaiting is how many attempts of tr wait for their timeouts.
func AttemptsWaiting(tr *Transport) int {
	s := &tr.timeouts
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.own)
	for a := s.first; a != nil; a = a.next {
		n++
	}
	return n
}
