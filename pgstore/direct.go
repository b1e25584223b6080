package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Where statements are prepared, as they are unless the connection string says
// something else, what is said to the server for one of ours and what it answers is
// written and read here, below pgx: that is half of what a replay costs this process.

// A direct runs statements on the connections of a pool.
type direct struct{ overtimes overtimes }

// newDirect returns nil for a pool whose statements are not to be prepared, or where
// somebody wants to be told of each.
func newDirect(p *pgxpool.Pool) *direct {
	c := p.Config().ConnConfig
	if c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && c.StatementCacheCapacity > 0 && c.Tracer == nil {
		return new(direct)
	}
	return nil
}

// row runs a statement that returns at most one row, and reads it. What is not for
// a direct goes by way of pgx: among that is everything inside a transaction, whose
// state pgx keeps.
func (d *direct) row(ctx context.Context, conn *pgx.Conn, sql string, a *args, dest []any) (yes bool, err error) {
	if d == nil || a == nil || !isIdle(conn) {
		ctx, done := lateContext(ctx)
		defer done()
		return found(conn.QueryRow(ctx, sql, a.any()...).Scan(dest...))
	}
	a.flight.ctx, a.flight.conn = ctx, conn
	d.overtimes.begin(&a.flight)
	yes, err = a.run(conn, sql, dest)
	if cause := d.overtimes.end(&a.flight); cause != nil && err != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if a.broken {
		hangUp(conn)
	}
	return yes, err
}

func (a *args) run(conn *pgx.Conn, sql string, dest []any) (yes bool, err error) {
	ctx := context.Background()            // overtimes sees to the end of the other one
	sd, err := conn.Prepare(ctx, sql, sql) // unless it was already
	if err != nil {
		return false, err
	}
	if err = conn.PgConn().SyncConn(ctx); err != nil { // pgx may have read further than it had to
		return false, err
	}
	yes, err = a.exchange.run(conn, sd.Name, a.values, dest)
	if err != nil && !a.broken {
		// Perhaps the server does not know the statement any more, or the table was changed.
		if code := state(err); code == "26000" || code == "0A000" {
			conn.Deallocate(ctx, sql) // which has it prepared again
		}
	}
	return yes, err
}
