// Package canon writes JSON in one canonical form, so that two texts with the
// same value are the same bytes and can be hashed.
package canon

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and objects may nest. A scalar has depth 0.
const MaxDepth = 64

// maxExponent bounds the exponent that is written. It is far outside of what
// any program computes with, and keeps the arithmetic here far from overflow.
const maxExponent = 999_999_999

// An Error says why a text has no canonical form. It quotes none of the text.
type Error struct {
	Offset  int    // in bytes, where the trouble was noticed
	Problem string // for instance "duplicate member"
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s at byte %d", e.Problem, e.Offset)
}

// Append appends the canonical form of the JSON text src to dst.
//
// The layout is that of RFC 8785: no space, members sorted by the UTF-16 code
// units of their names, no escape that is not needed. But RFC 8785 rounds every
// number to a float64, which makes 9007199254740993 and 9007199254740992 one
// value, and two refunds one refund. Here a number keeps all its digits and only
// its layout is that of ECMAScript: 1, 1.0 and 1e0 are 1, -0 is 0, 1e400 is
// 1e+400.
//
// A text that different readers may take for different values has no canonical
// form: Append returns an [*Error], and dst unchanged, for duplicate members,
// invalid UTF-8, escaped surrogates without their other half, anything behind
// the value, nesting beyond [MaxDepth], an exponent beyond ±999 999 999, and
// whatever is not JSON (RFC 8259) at all.
//
// The bytes of dst and src must not overlap.
func Append(dst, src []byte) ([]byte, error) {
	a := appenders.Get().(*Appender)
	defer appenders.Put(a)
	return a.Append(dst, src)
}

var appenders = sync.Pool{New: func() any { return new(Appender) }}

// An Appender is for those who call Append often. It keeps the memory that it needs for
// the next call, unless that was much. Its zero value is ready to use, by one goroutine
// at a time.
type Appender struct{ p parser }

// Append is the function Append.
func (a *Appender) Append(dst, src []byte) ([]byte, error) {
	if !utf8.Valid(src) {
		return dst, &Error{invalidAt(src), "invalid UTF-8"}
	}
	p := &a.p
	p.src, p.i, p.dst = src, 0, dst
	p.members = p.members[:0]
	err := p.value(0)
	if err == nil {
		if p.space(); p.i < len(p.src) {
			err = p.fail("data after the value")
		}
	}
	out := p.dst
	p.src, p.dst = nil, nil
	if cap(p.members) > keepMembers || cap(p.scratch) > keepScratch {
		p.members, p.scratch = nil, nil
	}
	if err != nil {
		return dst, err
	}
	return out, nil
}

