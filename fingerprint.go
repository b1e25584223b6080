package oncehttp

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"maps"
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
// Stores keep fingerprints for as long as records. Were the digest of some request
// to change in a new version, a repeat that comes after the upgrade would be
// refused as a key used for something else.
func fingerprint(host, rawQuery, contentType, contentEncoding, ifMatch string, body []byte) [32]byte {
	f := fingerprinters.Get().(*fingerprinter)
	sum := f.fingerprint(host, rawQuery, contentType, contentEncoding, ifMatch, body)
	if !f.oversized() {
		fingerprinters.Put(f)
	}
	return sum
}

func (f *fingerprinter) fingerprint(host, rawQuery, contentType, contentEncoding, ifMatch string, body []byte) [32]byte {
	f.take(host, rawQuery, contentType, contentEncoding, ifMatch, body)
	return f.digest()
}

// take takes what digest makes the fingerprint of.
func (f *fingerprinter) take(host, rawQuery, contentType, contentEncoding, ifMatch string, body []byte) {
	if f.buf == nil {
		f.buf = make([]byte, 0, 1<<10)
	}
	f.flushed = false
	f.buf = append(f.buf[:0], fingerprintDomain...)
	f.string(strings.ToLower(host))
	f.query(rawQuery)
	f.string(ifMatch)
	f.content(contentType, contentEncoding, body, 0)
}

const fingerprintDomain = "oncehttp-fingerprint/v1\x00"

// A fingerprinter that has grown beyond these is not kept.
const (
	keepFingerprintBuf   = 64 << 10
	keepFingerprintPairs = 1 << 10
)

func (f *fingerprinter) oversized() bool {
	return cap(f.buf) > keepFingerprintBuf || cap(f.pairs) > keepFingerprintPairs
}

var fingerprinters = sync.Pool{New: func() any { return new(fingerprinter) }}

// A fingerprinter hashes a sequence of length-prefixed strings and tags that
// tell how what follows is to be read, so that no two requests are one sequence. The zero
// value is ready to use, and to use again.
type fingerprinter struct {
	hash  hash.Hash // made when it is first needed
	buf   []byte    // to be hashed
	sum   [32]byte
	canon canon.Appender
	pairs []queryPair

	flushed bool // hash has the beginning
}

// How a body, or a query, is compared.
const (
	asBytes byte = iota + 1
	asJSON
	asParts
	asPairs
)

func (f *fingerprinter) flush() {
	switch {
	case f.hash == nil:
		f.hash = sha256.New()
	case !f.flushed:
		f.hash.Reset()
	}
	f.flushed = true
	f.hash.Write(f.buf)
	f.buf = f.buf[:0]
}

// digest returns the digest of everything.
func (f *fingerprinter) digest() [32]byte {
	if !f.flushed {
		return sha256.Sum256(f.buf)
	}
	f.flush()
	f.hash.Sum(f.sum[:0])
	return f.sum
}

func (f *fingerprinter) length(n int) {
	f.buf = binary.BigEndian.AppendUint64(f.buf, uint64(n))
}

func (f *fingerprinter) string(s string) {
	f.length(len(s))
	f.buf = append(f.buf, s...)
}

// query takes the pairs of a query in the order of their names. Pairs of one
// name keep their order: ?a=1&a=2 is not ?a=2&a=1.
func (f *fingerprinter) query(raw string) {
	if !f.split(raw) {
		f.buf = append(f.buf, asBytes)
		f.string(raw)
	} else {
		slices.SortStableFunc(f.pairs, func(a, b queryPair) int { return cmp.Compare(a.name, b.name) })
		f.buf = append(f.buf, asPairs)
		f.length(len(f.pairs))
		for _, p := range f.pairs {
			f.string(p.pair)
		}
	}
	clear(f.pairs) // a pooled fingerprinter keeps nobody's query alive
	f.pairs = f.pairs[:0]
}

type queryPair struct{ name, pair string }

// split splits a query into its pairs. It returns false for what net/url does
// not parse either: there is no telling what its order means.
func (f *fingerprinter) split(raw string) bool {
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		name, value, _ := strings.Cut(pair, "=")
		// Names are decoded before they are sorted: a and %61 are one name, and the
		// order of its values counts.
		name, err := url.QueryUnescape(name)
		if err != nil || !validEscapes(value) || strings.Contains(pair, ";") {
			return false
		}
		f.pairs = append(f.pairs, queryPair{name, pair})
	}
	return true
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

