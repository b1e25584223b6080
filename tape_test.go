package oncehttp

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"runtime"
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

func TestInMemory(t *testing.T) {
	text := "0123456789"
	for _, row := range []struct {
		name   string
		body   io.Reader
		length int64
		want   bool
	}{
		{"a bytes.Reader", bytes.NewReader([]byte(text)), 10, true},
		{"a strings.Reader", strings.NewReader(text), 10, true},
		{"a bytes.Buffer", bytes.NewBufferString(text), 10, true},
		{"one with less in it than Content-Length says", strings.NewReader(text), 11, false},
		{"one with more in it", strings.NewReader(text), 9, false},
		{"one whose length is not told", strings.NewReader(text), -1, false},
		{"as much as is read at once", strings.NewReader(strings.Repeat("x", readAtOnce)), readAtOnce, true},
		{"more than that", strings.NewReader(strings.Repeat("x", readAtOnce+1)), readAtOnce + 1, false},
		{"another kind of reader", io.LimitReader(strings.NewReader(text), 10), 10, false},
		{"one that looks similar", lengthy{strings.NewReader(text)}, 10, false},
		{"none", nil, 0, false},
	} {
		if got := inMemory(io.NopCloser(row.body), row.length); got != row.want {
			t.Errorf("%s: got %v, want %v", row.name, got, row.want)
		}
	}
	if inMemory(struct{ io.ReadCloser }{io.NopCloser(strings.NewReader(text))}, 10) {
		t.Error("a wrapper that may have a Close of its own passes")
	}
}

// lengthy has the methods of a strings.Reader, and is none.
type lengthy struct{ *strings.Reader }

// A failing body does not return from Read.
type failing struct{ fail func() }

func (b failing) Read([]byte) (int, error) {
	b.fail()
	return 0, io.EOF
}
func (failing) Close() error { return nil }

// A boasting body says that a Read gave more, or less, than it can have.
type boasting struct{ more int }

func (b boasting) Read(p []byte) (int, error) { return b.more + max(0, len(p)*b.more), nil }
func (boasting) Close() error                 { return nil }

// A Base that signs what it sends reads the body in the caller's goroutine, where a
// server recovers a panic. So must it come there, and not where nobody does.
func TestABodyThatPanicsDoesSoWhereItIsRead(t *testing.T) {
	boom := errors.New("boom")
	for what, fail := range map[string]func(){
		"panics":             func() { panic(boom) },
		"ends its goroutine": runtime.Goexit,
	} {
		var got any
		returned := false
		apart(func() {
			defer func() { got = recover() }()
			req, err := http.NewRequest("PUT", "http://server.example/", failing{fail})
			if err != nil {
				t.Error(err)
			}
			(&Transport{Base: signing{}}).RoundTrip(req)
			returned = true
		})
		if returned || (got == boom) != (what == "panics") {
			t.Errorf("a body that %s: it returned: %v, recovered %v", what, returned, got)
		}
	}
}

// One whose Reads return what none can does what it does to io.ReadAll.
func TestABodyThatMiscountsFailsWhereItIsRead(t *testing.T) {
	for _, more := range []int{1, -1} {
		var got any
		apart(func() {
			defer func() { got = recover() }()
			req, err := http.NewRequest("PUT", "http://server.example/", boasting{more})
			if err != nil {
				t.Error(err)
			}
			(&Transport{Base: signing{}}).RoundTrip(req)
		})
		if _, ok := got.(runtime.Error); !ok {
			t.Errorf("a body that is %d out: recovered %v, want the runtime's error", more, got)
		}
	}
}

type signing struct{}

func (signing) RoundTrip(r *http.Request) (*http.Response, error) {
	_, err := io.ReadAll(r.Body)
	return nil, err
}
