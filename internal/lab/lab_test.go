package lab

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	oneSeed = flag.Int64("seed", 0, "run this seed alone, and print its timeline")
	seeds   = flag.Int64("seeds", 0, "how many seeds to run, with progress; 0: 2000, or 300 under the race detector")
	from    = flag.Int64("from", 1, "the first of them")
	trace   = flag.Bool("trace", false, "print each seed before its world begins")
)

// soaked is how many seeds this process has run. With -count each round gets new
// ones when it is there to soak.
var soaked int64

// TestLab runs one world for each seed.
func TestLab(t *testing.T) {
	if !raceEnabled {
		// With one processor a seed gives the same story more often than with
		// two. The other pass has them all.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	if *oneSeed != 0 {
		w := experiment(t, seed(*oneSeed))
		fmt.Print(w.timeline())
		w.report(t, "")
		return
	}
	n, first := int64(2000), *from
	if raceEnabled {
		n = 300
	}
	if os.Getenv("ONCEHTTP_SOAK") == "1" {
		n *= 4
		first += soaked
		soaked += n
	}
	if *seeds > 0 {
		n = *seeds
	}
	began, said := time.Now(), time.Now()
	tally := map[string]int{}
	for i := range n {
		if *trace {
			fmt.Printf("lab: seed %d\n", first+i)
		}
		w := experiment(t, seed(first+i))
		if len(w.broken) > 0 {
			w.report(t, w.timeline())
			return
		}
		for k, v := range w.tally {
			tally[k] += v
		}
		if *seeds > 0 && time.Since(said) > 5*time.Second {
			said = time.Now()
			fmt.Printf("lab: %d of %d seeds, %.1f ms each\n", i+1, n, time.Since(began).Seconds()*1000/float64(i+1))
		}
	}
	t.Logf("%d seeds from %d, %.1f ms each", n, first, time.Since(began).Seconds()*1000/float64(n))
	if testing.Verbose() {
		for _, k := range slices.Sorted(maps.Keys(tally)) {
			fmt.Printf("%9d  %s\n", tally[k], k)
		}
	}
	if n < 2000 {
		return
	}
	// A laboratory in which nothing happens proves nothing.
	for _, what := range everything() {
		if tally[what] == 0 {
			t.Errorf("%d seeds, and not once %q", n, what)
		}
	}
}

// everything is what has to happen in two thousand worlds.
func everything() (all []string) {
	for _, f := range netFaults {
		all = append(all, "network: "+string(f))
	}
	for _, f := range edgeFaults {
		all = append(all, "network: "+string(f))
	}
	for _, f := range dialFaults {
		all = append(all, "network: "+string(f))
	}
	for _, d := range deeds {
		all = append(all, "handler: "+string(d))
	}
	for _, s := range []string{handlerWorks, effectHappened, midStream, beforeMiddleware, beforeResponse, rolledOut, "a client dies"} {
		all = append(all, "death: "+s)
	}
	for _, method := range []string{"Claim", "TakeOver", "Renew", "Complete", "Release"} {
		all = append(all, "death: "+beforeThe+method, "death: "+afterThe+method)
		for _, f := range storeFaults {
			all = append(all, "store: "+method+" "+string(f))
		}
	}
	for _, s := range []string{
		"ran", "released", "attached", "replayed", "unknown", "unknown outcome-unknown", "refused in-progress", "refused key-reused",
		"refused principal-changed", "refused missing-key", "refused response-gone", "refused store-full", "refused store-unavailable", "refused body-unreadable",
	} {
		all = append(all, "outcome: "+s)
	}
	return append(all, "breaker: open", "breaker: half-open", "breaker: closed", "store: "+clockJumps)
}

// experiment runs one world.
func experiment(t *testing.T, s seed) (w *world) {
	defer func() {
		// The bubble's own complaint: everything in it waits for ever.
		if p := recover(); p != nil {
			if w == nil {
				panic(p)
			}
			w.broke(tryID{}, 5, "the world hangs: %v", p)
		}
	}()
	synctest.Test(t, func(*testing.T) {
		w = newWorld(s)
		w.run()
	})
	return w
}

// report fails the test if the world broke a promise.
func (w *world) report(t *testing.T, timeline string) {
	t.Helper()
	if len(w.broken) == 0 {
		return
	}
	most := w.broken[:min(len(w.broken), 10)]
	t.Errorf("\n%sseed %d broke\n  %s\nto see it again:\n  make lab SEED=%d", timeline, w.seed, strings.Join(most, "\n  "), w.seed)
}
