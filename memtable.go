package oncehttp

import (
	"container/heap"
	"hash/maphash"
	"math/bits"
	"slices"
	"time"
)

// A memTable holds the records of a MemoryStore: it finds them by key, keeps them
// in lists, and knows which expires next. It has no lock and no policy.
//
// A store of a million records would cost its process dearly at every garbage
// collection if the records were ordinary objects full of pointers, and the
// process is usually not ours. So records lie in slabs, refer to each other by
// number, and their bytes lie with them if they are few.
type memTable struct {
	seed   maphash.Seed
	coarse uint8 // bits of the hash to throw away: only tests want collisions
	index  memIndex
	n      int   // records
	bytes  int64 // of heads and bodies

	slabs  []*memSlab
	unused []uint32 // places in slabs that hold none
	room   uint32   // a slab with room, 1 + its place, the first in a list of all of them

	queues map[time.Duration]*memQueue // by how long their records last
	due    memQueues                   // the same queues, the one that expires first in front
	spare  *memQueue
	done   memList // completed records, oldest completion first
	bodied memList // those among them whose body is kept and not empty
}

// A memRecord is what the store knows of a key. It must not contain pointers.
// Times are by the store's clock.
//
// It takes five cache lines, and its fields are in the order in which a repeat wants them:
// among a million records each line is far away, but lines side by side come together.
type memRecord struct {
	id                   memRef
	key, token           uint32 // their lengths; no token is empty but one that was taken away
	head, body           uint32
	holder               int32
	expires              time.Duration
	lapses               time.Duration // when its lease ends
	ended                bool          // completed, or resolved as applied
	dropped              bool          // the body was
	longName, longAnswer bool          // these lie elsewhere; see below
	fingerprint, binding [32]byte
	text                 [memText]byte // name and answer

	// A repeat does not look at these.
	hash      uint64
	born      time.Duration
	keep      time.Duration // as last told by Claim or TakeOver
	lasts     time.Duration // the queue it is in
	completed time.Duration
	links     [3]memLinks
}

// A memRef is the number of a record, 0 that of none.
type memRef uint32

func (t *memTable) init() {
	*t = memTable{seed: maphash.MakeSeed(), coarse: t.coarse, queues: make(map[time.Duration]*memQueue)}
}

// find returns the record of a key, or nil.
func (t *memTable) find(key string) *memRecord {
	g, rest := t.index.segment(t.hash(key))
	for id, at := g.next(rest, rest); id != 0; id, at = g.next(rest, at) {
		if r := t.at(id); string(t.keyOf(r)) == key {
			return r
		}
	}
	return nil
}

// likely returns the record that find will look at first for a key with this hash, or nil.
func (t *memTable) likely(hash uint64) *memRecord {
	g, rest := t.index.segment(hash)
	id, _ := g.next(rest, rest)
	return t.at(id)
}

func (t *memTable) hash(key string) uint64 { return maphash.String(t.seed, key) >> t.coarse }

// insert makes a record for a key that has none.
func (t *memTable) insert(op Op) *memRecord {
	r := t.place()
	r.hash = t.hash(op.Key)
	r.fingerprint, r.binding = op.Fingerprint, op.Binding
	memSetName(t, r, op.Key, op.Token)
	t.index.put(r.hash, r.id)
	t.n++
	return r
}

// remove forgets a record.
func (t *memTable) remove(r *memRecord) {
	t.unschedule(r)
	if r.ended {
		t.bytes -= int64(r.head) + int64(r.body)
		t.unlink(&t.done, memByDone, r)
		if r.body > 0 {
			t.unlink(&t.bodied, memByBody, r)
		}
	}
	t.index.drop(r.hash, r.id)
	t.n--
	t.vacate(r)
}

// Bytes: a record's key and token are its name, its head and body its answer. What is
// short lies in the record, so that a million small answers are no work for the
// collector; it is overwritten one day, so callers get a copy. What is long has a piece of
// memory of its own, which is replaced and never changed. A long name takes its answer
// along.

func (t *memTable) nameOf(r *memRecord) []byte {
	n := r.key + r.token
	if r.longName {
		return (*t.longOf(r))[:n]
	}
	return r.text[:n]
}

func (t *memTable) keyOf(r *memRecord) []byte   { return t.nameOf(r)[:r.key] }
func (t *memTable) tokenOf(r *memRecord) []byte { return t.nameOf(r)[r.key:] }

// longOf is where the bytes of a record are, or will be, that it has no room for.
func (t *memTable) longOf(r *memRecord) *[]byte {
	sl, i := t.slab(r.id)
	if sl.long == nil {
		sl.long = new([memSlabSize][]byte)
	}
	return &sl.long[i]
}

