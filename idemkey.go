package oncehttp

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// Header is the field that carries a key, unless KeyHeader of a Transport or a
// Middleware names another (draft-ietf-httpapi-idempotency-key-header).
const Header = "Idempotency-Key"

// maxKey is the length of the longest key in bytes.
const maxKey = 255

var (
	// ErrNoKey is returned by [ParseKey] when the header is absent.
	ErrNoKey = errors.New("oncehttp: the request has no idempotency key")

	// ErrBadKey is wrapped by every error about a key that is no key: empty,
	// longer than 255 bytes, with bytes other than visible ASCII, repeated, a
	// list, or badly quoted. The error's text says which and what to do; it
	// never quotes the key.
	ErrBadKey = errors.New("oncehttp: bad idempotency key")

	// ErrBadAction is the error of a request made under [WithAction] with an
	// empty name.
	ErrBadAction = errors.New("oncehttp: the action's name is empty, so its keys would be everybody's; give WithAction a name that only this action has (this request was not sent)")

	// ErrActionReused is wrapped by the error of a request that is not the one
	// its action has already made with the same method, origin and path. Both
	// would carry the same key, and the server would take the second for a
	// repeat of the first.
	ErrActionReused = errors.New("oncehttp: two different requests under one action")

	// ErrActionFull is wrapped by the error of a request under an action that
	// has made so many different requests (65 536) that no further one can be
	// compared with them.
	ErrActionFull = errors.New("oncehttp: too many different requests under one action")
)

