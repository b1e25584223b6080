package redisstore

import (
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// What is left of a record is asked for before the record, so it may be that of
// another one: of a claim that was kept for longer than its answer is, or of none.
func TestNoMoreIsLeftThanWasAskedFor(t *testing.T) {
	op := oncehttp.Op{Key: "key", Token: oncehttp.NewToken()}
	claim := newRecord(&op, 30_000, 60_000)
	done := append([]byte(nil), claim...)
	done[1] = stateDone
	short := newRecord(&op, 60_000, 30_000)
	for _, v := range []struct {
		what   string
		status oncehttp.ClaimStatus
		record []byte
		ms     int64
		want   time.Duration
	}{
		{"what is left", oncehttp.ClaimDone, done, 1234, 1234 * time.Millisecond},
		{"a claim was kept for a day", oncehttp.ClaimDone, done, 86_400_000, time.Minute},
		{"the expiry of a fresh record", oncehttp.ClaimDone, done, 60_001, time.Minute},
		{"there was no record", oncehttp.ClaimDone, done, -2, time.Minute},
		{"an orphan", oncehttp.ClaimOrphaned, claim, 60_001, time.Minute},
		{"an orphan whose lease was longer", oncehttp.ClaimOrphaned, short, 60_001, time.Minute},
		{"at its end", oncehttp.ClaimDone, done, 0, time.Millisecond},
	} {
		c, err := readClaim([]any{int64(v.status), v.ms, string(v.record)})
		if err != nil || c.Status != v.status || c.Left != v.want {
			t.Errorf("%s: got %v with %v left, and error %v; want %v", v.what, c.Status, c.Left, err, v.want)
		}
	}
}
