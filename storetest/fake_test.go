package storetest

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A fake is a store in the plainest form, wrong in one way that its fault
// names. Without a fault it is right.
type fake struct {
	fault string
	seen  atomic.Bool // the fault was met
	ended atomic.Bool

	mu      sync.Mutex
	records map[string]*fakeRecord
	disk    map[string]fakeRecord // what a crash leaves
}

type fakeRecord struct {
	op           oncehttp.Op // token is that of the holder
	key          string
	born         time.Time
	lapses       time.Time
	keep         time.Duration
	expires      time.Time
	done         bool
	head, body   []byte
	holders      int
	claimedUnder context.Context
	lease        time.Duration
}

var errFake = errors.New("fake: arguments make no sense")

func newFake(fault string) *fake {
	return &fake{fault: fault, records: map[string]*fakeRecord{}, disk: map[string]fakeRecord{}}
}

func (f *fake) is(fault string) bool {
	if f.fault == fault {
		f.seen.Store(true)
		return true
	}
	return false
}

func (f *fake) key(k string) string {
	switch {
	case f.is("keys are lower-cased"):
		return strings.ToLower(k)
	case f.is("keys end at a NUL"):
		k, _, _ = strings.Cut(k, "\x00")
	case f.is("trailing space is trimmed"):
		return strings.TrimRight(k, " ")
	case f.is("invalid UTF-8 becomes U+FFFD"):
		return strings.ToValidUTF8(k, "\uFFFD")
	case f.is("keys are cut at 255 bytes") && len(k) > 255:
		return k[:255]
	}
	return k
}

func (f *fake) get(key string) *fakeRecord {
	now := time.Now()
	r := f.records[f.key(key)]
	if r == nil {
		return nil
	}
	gone := !now.Before(r.expires)
	switch {
	case r.done && f.is("a done record never expires"):
		gone = false
	case !r.done && f.is("an orphan never expires"):
		gone = false
	case !r.done && f.is("a lapsed lease frees the key"):
		gone = !now.Before(r.lapses)
	case !r.done && f.is("keep is counted from the claim, whatever the lease"):
		gone = !now.Before(r.born.Add(r.keep))
	case !r.done && r.claimedUnder.Err() != nil && f.is("a record dies with the context of its claim"):
		gone = true
	}
	if gone {
		delete(f.records, f.key(key))
		return nil
	}
	return r
}

func (f *fake) sync() {
	if f.fault == "what is done is written later" {
		f.seen.Store(true)
		for k, r := range f.records {
			if !r.done {
				f.disk[k] = *r
			}
		}
		return
	}
	f.disk = map[string]fakeRecord{}
	for k, r := range f.records {
		f.disk[k] = *r
	}
}

// crash returns the store as it is opened again.
func (f *fake) crash() *fake {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := newFake(f.fault)
	for k, r := range f.disk {
		if !r.done && f.is("claims are kept in memory only") {
			continue
		}
		next.records[k] = &r
	}
	next.sync()
	return next
}

func (f *fake) status(r *fakeRecord) oncehttp.ClaimStatus {
	switch {
	case r.done:
		return oncehttp.ClaimDone
	case time.Now().Before(r.lapses):
		return oncehttp.ClaimRunning
	}
	return oncehttp.ClaimOrphaned
}

func (f *fake) answer(r *fakeRecord) oncehttp.Claim {
	c := oncehttp.Claim{Status: f.status(r), Fingerprint: r.op.Fingerprint, Binding: r.op.Binding, Holder: r.holders, Left: time.Until(r.expires)}
	switch c.Status {
	case oncehttp.ClaimDone:
		c.Head, c.Body = r.head, r.body
		if f.is("the head is lost") {
			c.Head = nil
		}
	case oncehttp.ClaimRunning:
		c.Left = time.Until(r.lapses)
	}
	switch {
	case f.is("Left is a time since 1970"):
		c.Left = time.Duration(time.Now().UnixNano())
	case f.is("Left of a running record is that of its retention") && c.Status == oncehttp.ClaimRunning:
		c.Left = time.Until(r.expires)
	case f.is("Left is more than was asked for"):
		c.Left += 20 * time.Millisecond
	}
	return c
}

