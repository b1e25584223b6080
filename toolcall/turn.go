package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A Turn is what an agent does about one message of its user. The same call twice in
// a turn is the model repeating itself; the same call in the next turn is meant. A
// Turn is safe for concurrent use. Its memory is that of the turn, so let go of it
// afterwards.
type Turn struct {
	r    *Runner
	id   string
	pool *pool
	err  error // a wrong argument of Runner.Turn

	mu      sync.Mutex
	flights map[string]*flight         // by key, what is running
	done    map[string]Result          // by key, what is settled
	unknown map[string]time.Time       // by key, when a try ended whose outcome is unknown
	first   map[string]json.RawMessage // by key, the arguments that were sent
	nth     map[string]*occurrences    // by the key of the first
	slots   map[string]*slots          // by tool
}

// Turn begins or resumes the turn of that id. After a crash the same id finds what
// was recorded, and what was left running. The id must not be empty and must be
// unique within the Runner's Scope: name the conversation in it. The limits of b are
// counted anew. A wrong id or limit is reported by every Result of the turn.
func (r *Runner) Turn(id string, b Budget) *Turn {
	t := &Turn{r: r, id: id, pool: newPool(b, time.Now())}
	switch {
	case id == "":
		t.err = errors.New("toolcall: the turn's id is empty, so its keys would be every turn's")
	default:
		if t.err = r.check(); t.err == nil {
			t.err = b.check()
		}
	}
	return t
}

// ID returns the turn's id.
func (t *Turn) ID() string { return t.id }

// Sub returns the turn of the sub-agent that call starts. Its id is derived from the
// call's key, so a sub-agent that runs again for the same call makes the same calls
// under the same keys. It draws from this turn's budget. The error is one of the
// arguments, or says that the call is to a PerOccurrence tool: what tells its calls
// apart is not in call, so name it in the arguments.
func (t *Turn) Sub(call Call) (*Turn, error) {
	if t.err != nil {
		return nil, t.err
	}
	c, err := canonical(call.Args)
	if err != nil {
		return nil, err
	}
	if tool := t.r.tool(call.Tool); tool != nil {
		if tool.Repeat == PerOccurrence {
			return nil, fmt.Errorf("toolcall: tool %q: a PerOccurrence tool has no turn for a sub-agent; make it Replay, and name the occurrence in the arguments", tool.Name)
		}
		if c, err = tool.identity(c); err != nil {
			return nil, err
		}
	}
	sum := keySum(t.r.Secret, t.r.Scope, call.Tool, t.id, c, 0)
	return &Turn{r: t.r, id: "sub_" + callKey(&sum), pool: t.pool}, nil
}

// Spend counts tokens of a model's response against the budget. What is negative is
// ignored.
func (t *Turn) Spend(tokens int64) {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	if tokens > 0 {
		// It cannot wrap: that would take more than the limit of an int64.
		t.pool.tokens = min(t.pool.tokens, 1<<62) + min(tokens, 1<<62-1)
	}
}

// Exhausted reports whether the budget is used up. The model is then called once more
// without tools, to say what it has and what is missing. Calls that it makes all the
// same are answered with budget_exceeded and never run. It stays true.
func (t *Turn) Exhausted() bool {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	t.pool.over = t.pool.exhausted(time.Now())
	return t.pool.over
}

// Do runs the calls of one message, all at once, and returns their results in
// the same order: one for every call, whatever happens. Which of them the budget
// admits is decided before the first one starts.
//
// Do returns when ctx or the turn's wall clock ends, even if a tool does not. A tool
// that changes something then runs on, and what it comes to is recorded but not
// told: the result said "unknown".
func (t *Turn) Do(ctx context.Context, calls ...Call) []Result {
	results := make([]Result, len(calls))
	if len(calls) == 0 {
		return results
	}
	errs := make([]error, len(calls))
	if t.err == nil {
		t.pool.admit(calls, errs, time.Now())
	}
	if !t.pool.end.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, t.pool.end, ErrBudget)
		defer cancel()
	}
	ready := make([]prepared, len(calls))
	for i := range calls {
		ready[i] = t.prepare(ctx, &calls[i], errs[i])
	}
	var wg sync.WaitGroup
	for i := range ready {
		p := &ready[i]
		if p.refused || len(ready) == 1 {
			results[i] = t.one(ctx, p)
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			results[i] = t.one(ctx, p)
		}()
	}
	wg.Wait()
	return results
}

// A prepared call is one that has its key, or its result already.
type prepared struct {
	call    *Call
	tool    *registered
	key     string
	nth     *occurrences // of a PerOccurrence tool
	args    json.RawMessage
	start   time.Time
	refused bool
	result  Result
	tries   []Try
}

