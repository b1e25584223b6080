package oncehttp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
)

func TestNewKeyIsARandomUUID(t *testing.T) {
	uuid4 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 1000 {
		key := NewKey()
		if !uuid4.MatchString(key) {
			t.Fatalf("NewKey() = %s, want a version 4 UUID", key)
		}
		if err := checkKey(key); err != nil {
			t.Fatal(err)
		}
		if seen[key] {
			t.Fatalf("NewKey() = %s for the second time", key)
		}
		seen[key] = true
	}
}

func TestDeriveKey(t *testing.T) {
	// Computed by another program from the documented construction.
	for _, tt := range []struct {
		parts []string
		want  string
	}{
		{[]string{"refund", "A-17"}, "ok1_c442ea8d90708fba1d3e72da7969713ca4cacae5"},
		{[]string{"refund", "A-17", "line 2"}, "ok1_291bb34cdce076f640ef1ac50e21ad3a3aae654a"},
		{[]string{"ab", "c"}, "ok1_6074948ed4a31b73b3e297db56c3303897ba622a"},
		{[]string{"a", "bc"}, "ok1_1f25d6cd36251f1066d10d4adb5f76a95367a2c1"},
		{[]string{"abc"}, "ok1_26ef35a9bd6766a607ccc2e272bfe5d7f2ef6ffc"},
		{[]string{"a", ""}, "ok1_3073253f5c066b2b4f66d03b862fb268e233141c"},
		{[]string{"", "a"}, "ok1_ca24ebdc2915623c5a36e5383a4694c939c1fcfa"},
		{[]string{"größe"}, "ok1_eeae7b25d4950cc100af137aff277c0523c57b70"},
		{[]string{"\x00"}, "ok1_4e9fddbe79a56c99b4176b6a6c0c936326911bd8"},
	} {
		got := DeriveKey(tt.parts...)
		if got != tt.want {
			t.Errorf("DeriveKey(%q) = %s, want %s", tt.parts, got, tt.want)
		}
		if formatKey(got, false) != got {
			t.Errorf("DeriveKey(%q) = %s has no bare form", tt.parts, got)
		}
	}

	// More than the stack buffer holds.
	if DeriveKey(strings.Repeat("x", 10_000)) == DeriveKey(strings.Repeat("x", 10_001)) {
		t.Error("two long parts have one key")
	}
}

func TestAKeyDerivedFromNothingIsNoKey(t *testing.T) {
	for _, parts := range [][]string{nil, {""}, {"", ""}} {
		key := DeriveKey(parts...)
		if key != "" {
			t.Errorf("DeriveKey(%q) = %s, want no key", parts, key)
		}
		if err := keySourceFrom(WithKey(t.Context(), key)).err(); !errors.Is(err, ErrBadKey) {
			t.Errorf("a request with DeriveKey(%q): %v, want ErrBadKey", parts, err)
		}
	}
}

