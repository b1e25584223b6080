package pgstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// An exchange is one prepared statement and what the server answers, on a connection
// that nobody else uses and that has no transaction: the messages Bind, Execute and
// Sync, and all until ReadyForQuery (PostgreSQL's documentation, 55.2.3, Extended
// Query). It is used again for the next one.
type exchange struct {
	flight flight
	buf    []byte // what is sent, then what is received
	row    pgproto3.DataRow

	refused *pgconn.PgError // the statement, or the connection
	broken  bool            // the connection is of no more use
}

var allBinary = []int16{pgx.BinaryFormatCode}

// run sends a statement, and reads the first row into dest.
func (x *exchange) run(conn *pgx.Conn, statement string, values [][]byte, dest []any) (yes bool, err error) {
	x.refused, x.broken = nil, false
	b := pgproto3.Bind{PreparedStatement: statement, ParameterFormatCodes: allBinary, Parameters: values, ResultFormatCodes: allBinary}
	if x.buf, err = b.Encode(x.buf[:0]); err == nil {
		x.buf, err = (&pgproto3.Execute{}).Encode(x.buf)
	}
	if err == nil {
		x.buf, err = (&pgproto3.Sync{}).Encode(x.buf)
	}
	if err != nil { // longer than a message can be
		return false, err
	}
	nc := conn.PgConn().Conn()
	if _, err = nc.Write(x.buf); err != nil {
		x.broken = true
		return false, err
	}
	in := inbox{r: nc, buf: x.buf[:cap(x.buf)]}
	yes, err = x.receive(&in, conn, dest)
	x.buf = in.buf
	if x.refused != nil { // which also says why there is no more to read
		return false, x.refused
	}
	return yes, err
}

// receive reads until the server is ready for the next statement, and whatever else
// has come by then.
func (x *exchange) receive(in *inbox, conn *pgx.Conn, dest []any) (yes bool, err error) {
	for ready := false; !ready || !in.empty(); {
		kind, body, broken := in.next()
		if broken == nil {
			switch kind {
			case '2', 'C': // the parameters are bound; the command is complete
			case 'D':
				if broken = x.row.Decode(body); broken == nil && !yes {
					yes, err = true, readRow(x.row.Values, dest)
				}
			case 'Z':
				ready = true
				x.broken = x.broken || string(body) != "I" // pgx could not know of a transaction
			default:
				broken = x.aside(conn, kind, body, ready)
			}
		}
		if broken != nil {
			x.broken = true
			return yes && ready, broken
		}
	}
	return yes, err
}

// aside takes what comes seldom, and may come at any time.
func (x *exchange) aside(conn *pgx.Conn, kind byte, body []byte, ready bool) error {
	c := conn.Config()
	switch kind {
	case 'E':
		var m pgproto3.ErrorResponse
		if err := m.Decode(body); err != nil {
			return err
		}
		e := pgconn.ErrorResponseToPgError(&m)
		if c.OnPgError != nil && !c.OnPgError(conn.PgConn(), e) { // by default: it is fatal
			x.broken = true
		}
		if !ready && x.refused == nil {
			x.refused = e
		}
	case 'N':
		var m pgproto3.NoticeResponse
		if err := m.Decode(body); err != nil {
			return err
		}
		if c.OnNotice != nil {
			c.OnNotice(conn.PgConn(), (*pgconn.Notice)(pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(&m))))
		}
	case 'A':
		var m pgproto3.NotificationResponse
		if err := m.Decode(body); err != nil {
			return err
		}
		if c.OnNotification != nil {
			c.OnNotification(conn.PgConn(), &pgconn.Notification{PID: m.PID, Channel: m.Channel, Payload: m.Payload})
		}
	case 'S': // a setting was changed, of which pgx cannot be told: let it open another connection
		x.broken = true
	default:
		return fmt.Errorf("pgstore: the server sent a message of kind %q, which does not belong to the answer of a statement", kind)
	}
	return nil
}

// hangUp closes a connection in the way of pgx, which may first ask the server to
// cancel what it does: pgx finds out by itself that it is of no more use.
func hangUp(conn *pgx.Conn) {
	conn.PgConn().Conn().SetDeadline(time.Unix(1, 0))
	conn.PgConn().Ping(context.Background())
}

// free reports whether x may be used again, and not grow without end.
func (x *exchange) free() bool {
	clear(x.row.Values)
	x.refused = nil
	return cap(x.buf) <= mostRoom
}

// An inbox reads messages.
type inbox struct {
	r        io.Reader
	buf      []byte
	from, to int // what is unread
}

func (in *inbox) empty() bool { return in.from == in.to }

// header is the length of a message's kind and length.
const header = 5

// next returns a message, which is there until the next one is read.
func (in *inbox) next() (kind byte, body []byte, err error) {
	if err := in.fill(header); err != nil {
		return 0, nil, err
	}
	kind = in.buf[in.from]
	size := int(int32(binary.BigEndian.Uint32(in.buf[in.from+1:]))) + 1 // of all of it
	if size < header {
		return 0, nil, fmt.Errorf("pgstore: the server sent a message of kind %q that says it is %d bytes long", kind, size-1)
	}
	if err := in.fill(size); err != nil {
		return 0, nil, err
	}
	body = in.buf[in.from+header : in.from+size]
	in.from += size
	return kind, body, nil
}

// fill reads until size bytes are unread. Its room grows with what has come, whatever
// a length says.
func (in *inbox) fill(size int) error {
	for in.to-in.from < size {
		if in.to == len(in.buf) {
			room := in.buf
			if in.from == 0 {
				room = make([]byte, max(2*len(in.buf), leastInbox))
			}
			in.to = copy(room, in.buf[in.from:in.to])
			in.buf, in.from = room, 0
		}
		n, err := in.r.Read(in.buf[in.to:])
		in.to += n
		switch {
		case err == nil, in.to-in.from >= size: // the next read says it again
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		default:
			return err
		}
	}
	return nil
}

const leastInbox = 4 << 10