// prepare gives a call its key. It is done in the order of the calls, since
// that is what tells the calls of a PerOccurrence tool apart.
func (t *Turn) prepare(ctx context.Context, c *Call, refusal error) (p prepared) {
	p = prepared{call: c, args: c.Args, start: time.Now(), tool: t.r.tool(c.Tool)}
	tool := p.tool
	if tool == nil {
		tool = &registered{Tool: Tool{Name: c.Tool}}
	}
	refuse := func(v verdict) prepared {
		p.refused = true
		v.outcome = OutcomeNone
		p.result = t.r.result(&tool.Tool, c.ID, p.key, v, 0)
		return p
	}
	switch {
	case t.err != nil:
		return refuse(verdict{typ: TypePermanent, why: misconfigured, err: t.err})
	case refusal == ErrToolBudget:
		return refuse(verdict{typ: TypeBudgetExceeded, why: toolBudget, err: refusal})
	case refusal != nil:
		return refuse(verdict{typ: TypeBudgetExceeded, err: refusal})
	case p.tool == nil:
		return refuse(verdict{typ: TypeBadArguments, why: noTool, err: ErrNoTool})
	case ctx.Err() != nil:
		return refuse(stoppedBy(context.Cause(ctx), verdict{err: context.Cause(ctx)}))
	case len(p.args) > maxArgs:
		return refuse(judge(nil, BadArguments(fmt.Sprintf("the arguments have %d bytes, at most %d are allowed; send less", len(p.args), maxArgs)), false))
	}
	if len(p.args) == 0 {
		p.args = json.RawMessage("{}")
	}
	id, err := canonical(p.args)
	if err == nil {
		id, err = p.tool.identity(id)
	}
	if err != nil {
		return refuse(judge(nil, err, false))
	}
	sum := keySum(t.r.Secret, t.r.Scope, c.Tool, t.id, id, 0)
	p.key = callKey(&sum)
	if p.tool.Repeat == PerOccurrence && p.tool.Effect != Read {
		p.key, p.nth = t.occurrence(p.key, func(n uint32) string {
			sum := keySum(t.r.Secret, t.r.Scope, c.Tool, t.id, id, n)
			return callKey(&sum)
		})
	}
	return p
}

// occurrences are the keys that equal calls of a PerOccurrence tool were given.
type occurrences struct {
	keys []string
	free []string // of those that did not take effect
}

// occurrence returns the key of one more call whose first one has the key first.
func (t *Turn) occurrence(first string, key func(n uint32) string) (string, *occurrences) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.nth[first]
	if o == nil {
		o = new(occurrences)
		if t.nth == nil {
			t.nth = make(map[string]*occurrences)
		}
		t.nth[first] = o
	}
	if len(t.unknown) > 0 { // seldom
		for _, k := range o.keys {
			if _, ok := t.unknown[k]; ok {
				return k, o // until it is settled, this can only be its repeat
			}
		}
	}
	if last := len(o.free) - 1; last >= 0 {
		k := o.free[last]
		o.free = o.free[:last]
		return k, o
	}
	k := key(uint32(len(o.keys)))
	o.keys = append(o.keys, k)
	return k, o
}

// one runs a prepared call and records it.
func (t *Turn) one(ctx context.Context, p *prepared) Result {
	ctx = t.r.started(ctx, t, p)
	switch {
	case p.refused:
	case p.tool.Effect == Read:
		u := run{turn: t, tool: p.tool, key: p.key, args: p.args, worst: OutcomeNone}
		u.deadline, _ = ctx.Deadline()
		v := u.loop(withRun(apart(ctx, ""), &u), ctx)
		p.result, p.tries = t.r.result(&p.tool.Tool, p.call.ID, p.key, v, u.attempts), u.tries
	default:
		p.result, p.tries = t.act(ctx, p)
	}
	t.r.record(ctx, t, p)
	return p.result
}

// apart is ctx for the requests of a call that has no key of its own to send. If its turn runs inside a
// Keyed tool, that one's key is in ctx, and would make one of requests that are meant as
// several. Those of the call get a key that is derived from both; an empty call is another one each time.
func apart(ctx context.Context, call string) context.Context {
	if key, ok := oncehttp.KeyFromContext(ctx); !ok || !strings.HasPrefix(key, "tc1_") {
		return ctx
	}
	if call == "" {
		call = oncehttp.NewKey()
	}
	return oncehttp.WithAction(ctx, "tool call "+call)
}

type runKey struct{}

func withRun(ctx context.Context, u *run) context.Context {
	return context.WithValue(ctx, runKey{}, u)
}

// KeyFromContext returns the key of the call that a tool is run for. A [Keyed] tool that
// does not send its requests through an [oncehttp.Transport] hands it to its server
// itself. It is false outside of a tool.
func KeyFromContext(ctx context.Context) (string, bool) {
	u, ok := ctx.Value(runKey{}).(*run)
	if !ok {
		return "", false
	}
	sentKey(ctx)
	return u.key, true
}
