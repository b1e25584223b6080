package redisstore

import (
	"strconv"
	"time"
)

// A clock is what a store takes the server's clock to be: how many microseconds it is
// ahead of the time since this program started, or 0 if that is not known. It is looked
// at with the server, once a minute, and is wrong by half a round trip, by what the
// clocks drift apart in a minute, and until the next look if the server's was set or
// another server took over. So it decides nothing: only what is told of the rest of a
// done record's time goes by it.
type clock int64

// started is read by a clock that nobody can set.
var started = time.Now()

// clock is what the server's answer tells, if it was given so long after started.
func (i info) clock(after time.Duration) clock {
	us, _ := strconv.ParseInt(i["server_time_usec"], 10, 64)
	if us <= 0 {
		return 0
	}
	return clock(us - after.Microseconds())
}

// now is the time on the server's clock, in Unix milliseconds.
func (c clock) now() int64 { return (int64(c) + time.Since(started).Microseconds()) / 1000 }
