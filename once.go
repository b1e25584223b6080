package oncehttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncehttp/oncehttp/internal/calmlog"
)

// A Once runs functions so that each takes effect once for its key: the first
// call for a key runs its function, every repeat gets the answer of that run.
// There is no HTTP in it; [Middleware] is HTTP over a Once.
//
// Only Store must be set. A Once is safe for concurrent use; it must not be
// copied after its first use, nor may its fields be changed then. Any number of
// them, in any number of processes, may share a Store.
//
// This is what can become of a key:
//
//	         Claim                       Complete
//	free ─────────────► running ──────────────────────► done
//	 ▲                  │  ▲  │                          │
//	 │      Release     │  │  │ lease lapses, Renew(0)   │ keep is over
//	 ├──────────────────┘  │  ▼                          │
//	 │            TakeOver └─ orphaned                   │
//	 │                            │ keep is over         │
//	 └────────────────────────────┴──────────────────────┘
//
// and these are the steps of one call:
//
//   - Claim. A claim without an answer is asked again with the same Op. If there
//     is still none the call is refused ([ErrStoreUnavailable]) and its token is
//     released in the background for one whole lease, because the claim may
//     still be on its way.
//   - Done: the call is answered from the record. Running: it waits, up to Wait in
//     all, and attaches; then it is refused ([ErrInProgress]). Orphaned: it is
//     refused ([ErrOutcomeUnknown]), or the key is taken over, as Orphan says.
//     In each of these states binding and fingerprint are compared first.
//   - Acquired: the function runs while a heartbeat renews the claim, every third
//     of the lease. When the claim is lost the function's context is cancelled.
//     When the store cannot be reached it is not: the work goes on.
//   - The function has returned: its answer is recorded, or the key is freed
//     ([Release]), or becomes an orphan ([Unknown]). If the claim turns out to be
//     lost, the call gets the winner's answer, never its own. If the store cannot
//     be reached within Wait, the call gets its own answer, and heartbeat and
//     completion go on in the background. A claim whose work was done is never
//     released.
//   - The heartbeat stops Timeout + Lease after it started, so work that ignores
//     its context becomes an orphan and is not "running" for ever.
type Once struct {
	// Store remembers the keys. It is required. If it is a [Transactor], the
	// functions run inside its transactions.
	Store Store

	// Lease is how long a claim runs on when nothing is heard of its holder.
	// Zero means 30 s.
	Lease time.Duration

	// Keep is how long an answer is kept and replayed. Zero means 24 h.
	Keep time.Duration

	// Wait is how long a call waits for another one that runs under its key,
	// and how long the answer of a finished function waits for the store (at
	// least 100 ms). Zero means 5 s.
	Wait time.Duration

	// Timeout is how long a function may run before its context is cancelled.
	// Zero means 5 min.
	Timeout time.Duration

	// Orphan tells what becomes of a key whose holder vanished. The zero value
	// is OrphanRefuse.
	Orphan Orphan

	// Logger is told what an operator should know. Nil means slog.Default(). A panic
	// of its handler is told on standard error and goes no further.
	Logger *slog.Logger

	busy      busy
	rooms     rooms
	deadlines sharedTimer[*callCtx]
	beats     sharedTimer[*run] // the first of each run
}

const (
	defaultLease   = 30 * time.Second
	defaultKeep    = 24 * time.Hour
	defaultWait    = 5 * time.Second
	defaultTimeout = 5 * time.Minute

	// minRecording is the least time that a finished function's answer waits
	// for the store, so that a Wait of next to nothing does not leave every
	// answer unconfirmed.
	minRecording = 100 * time.Millisecond

	// maxPatience bounds one store call.
	maxPatience = 5 * time.Second
)

// An Orphan tells what to do with a key whose holder vanished before it recorded
// how its work ended.
type Orphan int

const (
	// OrphanRefuse answers that the outcome is unknown. Somebody must find out
	// what happened; nothing is run again on a guess.
	OrphanRefuse Orphan = iota
	// OrphanRerun takes the key over and runs the work again. It is for work
	// that is itself safe to run again.
	OrphanRerun
)

