package oncehttp

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Outcomes leave the tally when their tenth does, whatever came between.
func TestATallyForgetsWhatHasLeftItsWindow(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		const window = time.Minute
		tenth := window/10 + 1
		start := time.Now()
		var y tally
		y.reset(window, start)
		type outcome struct {
			at   int64
			good bool
		}
		var all []outcome
		now := start
		for step := range 300 {
			now = now.Add(time.Duration(rng.Int64N(int64(window) / (1 + rng.Int64N(40)))))
			if rng.IntN(50) == 0 {
				now = now.Add(3 * window)
			}
			good := rng.IntN(3) > 0
			if !good || rng.IntN(2) == 0 || !y.latest.add(momentOf(now)) {
				y.add(good, now)
			}
			at := int64(now.Sub(start) / tenth)
			all = append(all, outcome{at, good})
			var wantGood, wantBad uint64
			for _, o := range all {
				switch {
				case o.at <= at-tallied:
				case o.good:
					wantGood++
				default:
					wantBad++
				}
			}
			if got := y.allGood + uint64(y.latest.n.Load()); got != wantGood || y.allBad != wantBad {
				t.Fatalf("seed %d, step %d: %d good and %d bad, want %d and %d", seed, step, got, y.allBad, wantGood, wantBad)
			}
		}
		y.settle()
		before := y.allGood // a clock that went back counts for now
		y.add(true, start)
		if !y.latest.add(momentOf(start)) {
			t.Fatal("it takes the lock")
		}
		if y.settle(); y.allGood != before+2 {
			t.Fatal("an outcome was lost")
		}
	}
}
