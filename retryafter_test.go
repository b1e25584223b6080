package oncehttp

import (
	"math"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"
)

// received is when the responses of this file's tests arrive.
var received = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func TestRetryAfterReadsEveryFormAndNothingElse(t *testing.T) {
	const (
		ra   = "Retry-After"
		ms   = "Retry-After-Ms"
		xms  = "X-Ms-Retry-After-Ms"
		date = "Date"
		none = time.Duration(0)
		most = time.Duration(math.MaxInt64)
	)
	type hs = http.Header
	for _, tt := range []struct {
		when string
		h    http.Header
		want time.Duration // zero: not ok
	}{
		{"no header asks for no wait", nil, none},
		{"an empty header asks for no wait", hs{ra: {""}}, none},
		{"a header without values asks for no wait", hs{ra: nil}, none},

		// Seconds.
		{"seconds are seconds", hs{ra: {"120"}}, 120 * time.Second},
		{"zero is no hint", hs{ra: {"0"}}, none},
		{"zero with many digits is no hint", hs{ra: {"0000"}}, none},
		{"leading zeros are decimal", hs{ra: {"010"}}, 10 * time.Second},
		{"surrounding space and tabs do not matter", hs{ra: {" \t30\t "}}, 30 * time.Second},
		{"space alone is malformed", hs{ra: {"   "}}, none},
		{"space inside is malformed", hs{ra: {"1 0"}}, none},
		{"a negative number is malformed", hs{ra: {"-5"}}, none},
		{"negative zero is malformed", hs{ra: {"-0"}}, none},
		{"a plus sign is malformed", hs{ra: {"+5"}}, none},
		{"a fraction is kept", hs{ra: {"1.5"}}, 1500 * time.Millisecond},
		{"a fraction of a nanosecond is rounded up", hs{ra: {"0.0000000001"}}, 1},
		{"a fraction is never rounded down", hs{ra: {"1.00000000000000000001"}}, time.Second + 1},
		{"a fraction of zeros is none", hs{ra: {"0.00000000000000"}}, none},
		{"a point without digits before it is malformed", hs{ra: {".5"}}, none},
		{"a point without digits after it is malformed", hs{ra: {"5."}}, none},
		{"two points are malformed", hs{ra: {"1.2.3"}}, none},
		{"a comma is not a point", hs{ra: {"1,5"}}, none},
		{"an exponent is malformed", hs{ra: {"1e3"}}, none},
		{"hexadecimal is malformed", hs{ra: {"0x10"}}, none},
		{"a unit is malformed", hs{ra: {"120s"}}, none},
		{"quotes are malformed", hs{ra: {`"120"`}}, none},
		{"words are malformed", hs{ra: {"soon"}}, none},
		{"NaN is malformed", hs{ra: {"NaN"}}, none},
		{"Inf is malformed", hs{ra: {"Inf"}}, none},
		{"other digits than ASCII's are malformed", hs{ra: {"１２"}}, none},
		{"a NUL is malformed", hs{ra: {"12\x00"}}, none},
		{"the most seconds that fit are kept", hs{ra: {"9223372036"}}, 9223372036 * time.Second},
		{"one more saturates and does not wrap", hs{ra: {"9223372037"}}, most},
		{"a fraction at the edge saturates", hs{ra: {"9223372036.9"}}, most},
		{"a fraction that still fits is kept", hs{ra: {"9223372036.854775806"}}, most - 1},
		{"a fraction that fits but for its rounding saturates", hs{ra: {"9223372036.8547758069"}}, most},
		{"or but for a digit that no Duration has", hs{ra: {"9223372036.8547758071"}}, most},
		{"a fraction of zeros at the edge fits", hs{ra: {"9223372036.00"}}, 9223372036 * time.Second},
		{"2⁶³ saturates", hs{ra: {"9223372036854775808"}}, most},
		{"2⁶⁴+1 saturates and does not wrap to one", hs{ra: {"18446744073709551617"}}, most},
		{"a thousand digits saturate", hs{ra: {strings.Repeat("9", 1000)}}, most},
		{"a thousand zeros and a one are one", hs{ra: {strings.Repeat("0", 1000) + "1"}}, time.Second},

		// Dates, without a Date to measure against.
		{"an IMF-fixdate is measured against now", hs{ra: {"Sun, 01 Mar 2026 12:00:30 GMT"}}, 30 * time.Second},
		{"an RFC 850 date is, too", hs{ra: {"Sunday, 01-Mar-26 12:00:30 GMT"}}, 30 * time.Second},
		{"an asctime date is, too", hs{ra: {"Sun Mar  1 12:00:30 2026"}}, 30 * time.Second},
		{"space around a date does not matter", hs{ra: {"\tSun, 01 Mar 2026 12:00:30 GMT "}}, 30 * time.Second},
		{"a date that has passed is no hint", hs{ra: {"Sun, 01 Mar 2026 11:59:59 GMT"}}, none},
		{"a date that is now is no hint", hs{ra: {"Sun, 01 Mar 2026 12:00:00 GMT"}}, none},
		{"the epoch is no hint", hs{ra: {"Thu, 01 Jan 1970 00:00:00 GMT"}}, none},
		{"the year 9999 saturates", hs{ra: {"Fri, 31 Dec 9999 23:59:59 GMT"}}, most},
		{"a leap second is a second later than 59", hs{ra: {"Sun, 01 Mar 2026 12:00:60 GMT"}}, 60 * time.Second},
		{"a leap second in an RFC 850 date is, too", hs{ra: {"Sunday, 01-Mar-26 12:00:60 GMT"}}, 60 * time.Second},
		{"a leap second in an asctime date is, too", hs{ra: {"Sun Mar  1 12:00:60 2026"}}, 60 * time.Second},
		{"second 61 is malformed", hs{ra: {"Sun, 01 Mar 2026 12:00:61 GMT"}}, none},
		{"two digits of the year mean this century if that is within 50 years", hs{ra: {"Sunday, 01-Mar-76 12:00:00 GMT"}},
			received.AddDate(50, 0, 0).Sub(received)},
		{"more than 50 years ahead means the century before", hs{ra: {"Monday, 02-Mar-76 12:00:00 GMT"}}, none},
		{"the year 99 is past", hs{ra: {"Monday, 01-Mar-99 12:00:00 GMT"}}, none},
		{"the year 69 is to come, whatever time.Parse says", hs{ra: {"Friday, 01-Mar-69 12:00:00 GMT"}},
			received.AddDate(43, 0, 0).Sub(received)},
		{"another zone is malformed", hs{ra: {"Sunday, 01-Mar-26 12:00:30 PST"}}, none},
		{"an offset is malformed", hs{ra: {"Sun, 01 Mar 2026 12:00:30 +0100"}}, none},
		{"an RFC 3339 time is malformed", hs{ra: {"2026-03-01T12:00:30Z"}}, none},
		{"30 February is malformed", hs{ra: {"Mon, 30 Feb 2026 12:00:30 GMT"}}, none},
		{"hour 24 is malformed", hs{ra: {"Sun, 01 Mar 2026 24:00:00 GMT"}}, none},
		{"a date without its day of the week is malformed", hs{ra: {"01 Mar 2026 12:00:30 GMT"}}, none},
		{"a date cut short is malformed", hs{ra: {"Sun, 01 Mar 2026 12:00"}}, none},
		{"a comma alone is malformed", hs{ra: {","}}, none},
		{"a date with a novel behind it is malformed", hs{ra: {"Sun, 01 Mar 2026 12:00:30 GMT" + strings.Repeat("x", 1<<16)}}, none},

		// Dates, with one.
		{"a date is measured against the response's own Date, not against a clock that is slow",
			hs{ra: {"Sun, 01 Mar 2026 18:00:10 GMT"}, date: {"Sun, 01 Mar 2026 18:00:00 GMT"}}, 10 * time.Second},
		{"nor against one that is fast",
			hs{ra: {"Sun, 01 Mar 2026 06:00:10 GMT"}, date: {"Sun, 01 Mar 2026 06:00:00 GMT"}}, 10 * time.Second},
		{"the two dates may differ in form",
			hs{ra: {"Sun Mar  1 06:00:10 2026"}, date: {"Sunday, 01-Mar-26 06:00:00 GMT"}}, 10 * time.Second},
		{"a date before the response's own Date is no hint",
			hs{ra: {"Sun, 01 Mar 2026 18:00:00 GMT"}, date: {"Sun, 01 Mar 2026 18:00:10 GMT"}}, none},
		{"with Age the response is from a cache and its Date is old",
			hs{ra: {"Sun, 01 Mar 2026 12:00:10 GMT"}, date: {"Sun, 01 Mar 2026 11:00:00 GMT"}, "Age": {"3600"}}, 10 * time.Second},
		{"a Date that is malformed does not count",
			hs{ra: {"Sun, 01 Mar 2026 12:00:10 GMT"}, date: {"yesterday"}}, 10 * time.Second},
		{"two Dates do not count",
			hs{ra: {"Sun, 01 Mar 2026 12:00:10 GMT"}, date: {"Sun, 01 Mar 2026 06:00:00 GMT", "Sun, 01 Mar 2026 07:00:00 GMT"}}, 10 * time.Second},
		{"Date does not matter for seconds",
			hs{ra: {"10"}, date: {"Sun, 01 Mar 2026 06:00:00 GMT"}}, 10 * time.Second},

		// Milliseconds, and several at once.
		{"retry-after-ms is milliseconds", hs{ms: {"1500"}}, 1500 * time.Millisecond},
		{"x-ms-retry-after-ms is, too", hs{xms: {"1500"}}, 1500 * time.Millisecond},
		{"milliseconds may have a fraction", hs{ms: {"0.25"}}, 250 * time.Microsecond},
		{"zero milliseconds are no hint", hs{ms: {"0"}}, none},
		{"negative milliseconds are malformed", hs{ms: {"-1"}}, none},
		{"milliseconds saturate", hs{ms: {"9223372036855"}}, most},
		{"a date in milliseconds is malformed", hs{ms: {"Sun, 01 Mar 2026 12:00:30 GMT"}}, none},
		{"the longest of seconds and milliseconds counts", hs{ra: {"2"}, ms: {"1200"}}, 2 * time.Second},
		{"whichever it is", hs{ra: {"1"}, ms: {"1200"}, xms: {"1100"}}, 1200 * time.Millisecond},
		{"a zero beside another hint does not shorten it", hs{ra: {"0"}, ms: {"1200"}}, 1200 * time.Millisecond},
		{"a malformed header beside another does not matter", hs{ra: {"soon"}, xms: {"1200"}}, 1200 * time.Millisecond},
		{"the longest of repeated headers counts", hs{ra: {"5", "60", "7"}}, 60 * time.Second},
		{"also if they differ in form", hs{ra: {"5", "Sun, 01 Mar 2026 12:00:30 GMT", "x"}}, 30 * time.Second},
		{"repeats joined by a proxy are malformed", hs{ra: {"5, 60"}}, none},
	} {
		got, ok := RetryAfter(tt.h, received)
		if got != tt.want || ok != (tt.want != 0) {
			t.Errorf("%s: %.60q: got %v, %v; want %v", tt.when, tt.h, got, ok, tt.want)
		}
	}
}

