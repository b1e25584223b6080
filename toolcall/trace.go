package toolcall

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp/internal/calmlog"
	"github.com/oncehttp/oncehttp/internal/canon"
)

// A Record tells of one call, fit to be kept. Arguments are redacted but for what
// [Runner.Reveal] lists, and upstream errors appear by their kind only. The key is
// whole, since it is what an operator looks a call up with; without Runner.Secret it is
// a digest of the arguments, which a guess can be checked against.
type Record struct {
	Time      time.Time       `json:"time"`
	Run       string          `json:"run,omitempty"`
	Turn      string          `json:"turn"`
	Tool      string          `json:"tool"`
	CallID    string          `json:"call_id,omitempty"` // the provider's, at most 128 bytes of it
	Key       string          `json:"key,omitempty"`
	Args      json.RawMessage `json:"args"`                // what is revealed, by pointer, and how much is not
	Reasoning string          `json:"reasoning,omitempty"` // redacted unless Runner.RevealReasoning
	Attempts  []Try           `json:"attempts"`            // of this call: none for a replay
	Latency   time.Duration   `json:"latency_ns"`
	Status    Status          `json:"status"`
	ErrorType ErrorType       `json:"error_type,omitempty"`
	Outcome   Outcome         `json:"outcome"`
	Replayed  bool            `json:"replayed"`

	// Returned is what the model was given: the exact bytes with
	// Runner.RevealResults, and otherwise with its result and details redacted.
	// SHA256 is the digest of the exact bytes in any case, so that a stored
	// conversation can be compared.
	Returned json.RawMessage `json:"returned"`
	SHA256   string          `json:"returned_sha256"`
}

// A Try is one run of a tool's function.
type Try struct {
	N         int           `json:"n"`
	Start     time.Time     `json:"start"`
	Duration  time.Duration `json:"duration_ns"`
	Pause     time.Duration `json:"pause_ns,omitempty"` // after it
	ErrorType ErrorType     `json:"error_type,omitempty"`
	Outcome   Outcome       `json:"outcome"`
	Status    int           `json:"status,omitempty"` // of the last response, if it went over a Transport
	Sends     int           `json:"sends,omitempty"`  // the Transport's attempts
}

// A Started is a call of which there is no result yet. Nothing in it comes from the model
// but the provider's CallID.
type Started struct {
	Time   time.Time
	Turn   string
	Tool   string // "[unknown tool]" for a name that is not registered
	CallID string // at most 128 bytes of it
}

// started tells OnCall.
func (r *Runner) started(ctx context.Context, t *Turn, p *prepared) (c context.Context) {
	if r.OnCall == nil {
		return ctx
	}
	defer func() {
		if v := recover(); v != nil {
			r.log().ErrorContext(ctx, "toolcall: Runner.OnCall panicked", "type", fmt.Sprintf("%T", v))
			c = ctx
		}
	}()
	if c = r.OnCall(ctx, Started{Time: p.start, Turn: t.id, Tool: registeredName(p), CallID: clip(p.call.ID, maxID)}); c == nil {
		return ctx
	}
	return c
}

// JSONL returns a [Runner.OnRecord] that writes each Record as one line of JSON, with
// one Write, one after another. The first error of w is logged; later ones are not.
func JSONL(w io.Writer) func(context.Context, Record) {
	var mu sync.Mutex
	var warned bool
	return func(ctx context.Context, rec Record) {
		line, err := marshal(rec)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			_, err = w.Write(append(line, '\n'))
		}
		if err != nil && !warned {
			warned = true
			calmlog.Logger(nil).WarnContext(ctx, "toolcall: a record of a call cannot be written; further ones may be lost too", "err", err)
		}
	}
}

// record hands a call's Record on, and logs it.
func (r *Runner) record(ctx context.Context, t *Turn, p *prepared) {
	res := &p.result
	if log := r.log(); log.Enabled(ctx, slog.LevelDebug) {
		log.LogAttrs(ctx, slog.LevelDebug, "toolcall: call",
			slog.String("tool", registeredName(p)), slog.String("status", string(res.Status)), slog.String("error_type", string(res.ErrorType)),
			slog.String("outcome", string(res.Outcome)), slog.Bool("replayed", res.Replayed), slog.Int("attempts", res.Attempts),
			slog.Duration("latency", time.Since(p.start)), slog.String("key", shortKey(res.Key)))
	}
	if r.OnRecord == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			r.log().ErrorContext(ctx, "toolcall: Runner.OnRecord panicked", "type", fmt.Sprintf("%T", v))
		}
	}()
	exact := res.JSON()
	sum := sha256.Sum256(exact)
	rec := Record{
		Time: p.start, Run: r.Run, Turn: t.id, Tool: registeredName(p), CallID: clip(p.call.ID, maxID), Key: res.Key,
		Args: redact(p.call.Args, r.Reveal[p.call.Tool]), Attempts: p.tries, Latency: time.Since(p.start),
		Status: res.Status, ErrorType: res.ErrorType, Outcome: res.Outcome, Replayed: res.Replayed,
		Returned: exact, SHA256: hex.EncodeToString(sum[:]),
	}
	if rec.Attempts == nil {
		rec.Attempts = []Try{}
	}
	switch {
	case p.call.Reasoning == "":
	case r.RevealReasoning:
		rec.Reasoning = p.call.Reasoning
	default:
		rec.Reasoning = redacted(len(p.call.Reasoning))
	}
	if !r.RevealResults {
		shown := *res
		if len(res.Result) > 0 {
			shown.Result = appendString(nil, redacted(len(res.Result)))
		}
		if res.Details != "" {
			shown.Details = redacted(len(res.Details))
		}
		rec.Returned = shown.JSON()
	}
	r.OnRecord(ctx, rec)
}

// registeredName is the tool's name. One that the model made up can be anything.
func registeredName(p *prepared) string {
	if p.tool == nil {
		return "[unknown tool]"
	}
	return p.tool.Name
}

func shortKey(key string) string {
	if len(key) <= 12 {
		return key
	}
	return key[:12] + "…"
}

func redacted(n int) string { return "[redacted, " + strconv.Itoa(n) + " bytes]" }

// redact shows what reveal points to, and how many members are not shown. The names
// of those are the model's words too.
func redact(args json.RawMessage, reveal []string) json.RawMessage {
	if len(args) > maxArgs {
		return appendString(nil, redacted(len(args)))
	}
	c, err := canon.Append(nil, args)
	if err != nil || len(c) == 0 || c[0] != '{' {
		return appendString(nil, redacted(len(args)))
	}
	doc := decode(c).(map[string]any)
	hidden := len(doc)
	shown := make(map[string]any)
	for _, p := range reveal {
		if !validPointer(p) {
			continue
		}
		steps := pointerSteps(p)
		v, ok := lookup(doc, steps)
		if !ok {
			continue
		}
		if _, twice := shown[p]; len(steps) == 1 && !twice {
			hidden--
		}
		shown[p] = v
	}
	if hidden > 0 {
		shown["redacted"] = hidden
	}
	b, err := marshal(shown)
	if err != nil {
		return appendString(nil, redacted(len(args)))
	}
	return b
}
