package oncehttp

import (
	"encoding/binary"
	"errors"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// EncodeResponse returns a response as a [Middleware] records it, to be given to
// a Store as head and body: an operator resolves an unknown outcome with it.
// Fields that are never recorded (see Middleware) are left out. The body is
// stored as it is.
func EncodeResponse(status int, h http.Header, body []byte) (head []byte) {
	s := stored{status: status, bodyLen: len(body), length: h["Content-Length"] != nil}
	fields := make([]field, 0, len(h))
	for name, values := range h {
		fields = append(fields, field{name, values})
	}
	return appendHead(nil, s, fields, nil, nil)
}

// DecodeResponse is the inverse of EncodeResponse, for those who look at
// records. Trailers are in h too: under http.TrailerPrefix, or announced by a Trailer
// field. It returns [ErrResponseGone], with the status if that is known, when head
// and body are no whole response.
func DecodeResponse(head, body []byte) (status int, h http.Header, err error) {
	s, err := parseHead(head)
	if err != nil {
		return 0, nil, ErrResponseGone
	}
	if s.gone || s.bodyLen != len(body) {
		return s.status, nil, ErrResponseGone
	}
	h = make(http.Header)
	s.fields(h)
	s.trailers(h, true)
	s.trailers(h, false)
	return s.status, h, nil
}

// A record's head, version 1:
//
//	byte     1
//	byte     flags
//	uvarint  status
//	uvarint  length of the body
//	fields   header
//	fields   trailer
//
// where fields are a uvarint that counts them, and for each its name, a uvarint
// that counts its values, and the values; a string is a uvarint that tells its
// length, and its bytes. A field without values suppresses one that would be
// there otherwise. A trailer's name is as the handler wrote it: with
// http.TrailerPrefix, or plain if it was declared.
const headVersion = 1

const (
	flagGone   = 1 << iota // the body was too large to record
	flagLength             // the handler sent a Content-Length
)

// maxHead bounds a head. A response whose header does not fit is recorded
// without it, and its body, as one that can no longer be given.
const maxHead = 256 << 10

// A stored is a head, parsed.
type stored struct {
	status  int
	bodyLen int
	gone    bool
	length  bool
	rest    cursor // fields
	values  int    // in rest
}

// appendHead makes a head in the room that b has, of a header, of what outer layers
// had set before, and of the trailers.
func appendHead(b []byte, s stored, header []field, before http.Header, late []field) []byte {
	b = append(b[:0], headVersion, 0)
	if s.gone {
		b[1] |= flagGone
	}
	if s.length {
		b[1] |= flagLength
	}
	b = binary.AppendUvarint(b, uint64(s.status))
	b = binary.AppendUvarint(b, uint64(s.bodyLen))
	start := len(b)
	b = appendFields(b, header, before)
	b = appendTrailers(b, late)
	if len(b) > maxHead {
		b = append(b[:start], 0, 0)
		b[1] |= flagGone
	}
	return b
}

// appendFields appends what the handler made of the header: fields that equal
// those of before are left out, those that only before has are suppressed.
func appendFields(b []byte, header []field, before http.Header) []byte {
	var connection []string
	for _, f := range header {
		if f.name == "Connection" {
			connection = f.values
		}
	}
	at, n := len(b), 0
	b = append(b, 0)
	for _, f := range header {
		if old, ok := before[f.name]; ok && slices.Equal(old, f.values) {
			continue
		}
		if isRecorded(f.name, connection) {
			b = appendField(b, f.name, f.values)
			n++
		}
	}
	for name := range before {
		if !hasField(header, name) && isRecorded(name, before["Connection"]) {
			b = appendField(b, name, nil)
			n++
		}
	}
	return setCount(b, at, n)
}

func hasField(header []field, name string) bool {
	return slices.ContainsFunc(header, func(f field) bool { return f.name == name })
}

// setCount sets a count for which one byte was left at the place at.
func setCount(b []byte, at, n int) []byte {
	if n < 0x80 {
		b[at] = byte(n)
		return b
	}
	return slices.Replace(b, at, at+1, binary.AppendUvarint(nil, uint64(n))...)
}

// appendTrailers appends the trailers that are recorded.
func appendTrailers(b []byte, late []field) []byte {
	at, n := len(b), 0
	b = append(b, 0)
	for _, f := range late {
		if len(f.values) > 0 && isRecorded(strings.TrimPrefix(f.name, http.TrailerPrefix), nil) {
			b = appendField(b, f.name, f.values)
			n++
		}
	}
	return setCount(b, at, n)
}

func appendField(b []byte, name string, values []string) []byte {
	b = appendText(b, name)
	b = binary.AppendUvarint(b, uint64(len(values)))
	for _, v := range values {
		b = appendText(b, v)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// isRecorded tells whether a response field belongs to the answer, and not to the
// connection, the moment or the person it was given to. connection are the values of
// the header's Connection.
func isRecorded(name string, connection []string) bool {
	// A handler may have put a field into the map in a spelling of its own.
	switch name = http.CanonicalHeaderKey(name); name {
	case "Content-Length", // recomputed
		"Trailer", // made from the trailers
		"Date",
		"Set-Cookie", "Set-Cookie2",
		// Hop by hop: RFC 9110, section 7.6.1, and what came before it.
		"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade",
		"Proxy-Authenticate", "Proxy-Authentication-Info",
		// Credentials.
		"Authorization", "Authentication-Info", "Proxy-Authorization",
		"X-Api-Key", "X-Auth-Token", "X-Access-Token", "X-Refresh-Token", "X-Subject-Token", "X-Amz-Security-Token", "X-Csrf-Token":
		return false
	}
	if isControl(name) || strings.HasPrefix(name, http.TrailerPrefix) {
		return false
	}
	for _, v := range connection {
		if hasToken(v, name) {
			return false
		}
	}
	return true
}

const (
	headerStatus   = "Idempotency-Status"
	headerReplayed = "Idempotent-Replayed"
)

// isControl names the fields by which this package tells clients what an answer
// is. Only the Middleware may set them: one set by a handler (which may have it
// from another server) would be believed.
func isControl(name string) bool {
	switch name {
	case headerStatus, headerReplayed, "Idempotency-Replayed":
		return true
	}
	// A handler may have put it into the map in another spelling.
	return len(name) == len(headerStatus) && strings.EqualFold(name, headerStatus) ||
		len(name) == len(headerReplayed) && strings.EqualFold(name, headerReplayed) ||
		len(name) == len("Idempotency-Replayed") && strings.EqualFold(name, "Idempotency-Replayed")
}

// hasToken tells whether a comma-separated list has the token, in any case.
func hasToken(list, token string) bool {
	for list != "" {
		var t string
		t, list, _ = strings.Cut(list, ",")
		if strings.EqualFold(textproto.TrimString(t), token) {
			return true
		}
	}
	return false
}

var errUnreadable = errors.New("oncehttp: unreadable record")

// parseHead reads a head written by appendHead. Anything else is an error.
func parseHead(b []byte) (stored, error) {
	var s stored
	if len(b) < 2 || len(b) > 2*maxHead || b[0] != headVersion || b[1]&^(flagGone|flagLength) != 0 {
		return s, errUnreadable
	}
	s.gone, s.length = b[1]&flagGone != 0, b[1]&flagLength != 0
	c := cursor{s: string(b[2:])}
	s.status = c.int()
	s.bodyLen = c.int()
	s.rest = c
	for range 2 {
		for n := c.int(); n > 0 && !c.bad; n-- {
			c.text()
			for m := c.int(); m > 0 && !c.bad; m-- {
				c.text()
				s.values++
			}
		}
	}
	if c.bad || c.s != "" || s.status < 101 || s.status > 999 {
		return stored{}, errUnreadable
	}
	return s, nil
}

// fields sets h's fields to those of the head. It returns their values, with room for
// one more.
func (s *stored) fields(h http.Header) []string {
	// One allocation for the values of all fields.
	all := make([]string, 0, s.values+1)
	for n := s.rest.int(); n > 0; n-- {
		name := s.rest.text()
		start := len(all)
		for m := s.rest.int(); m > 0; m-- {
			all = append(all, s.rest.text())
		}
		h[name] = all[start:len(all):len(all)]
	}
	return all
}

// trailers sets those with a prefix if first is true, and must be called like
// that before the header is written: it also announces the plain ones, whose
// values it sets when it is called again with first false, after the body.
func (s *stored) trailers(h http.Header, first bool) {
	c := s.rest
	for n := c.int(); n > 0; n-- {
		name := c.text()
		prefixed := strings.HasPrefix(name, http.TrailerPrefix)
		if first && !prefixed {
			h.Add("Trailer", name)
		}
		var values []string
		for m := c.int(); m > 0; m-- {
			values = append(values, c.text())
		}
		if first == prefixed {
			h[name] = values
		}
	}
}

// A cursor reads what appendHead wrote. After an error it is bad and empty.
type cursor struct {
	s   string
	bad bool
}

// int reads a count or a length, neither of which can exceed what is left, or
// another small number.
func (c *cursor) int() int {
	var n uint64
	for i := 0; i < len(c.s) && i < 5; i++ {
		n |= uint64(c.s[i]&0x7f) << (7 * i)
		if c.s[i] < 0x80 {
			if i > 0 && c.s[i] == 0 {
				break // not the shortest form
			}
			if n > 1<<31-1 {
				break
			}
			c.s = c.s[i+1:]
			return int(n)
		}
	}
	c.s, c.bad = "", true
	return 0
}

func (c *cursor) text() string {
	n := c.int()
	if n > len(c.s) {
		c.s, c.bad = "", true
		return ""
	}
	t := c.s[:n]
	c.s = c.s[n:]
	return t
}
