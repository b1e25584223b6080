package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncehttp/oncehttp"
)

var errEndsWithWork = errors.New("pgstore: the transaction ends with the work: return from it instead")

// Transact implements [oncehttp.Transactor]. When the server rolls a transaction
// back because of a serialization failure or a deadlock, or because the connection
// broke, work runs again in a new one, a few times in all (see [WithRuns]), and
// nobody else gets the key meanwhile. A deadlock that work survives by a savepoint
// is its own affair.
//
// Its errors are ErrClaimLost, ErrRolledBack and ErrOutcomeUnknown, as the contract
// says, and those of the server when work was not started, or was rolled back and its
// key could not be given up yet.
func (t *TxStore) Transact(ctx context.Context, op oncehttp.Op, keep time.Duration, work func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd)) error {
	if err := checkComplete(&op, keep); err != nil {
		return err
	}
	if err := t.prepare(ctx); err != nil {
		return err
	}
	sl, err := t.slots.enter(ctx, op.Token)
	if err != nil {
		return t.failed(ctx, "transact", err)
	}
	defer t.slots.leave(op.Token, sl)

	var sess session
	// A claim locked a moment ago is as good as verified.
	if sl.sess != nil && sl.op.Key == op.Key && (time.Since(sl.since) < time.Second || t.holds(ctx, sl)) {
		sess = t.drop(sl)
	}
	for run := 1; ; run++ {
		if sess == nil {
			if sess, err = t.relock(ctx, &op); err != nil {
				if run > 1 {
					return fmt.Errorf("%w: it could not be run again: %w", oncehttp.ErrRolledBack, err)
				}
				return err
			}
		}
		again, err := t.attempt(ctx, sess, &op, keep, work, run < t.tx.mostRuns())
		if !again {
			return err
		}
		sess = nil
		// Whoever won a deadlock needs a moment to take the rows that this one
		// had: else both meet again, in the same way.
		if t.breathe(ctx, run+5) != nil {
			t.giveUp(&op)
			return fmt.Errorf("%w: there was no time left to run again", oncehttp.ErrRolledBack)
		}
	}
}

// relock opens a transaction that locks the row of a claim that is not held.
func (t *TxStore) relock(ctx context.Context, op *oncehttp.Op) (session, error) {
	ctx, cancel := context.WithTimeout(ctx, t.tx.settling())
	defer cancel()
	args := []any{rowID(op.Key), packToken(op.Token), nil}
	var lost losses
	for try := 0; ; try++ {
		sess, err := t.db.session(ctx)
		if err == nil {
			var yes bool
			args[2] = micros(t.grace())
			began := time.Now()
			if yes, err = t.row(ctx, sess, t.sql.reclaim, args, &yes); yes {
				yes, err = t.lock(ctx, sess, op)
				t.took(began, err)
				if yes {
					return sess, nil
				}
			}
			sess.release()
		}
		switch {
		case err == nil:
			// Somebody else has it; or somebody has just looked whether it is
			// locked; or a connection of ours that broke still locks it.
			var own, done bool
			found, err := t.row(ctx, t.db, t.sql.state, args[:2], &own, &done)
			if err != nil {
				return nil, t.failed(ctx, "transact", err)
			}
			if !found || !own || done {
				return nil, oncehttp.ErrClaimLost
			}
		case state(err) == serializationFailure || lost.another(t.db, err):
		default:
			return nil, t.failed(ctx, "transact", err)
		}
		if err := t.breathe(ctx, try); err != nil {
			return nil, t.failed(ctx, "transact", err)
		}
	}
}

// attempt runs work once. again: it was rolled back for a reason that may not come
// back, and may run again.
func (t *TxStore) attempt(ctx context.Context, sess session, op *oncehttp.Op, keep time.Duration, work func(context.Context) ([]byte, []byte, oncehttp.TxEnd), more bool) (again bool, err error) {
	var head, body []byte
	var end oncehttp.TxEnd
	returned := false
	defer func() {
		sess.release()
		if !returned { // it panicked: nothing of it may stay
			t.giveUp(op)
		}
	}()
	err = sess.run(ctx, func(ctx context.Context) {
		head, body, end = work(ctx)
		returned = true
	})
	if err != nil {
		returned = true
		return false, t.failed(ctx, "transact", err)
	}
	more = more && ctx.Err() == nil

	mishap := sess.mishap()
	switch {
	case sess.ended():
		return false, t.endedEarly(ctx, sess, op)
	case end == oncehttp.TxUnknown: // also after a mishap: what it did elsewhere must not be done again
		return false, t.orphan(ctx, sess, op)
	case end != oncehttp.TxCommit:
		sess.release()
		if mishap != nil && more {
			return true, nil
		}
		return false, t.end(op, t.sql.releaseFree)
	}
	// The work is done; that its caller has no time left must not undo it.
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.tx.settling())
	defer cancel()
	var notified, asked bool
	found, err := sess.then(cctx, t.sql.record, []any{rowID(op.Key), packToken(op.Token), head, body, micros(keep)}, &notified, sqlUnmark, "")
	if err == nil && !found {
		err = errors.New("pgstore: the claim's row is gone, although it was locked: did work change the table of records?")
	}
	if err == nil {
		asked = true
		err = sess.commit(cctx)
	}
	switch {
	case err == nil:
		t.waits.wake(op.Key)
		return false, nil
	case !asked && state(err) == noSavepoint:
		return false, t.endedEarly(ctx, sess, op)
	case asked && unsure(err):
		sess.release()
		switch committed, known := t.settle(ctx, op); {
		case !known:
			t.setUnsettled(op.Token, true)
			return false, fmt.Errorf("%w: the server's answer to the commit was lost: %w", oncehttp.ErrOutcomeUnknown, err)
		case committed:
			t.waits.wake(op.Key)
			return false, nil
		}
		if more {
			return true, nil
		}
	case state(err) == serializationFailure, state(err) == deadlockDetected, !asked && disconnected(err), mishap != nil:
		if more {
			return true, nil
		}
	case state(err) == failedTransaction, errors.Is(err, pgx.ErrTxCommitRollback):
		err = fmt.Errorf("a statement of work had failed, after which the server commits nothing: "+
			"work should not ask for a commit then, or use a savepoint: %w", err)
	}
	sess.release()
	if ferr := t.giveUp(op); ferr != nil {
		return false, fmt.Errorf("%w: %w (and the key is free only when the server notices: %w)", oncehttp.ErrRolledBack, err, ferr)
	}
	return false, fmt.Errorf("%w: %w", oncehttp.ErrRolledBack, err)
}

