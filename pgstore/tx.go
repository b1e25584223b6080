package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncehttp/oncehttp"
)

// A TxStore is a Store whose work runs inside a transaction, so that what it
// writes to this database and its record are committed together or not at all. It
// is an [oncehttp.Transactor]; [Tx] and [SQLTx] give work the transaction. Make one
// with [Store.Transactional]. Any number of stores of both kinds may share a table.
//
//   - Claim commits the claim's row, then opens the transaction and locks the row
//     in it, on one connection. The lock is what says that the claim is running:
//     there is no lease to wait for when its holder crashes. The server then rolls
//     back, the lock is gone, and the key is free (or, if it was taken over, the orphan
//     again that it was).
//   - A row that is not locked, and was claimed less than 250 ms ago, also counts as
//     running, because its holder may be about to lock it. Should another one take
//     the key all the same, the holder finds out when it locks the row, before its
//     work starts.
//   - Each claim keeps its connection until its work has ended. The pool must have
//     more connections than there is work at a time; when none is free, new claims
//     wait for one, then fail, and nothing runs.
//   - A claim that nobody comes to run (by Transact) within its lease becomes an
//     orphan, like those of a Store.
//
// Work must leave the transaction open: it is committed or rolled back when work
// has returned. It must not keep it longer than the server's
// idle_in_transaction_session_timeout allows between two statements: the server
// would roll back and the key be free while work still runs. What work does
// elsewhere than in this transaction is not rolled back.
type TxStore struct {
	*Store
	tx txOptions

	slots slots

	mu        sync.Mutex
	unsettled map[string]bool // tokens whose commit may or may not have happened
}

// A TxOption changes what Transactional makes.
type TxOption func(*txOptions)

type txOptions struct {
	isolation sql.IsolationLevel
	runs      int
	settle    time.Duration
}

// WithIsolation sets the isolation level of the transactions. Without it, and with
// sql.LevelDefault, it is the server's default, mostly read committed.
func WithIsolation(level sql.IsolationLevel) TxOption {
	return func(o *txOptions) { o.isolation = level }
}

// WithRuns sets how often work may run in all when its transaction was rolled back
// by a serialization failure, a deadlock, or the loss of the connection. Without it
// that is 3 times; 1 means that it is not run again.
func WithRuns(n int) TxOption { return func(o *txOptions) { o.runs = n } }

// WithSettle sets how long to look for the outcome of a commit whose reply was
// lost. Without it that is 5 s. The outcome is unknown when that is over.
func WithSettle(d time.Duration) TxOption { return func(o *txOptions) { o.settle = d } }

const (
	defaultRuns   = 3
	defaultSettle = 5 * time.Second

	// grace is how long after its commit a transactional claim may take to lock
	// its row. Two round trips are enough; should they take longer, nothing worse
	// happens than that somebody else gets the key.
	grace = 250 * time.Millisecond
)

// Transactional returns a store on the same table that runs work inside
// transactions. An option that makes no sense is an error of every later call.
func (s *Store) Transactional(opts ...TxOption) *TxStore {
	t := &TxStore{Store: s, unsettled: make(map[string]bool)}
	for _, opt := range opts {
		opt(&t.tx)
	}
	return t
}

func (t *TxStore) prepare(ctx context.Context) error {
	switch {
	case t.tx.runs < 0:
		return errors.New("pgstore: WithRuns: the number is negative")
	case t.tx.settle < 0:
		return errors.New("pgstore: WithSettle: the time is negative")
	case t.tx.begin() == "":
		return fmt.Errorf("pgstore: WithIsolation: PostgreSQL has no level %v", t.tx.isolation)
	}
	return t.Store.prepare(ctx)
}

func (o *txOptions) begin() string {
	switch o.isolation {
	case sql.LevelDefault:
		return "BEGIN"
	case sql.LevelReadUncommitted, sql.LevelReadCommitted:
		return "BEGIN ISOLATION LEVEL READ COMMITTED"
	case sql.LevelRepeatableRead, sql.LevelSnapshot:
		return "BEGIN ISOLATION LEVEL REPEATABLE READ"
	case sql.LevelSerializable:
		return "BEGIN ISOLATION LEVEL SERIALIZABLE"
	}
	return ""
}

func (o *txOptions) mostRuns() int {
	if o.runs == 0 {
		return defaultRuns
	}
	return o.runs
}

func (o *txOptions) settling() time.Duration {
	if o.settle == 0 {
		return defaultSettle
	}
	return o.settle
}

// Tx returns the transaction that ctx, the context of work that a [TxStore] runs,
// carries; or nil if it carries none, as for a request without a key. The
// transaction ends with the work: its Commit and Rollback return an error and do
// nothing. Savepoints (its Begin) are the caller's own.
func Tx(ctx context.Context) pgx.Tx {
	if tx, ok := ctx.Value(txKey{}).(*workTx); ok {
		return tx
	}
	return nil
}

// SQLTx is Tx for a store made by [NewSQL].
func SQLTx(ctx context.Context) *sql.Tx {
	tx, _ := ctx.Value(sqlTxKey{}).(*sql.Tx)
	return tx
}