// An OutcomeKind tells how a keyed call or request ended. The zero value is none
// of the kinds.
type OutcomeKind int

const (
	// OutcomeRan: the work ran in this call and its answer is what repeats get.
	OutcomeRan OutcomeKind = iota + 1
	// OutcomeReleased: the work ran in this call, nothing happened, and the key
	// is free again.
	OutcomeReleased
	// OutcomeAttached: the work was running for another call when this one
	// came, and its answer was waited for.
	OutcomeAttached
	// OutcomeReplayed: the work had ended before, and this is its answer.
	OutcomeReplayed
	// OutcomeRefused: nothing was run for this call, and there is no answer.
	OutcomeRefused
	// OutcomeUnknown: work under the key was started, by this call or an
	// earlier one, and nobody knows how it ended.
	OutcomeUnknown
)

// String returns the kind in lower case.
func (k OutcomeKind) String() string {
	switch k {
	case OutcomeRan:
		return "ran"
	case OutcomeReleased:
		return "released"
	case OutcomeAttached:
		return "attached"
	case OutcomeReplayed:
		return "replayed"
	case OutcomeRefused:
		return "refused"
	case OutcomeUnknown:
		return "unknown"
	}
	return "invalid outcome"
}

// An Answer is what a call of [Once.Do] comes to.
type Answer struct {
	// Kind tells how the call ended.
	Kind OutcomeKind

	// Head and Body are what the function returned: in this call, or, for an
	// attached or replayed one, in the call that ran it. The caller must not
	// change them.
	Head, Body []byte

	// BodyDropped says that the store could not keep the body.
	BodyDropped bool

	// Recorded says that repeats are known to get this answer. It is false for
	// one that was released, is unknown, or that the store has not confirmed
	// within Wait; recording then goes on in the background.
	Recorded bool

	// Holder counts the holders the key has had: more than 1 when earlier ones
	// vanished. It is 0 for a call that was refused.
	Holder int
}

var (
	// ErrInProgress says that work under the key is still running. The same call
	// with the same key can be made again.
	ErrInProgress = errors.New("oncehttp: work under this key is still running; ask again later, with the same key")

	// ErrKeyReused says that the key was first used for something else.
	ErrKeyReused = errors.New("oncehttp: this key was first used for something else; new work needs a key of its own")

	// ErrPrincipalChanged says that the key was first used by another caller.
	ErrPrincipalChanged = errors.New("oncehttp: this key was first used by another caller; nothing was run and nothing of theirs is shown")

	// ErrStoreUnavailable says that the store did not answer, so nothing was run.
	ErrStoreUnavailable = errors.New("oncehttp: the store does not answer, so the work was not started; ask again later, with the same key")

	// ErrResponseGone says that the work ended but its answer can no longer be
	// given.
	ErrResponseGone = errors.New("oncehttp: the work under this key has ended, but its answer is no longer kept")
)

// Do runs work under op.Key unless that was done before, and returns the answer.
// Op.Token may be left empty: Do mints one. Fingerprint and Binding, if any, must
// be the same in every call with the key; see [ErrKeyReused] and
// [ErrPrincipalChanged].
//
// The context given to work has the values of ctx but not its end, because work
// that changes something should not be torn off half-way when its caller leaves.
// It ends after Timeout, or when the claim is lost; context.Cause tells which. ctx
// itself only ends the waiting for work that runs in another call.
//
// If work returns no error, its head and body are recorded and every repeat gets
// them; record failures that are final that way too. If it called [Release],
// the key is freed and a repeat runs again. If it called [Unknown], or returned an
// error without calling Release, or panicked, nobody knows what happened, and
// the key becomes an orphan at once: an error is no proof that nothing happened.
// (Inside a [Transactor]'s transaction it is one: everything is rolled back and
// the key is freed.)
//
// The error is nil if there is an answer. Otherwise it is one of
// [ErrPrincipalChanged], [ErrKeyReused], [ErrInProgress], [ErrOutcomeUnknown],
// [ErrStoreUnavailable], [ErrFull], [ErrRolledBack] or [ErrResponseGone], possibly
// wrapped, or what work itself returned: alone if the key was released, else joined
// with ErrOutcomeUnknown. A field or an op that makes no sense is an error that names it.
func (o *Once) Do(ctx context.Context, op Op, work func(ctx context.Context) (head, body []byte, err error)) (Answer, error) {
	if work == nil {
		return Answer{Kind: OutcomeRefused}, errors.New("oncehttp: Once.Do: work is nil")
	}
	w := &funcWork{f: work}
	w.r.op = op
	a, err := o.do(ctx, &w.r.claiming, w)
	switch {
	case err != nil:
		return a, err
	case a.BodyDropped:
		return a, ErrResponseGone
	case a.Kind == OutcomeUnknown && w.err != nil:
		return a, fmt.Errorf("%w: %w", ErrOutcomeUnknown, w.err)
	case a.Kind == OutcomeUnknown:
		return a, ErrOutcomeUnknown
	case a.Kind == OutcomeReleased:
		return a, w.err
	}
	return a, nil
}

