package lab

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	oneSeed = flag.Int64("seed", 0, "run this seed alone, and print its timeline")
	seeds   = flag.Int64("seeds", 0, "how many seeds to run, with progress; 0: as many as the test says")
	from    = flag.Int64("from", 1, "the first of them")
	trace   = flag.Bool("trace", false, "print each seed before its world begins")
)

// A Config says what worlds to run.
type Config struct {
	// Storage makes the storage of a world, in its bubble. Nil: MemoryStores. With
	// storages that are not theirs several Runs may go on at the same time.
	Storage func(Setting) Storage

	Seeds     int64 // how many worlds. 0: 2000
	RaceSeeds int64 // the same under the race detector. 0: 300

	// Must is what has to have happened when all of Seeds have run: a laboratory
	// in which nothing happens proves nothing. Under the race detector, and of a
	// part of them, nothing has to.
	Must []string

	Again string // the command that shows a seed again, but for the seed
}

// soaked is how many seeds this process has run. With -count each round gets new
// ones when it is there to soak.
var soaked atomic.Int64

// Run runs one world for each seed, until one of them breaks a promise.
func Run(t *testing.T, c Config) {
	t.Helper()
	if !raceEnabled && c.Storage == nil {
		// With one processor a seed gives the same story more often than with
		// two. The other pass has them all.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	if c.Storage == nil {
		c.Storage = inMemory
	}
	if *oneSeed != 0 {
		w := experiment(t, seed(*oneSeed), c.Storage)
		fmt.Print(w.timeline())
		w.report(t, "", c.Again)
		return
	}
	whole := cmp.Or(c.Seeds, 2000)
	n, first := whole, *from
	if raceEnabled {
		n = cmp.Or(c.RaceSeeds, 300)
	}
	if os.Getenv("ONCEHTTP_SOAK") == "1" {
		n *= 4
		first += soaked.Add(n) - n
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
		w := experiment(t, seed(first+i), c.Storage)
		if len(w.broken) > 0 {
			w.report(t, w.timeline(), c.Again)
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
	if n < whole {
		return
	}
	for _, what := range c.Must {
		if tally[what] == 0 {
			t.Errorf("%d seeds, and not once %q", n, what)
		}
	}
}

// Broken runs worlds until one breaks a promise, and returns what it broke and
// after how many worlds: for tests of the laboratory itself.
func Broken(t *testing.T, storage func(Setting) Storage, most int64) (broken string, worlds int64) {
	t.Helper()
	for i := range most {
		if w := experiment(t, seed(i+1), storage); len(w.broken) > 0 {
			return w.broken[0], i + 1
		}
	}
	return "", most
}

// experiment runs one world.
func experiment(t *testing.T, s seed, storage func(Setting) Storage) (w *world) {
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
		w = newWorld(s, storage)
		w.run()
	})
	return w
}

// report fails the test if the world broke a promise.
func (w *world) report(t *testing.T, timeline, again string) {
	t.Helper()
	if len(w.broken) == 0 {
		return
	}
	most := w.broken[:min(len(w.broken), 10)]
	t.Errorf("\n%sseed %d broke\n  %s\nto see it again:\n  %s SEED=%d", timeline, w.seed, strings.Join(most, "\n  "), cmp.Or(again, "make lab"), w.seed)
}
