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