// NewKey returns a fresh random key: the text of a version 4 UUID (RFC 9562).
func NewKey() string {
	var u [16]byte
	rand.Read(u[:]) // never fails: it ends the process rather than return an error
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	var s [36]byte
	hex.Encode(s[0:8], u[0:4])
	hex.Encode(s[9:13], u[4:6])
	hex.Encode(s[14:18], u[6:8])
	hex.Encode(s[19:23], u[8:10])
	hex.Encode(s[24:36], u[10:16])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

// DeriveKey returns the key that belongs to parts: the same parts give the same
// key in any process, on any day. Name what is to happen once, for instance
// DeriveKey("refund", orderID, "line 2"). Where one part ends and the next
// begins counts: ("ab", "c") and ("a", "bc") are different keys.
//
// Without parts, or with nothing but empty ones, it returns "", which is no key:
// whatever uses it says so. A key derived from nothing would be everybody's. For
// the same reason check a part that may be missing before you pass it.
//
// The key is "ok1_" and the first 40 lower-case hexadecimal digits of the
// SHA-256 of: the 15 bytes "oncehttp-key/v1" and a zero byte, then for each part
// its length in bytes as 8 bytes, most significant first, and its bytes.
func DeriveKey(parts ...string) string {
	for _, p := range parts {
		if p != "" {
			sum := sumParts("oncehttp-key/v1\x00", parts...)
			return hexKey("ok1_", &sum)
		}
	}
	return ""
}

// sumParts is the SHA-256 of domain and then of every part behind its length.
func sumParts(domain string, parts ...string) [32]byte {
	var stack [512]byte
	b := append(stack[:0], domain...)
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return sha256.Sum256(b)
}

func hexKey(prefix string, sum *[32]byte) string {
	var b [44]byte
	copy(b[:], prefix)
	hex.Encode(b[4:], sum[:20])
	return string(b[:])
}

// ParseKey returns the key in h's Idempotency-Key header. It returns [ErrNoKey]
// when there is none and an error that wraps [ErrBadKey] when there is something
// else than one key.
//
// A key is 1 to 255 visible ASCII bytes (0x21 to 0x7e) and is compared byte by
// byte. It comes bare, or quoted as the IETF draft asks (a String of RFC 9651,
// section 3.3.3); both forms are the same key. The bare form cannot hold
// , ; " or \. Space around the value does not count. Parameters behind the
// quoted form are ignored, as RFC 9651, section 2.3, asks for those that a field
// does not define.
//
// The header is found under any spelling of its name, so one that was put into
// the map directly is not overlooked.
func ParseKey(h http.Header) (string, error) {
	return parseKeyField(h, Header)
}

// parseKeyField is ParseKey for a field of any name.
func parseKeyField(h http.Header, field string) (string, error) {
	n, value := 0, ""
	for name, values := range h {
		if len(name) == len(field) && len(values) > 0 && (name == field || strings.EqualFold(name, field)) {
			n += len(values)
			value = values[0]
		}
	}
	return onlyKey(field, n, value)
}

// onlyKey reads the value of a field with a key, if it is there once.
func onlyKey(field string, n int, value string) (string, error) {
	switch n {
	case 0:
		return "", ErrNoKey
	case 1:
		key, problem := parseKey(value)
		if problem != "" {
			return "", badKey(field+" header", problem)
		}
		return key, nil
	}
	return "", badKey(field+" header", "it is there more than once; send it once, with one key")
}

// badKey says where a key came from and what is wrong with it.
func badKey(where, problem string) error {
	return fmt.Errorf("%w: %s: %s", ErrBadKey, where, problem)
}

// What can be wrong with a key. None of these texts may contain any of the key.
const (
	keyEmpty   = "it is empty; send a key, or leave it out"
	keyLong    = "the key is longer than 255 bytes; send a digest of it instead (DeriveKey makes one)"
	keyControl = "it contains a control byte; a key is 1 to 255 visible ASCII bytes"
	keySpace   = "it contains a space; a key is 1 to 255 visible ASCII bytes"
	keyUnicode = "it contains a byte that is not ASCII; a key is 1 to 255 visible ASCII bytes (DeriveKey makes one from any text)"
	keyList    = "it is a list or contains a comma; send one key, in double quotes if it contains a comma"
	keyMark    = `it contains ; " or \ outside double quotes; quote the key as RFC 9651 says`
	keyOpen    = "its double quotes are not closed"
	keyEscape  = `it contains a backslash before something else than " or \`
	keyTrail   = "something follows the closing double quote"
	keyParam   = "the parameter behind the key is malformed (RFC 9651, section 3.1.2)"
)

// parseKey returns the key in a field's value, or what is wrong with the value.
func parseKey(value string) (key, problem string) {
	if isBareKey(value) {
		return value, ""
	}
	value = strings.Trim(value, " \t")
	if value == "" {
		return "", keyEmpty
	}
	if value[0] == '"' {
		key, rest, problem := parseQuoted(value)
		if problem == "" {
			problem = checkParams(rest)
		}
		if problem == "" {
			problem = keyProblem(key)
		}
		return key, problem
	}
	for i := 0; i < len(value); i++ {
		switch value[i] {
		case ',':
			return "", keyList
		case ';', '"', '\\':
			return "", keyMark
		}
	}
	return value, keyProblem(value)
}

// isBareKey reports whether value is a key as almost all are sent: bare, and with
// no space around it.
func isBareKey(value string) bool {
	for i := 0; i < len(value); i++ {
		if !bareKeyByte[value[i]] {
			return false
		}
	}
	return value != "" && len(value) <= maxKey
}

var bareKeyByte = func() (bare [256]bool) {
	for c := '!'; c <= '~'; c++ {
		bare[c] = !strings.ContainsRune(`,;"\`, c)
	}
	return bare
}()

// parseQuoted takes a String of RFC 9651 off the front of s, which starts with
// a double quote. It leaves judging the string's bytes to the caller, except
// for those that no String can hold.
func parseQuoted(s string) (text, rest, problem string) {
	var unescaped []byte
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			if unescaped != nil {
				return string(unescaped), s[i+1:], ""
			}
			return s[1:i], s[i+1:], ""
		case c == '\\':
			if i+1 == len(s) {
				return "", "", keyOpen
			}
			if s[i+1] != '"' && s[i+1] != '\\' {
				return "", "", keyEscape
			}
			if unescaped == nil {
				unescaped = append(make([]byte, 0, len(s)), s[1:i]...)
			}
			i++
			unescaped = append(unescaped, s[i])
		case c < ' ' || c == 0x7f:
			return "", "", keyControl
		case c > 0x7f:
			return "", "", keyUnicode
		case unescaped != nil:
			unescaped = append(unescaped, c)
		}
	}
	return "", "", keyOpen
}