// A work is what a Once runs.
type work interface {
	// begin returns the run of a claim that was acquired: its claiming is that which
	// was given to Once.do, or a copy of it, which is not used any more.
	begin() *run
	// run does the work and says how it ended.
	run(ctx context.Context) (head, body []byte, v verdict)
	// died says how it ended when run did not return: it panicked, or called
	// runtime.Goexit.
	died() (head, body []byte, v verdict)
}

type verdict int

const (
	verdictRecord  verdict = iota + 1 // repeats get this head and body
	verdictFree                       // nothing happened
	verdictUnknown                    // nobody can tell
)

// A funcWork is the work of Once.Do.
type funcWork struct {
	r   run
	f   func(ctx context.Context) (head, body []byte, err error)
	err error
}

func (w *funcWork) begin() *run { return &w.r }

func (w *funcWork) run(ctx context.Context) (head, body []byte, v verdict) {
	head, body, w.err = w.f(ctx)
	switch {
	case w.r.saidUnknown.Load():
		return head, body, verdictUnknown
	case w.r.saidRelease.Load() && (w.r.transaction || ctx.Err() == nil):
		return head, body, verdictFree
	case w.r.saidRelease.Load():
		return head, body, verdictUnknown // too late to free the key, and no answer to record
	case w.err == nil:
		return head, body, verdictRecord
	case w.r.transaction:
		return head, body, verdictFree
	}
	return head, body, verdictUnknown
}

func (w *funcWork) died() (head, body []byte, v verdict) { return nil, nil, verdictUnknown }

// check names the first field that makes no sense.
func (o *Once) check() error {
	switch {
	case o.Store == nil:
		return errors.New("oncehttp: Once.Store is nil")
	case o.Lease < 0:
		return errors.New("oncehttp: Once.Lease is negative")
	case o.Keep < 0:
		return errors.New("oncehttp: Once.Keep is negative")
	case o.Wait < 0:
		return errors.New("oncehttp: Once.Wait is negative")
	case o.Timeout < 0:
		return errors.New("oncehttp: Once.Timeout is negative")
	case o.Orphan != OrphanRefuse && o.Orphan != OrphanRerun:
		return errors.New("oncehttp: Once.Orphan is neither OrphanRefuse nor OrphanRerun")
	}
	return nil
}

func (o *Once) lease() time.Duration   { return cmp.Or(o.Lease, defaultLease) }
func (o *Once) keep() time.Duration    { return cmp.Or(o.Keep, defaultKeep) }
func (o *Once) wait() time.Duration    { return cmp.Or(o.Wait, defaultWait) }
func (o *Once) timeout() time.Duration { return cmp.Or(o.Timeout, defaultTimeout) }

// patience is the time that one store call gets. A renewal that takes longer
// than this would come too late for the next one.
func (o *Once) patience() time.Duration { return min(o.lease()/3, maxPatience) }

func (o *Once) log() *slog.Logger { return calmlog.Logger(o.Logger) }

