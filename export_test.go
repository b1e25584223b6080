package oncehttp

// RaceEnabled tells the tests of package oncehttp_test that the race detector is
// on, which allocates too.
const RaceEnabled = raceEnabled