// checkParams looks at what follows a quoted key: nothing, or parameters. These
// are ignored, so their values are only read far enough to know where they end.
func checkParams(s string) (problem string) {
	for s != "" {
		switch s[0] {
		case ';':
		case ',':
			return keyList
		default:
			return keyTrail
		}
		s = strings.TrimLeft(s[1:], " ")
		n := 0
		for n < len(s) && paramNameByte(s[n], n == 0) {
			n++
		}
		if n == 0 {
			return keyParam
		}
		s = s[n:]
		if s == "" || s[0] != '=' {
			continue
		}
		s = s[1:]
		if strings.HasPrefix(s, `%"`) { // a Display String; its own escapes need no decoding here
			s = s[1:]
		}
		if strings.HasPrefix(s, `"`) {
			if _, s, problem = parseQuoted(s); problem != "" {
				return keyParam
			}
			continue
		}
		for n = 0; n < len(s) && paramValueByte(s[n]); n++ {
		}
		if n == 0 {
			return keyParam
		}
		s = s[n:]
	}
	return ""
}

func paramNameByte(c byte, first bool) bool {
	switch {
	case 'a' <= c && c <= 'z', c == '*':
		return true
	case '0' <= c && c <= '9', c == '_', c == '-', c == '.':
		return !first
	}
	return false
}

// paramValueByte tells whether c may be in a bare item that is not a string:
// number, token, byte sequence, boolean, date.
func paramValueByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~:/=?@", c) >= 0
}

// keyProblem tells what keeps key from being a key, or "".
func keyProblem(key string) string {
	if key == "" {
		return keyEmpty
	}
	if len(key) > maxKey {
		return keyLong
	}
	for i := 0; i < len(key); i++ {
		switch c := key[i]; {
		case c == ' ':
			return keySpace
		case c < ' ' || c == 0x7f:
			return keyControl
		case c > 0x7f:
			return keyUnicode
		}
	}
	return ""
}

// checkKey returns an error that wraps [ErrBadKey] if key is no key.
func checkKey(key string) error {
	if problem := keyProblem(key); problem != "" {
		return badKey("the key given", problem)
	}
	return nil
}

