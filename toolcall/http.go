package toolcall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp"
)

// HTTP turns the end of an HTTP exchange into what a [Tool.Call] returns:
//
//	resp, err := client.Do(req)
//	return toolcall.HTTP(resp, err)
//
// It reads and closes the body. A 2xx gives the body: the JSON as it came, any other
// text as a string. Everything else is an error that says what the status, and the
// worst certainty of all attempts if an [oncehttp.Transport] made several, tell of the
// effect:
//
//	400, 422                       bad arguments, nothing happened
//	421, 425, 429                  transient, nothing happened
//	408, 409 in progress           transient, outcome unknown
//	501, 505, 1xx and 3xx          permanent, outcome unknown (but 307, 308: nothing happened)
//	other 5xx                      transient, outcome unknown
//	everything else                permanent, nothing happened
//
// A problem of an oncehttp Middleware is taken at its word. A success of which the
// body is cut is transient, with an unknown outcome; one of which it is over 16 MiB is degraded. What the server
// said in an error reaches neither the model nor the error's text.
//
// [Statuses] refines the table.
func HTTP(resp *http.Response, err error) (any, error) { return Statuses(nil).HTTP(resp, err) }

// Statuses says for statuses of one API what they mean there, and leaves the others
// to [HTTP]'s table. Only the kind of failure can be refined, for 4xx only, and never into a
// success: a 404 that means "no such order" may be TypeBadArguments. What is known of the
// effect does not change.
type Statuses map[int]ErrorType

const maxBody = 16 << 20

// HTTP is [HTTP] with this table.
func (s Statuses) HTTP(resp *http.Response, err error) (any, error) {
	if err != nil {
		if resp != nil && resp.Body != nil {
			resp.Body.Close()
		}
		return nil, err
	}
	if resp == nil {
		return nil, Permanent(errors.New("no response and no error"))
	}
	defer resp.Body.Close()
	tries := oncehttp.Attempts(resp)
	if resp.Request != nil && tries.Key != "" {
		sentKey(resp.Request.Context())
	}
	var made *oncehttp.Result
	if len(tries.Tries) > 0 {
		made = &tries
	}
	if resp.StatusCode/100 == 2 {
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
		switch {
		case err != nil:
			return nil, &Error{Type: TypeTransient, Err: err, tries: made}
		case len(b) > maxBody:
			return nil, &Error{Type: TypeDegraded, Err: errors.New("the response's body is over 16 MiB"), tries: made}
		}
		return &answer{bodyValue(b), made}, nil
	}
	e := s.statusError(resp, &tries)
	e.tries, e.handled = made, made != nil
	return nil, e
}

// An answer is what a tool over HTTP returns.
type answer struct {
	value any
	tries *oncehttp.Result
}

// MarshalJSON shows the value, for those who call a Tool's function themselves.
func (a *answer) MarshalJSON() ([]byte, error) { return json.Marshal(a.value) }

func bodyValue(b []byte) any {
	switch {
	case len(bytes.TrimSpace(b)) == 0:
		return nil
	case json.Valid(b):
		return json.RawMessage(b)
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// A statusFailure is an answer that is no success.
type statusFailure int

func (s statusFailure) Error() string {
	return fmt.Sprintf("the server answered %d %s", int(s), http.StatusText(int(s)))
}

func (s Statuses) statusError(resp *http.Response, tries *oncehttp.Result) *Error {
	code := resp.StatusCode
	e := &Error{Type: TypePermanent, outcome: OutcomeNone, Err: statusFailure(code)}
	wait, waits := oncehttp.RetryAfter(resp.Header, time.Now())
	e.RetryAfter = wait
	switch {
	case code == 400, code == 422:
		e.Type = TypeBadArguments
	case code == 421, code == 425, code == 429:
		e.Type = TypeTransient
	case code == 408, code == 409 && waits:
		e.Type, e.outcome = TypeTransient, OutcomeUnknown
	case code == 307, code == 308: // nothing happened here: the request is to be made elsewhere
	case code < 400, code == 501, code == 505: // a 303 is how many servers say that it is done
		e.outcome = OutcomeUnknown
	case code >= 500:
		e.Type, e.outcome = TypeTransient, OutcomeUnknown
	}
	if t, ok := s[code]; ok && code >= 400 && code < 500 && (t == TypeBadArguments || t == TypePermanent || t == TypeTransient) {
		e.Type = t
	}
	e.problem(resp)
	switch {
	case !recorded(resp.Header):
	case code >= 500: // every repeat gets it too, and nobody knows what happened before it
		e.Type, e.outcome = TypePermanent, OutcomeUnknown
	case e.outcome == OutcomeNone:
		e.settles = true // the first answer for this key
	}
	if tries.Certainty == oncehttp.CertaintyUnknown && len(tries.Tries) > 0 && !e.settles {
		e.outcome = OutcomeUnknown
	}
	return e
}

// recorded reports whether the server says that this is the answer for the key.
func recorded(h http.Header) bool {
	return strings.EqualFold(h.Get("Idempotent-Replayed"), "true") || strings.EqualFold(h.Get("Idempotency-Replayed"), "true") ||
		strings.EqualFold(h.Get("Idempotency-Status"), "executed")
}

// problem reads a refusal of an oncehttp Middleware (RFC 9457), which says what is
// known of the effect.
func (e *Error) problem(resp *http.Response) {
	if t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); t != "application/problem+json" {
		return
	}
	if b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10)); err == nil {
		e.refused(b)
	}
}

// Refused is what a tool returns whose server, over another protocol than HTTP, refused
// the call with err and a problem document of [oncehttp.RefusalOf]. It is nil if problem
// is none.
func Refused(problem []byte, err error) error {
	e := &Error{Type: TypePermanent, Err: err}
	if !e.refused(problem) {
		return nil
	}
	return e
}

// refused takes a problem document at its word, and reports whether it is one of ours.
func (e *Error) refused(problem []byte) bool {
	var p struct {
		Type    string `json:"type"`
		Retry   bool   `json:"retry_same_key"`
		Outcome string `json:"outcome"`
	}
	if json.Unmarshal(problem, &p) != nil || !strings.HasPrefix(p.Type, "urn:oncehttp:") {
		return false
	}
	e.settles = false
	switch o := Outcome(p.Outcome); o {
	case OutcomeNone, OutcomeUnknown, OutcomeApplied:
		e.outcome = o
	default:
		e.outcome = OutcomeUnknown
	}
	switch {
	case e.outcome == OutcomeApplied: // it is done, only its response is gone
		e.Type = TypeDegraded
	case p.Retry:
		e.Type = TypeTransient
	case e.outcome != OutcomeNone:
		e.Type = TypePermanent
	}
	return true
}
