package oncehttp_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// hotMost is what the Transport may allocate over what its Base does, for a call
// that is answered at once.
var hotMost = map[string]map[string]float64{
	"AttemptTimeout off": {"GET": 1, "keyed POST": 6},
	"all defaults":       {"GET": 2, "keyed POST": 6},
}

func TestACallThatIsAnsweredAllocatesLittle(t *testing.T) {
	oncehttp.BubblesShareTimers(t) // as outside of bubbles
	for _, kind := range hotTransports {
		for _, req := range hotRequests {
			t.Run(req.name+", "+kind.name, func(t *testing.T) {
				measureCall(t, t.Context(), kind.make(), req.make, hotMost[kind.name][req.name])
			})
			// The Transport that is measured has its guards on: the same value keeps the
			// storm bound. All of it in one bubble, as no Transport can go back from the
			// present to the bubble's year 2000.
			t.Run(req.name+", "+kind.name+", and then a storm", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					tr := kind.make()
					measureCall(t, t.Context(), tr, req.make, hotMost[kind.name][req.name])
					tr.Logger = quiet()
					if n := (storm{0.5, []time.Duration{time.Minute, 10 * time.Minute, time.Minute, time.Minute}, 503}).hold(t, tr); n == 0 {
						t.Error("the storm met no retries, so it shows nothing")
					}
				})
			})
		}
	}
}

func measureCall(t *testing.T, ctx context.Context, tr *oncehttp.Transport, make requestMaker, most float64) {
	t.Helper()
	const runs = 1000
	bare := testing.AllocsPerRun(runs, func() { roundTripOnce(t, noBase{}, make(ctx)) })
	ours := testing.AllocsPerRun(runs, func() { roundTripOnce(t, tr, make(ctx)) })
	got := ours - bare
	t.Logf("allocations: %v over the %v of the bare Base", got, bare)
	if got > most && !oncehttp.RaceEnabled {
		t.Errorf("allocations: got %v over the bare Base, want at most %v", got, most)
	}
	if got < 1 {
		t.Errorf("allocations: got %v over the bare Base, so nothing was measured", got)
	}
}
