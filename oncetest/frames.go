package oncetest

import (
	"encoding/binary"
)

const (
	frameData     = 0x0 // RFC 9113, section 6
	frameHeaders  = 0x1
	frameReset    = 0x3
	frameGoAway   = 0x7
	flagEndStream = 0x1
)

// goAwayFrame is a GOAWAY frame without an error (RFC 9113, section 6.8).
func goAwayFrame(last uint32) []byte {
	b := make([]byte, 9+8)
	b[2], b[3] = 8, frameGoAway
	binary.BigEndian.PutUint32(b[9:], last)
	return b
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" // RFC 9113, section 3.4

// frames follows the frames of one direction (RFC 9113, section 4.1).
type frames struct {
	preface string // what must still come before the first frame
	head    [9]byte
	have    int // bytes of head
	left    int // bytes of the payload still to come
	each    func(typ, flags byte, stream uint32)
}

// between reports whether no frame is under way.
func (f *frames) between() bool { return f.have == 0 && f.left == 0 }

// scan follows what was read or written, and reports whether that is HTTP/2.
func (f *frames) scan(b []byte) bool {
	for len(b) > 0 {
		switch {
		case f.preface != "":
			if b[0] != f.preface[0] {
				return false
			}
			f.preface, b = f.preface[1:], b[1:]
		case f.left > 0:
			n := min(f.left, len(b))
			f.left, b = f.left-n, b[n:]
		default:
			n := copy(f.head[f.have:], b)
			f.have, b = f.have+n, b[n:]
			if f.have == len(f.head) {
				f.have = 0
				f.left = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
				f.each(f.head[3], f.head[4], binary.BigEndian.Uint32(f.head[5:])&(1<<31-1))
			}
		}
	}
	return true
}