type (
	txKey    struct{}
	sqlTxKey struct{}
)

// Claim implements [oncehttp.Store].
func (t *TxStore) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return t.take(ctx, "claim", op, lease, keep, false)
}

// TakeOver implements [oncehttp.Store].
func (t *TxStore) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return t.take(ctx, "take over", op, lease, keep, true)
}

func (t *TxStore) take(ctx context.Context, what string, op oncehttp.Op, lease, keep time.Duration, orphans bool) (oncehttp.Claim, error) {
	if err := checkTake(&op, lease, keep); err != nil {
		return oncehttp.Claim{}, err
	}
	if err := t.prepare(ctx); err != nil {
		return oncehttp.Claim{}, err
	}
	sl, err := t.slots.enter(ctx, op.Token)
	if err != nil {
		return oncehttp.Claim{}, t.failed(ctx, what, err)
	}
	defer t.slots.leave(op.Token, sl)
	if sl.sess != nil && sl.op.Key != op.Key {
		return oncehttp.Claim{}, errToken
	}
	if sl.sess != nil && t.holds(ctx, sl) {
		sl.extend(lease, keep)
		c := sl.claim
		c.Left = lease
		return c, nil
	}
	w := wanted{op: &op, lease: lease, keep: keep, orphans: orphans, begins: micros(min(lease, grace))}
	for try := 0; ; try++ {
		c, sess, err := t.claimAndLock(ctx, w)
		switch {
		case err == nil && sess != nil:
			t.hold(sl, c, op, sess, lease, keep)
			t.sweepSometimes()
			return c, nil
		case err == nil && c.Status != 0:
			return c, nil
		case err == nil: // it was taken before we locked it
		case state(err) == serializationFailure || disconnected(err) && try < 2:
		default:
			return oncehttp.Claim{}, t.failed(ctx, what, err)
		}
		if err := t.breathe(ctx, try); err != nil {
			return oncehttp.Claim{}, t.failed(ctx, what, err)
		}
	}
}

var errToken = errors.New("pgstore: Op.Token holds another key already; a token is for one claim")

// claimAndLock claims, and locks what it claimed, on one connection. No session
// and no status: the key was lost in between.
func (t *TxStore) claimAndLock(ctx context.Context, w wanted) (oncehttp.Claim, session, error) {
	sess, err := t.db.session(ctx)
	if err != nil {
		return oncehttp.Claim{}, nil, err
	}
	c, err := t.claim(ctx, sess, w)
	if err != nil || c.Status != oncehttp.ClaimAcquired {
		sess.release()
		return c, nil, err
	}
	if locked, err := t.lock(ctx, sess, w.op); !locked {
		sess.release()
		return oncehttp.Claim{}, nil, err
	}
	return c, sess, nil
}

// lock opens a transaction, locks the row in it, and reports whether it is still
// the token's.
func (t *TxStore) lock(ctx context.Context, sess session, op *oncehttp.Op) (bool, error) {
	if err := sess.begin(ctx, t.tx.begin()); err != nil {
		return false, err
	}
	var yes bool
	return sess.then(ctx, t.sql.lock, []any{rowID(op.Key), packToken(op.Token)}, &yes, "", sqlMark)
}

// What work does is undone by a savepoint where its key must not be free for a
// moment. The savepoint comes after the lock, which it would undo otherwise, and
// is released before the record is written: two transaction ids that lock and
// change one row would cost a third, of those that the server is thrifty with.
const (
	sqlMark   = "SAVEPOINT oncehttp_work"
	sqlUnmark = "RELEASE SAVEPOINT oncehttp_work"
	sqlUndo   = "ROLLBACK TO SAVEPOINT oncehttp_work"
)

// locks locks the row in a session's transaction, if it is the token's and nobody
// else has locked it.
func (t *TxStore) locks(ctx context.Context, sess session, op *oncehttp.Op) (bool, error) {
	var yes bool
	return sess.row(ctx, t.sql.lock, []any{rowID(op.Key), packToken(op.Token)}, &yes)
}

// hold keeps a session whose transaction has locked the row, for one lease.
func (t *TxStore) hold(sl *slot, c oncehttp.Claim, op oncehttp.Op, sess session, lease, keep time.Duration) {
	t.slots.retain(sl)
	sl.claim, sl.op, sl.sess = c, op, sess
	sl.extend(lease, keep)
	if sl.timer != nil {
		sl.timer.Stop()
	}
	sl.timer = time.AfterFunc(lease, func() { t.lapse(sl) })
}

// holds reports whether a held session still holds the row, and drops it if it
// does not.
func (t *TxStore) holds(ctx context.Context, sl *slot) bool {
	if yes, err := t.locks(ctx, sl.sess, &sl.op); yes && err == nil {
		return true
	}
	t.drop(sl).release()
	return false
}

// drop takes the session out of a slot. The caller ends it.
func (t *TxStore) drop(sl *slot) session {
	sess := sl.sess
	sl.sess = nil
	sl.timer.Stop()
	t.slots.forget(sl.op.Token, sl)
	return sess
}

