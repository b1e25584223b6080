package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A TxStore is a Store whose work runs inside a transaction on the file, so that
// what it writes there and its record are committed together or not at all. It is
// an [oncehttp.Transactor]; [Tx] gives work the transaction. Make one with
// [Store.Transactional]. Stores of both kinds may share a file.
//
//   - Claim commits the claim's record. Then Transact begins a transaction, which
//     takes the file's write lock, verifies the claim in it, and runs the work.
//   - SQLite has one write lock, so work runs one at a time, whatever its keys, and
//     nothing else is written to the file meanwhile: first claims of other keys wait,
//     up to WithBusyTimeout, then fail, and nothing runs for them. Replays go on.
//     Keep such work short, and do not have it wait for others.
//   - When a process dies, the system frees its locks, and SQLite forgets what was not
//     committed. So no lease has to lapse: a store that has transactional claims keeps
//     a lock on an empty file beside the other, with -owner- and a number after its
//     name, and a claim of a store whose lock is free is over at once. Its key is free
//     then, for whoever asks for it, or the orphan again that it was, if it was taken
//     over.
//   - A claim of another process that lives is running until its lease has lapsed, for
//     WithBusyTimeout more, in which its holder may wait for the write lock, and then
//     as long as somebody has that. Should the holder come later still, it finds out
//     before its work starts.
//   - Work never has to run again because of what other transactions did: it has the
//     lock before it starts.
//   - A claim of this store that nobody comes to run (by Transact) within its lease
//     becomes an orphan, like those of a Store.
//
// What work does elsewhere than in this transaction is not rolled back.
type TxStore struct{ *Store }

// Transactional returns the store for work that is to run inside transactions.
func (s *Store) Transactional() *TxStore { return &TxStore{s} }

// Tx returns the transaction that ctx, the context of work that a [TxStore] runs,
// carries; or nil if it carries none, as for a request without a key. It ends with
// the work: its Commit does nothing and returns [ErrEndsWithWork], and so does its
// Rollback, after which nothing is committed whatever work answers.
func Tx(ctx context.Context) *sql.Tx {
	tx, _ := ctx.Value(txKey{}).(*sql.Tx)
	return tx
}

type txKey struct{}

// Claim implements [oncehttp.Store].
func (t *TxStore) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return t.take(ctx, "claim", op, lease, keep, false, t.id)
}

// TakeOver implements [oncehttp.Store].
func (t *TxStore) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return t.take(ctx, "take over", op, lease, keep, true, t.id)
}

// Transact implements [oncehttp.Transactor]. Its errors are ErrClaimLost,
// ErrRolledBack and ErrOutcomeUnknown, as the contract says, and, when work was not
// started, [ErrLocked] and others.
func (t *TxStore) Transact(ctx context.Context, op oncehttp.Op, keep time.Duration, work func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd)) error {
	if err := checkOp(&op); err != nil {
		return err
	}
	if keep <= 0 {
		return errKeep
	}
	if work == nil {
		return errors.New("sqlitestore: Transact: work is nil")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.enter(); err != nil {
		return err
	}
	defer t.users.Done()
	defer t.transacts(op.Token)()

	until := time.Now().Add(t.busy())
	patience, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if err := t.turn.lock(patience, true); err != nil {
		if ctx.Err() != nil {
			return t.waited("transact", ctx)
		}
		return t.lockedOut("transact")
	}
	defer t.turn.unlock()

	conn, err := t.txConn()
	if err != nil {
		return explain("transact", t.path, err)
	}
	x := transaction{t: t, op: &op, keep: micros(keep), work: work, until: until, ctx: ctx}
	intact := false
	defer func() {
		if !intact { // the work has panicked, or worse
			discard(conn)
			t.tx = nil
		}
	}()
	raw := conn.Raw(func(c any) error {
		dc, ok := c.(driver.Conn)
		if !ok {
			return fmt.Errorf("sqlitestore: the driver's connection is a %T, which is no driver.Conn", c)
		}
		err = x.run(dc)
		intact = !x.broken
		return nil
	})
	if raw != nil {
		err = raw
	}
	return explain("transact", t.path, err)
}

// transacts marks a token's claim as running until the function it returns is
// called.
func (s *Store) transacts(token string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.transacting[token]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.transacting[token]--; s.transacting[token] == 0 {
			delete(s.transacting, token)
		}
	}
}

