package toolcall

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"
)

// grace is how long a tool whose time is up may take to return. Its own error says
// more than "timed out".
const grace = 50 * time.Millisecond

// A run is what is done for one call: attempts and pauses.
type run struct {
	turn     *Turn
	tool     *registered
	key      string
	args     json.RawMessage
	deadline time.Time // of whoever waits; zero: none

	worst    Outcome
	attempts int
	tries    []Try
	late     []<-chan ending // attempts that were given up on and have not returned
}

// An ending is how a tool's function ended.
type ending struct {
	value any
	err   error
}

// loop runs the tool until it has succeeded or there is no more to try. ctx is the
// tool's; stop ends when nobody waits for the result any more.
func (u *run) loop(ctx, stop context.Context) verdict {
	r, effect := u.turn.r, u.tool.Effect
	for n := 1; ; n++ {
		if err := stop.Err(); err != nil {
			return u.ended(stop, verdict{notSent: true, outcome: OutcomeNone})
		}
		if !u.turn.pool.attempt() {
			return u.end(verdict{typ: TypeBudgetExceeded, outcome: OutcomeNone, notSent: true, err: ErrBudget})
		}
		v := u.attempt(ctx, stop, n)
		if v.typ != "" && v.typ != TypeDegraded && stop.Err() != nil {
			return u.ended(stop, v)
		}
		u.worst = v.worse(effect, u.worst)
		if n >= r.attempts() || !v.repeats(effect, u.worst) || ctx.Err() != nil { // the last: its claim is lost
			return u.end(v)
		}
		pause := r.pause(n, v.wait)
		if v.wait > r.maxRetryAfter() || !u.deadline.IsZero() && !time.Now().Add(pause).Before(u.deadline) {
			return u.end(v) // waiting would be for nothing
		}
		u.tries[len(u.tries)-1].Pause = pause
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-stop.Done():
			timer.Stop()
			return u.ended(stop, v)
		}
	}
}

// end is the verdict on all attempts.
func (u *run) end(v verdict) verdict {
	v.outcome = v.worse(u.tool.Effect, u.worst)
	u.worst = v.outcome
	return v
}

// ended is the verdict when nobody waits any more.
func (u *run) ended(stop context.Context, v verdict) verdict {
	cause := context.Cause(stop)
	v.outcome = v.worse(u.tool.Effect, u.worst)
	u.worst = v.outcome
	if v.err != nil {
		v.err = fmt.Errorf("%w: %w", cause, v.err)
	} else {
		v.err = cause
	}
	return stoppedBy(cause, v)
}

// stoppedBy is v as it is told when cause ended the waiting.
func stoppedBy(cause error, v verdict) verdict {
	v.typ, v.why, v.details = TypeTransient, stopped, ""
	if cause == ErrBudget {
		v.typ, v.why = TypeBudgetExceeded, plainReason
	}
	return v
}

// attempt runs the tool once, for at most its timeout. A tool that ignores its
// context is left behind, and its end collected later.
func (u *run) attempt(ctx, stop context.Context, n int) verdict {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(u.tool.Timeout, defaultTimeout), ErrTimeout)
	defer cancel()
	start := time.Now()
	done := make(chan ending, 1)
	go u.call(ctx, done)
	var e ending
	select {
	case e = <-done:
	case <-ctx.Done():
		patience := grace
		if stop.Err() != nil {
			patience = 0 // the caller has no time left
		}
		timer := time.NewTimer(patience)
		select {
		case e = <-done:
		case <-timer.C:
			e.err = context.Cause(ctx)
			u.late = append(u.late, done)
		}
		timer.Stop()
	}
	v := classify(u.tool.Effect, e.value, e.err, ctx.Err() != nil)
	u.attempts++
	if v.tries != nil && len(v.tries.Tries) > 1 {
		u.attempts += len(v.tries.Tries) - 1
		u.turn.pool.made(len(v.tries.Tries) - 1)
	}
	u.tries = append(u.tries, Try{
		N: n, Start: start, Duration: time.Since(start), ErrorType: v.typ, Outcome: v.outcome, Status: status(&v), Sends: sends(&v),
	})
	return v
}

// call runs the tool's function and sends how it ended, whatever it does.
func (u *run) call(ctx context.Context, done chan<- ending) {
	e := ending{err: ErrPanic} // unless it returns: runtime.Goexit ends it too
	defer func() {
		if p := recover(); p != nil {
			// The value may quote anything, so only its type is told.
			e.err = fmt.Errorf("%w: a value of type %T", ErrPanic, p)
			u.turn.r.log().ErrorContext(ctx, "toolcall: a tool panicked", "tool", u.tool.Name, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
		}
		done <- e
	}()
	value, err := u.tool.Call(ctx, u.args)
	e = ending{value, err}
}

func status(v *verdict) int {
	if v.tries == nil || len(v.tries.Tries) == 0 {
		return 0
	}
	return v.tries.Tries[len(v.tries.Tries)-1].Status
}

func sends(v *verdict) int {
	if v.tries == nil {
		return 0
	}
	return len(v.tries.Tries)
}
