package storetest_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/storetest"
)

// What an author of a store writes. This one's store only pretends to have a
// file, so it is also the test of MemoryStore on a real clock.
func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(t *testing.T) oncehttp.Store {
			s, err := Open(filepath.Join(t.TempDir(), "records"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			return s
		},
		Unit: 20 * time.Millisecond, // it is not a server
	})
}

func TestStoreInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storetest.Run(t, storetest.Config{
			New: func(t *testing.T) oncehttp.Store { return new(oncehttp.MemoryStore) },
		})
	})
}

func BenchmarkStore(b *testing.B) {
	storetest.Bench(b, func(*testing.B) oncehttp.Store {
		return &oncehttp.MemoryStore{MaxRecords: 100_000_000, MaxBytes: 1 << 40}
	})
}

type store struct{ oncehttp.MemoryStore }

func Open(string) (*store, error) { return new(store), nil }
func (*store) Close()             {}
