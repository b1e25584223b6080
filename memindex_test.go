package oncehttp

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"
)

// An index has what was put into it and not dropped, however hashes collide.
func TestMemIndex(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		var x memIndex
		hashes := map[memRef]uint64{}
		ids := []memRef{}
		width := []uint64{1, 5, 64, 1 << 20}[seed%4] // few different hashes, or many
		for step := range 4000 {
			growing := step/500%2 == 0
			if len(ids) == 0 || growing == (rnd.IntN(4) > 0) {
				id := memRef(step + 1)
				hashes[id] = 256*rnd.Uint64N(width) + 7 // all in one segment
				ids = append(ids, id)
				x.put(hashes[id], id)
			} else {
				i := rnd.IntN(len(ids))
				x.drop(hashes[ids[i]], ids[i])
				ids = slices.Delete(ids, i, i+1)
			}
			if step%50 > 0 {
				continue
			}
			for _, id := range ids {
				if !slices.Contains(x.all(hashes[id]), id) {
					t.Fatalf("seed %d, step %d: record %d is not found", seed, step, id)
				}
			}
			if g := &x[7]; g.n != len(ids) || len(g.slots) > memFewSlots && 8*g.n < len(g.slots) || 4*g.n > 3*len(g.slots) {
				t.Fatalf("seed %d, step %d: %d records are counted as %d, in %d slots", seed, step, len(ids), g.n, len(g.slots))
			}
		}
	}
}

// all are the records that find looks at for a hash.
func (x *memIndex) all(hash uint64) (ids []memRef) {
	g, rest := x.segment(hash)
	for id, at := g.next(rest, rest); id != 0; id, at = g.next(rest, at) {
		ids = append(ids, id)
	}
	return ids
}

// A million small answers are no work for the collector: there are no places for pointers
// to long ones until one comes.
func TestMemSlabOfSmallAnswersHasNoPointers(t *testing.T) {
	s := &MemoryStore{}
	do := func(key string, body []byte) *memSlab {
		op := Op{Key: key, Token: "t"}
		if _, err := s.Claim(t.Context(), op, time.Minute, time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := s.Complete(t.Context(), op, []byte("head"), body, time.Hour); err != nil {
			t.Fatal(err)
		}
		sl, _ := s.table.slab(s.table.find(key).id)
		return sl
	}
	if sl := do("small", []byte("body")); sl.long != nil {
		t.Error("a slab has places for long answers, and none is there")
	}
	if sl := do("large", make([]byte, 1000)); sl.long == nil {
		t.Error("a long answer has no place")
	}
}

// A record is five cache lines of 64 bytes, and begins with one.
func TestMemRecordsAreWholeCacheLines(t *testing.T) {
	if strconv.IntSize < 64 {
		t.Skip("numbers are aligned differently there")
	}
	if n := unsafe.Sizeof(memRecord{}); n != 5*64 {
		t.Errorf("a record takes %d bytes, want 320", n)
	}
	slabs := make([]*memSlab, 20)
	for i := range slabs {
		slabs[i] = new(memSlab)
		if n := uintptr(unsafe.Pointer(&slabs[i].records)) % 64; n != 0 {
			t.Errorf("records begin %d bytes behind a cache line", n)
		}
	}
}
