package oncetest

import (
	"slices"
	"testing"
)

// However a connection's bytes are cut into reads, they are the same frames.
func FuzzFrames(f *testing.F) {
	f.Add([]byte(preface+"\x00\x00\x02\x01\x05\x00\x00\x00\x01hi\x00\x00\x00\x04\x01\x00\x00\x00\x00"), 3)
	f.Add([]byte("\x00\x00\x08\x07\x00\x80\x00\x00\x00"), 1)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), 2)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		type frame struct {
			typ, flags byte
			stream     uint32
		}
		read := func(b []byte, n int) (all []frame, ok, between bool) {
			s := frames{preface: preface, each: func(typ, flags byte, stream uint32) { all = append(all, frame{typ, flags, stream}) }}
			for part := range slices.Chunk(b, n) {
				if !s.scan(part) {
					return all, false, false
				}
			}
			return all, true, s.between()
		}
		whole, ok1, between1 := read(b, len(b)+1)
		parts, ok2, between2 := read(b, max(1, n))
		if !slices.Equal(whole, parts) || ok1 != ok2 || between1 != between2 {
			t.Errorf("whole: %v %v %v, in parts: %v %v %v", whole, ok1, between1, parts, ok2, between2)
		}
		for _, f := range whole {
			if f.stream >= 1<<31 {
				t.Errorf("stream %d is too high", f.stream)
			}
		}
	})
}

func TestGoAwayIsOneFrame(t *testing.T) {
	var got []uint32
	s := frames{each: func(typ, flags byte, stream uint32) { got = append(got, uint32(typ), uint32(flags), stream) }}
	s.scan(goAwayFrame(7))
	if !slices.Equal(got, []uint32{frameGoAway, 0, 0}) || !s.between() {
		t.Errorf("got %v, between %v", got, s.between())
	}
}
