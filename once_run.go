package oncehttp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Release says, from within work that a [Once] or a [Middleware] runs and with
// its context, that nothing happened: the key is to be freed, so that a repeat
// runs again. It may be called at any time before the work returns; what the work
// then answers is sent once and not recorded.
//
// It has no effect if [Unknown] is called too, if the context has already ended
// (a repeat may be running by then), if the work panics, once an answer that was
// announced as recorded is being streamed, or on any other context.
func Release(ctx context.Context) {
	if r, ok := ctx.Value(runKey{}).(*run); ok {
		r.saidRelease.Store(true)
	}
}

// Unknown says, from within work that a [Once] or a [Middleware] runs and with
// its context, that nobody can tell whether it took effect, for instance because
// a call to another server got no answer. Repeats are then told that the
// outcome is unknown, or, under OrphanRerun, run the work again.
//
// A handler's answer 2xx, 3xx, or 4xx that does not free the key is definite: it
// is recorded as usual. It wins over [Release]. It has no effect on any other
// context, or after the work has returned.
func Unknown(ctx context.Context) {
	if r, ok := ctx.Value(runKey{}).(*run); ok {
		r.saidUnknown.Store(true)
	}
}

type runKey struct{}

// A claiming is one call's way to the claim on a key. Most calls are repeats, which never
// get it; so what only its holder needs is in a run.
type claiming struct {
	once *Once
	op   Op
	ctx  context.Context // the caller's
	base context.Context // its values without its end; see detached

	method, path string // of the request, for logs

	asked      moment    // when the store was last asked for the claim, unless it is in memory
	acquired   time.Time // when it had been given and was confirmed
	unanswered bool      // and once did not answer, so a claim may still be on its way
	tookOver   bool      // others have held the key, or may have
	holder     int32     // Claim's Holder, which counts up from 1
}

// detached returns a context with the values of the caller's, and without its end.
func (r *claiming) detached() context.Context {
	if r.base == nil {
		r.base = context.WithoutCancel(r.ctx)
	}
	return r.base
}

// A run is one call's claim on a key. It is also the context of the work.
type run struct {
	claiming
	saidRelease, saidUnknown atomic.Bool

	transaction bool // the store's transaction holds the claim
	died        bool // the work panicked, or ended its goroutine

	// Under mu. They are here because there is room.
	lost    bool // the claim was, while the work ran
	over    bool // the work has returned
	stopped bool // no more heartbeat
	failing bool // the last renewal failed

	fate *Answer // if it died: what became of its key

	mu       sync.Mutex
	std      context.Context // made when it is first needed; see context
	cancel   context.CancelCauseFunc
	stopStd  context.CancelFunc
	beat     *time.Timer   // from the first heartbeat on
	beatCall *callCtx      // the renewal that is under way
	beatDone chan struct{} // closed when it is over

	alarm alarm[*run] // of its first heartbeat
}

var errTimeout = errors.New("oncehttp: the work ran longer than its Timeout allows")

// log tells an operator what happened to this run.
func (r *claiming) log(level slog.Level, msg string, args ...any) {
	attrs := []any{"key", logKey(r.op.Key)}
	if r.method != "" {
		attrs = append(attrs, "method", r.method, "path", r.path)
	}
	r.once.log().Log(r.detached(), level, msg, append(attrs, args...)...)
}

// deadline is the end of the work's time.
func (r *run) deadline() time.Time { return r.acquired.Add(r.once.timeout()) }

// timeUp is the first heartbeat.
func (r *run) timeUp() { r.heartbeat() }

// heartbeat renews the claim once. The timer is armed first, so that a store
// that hangs holds up neither the next renewal nor anything else.
func (r *run) heartbeat() {
	lease := r.once.lease()
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return
	}
	if !time.Now().Before(r.deadline().Add(lease)) {
		r.stopped = true
		over := r.over
		r.mu.Unlock()
		if !over {
			r.log(slog.LevelError, "oncehttp: work goes on although its Timeout is over; its claim is no longer renewed and becomes an orphan")
		}
		return
	}
	if r.beat == nil {
		r.beat = time.AfterFunc(lease/3, r.heartbeat)
	} else {
		r.beat.Reset(lease / 3)
	}
	if r.beatCall != nil { // the one before still hangs
		r.mu.Unlock()
		return
	}
	call := r.once.newCall(r.base, r.once.patience())
	r.beatCall, r.beatDone = call, make(chan struct{})
	r.mu.Unlock()

	err := errGoexit
	defer func() { r.renewed(err) }()
	err = r.once.renew(call, r.op, lease)
}

// renewed takes note of how a renewal ended.
func (r *run) renewed(err error) {
	r.mu.Lock()
	close(r.beatDone)
	r.beatCall = nil
	first := err != nil && !r.failing
	r.failing = err != nil
	if r.stopped {
		r.mu.Unlock()
		return
	}
	lost := errors.Is(err, ErrClaimLost)
	switch {
	case lost && r.over:
		// The completion that is under way finds out by itself; it may also be
		// what this renewal met.
		lost = false
		first = false
	case lost:
		r.lost, r.stopped = true, true
		r.beat.Stop()
		if r.cancel != nil {
			r.cancel(errLost)
		}
	case err != nil:
		r.beat.Reset(r.once.lease() / 10) // the lease is running out
	}
	r.mu.Unlock()
	switch {
	case lost:
		r.log(slog.LevelError, "oncehttp: a claim was lost while its work ran; the work's context is cancelled")
	case first:
		r.log(slog.LevelWarn, "oncehttp: a claim cannot be renewed; its work goes on", "err", err)
	}
}

