package oncehttp

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Refusal is why a [Middleware] did not run a handler and has no recorded
// response to give either. It is an error and, written by ServeHTTP, a problem
// document (RFC 9457) with three members of its own, which tell a program, or a
// model, what it may do.
type Refusal struct {
	// Type names the refusal: urn:oncehttp: and one of missing-key,
	// malformed-key, body-too-large, body-unreadable, body-consumed,
	// upgrade-refused, scope-failed, principal-changed, key-reused,
	// response-gone, in-progress, outcome-unknown, rolled-back,
	// store-unavailable, store-full.
	Type string

	// Status is the HTTP status.
	Status int

	// Title says what is wrong and Detail what to do about it. Neither contains
	// anything that came with the request.
	Title, Detail string

	// RetrySameKey says that the same request with the same key may be sent
	// again and may fare better.
	RetrySameKey bool

	// SafeNewKey says that the request, once corrected, may be sent with a new
	// key without the effect happening twice.
	SafeNewKey bool

	// Outcome says what is known of the effect behind the key: none, applied or
	// unknown.
	Outcome string

	// RetryAfter is how long to wait before the next try. Zero: not said.
	RetryAfter time.Duration

	// Err is the cause, for logs. It is not sent. It may be nil.
	Err error
}

// Error implements error.
func (p *Refusal) Error() string {
	if p.Err != nil {
		return "oncehttp: " + p.Title + ": " + strings.TrimPrefix(p.Err.Error(), "oncehttp: ")
	}
	return "oncehttp: " + p.Title
}

// Unwrap returns Err.
func (p *Refusal) Unwrap() error { return p.Err }

// ServeHTTP writes the refusal as problem+json. It ignores the request. A
// Middleware's Refuse calls it for refusals that it does not want to word itself.
func (p *Refusal) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	p.setHeader(h)
	w.WriteHeader(p.Status)
	w.Write(p.body())
}

// MarshalJSON returns the problem document.
func (p *Refusal) MarshalJSON() ([]byte, error) { return p.body(), nil }

// RefusalOf is how a [Middleware] words an error of [Once.Do] or [ParseKey]. It is for
// those who run a Once behind another protocol and want to refuse calls in the same
// words: put its JSON where that protocol has room for the details of an error.
func RefusalOf(err error) *Refusal {
	switch {
	case errors.Is(err, ErrNoKey), errors.Is(err, ErrBadKey):
		return refuseMalformedKey(err)
	case errors.Is(err, ErrResponseGone):
		return refuseGone(outcomeUnknown)
	}
	return refuse(err)
}

// setHeader sets what must be there whoever words the refusal.
func (p *Refusal) setHeader(h http.Header) {
	h.Set("Cache-Control", "no-store")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((p.RetryAfter+time.Second-1)/time.Second), 10))
	}
}

func (p *Refusal) body() []byte {
	b, _ := json.Marshal(struct { // strings, booleans and a number: cannot fail
		Type         string `json:"type"`
		Title        string `json:"title"`
		Status       int    `json:"status"`
		Detail       string `json:"detail"`
		RetrySameKey bool   `json:"retry_same_key"`
		SafeNewKey   bool   `json:"safe_new_key"`
		Outcome      string `json:"outcome"`
	}{p.Type, p.Title, p.Status, p.Detail, p.RetrySameKey, p.SafeNewKey, p.Outcome})
	return append(b, '\n')
}

// The values of Refusal.Outcome.
const (
	outcomeNone    = "none"
	outcomeApplied = "applied"
	outcomeUnknown = "unknown"
)

const (
	problemType = "urn:oncehttp:"
)

func refuseMissingKey(field string) *Refusal {
	return &Refusal{
		Type: problemType + "missing-key", Status: http.StatusBadRequest,
		Title:      "The request has no idempotency key",
		Detail:     "Requests of this kind must carry a key in the " + field + " header, so that they take effect once even if they are sent again. Choose one key for this piece of work and send it with every try. Nothing was done.",
		SafeNewKey: true, Outcome: outcomeNone, Err: ErrNoKey,
	}
}

func refuseMalformedKey(err error) *Refusal {
	problem := strings.TrimPrefix(err.Error(), ErrBadKey.Error()+": ")
	return &Refusal{
		Type: problemType + "malformed-key", Status: http.StatusBadRequest,
		Title:      "The idempotency key is malformed",
		Detail:     problem + ". Nothing was done.",
		SafeNewKey: true, Outcome: outcomeNone, Err: err,
	}
}

func refuseBodyTooLarge(limit int64) *Refusal {
	return &Refusal{
		Type: problemType + "body-too-large", Status: http.StatusRequestEntityTooLarge,
		Title:      "The request body is too large to be protected by an idempotency key",
		Detail:     "With a key, a body may have up to " + strconv.FormatInt(limit, 10) + " bytes. Nothing was done.",
		SafeNewKey: true, Outcome: outcomeNone,
	}
}

