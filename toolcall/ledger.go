package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A flight is a call that changes something, while it runs. It has a goroutine of
// its own and does not end with those who wait for it; equal calls join it.
type flight struct {
	run     run
	nth     *occurrences
	waiters int
	alone   context.CancelFunc // called when the last waiter has left
	told    bool               // some waiter left and was told "unknown"
	own     *slot

	result    Result
	decided   bool          // result is set
	published chan struct{} // closed when the slot says so too
	ended     chan struct{} // closed when nothing of it runs any more
	isOut     bool          // published is closed; only the flight's goroutine reads it
	ran       bool          // the tool was started
}

// act answers a call to a tool that changes something.
func (t *Turn) act(ctx context.Context, p *prepared) (Result, []Try) {
	res, tries, again := t.join(ctx, p)
	if again && res.Outcome == OutcomeUnknown && p.tool.Effect == Unsafe && p.tool.Verify != nil && ctx.Err() == nil {
		res = t.verify(ctx, p, res)
	}
	res.ID = p.call.ID
	t.deliver(ctx, p, &res)
	return res, tries
}

// join waits for the call's flight, which it starts unless there is one. again says
// that a try was made before this call.
func (t *Turn) join(ctx context.Context, p *prepared) (res Result, tries []Try, again bool) {
	patience := time.NewTimer(t.r.wait())
	defer patience.Stop()
	for {
		t.mu.Lock()
		if res, ok := t.done[p.key]; ok {
			t.mu.Unlock()
			return t.replay(&p.tool.Tool, res), nil, true
		}
		_, again = t.unknown[p.key]
		f := t.flights[p.key]
		joined := f != nil
		if !joined {
			f = t.start(ctx, p)
		}
		out := false
		select {
		case <-f.published:
			out = true
		default:
			f.waiters++
		}
		t.mu.Unlock()

		if out {
			// Its answer is out and was "unknown", but the tool is still at work.
			select {
			case <-f.ended:
				continue
			case <-patience.C:
			case <-ctx.Done():
			}
			return f.result, nil, true
		}
		if !t.await(ctx, f) {
			v := stoppedBy(context.Cause(ctx), verdict{outcome: OutcomeUnknown, err: context.Cause(ctx)})
			return t.r.result(&p.tool.Tool, "", p.key, v, 0), nil, again
		}
		res = f.result
		if joined {
			return t.replay(&p.tool.Tool, res), nil, again
		}
		again = again || !f.ran && (errors.Is(res.Err, oncehttp.ErrOutcomeUnknown) || errors.Is(res.Err, oncehttp.ErrInProgress))
		return res, f.run.tries, again
	}
}

