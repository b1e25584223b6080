package oncehttp

import (
	"container/heap"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// A MemoryStore keeps records in the memory of one process. Its zero value is
// ready to use. It is safe for concurrent use, and must not be copied after its
// first use; nor may its fields be changed then.
//
// What it knows is gone when the process ends, so a repeat that arrives after a
// restart runs again, and processes do not share it. Where that matters, use a
// durable store.
//
// It is bounded. When it is full it makes room in this order: expired records;
// the bodies of the oldest completed records; and whole completed records, only
// if DropAfter allows it. A record that is running, orphaned, or was completed
// less than ten minutes ago stays as it is. When nothing may go, Claim and
// TakeOver refuse new keys with [ErrFull]: the store never lets work run
// unprotected. A body that does not fit is not kept, its head always is (heads
// may exceed MaxBytes by those of the claims that were running when it filled
// up).
//
// It has no goroutine of its own: every call forgets a few records that have
// expired, so an unused store keeps what it has until it is called again.
//
// MemoryStore is a [Waiter] and an [Inspector] too.
type MemoryStore struct {
	// MaxRecords is the largest number of records. Zero means 1 000 000. A new
	// key beyond it is refused with ErrFull unless a record may go. What is
	// needed is the rate of new keys × how long they are kept.
	MaxRecords int

	// MaxBytes is the size that the heads and bodies of completed records may
	// reach together, in bytes. Zero means 256 MiB. Everything else about a
	// record takes some 500 bytes, which are not counted here.
	MaxBytes int64

	// DropAfter allows the store, under pressure only, to forget completed
	// records altogether once this long has passed since they were completed.
	// A repeat that comes later than that runs again. Zero means never. The
	// ten minutes for which a completed record always stays apply in any case.
	DropAfter time.Duration

	// Logger is told when the store is 80 % full. Nil means slog.Default().
	Logger *slog.Logger

	mu       sync.Mutex
	epoch    time.Time // the store's clock counts from here; zero until first use
	seed     maphash.Seed
	segments [256]segment
	n        int                      // records
	bytes    int64                    // of their heads and bodies
	queues   map[time.Duration]*queue // by how long their records last
	due      dueQueues                // the same queues, the one that expires first in front
	spare    *queue
	done     list // completed records, oldest completion first
	bodied   list // those among them whose body is kept and not empty
	pace     pace
	records  gauge
	size     gauge
}

const (
	defaultMaxRecords = 1_000_000
	defaultMaxBytes   = 256 << 20

	// fresh is for how long a completed record is left alone: the retries of
	// its first caller come within this time, and are what it is there for.
	fresh = 10 * time.Minute

	// sweep is how many expired records one call forgets at most.
	sweep = 32
)

var (
	errNoKey    = errors.New("oncehttp: store: Op.Key is empty")
	errNoToken  = errors.New("oncehttp: store: Op.Token is empty")
	errLease    = errors.New("oncehttp: store: lease must be positive")
	errNegative = errors.New("oncehttp: store: lease must not be negative")
	errKeep     = errors.New("oncehttp: store: keep must be positive")
)

// Claim implements [Store]. The errors it can return are [ErrFull], the
// context's, and those that name an argument or a field that makes no sense.
func (s *MemoryStore) Claim(ctx context.Context, op Op, lease, keep time.Duration) (Claim, error) {
	return s.take(ctx, op, lease, keep, false)
}

// TakeOver implements [Store]. Its errors are those of Claim.
func (s *MemoryStore) TakeOver(ctx context.Context, op Op, lease, keep time.Duration) (Claim, error) {
	return s.take(ctx, op, lease, keep, true)
}

func (s *MemoryStore) take(ctx context.Context, op Op, lease, keep time.Duration, orphans bool) (Claim, error) {
	switch {
	case op.Key == "":
		return Claim{}, errNoKey
	case op.Token == "":
		return Claim{}, errNoToken
	case lease <= 0:
		return Claim{}, errLease
	case keep <= 0:
		return Claim{}, errKeep
	case s.MaxRecords < 0:
		return Claim{}, errors.New("oncehttp: MemoryStore.MaxRecords is negative")
	case s.MaxBytes < 0:
		return Claim{}, errors.New("oncehttp: MemoryStore.MaxBytes is negative")
	case s.DropAfter < 0:
		return Claim{}, errors.New("oncehttp: MemoryStore.DropAfter is negative")
	}
	if err := ctx.Err(); err != nil {
		return Claim{}, err
	}
	s.mu.Lock()
	now := s.tick()
	c, err := s.claim(op, lease, keep, orphans, now)
	n, bytes := s.n, s.bytes
	warn := s.records.crossed(int64(n), int64(s.maxRecords()))
	warn = s.size.crossed(bytes, s.maxBytes()) || warn
	rate := s.pace.rate(now)
	s.mu.Unlock()

	if warn { // not under the lock: a Logger may be slow, or call us
		s.warn(n, bytes, rate, keep)
	}
	return c, err
}

// Renew implements [Store]. On a record that op.Token completed it is nil and
// changes nothing.
func (s *MemoryStore) Renew(ctx context.Context, op Op, lease time.Duration) error {
	if lease < 0 {
		return errNegative
	}
	r, now, err := s.held(ctx, op)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	if r == nil {
		return ErrClaimLost
	}
	if !r.ended {
		s.extend(r, lease, r.keep, now)
		if lease == 0 {
			r.wake()
		}
	}
	return nil
}

// Complete implements [Store]. On a record that op.Token completed it is nil
// and changes nothing.
func (s *MemoryStore) Complete(ctx context.Context, op Op, head, body []byte, keep time.Duration) error {
	if keep <= 0 {
		return errKeep
	}
	r, now, err := s.held(ctx, op)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	if r == nil {
		return ErrClaimLost
	}
	if !r.ended {
		s.complete(r, head, body, keep, now)
	}
	return nil
}

// Release implements [Store]. On a record that op.Token completed it is nil and
// changes nothing.
func (s *MemoryStore) Release(ctx context.Context, op Op) error {
	r, _, err := s.held(ctx, op)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	if r != nil && !r.ended {
		s.remove(r)
	}
	return nil
}

// held returns with s.mu locked and the record that op.Token holds or
// completed, or nil if the key is free; or, with s.mu unlocked, why not.
func (s *MemoryStore) held(ctx context.Context, op Op) (*record, time.Duration, error) {
	switch {
	case op.Key == "":
		return nil, 0, errNoKey
	case op.Token == "":
		return nil, 0, errNoToken
	}
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	now := s.tick()
	r := s.find(op.Key, now)
	if r != nil && r.token != op.Token {
		s.mu.Unlock()
		return nil, 0, ErrClaimLost
	}
	return r, now, nil
}

// tick reads the store's clock and forgets some of what has expired.
func (s *MemoryStore) tick() time.Duration {
	if s.epoch.IsZero() {
		s.epoch = time.Now()
		s.seed = maphash.MakeSeed()
		s.queues = make(map[time.Duration]*queue)
	}
	now := time.Since(s.epoch) // monotonic: setting the wall clock lapses no lease
	s.expire(sweep, now)
	return now
}

// claim is Claim and, if orphans may be taken, TakeOver.
func (s *MemoryStore) claim(op Op, lease, keep time.Duration, orphans bool, now time.Duration) (Claim, error) {
	r := s.find(op.Key, now)
	switch {
	case r == nil:
		if !s.admit(now) {
			return Claim{}, ErrFull
		}
		r = s.insert(op, now)
	case r.ended, r.token != op.Token && now < r.lapses, r.token != op.Token && !orphans:
		return r.claim(now), nil
	case r.token != op.Token:
		r.token = strings.Clone(op.Token)
		r.holder++
	}
	s.extend(r, lease, keep, now)
	c := r.claim(now)
	c.Status, c.Left = ClaimAcquired, lease
	return c, nil
}

func (s *MemoryStore) insert(op Op, now time.Duration) *record {
	// One allocation for both strings, and our own: the caller's may be a few
	// bytes of a large one, which we would keep alive.
	both := op.Key + op.Token
	r := &record{
		key:         both[:len(op.Key)],
		token:       both[len(op.Key):],
		fingerprint: op.Fingerprint,
		binding:     op.Binding,
		born:        now,
		holder:      1,
	}
	s.segment(r.key).put(r)
	s.n++
	s.pace.count(now)
	return r
}

// extend gives a claim its lease and its record the time it lasts.
func (s *MemoryStore) extend(r *record, lease, keep, now time.Duration) {
	r.lapses = after(now, lease)
	r.keep = keep
	s.schedule(r, max(lease, keep), now)
}

func (s *MemoryStore) complete(r *record, head, body []byte, keep, now time.Duration) {
	if len(body) > 0 && !s.fits(int64(len(head)+len(body)), now) {
		r.dropped, body = true, nil
	}
	size := len(head) + len(body)
	s.makeRoom(int64(size), now) // whether there is or not: a head is kept in any case
	if size > 0 {
		r.data = make([]byte, size)
		copy(r.data[copy(r.data, head):], body)
	}
	r.head = len(head)
	r.ended, r.completed = true, now
	s.bytes += int64(size)
	s.done.push(byDone, r)
	if len(body) > 0 {
		s.bodied.push(byBody, r)
	}
	s.schedule(r, keep, now)
	r.wake()
}

// find returns the record of a key, or nil if the key is free.
func (s *MemoryStore) find(key string, now time.Duration) *record {
	r := s.segment(key).records[key]
	if r != nil && now >= r.expires {
		s.remove(r)
		return nil
	}
	return r
}

func (s *MemoryStore) remove(r *record) {
	s.unschedule(r)
	if r.ended {
		s.done.remove(byDone, r)
		if len(r.data) > r.head {
			s.bodied.remove(byBody, r)
		}
		s.bytes -= int64(len(r.data))
	}
	s.segment(r.key).delete(r)
	s.n--
	r.wake()
}

// Making room.

func (s *MemoryStore) maxRecords() int {
	if s.MaxRecords == 0 {
		return defaultMaxRecords
	}
	return s.MaxRecords
}

func (s *MemoryStore) maxBytes() int64 {
	if s.MaxBytes == 0 {
		return defaultMaxBytes
	}
	return s.MaxBytes
}

// admit makes room for one more key and reports whether there is any. A new key
// is only welcome if its answer is likely to find a place: one of average size,
// though one huge answer must not turn away everyone after it.
func (s *MemoryStore) admit(now time.Duration) bool {
	for s.n >= s.maxRecords() {
		if s.expire(1, now) == 0 && !s.dropRecord(now) {
			return false
		}
	}
	need := int64(1)
	if s.done.n > 0 {
		need = max(need, min(s.bytes/int64(s.done.n), s.maxBytes()/64))
	}
	return s.makeRoom(need, now)
}

// makeRoom drops what may go until size bytes are free, and reports whether
// they are.
func (s *MemoryStore) makeRoom(size int64, now time.Duration) bool {
	for s.bytes > s.maxBytes()-size {
		if s.expire(1, now) == 0 && !s.dropBody(now) && !s.dropRecord(now) {
			return false
		}
	}
	return true
}

// fits reports whether makeRoom can make room for a head and body. It looks
// before anything that may still be asked for is dropped, so that an answer too
// large to keep costs no other caller theirs.
func (s *MemoryStore) fits(size int64, now time.Duration) bool {
	if size > s.maxBytes() {
		return false
	}
	for s.bytes > s.maxBytes()-size && s.expire(1, now) > 0 {
	}
	short := s.bytes + size - s.maxBytes()
	for r := s.bodied.first; r != nil && short > 0 && now-r.completed >= fresh; r = r.links[byBody].next {
		short -= int64(len(r.data) - r.head)
	}
	if s.DropAfter > 0 {
		for r := s.done.first; r != nil && short > 0 && now-r.completed >= max(fresh, s.DropAfter); r = r.links[byDone].next {
			short -= int64(r.head)
		}
	}
	return short <= 0
}

func (s *MemoryStore) dropBody(now time.Duration) bool {
	r := s.bodied.first
	if r == nil || now-r.completed < fresh {
		return false
	}
	s.bodied.remove(byBody, r)
	s.bytes -= int64(len(r.data) - r.head)
	r.data = append([]byte(nil), r.data[:r.head]...) // a reslice would keep the body alive
	r.dropped = true
	return true
}

func (s *MemoryStore) dropRecord(now time.Duration) bool {
	r := s.done.first
	if r == nil || s.DropAfter == 0 || now-r.completed < max(fresh, s.DropAfter) {
		return false
	}
	s.remove(r)
	return true
}

// A gauge notices when a quantity reaches 80 % of its limit. It is rearmed at
// 70 %, so that a store that hovers about the mark does not fill the log.
type gauge bool

func (g *gauge) crossed(v, limit int64) bool {
	part := float64(v) / float64(limit)
	crossed := part >= 0.8 && !bool(*g)
	*g = part >= 0.8 || part >= 0.7 && *g
	return crossed
}

// pace measures how many new keys come in a second, over about a minute.
type pace struct {
	since time.Duration
	n     int
	last  float64 // of the minute before
}

func (p *pace) count(now time.Duration) {
	if now-p.since >= time.Minute {
		p.last = p.rate(now)
		p.since, p.n = now, 0
	}
	p.n++
}

func (p *pace) rate(now time.Duration) float64 {
	d := max(now-p.since, time.Second)
	if d < 10*time.Second && p.last > 0 {
		return p.last
	}
	return float64(p.n) / d.Seconds()
}

func (s *MemoryStore) warn(n int, bytes int64, rate float64, keep time.Duration) {
	log := s.Logger
	if log == nil {
		log = slog.Default()
	}
	needed := math.Ceil(rate * keep.Seconds())
	log.Warn("oncehttp: the memory store is 80 % full; a full one refuses new keys: "+
		"give MaxRecords and MaxBytes what is needed (rate × keep), keep records for a shorter time, or use a durable store",
		slog.Int("records", n),
		slog.Int("max_records", s.maxRecords()),
		slog.Int64("bytes", bytes),
		slog.Int64("max_bytes", s.maxBytes()),
		slog.Float64("new_keys_per_second", math.Round(rate*100)/100),
		slog.Duration("keep", keep),
		slog.Float64("records_needed", needed),
		slog.Float64("bytes_needed", math.Ceil(needed*float64(bytes)/float64(max(n, 1)))),
	)
}

// Forgetting.

// A queue holds the records that last equally long, so that the one touched
// longest ago expires first. Most stores have one or two queues.
type queue struct {
	list
	keep time.Duration
	pos  int // in dueQueues
}

// dueQueues is a heap of queues that are not empty.
type dueQueues []*queue

func (d dueQueues) Len() int           { return len(d) }
func (d dueQueues) Less(i, j int) bool { return d[i].first.expires < d[j].first.expires }
func (d dueQueues) Swap(i, j int)      { d[i], d[j] = d[j], d[i]; d[i].pos, d[j].pos = i, j }
func (d *dueQueues) Push(x any)        { x.(*queue).pos = len(*d); *d = append(*d, x.(*queue)) }
func (d *dueQueues) Pop() any {
	last := len(*d) - 1
	q := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return q
}

// schedule makes a record expire keep from now.
func (s *MemoryStore) schedule(r *record, keep, now time.Duration) {
	if q := r.queue; q != nil && q.keep == keep && q.last == r { // it stays where it is
		r.expires = after(now, keep)
		if q.first == r {
			heap.Fix(&s.due, q.pos)
		}
		return
	}
	s.unschedule(r)
	r.expires = after(now, keep)
	q := s.queues[keep]
	if q == nil {
		if q = s.spare; q == nil {
			q = new(queue)
		}
		s.spare = nil
		q.keep = keep
		s.queues[keep] = q
	}
	r.queue = q
	q.push(byExpiry, r)
	if q.first == r {
		heap.Push(&s.due, q)
	}
}

func (s *MemoryStore) unschedule(r *record) {
	q := r.queue
	if q == nil {
		return
	}
	first := q.first == r
	r.queue = nil
	switch {
	case first && q.n == 1:
		heap.Remove(&s.due, q.pos) // while it still has a record to compare
		q.remove(byExpiry, r)
		delete(s.queues, q.keep)
		s.spare = q
	case first:
		q.remove(byExpiry, r)
		heap.Fix(&s.due, q.pos)
	default:
		q.remove(byExpiry, r)
	}
}

// expire forgets up to limit records that have expired and returns how many.
func (s *MemoryStore) expire(limit int, now time.Duration) int {
	if len(s.due) == 0 || s.due[0].first.expires > now {
		return 0
	}
	if s.n > sweep && s.allExpired(now) {
		// Everything goes in one step; what it held is the collector's.
		n := s.n
		s.segments = [len(s.segments)]segment{}
		s.n, s.bytes = 0, 0
		s.queues, s.due, s.spare = make(map[time.Duration]*queue), nil, nil
		s.done, s.bodied = list{}, list{}
		return n
	}
	n := 0
	for n < limit && len(s.due) > 0 && s.due[0].first.expires <= now {
		s.remove(s.due[0].first)
		n++
	}
	return n
}

func (s *MemoryStore) allExpired(now time.Duration) bool {
	if len(s.due) > sweep {
		return false // too many to look at; they go a few at a time
	}
	for _, q := range s.due {
		if q.last.expires > now {
			return false
		}
	}
	return true
}

// after is now + d, or the end of time.
func after(now, d time.Duration) time.Duration {
	if t := now + d; t >= now {
		return t
	}
	return math.MaxInt64
}

// A segment holds the records of some of the keys. There are many segments
// because a map never shrinks: it must be made anew when most of it is empty,
// and that must not take long.
type segment struct {
	records map[string]*record
	peak    int // the most records since the map was made
}

func (s *MemoryStore) segment(key string) *segment {
	return &s.segments[maphash.String(s.seed, key)%uint64(len(s.segments))]
}

func (g *segment) put(r *record) {
	if g.records == nil {
		g.records = make(map[string]*record)
	}
	g.records[r.key] = r
	g.peak = max(g.peak, len(g.records))
}

func (g *segment) delete(r *record) {
	delete(g.records, r.key)
	if g.peak > 64 && len(g.records) < g.peak/4 {
		records := make(map[string]*record, len(g.records))
		for k, r := range g.records {
			records[k] = r
		}
		g.records, g.peak = records, len(records)
	}
}

// A record is what the store knows of a key. Times are by the store's clock.
type record struct {
	key, token           string // no token is empty, so an emptied one matches none
	fingerprint, binding [32]byte
	born                 time.Duration
	lapses               time.Duration // when its lease ends
	keep                 time.Duration // as last told by Claim, TakeOver or Complete
	expires              time.Duration
	completed            time.Duration
	data                 []byte // head and body
	head                 int    // bytes of data
	holder               int32
	ended                bool // completed, or resolved as applied
	dropped              bool // the body was
	waiting              *waiting
	queue                *queue
	links                [3]links
}

func (r *record) status(now time.Duration) ClaimStatus {
	switch {
	case r.ended:
		return ClaimDone
	case now < r.lapses:
		return ClaimRunning
	}
	return ClaimOrphaned
}

// claim is what somebody else is told of the record.
func (r *record) claim(now time.Duration) Claim {
	c := Claim{
		Status:      r.status(now),
		Fingerprint: r.fingerprint,
		Binding:     r.binding,
		Left:        r.expires - now,
		Holder:      int(r.holder),
		BodyDropped: r.dropped,
	}
	switch c.Status {
	case ClaimRunning:
		c.Left = r.lapses - now
	case ClaimDone:
		c.Head, c.Body = r.bytes()
	}
	return c
}

// bytes returns head and body with no room behind them, so that a caller's
// append cannot reach what others were given.
func (r *record) bytes() (head, body []byte) {
	if r.head > 0 {
		head = r.data[:r.head:r.head]
	}
	if n := len(r.data); n > r.head {
		body = r.data[r.head:n:n]
	}
	return head, body
}

// A record is in up to three lists.
const (
	byExpiry = iota
	byDone
	byBody
)

type links struct{ prev, next *record }

type list struct {
	first, last *record
	n           int
}

func (l *list) push(by int, r *record) {
	r.links[by] = links{prev: l.last}
	if l.last == nil {
		l.first = r
	} else {
		l.last.links[by].next = r
	}
	l.last = r
	l.n++
}

func (l *list) remove(by int, r *record) {
	at := r.links[by]
	if at.prev == nil {
		l.first = at.next
	} else {
		at.prev.links[by].next = at.next
	}
	if at.next == nil {
		l.last = at.prev
	} else {
		at.next.links[by].prev = at.prev
	}
	r.links[by] = links{}
	l.n--
}

// Waiting.

// waiting is shared by those who wait for one running record.
type waiting struct {
	changed chan struct{}
	n       int
}

// Wait implements [Waiter]. It returns nil at once for a key that is not
// running, and otherwise when the key is completed, released or taken from its
// holder, or when its lease lapses.
func (s *MemoryStore) Wait(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	now := s.tick()
	r := s.find(key, now)
	if r == nil || r.status(now) != ClaimRunning {
		s.mu.Unlock()
		return nil
	}
	w := r.waiting
	if w == nil {
		w = &waiting{changed: make(chan struct{})}
		r.waiting = w
	}
	w.n++
	left := r.lapses - now
	s.mu.Unlock()

	lapse := time.NewTimer(left)
	defer lapse.Stop()
	for {
		select {
		case <-w.changed:
			return nil
		case <-ctx.Done():
			s.mu.Lock()
			r.leave(w)
			s.mu.Unlock()
			return ctx.Err()
		case <-lapse.C:
			s.mu.Lock()
			now := s.tick()
			if r.waiting == w && r.status(now) == ClaimRunning { // it was renewed
				lapse.Reset(r.lapses - now)
				s.mu.Unlock()
				continue
			}
			r.leave(w)
			s.mu.Unlock()
			return nil
		}
	}
}

// wake ends every Wait for the record.
func (r *record) wake() {
	if r.waiting != nil {
		close(r.waiting.changed)
		r.waiting = nil
	}
}

func (r *record) leave(w *waiting) {
	if w.n--; w.n == 0 && r.waiting == w {
		r.waiting = nil
	}
}

// Inspecting.

// List implements [Inspector]. It looks at every record, a part of them at a
// time, so that claims are not held up meanwhile; what changes while it looks
// may be in the list or not.
func (s *MemoryStore) List(ctx context.Context, q RecordQuery) ([]Record, error) {
	switch {
	case q.Status < 0, q.Status == ClaimAcquired, q.Status > ClaimOrphaned:
		return nil, errors.New("oncehttp: RecordQuery.Status is not a state of a record: running, done or orphaned")
	case q.MinAge < 0:
		return nil, errors.New("oncehttp: RecordQuery.MinAge is negative")
	case q.Limit < 0, q.Limit > 1000:
		return nil, errors.New("oncehttp: RecordQuery.Limit is not between 0 and 1000")
	}
	limit := q.Limit
	if limit == 0 {
		limit = 100
	}
	var found []Record
	for i := range s.segments {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		now := s.tick()
		for _, r := range s.segments[i].records {
			if now >= r.expires || r.key <= q.After || now-r.born < q.MinAge ||
				q.Status != 0 && q.Status != r.status(now) {
				continue
			}
			found = append(found, r.record(now))
		}
		s.mu.Unlock()
		if len(found) > limit {
			found = firstByKey(found, limit)
		}
	}
	return firstByKey(found, limit), nil
}

func firstByKey(found []Record, limit int) []Record {
	slices.SortFunc(found, func(a, b Record) int { return strings.Compare(a.Key, b.Key) })
	if len(found) > limit {
		clear(found[limit:])
		found = found[:limit]
	}
	return found
}

// record is what an operator sees in a list.
func (r *record) record(now time.Duration) Record {
	c := r.claim(now)
	return Record{
		Key:         r.key,
		Status:      c.Status,
		Fingerprint: c.Fingerprint,
		Binding:     c.Binding,
		Age:         now - r.born,
		Left:        c.Left,
		Holder:      c.Holder,
		BodyDropped: c.BodyDropped,
	}
}

// Show implements [Inspector].
func (s *MemoryStore) Show(ctx context.Context, key string) (Record, error) {
	if err := ctx.Err(); err != nil {
		return Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.tick()
	r := s.find(key, now)
	if r == nil {
		return Record{}, ErrNotFound
	}
	rec := r.record(now)
	rec.Head, rec.Body = r.bytes()
	return rec, nil
}

// Resolve implements [Inspector].
func (s *MemoryStore) Resolve(ctx context.Context, key string, res Resolution) error {
	if res.Keep < 0 {
		return errors.New("oncehttp: Resolution.Keep is negative")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.tick()
	r := s.find(key, now)
	switch {
	case r == nil:
		return ErrNotFound
	case r.status(now) != ClaimOrphaned:
		return ErrNotOrphaned
	case !res.Applied:
		s.remove(r)
		return nil
	}
	keep := res.Keep
	if keep == 0 {
		keep = r.keep
	}
	r.token = "" // nobody's: whoever held it is told that the claim is lost
	s.complete(r, res.Head, res.Body, keep, now)
	return nil
}

// Purge implements [Inspector].
func (s *MemoryStore) Purge(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.tick()
	r := s.find(key, now)
	switch {
	case r == nil:
		return ErrNotFound
	case r.status(now) == ClaimRunning:
		return ErrNotPurgeable
	}
	s.remove(r)
	return nil
}
