package toolcall

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// A Result is the answer to one call. [Result.JSON] is what the model is given; the
// other fields are for the program.
type Result struct {
	// Tool and ID are those of the Call.
	Tool, ID string

	Status    Status
	ErrorType ErrorType

	// Retriable says that the model may make the same call again. See
	// [Tool.ModelRetry].
	Retriable bool

	// Message tells the model what happened, what to do and what not to do. It is
	// always one of this package's own texts, at most 1 KiB, never an upstream's.
	Message string

	// RetryAfter is how long the other side asked to wait. Zero: it did not.
	RetryAfter time.Duration

	// Outcome is what is known of the call's effect.
	Outcome Outcome

	Next Next

	// Details says more, where the tool's author or this package has something
	// to say that is fit for the model. "" if not.
	Details string

	// Replayed says that the call was not run: it had been before, or was running,
	// and this is how that ended.
	Replayed bool

	// Result is what the tool returned, as JSON. Nil if there is nothing.
	Result json.RawMessage

	// Attempts counts the attempts of the run that gave this result, those of a
	// Transport below included.
	Attempts int

	// Key is the call's key, "" for one that has none. The model never sees it.
	Key string

	// Err is why the call failed or is degraded: an [*Error], an
	// [*oncehttp.Error], one of this package's sentinel errors, or whatever the
	// tool returned. Nil for a success. Its text may hold what an upstream said.
	Err error
}

// A Status tells how a call ended.
type Status string

const (
	StatusOK       Status = "ok"
	StatusDegraded Status = "degraded" // there is a result, but not all of it
	StatusFailed   Status = "failed"
)

// An ErrorType says what kind of failure it was. The zero value is none.
type ErrorType string

const (
	// TypeBadArguments: the model can fix it, by other arguments.
	TypeBadArguments ErrorType = "bad_arguments"
	// TypePermanent: trying again cannot help.
	TypePermanent ErrorType = "permanent"
	// TypeTransient: it may pass.
	TypeTransient ErrorType = "transient"
	// TypeDegraded: part of the result is missing.
	TypeDegraded ErrorType = "degraded"
	// TypeBudgetExceeded: the turn may do no more.
	TypeBudgetExceeded ErrorType = "budget_exceeded"
)

// An Outcome says what is known of a call's effect.
type Outcome string

const (
	// OutcomeNone: nothing happened.
	OutcomeNone Outcome = "none"
	// OutcomeApplied: it took effect.
	OutcomeApplied Outcome = "applied"
	// OutcomeUnknown: it may or may not have taken effect.
	OutcomeUnknown Outcome = "unknown"
)

// A Next tells the model what to do now.
type Next string

const (
	NextUseResult        Next = "use_result"
	NextFixArguments     Next = "fix_arguments"
	NextAskUser          Next = "ask_user"
	NextUsePartial       Next = "use_partial"
	NextInformUser       Next = "inform_user"
	NextVerify           Next = "verify"
	NextSummariseAndStop Next = "summarise_and_stop"
)

// JSON returns the result as the model is given it: one JSON object whose members
// are always the same, in the same order. The same Result gives the same bytes.
func (r *Result) JSON() []byte {
	b := make([]byte, 0, 320+len(r.Message)+len(r.Details)+len(r.Result))
	b = appendString(append(b, `{"status":`...), string(r.Status))
	b = append(b, `,"error_type":`...)
	if r.ErrorType == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, string(r.ErrorType))
	}
	b = strconv.AppendBool(append(b, `,"retriable":`...), r.Retriable)
	b = appendString(append(b, `,"message":`...), r.Message)
	b = append(b, `,"retry_after_seconds":`...)
	if r.RetryAfter <= 0 {
		b = append(b, "null"...)
	} else {
		// Rounded up: a wait that is cut short is too short.
		whole := int64(r.RetryAfter / time.Second)
		if r.RetryAfter%time.Second > 0 {
			whole++
		}
		b = strconv.AppendInt(b, whole, 10)
	}
	b = appendString(append(b, `,"outcome":`...), string(r.Outcome))
	b = appendString(append(b, `,"next":`...), string(r.Next))
	b = append(b, `,"details":`...)
	if r.Details == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, r.Details)
	}
	b = strconv.AppendBool(append(b, `,"replayed":`...), r.Replayed)
	b = append(b, `,"result":`...)
	if len(r.Result) == 0 {
		b = append(b, "null"...)
	} else {
		b = append(b, r.Result...)
	}
	return append(b, '}')
}

// MarshalJSON returns [Result.JSON].
func (r Result) MarshalJSON() ([]byte, error) { return r.JSON(), nil }

func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			var buf bytes.Buffer
			e := json.NewEncoder(&buf)
			e.SetEscapeHTML(false) // the reader is a model, not a browser
			e.Encode(s)            // a string always encodes
			return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