// formatKey returns the field value that carries key: quoted if that is asked
// for or if the bare form cannot hold the key, else the key itself.
func formatKey(key string, quote bool) string {
	if !quote && !strings.ContainsAny(key, `,;"\`) {
		return key
	}
	var stack [2*maxKey + 2]byte
	b := append(stack[:0], '"')
	for i := 0; i < len(key); i++ {
		if key[i] == '"' || key[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, key[i])
	}
	return string(append(b, '"'))
}

// WithKey returns a context whose requests carry exactly this key. It is for
// an action that is one request: two different requests under one key are
// refused by the server. If an action may need several requests, use
// [WithAction]. The innermost of WithKey and WithAction counts.
//
// An empty or otherwise invalid key fails every request that would carry it, with
// an error that wraps [ErrBadKey]; it is never replaced by another.
func WithKey(ctx context.Context, key string) context.Context {
	s := &keySource{kind: keyGiven, shown: key, shows: true}
	if problem := keyProblem(key); problem != "" {
		s.bad = badKey("WithKey", problem)
	}
	s.mem = &s.own
	return context.WithValue(ctx, keySourceKey{}, s)
}

// WithAction returns a context for one thing that is to be done once and that
// may need several requests. Every request that is not safe gets a key derived
// from the action, its method, its scheme and host, and its path, but neither
// from its query nor its body: an SDK that repeats a request above the
// Transport, or a program that runs the whole action again next week, sends the
// same keys again. The derivation does not change between versions.
//
// A second, different request that would get the same key is refused before it
// is sent, with an error that wraps [ErrActionReused]. To make it, name the step:
// actions nest, and WithAction(ctx, "line 2") has keys of its own, derived from
// the action in ctx and the new name. An action inside a WithKey derives its
// keys from that key and its name, one inside a handler from the request that
// the handler serves.
//
// To notice such a request an outermost action remembers what was asked under it
// and under the actions nested in it: a digest each, for up to 65 536 different
// requests, and further ones are refused with an error that wraps
// [ErrActionFull]. Two outermost actions of one name share their keys but not
// this memory; there only the server can tell.
//
// The name may be any text but ""; an empty one fails every request that needs a
// key, with [ErrBadAction]. A context with an action may be used by several
// goroutines at once.
func WithAction(ctx context.Context, action string) context.Context {
	s, p := &keySource{kind: keyAction}, keySourceFrom(ctx)
	if p == nil {
		s.mem = &s.own
	} else {
		s.mem, s.bad, s.shown, s.shows = p.mem, p.bad, p.shown, p.shows
	}
	switch {
	case p == nil:
		s.id = sumParts(actionDomain, "action", action)
	case p.kind == keyGiven:
		s.id = sumParts(actionDomain, "action in key", p.shown, action)
	default:
		id := p.identity()
		s.id = sumParts(actionDomain, "action in action", string(id[:]), action)
	}
	if action == "" {
		s.bad = ErrBadAction
	}
	return context.WithValue(ctx, keySourceKey{}, s)
}

// KeyFromContext returns the key that the innermost [WithKey] set, as it was
// given, or, inside a handler that a Middleware runs, the key that the caller
// sent. A caller's key is there to be read and logged: the handler's own requests
// do not carry it, because two callers may both say "order-1".
func KeyFromContext(ctx context.Context) (string, bool) {
	s := keySourceFrom(ctx)
	if s == nil {
		return "", false
	}
	return s.shown, s.shows
}

// A recordContext is the context of a handler. It also hides that the handler may
// have been called, in one process, by way of a Transport: its own requests are
// new ones, which need a Transport's care.
type recordContext struct {
	context.Context
	source keySource
}

// init makes it the context of a handler that serves the request with the caller's key
// callerKey, recorded and bound as record says. Requests made with it run under an
// implicit action.
func (x *recordContext) init(ctx context.Context, callerKey string, record *Op) {
	x.Context = ctx
	s := &x.source
	*s = keySource{kind: keyImplicit, shown: callerKey, shows: callerKey != ""}
	s.record = record
	s.mem = &s.own
}

func (x *recordContext) Value(k any) any {
	switch k {
	case keySourceKey{}:
		return &x.source
	case activeKey:
		return nil
	}
	return x.Context.Value(k)
}

// actionDomain starts everything that is hashed for an action. The tag that
// follows it keeps the kinds of identity apart.
const actionDomain = "oncehttp-action/v1\x00"

type keySourceKey struct{}

// A keySource tells where the key of an outgoing request comes from. A nil one
// tells that the context says nothing about it.
type keySource struct {
	kind  keyKind
	shown string // what KeyFromContext answers; for keyGiven the key to send
	shows bool
	id    [32]byte // what the keys of a keyAction derive from; see identity
	bad   error    // why no request can be made
	mem   *actionMemory
	own   actionMemory // mem of an outermost source: one allocation for both

	record *Op // of a keyImplicit: its record's key, and to whom that is bound
}

// identity is what the keys of an action derive from. That of a handler is worked out
// when it is needed: most handlers make no requests.
func (s *keySource) identity() [32]byte {
	if s.kind == keyImplicit {
		return sumParts(actionDomain, "record", s.record.Key, string(s.record.Binding[:]))
	}
	return s.id
}

type keyKind int

const (
	keyGiven    keyKind = iota + 1 // WithKey
	keyAction                      // WithAction
	keyImplicit                    // a handler that the Middleware runs
)

func keySourceFrom(ctx context.Context) *keySource {
	s, _ := ctx.Value(keySourceKey{}).(*keySource)
	return s
}

// explicitKey returns the key to send as it is, if that is what s asks for.
func (s *keySource) explicitKey() (key string, ok bool) {
	if s == nil || s.kind != keyGiven {
		return "", false
	}
	return s.shown, true
}

// isAction tells whether keys come from actionKey.
func (s *keySource) isAction() bool {
	return s != nil && s.kind != keyGiven
}

// implicit tells whether the action is a handler's own.
func (s *keySource) implicit() bool {
	return s != nil && s.kind == keyImplicit
}

// err returns why no request can be made under s: an invalid key or action.
func (s *keySource) err() error {
	if s == nil {
		return nil
	}
	return s.bad
}

// actionKey returns the key of one request under an action. origin is what
// originOf says and path the escaped path. fp is the request's fingerprint; known
// is false when it has none because the body cannot be read before it is sent,
// which only an implicit action allows.
//
// A handler cannot be asked to name its steps before it has met this library,
// so an implicit action gives a second, different request a key of its own.
// That key includes the fingerprint and so is weaker: a re-run that asks for
// something else is new work to the next server.
func (s *keySource) actionKey(method, origin, path string, fp [32]byte, known bool) (string, error) {
	if s.bad != nil {
		return "", s.bad
	}
	if s.kind == keyGiven { // no caller asks this; the zero id would be a key for everybody
		return s.shown, nil
	}
	if method == "" {
		method = http.MethodGet
	}
	if path == "" {
		path = "/"
	}
	id := s.identity()
	sum := sumParts(actionDomain, "request", string(id[:]), method, origin, path)
	if !known {
		return hexKey("oa1_", &sum), nil
	}
	switch met := s.mem.meet(&sum, &fp); {
	case met == metSame:
		return hexKey("oa1_", &sum), nil
	case s.kind == keyImplicit:
		sum = sumParts(actionDomain, "request with fingerprint", string(id[:]), method, origin, path, string(fp[:]))
		return hexKey("oa1_", &sum), nil
	case met == metFull:
		return "", fmt.Errorf("%w: %s %s%s cannot be compared with the %d before it, so it was not sent; "+
			"start a new outermost WithAction for each part of a job this long", ErrActionFull, method, origin, path, maxRequests)
	}
	return "", fmt.Errorf("%w: another %s %s%s was made under it before, and this one would carry the same key, so it was not sent; "+
		`name the step: WithAction(ctx, "line 2")`, ErrActionReused, method, origin, path)
}

// maxRequests bounds an outermost action's memory to about 5 MiB.
const maxRequests = 1 << 16

// An actionMemory remembers the requests made under an outermost action and
// under all those nested in it. Half of each digest is kept: 128 bits are enough
// to tell requests apart.
type actionMemory struct {
	mu   sync.Mutex
	seen map[[16]byte][16]byte // request (it includes the action) → fingerprint
}

type meeting int

const (
	metSame  meeting = iota + 1 // never met before, or with the same fingerprint
	metOther                    // met before with another fingerprint
	metFull                     // never met before, and no room to remember it
)

func (m *actionMemory) meet(request, fingerprint *[32]byte) meeting {
	req, fp := [16]byte(request[:16]), [16]byte(fingerprint[:16])
	m.mu.Lock()
	defer m.mu.Unlock()
	if seen, ok := m.seen[req]; ok {
		if seen == fp {
			return metSame
		}
		return metOther
	}
	if len(m.seen) >= maxRequests {
		return metFull
	}
	if m.seen == nil {
		m.seen = make(map[[16]byte][16]byte)
	}
	m.seen[req] = fp
	return metSame
}

// originOf returns u's scheme and host in lower case, without the port if it is
// the scheme's own: https://API.example:443 is https://api.example.
func originOf(u *url.URL) string {
	return hostKeyOf(u).String()
}
