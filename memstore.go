package oncehttp

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	// record takes some 400 bytes, which are not counted here.
	MaxBytes int64

	// DropAfter allows the store, under pressure only, to forget completed
	// records altogether once this long has passed since they were completed.
	// A repeat that comes later than that runs again. Zero means never. The
	// ten minutes for which a completed record always stays apply in any case.
	DropAfter time.Duration

	// Logger is told when the store is 80 % full. Nil means slog.Default().
	Logger *slog.Logger

	mu      sync.Mutex
	epoch   time.Time // the store's clock counts from here; zero until first use
	table   memTable
	waiting map[memRef]*memWaiting
	pace    memPace
	records memGauge
	size    memGauge
}

const (
	memMaxRecords = 1_000_000
	memMaxBytes   = 256 << 20

	// memFresh is for how long a completed record is left alone: the retries of
	// its first caller come within this time, and are what it is there for.
	memFresh = 10 * time.Minute

	// memSweep is how many expired records one call forgets at most.
	memSweep = 32
)

var (
	errMemNoKey   = errors.New("oncehttp: store: Op.Key is empty")
	errMemNoToken = errors.New("oncehttp: store: Op.Token is empty")
	errMemLease   = errors.New("oncehttp: store: lease must be positive")
	errMemRenew   = errors.New("oncehttp: store: lease must not be negative")
	errMemKeep    = errors.New("oncehttp: store: keep must be positive")
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
		return Claim{}, errMemNoKey
	case op.Token == "":
		return Claim{}, errMemNoToken
	case lease <= 0:
		return Claim{}, errMemLease
	case keep <= 0:
		return Claim{}, errMemKeep
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
	n, bytes := s.table.n, s.table.bytes
	many := s.records.crossed(int64(n), int64(s.maxRecords()))
	large := s.size.crossed(bytes, s.maxBytes())
	var rate float64
	if many || large {
		rate = s.pace.rate(now)
	}
	s.mu.Unlock()

	if many || large { // not under the lock: a Logger may be slow, or call us
		s.warn(n, bytes, rate, keep)
	}
	return c, err
}

// memToken returns a token for a claim in a MemoryStore. Only other tokens in the same
// store matter, of which nobody else learns, so counting is enough. What comes before
// the count keeps it apart from tokens that others make. A clone of the process, as of a
// virtual machine, has a store of its own too.
func memToken() string {
	b := [16]byte{'o', 'n', 'c', 'e', 'h', 't', 't', 'p'}
	binary.BigEndian.PutUint64(b[8:], memTokens.Add(1))
	return string(b[:])
}

var memTokens atomic.Uint64

// Renew implements [Store]. On a record that op.Token completed it is nil and
// changes nothing.
func (s *MemoryStore) Renew(ctx context.Context, op Op, lease time.Duration) error {
	if lease < 0 {
		return errMemRenew
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
			s.wake(r)
		}
	}
	return nil
}