// lapse makes a held claim an orphan when its lease is over: its holder lives and
// may have begun something.
func (t *TxStore) lapse(sl *slot) {
	<-sl.turn
	defer func() { sl.turn <- struct{}{} }()
	if sl.sess == nil || time.Now().Before(sl.lapses) { // it was renewed
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	// It lapsed just now, and so lasts as long as it would have from its latest
	// renewal.
	if err := t.finish(ctx, sl, t.sql.lapse, micros(max(sl.keep-sl.lease, 0))); err != nil {
		t.log().Warn("pgstore: a claim whose lease lapsed cannot be made an orphan; its key is free", "err", t.explain("lapse", err))
	}
}

// finish runs a statement that ends a held claim, and commits it.
func (t *TxStore) finish(ctx context.Context, sl *slot, sql string, rest ...any) error {
	sess := t.drop(sl)
	defer sess.release()
	var notified bool
	_, err := sess.row(ctx, sql, append([]any{rowID(sl.op.Key), packToken(sl.op.Token)}, rest...), &notified)
	if err == nil {
		err = sess.commit(ctx)
	}
	if err == nil {
		t.waits.wake(sl.op.Key)
	}
	return err
}

// held calls f with the slot of a token if the token is held, and reports whether
// f was successful. Otherwise the claim is, by then, one that a Store's methods can
// change.
func (t *TxStore) held(ctx context.Context, op *oncehttp.Op, f func(sl *slot) error) (done bool, leave func(), err error) {
	sl, err := t.slots.enter(ctx, op.Token)
	if err != nil {
		return false, nil, err
	}
	leave = func() { t.slots.leave(op.Token, sl) }
	return sl.sess != nil && sl.op.Key == op.Key && f(sl) == nil, leave, nil
}

// Renew implements [oncehttp.Store]. A claim that is renewed but not held by a
// transaction any more goes on as one of a Store, with a lease.
func (t *TxStore) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	if err := checkRenew(&op, lease); err != nil {
		return err
	}
	if err := t.prepare(ctx); err != nil {
		return err
	}
	done, leave, err := t.held(ctx, &op, func(sl *slot) error {
		if lease == 0 {
			return t.finish(ctx, sl, t.sql.lapse, micros(sl.keep))
		}
		if !t.holds(ctx, sl) {
			return oncehttp.ErrClaimLost
		}
		sl.extend(lease, sl.keep)
		return nil
	})
	if err != nil {
		return t.failed(ctx, "renew", err)
	}
	defer leave()
	switch {
	case done:
		return nil
	case lease == 0 && t.isUnsettled(op.Token):
		// Whoever could not learn how a commit ended calls it unknown. The
		// server knows: either the record is there, or nothing is.
		err := orFree(t.change(ctx, "settle", t.sql.giveUp, &op, true))
		if err == nil {
			t.setUnsettled(op.Token, false)
		}
		return err
	}
	return t.change(ctx, "renew", t.sql.renewFree, &op, lease == 0, micros(lease))
}

// Complete implements [oncehttp.Store].
func (t *TxStore) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	if err := checkComplete(&op, keep); err != nil {
		return err
	}
	if err := t.prepare(ctx); err != nil {
		return err
	}
	done, leave, err := t.held(ctx, &op, func(sl *slot) error {
		return t.finish(ctx, sl, t.sql.record, head, body, micros(keep))
	})
	if err != nil {
		return t.failed(ctx, "complete", err)
	}
	defer leave()
	if done {
		return nil
	}
	return t.change(ctx, "complete", t.sql.completeFree, &op, true, head, body, micros(keep))
}

// Release implements [oncehttp.Store].
func (t *TxStore) Release(ctx context.Context, op oncehttp.Op) error {
	if err := checkOp(&op); err != nil {
		return err
	}
	if err := t.prepare(ctx); err != nil {
		return err
	}
	done, leave, err := t.held(ctx, &op, func(sl *slot) error { return t.finish(ctx, sl, t.sql.release) })
	if err != nil {
		return t.failed(ctx, "release", err)
	}
	defer leave()
	if done {
		return nil
	}
	return orFree(t.change(ctx, "release", t.sql.releaseFree, &op, true))
}

// Close ends the transactions of claims that nobody runs, whose keys are free
// then, and the store that t was made from. Work that runs goes on.
func (t *TxStore) Close() {
	t.slots.close(func(sl *slot) {
		if sl.sess != nil {
			t.drop(sl).release()
		}
	})
	t.Store.Close()
}

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
	args := []any{rowID(op.Key), packToken(op.Token), micros(grace)}
	for try := 0; ; try++ {
		sess, err := t.db.session(ctx)
		if err == nil {
			var yes bool
			if yes, err = t.row(ctx, sess, t.sql.reclaim, args, &yes); yes {
				if yes, err = t.lock(ctx, sess, op); yes {
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
		case state(err) == serializationFailure || disconnected(err) && try < 2:
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

var _ interface {
	oncehttp.Store
	oncehttp.Waiter
	oncehttp.Inspector
	oncehttp.Transactor
} = (*TxStore)(nil)