// refuseBody is for a body that cannot be read. An earlier try may have arrived
// whole, so nothing is known of the effect.
func refuseBody(status int, err error) *Refusal {
	return &Refusal{
		Type: problemType + "body-unreadable", Status: status,
		Title:        "The request body did not arrive",
		Detail:       "The body was cut short, or came too slowly, so this request was not run. Send the same request with the same key again.",
		RetrySameKey: true, Outcome: outcomeUnknown, Err: err,
	}
}

func refuseConsumed() *Refusal {
	return &Refusal{
		Type: problemType + "body-consumed", Status: http.StatusInternalServerError,
		Title:   "The server read the request body before the request could be protected",
		Detail:  "This request was not run. The fault is in how the server is put together, so sending it again does not help.",
		Outcome: outcomeUnknown,
	}
}

func refuseUpgrade() *Refusal {
	return &Refusal{
		Type: problemType + "upgrade-refused", Status: http.StatusBadRequest,
		Title:      "A request with an idempotency key cannot upgrade its connection",
		Detail:     "What happens on an upgraded connection cannot be recorded and replayed. Leave the key out, or do not ask for the upgrade.",
		SafeNewKey: true, Outcome: outcomeNone,
	}
}

func refuseScope(err error) *Refusal {
	return &Refusal{
		Type: problemType + "scope-failed", Status: http.StatusInternalServerError,
		Title:        "The server could not tell who is asking",
		Detail:       "This request was not run. The fault is the server's; send the same request with the same key again later.",
		RetrySameKey: true, Outcome: outcomeUnknown, Err: err,
	}
}

func refuseGone(outcome string) *Refusal {
	detail := "The request with this key has ended before, and its response is no longer kept. It was not run again. "
	if outcome == outcomeApplied {
		detail += "It succeeded: look up the result instead of sending it again."
	} else {
		detail += "Look up what it did before you do anything else; a new key could do it twice."
	}
	return &Refusal{
		Type: problemType + "response-gone", Status: http.StatusConflict,
		Title:  "The response is no longer kept",
		Detail: detail, Outcome: outcome, Err: ErrResponseGone,
	}
}

// refuse makes a Refusal of what a Once returned.
func refuse(err error) *Refusal {
	p := &Refusal{Outcome: outcomeUnknown, Err: err}
	switch {
	case errors.Is(err, ErrPrincipalChanged):
		p.Type, p.Status = "principal-changed", http.StatusConflict
		p.Title = "This idempotency key was first used by another caller"
		p.Detail = "Nothing was run for this request, and what the other caller was answered is not shown. If your credentials were renewed in between, find out what became of the first request before you do anything else; a new key could do it twice."
	case errors.Is(err, ErrKeyReused):
		p.Type, p.Status = "key-reused", http.StatusUnprocessableEntity
		p.Title = "This idempotency key was first used for a different request"
		p.Detail = "A key stands for one request, and this one differs from the first in its host, query, media type, If-Match or body. It was not run. If it is a changed version of the first, find out what became of that one before you send it under a key of its own."
	case errors.Is(err, ErrOutcomeUnknown):
		p.Type, p.Status = "outcome-unknown", http.StatusConflict
		p.Title = "Nobody knows whether this request took effect"
		p.Detail = "A request with this key was started and never finished. It is not run again on a guess. Look up what it did before you do anything else; a new key, or a changed request, could do it twice."
	case errors.Is(err, ErrInProgress):
		p.Type, p.Status, p.RetryAfter = "in-progress", http.StatusConflict, time.Second
		p.Title = "A request with this idempotency key is still running"
		p.Detail = "Send the same request with the same key again later; it will be answered with the response of the one that runs. A new key would do it twice."
		p.RetrySameKey = true
	case errors.Is(err, ErrRolledBack):
		p.Type, p.Status, p.RetryAfter = "rolled-back", http.StatusServiceUnavailable, time.Second
		p.Title = "The work was done and then rolled back"
		p.Detail = "The database did not commit what this request wrote, and nothing of it is there. Send the same request with the same key again; it will be run again."
		p.RetrySameKey = true
	case errors.Is(err, ErrFull):
		p.Type, p.Status, p.RetryAfter = "store-full", http.StatusServiceUnavailable, 30*time.Second
		p.Title = "The server has no room to protect another request"
		p.Detail = "This request was not run. Send the same request with the same key again later."
		p.RetrySameKey = true
	default:
		p.Type, p.Status, p.RetryAfter = "store-unavailable", http.StatusServiceUnavailable, 2*time.Second
		p.Title = "The server cannot protect this request at the moment"
		p.Detail = "The record of what was done does not answer, so this request was not run. Send the same request with the same key again later."
		p.RetrySameKey = true
	}
	p.Type = problemType + p.Type
	return p
}

// diedBody is what is recorded for a handler that panicked.
var diedBody = (&Refusal{
	Type: problemType + "handler-failed", Status: http.StatusInternalServerError,
	Title:   "The server failed while it handled this request",
	Detail:  "It may have taken effect or not. It is not run again. Look up what it did before you do anything else; a new key could do it twice.",
	Outcome: outcomeUnknown,
}).body()

// hijackBody is the response of a handler that wanted the connection, did not
// get it, and said nothing.
var hijackBody = refuseUpgrade().body()