func TestParseKeyTakesAllFormsOfAKey(t *testing.T) {
	max := strings.Repeat("k", 255)
	for _, tt := range []struct{ what, value, want string }{
		{"bare", "order-1", "order-1"},
		{"quoted", `"order-1"`, "order-1"},
		{"a UUID", "8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		{"one byte", "k", "k"},
		{"one byte, quoted", `"k"`, "k"},
		{"the lowest and the highest bytes", "!~", "!~"},
		{"case counts, bare", "Order-A", "Order-A"},
		{"case counts, quoted", `"Order-A"`, "Order-A"},
		{"words that mean nothing elsewhere mean nothing here", "null", "null"},
		{"what would be another structured type is text", "?1", "?1"},
		{"base64", "b3JkZXItMQ==", "b3JkZXItMQ=="},
		{"space before and behind the bare form", " \torder-1\t ", "order-1"},
		{"space before and behind the quoted form", ` "order-1" `, "order-1"},
		{"marks within quotes", `"a,b;c"`, "a,b;c"},
		{"an escaped quote", `"a\"b"`, `a"b`},
		{"an escaped backslash", `"a\\b"`, `a\b`},
		{"escapes at both ends", `"\"a\\"`, `"a\`},
		{"a quoted key that looks quoted", `"\"k\""`, `"k"`},
		{"255 bytes", max, max},
		{"255 bytes, quoted", `"` + max + `"`, max},
		{"255 bytes, 510 with their escapes", `"` + strings.Repeat(`\\`, 255) + `"`, strings.Repeat(`\`, 255)},
		{"a parameter", `"k";a=1`, "k"},
		{"parameters of every type", `"k";a=-1.5;b="x;\"y, z"; c=tok/en:*;d=:aGk=:;e=?1;f=@1659578233;g=%"f%c3%bc";h;*i_-.9=2`, "k"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			got, err := ParseKey(http.Header{Header: {tt.value}})
			if err != nil || got != tt.want {
				t.Errorf("ParseKey(%s) = %q, %v, want %q", tt.value, got, err, tt.want)
			}
			for _, quote := range []bool{false, true} {
				field := formatKey(tt.want, quote)
				if got, err := ParseKey(http.Header{Header: {field}}); got != tt.want || err != nil {
					t.Errorf("ParseKey(formatKey(%q, %t)) = %q, %v, want it back", tt.want, quote, got, err)
				}
			}
		})
	}
}

func TestParseKeyRefuses(t *testing.T) {
	// Every value holds SECRET, unless it is too short to. No error may.
	long := "SECRET" + strings.Repeat("k", 250)
	for _, tt := range []struct {
		what   string
		values []string
		want   string // what its text says
	}{
		{"an empty value", []string{""}, "it is empty"},
		{"nothing but space", []string{" \t "}, "it is empty"},
		{"an empty quoted key", []string{`""`}, "it is empty"},
		{"an empty quoted key with a parameter", []string{`"";SECRET`}, "malformed"},
		{"an empty quoted key with a fine parameter", []string{`"";a=SECRET`}, "it is empty"},
		{"two headers", []string{"SECRET", "b"}, "more than once"},
		{"two headers that say the same", []string{"SECRET", "SECRET"}, "more than once"},
		{"two headers, one of them empty", []string{"SECRET", ""}, "more than once"},
		{"two empty headers", []string{"", ""}, "more than once"},
		{"a list", []string{"SECRET,b"}, "list"},
		{"a list with spaces", []string{"SECRET, b"}, "list"},
		{"a list of one key twice", []string{"SECRET, SECRET"}, "list"},
		{"a list of quoted keys", []string{`"SECRET", "b"`}, "list"},
		{"a list of a quoted key and a bare one", []string{`"SECRET",b`}, "list"},
		{"a list of a bare key and a quoted one", []string{`SECRET,"b"`}, "list"},
		{"a comma at the end", []string{"SECRET,"}, "list"},
		{"a comma alone", []string{","}, "list"},
		{"a list behind a parameter", []string{`"SECRET";a=1, "b"`}, "list"},
		{"256 bytes", []string{long}, "longer than 255"},
		{"256 bytes, quoted", []string{`"` + long + `"`}, "longer than 255"},
		{"256 bytes, all escaped", []string{`"` + strings.Repeat(`\"`, 256) + `"`}, "longer than 255"},
		{"a megabyte", []string{strings.Repeat("SECRET", 1<<18)}, "longer than 255"},
		{"a megabyte of quotes", []string{strings.Repeat(`"`, 1<<20)}, "closing double quote"},
		{"a megabyte of backslashes, never closed", []string{`"` + strings.Repeat(`\`, 1<<20)}, "not closed"},
		{"a space inside", []string{"SECRET key"}, "space"},
		{"a space inside, quoted", []string{`"SECRET key"`}, "space"},
		{"a space before the closing quote", []string{`"SECRET "`}, "space"},
		{"a tab inside", []string{"SECRET\tkey"}, "control"},
		{"a tab inside, quoted", []string{"\"SECRET\tkey\""}, "control"},
		{"a NUL", []string{"SECRET\x00"}, "control"},
		{"a NUL, quoted", []string{"\"SECRET\x00\""}, "control"},
		{"a line feed", []string{"SECRET\nX-Evil: 1"}, "control"},
		{"a line feed at the end", []string{"SECRET\n"}, "control"},
		{"a carriage return", []string{"SECRET\r\n"}, "control"},
		{"a DEL", []string{"SECRET\x7f"}, "control"},
		{"a DEL, quoted", []string{"\"SECRET\x7f\""}, "control"},
		{"an escaped control byte", []string{"\"SECRET\\\x01\""}, "backslash"},
		{"a letter beyond ASCII", []string{"SECRET-größe"}, "not ASCII"},
		{"a letter beyond ASCII, quoted", []string{`"SECRET-größe"`}, "not ASCII"},
		{"a byte beyond ASCII that is no UTF-8", []string{"SECRET\xff"}, "not ASCII"},
		{"a no-break space around", []string{"\u00a0SECRET\u00a0"}, "not ASCII"},
		{"typographic quotes", []string{"“SECRET”"}, "not ASCII"},
		{"an opening quote alone", []string{`"`}, "not closed"},
		{"a quote that is not closed", []string{`"SECRET`}, "not closed"},
		{"a closing quote that is escaped", []string{`"SECRET\"`}, "not closed"},
		{"a quote that ends in a backslash", []string{`"SECRET\`}, "not closed"},
		{"a closing quote alone", []string{`SECRET"`}, "outside double quotes"},
		{"a quote in the middle", []string{`SEC"RET`}, "outside double quotes"},
		{"a backslash outside quotes", []string{`SEC\RET`}, "outside double quotes"},
		{"an escape that RFC 9651 does not know", []string{`"SECRET\n"`}, "backslash"},
		{"an escape of Unicode", []string{`"SECRET\u0041"`}, "backslash"},
		{"text behind the closing quote", []string{`"SECRET"x`}, "closing double quote"},
		{"two strings", []string{`"SECRET" "b"`}, "closing double quote"},
		{"an equals sign behind the closing quote", []string{`"SECRET"=1`}, "closing double quote"},
		{"single quotes around a space", []string{`'SECRET key'`}, "space"},
		{"a parameter on a bare key", []string{"SECRET;a=1"}, "outside double quotes"},
		{"a parameter without a name", []string{`"SECRET";`}, "malformed"},
		{"a parameter with a name in capitals", []string{`"SECRET";A=1`}, "malformed"},
		{"a parameter with a name that starts with a digit", []string{`"SECRET";1=1`}, "malformed"},
		{"a parameter without a value behind its equals sign", []string{`"SECRET";a=`}, "malformed"},
		{"a parameter with an open string", []string{`"SECRET";a="b`}, "malformed"},
		{"a parameter with a value beyond ASCII", []string{`"SECRET";a=ü`}, "malformed"},
		{"a space before a parameter", []string{`"SECRET" ;a=1`}, "closing double quote"},
		{"a space behind a parameter's value", []string{`"SECRET";a=1 b`}, "closing double quote"},
		{"a JSON list", []string{`["SECRET"]`}, "outside double quotes"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			key, err := ParseKey(http.Header{Header: tt.values})
			if err == nil {
				t.Fatalf("ParseKey(%.60q) = %q, want an error", tt.values, key)
			}
			if !errors.Is(err, ErrBadKey) || errors.Is(err, ErrNoKey) {
				t.Errorf("ParseKey(%.60q): %v, want ErrBadKey", tt.values, err)
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "Idempotency-Key header") {
				t.Errorf("ParseKey(%.60q): %q, want it to name the header and say %q", tt.values, err, tt.want)
			}
			if strings.Contains(err.Error(), "SEC") {
				t.Errorf("ParseKey(%.60q): %q quotes the key", tt.values, err)
			}
			if key != "" {
				t.Errorf("ParseKey(%.60q) = %q with an error", tt.values, key)
			}
		})
	}
}

func TestParseKeyFindsTheHeader(t *testing.T) {
	for _, tt := range []struct {
		what  string
		h     http.Header
		field string
		want  string
		err   error
	}{
		{"no header at all", nil, Header, "", ErrNoKey},
		{"no key", http.Header{"Accept": {"*/*"}}, Header, "", ErrNoKey},
		{"an entry without values is absent", http.Header{Header: nil}, Header, "", ErrNoKey},
		{"another header that names a request is no key", http.Header{"X-Request-Id": {"a"}, "Traceparent": {"b"}}, Header, "", ErrNoKey},
		{"a name of its own", http.Header{"X-Once": {"k"}}, "X-Once", "k", nil},
		{"a name of its own, configured in lower case", http.Header{"X-Once": {"k"}}, "x-once", "k", nil},
		{"a key under the usual name does not count then", http.Header{Header: {"k"}}, "X-Once", "", ErrNoKey},
		{"a name in lower case, put into the map directly", http.Header{"idempotency-key": {"k"}}, Header, "k", nil},
		{"two spellings are a repeated header", http.Header{"idempotency-key": {"k"}, Header: {"k"}}, Header, "", ErrBadKey},
		{"an empty entry under one spelling, a key under another", http.Header{"idempotency-key": {}, Header: {"k"}}, Header, "k", nil},
	} {
		t.Run(tt.what, func(t *testing.T) {
			got, err := parseKeyField(tt.h, tt.field)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %q, %v, want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
	_, err := parseKeyField(http.Header{"X-Once": {""}}, "X-Once")
	if err == nil || !strings.Contains(err.Error(), "X-Once") {
		t.Errorf("an empty X-Once: %v, want an error that names the field", err)
	}
}

func TestFormatKey(t *testing.T) {
	for _, tt := range []struct {
		what, key string
		quote     bool
		want      string
	}{
		{"bare if nobody asks otherwise", "order-1", false, "order-1"},
		{"quoted if asked", "order-1", true, `"order-1"`},
		{"quoted if a bare comma would be a list", "a,b", false, `"a,b"`},
		{"quoted if a bare semicolon would start parameters", "a;b", false, `"a;b"`},
		{"a quote is escaped", `a"b`, false, `"a\"b"`},
		{"a backslash is escaped", `a\b`, false, `"a\\b"`},
		{"the longest key there is", strings.Repeat(`"`, 255), true, `"` + strings.Repeat(`\"`, 255) + `"`},
	} {
		if got := formatKey(tt.key, tt.quote); got != tt.want {
			t.Errorf("%s: formatKey(%q, %t) = %s, want %s", tt.what, tt.key, tt.quote, got, tt.want)
		}
	}
}

// request is what the Transport asks of a context.
type request struct {
	method, origin, path, content string
}

var refundsURL = request{"POST", "https://api.example", "/refunds", "100 EUR"}

func keyOf(ctx context.Context, r request) (string, error) {
	return keySourceFrom(ctx).actionKey(r.method, r.origin, r.path, contentOf(r.content), true)
}

func contentOf(s string) [32]byte {
	return fingerprint("", "", "", "", "", []byte(s))
}

func mustKey(t *testing.T, ctx context.Context, r request) string {
	t.Helper()
	key, err := keyOf(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkKey(key); err != nil || formatKey(key, false) != key {
		t.Fatalf("%q is no bare key: %v", key, err)
	}
	return key
}

func TestAContextSaysNothingUnlessAsked(t *testing.T) {
	ctx := t.Context()
	s := keySourceFrom(ctx)
	if s != nil || s.isAction() || s.implicit() || s.err() != nil {
		t.Errorf("a bare context has a key source: %+v", s)
	}
	if key, ok := s.explicitKey(); key != "" || ok {
		t.Errorf("explicitKey() = %q, %t, want none", key, ok)
	}
	if key, ok := KeyFromContext(ctx); key != "" || ok {
		t.Errorf("KeyFromContext = %q, %t, want none", key, ok)
	}
}

func TestWithKeySendsThatKey(t *testing.T) {
	for _, key := range []string{"order-1", "a,b", `"`, strings.Repeat("k", 255)} {
		s := keySourceFrom(WithKey(t.Context(), key))
		if got, ok := s.explicitKey(); got != key || !ok || s.err() != nil {
			t.Errorf("WithKey(%q): %q, %t, %v", key, got, ok, s.err())
		}
		if s.isAction() || s.implicit() {
			t.Errorf("WithKey(%q) is an action", key)
		}
	}
}

func TestAnInvalidKeyFailsAndIsNeverReplaced(t *testing.T) {
	for _, tt := range []struct{ what, key, want string }{
		{"empty", "", "it is empty"},
		{"a space", "SECRET key", "space"},
		{"a line feed", "SECRET\nkey", "control"},
		{"a letter beyond ASCII", "SECRET-ü", "not ASCII"},
		{"256 bytes", "SECRET" + strings.Repeat("k", 250), "longer than 255"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			ctx := WithKey(t.Context(), tt.key)
			s := keySourceFrom(ctx)
			if !errors.Is(s.err(), ErrBadKey) || !strings.Contains(s.err().Error(), tt.want) || !strings.Contains(s.err().Error(), "WithKey") {
				t.Errorf("err() = %v, want ErrBadKey that names WithKey and says %q", s.err(), tt.want)
			}
			if strings.Contains(fmt.Sprint(s.err(), checkKey(tt.key)), "SECRET") {
				t.Errorf("%v, or %v, quotes the key", s.err(), checkKey(tt.key))
			}
			if key, ok := s.explicitKey(); key != tt.key || !ok {
				t.Errorf("explicitKey() = %q, %t, want the key as given, so that nobody mints another", key, ok)
			}
			if key, err := keyOf(WithAction(ctx, "line 2"), refundsURL); !errors.Is(err, ErrBadKey) {
				t.Errorf("an action under the key: %q, %v, want ErrBadKey", key, err)
			}
			if err := keySourceFrom(WithKey(ctx, "order-1")).err(); err != nil {
				t.Errorf("a valid key further in: %v", err)
			}
		})
	}
}

func TestAnActionNeedsAName(t *testing.T) {
	for what, ctx := range map[string]context.Context{
		"an empty action":                WithAction(t.Context(), ""),
		"an empty step":                  WithAction(WithAction(t.Context(), "refund"), ""),
		"a step of an empty action":      WithAction(WithAction(t.Context(), ""), "line 2"),
		"an empty action under a key":    WithAction(WithKey(t.Context(), "order-1"), ""),
		"an empty action in a handler":   WithAction(withRecord(t.Context(), "k", "record", [32]byte{}), ""),
		"a step of an empty one in that": WithAction(WithAction(withRecord(t.Context(), "k", "record", [32]byte{}), ""), "x"),
	} {
		if err := keySourceFrom(ctx).err(); !errors.Is(err, ErrBadAction) {
			t.Errorf("%s: %v, want ErrBadAction", what, err)
		}
		if key, err := keyOf(ctx, refundsURL); key != "" || !errors.Is(err, ErrBadAction) {
			t.Errorf("%s: actionKey = %q, %v, want ErrBadAction", what, key, err)
		}
	}
}

func TestActionKeysAreTheSameInEveryProcessAndVersion(t *testing.T) {
	// Computed by another program.
	record := withRecord(t.Context(), "order-1", "record", [32]byte([]byte(strings.Repeat("\x07", 32))))
	for _, tt := range []struct {
		what string
		ctx  context.Context
		want string
	}{
		{"an action", WithAction(t.Context(), "refund A-17"), "oa1_3c57be6191d421a9d23d22ab0752492e87b29daf"},
		{"a step of it", WithAction(WithAction(t.Context(), "refund A-17"), "line 2"), "oa1_6efe30c4901633e5f48d205ace6d37938efd79fc"},
		{"an action under a key", WithAction(WithKey(t.Context(), "order-1"), "line 2"), "oa1_7a08504bf4dd731c44fd52d2161b6c2df235cf6c"},
		{"a handler", record, "oa1_10bc7d8a051c15bb31f6941b99bcf00c76e6446e"},
		{"an action in a handler", WithAction(record, "line 2"), "oa1_41f48b9af2538aa431f94811a03e719ee619d5bd"},
	} {
		if got := mustKey(t, tt.ctx, refundsURL); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
	}
	s := keySourceFrom(record)
	got, err := s.actionKey("POST", "https://api.example", "/refunds", [32]byte([]byte(strings.Repeat("\x02", 32))), true)
	if want := "oa1_7c74ca13b7b6fd39c868ee08a6b164dc7d6eee5a"; got != want || err != nil {
		t.Errorf("a second, different request of a handler: %s, %v, want %s", got, err, want)
	}
}

func TestEveryActionHasKeysOfItsOwn(t *testing.T) {
	root := t.Context()
	act := func(names ...string) context.Context {
		ctx := root
		for _, name := range names {
			ctx = WithAction(ctx, name)
		}
		return ctx
	}
	binding := [32]byte{1}
	contexts := map[string]context.Context{
		"a":                                 act("a"),
		"b":                                 act("b"),
		"A":                                 act("A"),
		"a/b":                               act("a", "b"),
		"b/a":                               act("b", "a"),
		"a/a":                               act("a", "a"),
		"ab":                                act("ab"),
		"ab/c":                              act("ab", "c"),
		"a/bc":                              act("a", "bc"),
		"a/b/c":                             act("a", "b", "c"),
		"one whose name has a slash":        act("a/b"),
		"one whose name has a NUL":          act("a\x00b"),
		"key a, a":                          WithAction(WithKey(root, "a"), "a"),
		"key a, b":                          WithAction(WithKey(root, "a"), "b"),
		"key b, a":                          WithAction(WithKey(root, "b"), "a"),
		"key a, a/b":                        WithAction(WithAction(WithKey(root, "a"), "a"), "b"),
		"a handler":                         withRecord(root, "k", "record", binding),
		"a handler of another record":       withRecord(root, "k", "record2", binding),
		"a handler bound to someone else":   withRecord(root, "k", "record", [32]byte{2}),
		"a in a handler":                    WithAction(withRecord(root, "k", "record", binding), "a"),
		"a in a handler of another record":  WithAction(withRecord(root, "k", "record2", binding), "a"),
		"a in one bound to someone else":    WithAction(withRecord(root, "k", "record", [32]byte{2}), "a"),
		"a under a key set in a handler":    WithAction(WithKey(withRecord(root, "k", "record", binding), "set"), "a"),
		"a name that a handler's id is not": act("record"),
	}
	seen := map[string]string{}
	for what, ctx := range contexts {
		key := mustKey(t, ctx, refundsURL)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have one key", what, other)
		}
		seen[key] = what
	}

	again := mustKey(t, act("a", "b"), refundsURL)
	if want := mustKey(t, contexts["a/b"], refundsURL); again != want {
		t.Errorf("the action run again: %s, want %s", again, want)
	}
	// What is outside of a WithKey does not count, nor what a value's context is.
	outer := mustKey(t, WithAction(WithKey(act("x"), "a"), "a"), refundsURL)
	if want := mustKey(t, contexts["key a, a"], refundsURL); outer != want {
		t.Errorf("the same key and action inside another action: %s, want %s", outer, want)
	}
}

func TestEveryRequestOfAnActionHasAKeyOfItsOwn(t *testing.T) {
	ctx := WithAction(t.Context(), "a")
	seen := map[string]request{}
	for _, r := range []request{
		refundsURL,
		{"PATCH", "https://api.example", "/refunds", ""},
		{"post", "https://api.example", "/refunds", ""}, // methods are case-sensitive: RFC 9110, section 9.1
		{"POST", "http://api.example", "/refunds", ""},
		{"POST", "https://api.example:8443", "/refunds", ""},
		{"POST", "https://other.example", "/refunds", ""},
		{"POST", "https://api.example", "/refunds/", ""},
		{"POST", "https://api.example", "/a%2Fb", ""},
		{"POST", "https://api.example", "/a/b", ""},
		{"POST", "https://api.example", "", ""},
	} {
		key := mustKey(t, ctx, r)
		if other, ok := seen[key]; ok {
			t.Errorf("%v and %v have one key", r, other)
		}
		seen[key] = r
	}
	if got, want := mustKey(t, ctx, request{"POST", "https://api.example", "/", ""}), mustKey(t, ctx, request{"POST", "https://api.example", "", ""}); got != want {
		t.Errorf("the path / has key %s, no path %s; they are one resource", got, want)
	}
}

func TestARepeatUnderAnActionHasItsKey(t *testing.T) {
	// An SDK that retries above the Transport, then the whole action again.
	ctx := WithAction(t.Context(), "refund A-17")
	first := mustKey(t, ctx, refundsURL)
	if again := mustKey(t, ctx, refundsURL); again != first {
		t.Errorf("the same request again: %s, want %s", again, first)
	}
	if again := mustKey(t, WithAction(context.Background(), "refund A-17"), refundsURL); again != first {
		t.Errorf("the action in another process: %s, want %s", again, first)
	}
	// There with another body: the same key, so that the server can refuse it.
	changed := refundsURL
	changed.content = "50 EUR"
	if again := mustKey(t, WithAction(context.Background(), "refund A-17"), changed); again != first {
		t.Errorf("a re-run with a changed body: %s, want %s", again, first)
	}
}

func TestASecondDifferentRequestUnderAnActionIsRefused(t *testing.T) {
	changed := refundsURL
	changed.content = "SECRET 50 EUR"
	for what, ctx := range map[string]context.Context{
		"an action":              WithAction(t.Context(), "refund"),
		"a step":                 WithAction(WithAction(t.Context(), "refund"), "line 1"),
		"an action under a key":  WithAction(WithKey(t.Context(), "order-1"), "refund"),
		"an action in a handler": WithAction(withRecord(t.Context(), "k", "record", [32]byte{}), "refund"),
	} {
		first := mustKey(t, ctx, refundsURL)
		key, err := keyOf(ctx, changed)
		if key != "" || !errors.Is(err, ErrActionReused) {
			t.Fatalf("%s: a different request: %q, %v, want ErrActionReused", what, key, err)
		}
		for _, want := range []string{"POST https://api.example/refunds", `WithAction(ctx, "line 2")`, "not sent"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q, want it to say %s", what, err, want)
			}
		}
		if strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), first) {
			t.Errorf("%s: %q quotes too much", what, err)
		}
		if again := mustKey(t, ctx, refundsURL); again != first {
			t.Errorf("%s: the first request after the refusal: %s, want %s", what, again, first)
		}
		if named := mustKey(t, WithAction(ctx, "line 2"), changed); named == first {
			t.Errorf("%s: the named step has the key of the action", what)
		}
	}
}

func TestActionsOfOneNameShareTheirMemory(t *testing.T) {
	changed := refundsURL
	changed.content = "50 EUR"
	for what, parent := range map[string]context.Context{
		"under an action": WithAction(t.Context(), "refund"),
		"under a key":     WithKey(t.Context(), "order-1"),
		"in a handler":    withRecord(t.Context(), "k", "record", [32]byte{}),
	} {
		mustKey(t, WithAction(parent, "line"), refundsURL)
		if key, err := keyOf(WithAction(parent, "line"), changed); !errors.Is(err, ErrActionReused) {
			t.Errorf("%s: the step's name again for something else: %q, %v, want ErrActionReused", what, key, err)
		}
		mustKey(t, WithAction(parent, "other line"), changed)
	}
}

func TestInAHandlerADifferentRequestGetsAKeyOfItsOwn(t *testing.T) {
	handler := func() context.Context { return withRecord(t.Context(), "order-1", "record", [32]byte{1}) }
	second, third := refundsURL, refundsURL
	second.content, third.content = "50 EUR", "25 EUR"

	ctx := handler()
	if s := keySourceFrom(ctx); !s.isAction() || !s.implicit() || s.err() != nil {
		t.Fatalf("a handler's context is no implicit action: %+v", s)
	}
	keys := []string{mustKey(t, ctx, refundsURL), mustKey(t, ctx, second), mustKey(t, ctx, third)}
	if keys[0] == keys[1] || keys[1] == keys[2] || keys[0] == keys[2] {
		t.Errorf("three different requests have keys %v", keys)
	}
	// Each of them repeated, and the handler run again.
	rerun := handler()
	for i, r := range []request{refundsURL, second, third} {
		if again := mustKey(t, ctx, r); again != keys[i] {
			t.Errorf("request %d again: %s, want %s", i, again, keys[i])
		}
		if again := mustKey(t, rerun, r); again != keys[i] {
			t.Errorf("request %d of the handler's second run: %s, want %s", i, again, keys[i])
		}
	}

	// A body that cannot be read first goes under the action's key and leaves
	// no trace.
	ctx = handler()
	stream, err := keySourceFrom(ctx).actionKey("POST", "https://api.example", "/refunds", [32]byte{}, false)
	if err != nil || stream != keys[0] {
		t.Errorf("a stream: %s, %v, want %s", stream, err, keys[0])
	}
	if first := mustKey(t, ctx, second); first != keys[0] {
		t.Errorf("the first request after a stream: %s, want %s", first, keys[0])
	}
	if keySourceFrom(WithAction(ctx, "line 2")).implicit() {
		t.Error("a named action in a handler is implicit")
	}
}

func TestACallersKeyIsReadableAndNeverForwarded(t *testing.T) {
	tenant := func(record string) context.Context { return withRecord(t.Context(), "order-1", record, [32]byte{}) }
	a, b := tenant("record of tenant a"), tenant("record of tenant b")
	for _, ctx := range []context.Context{a, b, WithAction(a, "step")} {
		if key, ok := KeyFromContext(ctx); key != "order-1" || !ok {
			t.Errorf("KeyFromContext in a handler = %q, %t, want the caller's key", key, ok)
		}
		if key, ok := keySourceFrom(ctx).explicitKey(); ok {
			t.Errorf("a handler's request would carry %q", key)
		}
	}
	if mustKey(t, a, refundsURL) == mustKey(t, b, refundsURL) {
		t.Error("two tenants with one key reach the next server under one key")
	}
	if strings.Contains(mustKey(t, a, refundsURL), "order-1") {
		t.Error("a handler's request carries the caller's key")
	}
}

func TestTheInnermostKeyOrActionCounts(t *testing.T) {
	root := t.Context()
	for _, tt := range []struct {
		what     string
		ctx      context.Context
		explicit string // "": an action
		shown    string // "": none
	}{
		{"a key in a key", WithKey(WithKey(root, "outer"), "inner"), "inner", "inner"},
		{"a key in an action", WithKey(WithAction(root, "a"), "inner"), "inner", "inner"},
		{"an action in a key", WithAction(WithKey(root, "outer"), "a"), "", "outer"},
		{"an action alone", WithAction(root, "a"), "", ""},
		{"a key in a handler", WithKey(withRecord(root, "caller", "record", [32]byte{}), "inner"), "inner", "inner"},
		{"a handler inside of a key", withRecord(WithKey(root, "outer"), "caller", "record", [32]byte{}), "", "caller"},
		{"a key in an empty action is none of its business", WithKey(WithAction(root, ""), "inner"), "inner", "inner"},
	} {
		s := keySourceFrom(tt.ctx)
		if key, ok := s.explicitKey(); key != tt.explicit || ok != (tt.explicit != "") || s.isAction() == ok || s.err() != nil {
			t.Errorf("%s: explicitKey() = %q, %t, isAction() = %t, err() = %v, want %q", tt.what, key, ok, s.isAction(), s.err(), tt.explicit)
		}
		if key, ok := KeyFromContext(tt.ctx); key != tt.shown || ok != (tt.shown != "") {
			t.Errorf("%s: KeyFromContext = %q, %t, want %q", tt.what, key, ok, tt.shown)
		}
	}
	// A key given is the key for every request, also if asked like an action.
	if key, err := keyOf(WithKey(root, "order-1"), refundsURL); key != "order-1" || err != nil {
		t.Errorf("actionKey under a key: %q, %v, want the key", key, err)
	}
}

func TestAnActionsMemoryIsBounded(t *testing.T) {
	explicit := WithAction(t.Context(), "a")
	implicit := withRecord(t.Context(), "k", "record", [32]byte{})
	r := refundsURL
	for i := range maxRequests {
		r.path = fmt.Sprint("/", i)
		mustKey(t, WithAction(explicit, fmt.Sprint(i%3)), r)
		mustKey(t, implicit, r)
	}
	// What is remembered stays so.
	r.path, r.content = "/0", "50 EUR"
	if _, err := keyOf(WithAction(explicit, "0"), r); !errors.Is(err, ErrActionReused) {
		t.Errorf("a different request to a remembered path: %v, want ErrActionReused", err)
	}
	r.path = "/one more"
	for _, ctx := range []context.Context{explicit, WithAction(explicit, "new")} {
		key, err := keyOf(ctx, r)
		if key != "" || !errors.Is(err, ErrActionFull) || !strings.Contains(err.Error(), "not sent") {
			t.Errorf("one request too many: %q, %v, want ErrActionFull", key, err)
		}
	}
	other := r
	other.content = "25 EUR"
	if mustKey(t, implicit, r) == mustKey(t, implicit, other) {
		t.Error("two different requests of a handler that cannot be compared have one key")
	}
	if n := len(keySourceFrom(explicit).mem.seen); n != maxRequests {
		t.Errorf("%d requests are remembered, want %d", n, maxRequests)
	}
}

func TestAnActionIsSafeForConcurrentUse(t *testing.T) {
	ctx := WithAction(t.Context(), "a")
	var wg sync.WaitGroup
	keys := make([]string, 64)
	errs := make([]error, len(keys))
	for i := range keys {
		wg.Go(func() {
			r := refundsURL
			r.content = fmt.Sprint(i % 2) // two contents: the first to come wins
			keys[i], errs[i] = keyOf(WithAction(ctx, "step"), r)
		})
	}
	wg.Wait()
	sent, winner := map[string]bool{}, -1
	for i, err := range errs {
		if err == nil {
			sent[keys[i]] = true
			if winner >= 0 && winner != i%2 {
				t.Fatal("both of two different requests got the key")
			}
			winner = i % 2
		} else if !errors.Is(err, ErrActionReused) {
			t.Error(err)
		}
	}
	if len(sent) != 1 {
		t.Errorf("%d keys for one request, want 1", len(sent))
	}
}

func TestOriginOf(t *testing.T) {
	for _, tt := range []struct{ url, want string }{
		{"https://api.example/refundsURL?x=1", "https://api.example"},
		{"HTTPS://API.Example/Refunds", "https://api.example"},
		{"https://api.example:443/", "https://api.example"},
		{"http://api.example:80/", "http://api.example"},
		{"http://api.example:443/", "http://api.example:443"},
		{"https://api.example:80/", "https://api.example:80"},
		{"https://api.example:8443/", "https://api.example:8443"},
		{"https://api.example:/", "https://api.example"},
		{"https://user:SECRET@api.example/", "https://api.example"},
		{"https://[2001:DB8::1]:443/", "https://[2001:db8::1]"},
		{"https://[2001:db8::1]/", "https://[2001:db8::1]"},
		{"http://[::80]:80/", "http://[::80]"},
		{"http://[::80]/", "http://[::80]"},
	} {
		u, err := url.Parse(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		if got := originOf(u); got != tt.want {
			t.Errorf("originOf(%s) = %s, want %s", tt.url, got, tt.want)
		}
	}
}

func TestKeyAllocations(t *testing.T) {
	h := http.Header{"Accept": {"*/*"}, "Content-Type": {"application/json"}, Header: {"order-1"}}
	quoted := http.Header{Header: {`"order-1"`}}
	none := http.Header{"Accept": {"*/*"}, "Content-Type": {"application/json"}}
	ctx := WithAction(context.WithoutCancel(t.Context()), "a")
	// The race detector makes crypto/rand itself allocate.
	random := testing.AllocsPerRun(100, func() { rand.Read(make([]byte, 16)) })
	for _, tt := range []struct {
		what string
		most float64
		f    func()
	}{
		{"NewKey", random + 1, func() { NewKey() }},
		{"DeriveKey", 1, func() { DeriveKey("refund", "A-17") }},
		{"a bare key", 0, func() { ParseKey(h) }},
		{"a quoted key", 0, func() { ParseKey(quoted) }},
		{"no key", 0, func() { ParseKey(none) }},
		{"to format a bare key", 0, func() { formatKey("order-1", false) }},
		{"to quote a key", 1, func() { formatKey("order-1", true) }},
		{"to look into a context", 0, func() { keySourceFrom(ctx) }},
		{"a repeated request of an action", 1, func() {
			keySourceFrom(ctx).actionKey("POST", "https://api.example", "/refunds", [32]byte{1}, true)
		}},
		{"WithKey", 2, func() { WithKey(ctx, "order-1") }},
		{"WithAction", 2, func() { WithAction(ctx, "step") }},
		{"withRecord", 2, func() { withRecord(ctx, "order-1", "record", [32]byte{}) }},
	} {
		if got := testing.AllocsPerRun(100, tt.f); got > tt.most {
			t.Errorf("%s: %v allocations, want at most %v", tt.what, got, tt.most)
		}
	}
}

// withRecord returns the context of a handler.
func withRecord(ctx context.Context, callerKey, recordKey string, binding [32]byte) context.Context {
	x := new(recordContext)
	x.init(ctx, callerKey, &Op{Key: recordKey, Binding: binding})
	return x
}