// later does not overflow: the longest Duration is some 292 years.
func later(d time.Duration) time.Time {
	return time.Now().Add(min(d, 200*365*24*time.Hour))
}

func (f *fake) extend(r *fakeRecord, lease, keep time.Duration, renewed bool) {
	if lease < time.Millisecond && lease > 0 && f.is("what is less than a millisecond is for ever") {
		lease = 1000 * time.Hour
	}
	if f.is("durations are 32 bits of milliseconds") {
		lease = time.Duration(int32(lease.Milliseconds())) * time.Millisecond
		keep = time.Duration(int32(keep.Milliseconds())) * time.Millisecond
	}
	if lease == 0 && f.is("a lease of 0 means the one before") {
		lease = r.lease
	}
	r.lease, r.keep = lease, keep
	r.lapses = later(lease)
	if renewed && f.is("Renew does not lengthen the retention") {
		return
	}
	r.expires = later(max(lease, keep))
}

func (f *fake) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return f.take(ctx, op, lease, keep, false)
}

func (f *fake) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return f.take(ctx, op, lease, keep, true)
}

func (f *fake) take(ctx context.Context, op oncehttp.Op, lease, keep time.Duration, orphans bool) (oncehttp.Claim, error) {
	if (op.Key == "" || op.Token == "" || lease <= 0 || keep <= 0) && !f.is("arguments are not looked at") {
		return oncehttp.Claim{}, errFake
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.sync()
	if err := ctx.Err(); err != nil {
		switch {
		case f.is("a cancelled claim is left without its fingerprint"):
			if f.get(op.Key) == nil {
				r := &fakeRecord{op: oncehttp.Op{Key: op.Key, Token: op.Token}, key: op.Key, born: time.Now(), holders: 1, claimedUnder: context.Background()}
				f.extend(r, lease, keep, false)
				f.records[f.key(op.Key)] = r
			}
		case f.is("a cancelled claim is said to be acquired"):
			return oncehttp.Claim{Status: oncehttp.ClaimAcquired, Left: lease, Holder: 1}, nil
		}
		return oncehttp.Claim{}, err
	}
	r := f.get(op.Key)
	if r == nil {
		if f.is("looks first and then inserts") || orphans && f.is("TakeOver of a free key looks first and then inserts") {
			f.mu.Unlock()
			time.Sleep(time.Millisecond)
			f.mu.Lock()
		}
		r = &fakeRecord{op: op, key: op.Key, born: time.Now(), holders: 1, claimedUnder: ctx}
		f.extend(r, lease, keep, false)
		f.records[f.key(op.Key)] = r
		c := f.answer(r)
		c.Status, c.Left = oncehttp.ClaimAcquired, lease
		return c, nil
	}
	own := r.op.Token == op.Token
	switch s := f.status(r); {
	case s == oncehttp.ClaimDone && f.is("Claim hangs on a done record"):
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
		return oncehttp.Claim{}, ctx.Err()
	case s == oncehttp.ClaimDone && f.is("Claim panics on a done record"):
		panic("nil pointer, say")
	case s == oncehttp.ClaimDone:
		return f.answer(r), nil
	case own && f.is("the own token is not recognised"):
		own = false
	case own && s == oncehttp.ClaimOrphaned && f.is("the own token is not recognised after its lease lapsed"):
		own = false
	}
	if own {
		if orphans && f.is("a repeated TakeOver raises Holder") {
			r.holders++
		}
		if !f.is("a repeated Claim does not start the lease anew") {
			f.extend(r, lease, keep, false)
		}
	} else {
		s := f.status(r)
		may := orphans && s == oncehttp.ClaimOrphaned
		switch {
		case orphans && s == oncehttp.ClaimRunning && f.is("TakeOver takes running keys"),
			!orphans && s == oncehttp.ClaimOrphaned && f.is("Claim takes orphans"):
			may = true
		case may && f.is("TakeOver never wins"):
			may = false
		}
		if !may {
			if s == oncehttp.ClaimOrphaned && f.is("asking lengthens the life of an orphan") {
				r.expires = later(max(r.lease, r.keep))
			}
			return f.answer(r), nil
		}
		if f.is("TakeOver looks first and then updates") {
			f.mu.Unlock()
			time.Sleep(time.Millisecond)
			f.mu.Lock()
		}
		if !f.is("TakeOver does not raise Holder") {
			r.holders++
		}
		if !f.is("TakeOver does not rotate the token") {
			r.op.Token = op.Token
		}
		if f.is("TakeOver replaces the fingerprint") {
			r.op = op
		}
		if f.is("TakeOver does not lengthen the retention") {
			expires := r.expires
			f.extend(r, lease, keep, false)
			r.expires = expires
		} else {
			f.extend(r, lease, keep, false)
		}
	}
	c := f.answer(r)
	c.Status, c.Left = oncehttp.ClaimAcquired, lease
	return c, nil
}

// held returns the record that the token may act on, or nil and what to return.
func (f *fake) held(ctx context.Context, op oncehttp.Op, method string) (*fakeRecord, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := f.get(op.Key)
	switch {
	case r == nil:
		return nil, lost
	case r.op.Token != op.Token && !f.is(method+" does not compare the token"):
		if r.done && f.is(method+" by another token on a done record is nil") {
			return nil, nil
		}
		return nil, lost
	case f.status(r) == oncehttp.ClaimOrphaned && f.is(method+" does not heal"):
		return nil, lost
	}
	return r, nil
}

func (f *fake) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	if (op.Key == "" || op.Token == "" || lease < 0) && !f.is("arguments are not looked at") {
		return errFake
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.sync()
	r, err := f.held(ctx, op, "Renew")
	if err == lost && f.get(op.Key) == nil && f.is("Renew of a free key is nil") {
		return nil
	}
	if r == nil {
		return err
	}
	if r.done {
		if f.is("Renew of a done record is lost to its own token") {
			return lost
		}
		if f.is("Renew lengthens the retention of a done record") {
			r.expires = later(max(lease, r.keep))
		}
		return nil
	}
	if f.is("Renew never shortens the lease") && lease > 0 {
		lease = max(lease, time.Until(r.lapses))
	}
	f.extend(r, lease, r.keep, true)
	return nil
}

func (f *fake) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	if (op.Key == "" || op.Token == "" || keep <= 0) && !f.is("arguments are not looked at") {
		return errFake
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.sync()
	if ctx.Err() != nil && f.is("a cancelled Complete records a head and no body") {
		if r, _ := f.held(context.Background(), op, "Complete"); r != nil && !r.done {
			r.done, r.head, r.expires = true, bytes.Clone(head), later(keep)
		}
	}
	r, err := f.held(ctx, op, "Complete")
	if err == lost && f.get(op.Key) == nil && f.is("Complete of a free key makes a record") {
		f.records[f.key(op.Key)] = &fakeRecord{op: op, key: op.Key, born: time.Now(), holders: 1, done: true, head: head, body: body, expires: later(keep)}
		return nil
	}
	if r == nil {
		return err
	}
	if r.done && !f.is("a repeated Complete replaces the bytes") && !f.is("a repeated Complete lengthens the retention") {
		if f.is("a repeated Complete is lost") {
			return lost
		}
		return nil
	}
	if r.done && f.fault == "a repeated Complete lengthens the retention" {
		r.expires = later(keep)
		return nil
	}
	if f.is("the keep of Complete is not used") {
		keep = r.keep
	}
	if f.is("the token is forgotten by Complete") {
		r.op.Token = ""
	}
	r.done = true
	if f.is("head and body are recorded one after the other") {
		r.head = bytes.Clone(head)
		f.mu.Unlock()
		time.Sleep(time.Millisecond)
		f.mu.Lock()
	}
	r.head, r.body, r.expires = bytes.Clone(head), bytes.Clone(body), later(keep)
	switch {
	case f.is("the caller's slices are kept"):
		r.head, r.body = head, body
	case f.is("bodies are text"):
		r.body = bytes.ToValidUTF8(r.body, []byte("?"))
	case f.is("bodies are cut at 4 KiB"):
		r.body = r.body[:min(len(r.body), 4096)]
	}
	return nil
}

func (f *fake) Release(ctx context.Context, op oncehttp.Op) error {
	if (op.Key == "" || op.Token == "") && !f.is("arguments are not looked at") {
		return errFake
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.sync()
	r, err := f.held(ctx, op, "Release")
	switch {
	case err == lost && f.get(op.Key) == nil:
		if f.is("Release of a free key is lost") {
			return lost
		}
		return nil
	case r == nil:
		return err
	case r.done && !f.is("Release frees a done record"):
		return nil
	case f.is("Release leaves an orphan"):
		f.extend(r, 0, r.keep, false)
		return nil
	}
	delete(f.records, f.key(op.Key))
	return nil
}

// A fakeWaiter is a fake that polls for those who wait.
type fakeWaiter struct{ *fake }

func (f fakeWaiter) Wait(ctx context.Context, key string) error {
	switch {
	case f.is("Wait returns at once"):
		return nil
	case f.is("Wait returns nil when its context ends"):
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		<-ctx.Done()
		return nil
	case f.is("Wait is never woken"):
		<-ctx.Done()
		return ctx.Err()
	case f.is("Wait does not look at its context"):
		ctx = context.Background()
	}
	for ctx.Err() == nil && !f.ended.Load() {
		f.mu.Lock()
		r := f.get(key)
		changed := r == nil || f.status(r) != oncehttp.ClaimRunning
		f.mu.Unlock()
		if changed {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

// A fakeInspector is a fake with the operator's methods.
type fakeInspector struct{ *fake }

func (f fakeInspector) record(r *fakeRecord) oncehttp.Record {
	c := f.answer(r)
	return oncehttp.Record{Key: r.key, Status: c.Status, Fingerprint: c.Fingerprint, Binding: c.Binding,
		Age: time.Since(r.born), Left: c.Left, Holder: c.Holder, Head: c.Head, Body: c.Body}
}

func (f fakeInspector) List(ctx context.Context, q oncehttp.RecordQuery) ([]oncehttp.Record, error) {
	if q.Limit < 0 || q.Limit > 1000 || q.MinAge < 0 || q.Status < 0 || q.Status == oncehttp.ClaimAcquired || q.Status > oncehttp.ClaimOrphaned {
		if !f.is("List takes any query") {
			return nil, errFake
		}
		q.Limit = 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []oncehttp.Record
	for k, r := range f.records {
		if !time.Now().Before(r.expires) && !f.is("List shows what has expired") {
			continue
		}
		after := r.key > q.After || r.key == q.After && q.After != "" && f.is("After is part of the page")
		rec := f.record(r)
		if f.is("Age counts from the takeover") && r.holders > 1 {
			rec.Age = 0
		}
		if k == "" || !after || rec.Age < q.MinAge || q.Status != 0 && rec.Status != q.Status && !f.is("List does not look at Status") {
			continue
		}
		if !f.is("List shows bodies") {
			rec.Head, rec.Body = nil, nil
		}
		all = append(all, rec)
	}
	slices.SortFunc(all, func(a, b oncehttp.Record) int {
		if f.is("List is not in byte order") {
			return strings.Compare(strings.ToLower(a.Key), strings.ToLower(b.Key))
		}
		return strings.Compare(a.Key, b.Key)
	})
	limit := q.Limit
	if limit == 0 {
		limit = 100
		if f.is("List without a limit shows all") {
			limit = math.MaxInt
		}
	}
	return all[:min(len(all), limit)], nil
}

func (f fakeInspector) Show(ctx context.Context, key string) (oncehttp.Record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.get(key)
	if r == nil {
		if f.is("Show of a free key is an empty record") {
			return oncehttp.Record{Key: key}, nil
		}
		return oncehttp.Record{}, oncehttp.ErrNotFound
	}
	rec := f.record(r)
	if f.is("Show leaves the body out") {
		rec.Body = nil
	}
	return rec, nil
}

func (f fakeInspector) Resolve(ctx context.Context, key string, res oncehttp.Resolution) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.get(key)
	switch {
	case r == nil:
		return oncehttp.ErrNotFound
	case f.status(r) == oncehttp.ClaimRunning && f.is("Resolve settles running records"):
	case f.status(r) != oncehttp.ClaimOrphaned:
		return oncehttp.ErrNotOrphaned
	}
	if !res.Applied && !f.is("Resolve as not applied records it") {
		delete(f.records, f.key(key))
		return nil
	}
	keep := res.Keep
	if keep == 0 {
		keep = r.keep
		if f.is("Resolve without Keep keeps for no time") {
			keep = 0
		}
	}
	r.done, r.head, r.body, r.expires = true, res.Head, res.Body, later(keep)
	if !f.is("Resolve does not rotate the token") {
		r.op.Token = ""
	}
	return nil
}

func (f fakeInspector) Purge(ctx context.Context, key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.get(key)
	switch {
	case r == nil:
		return oncehttp.ErrNotFound
	case f.status(r) == oncehttp.ClaimRunning && !f.is("Purge forgets running records"):
		return oncehttp.ErrNotPurgeable
	case r.done && f.is("Purge refuses done records"):
		return oncehttp.ErrNotPurgeable
	}
	delete(f.records, f.key(key))
	return nil
}

type refusedKey struct{}

// refuseFake has a fake refuse to commit.
func refuseFake(ctx context.Context) { *ctx.Value(refusedKey{}).(*bool) = true }

// A fakeTransactor is a fake whose transactions hold nothing but the record.
type fakeTransactor struct{ *fake }

func (f fakeTransactor) Transact(ctx context.Context, op oncehttp.Op, keep time.Duration, work func(context.Context) (head, body []byte, end oncehttp.TxEnd)) error {
	f.mu.Lock()
	r, err := f.held(ctx, op, "Transact")
	isDone := r != nil && r.done
	f.mu.Unlock()
	switch {
	case err == lost && f.is("Transact does not verify the claim"):
	case isDone && f.is("Transact runs completed work again"):
	case err != nil:
		return err
	case isDone:
		return lost
	}
	defer func() {
		if p := recover(); p != nil {
			switch taken := r.holders > 1; {
			case f.is("a panic leaves the claim"):
			case taken && !f.is("a panic frees a key that was taken over"):
				f.Renew(context.Background(), op, 0)
			default:
				f.Release(context.Background(), op)
			}
			if !f.is("a panic ends in Transact") {
				panic(p)
			}
		}
	}()
	refused := false
	head, body, end := work(context.WithValue(ctx, refusedKey{}, &refused))
	switch {
	case end == oncehttp.TxUnknown && f.is("work that cannot tell frees the key"):
		return f.Release(context.Background(), op)
	case end == oncehttp.TxUnknown && f.is("work that cannot tell leaves the claim"):
		return nil
	case end == oncehttp.TxUnknown:
		if f.is("an orphan of a transaction is kept as long as an answer") {
			r.keep = keep
		}
		return f.Renew(context.Background(), op, 0)
	case end != oncehttp.TxCommit && !f.is("everything is committed"):
		return f.Release(context.Background(), op)
	case refused && f.is("a refused commit is nobody's business"):
		return f.Release(context.Background(), op)
	case refused && f.is("a refused commit is unknown"):
		return oncehttp.ErrOutcomeUnknown
	case refused && r.holders > 1 && f.is("a refused commit frees a key that was taken over"):
		f.Release(context.Background(), op)
		return oncehttp.ErrRolledBack
	case refused:
		return oncehttp.ErrRolledBack
	}
	if f.is("the body is not part of the transaction") {
		body = nil
	}
	if f.is("Transact keeps for as long as the claim") {
		keep = r.keep
	}
	return f.Complete(context.WithoutCancel(ctx), op, head, body, keep)
}