// Complete implements [Store]. On a record that op.Token completed it is nil
// and changes nothing.
func (s *MemoryStore) Complete(ctx context.Context, op Op, head, body []byte, keep time.Duration) error {
	if keep <= 0 {
		return errMemKeep
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
		s.complete(r, op.Token, head, body, keep, now)
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
func (s *MemoryStore) held(ctx context.Context, op Op) (*memRecord, time.Duration, error) {
	switch {
	case op.Key == "":
		return nil, 0, errMemNoKey
	case op.Token == "":
		return nil, 0, errMemNoToken
	}
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	now := s.tick()
	r := s.find(op.Key, now)
	if r != nil && !s.holds(r, op.Token) {
		s.mu.Unlock()
		return nil, 0, ErrClaimLost
	}
	return r, now, nil
}

// tick reads the store's clock and forgets some of what has expired.
func (s *MemoryStore) tick() time.Duration {
	if s.epoch.IsZero() {
		s.epoch = time.Now()
		s.table.init()
	}
	now := time.Since(s.epoch) // monotonic: setting the wall clock lapses no lease
	s.expire(memSweep, now)
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
		r = s.table.insert(op)
		r.born, r.holder = now, 1
		s.pace.count(now)
	case r.ended:
		return s.tell(r, now), nil
	case s.holds(r, op.Token):
	case now < r.lapses || !orphans:
		return s.tell(r, now), nil
	default:
		memSetName(&s.table, r, s.table.keyOf(r), op.Token)
		r.holder++
	}
	s.extend(r, lease, keep, now)
	c := s.tell(r, now)
	c.Status, c.Left = ClaimAcquired, lease
	return c, nil
}

// holds reports whether a token holds a record.
func (s *MemoryStore) holds(r *memRecord, token string) bool {
	return string(s.table.tokenOf(r)) == token
}

// extend gives a claim its lease and its record the time it lasts.
func (s *MemoryStore) extend(r *memRecord, lease, keep, now time.Duration) {
	r.lapses = memLater(now, lease)
	r.keep = keep
	s.table.schedule(r, max(lease, keep), now)
}

// complete makes a record done for the given token.
func (s *MemoryStore) complete(r *memRecord, token string, head, body []byte, keep, now time.Duration) {
	if len(body) > 0 && !s.fits(int64(len(head)+len(body)), now) {
		r.dropped, body = true, nil
	}
	size := int64(len(head) + len(body))
	s.makeRoom(size, now) // whether there is or not: a head is kept in any case
	if !s.holds(r, token) {
		memSetName(&s.table, r, s.table.keyOf(r), token)
	}
	s.table.setAnswer(r, head, body)
	s.table.bytes += size
	r.ended, r.completed = true, now
	s.table.link(&s.table.done, memByDone, r)
	if len(body) > 0 {
		s.table.link(&s.table.bodied, memByBody, r)
	}
	s.table.schedule(r, keep, now)
	s.wake(r)
}

// find returns the record of a key, or nil if the key is free.
func (s *MemoryStore) find(key string, now time.Duration) *memRecord {
	r := s.table.find(key)
	if r != nil && now >= r.expires {
		s.remove(r)
		return nil
	}
	return r
}

func (s *MemoryStore) remove(r *memRecord) {
	s.wake(r)
	s.table.remove(r)
}

// expire forgets up to limit records that have expired and returns how many.
func (s *MemoryStore) expire(limit int, now time.Duration) int {
	n := 0
	for ; n < limit; n++ {
		r := s.table.expired(now)
		if r == nil {
			break
		}
		if n == 0 && s.table.n > memSweep && s.table.allExpired(now) {
			// All in one step; what they held is the collector's.
			for id := range s.waiting {
				s.wake(s.table.at(id))
			}
			n := s.table.n
			s.table.init()
			return n
		}
		s.remove(r)
	}
	return n
}

// status is the state of a record.
func (r *memRecord) status(now time.Duration) ClaimStatus {
	switch {
	case r.ended:
		return ClaimDone
	case now < r.lapses:
		return ClaimRunning
	}
	return ClaimOrphaned
}

// tell is what somebody else is told of a record.
func (s *MemoryStore) tell(r *memRecord, now time.Duration) Claim {
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
		c.Head, c.Body = s.table.answer(r)
	}
	return c
}

// memLater is now + d, or the end of time.
func memLater(now, d time.Duration) time.Duration {
	if t := now + d; t >= now {
		return t
	}
	return math.MaxInt64
}

// Making room.

func (s *MemoryStore) maxRecords() int {
	if s.MaxRecords == 0 {
		return memMaxRecords
	}
	return s.MaxRecords
}

func (s *MemoryStore) maxBytes() int64 {
	if s.MaxBytes == 0 {
		return memMaxBytes
	}
	return s.MaxBytes
}

// admit makes room for one more key and reports whether there is any. A new key
// is only welcome if its answer is likely to find a place: one of average size,
// though one huge answer must not turn away everyone after it.
func (s *MemoryStore) admit(now time.Duration) bool {
	for s.table.n >= s.maxRecords() { // and none of them has expired: see tick
		if !s.dropRecord(now) {
			return false
		}
	}
	need := int64(1)
	if n := int64(s.table.done.n); n > 0 {
		need = max(need, min(s.table.bytes/n, s.maxBytes()/64))
	}
	return s.makeRoom(need, now)
}