func TestRetryAfterReadsTwoDigitYearsInAnyCentury(t *testing.T) {
	for _, tt := range []struct {
		now  int // in the middle of it
		yy   string
		want int
	}{
		{2026, "27", 2027}, {2026, "26", 2026}, {2026, "75", 2075}, {2026, "78", 1978},
		{2099, "01", 2101}, {2099, "99", 2099}, {2099, "60", 2060}, {2099, "48", 2148}, {2099, "50", 2050},
		{1995, "94", 1994}, {1995, "20", 2020}, {1995, "46", 1946},
		{1969, "68", 1968},
	} {
		now := time.Date(tt.now, time.July, 1, 0, 0, 0, 0, time.FixedZone("east", 14*3600))
		got, ok := parseDate("Friday, 01-Jul-"+tt.yy+" 00:00:00 GMT", now)
		if !ok || got.Year() != tt.want {
			t.Errorf("%s read in %d: got %v, %v; want the year %d", tt.yy, tt.now, got, ok, tt.want)
		}
	}
}

func TestTwoDigitYearsDoNotDependOnTheZoneOfTheClock(t *testing.T) {
	now := time.Date(2050, time.January, 1, 1, 0, 0, 0, time.UTC).In(time.FixedZone("west", -5*3600)) // 2049 there
	got, ok := parseDate("Friday, 01-Jan-00 00:30:00 GMT", now)
	if want := time.Date(2100, time.January, 1, 0, 30, 0, 0, time.UTC); !ok || !got.Equal(want) {
		t.Errorf("got %v, %v; want %v", got, ok, want)
	}
}

