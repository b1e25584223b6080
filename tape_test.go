package oncehttp

import (
	"io"
	"strings"
	"testing"
)

func TestAnAbandonedAttemptReadsNoMoreOfTheBody(t *testing.T) {
	src := io.NopCloser(strings.NewReader("0123456789"))
	tape := &tape{src: src, limit: 100}
	first := tape.reader(t.Context())
	var p [4]byte
	if n, err := first.Read(p[:]); n != 4 || err != nil {
		t.Fatalf("Read = %d, %v", n, err)
	}
	second := tape.reader(t.Context())
	if n, err := first.Read(p[:]); n != 0 || err != errBodyClosed {
		t.Errorf("the abandoned attempt reads %d, %v, want 0, errBodyClosed", n, err)
	}
	if got, err := io.ReadAll(second); string(got) != "0123456789" || err != nil {
		t.Errorf("the new attempt reads %q, %v, want the whole body", got, err)
	}
}
