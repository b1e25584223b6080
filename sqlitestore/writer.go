package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A writer is the one goroutine of a store that writes. It does what calls ask for
// in the order in which they came, as many as have come by then in one transaction:
// what makes a call durable is the wait for the disk, and that is shared. A call
// that comes alone waits for nobody.
type writer struct {
	s    *Store
	ctx  context.Context // no statement is ever interrupted: that could roll back what others asked for
	conn *sql.Conn       // nil: to be opened

	stmts []*sql.Stmt

	begin, commit, rollback            *sql.Stmt
	meta, tellMeta                     *sql.Stmt
	load, insertStmt, hold, renew      *sql.Stmt
	complete, release, resolve, remove *sql.Stmt
	orphan                             *sql.Stmt
	expired, nextDue                   *sql.Stmt

	now      int64 // of the transaction
	tell     bool  // the file is to be told skew
	skew     int64
	taken    []*call
	inserted int
	due      int64 // when the next record expires, or earlier
	rested   time.Time
	warned   time.Time
}

const (
	// maxBatch and maxBytes bound one transaction, and so how long those wait who
	// come next.
	maxBatch = 512
	maxBytes = 8 << 20
)

// run does what is asked for until the store is closed and nothing is left.
func (w *writer) run() {
	defer close(w.s.stopped)
	defer w.close()
	rest := time.NewTimer(time.Second)
	defer rest.Stop()
	for {
		empty, closed := w.s.queue.empty()
		switch {
		case !empty:
			w.s.turn.lock(w.ctx, false)
			w.batch()
			w.s.turn.unlock()
			continue
		case closed:
			return
		}
		rest.Reset(w.idle())
		select {
		case <-w.s.queue.ready:
		case <-rest.C:
			if w.s.turn.tryLock() {
				w.sweepIdle()
				w.s.turn.unlock()
			}
		}
	}
}

// errNobody says that whoever wanted something has left.
var errNobody = errors.New("nobody waits")

// batch does what has been asked for by now.
func (w *writer) batch() {
	err := w.start(func() (bool, error) {
		empty, _ := w.s.queue.empty()
		return empty, errNobody
	})
	switch {
	case err == errNobody:
		return
	case err != nil:
		w.undo(err)
		for c := w.s.queue.pop(); c != nil; c = w.s.queue.pop() {
			c.err = err
			close(c.done)
		}
		return
	}
	w.taken = w.taken[:0]
	bytes := 0
	for err == nil && len(w.taken) < maxBatch && bytes < maxBytes {
		// New ones come while this goes on.
		c := w.s.queue.pop()
		if c == nil {
			break
		}
		select {
		case <-c.abandoned:
			c.err = errAbandoned
			close(c.done)
			continue
		default:
		}
		w.taken = append(w.taken, c)
		bytes += c.size()
		w.now = max(w.now, w.s.clock.now()) // a lease is to begin after it was asked for
		err = c.do(w, c)
	}
	if err == nil {
		err = w.sweepWithin(max(16, 2*w.inserted))
	}
	if err == nil {
		err = w.finish()
	}
	if err != nil {
		w.undo(err)
		for _, c := range w.taken {
			w.alone(c)
		}
	}
	for _, c := range w.taken {
		if c.changed {
			w.s.waits.wake(c.op.Key)
		}
		close(c.done)
	}
	clear(w.taken)
}

// alone does a call in a transaction of its own, because one with others failed.
func (w *writer) alone(c *call) {
	until := time.Now().Add(w.s.busy())
	for {
		c.reset()
		err := w.start(func() (bool, error) { return time.Now().After(until), w.s.lockedOut(c.what) })
		if err == nil {
			err = c.do(w, c)
		}
		if err == nil {
			err = w.finish()
		}
		if err == nil {
			return
		}
		w.undo(err)
		c.reset()
		c.err = err
		// An answer whose body finds no room is kept without it: that the work was
		// done matters more than what it said.
		const codeTooBig = 18
		if got := code(err); c.dropBody || len(c.body) == 0 || got != codeFull && got != codeTooBig {
			return
		}
		c.dropBody = true
	}
}