// do is Do for any work. The error is nil if the work's own answer is to be
// delivered, or a recorded one.
func (o *Once) do(ctx context.Context, r *claiming, w work) (Answer, error) {
	refused := Answer{Kind: OutcomeRefused}
	if err := o.check(); err != nil {
		return refused, err
	}
	if r.op.Key == "" {
		return refused, errors.New("oncehttp: Op.Key is empty")
	}
	if r.op.Token == "" {
		r.op.Token = o.newToken()
	}
	r.once, r.ctx = o, ctx

	o.busy.add(1)
	answered := false
	defer func() {
		if !answered { // the store ended this goroutine, and may have given the claim
			o.undo(r, forWholeLease)
		}
		o.busy.add(-1)
	}()
	c, kind, err := o.acquire(ctx, r)
	answered = true
	switch {
	case err != nil && r.unanswered:
		o.undo(r, forWholeLease)
		return Answer{Kind: kind}, err
	case err != nil:
		return Answer{Kind: kind}, err
	case kind == OutcomeRan:
		r.holder = int32(min(c.Holder, math.MaxInt32))
		r.detached()
		run := w.begin()
		if t, ok := o.Store.(Transactor); ok {
			return o.transact(t, run, w)
		}
		return o.execute(run, w)
	}
	if r.unanswered {
		o.undo(r, forWholeLease)
	}
	return Answer{kind, c.Head, c.Body, c.BodyDropped, true, c.Holder}, nil
}

// inMemory says that the store is one that asks nobody, so that there is nothing to wait
// for.
func (o *Once) inMemory() bool {
	_, ok := o.Store.(*MemoryStore)
	return ok
}

// newToken returns a token for a claim. A MemoryStore's are compared in no other
// process, so they need not be random, which a system call would have to make them.
func (o *Once) newToken() string {
	if o.inMemory() {
		return memToken()
	}
	return NewToken()
}

// acquire gets the claim, and OutcomeRan, or learns how the work ended, or that
// it cannot be had: then kind is OutcomeRefused or OutcomeUnknown.
func (o *Once) acquire(ctx context.Context, r *claiming) (c Claim, kind OutcomeKind, err error) {
	kind = OutcomeReplayed
	var w wait
	defer func() { o.rooms.leave(&w, r.op.Key) }()

	c, err = o.ask(r, false)
	for {
		if err != nil {
			return c, OutcomeRefused, err
		}
		if c.Status != ClaimAcquired {
			if err := judge(&c, &r.op); err != nil {
				return c, OutcomeRefused, err
			}
		}
		switch c.Status {
		case ClaimAcquired:
			if err := o.confirm(r, &c, &w); err != nil {
				return c, OutcomeRefused, err
			}
			return c, OutcomeRan, nil

		case ClaimDone:
			return c, kind, nil

		case ClaimOrphaned:
			if o.Orphan != OrphanRerun {
				return c, OutcomeUnknown, ErrOutcomeUnknown
			}
			if w.takeOvers++; w.takeOvers > maxTakeOvers {
				return c, OutcomeRefused, ErrInProgress
			}
			c, err = o.ask(r, true)

		case ClaimRunning:
			kind = OutcomeAttached
			if !w.joined {
				o.rooms.join(&w, r.op.Key)
				w.until = time.Now().Add(o.wait())
			}
			if !o.pause(ctx, &w, r.op.Key, c.Left) || o.rooms.releases(&w) >= maxReleases {
				return c, OutcomeRefused, ErrInProgress
			}
			c, err = o.ask(r, false)
		}
	}
}

// maxTakeOvers bounds how often a call tries to take over a key that keeps being
// orphaned: somebody else takes it each time, and dies.
const maxTakeOvers = 3

// judge compares who asks and what is asked with the first claim on the key, in
// this order: what another caller asked is nobody's business.
func judge(c *Claim, op *Op) error {
	switch {
	case c.Binding != op.Binding:
		return ErrPrincipalChanged
	case c.Fingerprint != op.Fingerprint:
		return ErrKeyReused
	}
	return nil
}

