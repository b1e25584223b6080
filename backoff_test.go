package oncehttp

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// notUniform returns the chi-squared statistic of a sample of durations over
// 100 equal parts of [0, top), and whether it is beyond what chance gives once
// in a million times. A duration outside of the range is always beyond.
func notUniform(top time.Duration, n int, draw func() time.Duration) (chi2 float64, beyond bool) {
	const parts = 100
	var counts [parts]int
	for range n {
		d := draw()
		if d < 0 || d >= top {
			return math.Inf(1), true
		}
		// The parts' edges are rounded, which is nothing beside n while top is
		// much larger than parts; big products would overflow int64.
		counts[min(parts-1, int(float64(d)/float64(top)*parts))]++
	}
	want := float64(n) / parts
	for _, c := range counts {
		chi2 += (float64(c) - want) * (float64(c) - want) / want
	}
	return chi2, chi2 > 180.79 // 99 degrees of freedom, p = 1e-6
}

func TestPausesAreUniformBelowTheirBound(t *testing.T) {
	const pauses = 100_000
	for _, tt := range []struct {
		base, limit time.Duration
		n           int
		top         time.Duration
	}{
		{500 * time.Millisecond, 8 * time.Second, 0, 500 * time.Millisecond},
		{500 * time.Millisecond, 8 * time.Second, 1, time.Second},
		{500 * time.Millisecond, 8 * time.Second, 2, 2 * time.Second},
		{500 * time.Millisecond, 8 * time.Second, 3, 4 * time.Second},
		{500 * time.Millisecond, 8 * time.Second, 4, 8 * time.Second},
		{500 * time.Millisecond, 8 * time.Second, 5, 8 * time.Second},
		{500 * time.Millisecond, 8 * time.Second, 62, 8 * time.Second},
		{500 * time.Millisecond, 8 * time.Second, 64, 8 * time.Second},
		{500 * time.Millisecond, 8 * time.Second, 1000, 8 * time.Second},
		{3 * time.Second, 10 * time.Second, 2, 10 * time.Second},
		{time.Minute, time.Second, 0, time.Second},
		{time.Hour, math.MaxInt64, 1000, math.MaxInt64},
		{1 << 40, math.MaxInt64, 22, 1 << 62},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		if chi2, beyond := notUniform(tt.top, pauses, func() time.Duration {
			return fullJitter(tt.base, tt.limit, tt.n, r.Int64N)
		}); beyond {
			t.Errorf("base %v, limit %v, n %d, fixed seed: not uniform below %v: chi-squared %.0f", tt.base, tt.limit, tt.n, tt.top, chi2)
		}
		if chi2, beyond := notUniform(tt.top, pauses, func() time.Duration {
			return FullJitter(tt.base, tt.limit, tt.n, nil)
		}); beyond {
			t.Errorf("base %v, limit %v, n %d, real source: not uniform below %v: chi-squared %.0f", tt.base, tt.limit, tt.n, tt.top, chi2)
		}
	}
}

// highest is a source that always draws the largest value, and panics where
// rand.Int64N does.
func highest(n int64) int64 {
	if n <= 0 {
		panic("nothing to draw from")
	}
	return n - 1
}

func lowest(n int64) int64 { return highest(n) * 0 }

func TestPausesNeverOverflowAndNeverPanic(t *testing.T) {
	durations := []time.Duration{math.MinInt64, -1, 0, 1, 2, 3, time.Second, 1 << 61, 1<<62 - 1, 1 << 62, math.MaxInt64 - 1, math.MaxInt64}
	for _, base := range durations {
		for _, limit := range durations {
			top := limit // as n grows
			if base <= 0 || limit <= 0 {
				top = 0
			}
			last := time.Duration(0)
			for n := -3; n <= 1000; n++ {
				d := fullJitter(base, limit, n, highest)
				if d < last || d > max(top-1, 0) || n <= 0 && d > max(base-1, 0) {
					t.Fatalf("base %d, limit %d, n %d: up to %d, and up to %d the time before", base, limit, n, d, last)
				}
				last = d
			}
			if want := max(top-1, 0); last != want {
				t.Errorf("base %d, limit %d, n 1000: up to %d, want %d", base, limit, last, want)
			}
			for _, n := range []int{math.MinInt, math.MaxInt} {
				fullJitter(base, limit, n, highest)
				FullJitter(base, limit, n, nil)
			}
		}
	}
}

func TestThePausesBoundIsExact(t *testing.T) {
	for _, tt := range []struct {
		base, limit time.Duration
		n           int
		top         time.Duration
	}{
		{1, 3, 0, 1},
		{1, 3, 1, 2},
		{1, 3, 2, 3},
		{3, 7, 1, 6},
		{3, 6, 1, 6},
		{3, 5, 1, 5},
		{5, 3, 0, 3},
		{1, 1 << 62, 62, 1 << 62},
		{1, 1 << 62, 63, 1 << 62},
		{1, math.MaxInt64, 62, 1 << 62},
		{1, math.MaxInt64, 63, math.MaxInt64},
		{1, math.MaxInt64, 64, math.MaxInt64},
		{2, math.MaxInt64, -1, 2},
	} {
		if got := fullJitter(tt.base, tt.limit, tt.n, highest) + 1; got != tt.top {
			t.Errorf("base %d, limit %d, n %d: below %d, want below %d", tt.base, tt.limit, tt.n, got, tt.top)
		}
	}
}

func TestAServersWaitIsNeverCutShort(t *testing.T) {
	for _, tt := range []struct {
		wait, most time.Duration
	}{
		{math.MinInt64, 0},
		{-time.Second, 0},
		{0, 0},
		{1, 1},
		{9, 9},
		{10, 11},
		{time.Second, 1100 * time.Millisecond},
		{10 * time.Second, 11 * time.Second},
		{30 * time.Second, 31 * time.Second},
		{time.Hour, time.Hour + time.Second},
		{math.MaxInt64 - time.Second, math.MaxInt64},
		{math.MaxInt64 - 5, math.MaxInt64},
		{math.MaxInt64, math.MaxInt64},
	} {
		least := max(tt.wait, 0)
		if got := serverPause(tt.wait, lowest); got != least {
			t.Errorf("a wait of %v: at least %v, want %v", tt.wait, got, least)
		}
		if got := serverPause(tt.wait, highest); got != tt.most {
			t.Errorf("a wait of %v: at most %v, want %v", tt.wait, got, tt.most)
		}
	}
}

func TestAThousandClientsToldTheSameWaitSpread(t *testing.T) {
	const wait = 30 * time.Second
	if chi2, beyond := notUniform(time.Second+1, 100_000, func() time.Duration {
		return serverPause(wait, rand.Int64N) - wait
	}); beyond {
		t.Errorf("what is added to a wait is not uniform up to a second: chi-squared %.0f", chi2)
	}
}

func BenchmarkFullJitter(b *testing.B) {
	for b.Loop() {
		FullJitter(500*time.Millisecond, 8*time.Second, 3, nil)
	}
}
