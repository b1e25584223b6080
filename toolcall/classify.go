package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A verdict is what one attempt, or all of a call's, came to.
type verdict struct {
	typ     ErrorType // "": it succeeded
	outcome Outcome
	settles bool // it answers for the key, whatever earlier tries came to
	notSent bool // nothing of this attempt left
	handled bool // a Transport has repeated it as often as may be
	wait    time.Duration
	details string
	value   any
	err     error
	tries   *oncehttp.Result
	why     reason
}

// classify judges how an attempt ended. The first match decides.
func classify(e Effect, value any, err error, timedOut bool) (v verdict) {
	defer func() {
		if recover() != nil { // in a method of a tool's own error
			v = verdict{typ: TypePermanent, outcome: OutcomeUnknown, err: ErrPanic}
		}
		if e == Read {
			v.outcome = OutcomeNone
		}
	}()
	return judge(value, err, timedOut)
}

func judge(value any, err error, timedOut bool) verdict {
	if err == nil {
		v := verdict{outcome: OutcomeApplied, settles: true, value: value}
		if a, ok := value.(*answer); ok {
			v.value, v.tries = a.value, a.tries
		}
		return v
	}
	v := verdict{err: err, outcome: OutcomeUnknown}
	var below *oncehttp.Error
	if errors.As(err, &below) && below != nil {
		v.tries, v.handled = &below.Result, true
		if !below.RetryAt.IsZero() {
			v.wait = max(time.Until(below.RetryAt), 0)
		}
	}
	var typed *Error
	switch {
	case errors.As(err, &typed) && typed != nil:
		typed.judge(&v)
	case below != nil:
		judgeTransport(&v, below)
	case errors.Is(err, ErrPanic):
		v.typ = TypePermanent
	case timedOut || isTimeout(err):
		v.typ = TypeTransient
	default:
		v.typ = TypePermanent
	}
	return v
}

func (e *Error) judge(v *verdict) {
	v.typ, v.details = e.Type, brief(e.Details)
	v.handled = v.handled || e.handled
	if e.tries != nil {
		v.tries = e.tries
	}
	if e.RetryAfter > 0 {
		v.wait = e.RetryAfter
	}
	switch e.Type {
	case TypeBadArguments:
		v.outcome = OutcomeNone
	case TypePermanent:
		// What this package judged from a status says itself whether it settles.
		v.outcome, v.settles = OutcomeNone, e.outcome == "" && !e.NotSent
	case TypeTransient:
		if v.notSent = e.NotSent; v.notSent {
			v.outcome = OutcomeNone
		}
	case TypeDegraded:
		v.outcome, v.settles, v.value = OutcomeApplied, true, e.Result
	default:
		v.typ = TypePermanent
	}
	if e.outcome != "" {
		v.outcome = e.outcome
	}
	v.settles = v.settles || e.settles
}

// judgeTransport judges a request that got no response.
func judgeTransport(v *verdict, e *oncehttp.Error) {
	v.typ = TypeTransient
	if e.Certainty == oncehttp.CertaintyNotSent {
		v.outcome, v.notSent = OutcomeNone, true
		// A name that does not exist, a refused certificate, a request that
		// cannot be sent, two requests under one key: time does not help.
		if e.Stop == nil || errors.Is(e.Stop, oncehttp.ErrFinal) {
			v.typ = TypePermanent
		}
		for _, wiring := range [...]error{oncehttp.ErrActionReused, oncehttp.ErrActionFull, oncehttp.ErrBadKey, oncehttp.ErrBadAction} {
			if errors.Is(e, wiring) {
				v.typ = TypePermanent
			}
		}
	}
}

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// repeats reports whether the Runner may run the tool again after v. worst is
// what is known of all attempts until now.
func (v *verdict) repeats(e Effect, worst Outcome) bool {
	if v.typ != TypeTransient || v.handled {
		return false
	}
	// An Unsafe tool may run again only if nothing of any attempt has left.
	return e != Unsafe || v.notSent && worst == OutcomeNone
}

// worse merges what an attempt came to into what is known of those before it.
func (v *verdict) worse(e Effect, before Outcome) Outcome {
	switch {
	case v.outcome != OutcomeNone || before != OutcomeUnknown:
		return v.outcome
	case e == Keyed && v.settles:
		return OutcomeNone
	}
	return OutcomeUnknown
}

// brief bounds a text for the model.
func brief(s string) string { return clip(s, 1<<10) }

// clip cuts a text off.
func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most-len("…")] + "…"
	}
	return strings.ToValidUTF8(s, "")
}

// result makes a Result of a verdict.
func (r *Runner) result(tool *Tool, id, key string, v verdict, attempts int) Result {
	res := Result{
		Tool: tool.Name, ID: id, Status: StatusFailed, ErrorType: v.typ, RetryAfter: v.wait, Outcome: v.outcome,
		Details: v.details, Attempts: attempts, Key: key, Err: v.err,
	}
	if v.typ == "" || v.typ == TypeDegraded {
		res.Status = StatusOK
		b, err := output(v.value)
		switch most := r.maxResult(); {
		case err != nil:
			v.typ, v.why, res.Err = TypeDegraded, notShown, err
		case len(b) > most:
			v.typ, v.why = TypeDegraded, tooLarge
			res.Result, res.Details = cut(b, most), "the result is too large: its beginning is shown as text"
		default:
			res.Result = b
		}
		res.ErrorType = v.typ
		if v.typ == TypeDegraded {
			res.Status = StatusDegraded
		}
	}
	res.Retriable = tool.ModelRetry && v.typ == TypeTransient && v.why != stopped &&
		(v.outcome == OutcomeNone || tool.Effect != Unsafe)
	res.Message, res.Next = message(tool.Effect, res.Status, v.typ, v.outcome, v.why)
	return res
}

// output writes what a tool returned as JSON. A tool's own marshalling code may
// panic.
func output(value any) (b json.RawMessage, err error) {
	defer func() {
		if recover() != nil {
			b, err = nil, ErrOutput
		}
	}()
	if value == nil {
		return nil, nil
	}
	b, err = marshal(value)
	if err != nil {
		return nil, ErrOutput // err may quote the value
	}
	return b, nil
}
