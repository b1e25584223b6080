package oncehttp

import (
	"math"
	"net/http"
	"strings"
	"time"
)

// RetryAfter reports how long a response with header h, received at now, asks
// its client to wait before it sends the request again. It is what [Transport]
// goes by.
//
// It reads Retry-After (RFC 9110, section 10.2.3), in seconds or as a date in
// any of HTTP's three forms, and the millisecond headers retry-after-ms and
// x-ms-retry-after-ms. If there are several the longest wait counts, so that no
// server is asked again earlier than any of them allows.
//
// A date is measured against the response's own Date, because the two clocks may
// differ; against now if there is no valid Date, or if Age shows that it is from
// a cache and therefore old. Decimal fractions are accepted, although no
// standard has them. Waits beyond what a time.Duration holds are the longest one
// that it does. Header values that mean nothing are ignored.
//
// If nothing asks for a wait, ok is false and wait is zero: there is no such
// header, or it is malformed, negative, or a date that has passed, or zero,
// which servers send that have nothing to say about when.
func RetryAfter(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	for _, v := range h["Retry-After"] {
		v = strings.Trim(v, " \t")
		if d, ok := parseDecimal(v, time.Second); ok {
			wait = max(wait, d)
		} else if t, ok := parseDate(v, now); ok {
			wait = max(wait, t.Sub(dateBase(h, now)))
		}
	}
	for _, name := range [...]string{"Retry-After-Ms", "X-Ms-Retry-After-Ms"} {
		for _, v := range h[name] {
			d, _ := parseDecimal(strings.Trim(v, " \t"), time.Millisecond)
			wait = max(wait, d)
		}
	}
	return wait, wait > 0
}

// dateBase is the time at which the dates in h were written.
func dateBase(h http.Header, now time.Time) time.Time {
	if len(h["Age"]) > 0 {
		return now
	}
	if v := h["Date"]; len(v) == 1 {
		if t, ok := parseDate(strings.Trim(v[0], " \t"), now); ok {
			return t
		}
	}
	return now
}

// parseDecimal reads a number of units, digits with perhaps a fraction, and
// rounds up: a wait that is cut short is too short.
func parseDecimal(s string, unit time.Duration) (d time.Duration, ok bool) {
	whole, fraction, hasFraction := strings.Cut(s, ".")
	if !allDigits(whole) || hasFraction && !allDigits(fraction) {
		return 0, false
	}
	for i := range len(whole) {
		digit := time.Duration(whole[i]-'0') * unit
		if d > (math.MaxInt64-digit)/10 {
			return math.MaxInt64, true
		}
		d = d*10 + digit
	}
	for i := range len(fraction) {
		if unit /= 10; unit == 0 {
			if strings.Trim(fraction[i:], "0") != "" && d < math.MaxInt64 {
				d++
			}
			break
		}
		digit := time.Duration(fraction[i]-'0') * unit
		if d > math.MaxInt64-digit {
			return math.MaxInt64, true
		}
		d += digit
	}
	return d, true
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || '9' < s[i] {
			return false
		}
	}
	return s != ""
}

// parseDate reads a date in one of the forms of RFC 9110, section 5.6.7. It
// tells them apart first, because time.Parse pays for each wrong guess with an
// error, and it reads what http.ParseTime does not: a leap second, and the years
// of the second form.
func parseDate(s string, now time.Time) (time.Time, bool) {
	if len(s) > len("Wednesday, 02-Jan-06 15:04:05 GMT") {
		return time.Time{}, false // time.Parse's error would quote all of it
	}
	var leap time.Duration
	if before, after, found := strings.Cut(s, ":60 "); found {
		s, leap = before+":59 "+after, time.Second
	}
	layout := time.ANSIC
	comma := strings.IndexByte(s, ',')
	if comma == len("Sun") {
		layout = http.TimeFormat
	} else if comma > 0 {
		layout = "Monday, 02-Jan-06 15:04:05 GMT"
	}
	t, err := time.Parse(layout, s)
	if err != nil {
		return time.Time{}, false
	}
	if comma > len("Sun") {
		t = nearYear(t, now)
	}
	return t.Add(leap), true
}

// nearYear settles the century of a date whose year was written with two
// digits: it is the latest one that is not more than 50 years after now.
func nearYear(t, now time.Time) time.Time {
	latest := now.UTC().AddDate(50, 0, 0)
	t = t.AddDate(latest.Year()/100*100+t.Year()%100-t.Year(), 0, 0)
	if t.After(latest) {
		t = t.AddDate(-100, 0, 0)
	}
	return t
}
