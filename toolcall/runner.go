package toolcall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/calmlog"
)

// A Runner runs tool calls. Scope must be set, and Store for any tool that is not
// Read; the other fields have useful zero values. Fill the fields in, [Runner.Register] the tools,
// then begin a [Turn] for each of the user's messages. A Runner is safe for
// concurrent use; it must not be copied, nor its fields be changed, after the first
// Register.
type Runner struct {
	// Scope names who acts, for instance "acme/support-agent": agents with the
	// same scope, turn, tool and arguments share their keys. Required.
	Scope string

	// Secret makes the keys an HMAC, so that who knows a call's arguments cannot
	// know its key. It must be the same in every process. Nil: plain SHA-256.
	Secret []byte

	// Store records the calls that change something. [oncehttp.MemoryStore] will
	// do where a restart may forget them; name it, it is no default.
	Store oncehttp.Store

	// Attempts is how often a tool is run for one call, the first time included.
	// Zero means 3; 1 never retries. What a Transport has repeated is not
	// repeated here.
	Attempts int

	// The pause before attempt n+1 is uniform in [0, min(BackoffCap,
	// BackoffBase·2ⁿ⁻¹)). Zero means 500 ms and 8 s.
	BackoffBase, BackoffCap time.Duration

	// MaxRetryAfter is the longest wait that a tool may ask for; if it asks
	// for more, the call ends. Zero means 30 s.
	MaxRetryAfter time.Duration

	// Settle is how long the first try of an Unsafe call must have been over
	// before a "no" of Tool.Verify counts. Zero means 60 s.
	Settle time.Duration

	// Lease, Keep and Wait are those of [oncehttp.Once]. Zero means 30 s, 24 h and 5 s.
	Lease, Keep, Wait time.Duration

	// MaxResult is how many bytes of a tool's output the model is given. What is
	// longer is cut, and the result says so. Zero means 64 KiB.
	MaxResult int

	// Rand is the source of the pauses, like [rand.Int64N], which nil means. It
	// must be safe for concurrent use.
	Rand func(n int64) int64

	// OnCall is told that a call begins, and returns the context that the tool runs
	// with and that OnRecord is given: ctx, or one made from it, for instance with a
	// span. It is called for calls that will not run too, and must be safe for
	// concurrent use.
	OnCall func(ctx context.Context, c Started) context.Context

	// OnRecord is given the [Record] of every call when its result is ready,
	// before Do returns. It must be safe for concurrent use. [JSONL] makes one.
	OnRecord func(context.Context, Record)

	// Run names this run of the program in its Records.
	Run string

	// Reveal lists, for a tool's name, the JSON pointers of arguments that
	// Records may show. All others are redacted.
	Reveal map[string][]string

	// RevealResults lets Records show what the tools returned, and RevealReasoning
	// the model's text, which often repeats what the arguments hide.
	RevealResults, RevealReasoning bool

	// Logger is told what an operator should know. Nil means slog.Default(). It
	// is never given arguments, results, whole keys or what an upstream said. A panic
	// of its handler is told on standard error and goes no further.
	Logger *slog.Logger

	mu    sync.RWMutex
	tools map[string]*registered
	order []*registered
}

// A registered tool and what runs it.
type registered struct {
	Tool
	strict oncehttp.Once // an orphan is refused
	rerun  oncehttp.Once // an orphan is run again

	evidence
}

