package pgstore

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/oncehttp/oncehttp/internal/services"
)

// Whatever bytes come, they are messages or an error, and cost no more room than
// some times what came.
func FuzzAnswer(f *testing.F) {
	row, _ := (&pgproto3.DataRow{Values: [][]byte{{1}, nil, []byte("text")}}).Encode(nil)
	done, _ := (&pgproto3.ReadyForQuery{TxStatus: 'I'}).Encode(nil)
	f.Add(append(row, done...))
	f.Add([]byte("D\x7f\xff\xff\xff"))
	f.Add([]byte("Z\x00\x00\x00\x03"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		in := inbox{r: bytes.NewReader(sent)}
		var row pgproto3.DataRow
		read := 0
		for {
			kind, body, err := in.next()
			if err != nil {
				break
			}
			if want := sent[read : read+header+len(body)]; kind != want[0] || !bytes.Equal(body, want[header:]) || int(binary.BigEndian.Uint32(want[1:])) != len(body)+4 {
				t.Fatalf("got %q %q, of %q", kind, body, want)
			}
			read += header + len(body)
			if kind == 'D' && row.Decode(body) == nil {
				var yes bool
				var text []byte
				var n *bool
				readRow(row.Values, []any{&yes, &n, &text})
			}
		}
		if most := max(leastInbox, 4*len(sent)); len(in.buf) > most {
			t.Errorf("%d bytes took room for %d, want %d at most", len(sent), len(in.buf), most)
		}
	})
}

func TestALengthThatCannotBeIsNamed(t *testing.T) {
	in := inbox{r: strings.NewReader("D\x00\x00\x00\x03abc")}
	if _, _, err := in.next(); err == nil || !strings.Contains(err.Error(), `'D'`) || !strings.Contains(err.Error(), "3 bytes") {
		t.Errorf("got error %v", err)
	}
	in = inbox{r: strings.NewReader("D\x00\x00\x00\x08abc")}
	if _, _, err := in.next(); err != io.ErrUnexpectedEOF {
		t.Errorf("got error %v, want that it ends too early", err)
	}
}

// What a call has used is used by the next one, and must not keep a large answer.
func TestRoomForLargeAnswersIsNotKept(t *testing.T) {
	x := exchange{buf: make([]byte, mostRoom)}
	if !x.free() {
		t.Errorf("room for %d bytes is not used again", mostRoom)
	}
	x.buf = make([]byte, mostRoom+1)
	if x.free() {
		t.Errorf("room for %d bytes is kept", mostRoom+1)
	}
}

// What comes right behind an answer was read with it, and pgx would not see it.
func TestWhatComesBehindAnAnswerIsHeard(t *testing.T) {
	pg := services.Postgres(t)
	config, err := pgx.ParseConfig(pg.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	heard := ""
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { heard += n.Payload }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer closeNow(conn)
	var sent []byte
	for _, m := range []pgproto3.BackendMessage{
		&pgproto3.BindComplete{}, &pgproto3.DataRow{Values: [][]byte{{1}}}, &pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")},
		&pgproto3.ReadyForQuery{TxStatus: 'I'},
		&pgproto3.NotificationResponse{Channel: "news", Payload: "one"}, &pgproto3.NotificationResponse{Channel: "news", Payload: "two"},
	} {
		if sent, err = m.Encode(sent); err != nil {
			t.Fatal(err)
		}
	}
	last, _ := (&pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P01"}).Encode(nil)
	for _, v := range []struct {
		sent   []byte
		broken bool
	}{{sent, false}, {append(sent, last...), true}} {
		var x exchange
		var yes bool
		heard = ""
		found, err := x.receive(&inbox{r: bytes.NewReader(v.sent)}, conn, []any{&yes})
		if err != nil || x.refused != nil || !found || !yes || heard != "onetwo" || x.broken != v.broken {
			t.Errorf("got %v, %v, error %v, %v; heard %q; broken: %v, want %v", found, yes, err, x.refused, heard, x.broken, v.broken)
		}
	}
}