func invalidAt(src []byte) int {
	for i := 0; i < len(src); {
		r, n := utf8.DecodeRune(src[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(src)
}

// Memory beyond these is not kept.
const (
	keepMembers = 1 << 10
	keepScratch = 64 << 10
)

type parser struct {
	src []byte
	i   int // what is next in src
	dst []byte

	members []member // of all objects that are open, innermost last
	scratch []byte   // an object's members before they are sorted; a number's digits
}

// A member is one member of an object as it stands in dst: its name, in
// quotes, from start to colon, its value from there to end.
type member struct {
	start, colon, end int
	at                int // in src
}

func (p *parser) fail(problem string) error {
	return &Error{p.i, problem}
}

func (p *parser) space() {
	for p.i < len(p.src) {
		switch p.src[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

// next skips space and returns the byte that follows, without taking it. At the
// end it returns 0, which is no byte that JSON allows there.
func (p *parser) next() byte {
	p.space()
	if p.i < len(p.src) {
		return p.src[p.i]
	}
	return 0
}

func (p *parser) unexpected() error {
	if p.i >= len(p.src) {
		return p.fail("unexpected end")
	}
	return p.fail("unexpected byte")
}

func (p *parser) value(depth int) error {
	switch c := p.next(); c {
	case '{':
		return p.object(depth + 1)
	case '[':
		return p.array(depth + 1)
	case '"':
		return p.string()
	case 't':
		return p.literal("true")
	case 'f':
		return p.literal("false")
	case 'n':
		return p.literal("null")
	default:
		if c == '-' || '0' <= c && c <= '9' {
			return p.number()
		}
		return p.unexpected()
	}
}

func (p *parser) literal(s string) error {
	if !bytes.HasPrefix(p.src[p.i:], []byte(s)) {
		return p.fail("invalid literal")
	}
	p.i += len(s)
	p.dst = append(p.dst, s...)
	return nil
}

func (p *parser) array(depth int) error {
	if depth > MaxDepth {
		return p.fail("nesting too deep")
	}
	p.i++
	p.dst = append(p.dst, '[')
	if p.next() == ']' {
		p.i++
		p.dst = append(p.dst, ']')
		return nil
	}
	for {
		if err := p.value(depth); err != nil {
			return err
		}
		switch p.next() {
		case ',':
			p.i++
			p.dst = append(p.dst, ',')
		case ']':
			p.i++
			p.dst = append(p.dst, ']')
			return nil
		default:
			return p.unexpected()
		}
	}
}

func (p *parser) object(depth int) error {
	if depth > MaxDepth {
		return p.fail("nesting too deep")
	}
	p.i++
	p.dst = append(p.dst, '{')
	first := len(p.members)
	sorted := true
	for {
		switch c := p.next(); {
		case c == '"':
		case c == '}' && len(p.members) == first:
			p.i++
			p.dst = append(p.dst, '}')
			return nil
		default:
			return p.unexpected()
		}
		m := member{start: len(p.dst), at: p.i}
		if err := p.string(); err != nil {
			return err
		}
		m.colon = len(p.dst)
		if len(p.members) > first && sorted {
			switch c := compareNames(p.dst, p.members[len(p.members)-1], m); {
			case c == 0:
				return &Error{m.at, "duplicate member"}
			case c > 0:
				sorted = false
			}
		}
		if p.next() != ':' {
			return p.unexpected()
		}
		p.i++
		p.dst = append(p.dst, ':')
		if err := p.value(depth); err != nil {
			return err
		}
		m.end = len(p.dst)
		p.members = append(p.members, m)
		switch p.next() {
		case ',':
			p.i++
			p.dst = append(p.dst, ',')
		case '}':
			p.i++
			if !sorted {
				if err := p.sort(p.members[first:]); err != nil {
					return err
				}
			}
			p.members = p.members[:first]
			p.dst = append(p.dst, '}')
			return nil
		default:
			return p.unexpected()
		}
	}
}

// sort puts the members of an object, which are the end of dst, in order.
func (p *parser) sort(members []member) error {
	dst, start := p.dst, members[0].start
	slices.SortFunc(members, func(a, b member) int { return compareNames(dst, a, b) })
	p.scratch = append(p.scratch[:0], dst[start:]...)
	p.dst = dst[:start]
	for i, m := range members {
		if i > 0 {
			if prev := members[i-1]; bytes.Equal(p.scratch[prev.start-start:prev.colon-start], p.scratch[m.start-start:m.colon-start]) {
				return &Error{max(prev.at, m.at), "duplicate member"}
			}
			p.dst = append(p.dst, ',')
		}
		p.dst = append(p.dst, p.scratch[m.start-start:m.end-start]...)
	}
	return nil
}

// compareNames compares two member names, which stand in dst in canonical form,
// by their UTF-16 code units (RFC 8785, section 3.2.3).
func compareNames(dst []byte, x, y member) int {
	a, b := dst[x.start+1:x.colon-1], dst[y.start+1:y.colon-1]
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] && a[i] != '\\' && a[i] < utf8.RuneSelf {
		i++
	}
	a, b = a[i:], b[i:]
	for len(a) > 0 && len(b) > 0 {
		r, n := firstRune(a)
		s, m := firstRune(b)
		if r != s {
			return unitOrder(r) - unitOrder(s)
		}
		a, b = a[n:], b[m:]
	}
	return len(a) - len(b)
}

// firstRune decodes the first character of a canonical string.
func firstRune(s []byte) (r rune, n int) {
	if s[0] != '\\' {
		return utf8.DecodeRune(s)
	}
	switch s[1] {
	case 'b':
		return '\b', 2
	case 't':
		return '\t', 2
	case 'n':
		return '\n', 2
	case 'f':
		return '\f', 2
	case 'r':
		return '\r', 2
	case 'u': // only control characters are written so
		return rune(hexDigit(s[4])<<4 | hexDigit(s[5])), 6
	}
	return rune(s[1]), 2
}

// unitOrder maps runes to numbers that sort like their UTF-16 code units: what
// needs a surrogate pair goes before U+E000.
func unitOrder(r rune) int {
	switch {
	case r >= 0x10000:
		return int(r) - 0x10000 + 0xd800
	case r >= 0xe000:
		return int(r) + 0x100000
	}
	return int(r)
}

// plain holds the bytes that a string shows as they are.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 0x20 && c != '"' && c != '\\'
	}
	return t
}()

// string takes a string. Its quote is known to be next, its UTF-8 to be valid.
func (p *parser) string() error {
	p.i++
	p.dst = append(p.dst, '"')
	for {
		chunk := p.i
		for p.i < len(p.src) && plain[p.src[p.i]] {
			p.i++
		}
		p.dst = append(p.dst, p.src[chunk:p.i]...)
		if p.i >= len(p.src) {
			return p.fail("unexpected end")
		}
		switch p.src[p.i] {
		case '"':
			p.i++
			p.dst = append(p.dst, '"')
			return nil
		case '\\':
			if err := p.escape(); err != nil {
				return err
			}
		default:
			return p.fail("control character in a string")
		}
	}
}

// escape takes an escape sequence and writes the character in its shortest form.
func (p *parser) escape() error {
	if p.i+1 >= len(p.src) {
		return p.fail("unexpected end")
	}
	switch c := p.src[p.i+1]; c {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		p.dst = append(p.dst, '\\', c)
	case '/':
		p.dst = append(p.dst, '/')
	case 'u':
		r, ok := p.hex4(p.i + 2)
		if !ok {
			return p.fail("invalid escape")
		}
		if utf16.IsSurrogate(r) {
			low, ok := rune(0), false
			if bytes.HasPrefix(p.src[p.i+6:], []byte(`\u`)) {
				low, ok = p.hex4(p.i + 8)
			}
			if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
				return p.fail("lone surrogate")
			}
			p.i += 6
		}
		p.rune(r)
		p.i += 6
		return nil
	default:
		return p.fail("invalid escape")
	}
	p.i += 2
	return nil
}

func (p *parser) rune(r rune) {
	switch r {
	case '"', '\\':
		p.dst = append(p.dst, '\\', byte(r))
	case '\b':
		p.dst = append(p.dst, `\b`...)
	case '\t':
		p.dst = append(p.dst, `\t`...)
	case '\n':
		p.dst = append(p.dst, `\n`...)
	case '\f':
		p.dst = append(p.dst, `\f`...)
	case '\r':
		p.dst = append(p.dst, `\r`...)
	default:
		if r < 0x20 {
			const digits = "0123456789abcdef"
			p.dst = append(p.dst, '\\', 'u', '0', '0', digits[r>>4], digits[r&0xf])
			return
		}
		p.dst = utf8.AppendRune(p.dst, r)
	}
}

// hex4 reads the four hexadecimal digits at src[i].
func (p *parser) hex4(i int) (r rune, ok bool) {
	if i+4 > len(p.src) {
		return 0, false
	}
	for _, c := range p.src[i : i+4] {
		d := hexDigit(c)
		if d < 0 {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c - 'a' + 10)
	case 'A' <= c && c <= 'F':
		return int(c - 'A' + 10)
	}
	return -1
}

// number takes a number and writes it as ECMAScript's Number::toString lays
// numbers out (ECMA-262, section 6.1.6.1.20), but with all its digits.
func (p *parser) number() error {
	start := p.i
	negative := p.src[p.i] == '-'
	if negative {
		p.i++
	}
	whole := p.digits()
	if len(whole) == 0 {
		return p.unexpected()
	}
	if whole[0] == '0' && len(whole) > 1 {
		p.i = start
		return p.fail("number with a leading zero")
	}
	if len(whole) <= 21 && (p.i == len(p.src) || p.src[p.i] != '.' && p.src[p.i]|0x20 != 'e') {
		// Most numbers: as it stands.
		if negative && whole[0] != '0' {
			p.dst = append(p.dst, '-')
		}
		p.dst = append(p.dst, whole...)
		return nil
	}
	var fraction []byte
	if p.i < len(p.src) && p.src[p.i] == '.' {
		p.i++
		if fraction = p.digits(); len(fraction) == 0 {
			return p.unexpected()
		}
	}
	exponent := int64(0)
	if p.i < len(p.src) && p.src[p.i]|0x20 == 'e' {
		p.i++
		sign := int64(1)
		if p.i < len(p.src) && (p.src[p.i] == '+' || p.src[p.i] == '-') {
			if p.src[p.i] == '-' {
				sign = -1
			}
			p.i++
		}
		text := p.digits()
		if len(text) == 0 {
			return p.unexpected()
		}
		exponent = sign * clampedInt(text)
	}

	// The value is 0.digits × 10^point, digits without zeros at either end.
	p.scratch = append(append(p.scratch[:0], whole...), fraction...)
	digits := bytes.TrimLeft(p.scratch, "0")
	point := exponent + int64(len(whole)-(len(p.scratch)-len(digits)))
	digits = bytes.TrimRight(digits, "0")
	if len(digits) == 0 {
		p.dst = append(p.dst, '0') // -0 too, as RFC 8785 has it
		return nil
	}
	if point-1 > maxExponent || point-1 < -maxExponent {
		p.i = start
		return p.fail("exponent out of range")
	}
	if negative {
		p.dst = append(p.dst, '-')
	}
	p.layout(digits, int(point))
	return nil
}

func (p *parser) digits() []byte {
	start := p.i
	for p.i < len(p.src) && '0' <= p.src[p.i] && p.src[p.i] <= '9' {
		p.i++
	}
	return p.src[start:p.i]
}

// clampedInt returns the value of decimal digits, or something beyond every
// bound: adding a text's length to it does not bring it back.
func clampedInt(digits []byte) int64 {
	n := int64(0)
	for _, c := range digits {
		if n > math.MaxInt64/100 {
			return n
		}
		n = n*10 + int64(c-'0')
	}
	return n
}

func (p *parser) layout(digits []byte, point int) {
	const zeros = "000000000000000000000"
	n := len(digits)
	switch {
	case n <= point && point <= 21: // 1200
		p.dst = append(append(p.dst, digits...), zeros[:point-n]...)
	case 0 < point && point <= 21: // 1.2
		p.dst = append(append(append(p.dst, digits[:point]...), '.'), digits[point:]...)
	case -6 < point && point <= 0: // 0.0012
		p.dst = append(append(append(p.dst, "0."...), zeros[:-point]...), digits...)
	default: // 1.2e+30
		p.dst = append(p.dst, digits[0])
		if n > 1 {
			p.dst = append(append(p.dst, '.'), digits[1:]...)
		}
		p.dst = append(p.dst, 'e')
		if point > 0 {
			p.dst = append(p.dst, '+')
		}
		p.dst = strconv.AppendInt(p.dst, int64(point-1), 10)
	}
}
