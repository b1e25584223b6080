package oncehttp

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/oncehttp/oncehttp/internal/canon"
)

// fingerprint returns the digest of what a request asks for, apart from its
// method and path, so that a key used again for something else is noticed.
// What another client, or the same one on its next attempt, may write
// differently without asking for something else does not count:
//
//   - the case of the host, of the media type and of its charset, and the order
//     of the media type's parameters;
//   - the order of query parameters with different names; all else in the query
//     counts as it is written;
//   - in a JSON body the order of members, spacing and escapes, and how a number
//     is laid out; every digit of a number counts;
//   - in a multipart body the boundary and the order of a part's headers. A part is
//     judged like a body, so JSON within multipart is compared by value too.
//
// Every other body is compared by its bytes, and so are one with a
// Content-Encoding, JSON for which package canon has no canonical form
// (duplicate members, for instance: readers disagree about their value) and
// malformed multipart.
//
// Stores keep fingerprints. If the digest of anything changes, then so does
// the version in fingerprintDomain, and keys in flight during an upgrade are
// refused as reused; so it does not.
func fingerprint(host, rawQuery, contentType, contentEncoding, ifMatch string, body []byte) [32]byte {
	f := fingerprinters.Get().(*fingerprinter)
	f.hash.Reset()
	f.buf = append(f.buf[:0], fingerprintDomain...)
	f.string(strings.ToLower(host))
	f.query(rawQuery)
	f.string(ifMatch)
	f.content(contentType, contentEncoding, body, 0)
	f.flush()
	f.hash.Sum(f.sum[:0])
	sum := f.sum
	if cap(f.buf) <= keepFingerprintBuf {
		fingerprinters.Put(f)
	}
	return sum
}

const fingerprintDomain = "oncehttp-fingerprint/v1\x00"

// keepFingerprintBuf is the size from which on a buffer is not worth keeping.
const keepFingerprintBuf = 64 << 10

var fingerprinters = sync.Pool{New: func() any { return &fingerprinter{hash: sha256.New()} }}

// A fingerprinter hashes a sequence of length-prefixed strings and tags that
// tell how what follows is to be read, so that no two requests are one sequence.
type fingerprinter struct {
	hash  hash.Hash
	buf   []byte // to be hashed
	sum   [32]byte
	pairs []queryPair
}

// How a body, or a query, is compared.
const (
	asBytes byte = iota + 1
	asJSON
	asParts
	asPairs
)

func (f *fingerprinter) flush() {
	f.hash.Write(f.buf)
	f.buf = f.buf[:0]
}

func (f *fingerprinter) length(n int) {
	f.buf = binary.BigEndian.AppendUint64(f.buf, uint64(n))
}

func (f *fingerprinter) string(s string) {
	f.length(len(s))
	f.buf = append(f.buf, s...)
}

func (f *fingerprinter) bytes(b []byte) {
	f.length(len(b))
	f.flush()
	f.hash.Write(b)
}

type queryPair struct{ name, pair string }

// query takes the pairs of a query in the order of their names. Pairs of one
// name keep their order: ?a=1&a=2 is not ?a=2&a=1.
func (f *fingerprinter) query(raw string) {
	f.pairs = f.pairs[:0]
	for rest := raw; rest != ""; {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		name, value, _ := strings.Cut(pair, "=")
		// Names are decoded to be sorted, because a and %61 are one name whose
		// values have an order. What net/url cannot parse is nothing we can sort.
		name, err := url.QueryUnescape(name)
		if err != nil || !validEscapes(value) || strings.Contains(pair, ";") {
			f.buf = append(f.buf, asBytes)
			f.string(raw)
			return
		}
		f.pairs = append(f.pairs, queryPair{name, pair})
	}
	slices.SortStableFunc(f.pairs, func(a, b queryPair) int { return cmp.Compare(a.name, b.name) })
	f.buf = append(f.buf, asPairs)
	f.length(len(f.pairs))
	for _, p := range f.pairs {
		f.string(p.pair)
	}
	clear(f.pairs) // a pooled fingerprinter keeps nobody's query alive
}

func validEscapes(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && (i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2])) {
			return false
		}
	}
	return true
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// maxMultipart is how deep multipart bodies within multipart bodies are read.
const maxMultipart = 4

