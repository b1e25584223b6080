package oncehttp

import (
	"testing"
	"testing/synctest"
	"time"
)

// What is fetched ahead is what Claim looks at.
func TestMemoryStoreFetchesWhatIsThere(t *testing.T) {
	var s MemoryStore
	if hash := s.fetchSlot(memOp(0).Key); hash != 0 {
		t.Errorf("in a store that was never used: got %#x, want 0", hash)
	}
	s.fetchRecord(0)
	for n := range 5000 {
		memDone(t, &s, n, "head", "body", time.Hour)
	}
	slots := 0
	for n := range 5000 {
		key := memOp(n).Key
		hash := s.fetchSlot(key)
		r := s.table.find(key)
		if got := s.table.likely(hash); got != r { // of 5000 hashes no two are likely to be the same
			t.Fatalf("the record of key %d: got %v, want %v", n, got, r)
		}
		if s.table.index.home(hash).id == r.id {
			slots++
		}
		s.fetchRecord(hash)
	}
	if slots < 2500 {
		t.Errorf("the slot that is fetched is the right one for %d of 5000 keys", slots)
	}
	s.fetchRecord(s.fetchSlot(memOp(5000).Key))
}

func TestMemoryStoreFetchingWaitsForNobody(t *testing.T) {
	var s MemoryStore
	memDone(t, &s, 0, "head", "body", time.Hour)
	hash := s.fetchSlot(memOp(0).Key)
	if hash == 0 {
		t.Fatal("nothing was fetched")
	}
	s.mu.Lock() // and would wait for ever
	defer s.mu.Unlock()
	if got := s.fetchSlot(memOp(0).Key); got != 0 {
		t.Errorf("while another has the store: got %#x, want 0", got)
	}
	s.fetchRecord(hash)
}

// Between the two steps a record, or all of them, may vanish.
func TestMemoryStoreFetchesOfWhatVanished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s MemoryStore
		for n := range 2 * memSweep {
			memDone(t, &s, n, "head", "body", time.Hour)
		}
		hash := s.fetchSlot(memOp(0).Key)
		if err := s.Purge(memCtx, memOp(0).Key); err != nil {
			t.Fatal(err)
		}
		s.fetchRecord(hash)
		hash = s.fetchSlot(memOp(1).Key)
		time.Sleep(time.Hour)
		if got := memSees(&s, 1); got != "free" || s.table.n != 0 {
			t.Fatalf("after an hour: got %s, %d records, want free and none", got, s.table.n)
		}
		s.fetchRecord(hash)
	})
}

func TestMemoryStoreFetchingAllocs(t *testing.T) {
	var s MemoryStore
	memDone(t, &s, 0, "head", "body", time.Hour)
	key := memOp(0).Key
	if n := testing.AllocsPerRun(100, func() { s.fetchRecord(s.fetchSlot(key)) }); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}