// Register adds tools. It returns an error that names the tool and the field when one
// cannot work, and then adds none of them.
func (r *Runner) Register(tools ...Tool) error {
	if err := r.check(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make(map[string]bool, len(tools))
	for i := range tools {
		t := &tools[i]
		if err := t.check(); err != nil {
			return err
		}
		if r.tools[t.Name] != nil || seen[t.Name] {
			return fmt.Errorf("toolcall: tool %q: the name is taken", t.Name)
		}
		seen[t.Name] = true
		if t.Effect != Read && r.Store == nil {
			return fmt.Errorf("toolcall: tool %q: it is %v and Runner.Store is nil, so nothing would remember that it was run; set a Store (new(oncehttp.MemoryStore) if a restart may forget), or declare the tool Read if it changes nothing", t.Name, t.Effect)
		}
	}
	if r.tools == nil {
		r.tools = make(map[string]*registered)
	}
	for _, t := range tools {
		reg := &registered{Tool: t}
		for _, o := range [...]*oncehttp.Once{&reg.strict, &reg.rerun} {
			o.Store, o.Lease, o.Keep, o.Wait, o.Logger = r.Store, r.Lease, r.Keep, r.Wait, r.Logger
			o.Timeout = r.longest(&reg.Tool)
		}
		reg.rerun.Orphan = oncehttp.OrphanRerun
		r.tools[t.Name] = reg
		r.order = append(r.order, reg)
	}
	return nil
}

// longest is how long all attempts of a call can take, so that the claim's own
// timeout is never what ends them.
func (r *Runner) longest(t *Tool) time.Duration {
	pause := max(r.backoffCap(), r.maxRetryAfter()+time.Second)
	each := cmp.Or(t.Timeout, defaultTimeout) + grace + pause
	const most = 24 * time.Hour
	if n := time.Duration(r.attempts()); each < most/n {
		return each * n
	}
	return most
}

func (r *Runner) check() error {
	bad := func(field string) error { return errors.New("toolcall: Runner." + field + " is negative") }
	switch {
	case r.Scope == "":
		return errors.New("toolcall: Runner.Scope is empty, so its keys would be everybody's; name who acts")
	case r.Attempts < 0:
		return bad("Attempts")
	case r.BackoffBase < 0:
		return bad("BackoffBase")
	case r.BackoffCap < 0:
		return bad("BackoffCap")
	case r.MaxRetryAfter < 0:
		return bad("MaxRetryAfter")
	case r.Settle < 0:
		return bad("Settle")
	case r.Lease < 0:
		return bad("Lease")
	case r.Keep < 0:
		return bad("Keep")
	case r.Wait < 0:
		return bad("Wait")
	case r.MaxResult < 0:
		return bad("MaxResult")
	}
	return nil
}

// Drain waits until no call that changes something is running and none is left to be
// recorded, or until ctx ends. Call it at shutdown, when nothing calls Do any more: a
// tool that was given up on may still be at work, and what it comes to should be
// recorded.
func (r *Runner) Drain(ctx context.Context) error {
	r.mu.RLock()
	tools := r.order
	r.mu.RUnlock()
	for _, t := range tools {
		for _, o := range [...]*oncehttp.Once{&t.strict, &t.rerun} {
			if err := o.Drain(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Runner) tool(name string) *registered {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.tools[name]
}

func (r *Runner) attempts() int                { return cmp.Or(r.Attempts, 3) }
func (r *Runner) backoffBase() time.Duration   { return cmp.Or(r.BackoffBase, 500*time.Millisecond) }
func (r *Runner) backoffCap() time.Duration    { return cmp.Or(r.BackoffCap, 8*time.Second) }
func (r *Runner) maxRetryAfter() time.Duration { return cmp.Or(r.MaxRetryAfter, 30*time.Second) }
func (r *Runner) settle() time.Duration        { return cmp.Or(r.Settle, time.Minute) }
func (r *Runner) lease() time.Duration         { return cmp.Or(r.Lease, 30*time.Second) }
func (r *Runner) keep() time.Duration          { return cmp.Or(r.Keep, 24*time.Hour) }
func (r *Runner) wait() time.Duration          { return cmp.Or(r.Wait, 5*time.Second) }
func (r *Runner) maxResult() int               { return cmp.Or(r.MaxResult, 64<<10) }

func (r *Runner) random(n int64) int64 {
	if r.Rand != nil {
		return r.Rand(n)
	}
	return rand.Int64N(n)
}

func (r *Runner) log() *slog.Logger { return calmlog.Logger(r.Logger) }

// pause is the wait after attempt n.
func (r *Runner) pause(n int, asked time.Duration) time.Duration {
	if asked > 0 {
		// Never earlier than told, and not all at once.
		return asked + time.Duration(r.random(int64(min(asked/10, time.Second))+1))
	}
	top := r.backoffCap()
	// Shift the cap right, not the base left, which would overflow.
	if base := r.backoffBase(); base <= top>>(n-1) {
		top = base << (n - 1)
	}
	return time.Duration(r.random(int64(top)))
}
