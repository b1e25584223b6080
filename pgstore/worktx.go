package pgstore

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A watch remembers the first error in a transaction for which running all of it
// again is the remedy. Work answers such an error with some failure of its own, so
// what it returns does not tell.
type watch struct {
	mu  sync.Mutex
	err error
}

func (w *watch) note(err error) error {
	switch state(err) {
	case serializationFailure, deadlockDetected:
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err == nil {
			w.err = err
		}
	}
	return err
}

func (w *watch) seen() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *watch) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = nil
}

// A workTx is the transaction that work is given.
type workTx struct {
	pgx.Tx
	w *watch
}

func (tx *workTx) Commit(context.Context) error   { return errEndsWithWork }
func (tx *workTx) Rollback(context.Context) error { return errEndsWithWork }

func (tx *workTx) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := tx.Tx.Begin(ctx)
	if err != nil {
		return nil, tx.w.note(err)
	}
	return &savepoint{workTx{inner, tx.w}}, nil
}

func (tx *workTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := tx.Tx.Exec(ctx, sql, args...)
	return tag, tx.w.note(err)
}

func (tx *workTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := tx.Tx.Query(ctx, sql, args...)
	if rows == nil {
		return nil, tx.w.note(err)
	}
	return &workRows{rows, tx.w}, tx.w.note(err)
}

func (tx *workTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return workRow{tx.Tx.QueryRow(ctx, sql, args...), tx.w}
}

func (tx *workTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return &workBatch{tx.Tx.SendBatch(ctx, b), tx.w}
}

func (tx *workTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	n, err := tx.Tx.CopyFrom(ctx, table, columns, src)
	return n, tx.w.note(err)
}

func (tx *workTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	sd, err := tx.Tx.Prepare(ctx, name, sql)
	return sd, tx.w.note(err)
}

// A savepoint is a transaction within the one of the work, and its own to end.
type savepoint struct{ workTx }

func (tx *savepoint) Commit(ctx context.Context) error   { return tx.w.note(tx.Tx.Commit(ctx)) }
func (tx *savepoint) Rollback(ctx context.Context) error { return tx.w.note(tx.Tx.Rollback(ctx)) }

type workRows struct {
	pgx.Rows
	w *watch
}

func (r *workRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.w.note(r.Rows.Err())
	return false
}

func (r *workRows) Err() error { return r.w.note(r.Rows.Err()) }

func (r *workRows) Close() {
	r.Rows.Close()
	r.w.note(r.Rows.Err())
}

type workRow struct {
	pgx.Row
	w *watch
}

func (r workRow) Scan(dest ...any) error { return r.w.note(r.Row.Scan(dest...)) }

type workBatch struct {
	pgx.BatchResults
	w *watch
}

func (b *workBatch) Exec() (pgconn.CommandTag, error) {
	tag, err := b.BatchResults.Exec()
	return tag, b.w.note(err)
}

func (b *workBatch) Query() (pgx.Rows, error) {
	rows, err := b.BatchResults.Query()
	if rows == nil {
		return nil, b.w.note(err)
	}
	return &workRows{rows, b.w}, b.w.note(err)
}

func (b *workBatch) QueryRow() pgx.Row { return workRow{b.BatchResults.QueryRow(), b.w} }

func (b *workBatch) Close() error { return b.w.note(b.BatchResults.Close()) }
