package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A Tool is something a model can call.
type Tool struct {
	// Name is what the model calls it. Required, and unique in its Runner. At most 128
	// bytes of UTF-8 without control characters: a server may have chosen it.
	Name string

	// Effect says what running the tool twice would do. The zero value is
	// Unsafe.
	Effect Effect

	// Call does the work. Required. It must be safe for concurrent use. What it
	// returns is marshalled as JSON for the model; how it failed is told by the
	// type of its error: see [Error]. A panic is contained and counts as a
	// failure of which nothing is known.
	//
	// The context ends after Timeout. Only for a Read tool does it also end when the
	// caller of [Turn.Do] leaves: what changes something is not torn off half-way.
	Call func(ctx context.Context, args json.RawMessage) (any, error)

	// Timeout bounds one attempt. Zero means 60 s; [Runner.Audit] asks tools
	// that are not Read to set it.
	Timeout time.Duration

	// KeyFields are JSON pointers (RFC 6901) to the arguments that make a call
	// the same call; IgnoreFields are pointers to those that do not, such as a
	// free text that a model words differently each time. At most one of the
	// two may be set. With neither, all arguments count.
	KeyFields, IgnoreFields []string

	// Repeat says what the same call again in a turn means. The zero value is
	// Replay.
	Repeat Repeat

	// Verify finds out whether a call with these arguments took effect. It is
	// asked when an Unsafe call comes again whose outcome is unknown. If true, its value
	// is the result. A false counts only once the first try has been over for
	// [Runner.Settle]: before, the effect may still be on its way. An error means
	// that it cannot tell. It must change nothing.
	Verify func(ctx context.Context, args json.RawMessage) (any, bool, error)

	// ModelRetry allows results to say "retriable": after a transient failure,
	// when the same call again is safe, the model may decide to make it. By
	// default every failure says that it is not, because models that are told to
	// try again do so until something stops them.
	ModelRetry bool

	// Note says why the effect is what it is. [Runner.Audit] prints it, and takes
	// an Unsafe tool without one for a tool whose effect nobody has declared.
	Note string
}

// An Effect says what running a tool twice would do.
type Effect int

const (
	// Unsafe: a second run is a second effect. The tool runs once; it is run
	// again only if nothing of the first run can have left.
	Unsafe Effect = iota
	// Keyed: the tool hands its key on to a server that honours it, through an
	// [oncehttp.Transport] or with [KeyFromContext]. It is retried under the same key.
	Keyed
	// Idempotent: a second run with the same arguments changes nothing more.
	// It is retried.
	Idempotent
	// Read: it changes nothing. It always runs, is retried and never recorded,
	// since a poll must see what is new.
	Read
)

// String returns the effect in lower case.
func (e Effect) String() string {
	switch e {
	case Unsafe:
		return "unsafe"
	case Keyed:
		return "keyed"
	case Idempotent:
		return "idempotent"
	case Read:
		return "read"
	}
	return "invalid effect"
}

// A Repeat says what it means that a call is made again in its turn.
type Repeat int

const (
	// Replay: the model repeats itself. The repeat gets the first result.
	Replay Repeat = iota
	// PerOccurrence: each is meant. The n-th call has a key of its own, which the n-th
	// call of a turn that is resumed has too. While the outcome of one is unknown,
	// the next is taken for its repeat; one that did not take effect does not count.
	PerOccurrence
)

// A Call is a tool call as the model made it.
type Call struct {
	Tool string

	// ID is the provider's name for the call. It is copied to the Result and is
	// otherwise ignored: providers repeat ids and leave them out.
	ID string

	// Args are the arguments exactly as the model sent them. Over 1 MiB they are refused as
	// bad arguments.
	Args json.RawMessage

	// Reasoning is the model's text just before the call, for the trace.
	Reasoning string
}

const (
	defaultTimeout = 60 * time.Second
	maxName        = 128
	maxArgs        = 1 << 20
	maxID          = 128 // of a call's ID in hooks
)

func (t *Tool) check() error {
	bad := func(problem string) error { return fmt.Errorf("toolcall: tool %q: %s", t.Name, problem) }
	switch {
	case t.Name == "":
		return errors.New("toolcall: a tool without a Name")
	case len(t.Name) > maxName:
		return fmt.Errorf("toolcall: tool %.40q…: Name has %d bytes, at most %d are allowed", t.Name, len(t.Name), maxName)
	case !utf8.ValidString(t.Name) || strings.ContainsFunc(t.Name, unicode.IsControl):
		return bad("Name has control characters or is no UTF-8")
	case t.Call == nil:
		return bad("Call is nil")
	case t.Effect < Unsafe || t.Effect > Read:
		return bad("Effect is none of Unsafe, Keyed, Idempotent and Read")
	case t.Repeat != Replay && t.Repeat != PerOccurrence:
		return bad("Repeat is neither Replay nor PerOccurrence")
	case t.Timeout < 0:
		return bad("Timeout is negative")
	case len(t.KeyFields) > 0 && len(t.IgnoreFields) > 0:
		return bad("KeyFields and IgnoreFields are both set")
	case t.Verify != nil && t.Effect == Read:
		return bad("Verify is set, but a Read tool has no effect to verify")
	}
	for _, p := range t.KeyFields {
		if !validPointer(p) {
			return bad("KeyFields holds something that is no JSON pointer to a member; one looks like /order/id")
		}
	}
	for _, p := range t.IgnoreFields {
		if !validPointer(p) {
			return bad("IgnoreFields holds something that is no JSON pointer to a member; one looks like /order/id")
		}
	}
	return nil
}