// await waits for f's result. False says that ctx ended first: then the caller is
// told that the outcome is unknown, and this is noted.
func (t *Turn) await(ctx context.Context, f *flight) bool {
	select {
	case <-f.published:
	case <-ctx.Done():
		t.mu.Lock()
		if f.waiters == 1 {
			f.alone()
		}
		t.mu.Unlock()
		// A flight that only pauses has its result at once.
		timer := time.NewTimer(grace)
		select {
		case <-f.published:
		case <-timer.C:
		}
		timer.Stop()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f.waiters--
	if f.decided { // at the latest, only the slot is not closed yet
		return true
	}
	f.told = true
	if f.own != nil {
		f.own.flying.Store(false) // so that it latches its tool from now on
	}
	if _, was := t.unknown[f.run.key]; !was {
		t.unknown[f.run.key] = time.Now()
	}
	return false
}

// start is called with t.mu held.
func (t *Turn) start(ctx context.Context, p *prepared) *flight {
	f := &flight{nth: p.nth, published: make(chan struct{}), ended: make(chan struct{})}
	f.run = run{turn: t, tool: p.tool, key: p.key, args: p.args, worst: OutcomeNone}
	if args, ok := t.first[p.key]; ok {
		f.run.args = args // under one key go one call's arguments
	} else {
		if t.first == nil {
			t.first = make(map[string]json.RawMessage)
		}
		t.first[p.key] = p.args
	}
	f.run.deadline, _ = ctx.Deadline()
	if t.flights == nil {
		t.flights = make(map[string]*flight)
		t.done = make(map[string]Result)
		t.unknown = make(map[string]time.Time)
	}
	t.flights[p.key] = f
	base := context.WithoutCancel(ctx)
	stop, alone := context.WithCancelCause(base)
	f.alone = func() { alone(cmpCause(ctx)) }
	go t.fly(base, stop, f)
	return f
}

// cmpCause is why ctx ended.
func cmpCause(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return context.Canceled
}

// fly runs a call over the store.
func (t *Turn) fly(base, stop context.Context, f *flight) {
	u := &f.run
	tool := &u.tool.Tool
	defer f.alone()
	s := t.slotsOf(tool.Name)
	e, err := t.enter(base, s, tool.Name, u.key, u.args)
	if err != nil {
		// Only one who has seen all slots knows that there was no earlier try.
		earlier := e.earlier || !errors.Is(err, oncehttp.ErrFull)
		t.land(base, f, s, t.r.result(tool, "", u.key, refusedBy(err, earlier), 0))
		return
	}
	if e.earlier {
		u.worst = OutcomeUnknown
	}
	t.mu.Lock()
	f.own = e.slot
	e.slot.flying.Store(!f.told)
	t.mu.Unlock()
	once := &u.tool.rerun
	if tool.Effect == Unsafe || e.differs {
		once = &u.tool.strict
	}
	ctx := apart(withRun(base, u), u.key)
	if tool.Effect == Keyed {
		// WithKey first: an action alone would derive its keys from whatever action or
		// handler the turn runs in, and a turn that is resumed runs in another.
		ctx = oncehttp.WithAction(oncehttp.WithKey(ctx, u.key), "tool call")
	}
	var final Result
	a, err := once.Do(ctx, oncehttp.Op{Key: u.key}, func(ctx context.Context) (head, body []byte, err error) {
		f.ran = true
		u.tool.ran.Store(true)
		v := u.loop(ctx, stop)
		final = t.r.result(tool, "", u.key, v, u.attempts)
		if final.Outcome == OutcomeUnknown && len(u.late) > 0 {
			t.publish(base, f, s, final)
			if late, ok := t.collect(u); ok {
				final = late
			}
		}
		switch {
		case final.Outcome == OutcomeUnknown:
			oncehttp.Unknown(ctx)
			return nil, nil, nil
		case final.Outcome == OutcomeNone && !(e.earlier && v.settles):
			oncehttp.Release(ctx)
			return nil, nil, errNothing
		}
		head, body = record(&final, v.why)
		return head, body, nil
	})
	switch {
	case a.Kind == oncehttp.OutcomeReplayed || a.Kind == oncehttp.OutcomeAttached:
		final = t.replay(tool, restore(tool, u.key, a.Head, a.Body, a.BodyDropped))
	case f.ran && a.Kind == oncehttp.OutcomeReleased && a.Holder > 1:
		// An earlier process began this and did not say how it ended.
		final = t.r.result(tool, "", u.key, unknownVerdict(final.Err), u.attempts)
	case f.ran && a.Kind != oncehttp.OutcomeRan && a.Kind != oncehttp.OutcomeReleased && final.Outcome != OutcomeUnknown:
		final = t.r.result(tool, "", u.key, unknownVerdict(err), u.attempts)
	case !f.ran:
		final = t.r.result(tool, "", u.key, refusedBy(err, e.earlier), 0)
	}
	t.land(base, f, s, final)
}

// errNothing keeps a release that comes too late from being taken for an answer.
var errNothing = errors.New("toolcall: nothing happened")

func unknownVerdict(err error) verdict {
	return verdict{typ: TypeTransient, outcome: OutcomeUnknown, err: err}
}

// refusedBy is the verdict on a call that was not started. earlier says that a try
// of it may have been started before.
func refusedBy(err error, earlier bool) verdict {
	v := verdict{typ: TypeTransient, outcome: OutcomeUnknown, err: err}
	switch {
	case errors.Is(err, ErrLatched):
		v.typ, v.outcome, v.why = TypePermanent, OutcomeNone, latched
	case errors.Is(err, oncehttp.ErrOutcomeUnknown), errors.Is(err, oncehttp.ErrInProgress):
	case errors.Is(err, oncehttp.ErrKeyReused), errors.Is(err, oncehttp.ErrPrincipalChanged):
		v.typ = TypePermanent // the store's keys are used by something else
	default:
		if v.why = noLedger; !earlier {
			v.outcome = OutcomeNone
		}
	}
	return v
}

// collect waits for attempts that were given up on. The first that tells how the
// call ended is its late result.
func (t *Turn) collect(u *run) (Result, bool) {
	for _, done := range u.late {
		e := <-done
		v := classify(u.tool.Effect, e.value, e.err, false)
		if v.outcome == OutcomeApplied || u.tool.Effect == Keyed && v.settles {
			return t.r.result(&u.tool.Tool, "", u.key, v, u.attempts), true
		}
		if u.attempts == 1 && v.outcome == OutcomeNone && u.tool.Effect == Unsafe {
			// It was the only try, and did nothing.
			return t.r.result(&u.tool.Tool, "", u.key, v, u.attempts), true
		}
	}
	return Result{}, false
}

// publish hands the flight's result to those who wait for it, though its tool is still
// at work.
func (t *Turn) publish(ctx context.Context, f *flight, s *slots, res Result) {
	t.decide(ctx, f, s, res)
	f.isOut = true
	close(f.published)
}

// decide settles what those who wait are told, and notes it in the slot.
func (t *Turn) decide(ctx context.Context, f *flight, s *slots, res Result) {
	t.mu.Lock()
	told := res.Outcome != OutcomeUnknown && !f.told
	if _, was := t.unknown[f.run.key]; !was && f.own != nil && !told {
		t.unknown[f.run.key] = time.Now()
	}
	f.result, f.decided = res, true
	t.mu.Unlock()
	if f.own != nil {
		t.leave(ctx, s, f.own, told)
	}
}

// land ends the flight.
func (t *Turn) land(ctx context.Context, f *flight, s *slots, final Result) {
	if !f.isOut {
		t.decide(ctx, f, s, final)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := f.run.key
	delete(t.flights, key)
	switch _, open := t.unknown[key]; {
	case f.own == nil: // it did not start
		if !open {
			t.forget(f)
		}
	case final.Outcome == OutcomeApplied, final.Outcome == OutcomeNone && final.Replayed:
		t.done[key] = final
	case final.Outcome == OutcomeNone:
		t.forget(f)
	case f.ran:
		t.unknown[key] = time.Now() // Settle counts from here
	}
	if !f.isOut {
		close(f.published)
	}
	close(f.ended)
}

// forget lets a call that did not happen be made anew.
func (t *Turn) forget(f *flight) {
	delete(t.first, f.run.key)
	if f.nth != nil {
		f.nth.free = append(f.nth.free, f.run.key)
	}
}

// deliver notes that the model is told res.
func (t *Turn) deliver(ctx context.Context, p *prepared, res *Result) {
	if res.Outcome == OutcomeUnknown || errors.Is(res.Err, ErrLatched) {
		return
	}
	t.mu.Lock()
	_, was := t.unknown[p.key]
	if was {
		delete(t.unknown, p.key)
	}
	t.mu.Unlock()
	if was {
		t.settle(ctx, t.slotsOf(p.tool.Name), p.key)
	}
}

// verify asks the tool what became of a call whose outcome is unknown.
func (t *Turn) verify(ctx context.Context, p *prepared, res Result) Result {
	t.mu.Lock()
	since, known := t.unknown[p.key]
	if !known {
		since = time.Now()
		t.unknown[p.key] = since
	}
	args, sent := t.first[p.key]
	if !sent {
		args = p.args
	}
	_, flying := t.flights[p.key]
	t.mu.Unlock()

	check := &registered{Tool: p.tool.Tool}
	type finding struct {
		value any
		found bool
	}
	check.Call = func(ctx context.Context, args json.RawMessage) (any, error) {
		value, found, err := p.tool.Verify(ctx, args)
		return finding{value, found}, err
	}
	u := run{turn: t, tool: check, key: p.key, args: args, worst: OutcomeUnknown}
	done := make(chan ending, 1)
	vctx, cancel := context.WithTimeout(ctx, timeoutOf(p.tool))
	defer cancel()
	go u.call(apart(vctx, ""), done)
	var e ending
	select {
	case e = <-done:
	case <-vctx.Done():
		return res
	}
	f, ok := e.value.(finding)
	if e.err != nil || !ok {
		return res
	}
	var v verdict
	switch {
	case f.found:
		v = verdict{outcome: OutcomeApplied, value: f.value}
	case flying || time.Since(since) < t.r.settle():
		return res // it may still be on its way
	default:
		v = verdict{typ: TypePermanent, outcome: OutcomeNone, why: unverified, err: ErrUnverified}
	}
	settled := t.r.result(&p.tool.Tool, "", p.key, v, res.Attempts)
	a, err := p.tool.rerun.Do(ctx, oncehttp.Op{Key: p.key}, func(context.Context) (head, body []byte, err error) {
		head, body = record(&settled, v.why)
		return head, body, nil
	})
	if err == nil && (a.Kind == oncehttp.OutcomeReplayed || a.Kind == oncehttp.OutcomeAttached) {
		settled = t.replay(&p.tool.Tool, restore(&p.tool.Tool, p.key, a.Head, a.Body, a.BodyDropped))
	}
	if settled.Outcome == OutcomeUnknown {
		return settled
	}
	if err != nil && settled.Outcome != OutcomeApplied {
		return res // a "no" that is not recorded could be run over
	}
	t.mu.Lock()
	settled.Replayed = true
	t.done[p.key] = settled
	t.mu.Unlock()
	return settled
}

func timeoutOf(t *registered) time.Duration {
	if t.Timeout > 0 {
		return t.Timeout
	}
	return defaultTimeout
}

// A head is what the store keeps of a call's result, without what the tool returned.
type head struct {
	Tool      string    `json:"tool"`
	Version   int       `json:"v"`
	Status    Status    `json:"status"`
	ErrorType ErrorType `json:"error_type,omitempty"`
	Outcome   Outcome   `json:"outcome"`
	Why       reason    `json:"why,omitempty"`
	Details   string    `json:"details,omitempty"`
	Attempts  int       `json:"attempts"`
}

// record is how a result is stored.
func record(res *Result, why reason) (h, body []byte) {
	if res.Status == StatusDegraded && why == plainReason {
		switch {
		case res.Err == ErrOutput:
			why = notShown
		case res.Err == nil:
			why = tooLarge
		}
	}
	h, err := json.Marshal(head{res.Tool, 1, res.Status, res.ErrorType, res.Outcome, why, res.Details, res.Attempts})
	if err != nil {
		panic(err) // there is nothing in it that has no JSON
	}
	return h, res.Result
}

// restore makes the result of a record. One that cannot be read is no reason to run
// anything.
func restore(tool *Tool, key string, h, body []byte, dropped bool) Result {
	res := Result{Tool: tool.Name, Key: key, Replayed: true}
	var d head
	if err := json.Unmarshal(h, &d); err != nil || d.Version != 1 || d.Tool != tool.Name || d.Outcome == "" {
		res.Status, res.ErrorType, res.Outcome = StatusFailed, TypePermanent, OutcomeUnknown
		res.Err = fmt.Errorf("toolcall: the record of the call cannot be read: %w", oncehttp.ErrResponseGone)
		res.Message, res.Next = message(tool.Effect, res.Status, res.ErrorType, res.Outcome, plainReason)
		return res
	}
	res.Status, res.ErrorType, res.Outcome, res.Details, res.Attempts = d.Status, d.ErrorType, d.Outcome, d.Details, d.Attempts
	if len(body) > 0 && json.Valid(body) {
		res.Result = body
	}
	if dropped {
		d.Why = notShown
		if res.Status == StatusOK {
			res.Status, res.ErrorType, res.Err = StatusDegraded, TypeDegraded, oncehttp.ErrResponseGone
		}
	}
	if res.Status != StatusOK && res.Err == nil {
		res.Err = &Error{Type: res.ErrorType, Err: errors.New("as recorded when the call was first made")}
	}
	res.Message, res.Next = message(tool.Effect, res.Status, res.ErrorType, res.Outcome, d.Why)
	return res
}

// replay is res as a repeat of the call gets it.
func (t *Turn) replay(tool *Tool, res Result) Result {
	res.Replayed = true
	if res.Status == StatusOK {
		res.Message, res.Next = message(tool.Effect, res.Status, "", res.Outcome, replayed)
	}
	return res
}