func (s *Store) isTransacting(r *row) bool {
	if r.state != stateClaimed {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.transacting) > 0 && s.transacting[string(r.token)] > 0
}

// txConn returns the connection for transactions. The caller has the turn.
func (s *Store) txConn() (*sql.Conn, error) {
	if s.tx == nil {
		conn, err := s.connect(context.Background())
		if err != nil {
			return nil, err
		}
		s.tx = conn
	}
	return s.tx, nil
}

// A transaction is one call of Transact that has the turn.
type transaction struct {
	t      *TxStore
	ctx    context.Context
	op     *oncehttp.Op
	keep   int64
	work   func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd)
	until  time.Time // to begin by
	conn   *sql.Conn
	broken bool // the connection is not to be used again
	died   bool // the work has panicked
}

const (
	// The write lock is had by the first statement, which also verifies the claim.
	sqlVerify = `UPDATE oncehttp_records SET owner = owner WHERE key = ?1 AND token = ?2 AND state = 0 AND expires > ?3`

	sqlRecord = `UPDATE oncehttp_records SET state = 1, expires = ?3, head = ?4, body = ?5, owner = NULL WHERE key = ?1 AND token = ?2 AND state = 0`
	sqlState  = `SELECT token, state FROM oncehttp_records WHERE key = ?1`

	// There is no such savepoint any more when the transaction has ended before its
	// time: by a statement that ended it, or by SQLite because of an error.
	sqlMark   = `SAVEPOINT oncehttp_work`
	sqlUnmark = `RELEASE oncehttp_work`
	sqlUndo   = `ROLLBACK TO oncehttp_work`
)

func (x *transaction) exec(query string, args ...any) (int64, error) {
	return changes(x.conn.ExecContext(context.Background(), query, args...))
}

// run runs the work. x.broken is true until all is well, so that a panic leaves it.
func (x *transaction) run(dc driver.Conn) error {
	x.broken = true
	lent := &lentConn{Conn: dc}
	db := lend(lent)
	defer db.Close()
	conn, err := db.Conn(context.Background())
	if err != nil {
		return err
	}
	defer conn.Close()
	x.conn = conn

	if err := x.begin(); err != nil {
		x.broken = !errors.Is(err, oncehttp.ErrClaimLost) && !errors.Is(err, ErrLocked) && x.ctx.Err() == nil
		return err
	}
	before, err := x.commits()
	if err != nil {
		x.exec("ROLLBACK")
		return err
	}
	handle, err := conn.BeginTx(context.Background(), nil)
	if err != nil {
		x.exec("ROLLBACK")
		return err
	}

	returned := false
	defer func() {
		if !returned {
			lent.over = true
			handle.Rollback()
			x.died = true
			x.undo(before, oncehttp.TxRollback)
		}
	}()
	head, body, end := x.work(context.WithValue(x.ctx, txKey{}, handle))
	returned = true
	asked := lent.rolledBack
	lent.over = true
	handle.Rollback() // closes what work left open; it rolls nothing back

	switch {
	case end != oncehttp.TxCommit:
		return x.undo(before, end)
	case asked:
		if err := x.undo(before, end); err != nil {
			return err
		}
		return fmt.Errorf("%w: work called Rollback, and asked for a commit then", oncehttp.ErrRolledBack)
	}
	if _, err := x.exec(sqlUnmark); err != nil {
		return x.endedEarly(err, before, end)
	}
	return x.commit(head, body)
}

// begin begins the transaction, as the holder of the claim.
func (x *transaction) begin() error {
	for wait := firstPoll; ; wait = nextPoll(wait) {
		_, err := x.exec("BEGIN IMMEDIATE")
		if err == nil {
			break
		}
		switch {
		case !isBusy(err):
			return err
		case x.ctx.Err() != nil:
			return x.t.waited("transact", x.ctx)
		case time.Now().After(x.until):
			return x.t.lockedOut("transact")
		}
		time.Sleep(wait)
	}
	n, err := x.exec(sqlVerify, []byte(x.op.Key), []byte(x.op.Token), x.t.clock.now())
	if err == nil && n == 0 {
		err = oncehttp.ErrClaimLost
	}
	if err == nil {
		_, err = x.exec(sqlMark)
	}
	if err != nil {
		x.exec("ROLLBACK")
	}
	return err
}

