package oncehttp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Why a Transport stopped. A [Result] or an [Error] carries one of these in
// Stop, and errors.Is finds it in an *Error.
var (
	// ErrFinal: sending the same request again cannot help: the answer or the
	// failure is final, or the server said so.
	ErrFinal = errors.New("sending it again cannot help")
	// ErrUnsafe: the request may have taken effect and carries no key that the
	// server honours, so sending it again could make the effect happen twice.
	ErrUnsafe = errors.New("sending it again is not safe without an idempotency key that the server honours")
	// ErrBody: the request's body cannot be sent again: it has no GetBody and
	// more of it was sent than is remembered.
	ErrBody = errors.New("its body cannot be sent again; set GetBody")
	// ErrAttempts: Transport.Attempts are used up.
	ErrAttempts = errors.New("no attempts are left")
	// ErrBudget: the host's retry budget is empty, or other calls' retries to it
	// have only failed lately. See [Budget].
	ErrBudget = errors.New("the host's retry budget is spent, or retries to it have only failed lately")
	// ErrDeadline: the next attempt would start after the context's deadline.
	ErrDeadline = errors.New("the next one would start after the deadline")
	// ErrRetryAfter: the server asked for a longer wait than
	// Transport.MaxRetryAfter, or the host is held back by such a wait.
	ErrRetryAfter = errors.New("the server asks for a longer wait than is allowed")
	// ErrLimit: Transport.Limit would delay the request past its deadline.
	ErrLimit = errors.New("the rate limit would delay it past the deadline")
)

// An Attempt is one pass of a request through Transport.Base.
type Attempt struct {
	N        int           // 1 for the first
	Start    time.Time     // when it was handed to Base
	Duration time.Duration // until the response's headers, or the failure
	Pause    time.Duration // the wait chosen after it; 0 if none followed

	// Status is the response's status code, 0 if there was none.
	Status int

	// Err is why there was no response. Its text names no query and no body.
	Err error

	Certainty Certainty

	// Conns counts the connections that net/http obtained for this attempt:
	// more than 1 when it sent the request again on its own, which it does
	// with a keyed request without a body when a reused connection dies. It
	// is 0 where nobody counts: for safe methods, and under a Base that does
	// not report to httptrace.
	Conns int
}

// A Result tells what a Transport did with one request.
type Result struct {
	// Tries are the attempts in order; nil if there was none. The slice must not be changed.
	Tries []Attempt

	// Stop is nil when the last response needed no repeat, and otherwise says
	// why there was no further attempt: one of the sentinel errors of this
	// package, or an error that wraps one.
	Stop error

	// RetryAt is when another try could make sense: what the server asked
	// for, or when the breaker admits a probe. Zero: nobody said.
	RetryAt time.Time

	// Certainty is the worst of the attempts: after one attempt that was sent
	// and lost, no later answer shows that nothing happened.
	Certainty Certainty

	// Key is the idempotency key that the request carried, "" if none. It is
	// a secret between client and server, and String, LogValue and encoding/json
	// leave it out.
	Key string `json:"-"`
}

// String tells the Result in one line, without the key.
func (r Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d attempts, %v", len(r.Tries), r.Certainty)
	for _, a := range r.Tries {
		if a.Err != nil {
			fmt.Fprintf(&b, "; %d: %v", a.N, a.Err)
		} else {
			fmt.Fprintf(&b, "; %d: %d", a.N, a.Status)
		}
	}
	if r.Stop != nil {
		fmt.Fprintf(&b, "; stopped: %v", r.Stop)
	}
	return b.String()
}

// GoString is String, so that no verb of package fmt prints the key.
func (r Result) GoString() string { return r.String() }

// LogValue is String, for package log/slog.
func (r Result) LogValue() slog.Value { return slog.StringValue(r.String()) }

// Attempts tells how a Transport came by resp. For a response that no
// Transport returned, the Result is the zero value.
func Attempts(resp *http.Response) Result {
	if c := callOf(resp); c != nil {
		return c.result()
	}
	return Result{}
}

