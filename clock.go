package oncehttp

import "time"

// A moment is a time on the monotonic clock, in nanoseconds from epoch. To read
// it takes little more than half of what time.Now takes, which reads the wall
// clock too. Moments of a synctest bubble and of the world outside do not compare.
type moment int64

var epoch = time.Now()

// thisMoment reads the clock.
func thisMoment() moment { return moment(time.Since(epoch)) }

func momentOf(t time.Time) moment { return moment(t.Sub(epoch)) }

// after is m and then d, which may be as long as a Duration can be.
func (m moment) after(d time.Duration) moment       { return m + moment(min(d, longest)) }
func (m moment) since(earlier moment) time.Duration { return time.Duration(m - earlier) }

// time is m as a time.Time. What its wall clock says is worked out from what the
// wall clock says now, and so is right even if that was set since the program began.
func (m moment) time() time.Time {
	now := time.Now()
	return now.Add(m.since(momentOf(now)))
}

// bubbled reports whether m is a moment of a synctest bubble. Those have no monotonic
// clock: they count from what the wall clock said when the program began, and a bubble
// begins in the year 2000.
func (m moment) bubbled() bool { return m < 0 || time.Duration(m) > 10*365*24*time.Hour }
