package pgstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"sync"

	"github.com/oncehttp/oncehttp"
)

// args are the parameters of a statement, in the order in which they are added, in
// the binary format: as they are sent where statements are prepared. They may be
// used for any number of statements, one after another, until they are freed.
type args struct {
	values [][]byte // nil is NULL
	types  []argType
	room   []byte // what is not the caller's

	exchange // what is needed while a statement is under way
}

type argType byte

const (
	argUUID argType = iota
	argBytes
	argInt
	argBool
)

var argsPool = sync.Pool{New: func() any { return new(args) }}

// newArgs returns none yet. Who calls free saves the next one the room.
func newArgs() *args { return argsPool.Get().(*args) }

// holderArgs are those with which the statements of a claim's holder begin.
func holderArgs(op *oncehttp.Op) *args { return newArgs().id(op.Key).token(op.Token) }

func (a *args) add(t argType, value []byte) *args {
	a.values = append(a.values, value)
	a.types = append(a.types, t)
	return a
}

// own adds what was appended to a.room since it had so many bytes.
func (a *args) own(t argType, from int) *args { return a.add(t, a.room[from:len(a.room):len(a.room)]) }

// id adds what a key's row is found by: half of its SHA-256.
func (a *args) id(key string) *args {
	from := len(a.room)
	a.room = append(a.room, key...)
	sum := sha256.Sum256(a.room[from:])
	a.room = append(a.room[:from], sum[:16]...)
	return a.own(argUUID, from)
}

// token adds 17 bytes for a token such as [oncehttp.NewToken] returns, and is one to
// one.
func (a *args) token(token string) *args {
	from := len(a.room)
	a.room = appendToken(a.room, token)
	return a.own(argBytes, from)
}

func appendToken(b []byte, token string) []byte {
	const packed, plain = 1, 0
	if len(token) == 32 && strings.Trim(token, "0123456789abcdef") == "" {
		from := len(b)
		if b, err := hex.AppendDecode(append(b, packed), []byte(token)); err == nil {
			return b
		}
		b = b[:from]
	}
	return append(append(b, plain), token...)
}

// identity adds fingerprint and binding, which share a column.
func (a *args) identity(op *oncehttp.Op) *args {
	from := len(a.room)
	a.room = append(append(a.room, op.Fingerprint[:]...), op.Binding[:]...)
	return a.own(argBytes, from)
}

// text adds a string as bytes.
func (a *args) text(s string) *args {
	from := len(a.room)
	a.room = append(a.room, s...)
	return a.own(argBytes, from)
}

// bytes adds b, which must not change meanwhile. Nil is NULL.
func (a *args) bytes(b []byte) *args { return a.add(argBytes, b) }

func (a *args) int(n int64) *args {
	from := len(a.room)
	a.room = binary.BigEndian.AppendUint64(a.room, uint64(n))
	return a.own(argInt, from)
}

func (a *args) bool(b bool) *args {
	from := len(a.room)
	a.room = append(a.room, 0)
	if b {
		a.room[from] = 1
	}
	return a.own(argBool, from)
}

func (a *args) null(t argType) *args { return a.add(t, nil) }

// first returns the first n of them. They end with a.
func (a *args) first(n int) *args { return &args{values: a.values[:n:n], types: a.types[:n:n]} }

// any returns them as drivers take them. They do not end with a: a tracer may keep
// them.
func (a *args) any() []any {
	if a == nil {
		return nil
	}
	out := make([]any, len(a.values))
	for i, v := range a.values {
		switch t := a.types[i]; {
		case v == nil && t == argBytes:
			out[i] = v // drivers should see its type
		case v == nil:
		case t == argUUID:
			out[i] = uuidText(v)
		case t == argInt:
			out[i] = int64(binary.BigEndian.Uint64(v))
		case t == argBool:
			out[i] = v[0] != 0
		default:
			out[i] = bytes.Clone(v)
		}
	}
	return out
}

// mostRoom is how much room is kept for the next call.
const mostRoom = 64 << 10

// free ends a. Nothing that uses it may be under way.
func (a *args) free() {
	clear(a.values)
	a.values, a.types, a.room = a.values[:0], a.types[:0], a.room[:0]
	if a.exchange.free() && cap(a.room) <= mostRoom {
		argsPool.Put(a)
	}
}

// rowID is what a key's row is found by, as a uuid is written.
func rowID(key string) string {
	sum := sha256.Sum256([]byte(key))
	return uuidText(sum[:16])
}

func uuidText(id []byte) string {
	var b [36]byte
	at := 0
	for i, part := range [...]int{4, 2, 2, 2, 6} {
		if i > 0 {
			b[at] = '-'
			at++
		}
		hex.Encode(b[at:], id[:part])
		at += 2 * part
		id = id[part:]
	}
	return string(b[:])
}