// memSetName gives a record that has no answer its key and token. The key may be the one
// that it has.
func memSetName[K string | []byte](t *memTable, r *memRecord, key K, token string) {
	n := len(key) + len(token)
	b := r.text[:0]
	long := n > len(r.text)
	if long {
		b = make([]byte, 0, n)
	}
	b = append(append(b, key...), token...)
	t.setLong(r, b, long, false)
	r.key, r.token = uint32(len(key)), uint32(len(token))
}

// setLong notes what of a record is in b, and not in the record.
func (t *memTable) setLong(r *memRecord, b []byte, name, answer bool) {
	switch {
	case name || answer:
		*t.longOf(r) = b
	case r.longName || r.longAnswer:
		*t.longOf(r) = nil
	}
	r.longName, r.longAnswer = name, answer
}

// answer returns a record's head and body, for a caller to keep, with no room behind
// them, so that an append cannot reach what others were given.
func (t *memTable) answer(r *memRecord) (head, body []byte) {
	name := r.key + r.token
	var b []byte
	switch {
	case r.longName:
		b = (*t.longOf(r))[name:]
	case r.longAnswer:
		b = *t.longOf(r)
	default:
		b = slices.Clone(r.text[name:][:r.head+r.body])
	}
	if r.head > 0 {
		head = b[:r.head:r.head]
	}
	if r.body > 0 {
		body = b[r.head:len(b):len(b)]
	}
	return head, body
}

// setAnswer gives a record its head and body.
func (t *memTable) setAnswer(r *memRecord, head, body []byte) {
	name, n := int(r.key+r.token), len(head)+len(body)
	switch {
	case r.longName:
		b := append(make([]byte, 0, name+n), t.nameOf(r)...)
		t.setLong(r, append(append(b, head...), body...), true, false)
	case name+n > len(r.text):
		t.setLong(r, append(append(make([]byte, 0, n), head...), body...), false, true)
	default:
		copy(r.text[name+copy(r.text[name:], head):], body)
		t.setLong(r, nil, false, false)
	}
	r.head, r.body = uint32(len(head)), uint32(len(body))
}

// Placing.

const (
	// memSlabSize makes a slab that wastes little of the memory which the runtime has for
	// one; and there must be a bit for each record.
	memSlabSize = 63

	// memText makes a record as long as it is. A digest in hexadecimal, a token, and a head
	// and body of some eighty bytes fit.
	memText = 144
)

// A memSlab holds records. The pointer comes first because the collector looks no
// further than the last one. With it, the numbers and the 8 bytes that the runtime puts
// before an object of this kind, records begin with a cache line.
type memSlab struct {
	long       *[memSlabSize][]byte // made when it is first needed
	used       uint64               // a bit for each
	prev, next uint32               // in the list of slabs with room, 1 + place
	_          [32]byte
	records    [memSlabSize]memRecord
}

// at returns a record by its number, or nil for none.
func (t *memTable) at(id memRef) *memRecord {
	if id == 0 {
		return nil
	}
	sl, i := t.slab(id)
	if sl == nil { // if we did not look, the program would, at the slab, whose beginning no cache has
		panic("oncehttp: a record has no slab")
	}
	return &sl.records[i]
}

// slab returns where a record lies.
func (t *memTable) slab(id memRef) (sl *memSlab, i uint32) {
	at := uint32(id) - 1
	return t.slabs[at/memSlabSize], at % memSlabSize
}

// place finds room for a record.
func (t *memTable) place() *memRecord {
	if t.room == 0 {
		if n := len(t.unused); n > 0 {
			t.room = t.unused[n-1] + 1
			t.unused = t.unused[:n-1]
			t.slabs[t.room-1] = new(memSlab)
		} else {
			t.slabs = append(t.slabs, new(memSlab))
			t.room = uint32(len(t.slabs))
		}
	}
	at := t.room - 1
	sl := t.slabs[at]
	i := uint32(bits.TrailingZeros64(^sl.used))
	sl.used |= 1 << i
	if sl.used == 1<<memSlabSize-1 {
		t.leaveRoom(sl)
	}
	r := &sl.records[i]
	r.id = memRef(at*memSlabSize + i + 1)
	return r
}

