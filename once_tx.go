package oncehttp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

// transact runs the work inside a transaction of the store. There is no
// heartbeat: the transaction holds the claim, and a crash rolls it back.
func (o *Once) transact(t Transactor, r *run, w work) (a Answer, err error) {
	r.transaction = true
	var v verdict
	started, returned, undone, ended, told := false, false, false, false, false
	var panicked any // what work panicked with after it had called Unknown
	a.Holder = int(r.holder)
	defer func() {
		switch {
		case r.died:
			return
		case started && !returned:
			// A panic of the work itself goes on. Nothing was committed, since
			// only the work's return could have asked for it.
			defer func() { // also if a log ends the goroutine
				fate := o.panickedWithin(r)
				r.died, r.fate = true, &fate
			}()
			r.finish(time.Now())
			return
		}
		p := recover()
		if p == nil && told {
			return
		}
		if !ended {
			err = errGoexit
		}
		defer func() {
			a, err = o.transacted(r, a, v, started, err)
			if p != nil {
				r.goOn(panicked, a)
			}
		}()
		r.finish(time.Now())
		if p != nil {
			err = o.panicked("Transact", p)
		}
	}()
	err = t.Transact(r, r.op, o.keep(), func(ctx context.Context) (head, body []byte, end TxEnd) {
		defer func() {
			if returned || !r.saidUnknown.Load() {
				return
			}
			// A store frees the key of work that panics, and whoever waits for it would
			// run at once. So this panic goes on when the key is an orphan.
			if panicked = recover(); panicked != nil {
				r.log(slog.LevelError, "oncehttp: work called Unknown in a transaction, and panicked", "stack", string(debug.Stack()))
				returned, v = true, verdictUnknown
				a.Head, a.Body = nil, nil
				head, body, end = nil, nil, TxUnknown
			}
		}()
		if started && r.saidUnknown.Load() {
			// It was rolled back, and with it the answer by which it could tell after all.
			v, undone = verdictUnknown, true
			return nil, nil, TxUnknown
		}
		r.saidRelease.Store(false) // what was rolled back counts no more
		started, returned = true, false
		a.Head, a.Body, v = w.run(ctx)
		returned = true
		return a.Head, a.Body, r.txEnd(v)
	})
	ended = true
	r.finish(time.Now())
	told = true
	a, err = o.transacted(r, a, v, started, err)
	r.goOn(panicked, a)
	if undone && err == nil { // what work answered must not go out
		a.Head, a.Body = nil, nil
		return a, ErrOutcomeUnknown
	}
	return a, err
}

// goOn panics with what work panicked with, if it did.
func (r *run) goOn(panicked any, fate Answer) {
	if panicked != nil {
		r.died, r.fate = true, &fate
		panic(panicked)
	}
}

// txEnd is how the transaction is to end. A key that was taken over is not freed,
// but left the orphan that it was; see end.
func (r *run) txEnd(v verdict) TxEnd {
	switch {
	case v == verdictRecord:
		return TxCommit
	case v == verdictUnknown || r.tookOver:
		return TxUnknown
	}
	return TxRollback
}

// panickedWithin says what becomes of a key whose work panicked in a transaction,
// which the store has rolled back. What the work did elsewhere was not. It is the end
// of a goroutine that this meets after Unknown, not a panic; then somebody may have had
// the key in between.
func (o *Once) panickedWithin(r *run) Answer {
	if r.saidUnknown.Load() {
		o.orphan(r)
		return Answer{Kind: OutcomeUnknown, Holder: int(r.holder)}
	}
	o.undo(&r.claiming, untilDone)
	return Answer{Kind: OutcomeReleased, Holder: int(r.holder)}
}

// transacted answers for a transaction that ended with err. It logs last, because a log
// may end the goroutine.
func (o *Once) transacted(r *run, a Answer, v verdict, started bool, err error) (Answer, error) {
	switch {
	case err == nil && v == verdictRecord:
		a.Kind, a.Recorded = OutcomeRan, true
		return a, nil
	case err == nil && v == verdictFree:
		a.Kind = OutcomeReleased
		o.rooms.released(r.op.Key)
		return a, nil
	case err == nil && v == verdictUnknown:
		// What the work did outside of the transaction is what it cannot tell.
		a.Kind = OutcomeUnknown
		r.log(slog.LevelError, "oncehttp: the outcome of work is unknown; its key is an orphan until somebody finds out what happened")
		return a, nil
	case err == nil:
		err = errors.New("oncehttp: store: Transact returned nil without running the work")
	}

	own := a
	a.Head, a.Body = nil, nil
	switch {
	case !started && errors.Is(err, ErrClaimLost):
		a.Kind = OutcomeRefused
		return a, ErrInProgress
	case !started:
		o.undo(&r.claiming, untilDone)
		r.log(slog.LevelWarn, "oncehttp: the store cannot begin a transaction; the work was not started", "err", err)
		a.Kind = OutcomeRefused
		return a, fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
	case errors.Is(err, ErrRolledBack) && v == verdictRecord && r.saidUnknown.Load():
		// The answer by which work could tell after all is not there.
		o.orphan(r)
		r.log(slog.LevelError, "oncehttp: a transaction was rolled back whose work had called Unknown; its key is an orphan until somebody finds out what happened", "err", err)
		a.Kind = OutcomeUnknown
		return a, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	case errors.Is(err, ErrRolledBack) && v != verdictUnknown:
		o.rooms.released(r.op.Key)
		if r.tookOver {
			o.orphan(r)
		} else {
			o.undo(&r.claiming, untilDone)
		}
		r.log(slog.LevelWarn, "oncehttp: a transaction was rolled back although its work wanted it committed; a repeat runs again", "err", err)
		a.Kind = OutcomeReleased
		return a, err
	case v == verdictFree && !errors.Is(err, ErrClaimLost) && !errors.Is(err, ErrOutcomeUnknown):
		// No commit was asked for, so there was none.
		o.undo(&r.claiming, untilDone)
		r.log(slog.LevelWarn, "oncehttp: the store failed to roll a transaction back; trying to free its key", "err", err)
		own.Kind = OutcomeReleased
		return own, nil
	case v == verdictUnknown:
		o.orphan(r)
		r.log(slog.LevelError, "oncehttp: the outcome of work is unknown, and the store failed to make its key an orphan; trying on", "err", err)
		own.Kind = OutcomeUnknown
		return own, nil
	}
	r.tookOver = true
	o.undo(&r.claiming, untilDone)
	r.log(slog.LevelError, "oncehttp: the store cannot tell whether a transaction was committed; its key is an orphan until somebody finds out", "err", err)
	a.Kind = OutcomeUnknown
	if errors.Is(err, ErrOutcomeUnknown) {
		return a, err
	}
	return a, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
}

// orphan makes an orphan of a key that a rollback may have freed, unless somebody
// else has it by now.
func (o *Once) orphan(r *run) {
	r.tookOver = true
	if c, err := o.claim(r.call(o.patience()), r.op, false); err != nil || c.Status == ClaimAcquired {
		o.giveBack(&r.claiming)
	}
}