// ask claims, or takes over, and asks again with the same Op if there was no
// answer: the token tells the store that it is the same claim.
func (o *Once) ask(r *claiming, takeOver bool) (Claim, error) {
	var err error
	for range 2 {
		if !o.inMemory() { // which answers at once
			r.asked = thisMoment()
		}
		var c Claim
		c, err = o.claim(r.call(o.patience()), r.op, takeOver)
		switch {
		case err == nil && c.Status >= ClaimAcquired && c.Status <= ClaimOrphaned:
			return c, nil
		case err == nil:
			err = fmt.Errorf("oncehttp: store: Claim returned %v (%d) and no error", c.Status, int(c.Status))
		case errors.Is(err, ErrFull):
			return c, err
		}
		r.unanswered = true
		r.tookOver = r.tookOver || takeOver
	}
	r.log(slog.LevelWarn, "oncehttp: the store does not answer a claim; the work was not started", "err", err)
	return Claim{}, fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
}

// confirm stands between the claim and the work.
func (o *Once) confirm(r *claiming, c *Claim, w *wait) error {
	r.tookOver = c.Holder > 1
	if w.joined && !r.tookOver && !o.rooms.enter(w) {
		// This one has seen the work fail for others; running it for
		// everybody who waits, one after another, would help nobody.
		o.giveBack(r)
		return ErrInProgress
	}
	if r.tookOver {
		// The orphan that was judged and the one that was taken may be two.
		if err := judge(c, &r.op); err != nil {
			o.giveBack(r)
			return err
		}
	}
	lease := o.lease()
	r.acquired = time.Now()
	if c.Left < lease/2 || r.asked != 0 && momentOf(r.acquired).since(r.asked) > lease/3 {
		// The answer took so long that the lease may be over before the first
		// heartbeat, and the key be somebody else's.
		err := o.renew(r.call(o.patience()), r.op, lease)
		switch {
		case errors.Is(err, ErrClaimLost):
			return ErrInProgress
		case err != nil:
			r.unanswered = true
			return fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
		}
		r.acquired = time.Now()
	}
	return nil
}

// giveBack ends a claim whose work was not started.
func (o *Once) giveBack(r *claiming) {
	if err := o.end(r); err != nil && !errors.Is(err, ErrClaimLost) {
		o.undo(r, untilDone)
	}
}

// execute runs the work of a claim that was acquired.
func (o *Once) execute(r *run, w work) (a Answer, err error) {
	o.beats.add(&r.alarm, r, momentOf(r.acquired), o.lease()/3)
	returned, settled := false, false
	var head, body []byte
	var v verdict
	defer func() {
		switch {
		case returned && !settled: // the store ended this goroutine
			o.settleLater(r, head, body, v)
		case !returned:
			// Not recover: the panic goes on, and its stack stays whole for whoever
			// logs it.
			head, body, v = w.died()
			r.died, r.fate = true, &Answer{Kind: OutcomeRan, Holder: int(r.holder)}
			defer func() {
				if !settled {
					o.settleLater(r, head, body, v)
				}
			}()
			*r.fate, _ = o.settle(r, head, body, v)
			settled = true
		}
	}()
	head, body, v = w.run(r)
	returned = true
	a, err = o.settle(r, head, body, v)
	settled = true
	return a, err
}

// settle tells the store how the work ended, and the caller what to answer.
func (o *Once) settle(r *run, head, body []byte, v verdict) (Answer, error) {
	now := time.Now()
	lost := r.finish(now)
	a := Answer{Kind: OutcomeRan, Head: head, Body: body, Holder: int(r.holder)}
	switch v {
	case verdictRecord:
		if lost {
			return o.afterLoss(r)
		}
		switch err := o.record(r, now, head, body); {
		case err == nil:
			r.stop()
			a.Recorded = true
		case errors.Is(err, ErrClaimLost):
			r.stop()
			return o.afterLoss(r)
		default:
			r.log(slog.LevelError, "oncehttp: the work is done but the store does not take its answer; it goes out unconfirmed while recording goes on", "err", err)
			o.recordLater(r, head, body)
		}

	case verdictFree:
		a.Kind = OutcomeReleased
		r.stop()
		o.rooms.released(r.op.Key)
		err := o.end(&r.claiming)
		switch {
		case r.unanswered:
			o.undo(&r.claiming, forWholeLease)
		case err != nil && !errors.Is(err, ErrClaimLost):
			r.log(slog.LevelWarn, "oncehttp: a key cannot be freed; trying on", "err", err)
			o.undo(&r.claiming, untilDone)
		}

	default:
		a.Kind = OutcomeUnknown
		r.stop()
		r.tookOver = true // it is orphaned, not freed
		err := o.end(&r.claiming)
		if lost || errors.Is(err, ErrClaimLost) {
			return o.afterLoss(r)
		}
		r.log(slog.LevelError, "oncehttp: the outcome of work is unknown; its key is an orphan until somebody finds out what happened")
		if err != nil {
			o.undo(&r.claiming, untilDone)
		}
	}
	return a, nil
}

