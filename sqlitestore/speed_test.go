package sqlitestore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/storetest"
)

func BenchmarkStore(b *testing.B) {
	storetest.Bench(b, func(b *testing.B) oncehttp.Store { return tempStore(b) })
}

// fsync is how long the disk of a directory takes to make a page durable.
func fsync(t testing.TB, dir string) time.Duration {
	f, err := os.Create(filepath.Join(dir, "fsync"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	took := make([]time.Duration, 0, 50)
	for i := range cap(took) {
		began := time.Now()
		if _, err := f.WriteAt(page, int64(i)*int64(len(page))); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// rate is how many keyed executions a second n callers get done at a time.
func rate(t testing.TB, once *oncehttp.Once, n int, d time.Duration) float64 {
	var done atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i := range n {
		wg.Go(func() {
			for j := 0; time.Since(began) < d; j++ {
				op := oncehttp.Op{Key: fmt.Sprintf("%d of %d at %v", j, i, began)}
				a, err := once.Do(context.Background(), op, func(context.Context) (head, body []byte, err error) {
					return []byte("201"), []byte("{}"), nil
				})
				if err != nil || a.Kind != oncehttp.OutcomeRan {
					t.Errorf("%v, %v", a.Kind, err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(began).Seconds()
}

// What makes a claim durable is the wait for the disk, and 64 callers share it.
func TestManyAtATimeAreManyTimesFasterThanOne(t *testing.T) {
	const least, slowDisk = 6, 300 * time.Microsecond
	dir := t.TempDir()
	once := &oncehttp.Once{Store: open(t, filepath.Join(dir, "once.db"))}
	sync := fsync(t, dir)
	one := rate(t, once, 1, time.Second)
	many := rate(t, once, 64, time.Second)
	verdict := fmt.Sprintf("at least %d wanted", least)
	judged := true
	switch {
	case raceEnabled:
		judged, verdict = false, "not judged: the race detector makes SQLite itself many times slower"
	case sync < slowDisk:
		judged, verdict = false, fmt.Sprintf("not judged: this disk's fsync takes less than %v", slowDisk)
	}
	t.Logf("fsync %v; keyed executions a second: one at a time %.0f, 64 at a time %.0f, ratio %.1f (%s)", sync, one, many, many/one, verdict)
	if judged && many < least*one {
		t.Errorf("64 at a time are %.1f times as many as one at a time, want %d", many/one, least)
	}
}
