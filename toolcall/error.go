package toolcall

import (
	"errors"
	"time"

	"github.com/oncehttp/oncehttp"
)

// An Error tells a Runner how a tool failed. [BadArguments], [Permanent], [Transient]
// and [Degraded] make the usual ones. It may be wrapped. An error that has none in
// its chain is of type TypePermanent, is never retried, and for any tool but a Read
// one leaves the outcome unknown: an error is no proof that nothing happened.
type Error struct {
	// Type is the kind of failure. Any but the first four is TypePermanent with
	// an unknown outcome.
	Type ErrorType

	// NotSent says of a transient failure that nothing left: the call did not
	// happen, and even an Unsafe tool may be run again. A permanent failure with it speaks of
	// this attempt only, and does not settle what became of earlier ones.
	NotSent bool

	// RetryAfter is how long to wait before the next attempt. Zero means
	// the Runner's own pause. It is never shortened.
	RetryAfter time.Duration

	// Details is shown to the model, so it must hold no secret and nothing that
	// an upstream said. It is cut at 1 KiB.
	Details string

	// Result is the part that there is of a degraded result.
	Result any

	// Err is the cause. The model never sees its text.
	Err error

	outcome Outcome          // "": what Type and NotSent say
	settles bool             // it answers for the key, whatever earlier tries came to
	handled bool             // a Transport has repeated it as often as may be
	tries   *oncehttp.Result // what that did
}

// Error names the type and the cause.
func (e *Error) Error() string {
	s := "toolcall: " + string(e.Type)
	if e.Details != "" {
		s += ": " + e.Details
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// BadArguments says that the model called the tool wrongly and that nothing
// happened. The model is shown details, which should tell what to change.
func BadArguments(details string) error { return &Error{Type: TypeBadArguments, Details: details} }

// Permanent says that nothing happened and trying again cannot help. Of a Keyed
// tool it says so for the key, earlier attempts included.
func Permanent(err error) error { return &Error{Type: TypePermanent, Err: err} }

// Transient says that the tool may work later. Whether this try took effect is
// unknown; if it is sure that nothing was sent, return an [*Error] with NotSent.
func Transient(err error) error { return &Error{Type: TypeTransient, Err: err} }

// Degraded says that the tool did its work but result is only a part of what it
// should return.
func Degraded(result any, err error) error {
	return &Error{Type: TypeDegraded, Result: result, Err: err}
}

// Why a call was not run, or its end not waited for. A [Result] has one of these in
// Err.
var (
	// ErrBudget: a limit of the turn's Budget is reached.
	ErrBudget = errors.New("toolcall: the turn's budget is used up")
	// ErrToolBudget: the tool's limit in Budget.PerTool is reached.
	ErrToolBudget = errors.New("toolcall: the tool's budget for this turn is used up")
	// ErrLatched: an earlier call of the tool in this turn has an unknown outcome.
	ErrLatched = errors.New("toolcall: an earlier call of this tool in the turn has an unknown outcome, so the tool is not run with other arguments")
	// ErrNoTool: no tool of that name is registered.
	ErrNoTool = errors.New("toolcall: no such tool")
	// ErrPanic: the tool panicked, or ended its goroutine.
	ErrPanic = errors.New("toolcall: the tool panicked")
	// ErrOutput: what the tool returned cannot be written as JSON.
	ErrOutput = errors.New("toolcall: what the tool returned cannot be written as JSON")
	// ErrTimeout: an attempt took longer than Tool.Timeout.
	ErrTimeout = errors.New("toolcall: the attempt took longer than the tool's timeout")
	// ErrUnverified: Verify found no effect, and the first try is long over.
	ErrUnverified = errors.New("toolcall: verification found that the call took no effect")
)
