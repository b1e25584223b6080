package pgstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"
)

// A sqlDB is a database by way of database/sql.
type sqlDB struct{ db *sql.DB }

func (d sqlDB) row(ctx context.Context, q string, args []any, dest ...any) (bool, error) {
	ctx, done := lateContext(ctx, overtime)
	defer done()
	return found(d.db.QueryRowContext(ctx, q, args...).Scan(dest...))
}

func (d sqlDB) rows(ctx context.Context, q string, args []any, each func(scan func(dest ...any) error) error) error {
	ctx, done := lateContext(ctx, overtime)
	defer done()
	rows, err := d.db.QueryContext(ctx, q, args...)
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

func (d sqlDB) script(ctx context.Context, q string) error {
	_, err := d.db.ExecContext(ctx, q)
	return err
}

func (d sqlDB) idle() int { return d.db.Stats().Idle }

func (d sqlDB) session(ctx context.Context) (session, error) {
	c, err := d.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &sqlSession{c: c}, nil
}

func (d sqlDB) dedicated(ctx context.Context) (*pgx.Conn, func(), error) {
	if n := d.db.Stats().MaxOpenConnections; n > 0 && n < 2 {
		return nil, nil, errNoListen
	}
	c, err := d.db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	conn := pgxConn(c)
	if conn == nil {
		c.Close()
		return nil, nil, errNoListen // another driver
	}
	return conn, func() {
		closeNow(conn)
		c.Close()
	}, nil
}

// pgxConn returns the connection under one of database/sql, or nil if its driver
// is not pgx's.
func pgxConn(c *sql.Conn) (conn *pgx.Conn) {
	c.Raw(func(dc any) error {
		if p, ok := dc.(interface{ Conn() *pgx.Conn }); ok {
			conn = p.Conn()
		}
		return nil
	})
	return conn
}

// A sqlSession is a session by way of database/sql. It keeps the connection and
// not a *sql.Tx, because a *sql.Tx commits whenever somebody who has it says so.
type sqlSession struct {
	c    *sql.Conn
	open bool
	w    watch
}

func (s *sqlSession) row(ctx context.Context, q string, args []any, dest ...any) (bool, error) {
	ctx, done := lateContext(ctx, overtime)
	defer done()
	return found(s.c.QueryRowContext(ctx, q, args...).Scan(dest...))
}

func (s *sqlSession) begin(ctx context.Context, how string) error {
	s.w.reset()
	s.open = true // whatever the server says: it may have begun
	_, err := s.c.ExecContext(ctx, how)
	return err
}

func (s *sqlSession) then(ctx context.Context, q string, args []any, dest any, before, after string) (yes bool, err error) {
	if conn := pgxConn(s.c); conn != nil {
		return together(ctx, conn, q, args, dest, before, after)
	}
	if before != "" {
		_, err = s.c.ExecContext(ctx, before)
	}
	if err == nil {
		yes, err = s.row(ctx, q, args, dest)
	}
	if err == nil && after != "" {
		_, err = s.c.ExecContext(ctx, after)
	}
	return yes && err == nil, err
}

// run gives work a *sql.Tx on the connection. It comes from a database of its own
// that has just this connection, and whose transactions begin and end nothing.
func (s *sqlSession) run(ctx context.Context, work func(ctx context.Context)) error {
	return s.c.Raw(func(dc any) error {
		conn, ok := dc.(driver.Conn)
		if !ok {
			return errors.New("pgstore: the driver gives no access to its connections")
		}
		inner := sql.OpenDB(&lent{conn: &lentConn{conn, &s.w}})
		defer inner.Close()
		// Not ctx: its end would end the transaction, and we would not know.
		tx, err := inner.BeginTx(context.Background(), nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // of no consequence
		work(context.WithValue(ctx, sqlTxKey{}, tx))
		return nil
	})
}

func (s *sqlSession) mishap() error {
	if conn := pgxConn(s.c); conn != nil && conn.PgConn().TxStatus() != 'E' {
		return nil
	}
	return s.w.seen()
}

func (s *sqlSession) ended() bool {
	conn := pgxConn(s.c)
	return conn != nil && isIdle(conn)
}

func (s *sqlSession) commit(ctx context.Context) error {
	_, err := s.c.ExecContext(ctx, "COMMIT")
	if err == nil {
		s.open = false
	}
	return err
}

func (s *sqlSession) rollback() {
	if !s.open {
		return
	}
	s.open = false
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	if _, err := s.c.ExecContext(ctx, "ROLLBACK"); err != nil {
		s.c.Raw(func(any) error { return driver.ErrBadConn }) // which closes it
	}
}

func (s *sqlSession) release() {
	s.rollback()
	s.c.Close()
}

// lent is the connector of a database that has one connection, somebody else's.
type lent struct{ conn *lentConn }

func (l *lent) Connect(context.Context) (driver.Conn, error) { return l.conn, nil }

func (l *lent) Driver() driver.Driver { return nil }

// A lentConn is a connection with a transaction open that others end.
type lentConn struct {
	driver.Conn
	w *watch
}

func (c *lentConn) Close() error { return nil }

func (c *lentConn) Begin() (driver.Tx, error) { return lentTx{}, nil }

func (c *lentConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return lentTx{}, nil
}

func (c *lentConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

func (c *lentConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	var stmt driver.Stmt
	var err error
	if p, ok := c.Conn.(driver.ConnPrepareContext); ok {
		stmt, err = p.PrepareContext(ctx, query)
	} else {
		stmt, err = c.Conn.Prepare(query)
	}
	if err != nil {
		return nil, c.w.note(err)
	}
	return &lentStmt{stmt, c.w}, nil
}

func (c *lentConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	e, ok := c.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	res, err := e.ExecContext(ctx, query, args)
	return res, c.w.note(err)
}

func (c *lentConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	q, ok := c.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	rows, err := q.QueryContext(ctx, query, args)
	return rows, c.w.note(err)
}

func (c *lentConn) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := c.Conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// A lentTx ends nothing. database/sql rolls back what work forgets; what work
// commits is refused, so that it is noticed.
type lentTx struct{}

func (lentTx) Commit() error   { return errEndsWithWork }
func (lentTx) Rollback() error { return nil }

// A lentStmt is a prepared statement on a lentConn.
type lentStmt struct {
	driver.Stmt
	w *watch
}

func (s *lentStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if e, ok := s.Stmt.(driver.StmtExecContext); ok {
		res, err := e.ExecContext(ctx, args)
		return res, s.w.note(err)
	}
	values, err := positional(args)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 an old driver has nothing else
	res, err := s.Stmt.Exec(values)
	return res, s.w.note(err)
}

func (s *lentStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if q, ok := s.Stmt.(driver.StmtQueryContext); ok {
		rows, err := q.QueryContext(ctx, args)
		return rows, s.w.note(err)
	}
	values, err := positional(args)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 an old driver has nothing else
	rows, err := s.Stmt.Query(values)
	return rows, s.w.note(err)
}

func positional(args []driver.NamedValue) ([]driver.Value, error) {
	values := make([]driver.Value, len(args))
	for i, a := range args {
		if a.Name != "" {
			return nil, errors.New("pgstore: the driver knows no named arguments")
		}
		values[i] = a.Value
	}
	return values, nil
}