// content takes a body, or a part of one, with the header fields that say how
// to read it.
func (f *fingerprinter) content(contentType, contentEncoding string, body []byte, depth int) {
	mediaType, params, ok := parseMediaType(contentType)
	encoding := strings.ToLower(strings.TrimSpace(contentEncoding))
	if encoding == "identity" {
		encoding = ""
	}
	isJSON := mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")
	isMultipart := strings.HasPrefix(mediaType, "multipart/")
	if !ok {
		f.buf = append(f.buf, asBytes)
		f.string(contentType)
	} else {
		f.mediaType(mediaType, params, isJSON, isMultipart)
	}
	f.string(encoding)

	charset := strings.ToLower(params["charset"])
	switch {
	case !ok || encoding != "":
	case isJSON && (charset == "" || charset == "utf-8"):
		if f.json(body) {
			return
		}
	case isMultipart && depth < maxMultipart:
		if f.parts(params["boundary"], body, depth) {
			return
		}
	}
	f.buf = append(f.buf, asBytes)
	f.bytes(body)
}

// parseMediaType is mime.ParseMediaType without its allocations for a media type
// that stands alone and in lower case.
func parseMediaType(s string) (mediaType string, params map[string]string, ok bool) {
	if s == "" || s == "application/json" || s == "application/x-www-form-urlencoded" {
		return s, nil, true
	}
	mediaType, params, err := mime.ParseMediaType(s)
	return mediaType, params, err == nil
}

// mediaType takes a media type and the parameters that tell what the body means:
// not multipart's boundary, and not a charset=utf-8 on JSON, which is always
// UTF-8 (RFC 8259, section 8.1).
func (f *fingerprinter) mediaType(mediaType string, params map[string]string, isJSON, isMultipart bool) {
	f.buf = append(f.buf, asPairs)
	f.string(mediaType)
	if len(params) == 0 {
		f.length(0)
		return
	}
	var names []string
	for name, value := range params {
		if isMultipart && name == "boundary" {
			continue
		}
		if name == "charset" && isJSON && strings.EqualFold(value, "utf-8") {
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	f.length(len(names))
	for _, name := range names {
		value := params[name]
		if name == "charset" {
			value = strings.ToLower(value)
		}
		f.string(name)
		f.string(value)
	}
}

// json takes a JSON body by value, or nothing if it has no canonical form.
func (f *fingerprinter) json(body []byte) bool {
	start := len(f.buf)
	f.buf = append(f.buf, asJSON)
	f.length(0)
	value := len(f.buf)
	out, err := canon.Append(f.buf, body)
	if err != nil {
		f.buf = f.buf[:start]
		return false
	}
	binary.BigEndian.PutUint64(out[value-8:], uint64(len(out)-value))
	f.buf = out
	return true
}

// parts takes a multipart body by its parts, or nothing if it is malformed. It
// reads with mime/multipart, as handlers do; what precedes the first boundary or
// follows the last means nothing to either (RFC 2046, section 5.1.1).
func (f *fingerprinter) parts(boundary string, body []byte, depth int) bool {
	if boundary == "" {
		return false
	}
	// All of it is read before any of it is hashed, since what has been hashed
	// cannot be taken back.
	type part struct {
		header textproto.MIMEHeader
		body   []byte
	}
	var parts []part
	for r := multipart.NewReader(bytes.NewReader(body), boundary); ; {
		// Raw: the decoding of quoted-printable is lenient.
		p, err := r.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return false
		}
		b, err := io.ReadAll(p)
		if err != nil {
			return false
		}
		parts = append(parts, part{p.Header, b})
	}
	f.buf = append(f.buf, asParts)
	f.length(len(parts))
	for _, p := range parts {
		contentType := p.header.Get("Content-Type")
		p.header.Del("Content-Type") // content takes it
		names := make([]string, 0, len(p.header))
		for name := range p.header {
			names = append(names, name)
		}
		slices.Sort(names)
		f.length(len(names))
		for _, name := range names {
			f.string(name)
			f.length(len(p.header[name]))
			for _, value := range p.header[name] {
				f.string(value)
			}
		}
		encoding := p.header.Get("Content-Transfer-Encoding")
		f.content(contentType, encoding, p.body, depth+1)
	}
	return true
}