// vacate gives a record's place back, and its slab if it is empty and not the
// only one with room.
func (t *memTable) vacate(r *memRecord) {
	i := uint32(r.id) - 1
	at := i / memSlabSize
	sl := t.slabs[at]
	sl.clear(i % memSlabSize)
	if sl.used == 1<<memSlabSize-1 {
		sl.next = t.room
		if t.room != 0 {
			t.slabs[t.room-1].prev = at + 1
		}
		t.room = at + 1
	}
	sl.used &^= 1 << (i % memSlabSize)
	if sl.used == 0 && (sl.prev != 0 || sl.next != 0) {
		t.leaveRoom(sl)
		t.slabs[at] = nil
		t.unused = append(t.unused, at)
	}
}

func (sl *memSlab) clear(i uint32) {
	if sl.long != nil {
		sl.long[i] = nil
	}
	sl.records[i] = memRecord{}
}

// leaveRoom takes a slab out of the list of those with room.
func (t *memTable) leaveRoom(sl *memSlab) {
	if sl.prev == 0 {
		t.room = sl.next
	} else {
		t.slabs[sl.prev-1].next = sl.next
	}
	if sl.next != 0 {
		t.slabs[sl.next-1].prev = sl.prev
	}
	sl.prev, sl.next = 0, 0
}

// Lists.

// A record is in up to three lists.
const (
	memByExpiry = iota
	memByDone
	memByBody
)

type memLinks struct{ prev, next memRef }

type memList struct {
	first, last memRef
	n           int
}

func (t *memTable) link(l *memList, by int, r *memRecord) {
	r.links[by] = memLinks{prev: l.last}
	if l.last == 0 {
		l.first = r.id
	} else {
		t.at(l.last).links[by].next = r.id
	}
	l.last = r.id
	l.n++
}

func (t *memTable) unlink(l *memList, by int, r *memRecord) {
	at := r.links[by]
	if at.prev == 0 {
		l.first = at.next
	} else {
		t.at(at.prev).links[by].next = at.next
	}
	if at.next == 0 {
		l.last = at.prev
	} else {
		t.at(at.next).links[by].prev = at.prev
	}
	r.links[by] = memLinks{}
	l.n--
}

// Expiring.

// A memQueue holds the records that last equally long, so that the one touched
// longest ago expires first. Most stores have one or two queues.
type memQueue struct {
	memList
	lasts time.Duration
	due   time.Duration // when the first one expires
	at    int           // in dueQueues
}

// memQueues is a heap of queues, none of them empty.
type memQueues []*memQueue

func (d memQueues) Len() int           { return len(d) }
func (d memQueues) Less(i, j int) bool { return d[i].due < d[j].due }
func (d memQueues) Swap(i, j int)      { d[i], d[j] = d[j], d[i]; d[i].at, d[j].at = i, j }
func (d *memQueues) Push(x any)        { x.(*memQueue).at = len(*d); *d = append(*d, x.(*memQueue)) }
func (d *memQueues) Pop() any {
	last := len(*d) - 1
	q := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return q
}

// schedule makes a record expire when it has lasted from now.
func (t *memTable) schedule(r *memRecord, lasts, now time.Duration) {
	q := t.queues[lasts]
	if r.lasts == lasts && q.last == r.id { // it stays where it is
		r.expires = memLater(now, lasts)
		if q.first == r.id {
			q.due = r.expires
			heap.Fix(&t.due, q.at)
		}
		return
	}
	t.unschedule(r)
	r.lasts, r.expires = lasts, memLater(now, lasts)
	if q == nil {
		if q = t.spare; q == nil {
			q = new(memQueue)
		}
		t.spare = nil
		q.lasts = lasts
		t.queues[lasts] = q
	}
	t.link(&q.memList, memByExpiry, r)
	if q.first == r.id {
		q.due = r.expires
		heap.Push(&t.due, q)
	}
}

func (t *memTable) unschedule(r *memRecord) {
	if r.lasts == 0 {
		return // it is not in a queue yet
	}
	q := t.queues[r.lasts]
	first := q.first == r.id
	t.unlink(&q.memList, memByExpiry, r)
	switch {
	case q.n == 0:
		heap.Remove(&t.due, q.at)
		delete(t.queues, q.lasts)
		t.spare = q
	case first:
		q.due = t.at(q.first).expires
		heap.Fix(&t.due, q.at)
	}
}

// expired returns a record that has expired, or nil.
func (t *memTable) expired(now time.Duration) *memRecord {
	if len(t.due) == 0 || t.due[0].due > now {
		return nil
	}
	return t.at(t.due[0].first)
}

// allExpired reports whether every record has expired. It may fail to notice.
func (t *memTable) allExpired(now time.Duration) bool {
	if len(t.due) > 32 {
		return false // too many queues to look at
	}
	for _, q := range t.due {
		if t.at(q.last).expires > now {
			return false
		}
	}
	return true
}
