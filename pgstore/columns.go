package pgstore

import (
	"encoding/binary"
	"fmt"
	"time"
)

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
