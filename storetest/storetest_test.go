package storetest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

func newMemory(*testing.T) oncehttp.Store { return new(oncehttp.MemoryStore) }

func TestMemoryStoreKeepsTheContractInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		Run(t, Config{New: newMemory})
	})
}

func TestMemoryStoreKeepsTheContractOnARealClock(t *testing.T) {
	Run(t, Config{New: newMemory, Unit: 20 * time.Millisecond})
}

func BenchmarkMemoryStore(b *testing.B) {
	Bench(b, func(*testing.B) oncehttp.Store {
		return &oncehttp.MemoryStore{MaxRecords: 100_000_000, MaxBytes: 1 << 40}
	})
}
