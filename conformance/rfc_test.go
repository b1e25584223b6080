package conformance

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// Strings and bare items of RFC 9651 as values of the key's field. Each row's
// name begins with the section that settles it.
func TestKeysAsStructuredFields(t *testing.T) {
	for _, row := range []struct {
		name, value, want string // "" wants an error
	}{
		{`3.3.3 a String`, `"foo bar"`, ""}, // a space is fine in a String, but not in a key
		{`3.3.3 a String of visible characters`, `"foo-bar"`, "foo-bar"},
		{`3.3.3 a String with an escaped quote`, `"b\"c"`, `b"c`},
		{`3.3.3 a String with an escaped backslash`, `"b\\c"`, `b\c`},
		{`3.3.3 a String with commas and semicolons`, `"a,b;c"`, "a,b;c"},
		{`3.3.3 every visible character`, `"!#$%&'()*+-./:;<=>?@[]^_` + "`" + `{|}~"`, "!#$%&'()*+-./:;<=>?@[]^_`{|}~"},
		{`4.2.5 step 4: an escape of another character fails`, `"b\c"`, ""},
		{`4.2.5 step 4: a backslash at the end fails`, `"b\`, ""},
		{`4.2.5 step 5: no closing quote fails`, `"abc`, ""},
		{`4.2.5 only an opening quote fails`, `"`, ""},
		{`4.2.5 a control character fails`, "\"a\tb\"", ""},
		{`4.2.5 DEL fails`, "\"a\x7fb\"", ""},
		{`4.2.5 a byte beyond ASCII fails`, "\"a\xc3\xa4b\"", ""},
		{`4.2.5 single quotes make no String`, `'foo'`, "'foo'"}, // but are fine in an unquoted key
		{`3.3.3 an empty String is a String but no key`, `""`, ""},
		{`4.2 leading and trailing spaces are discarded`, `  "foo"  `, "foo"},
		{`4.2 step 7: anything behind the item fails`, `"foo" bar`, ""},
		{`4.2 two Strings fail`, `"foo" "bar"`, ""},
		{`3.1.2 parameters are allowed and ignored`, `"foo";a=1;b`, "foo"},
		{`3.1.2 a parameter with a String`, `"foo";a="x;y"`, "foo"},
		{`3.1.2 spaces before a parameter's name`, `"foo"; a`, "foo"},
		{`4.2.3.2 a parameter without a name fails`, `"foo";`, ""},
		{`4.2.3.3 a parameter's name in capitals fails`, `"foo";A`, ""},
		{`3.1 a List is no Item`, `"foo", "bar"`, ""},
		{`3.3.4 a Token is taken as an unquoted key`, `foo/bar:1`, "foo/bar:1"},
		{`3.3.1 an Integer is taken as an unquoted key`, `42`, "42"},
		{`3.3.2 a Decimal is taken as an unquoted key`, `4.2`, "4.2"},
		{`3.3.5 a Byte Sequence is taken as an unquoted key, not decoded`, `:aGVsbG8=:`, ":aGVsbG8=:"},
		{`3.3.6 a Boolean is taken as an unquoted key`, `?1`, "?1"},
		{`3.1.2 an unquoted key has no parameters`, `foo;a=1`, ""},
		{`3.1 an unquoted list is no key`, `a,b`, ""},
		{`4.2 an empty field fails`, ``, ""},
		{`4.2 only spaces fail`, `   `, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			key, err := oncehttp.ParseKey(http.Header{"Idempotency-Key": {row.value}})
			if row.want == "" {
				if !errors.Is(err, oncehttp.ErrBadKey) {
					t.Errorf("ParseKey = %q, %v, want ErrBadKey", key, err)
				}
				return
			}
			if err != nil || key != row.want {
				t.Errorf("ParseKey = %q, %v, want %q", key, err, row.want)
			}
		})
	}
	t.Run("4.2 a field on two lines is joined, which makes a List", func(t *testing.T) {
		if _, err := oncehttp.ParseKey(http.Header{"Idempotency-Key": {`"a"`, `"b"`}}); !errors.Is(err, oncehttp.ErrBadKey) {
			t.Errorf("error = %v, want ErrBadKey", err)
		}
	})
}

// The dates of RFC 9110 as values of Retry-After, section 10.2.3.
func TestDatesInRetryAfter(t *testing.T) {
	now := time.Date(1994, 11, 6, 8, 49, 7, 0, time.UTC) // half a minute before the RFC's example
	for _, row := range []struct {
		name, value string
		want        time.Duration // 0: no hint
	}{
		{"5.6.7 IMF-fixdate", "Sun, 06 Nov 1994 08:49:37 GMT", 30 * time.Second},
		{"5.6.7 the obsolete RFC 850 format", "Sunday, 06-Nov-94 08:49:37 GMT", 30 * time.Second},
		{"5.6.7 the format of asctime()", "Sun Nov  6 08:49:37 1994", 30 * time.Second},
		{"5.6.7 a two-digit year just 50 years ahead is ahead", "Sunday, 06-Nov-44 08:49:07 GMT", time.Date(2044, 11, 6, 8, 49, 7, 0, time.UTC).Sub(now)},
		{"5.6.7 a two-digit year more than 50 years ahead is in the past", "Monday, 06-Nov-45 08:49:37 GMT", 0},
		{"5.6.7 case matters: gmt", "Sun, 06 Nov 1994 08:49:37 gmt", 0},
		{"5.6.7 another zone is not allowed", "Sun, 06 Nov 1994 08:49:37 +0000", 0},
		{"5.6.7 no day 31 of November", "Wed, 31 Nov 1994 08:49:37 GMT", 0},
		{"10.2.3 delay-seconds", "120", 120 * time.Second},
		{"10.2.3 a date that has passed is no wait", "Sun, 06 Nov 1994 08:48:37 GMT", 0},
		{"10.2.3 delay-seconds has no sign", "-120", 0},
		{"10.2.3 zero seconds are no wait", "0", 0},
		{"5.5 space around a field's value is not part of it", "\t120 ", 120 * time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, ok := oncehttp.RetryAfter(http.Header{"Retry-After": {row.value}}, now)
			if ok != (row.want > 0) || got != row.want {
				t.Errorf("RetryAfter = %v, %v, want %v", got, ok, row.want)
			}
		})
	}
	t.Run("10.2.3 measured from the response's own Date", func(t *testing.T) {
		skewed := now.Add(-time.Hour) // our clock is slow
		h := http.Header{"Retry-After": {"Sun, 06 Nov 1994 08:49:37 GMT"}, "Date": {"Sun, 06 Nov 1994 08:49:07 GMT"}}
		if got, _ := oncehttp.RetryAfter(h, skewed); got != 30*time.Second {
			t.Errorf("RetryAfter = %v, want 30s", got)
		}
	})
}