// start begins a transaction, which has the write lock. While that is not to be
// had, stop is asked, again and again, whether to give up, and with what error.
func (w *writer) start(stop func() (bool, error)) error {
	if err := w.open(); err != nil {
		return err
	}
	for wait := firstPoll; ; wait = nextPoll(wait) {
		_, err := w.begin.ExecContext(w.ctx)
		if err == nil {
			return w.meet()
		}
		if !isBusy(err) {
			return err
		}
		if give, err := stop(); give {
			return err
		}
		time.Sleep(wait)
	}
}

// Another process that writes all the time leaves the lock alone for some hundred
// microseconds between two transactions. Whoever looks at it less often than that
// may hardly ever get it.
const firstPoll = 100 * time.Microsecond

func nextPoll(d time.Duration) time.Duration { return min(d*9/8, 2*time.Millisecond) }

// meet compares clocks and versions with those of the file.
func (w *writer) meet() error {
	var v, skew, late int64
	if err := w.meta.QueryRowContext(w.ctx).Scan(&v, &skew, &late); err != nil {
		return err
	}
	if v != version {
		return w.s.newer(v)
	}
	w.now, w.skew, w.tell = w.s.clock.meet(skew, late)
	w.inserted = 0
	return nil
}

// finish commits.
func (w *writer) finish() error {
	if w.tell {
		if _, err := w.tellMeta.ExecContext(w.ctx, w.skew, w.now); err != nil {
			return err
		}
	}
	if _, err := w.commit.ExecContext(w.ctx); err != nil {
		return err
	}
	if w.tell {
		w.s.clock.kept(w.skew)
	}
	return nil
}

// undo ends a transaction that failed, if it is not over yet. A connection that has
// failed in another way than by being told that something is full or locked is not
// used again.
func (w *writer) undo(err error) {
	if w.conn == nil {
		return
	}
	_, rerr := w.rollback.ExecContext(w.ctx)
	switch code(err) {
	case codeFull, codeBusy, codeLocked:
		if rerr == nil || code(rerr) == codeError { // no transaction is active
			return
		}
	}
	w.close()
}

// open opens the connection.
func (w *writer) open() error {
	if w.conn != nil {
		return nil
	}
	conn, err := w.s.connect(w.ctx)
	if err != nil {
		return err
	}
	w.conn = conn
	for _, p := range []struct {
		to  **sql.Stmt
		sql string
	}{
		{&w.begin, "BEGIN IMMEDIATE"}, {&w.commit, "COMMIT"}, {&w.rollback, "ROLLBACK"},
		{&w.meta, sqlMeta}, {&w.tellMeta, sqlTellMeta},
		{&w.load, sqlLoad}, {&w.insertStmt, sqlInsert}, {&w.hold, sqlHold}, {&w.renew, sqlRenew},
		{&w.complete, sqlComplete}, {&w.release, sqlRelease}, {&w.resolve, sqlResolve}, {&w.remove, sqlRemove},
		{&w.orphan, sqlOrphan},
		{&w.expired, sqlExpired}, {&w.nextDue, sqlDue},
	} {
		if *p.to, err = conn.PrepareContext(w.ctx, p.sql); err != nil {
			w.close()
			return err
		}
		w.stmts = append(w.stmts, *p.to)
	}
	return nil
}

// try finds out whether the file can be written to, unless somebody else is doing
// so.
func (w *writer) try() error {
	_, err := w.begin.ExecContext(w.ctx)
	if err == nil {
		_, err = w.tellMeta.ExecContext(w.ctx, 0, 0)
		w.rollback.ExecContext(w.ctx)
	}
	if isBusy(err) {
		return nil
	}
	return err
}

// close ends the connection.
func (w *writer) close() {
	// SQLite keeps a connection, and its locks, for as long as it has statements.
	for _, stmt := range w.stmts {
		stmt.Close()
	}
	w.stmts = w.stmts[:0]
	if w.conn != nil {
		discard(w.conn)
		w.conn = nil
	}
}

// discard closes a connection for good: it has settings that its pool's other
// users do not want.
func discard(conn *sql.Conn) {
	conn.Raw(func(any) error { return driver.ErrBadConn })
	conn.Close()
}