// commits tells apart the states of the file before and after something was
// committed to it, by whomever. It asks another connection: one does not tell this of
// what it commits itself.
func (x *transaction) commits() (v int64, err error) {
	if err := x.t.writer.open(); err != nil {
		return 0, err
	}
	err = x.t.writer.conn.QueryRowContext(context.Background(), "PRAGMA data_version").Scan(&v)
	return v, err
}

// undo rolls back and gives the key up, in one.
func (x *transaction) undo(before int64, end oncehttp.TxEnd) error {
	if _, err := x.exec(sqlUndo); err != nil {
		return x.endedEarly(err, before, end)
	}
	err := x.giveUp(end)
	if err == nil {
		_, err = x.exec("COMMIT")
	}
	if err != nil {
		x.exec("ROLLBACK")
		return err
	}
	x.broken = false
	x.t.waits.wake(x.op.Key)
	return nil
}

// giveUp frees the key, or makes it an orphan: if work cannot tell what it did
// elsewhere, or if the key was taken over and work has not asked for it to be freed.
func (x *transaction) giveUp(end oncehttp.TxEnd) error {
	if end != oncehttp.TxUnknown {
		release := sqlRelease
		if end == oncehttp.TxCommit || x.died {
			release += ` AND holder = 1`
		}
		if n, err := x.exec(release, []byte(x.op.Key), []byte(x.op.Token)); err != nil || n > 0 || release == sqlRelease {
			return err
		}
	}
	_, err := x.exec(sqlRenew, []byte(x.op.Key), []byte(x.op.Token), x.t.clock.now(), 0)
	return err
}

// endedEarly settles a transaction that was over before work had returned: some
// errors (a full disk, a cancelled statement) make SQLite roll back all of it, and
// what comes after is then committed at once, statement by statement; and nobody
// keeps work from executing COMMIT.
func (x *transaction) endedEarly(cause error, before int64, end oncehttp.TxEnd) error {
	x.exec("ROLLBACK")
	after, err := x.commits()
	if err != nil || after != before {
		return fmt.Errorf("%w: the transaction ended before the work did, and something was written since: "+
			"work executed COMMIT or ROLLBACK, or went on after an error: %w", oncehttp.ErrOutcomeUnknown, cause)
	}
	err = x.settle(cause, end)
	if end != oncehttp.TxCommit && errors.Is(err, oncehttp.ErrRolledBack) {
		return nil
	}
	return err
}

// commit records the answer and commits.
func (x *transaction) commit(head, body []byte) error {
	n, err := x.exec(sqlRecord, []byte(x.op.Key), []byte(x.op.Token), x.t.clock.now()+x.keep, head, body)
	if err == nil && n != 1 {
		err = errors.New("the claim's record is gone, although it was locked: did work write to the store's tables?")
	}
	if err == nil {
		_, err = x.exec("COMMIT")
	}
	if err != nil {
		x.exec("ROLLBACK")
		return x.settle(err, oncehttp.TxCommit)
	}
	x.broken = false
	x.t.waits.wake(x.op.Key)
	return nil
}

// settle finds out whether a transaction that failed was committed after all, and
// gives the key up if it was not. What it commits takes the place of what may be left
// of the other in the write-ahead log, which so cannot come to light after a crash.
func (x *transaction) settle(cause error, end oncehttp.TxEnd) error {
	unknown := func(err error) error {
		return fmt.Errorf("%w: %w, and then: %w", oncehttp.ErrOutcomeUnknown, cause, err)
	}
	until := time.Now().Add(x.t.busy())
	for {
		_, err := x.exec("BEGIN IMMEDIATE")
		if err == nil {
			break
		}
		if !isBusy(err) || time.Now().After(until) {
			return unknown(err)
		}
		time.Sleep(time.Millisecond)
	}
	var token []byte
	var state int64
	err := x.conn.QueryRowContext(context.Background(), sqlState, []byte(x.op.Key)).Scan(&token, &state)
	own := err == nil && string(token) == x.op.Token
	if own && state == stateClaimed {
		err = x.giveUp(end)
	}
	if err == nil {
		_, err = x.exec("COMMIT")
	}
	switch {
	case err != nil:
		x.exec("ROLLBACK")
		return unknown(err)
	case own && state != stateClaimed:
		x.t.waits.wake(x.op.Key)
		return nil
	}
	x.t.waits.wake(x.op.Key)
	return fmt.Errorf("%w: %w", oncehttp.ErrRolledBack, explain("commit", x.t.path, cause))
}

var _ oncehttp.Transactor = (*TxStore)(nil)