// makeRoom drops what may go until size bytes are free, and reports whether
// they are.
func (s *MemoryStore) makeRoom(size int64, now time.Duration) bool {
	for s.table.bytes > s.maxBytes()-size {
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
	for s.table.bytes > s.maxBytes()-size && s.expire(1, now) > 0 {
	}
	short := s.table.bytes + size - s.maxBytes()
	for r := s.table.at(s.table.bodied.first); r != nil && short > 0 && s.bodyMayGo(r, now); r = s.table.at(r.links[memByBody].next) {
		short -= int64(r.body)
	}
	for r := s.table.at(s.table.done.first); r != nil && short > 0 && s.mayGo(r, now); r = s.table.at(r.links[memByDone].next) {
		short -= int64(r.head)
	}
	return short <= 0
}

func (s *MemoryStore) bodyMayGo(r *memRecord, now time.Duration) bool {
	return now-r.completed >= memFresh
}

func (s *MemoryStore) mayGo(r *memRecord, now time.Duration) bool {
	return s.DropAfter > 0 && now-r.completed >= max(s.DropAfter, memFresh)
}

func (s *MemoryStore) dropBody(now time.Duration) bool {
	r := s.table.at(s.table.bodied.first)
	if r == nil || !s.bodyMayGo(r, now) {
		return false
	}
	s.table.unlink(&s.table.bodied, memByBody, r)
	s.table.bytes -= int64(r.body)
	head, _ := s.table.answer(r)
	s.table.setAnswer(r, head, nil)
	r.dropped = true
	return true
}

func (s *MemoryStore) dropRecord(now time.Duration) bool {
	r := s.table.at(s.table.done.first)
	if r == nil || !s.mayGo(r, now) {
		return false
	}
	s.remove(r)
	return true
}

// A memGauge notices when a quantity reaches 80 % of its limit. It is rearmed at
// 70 %, so that a store that hovers about the mark does not fill the log.
type memGauge bool

func (g *memGauge) crossed(v, limit int64) bool {
	part := float64(v) / float64(limit)
	crossed := part >= 0.8 && !bool(*g)
	*g = part >= 0.8 || part >= 0.7 && *g
	return crossed
}

// A memPace measures how many new keys come in a second, over about a minute.
type memPace struct {
	since time.Duration
	n     int
	last  float64 // of the minute before
}

func (p *memPace) count(now time.Duration) {
	if now-p.since >= time.Minute {
		p.last = p.rate(now)
		p.since, p.n = now, 0
	}
	p.n++
}

func (p *memPace) rate(now time.Duration) float64 {
	d := now - p.since
	rate := float64(p.n) / max(d, time.Second).Seconds()
	if d < 10*time.Second {
		rate = max(rate, p.last) // too early to tell
	}
	return rate
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

// Waiting.

// memWaiting is shared by those who wait for one running record.
type memWaiting struct {
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
	id := r.id
	w := s.waiting[id]
	if w == nil {
		w = &memWaiting{changed: make(chan struct{})}
		if s.waiting == nil {
			s.waiting = make(map[memRef]*memWaiting)
		}
		s.waiting[id] = w
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
			s.leave(id, w)
			s.mu.Unlock()
			return ctx.Err()
		case <-lapse.C:
			s.mu.Lock()
			now := s.tick()
			if s.waiting[id] == w {
				if r := s.table.at(id); r.status(now) == ClaimRunning { // it was renewed
					lapse.Reset(r.lapses - now)
					s.mu.Unlock()
					continue
				}
			}
			s.leave(id, w)
			s.mu.Unlock()
			return nil
		}
	}
}

// wake ends every Wait for the record.
func (s *MemoryStore) wake(r *memRecord) {
	if w := s.waiting[r.id]; w != nil {
		close(w.changed)
		delete(s.waiting, r.id)
	}
}

func (s *MemoryStore) leave(id memRef, w *memWaiting) {
	if w.n--; w.n == 0 && s.waiting[id] == w {
		delete(s.waiting, id)
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
	for i := range s.table.index {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		now := s.tick()
		for _, slot := range s.table.index[i].slots {
			r := s.table.at(slot.id)
			if r != nil && now < r.expires && now-r.born >= q.MinAge && (q.Status == 0 || q.Status == r.status(now)) &&
				string(s.table.keyOf(r)) > q.After {
				found = append(found, s.record(r, now))
			}
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
func (s *MemoryStore) record(r *memRecord, now time.Duration) Record {
	c := s.tell(r, now)
	return Record{
		Key:         string(s.table.keyOf(r)),
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
	rec := s.record(r, now)
	rec.Head, rec.Body = s.table.answer(r)
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
	// For nobody, so that whoever held it is told that the claim is lost.
	s.complete(r, "", res.Head, res.Body, keep, now)
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
