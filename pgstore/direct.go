package pgstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Where statements are prepared, as they are unless the connection string says
// something else, the few types of our parameters and columns are written and read
// here, below pgx's own maps of types: that is half of what a replay costs this
// process.

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

// row runs a prepared statement that returns at most one row, and reads it.
func (d *direct) row(ctx context.Context, conn *pgx.Conn, sql string, args []any, dest []any) (found bool, err error) {
	p := paramsPool.Get().(*params)
	defer p.free()
	if err := p.set(args); err != nil {
		return false, err
	}
	p.flight.ctx, p.flight.conn = ctx, conn
	d.overtimes.begin(&p.flight)
	defer func() {
		if cause := d.overtimes.end(&p.flight); cause != nil && err != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
	}()
	return p.run(conn, sql, dest)
}

func (p *params) run(conn *pgx.Conn, sql string, dest []any) (found bool, err error) {
	ctx := context.Background()            // overtimes sees to the end of the other one
	sd, err := conn.Prepare(ctx, sql, sql) // unless it was already
	if err != nil {
		return false, err
	}
	r := conn.PgConn().ExecStatement(ctx, sd, p.values, p.formats, binaryResults)
	if r.NextRow() {
		found = true
		err = readRow(r.Values(), dest)
	}
	if _, closed := r.Close(); closed != nil {
		// The server does not know the statement any more, or the table was changed.
		if code := state(closed); (code == "26000" || code == "0A000") && conn.PgConn().TxStatus() != 'E' {
			conn.Deallocate(ctx, sql) // which has it prepared again
		}
		return false, closed
	}
	return found, err
}

const (
	textFormat   = 0
	binaryFormat = 1
)

var binaryResults = []int16{binaryFormat}

// params are a statement's parameters as they are sent, and what is needed while it
// is under way.
type params struct {
	flight  flight
	values  [][]byte
	formats []int16
	room    []byte // for numbers, and text
}

var paramsPool = sync.Pool{New: func() any { return new(params) }}

func (p *params) set(args []any) error {
	for i, arg := range args {
		var value []byte // nil is NULL
		format := int16(binaryFormat)
		from := len(p.room)
		switch v := arg.(type) {
		case nil:
		case []byte:
			value = v
		case string:
			p.room = append(p.room, v...)
			value, format = p.room[from:], textFormat
		case int64:
			p.room = binary.BigEndian.AppendUint64(p.room, uint64(v))
			value = p.room[from:]
		case bool:
			p.room = append(p.room, 0)
			if v {
				p.room[from] = 1
			}
			value = p.room[from:]
		default:
			return fmt.Errorf("pgstore: parameter %d is a %T", i+1, arg)
		}
		p.values = append(p.values, value)
		p.formats = append(p.formats, format)
	}
	return nil
}

// free makes p ready for the next statement. What was sent is in the connection's
// buffer by now.
func (p *params) free() {
	clear(p.values)
	p.values, p.formats, p.room = p.values[:0], p.formats[:0], p.room[:0]
	paramsPool.Put(p)
}

// readRow reads columns in the binary format.
func readRow(values [][]byte, dest []any) error {
	if len(values) != len(dest) {
		return fmt.Errorf("pgstore: the server returned %d columns, want %d", len(values), len(dest))
	}
	// Values are only there until the next statement. One copy is enough for all.
	size := 0
	for i, to := range dest {
		if _, ok := to.(*[]byte); ok {
			size += len(values[i])
		}
	}
	room := make([]byte, 0, size)
	for i, v := range values {
		ok := true
		switch to := dest[i].(type) {
		case *[]byte:
			*to = nil
			if v != nil {
				from := len(room)
				room = append(room, v...)
				*to = room[from:len(room):len(room)]
			}
		case *bool:
			*to, ok = readBool(v)
		case **bool:
			*to = nil
			if v != nil {
				*to = new(bool)
				**to, ok = readBool(v)
			}
		case *int64:
			*to, ok = readInt(v)
		case *time.Time:
			*to, ok = readTime(v)
		case **time.Time:
			*to = nil
			if v != nil {
				*to = new(time.Time)
				**to, ok = readTime(v)
			}
		case *string:
			*to, ok = string(v), v != nil
		default:
			ok = false
		}
		if !ok {
			return fmt.Errorf("pgstore: column %d does not fit in a %T", i+1, dest[i])
		}
	}
	return nil
}

func readBool(v []byte) (b, ok bool) { return len(v) == 1 && v[0] != 0, len(v) == 1 }

func readInt(v []byte) (n int64, ok bool) {
	switch len(v) {
	case 4:
		return int64(int32(binary.BigEndian.Uint32(v))), true
	case 8:
		return int64(binary.BigEndian.Uint64(v)), true
	}
	return 0, false
}

// readTime reads a timestamptz: microseconds since 2000, and the two infinities, of
// which we write none.
func readTime(v []byte) (t time.Time, ok bool) {
	if len(v) != 8 {
		return t, false
	}
	const epoch = 946684800 // 2000-01-01 since 1970, in seconds
	us := int64(binary.BigEndian.Uint64(v))
	return time.Unix(epoch+us/1e6, us%1e6*1000), true
}