func TestRetryAfterAllocatesNothingForWellFormedHeaders(t *testing.T) {
	for _, h := range []http.Header{
		{},
		{"Retry-After": {"120"}},
		{"Retry-After-Ms": {"1200"}, "X-Ms-Retry-After-Ms": {"1200"}, "Retry-After": {"2"}},
		{"Retry-After": {"Sun, 01 Mar 2026 12:00:30 GMT"}, "Date": {"Sun, 01 Mar 2026 12:00:00 GMT"}},
		{"Retry-After": {"Sunday, 01-Mar-26 12:00:30 GMT"}},
		{"Retry-After": {"Sun Mar  1 12:00:30 2026"}},
	} {
		if n := testing.AllocsPerRun(100, func() { RetryAfter(h, received) }); n != 0 {
			t.Errorf("%v: %v allocations, want none", h, n)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{
		"", "0", "120", " 30 ", "-5", "1.5", "0.0000000001", "9223372036.999999999", "9223372037", "18446744073709551617", "1e3",
		"Sun, 01 Mar 2026 12:00:30 GMT", "Sunday, 01-Mar-26 12:00:30 GMT", "Sun Mar  1 12:00:30 2026",
		"Sat, 31 Dec 2016 23:59:60 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Monday, 29-Feb-00 00:00:00 GMT", ":60 :60 ",
	} {
		f.Add(s, "Sun, 01 Mar 2026 12:00:00 GMT", int64(1772366400))
	}
	f.Fuzz(func(t *testing.T, value, date string, unix int64) {
		now := time.Unix(unix&(1<<36-1), 0).UTC()
		h := http.Header{"Retry-After": {value}, "Date": {date}}
		wait, ok := RetryAfter(h, now)
		if ok != (wait > 0) || wait < 0 {
			t.Fatalf("got %v, %v", wait, ok)
		}
		if again, _ := RetryAfter(http.Header{"Retry-After": {"\t" + value + " "}, "Date": {date}}, now); again != wait {
			t.Errorf("with space around it: %v, without: %v", again, wait)
		}
		if longer, _ := RetryAfter(http.Header{"Retry-After": {"7", value}, "Date": {date}}, now); longer != max(wait, 7*time.Second) {
			t.Errorf("with 7 before it: %v, alone: %v", longer, wait)
		}
		ms, _ := RetryAfter(http.Header{"Retry-After-Ms": {value}}, now)
		s := strings.Trim(value, " \t")
		if len(s) > 100 {
			return // the arithmetic below is too slow
		}
		if strings.Trim(s, "0123456789.") == "" {
			if want := bySlowArithmetic(s, time.Second); wait != want {
				t.Errorf("%q seconds: got %v, want %v", s, wait, want)
			}
			if want := bySlowArithmetic(s, time.Millisecond); ms != want {
				t.Errorf("%q milliseconds: got %v, want %v", s, ms, want)
			}
		} else if ms != 0 {
			t.Errorf("%q milliseconds: got %v, want none", s, ms)
		}
		// Whatever http.ParseTime reads we read the same, but for two-digit
		// years and the names of zones other than GMT.
		if want, err := http.ParseTime(s); err == nil && len(s) <= 33 && (strings.HasSuffix(s, " GMT") || !strings.Contains(s, ",")) {
			got, ok := parseDate(s, now)
			if strings.Contains(s, "-") {
				latest := now.AddDate(50, 0, 0)
				if got.Year()%100 != want.Year()%100 || got.After(latest) || !got.AddDate(100, 0, 0).After(latest) {
					t.Errorf("%q read in %d: got %v", s, now.Year(), got)
				}
			} else if !ok || !got.Equal(want) {
				t.Errorf("%q: got %v, %v; want %v", s, got, ok, want)
			}
		}
	})
}

// bySlowArithmetic is what a decimal number of units comes to.
func bySlowArithmetic(s string, unit time.Duration) time.Duration {
	if strings.HasPrefix(s, ".") || strings.HasSuffix(s, ".") {
		return 0
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return 0
	}
	r.Mul(r, new(big.Rat).SetInt64(int64(unit)))
	n, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	if !n.IsInt64() {
		return math.MaxInt64
	}
	return time.Duration(n.Int64())
}