var errEndedEarly = fmt.Errorf("%w: the transaction ended before the work did: it executed COMMIT or ROLLBACK", oncehttp.ErrOutcomeUnknown)

// orphan undoes what work did and makes an orphan of its key, in one. If the
// connection is lost, it does the second on another one: then somebody else may have
// got the key in between.
func (t *TxStore) orphan(ctx context.Context, sess session, op *oncehttp.Op) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.tx.settling())
	defer cancel()
	_, err := sess.row(ctx, sqlUndo, nil)
	if err == nil {
		err = t.orphans(ctx, sess, op)
	}
	if err == nil {
		return nil
	}
	sess.release()
	if again := t.orphanLater(ctx, op); again != nil {
		return fmt.Errorf("pgstore: what work did was rolled back, but its key could not be made an orphan: %w; and then: %w", err, again)
	}
	return nil
}

// orphanLater makes an orphan of a key whose transaction is over.
func (t *TxStore) orphanLater(ctx context.Context, op *oncehttp.Op) error {
	sess, err := t.relock(ctx, op)
	if err != nil {
		return err
	}
	defer sess.release()
	return t.orphans(ctx, sess, op)
}

// endedEarly is for a transaction that work has ended, with what it had written by
// then: nobody can tell what that was.
func (t *TxStore) endedEarly(ctx context.Context, sess session, op *oncehttp.Op) error {
	sess.release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.tx.settling())
	defer cancel()
	if err := t.orphanLater(ctx, op); err != nil {
		return fmt.Errorf("%w (and its key could not be made an orphan: %w)", errEndedEarly, err)
	}
	return errEndedEarly
}

// orphans makes an orphan of a key whose row a session has locked.
func (t *TxStore) orphans(ctx context.Context, sess session, op *oncehttp.Op) error {
	var notified bool
	found, err := sess.row(ctx, t.sql.renew, []any{rowID(op.Key), packToken(op.Token), int64(0)}, &notified)
	if err == nil && !found {
		err = oncehttp.ErrClaimLost
	}
	if err == nil {
		err = sess.commit(ctx)
	}
	if err == nil {
		t.waits.wake(op.Key)
	}
	return err
}

// unsure reports whether an error in answer to a commit leaves open whether it
// happened.
func unsure(err error) bool {
	switch code := state(err); {
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return false
	case code == "":
		return true
	default:
		var pg *pgconn.PgError
		return disconnected(err) || code == "40003" || errors.As(err, &pg) && pg.Severity != "" && pg.Severity != "ERROR"
	}
}

// settle finds out how a transaction ended whose commit was not answered. As long
// as the server has not ended it, it holds its lock.
func (t *TxStore) settle(ctx context.Context, op *oncehttp.Op) (committed, known bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.tx.settling())
	defer cancel()
	for try := 0; ; try++ {
		var own bool
		var done *bool
		found, err := t.row(ctx, t.db, t.sql.settle, []any{rowID(op.Key), packToken(op.Token)}, &own, &done)
		switch {
		case err != nil: // perhaps a later one can be asked
		case !found || !own:
			return false, false // gone, or another's: that says nothing of ours
		case done != nil:
			return *done, true
		}
		if t.breathe(ctx, max(try, 5)) != nil {
			return false, false
		}
	}
}

// giveUp frees a key whose transaction was rolled back, or makes it an orphan again if
// it was taken over. It would be that anyway, as soon as the server has noticed.
func (t *TxStore) giveUp(op *oncehttp.Op) error { return t.end(op, t.sql.giveUp) }

// end runs a statement that ends the claim of a transaction that was rolled back.
func (t *TxStore) end(op *oncehttp.Op, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	err := t.change(ctx, "give up", sql, op, true)
	if errors.Is(err, oncehttp.ErrClaimLost) { // somebody has it already
		return nil
	}
	return err
}

// mostUnsettled bounds what is remembered of commits whose outcome nobody asked
// for again.
const mostUnsettled = 10_000

func (t *TxStore) setUnsettled(token string, yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !yes {
		delete(t.unsettled, token)
		return
	}
	for old := range t.unsettled {
		if len(t.unsettled) < mostUnsettled {
			break
		}
		delete(t.unsettled, old)
	}
	t.unsettled[token] = true
}

func (t *TxStore) isUnsettled(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unsettled[token]
}