// end gives a claim up: it frees the key, or orphans it if the claim was taken
// over. Freeing that one would forget that an earlier holder vanished, and what
// had been asked of it.
func (o *Once) end(r *claiming) error {
	if r.tookOver {
		return o.renew(r.call(o.patience()), r.op, 0)
	}
	return o.release(r.call(o.patience()), r.op)
}

// record waits for the store to take the answer, up to Wait from now.
func (o *Once) record(r *run, now time.Time, head, body []byte) error {
	left := max(o.wait(), minRecording)
	until := now.Add(left)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := o.complete(r.call(min(left, o.patience())), r.op, head, body, o.keep())
		if err == nil || errors.Is(err, ErrClaimLost) {
			return err
		}
		if time.Until(until) <= pause {
			return err
		}
		time.Sleep(pause)
		left = time.Until(until)
	}
}

// afterLoss answers a call whose claim was lost: with what the winner recorded,
// never with an answer of its own, which no repeat would get.
func (o *Once) afterLoss(r *run) (Answer, error) {
	r.log(slog.LevelError, "oncehttp: a claim was lost before its work was recorded; another holder may have done the work too")
	w := wait{until: time.Now().Add(o.wait())}
	for {
		c, err := o.claim(r.call(o.patience()), r.op, false)
		if err == nil && c.Status != ClaimAcquired {
			err = judge(&c, &r.op)
		}
		switch {
		case err != nil:
		case c.Status == ClaimDone:
			return Answer{OutcomeReplayed, c.Head, c.Body, c.BodyDropped, true, c.Holder}, nil
		case c.Status == ClaimRunning:
			if !o.pause(r.base, &w, r.op.Key, c.Left) {
				return Answer{Kind: OutcomeUnknown}, ErrInProgress
			}
			continue
		case c.Status == ClaimAcquired:
			// The key was free: the store, or an operator, forgot it. The work
			// has run, so it must not look as if it had not.
			r.tookOver = true
			o.giveBack(&r.claiming)
		}
		return Answer{Kind: OutcomeUnknown}, fmt.Errorf("%w: the claim was lost while it ran", ErrOutcomeUnknown)
	}
}

// Drain waits until no function runs and nothing is left to tell the store, or
// until ctx ends. Call it at shutdown, after whatever calls Do has stopped, so
// that what was done is also recorded: what a process still owes the store when
// it ends becomes an orphan.
func (o *Once) Drain(ctx context.Context) error { return o.busy.drain(ctx) }

// busy counts what Drain waits for. Every call counts, few programs are just ending: so
// counting takes no lock unless somebody waits.
type busy struct {
	n atomic.Int64 // and draining, while somebody waits: who counts down to it alone ends the waiting

	mu   sync.Mutex
	idle chan struct{} // closed when there is nothing to wait for; nil if nobody waits
}

const draining = 1 << 62

func (b *busy) add(n int64) {
	if b.n.Add(n) != draining {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settle()
}

// settle has those who wait go on, if there is nothing to wait for. b.mu is locked.
func (b *busy) settle() {
	if b.idle != nil && b.n.Load() == draining {
		close(b.idle)
		b.idle = nil
		b.n.Add(-draining)
	}
}

func (b *busy) drain(ctx context.Context) error {
	b.mu.Lock()
	if b.idle == nil {
		b.idle = make(chan struct{})
		b.n.Add(draining)
	}
	idle := b.idle
	b.settle()
	b.mu.Unlock()
	select {
	case <-idle:
		return nil
	default:
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("oncehttp: drain: %d calls are still running or owe the store an answer: %w", b.n.Load()&^draining, context.Cause(ctx))
	}
}
