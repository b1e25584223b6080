package pgstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A querier runs single statements. One that is under way when its context ends has
// a moment more.
type querier interface {
	// row runs a statement that returns at most one row, and scans it.
	row(ctx context.Context, sql string, args []any, dest ...any) (found bool, err error)
}

// A database is a pool of connections.
type database interface {
	querier
	// rows calls each for every row.
	rows(ctx context.Context, sql string, args []any, each func(scan func(dest ...any) error) error) error
	// script runs statements without arguments, all or none.
	script(ctx context.Context, sql string) error
	// idle is how many connections the pool has that nobody uses.
	idle() int
	// session takes one connection out of the pool.
	session(ctx context.Context) (session, error)
	// dedicated takes a connection for good, or returns an error that wraps
	// errNoListen where there is none to spare.
	dedicated(ctx context.Context) (conn *pgx.Conn, done func(), err error)
}

// A session is one connection, and the transaction on it.
type session interface {
	querier
	// begin starts a transaction.
	begin(ctx context.Context, how string) error
	// then runs a statement that returns at most one row, and another one that
	// returns none, before or after it: in one round trip where that can be done.
	then(ctx context.Context, sql string, args []any, dest any, before, after string) (found bool, err error)
	// run calls work with a context that carries the transaction.
	run(ctx context.Context, work func(ctx context.Context)) error
	// mishap returns the error for which the transaction can only be rolled
	// back and run again: the one that a statement of work met, or nil.
	mishap() error
	// ended reports whether the transaction is known to have ended already.
	ended() bool
	commit(ctx context.Context) error
	// rollback rolls back or, where that cannot be done, ends the connection,
	// by which the server does.
	rollback()
	// release gives the connection back. A transaction that is still open is
	// rolled back.
	release()
}

var errNoListen = errors.New("pgstore: no connection to listen on")

// A pool is a database by way of pgxpool.
type pool struct {
	p      *pgxpool.Pool
	direct *direct // or nil
}

func (d pool) row(ctx context.Context, sql string, args []any, dest ...any) (bool, error) {
	c, err := d.p.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer c.Release()
	if d.direct != nil && len(args) > 0 {
		return d.direct.row(ctx, c.Conn(), sql, args, dest)
	}
	ctx, done := lateContext(ctx, overtime)
	defer done()
	return found(c.QueryRow(ctx, sql, args...).Scan(dest...))
}

func found(err error) (bool, error) {
	if errors.Is(err, sql.ErrNoRows) { // which pgx.ErrNoRows wraps
		return false, nil
	}
	return err == nil, err
}

func (d pool) rows(ctx context.Context, sql string, args []any, each func(scan func(dest ...any) error) error) error {
	ctx, done := lateContext(ctx, overtime)
	defer done()
	rows, err := d.p.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (d pool) script(ctx context.Context, sql string) error {
	_, err := d.p.Exec(ctx, sql) // without arguments: the simple protocol, one transaction
	return err
}

func (d pool) idle() int { return int(d.p.Stat().IdleConns()) }

func (d pool) session(ctx context.Context) (session, error) {
	c, err := d.p.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &poolSession{c: c, direct: d.direct}, nil
}

// dedicated hijacks a connection, so that the pool may open another one in its
// place.
func (d pool) dedicated(ctx context.Context) (*pgx.Conn, func(), error) {
	if d.p.Config().MaxConns < 2 {
		return nil, nil, errNoListen
	}
	c, err := d.p.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	conn := c.Hijack()
	return conn, func() { closeNow(conn) }, nil
}

func closeNow(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	conn.Close(ctx)
}

// A poolSession is a session by way of pgxpool.
type poolSession struct {
	c      *pgxpool.Conn
	direct *direct // or nil
	tx     pgx.Tx
	w      watch
}

func (p *poolSession) row(ctx context.Context, sql string, args []any, dest ...any) (bool, error) {
	if p.direct != nil && len(args) > 0 {
		return p.direct.row(ctx, p.c.Conn(), sql, args, dest)
	}
	ctx, done := lateContext(ctx, overtime)
	defer done()
	return found(p.c.QueryRow(ctx, sql, args...).Scan(dest...))
}

func (p *poolSession) begin(ctx context.Context, how string) (err error) {
	p.w.reset()
	p.tx, err = p.c.BeginTx(ctx, pgx.TxOptions{BeginQuery: how})
	return err
}

func (p *poolSession) then(ctx context.Context, sql string, args []any, dest any, before, after string) (bool, error) {
	return together(ctx, p.c.Conn(), sql, args, dest, before, after)
}

// together runs a statement, and those before and after it that are not "", in
// one round trip.
func together(ctx context.Context, conn *pgx.Conn, sql string, args []any, dest any, before, after string) (yes bool, err error) {
	b := new(pgx.Batch)
	if before != "" {
		b.Queue(before)
	}
	b.Queue(sql, args...)
	if after != "" {
		b.Queue(after)
	}
	results := conn.SendBatch(ctx, b)
	if before != "" {
		_, err = results.Exec()
	}
	if err == nil {
		yes, err = found(results.QueryRow().Scan(dest))
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	return yes && err == nil, err
}

func (p *poolSession) run(ctx context.Context, work func(ctx context.Context)) error {
	work(context.WithValue(ctx, txKey{}, &workTx{p.tx, &p.w}))
	return nil
}

func (p *poolSession) mishap() error {
	if p.c.Conn().PgConn().TxStatus() != 'E' { // it recovered, by a savepoint
		return nil
	}
	return p.w.seen()
}

func (p *poolSession) ended() bool { return isIdle(p.c.Conn()) }

// isIdle reports whether a connection that is open has no transaction.
func isIdle(conn *pgx.Conn) bool { return !conn.IsClosed() && conn.PgConn().TxStatus() == 'I' }

func (p *poolSession) commit(ctx context.Context) error { return p.tx.Commit(ctx) }

func (p *poolSession) rollback() {
	if p.tx == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	if err := p.tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		p.c.Conn().Close(ctx)
	}
	p.tx = nil
}

func (p *poolSession) release() {
	p.rollback()
	p.c.Release() // which destroys it if it was closed, or is in a transaction
}
