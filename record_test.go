package oncehttp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func TestResponsesAreEncodedAndDecoded(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		header http.Header
		body   string
		want   http.Header // nil: header
	}{
		{"a bare status", 204, nil, "", http.Header{}},
		{"a small one", 201, http.Header{"Content-Type": {"application/json"}, "Location": {"/refunds/1"}}, `{"refund":1}`, nil},
		{"a field with many values", 200, http.Header{"Vary": {"A", "", "B, C"}}, "x", nil},
		{"a field that is suppressed", 200, http.Header{"Content-Type": {}}, "x", nil},
		{"one with what is not recorded", 200, http.Header{"Set-Cookie": {"a=1"}, "Date": {"x"}, "Content-Length": {"1"}, "Etag": {`"1"`}}, "x", http.Header{"Etag": {`"1"`}}},
		{"a value of any bytes", 200, http.Header{"X-A": {"\x00\xff\r\n"}}, "\x00", nil},
		{"a status of its own", 999, http.Header{}, "", nil},
	} {
		head := EncodeResponse(tt.status, tt.header, []byte(tt.body))
		status, header, err := DecodeResponse(head, []byte(tt.body))
		want := tt.want
		if want == nil {
			want = tt.header
		}
		if status != tt.status || err != nil || !maps.EqualFunc(header, want, slices.Equal) {
			t.Errorf("%s: %d %v, %v; want %d %v", tt.name, status, header, err, tt.status, want)
		}
		if _, _, err := DecodeResponse(head, []byte(tt.body+"x")); !errors.Is(err, ErrResponseGone) {
			t.Errorf("%s with another body: %v, want ErrResponseGone", tt.name, err)
		}
		for i := range head {
			if _, _, err := DecodeResponse(head[:i], []byte(tt.body)); !errors.Is(err, ErrResponseGone) {
				t.Errorf("%s cut after %d bytes: %v, want ErrResponseGone", tt.name, i, err)
			}
		}
		if _, _, err := DecodeResponse(append(head, 0), []byte(tt.body)); !errors.Is(err, ErrResponseGone) {
			t.Errorf("%s with a byte more: %v, want ErrResponseGone", tt.name, err)
		}
	}
}

// Stores keep records for longer than a version of this package lives.
func TestRecordsOfVersion1StayReadable(t *testing.T) {
	const head = "\x01\x02\xc9\x01\x0c" + // version, flags, 201, 12 bytes
		"\x02" + "\x0cContent-Type" + "\x01" + "\x10application/json" + "\x04Vary" + "\x02" + "\x01A" + "\x01B" +
		"\x02" + "\x05X-Sum" + "\x01" + "\x0242" + "\x0bTrailer:X-N" + "\x01" + "\x011"
	status, h, err := DecodeResponse([]byte(head), []byte(`{"refund":1}`))
	want := http.Header{"Content-Type": {"application/json"}, "Vary": {"A", "B"}, "Trailer": {"X-Sum"}, "X-Sum": {"42"}, "Trailer:X-N": {"1"}}
	if status != 201 || err != nil || !maps.EqualFunc(h, want, slices.Equal) {
		t.Errorf("%d %v, %v; want 201 %v", status, h, err, want)
	}
}

func TestHeadsAreSmall(t *testing.T) {
	head := EncodeResponse(201, http.Header{
		"Content-Type":  {"application/json; charset=utf-8"},
		"Location":      {"https://api.example/v1/refunds/re_3PqXyzABCDEF"},
		"Cache-Control": {"no-store"},
		"Etag":          {`"33a64df551425fcc55e4d42a148795d9f25f89d4"`},
	}, []byte("x"))
	if len(head) > 200 {
		t.Errorf("a typical head takes %d bytes, want at most 200", len(head))
	}
}

// A header that is too large costs its response, not the protection.
func TestAHugeHeaderIsRecordedAsGone(t *testing.T) {
	huge := http.Header{"X-Huge": {strings.Repeat("x", maxHead)}}
	head := EncodeResponse(201, huge, []byte("x"))
	if len(head) > 20 {
		t.Errorf("%d bytes", len(head))
	}
	if status, _, err := DecodeResponse(head, []byte("x")); status != 201 || !errors.Is(err, ErrResponseGone) {
		t.Errorf("%d, %v; want 201, ErrResponseGone", status, err)
	}
	s := serve(t, "HTTP/1.1", (&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Huge", huge.Get("X-Huge"))
		w.WriteHeader(201)
	})))
	s.client.Transport.(*http.Transport).MaxResponseHeaderBytes = 10 << 20
	wantFirst(t, s.post(t, "/", "k"))
	wantProblem(t, s.post(t, "/", "k"), "response-gone", 409, false, false, "applied")
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte{}, []byte{})
	f.Add([]byte{1, 0}, []byte{})
	f.Add(EncodeResponse(200, nil, nil), []byte{})
	f.Add(EncodeResponse(201, http.Header{"Content-Type": {"application/json"}, "Vary": {"A", "B"}, "X-Nil": nil}, []byte("body")), []byte("body"))
	f.Add(appendHead(nil, stored{status: 200, length: true}, []field{{"A", []string{"b"}}}, nil,
		[]field{{"X-Sum", []string{"1"}}, {"Trailer:X-N", []string{"2", "3"}}}), []byte{})
	f.Add(binary.AppendUvarint([]byte{1, 0, 200, 1, 0}, 1<<62), []byte{})
	f.Add(append([]byte{1, 0, 200, 1, 0, 1}, bytes.Repeat([]byte{0xff}, 20)...), []byte{})
	f.Fuzz(func(t *testing.T, head, body []byte) {
		status, h, err := DecodeResponse(head, body)
		if err != nil {
			if !errors.Is(err, ErrResponseGone) || h != nil {
				t.Errorf("%v, %v", h, err)
			}
		} else if status < 101 || status > 999 {
			t.Errorf("status %d", status)
		}
		// What is written must be what net/http can bear, and what was decoded.
		w := httptest.NewRecorder()
		_, outcome, ok := replay(w, &Answer{Head: head, Body: body})
		if ok != (err == nil) || ok != (outcome == "") {
			t.Errorf("replay: %v %q, decoding: %v", ok, outcome, err)
		}
		if ok && (w.Code != status || w.Header().Get(headerReplayed) != "true" && h[headerReplayed] == nil) {
			t.Errorf("replayed %d %v, want %d", w.Code, w.Header(), status)
		}
		// An answer that can be read is one that can be written again.
		if err == nil {
			again := EncodeResponse(status, h, body)
			if s, _, err := DecodeResponse(again, body); err != nil || s != status {
				t.Errorf("encoded again: %d, %v; want %d", s, err, status)
			}
		}
	})
}
