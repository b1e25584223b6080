package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
)

// ErrEndsWithWork is what Commit and Rollback of the transaction that [Tx] returns
// come to.
var ErrEndsWithWork = errors.New("sqlitestore: the transaction ends with the work: " +
	"answer with a status that is recorded to commit it, with another to roll it back, or use a savepoint")

// A lentConn is the driver's connection as work gets it, inside an *sql.Tx: with
// everything but the right to end the transaction. That is the store's, because
// its record is in it.
type lentConn struct {
	driver.Conn
	rolledBack bool // work asked for it
	over       bool
}

// lend makes a database of one connection out of a driver's connection.
func lend(c *lentConn) *sql.DB {
	db := sql.OpenDB(lender{c})
	db.SetMaxOpenConns(1)
	return db
}

type lender struct{ c *lentConn }

func (l lender) Connect(context.Context) (driver.Conn, error) { return l.c, nil }
func (l lender) Driver() driver.Driver                        { return nil }

// Close leaves the connection open: it is only lent.
func (c *lentConn) Close() error { return nil }

func (c *lentConn) Begin() (driver.Tx, error) { return lentTx{c}, nil }

func (c *lentConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return lentTx{c}, nil
}

func (c *lentConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if p, ok := c.Conn.(driver.ConnPrepareContext); ok {
		return p.PrepareContext(ctx, query)
	}
	return c.Conn.Prepare(query)
}

func (c *lentConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if e, ok := c.Conn.(driver.ExecerContext); ok {
		return e.ExecContext(ctx, query, args)
	}
	return nil, driver.ErrSkip
}

func (c *lentConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if q, ok := c.Conn.(driver.QueryerContext); ok {
		return q.QueryContext(ctx, query, args)
	}
	return nil, driver.ErrSkip
}

func (c *lentConn) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := c.Conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// A lentTx is the transaction that work gets.
type lentTx struct{ c *lentConn }

func (t lentTx) Commit() error { return ErrEndsWithWork }

func (t lentTx) Rollback() error {
	if t.c.over {
		return nil
	}
	t.c.rolledBack = true
	return ErrEndsWithWork
}