var errLost = fmt.Errorf("oncehttp: the work's right to run is gone: %w", ErrClaimLost)

// finish ends the work's context. It reports whether the claim was lost.
func (r *run) finish(now time.Time) (lost bool) {
	err := r.err(now)
	r.mu.Lock()
	late := !r.over && err == context.DeadlineExceeded
	r.over, lost = true, r.lost
	if r.cancel != nil {
		r.cancel(context.Canceled)
		r.stopStd()
	}
	r.mu.Unlock()
	if late {
		r.log(slog.LevelWarn, "oncehttp: work ran longer than its Timeout allows", "timeout", r.once.timeout())
	}
	return lost
}

// stop ends the heartbeat.
func (r *run) stop() {
	r.mu.Lock()
	r.stopped = true
	if r.beat != nil {
		r.beat.Stop()
	}
	call, done := r.beatCall, r.beatDone
	r.mu.Unlock()
	r.once.beats.remove(&r.alarm)
	if call == nil {
		return
	}
	// A renewal that is under way could make the claim run again after a Renew
	// of zero, so it is waited for, if the store lets it end.
	call.end(context.Canceled)
	late := time.NewTimer(r.once.patience())
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
}

// call returns the context of one store call from the caller's goroutine, which may
// take d.
func (r *claiming) call(d time.Duration) context.Context {
	if r.once.inMemory() {
		return context.Background()
	}
	return r.once.newCall(r.detached(), d)
}

// A run is a context. What context's own types offer (children without a
// goroutine, causes) it takes from them, but it makes those only when they are
// needed: few handlers that are quick look at their context.
func (r *run) context() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.std == nil {
		ctx, cancel := context.WithCancelCause(r.base)
		r.std, r.stopStd = context.WithDeadlineCause(ctx, r.deadline(), errTimeout)
		r.cancel = cancel
		switch {
		case r.lost:
			cancel(errLost)
		case r.over:
			cancel(context.Canceled)
		}
		if r.over {
			r.stopStd()
		}
	}
	return r.std
}

// Deadline implements context.Context.
func (r *run) Deadline() (time.Time, bool) { return r.deadline(), true }

// Done implements context.Context.
func (r *run) Done() <-chan struct{} { return r.context().Done() }

// Err implements context.Context.
func (r *run) Err() error { return r.err(time.Now()) }

func (r *run) err(now time.Time) error {
	r.mu.Lock()
	std, ended := r.std, r.lost || r.over
	r.mu.Unlock()
	switch {
	case std != nil:
		return std.Err()
	case ended:
		return context.Canceled
	case !now.Before(r.deadline()):
		return context.DeadlineExceeded
	}
	return nil
}

// Value implements context.Context.
func (r *run) Value(key any) any {
	if _, ok := key.(runKey); ok {
		return r
	}
	if v := r.base.Value(key); v != nil {
		return v
	}
	return r.context().Value(key) // the key by which package context finds itself
}

// isLost tells whether the claim was lost while the work ran.
func (r *run) isLost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

// ended tells whether the work's context has ended, for whatever reason.
func (r *run) ended() bool { return r.Err() != nil }

// The store's methods, each of which may panic: that is an error like any other,
// because a store's fault must not end the process from within a timer.

func (o *Once) claim(ctx context.Context, op Op, takeOver bool) (c Claim, err error) {
	defer o.guard("Claim", ctx, &err)
	if takeOver {
		return o.Store.TakeOver(ctx, op, o.lease(), o.keep())
	}
	return o.Store.Claim(ctx, op, o.lease(), o.keep())
}

func (o *Once) renew(ctx context.Context, op Op, lease time.Duration) (err error) {
	defer o.guard("Renew", ctx, &err)
	return o.Store.Renew(ctx, op, lease)
}

func (o *Once) complete(ctx context.Context, op Op, head, body []byte, keep time.Duration) (err error) {
	defer o.guard("Complete", ctx, &err)
	return o.Store.Complete(ctx, op, head, body, keep)
}

func (o *Once) release(ctx context.Context, op Op) (err error) {
	defer o.guard("Release", ctx, &err)
	return o.Store.Release(ctx, op)
}

func (o *Once) guard(method string, ctx context.Context, err *error) {
	if c, ok := ctx.(*callCtx); ok {
		c.end(context.Canceled)
	}
	if p := recover(); p != nil {
		*err = o.panicked(method, p)
	}
}

// panicked makes an error of a store's panic. Its value may hold anything, so
// only what the runtime itself says is repeated.
func (o *Once) panicked(method string, p any) error {
	o.log().Error("oncehttp: the store panicked", "method", method, "stack", string(debug.Stack()))
	if err, ok := p.(runtime.Error); ok {
		return fmt.Errorf("oncehttp: store: %s panicked: %w", method, err)
	}
	return fmt.Errorf("oncehttp: store: %s panicked with a %T", method, p)
}

// logKey is what logs show of a record's key: enough to find it, too little to
// use it.
func logKey(key string) string {
	if strings.HasPrefix(key, recordKeyPrefix) && len(key) > 16 {
		return key[:16] // a digest already
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:6])
}
