package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

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
//     running, because its holder may be about to lock it. (It has longer where that
//     took long the last time.) Should another one take
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

	slots   slots
	locking atomic.Int64 // how long the latest claim took to lock its row

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
// lost. Without it that is 5 s. The outcome is unknown when that is over. Recording
// what work answered, and its commit, may take as long, whatever the caller's time.
// It must leave the time to connect to the server again.
func WithSettle(d time.Duration) TxOption { return func(o *txOptions) { o.settle = d } }

const (
	defaultRuns   = 3
	defaultSettle = 5 * time.Second

	// grace is how long after its commit a transactional claim may take to lock
	// its row, at least. Two round trips are enough; should they take longer, nothing
	// worse happens than that somebody else gets the key.
	leastGrace = 250 * time.Millisecond
)

// grace is what the next claim gets to lock its row: twice what the latest one took.
// If that were not enough time and after time, all who want one key would take it from
// each other for ever.
func (t *TxStore) grace() time.Duration {
	return max(leastGrace, 2*time.Duration(t.locking.Load()))
}

// took notes how long a claim took to lock its row, unless err kept it from that.
func (t *TxStore) took(began time.Time, err error) {
	if err == nil {
		t.locking.Store(int64(time.Since(began)))
	}
}

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
	w := wanted{op: &op, lease: lease, keep: keep, orphans: orphans}
	var lost losses
	for try := 0; ; try++ {
		w.begins = micros(min(lease, t.grace()))
		c, sess, err := t.claimAndLock(ctx, w)
		switch {
		case err == nil && sess != nil:
			t.hold(sl, c, op, sess, lease, keep)
			t.sweepSometimes()
			return c, nil
		case err == nil && c.Status != 0:
			return c, nil
		case err == nil: // it was taken before we locked it
		case state(err) == serializationFailure || lost.another(t.db, err):
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
	began := time.Now()
	c, err := t.claim(ctx, sess, w)
	if err != nil || c.Status != oncehttp.ClaimAcquired {
		sess.release()
		return c, nil, err
	}
	late, done := lateContext(ctx, closing) // a claim that is not locked is half of one
	defer done()
	locked, err := t.lock(late, sess, w.op)
	t.took(began, err)
	if !locked {
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
	ctx, done := lateContext(ctx, closing) // torn off, it would give the key away
	defer done()
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
	ctx, done := lateContext(ctx, closing) // half of it would give the key away
	defer done()
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

var _ interface {
	oncehttp.Store
	oncehttp.Waiter
	oncehttp.Inspector
	oncehttp.Transactor
} = (*TxStore)(nil)
