package oncehttp

import (
	"testing"
	"unsafe"
)

// Every call allocates one of these, and the allocator rounds up: a byte more takes
// it to the next size class.
func TestACallFitsItsSizeClass(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the sizes are those of 64 bits")
	}
	if got := unsafe.Sizeof(trail{}); got > 352 {
		t.Errorf("trail: got %d bytes, want at most 352", got)
	}
	if got := unsafe.Sizeof(attempt{}); got > 448 {
		t.Errorf("attempt: got %d bytes, want at most 448", got)
	}
	// The allocator puts a word before what has pointers and more than 512 bytes.
	if got := unsafe.Sizeof(handling{}); got > 1024-8 {
		t.Errorf("handling: got %d bytes, want at most 1016", got)
	}
	if got := unsafe.Sizeof(goods{}); got != 128 {
		t.Errorf("goods: got %d bytes, want two cache lines", got)
	}
}