// changes is how many rows a statement changed.
func changes(r sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// Sweeping.

const (
	// Expired records are swept a few at a time, so that nobody waits for long:
	// some with every transaction, in proportion to the new ones in it, and more
	// while nobody asks for anything.
	sweepMost  = 100
	sweepBytes = 4 << 20
)

// idle is how long to wait before there may be something to sweep.
func (w *writer) idle() time.Duration {
	if w.s.opts.noSweep {
		return time.Hour
	}
	// Other processes' records are not known here, so it looks every minute.
	left := min(duration(w.due-w.s.clock.now()), time.Minute)
	return max(left, time.Until(w.rested), time.Millisecond)
}

// sweepIdle sweeps a few records because there is nothing else to do.
func (w *writer) sweepIdle() {
	if w.s.opts.noSweep {
		return
	}
	began := time.Now()
	if w.s.clock.now() < w.due {
		w.due = 0 // ask the file: it is time to look at what others have put there
	}
	err := w.open()
	if err == nil {
		if _, err = w.begin.ExecContext(w.ctx); err == nil {
			err = w.meet()
		}
	}
	if err == nil {
		err = w.sweepWithin(sweepMost)
	}
	if err == nil {
		err = w.finish()
	}
	// It may take a fifth of the time at most.
	pause := max(5*time.Since(began), 20*time.Millisecond)
	if err != nil {
		w.undo(err)
		pause = 10 * time.Second
		if !isBusy(err) && time.Since(w.warned) > time.Hour {
			w.warned = time.Now()
			w.s.log().Warn("sqlitestore: expired records cannot be swept", "err", explain("sweep", w.s.path, err))
		}
	}
	w.rested = time.Now().Add(pause)
}

// sweepWithin sweeps some records in the transaction that is open.
func (w *writer) sweepWithin(limit int) error {
	if w.s.opts.noSweep || w.now < w.due {
		return nil
	}
	_, err := w.sweep(limit)
	if err != nil {
		w.due = w.now + (10 * time.Second).Microseconds() // not with every transaction
	}
	return err
}

func (w *writer) sweep(limit int) (int, error) {
	limit = min(limit, sweepMost)
	swept, bytes := 0, int64(0)
	next := int64(math.MaxInt64)
	for state := int64(stateClaimed); state <= stateDropped; state++ {
		ids, err := w.expiredOf(state, limit-swept, &bytes)
		if err != nil {
			return swept, err
		}
		for _, id := range ids {
			if _, err := w.remove.ExecContext(w.ctx, id); err != nil {
				return swept, err
			}
		}
		swept += len(ids)
		var due sql.NullInt64
		if err := w.nextDue.QueryRowContext(w.ctx, state).Scan(&due); err != nil {
			return swept, err
		}
		if due.Valid {
			next = min(next, due.Int64)
		}
	}
	w.due = next
	return swept, nil
}

// expiredOf lists some expired records, as long as bytes does not get too large.
func (w *writer) expiredOf(state int64, limit int, bytes *int64) ([]int64, error) {
	if limit <= 0 || *bytes > sweepBytes {
		return nil, nil
	}
	rows, err := w.expired.QueryContext(w.ctx, state, w.now, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() && *bytes <= sweepBytes {
		var id, size int64
		if err := rows.Scan(&id, &size); err != nil {
			return nil, err
		}
		ids = append(ids, id)
		*bytes += size
	}
	return ids, rows.Err()
}

func doSweep(w *writer, c *call) (err error) {
	c.swept, err = w.sweep(c.limit)
	return err
}

// Sweep forgets records that have expired, at most limit of them (zero means
// 1000), and returns how many. The store does it by itself, with what it writes and
// when it has nothing else to do, unless it was told not to (WithoutSweep). Nobody
// waits for it longer than a hundred records take.
//
// The file does not become smaller: the space is used again. VACUUM would shrink
// it, and hold everything up meanwhile.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	if limit < 0 {
		return 0, errors.New("sqlitestore: Sweep: limit is negative")
	}
	if limit == 0 {
		limit = 1000
	}
	for swept := 0; ; {
		most := min(limit-swept, sweepMost)
		c := &call{what: "sweep", do: doSweep, limit: most}
		if err := s.write(ctx, c); err != nil {
			return swept, err
		}
		swept += c.swept
		if c.swept == 0 || swept >= limit {
			return swept, nil
		}
	}
}

func (s *Store) newer(v int64) error {
	return &fault{what: "open", path: s.path, kind: ErrNewer, cause: fmt.Errorf("it has version %d, this one knows %d", v, version)}
}

var _ oncehttp.Store = (*Store)(nil)