// content takes a body, or at a greater depth a part of one, with the header
// fields that say how to read it.
func (f *fingerprinter) content(contentType, contentEncoding string, body []byte, depth int) {
	mediaType, params, ok := parseMediaType(contentType)
	isJSON := mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")
	isMultipart := strings.HasPrefix(mediaType, "multipart/")
	if ok {
		f.mediaType(mediaType, params, isJSON, isMultipart)
	} else {
		f.buf = append(f.buf, asBytes)
		f.string(contentType)
	}
	encoding := strings.ToLower(strings.TrimSpace(contentEncoding))
	if encoding == "identity" {
		encoding = ""
	}
	f.string(encoding)

	if ok && encoding == "" && len(body) > 0 {
		charset := params["charset"]
		switch {
		case isJSON && (charset == "" || strings.EqualFold(charset, "utf-8")):
			if f.json(body) {
				return
			}
		case isMultipart && depth < maxMultipart:
			if f.parts(params["boundary"], body, depth) {
				return
			}
		}
	}
	f.buf = append(f.buf, asBytes)
	if isMultipart {
		f.string(params["boundary"]) // which mediaType left out
	}
	f.length(len(body))
	if depth == 0 {
		f.flush()
		f.hash.Write(body)
		return
	}
	f.buf = append(f.buf, body...)
}

// parseMediaType is mime.ParseMediaType without its allocations for the types
// that most requests have.
func parseMediaType(s string) (mediaType string, params map[string]string, ok bool) {
	switch s {
	case "", "application/json", "application/x-www-form-urlencoded":
		return s, nil, true
	case "application/json; charset=utf-8", "application/json;charset=utf-8":
		return "application/json", nil, true // see mediaType
	}
	mediaType, params, err := mime.ParseMediaType(s)
	// ParseMediaType leaves out what it cannot decode of RFC 2231's parameters.
	// No Content-Type needs them; one that has some is compared by its bytes.
	return mediaType, params, err == nil && !strings.Contains(s, "*")
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
	out, err := f.canon.Append(f.buf, body)
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
// follows the last means nothing to either (RFC 2046, section 5.1.1). All of it
// goes into buf and none to the hash, because only buf can be taken back.
func (f *fingerprinter) parts(boundary string, body []byte, depth int) bool {
	if boundary == "" {
		return false
	}
	start := len(f.buf)
	f.buf = append(f.buf, asParts)
	var part bytes.Buffer
	// A body that is cut within a part's header looks complete to mime/multipart,
	// which then returns io.EOF. So its input ends in another error, before which
	// only a whole closing delimiter yields io.EOF.
	in := io.MultiReader(bytes.NewReader(body), strings.NewReader("\r\n"), cut{})
	for r := multipart.NewReader(in, boundary); ; {
		p, err := r.NextRawPart() // raw: the decoding of quoted-printable forgives errors
		if err == io.EOF {
			f.buf = append(f.buf, 0)
			return true
		}
		part.Reset()
		if err == nil {
			_, err = part.ReadFrom(p)
		}
		if err != nil {
			f.buf = f.buf[:start]
			return false
		}
		f.buf = append(f.buf, 1)

		// content takes the Content-Type, unless there are several: those mean
		// nothing and are headers like any other.
		contentType := ""
		if v := p.Header["Content-Type"]; len(v) == 1 {
			contentType = v[0]
			delete(p.Header, "Content-Type")
		}
		f.header(p.Header)
		encoding := strings.ToLower(p.Header.Get("Content-Transfer-Encoding"))
		switch encoding {
		case "7bit", "8bit", "binary": // no encoding at all (RFC 2045, section 6.2)
			encoding = ""
		}
		f.content(contentType, encoding, part.Bytes(), depth+1)
	}
}

type cut struct{}

func (cut) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// header takes a part's header. The order of values of one name counts.
func (f *fingerprinter) header(h textproto.MIMEHeader) {
	names := slices.Sorted(maps.Keys(h))
	f.length(len(names))
	for _, name := range names {
		f.string(name)
		f.length(len(h[name]))
		for _, value := range h[name] {
			f.string(value)
		}
	}
}
