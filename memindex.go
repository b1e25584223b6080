package oncehttp

// A memIndex finds records by the hashes of their keys. It consists of many small hash
// tables, so that one that must be made anew is made in no time. The slots of a table lie
// side by side, and a slot tells enough of the hash to be moved without a look at its
// record: among a million records each look is at memory that no cache has.
type memIndex [256]memSegment

// A memSegment is a hash table with open addressing. Where a slot is taken, the next
// free one behind it is used.
type memSegment struct {
	slots []memSlot // a power of two of them, or none
	n     int       // that are taken
}

// A memSlot is free if its id is 0.
type memSlot struct {
	hash uint32 // the part that segment does not use
	id   memRef
}

const memFewSlots = 8

func (x *memIndex) segment(hash uint64) (g *memSegment, rest uint32) {
	return &x[hash%uint64(len(x))], uint32(hash / uint64(len(x)))
}

// home is the slot where the search for a hash begins, or nil.
func (x *memIndex) home(hash uint64) *memSlot {
	g, at := x.segment(hash)
	if g.n == 0 {
		return nil
	}
	return &g.slots[at&uint32(len(g.slots)-1)]
}

// next searches from a slot on for a hash, and returns the record that has it and the
// slot to go on from, or 0.
func (g *memSegment) next(hash, at uint32) (id memRef, after uint32) {
	if g.n == 0 {
		return 0, 0
	}
	mask := uint32(len(g.slots) - 1)
	for at &= mask; g.slots[at].id != 0; at = (at + 1) & mask {
		if g.slots[at].hash == hash {
			return g.slots[at].id, at + 1
		}
	}
	return 0, 0
}

// put adds a record.
func (x *memIndex) put(hash uint64, id memRef) {
	g, rest := x.segment(hash)
	if 4*(g.n+1) > 3*len(g.slots) {
		g.resize(max(memFewSlots, 2*len(g.slots)))
	}
	g.n++
	g.place(memSlot{rest, id})
}

// drop takes a record out that is there.
func (x *memIndex) drop(hash uint64, id memRef) {
	g, at := x.segment(hash)
	mask := uint32(len(g.slots) - 1)
	for at &= mask; g.slots[at].id != id; at = (at + 1) & mask {
	}
	// Who stands behind it because its own place was taken moves up.
	for next := (at + 1) & mask; g.slots[next].id != 0; next = (next + 1) & mask {
		if home := g.slots[next].hash & mask; (next-home)&mask >= (next-at)&mask {
			g.slots[at], at = g.slots[next], next
		}
	}
	g.slots[at] = memSlot{}
	g.n--
	if len(g.slots) > memFewSlots && 8*g.n < len(g.slots) {
		g.resize(len(g.slots) / 2)
	}
}

// place puts a slot where it is found.
func (g *memSegment) place(s memSlot) {
	mask := uint32(len(g.slots) - 1)
	at := s.hash & mask
	for g.slots[at].id != 0 {
		at = (at + 1) & mask
	}
	g.slots[at] = s
}

func (g *memSegment) resize(n int) {
	old := g.slots
	g.slots = make([]memSlot, n)
	for _, s := range old {
		if s.id != 0 {
			g.place(s)
		}
	}
}
