package crash

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A victim that starts slowly lives longer, or nothing would be done in its life.
func TestALifeIsAsLongAsItsStart(t *testing.T) {
	for _, v := range []struct{ life, starting, most time.Duration }{
		{0, 50 * time.Millisecond, 200 * time.Millisecond},
		{0, time.Second, time.Second},
		{time.Minute, time.Second, time.Minute},
	} {
		r := &run{Config: Config{Life: v.life}, starting: v.starting, random: rand.New(rand.NewPCG(1, 0))}
		var longest time.Duration
		for range 1000 {
			longest = max(longest, r.lifetime())
		}
		if longest > v.most || longest < v.most*9/10 {
			t.Errorf("life %v, start %v: lives of up to %v, want up to %v", v.life, v.starting, longest, v.most)
		}
	}
}