// An Error is what [Transport.RoundTrip] returns when there is no response.
// Unwrap gives the last failure, the reason in Stop and, once the context has
// ended, its error and its cause.
type Error struct {
	Result
	Method string
	Host   string // host and port as in the URL
	Path   string // without the query

	last   error // the last failure; nil: no attempt was made
	ctxErr error // the context's error, if it has ended
	cause  error // and its cause, if that is another
	action bool  // the caller owns the key, so other requests may carry it too
}

// Error says what happened, why there is no further attempt, and what is known
// of the effect. It contains no query, no body and no key.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Method)
	b.WriteByte(' ')
	b.WriteString(e.Host)
	b.WriteString(e.Path)
	b.WriteString(": ")
	if len(e.Tries) > 0 {
		b.WriteString("gave up after ")
		b.WriteString(strconv.Itoa(len(e.Tries)))
		if len(e.Tries) == 1 {
			b.WriteString(" attempt")
		} else {
			b.WriteString(" attempts")
		}
		b.WriteString(": ")
	}
	parts := make([]string, 0, 4)
	add := func(err error) {
		if err == nil {
			return
		}
		s := brief(err)
		for _, p := range parts {
			if strings.Contains(p, s) {
				return
			}
		}
		parts = append(parts, s)
	}
	add(e.ctxErr)
	add(e.cause)
	if e.ctxErr == nil || e.Stop != ErrFinal {
		add(e.Stop)
	}
	add(e.last)
	b.WriteString(strings.Join(parts, ": "))
	b.WriteString(e.known())
	return b.String()
}

// known is the sentence about the effect, for methods that have one.
func (e *Error) known() string {
	if isSafe(e.Method) {
		return ""
	}
	switch e.Certainty {
	case CertaintyNotSent:
		if e.action {
			return "; this request was not sent, which says nothing of others under its key"
		}
		return "; this request was not sent"
	case CertaintyAnswered:
		return ""
	}
	if len(e.Tries) < 2 {
		return "; it may have taken effect"
	}
	var which []string
	for _, a := range e.Tries {
		if a.Certainty == CertaintyUnknown {
			which = append(which, ordinal(a.N))
		}
	}
	list := which[0]
	if last := len(which) - 1; last > 0 {
		list = strings.Join(which[:last], ", ") + " and " + which[last]
	}
	return "; the " + list + " may have taken effect"
}

func ordinal(n int) string {
	switch n {
	case 1:
		return "first"
	case 2:
		return "second"
	case 3:
		return "third"
	}
	return "no. " + strconv.Itoa(n)
}

// brief is err's text, bounded: net/http quotes what a broken server sent.
func brief(err error) string {
	const most = 300
	s := err.Error()
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// Unwrap returns every failure that the Error stands for.
func (e *Error) Unwrap() []error {
	errs := make([]error, 0, 4)
	for _, err := range []error{e.last, e.ctxErr, e.cause, e.Stop} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Timeout reports whether a deadline or timeout ended the request, which is
// what net/http's callers ask of an error.
func (e *Error) Timeout() bool {
	if e.ctxErr != nil {
		return errors.Is(e.ctxErr, context.DeadlineExceeded)
	}
	t, ok := asType[interface {
		error
		Timeout() bool
	}](e.last)
	return ok && t.Timeout()
}

// scrubbed is err as it may be shown. It strips the *url.Error that some
// RoundTrippers return, since http.Client adds its own, and blots out the URL's
// query and password wherever else a RoundTripper has put them.
func scrubbed(err error, u *url.URL) error {
	for {
		inner, ok := err.(*url.Error)
		if !ok || inner.Err == nil {
			break
		}
		err = inner.Err
	}
	text := err.Error()
	shown := text
	password, _ := u.User.Password()
	for _, secret := range []string{u.RawQuery, password, url.QueryEscape(password)} {
		if len(secret) > 2 { // a shorter one gives nothing away, and is part of too much
			shown = strings.ReplaceAll(shown, secret, "xxxxx")
		}
	}
	if shown == text {
		return err
	}
	return &scrubbedError{err, shown}
}

type scrubbedError struct {
	err  error
	text string
}

func (e *scrubbedError) Error() string { return e.text }
func (e *scrubbedError) Unwrap() error { return e.err }
