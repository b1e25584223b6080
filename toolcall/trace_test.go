package toolcall

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// Canaries stand where secrets stand. None may appear in a sink that is not meant for
// them: the trace, the log, and, but for what a tool returns, what the model is given.
func TestNoCanaryAppearsInAnySink(t *testing.T) {
	const (
		inArgs = iota
		inMemberName
		inNestedName
		inReasoning
		inPlainError
		inTypedError
		inPanic
		inGoexitError
		inMarshaller
		inResult
		inDetails
		inToolName
		n
	)
	canary := func(i int) string { return fmt.Sprintf("CANARY-%02d-%d", i, 7919*(i+3)) }
	synctest.Test(t, func(t *testing.T) {
		var trace, log bytes.Buffer
		r := &Runner{Scope: "s", Store: new(oncehttp.MemoryStore), Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			OnRecord: JSONL(&trace), Reveal: map[string][]string{"plain": {"/shown"}}}
		tool := func(name string, effect Effect, f func() (any, error)) Tool {
			return Tool{Name: name, Effect: effect, Timeout: time.Second, Call: func(context.Context, json.RawMessage) (any, error) { return f() }}
		}
		if err := r.Register(
			tool("plain", Unsafe, func() (any, error) { return nil, errors.New(canary(inPlainError)) }),
			tool("typed", Read, func() (any, error) { return nil, Transient(errors.New(canary(inTypedError))) }),
			tool("panics", Keyed, func() (any, error) { panic(canary(inPanic)) }),
			tool("exits", Idempotent, func() (any, error) { runtime.Goexit(); return nil, errors.New(canary(inGoexitError)) }),
			tool("marshals", Read, func() (any, error) { return leaky(canary(inMarshaller)), nil }),
			tool("returns", Unsafe, func() (any, error) { return canary(inResult), nil }),
			tool("refuses", Unsafe, func() (any, error) { return nil, BadArguments(canary(inDetails)) }),
		); err != nil {
			t.Fatal(err)
		}
		turn := r.Turn("u", Budget{})
		args := fmt.Sprintf(`{"card":%q,%q:1,"o":{%q:2},"shown":"visible"}`, canary(inArgs), canary(inMemberName), canary(inNestedName))
		var given strings.Builder
		for _, name := range []string{"plain", "typed", "panics", "exits", "marshals", "returns", "refuses", canary(inToolName)} {
			for _, args := range []string{args, args, args[1:]} { // the last is no JSON
				got := turn.Do(t.Context(), Call{Tool: name, ID: "id", Args: []byte(args), Reasoning: canary(inReasoning)})[0]
				b := got.JSON()
				if !json.Valid(b) {
					t.Errorf("%s: the model is given %s", name, b)
				}
				if name != "returns" && name != "refuses" {
					given.Write(b)
				}
			}
		}
		for i := range n {
			for sink, text := range map[string]string{"trace": trace.String(), "log": log.String(), "model": given.String()} {
				if strings.Contains(text, canary(i)) {
					t.Errorf("canary %d is in the %s: %s", i, sink, text)
				}
			}
		}
		if !strings.Contains(trace.String(), `"args":{"/shown":"visible","redacted":3}`) {
			t.Errorf("what is revealed is not in the trace: %s", trace.String())
		}
		if !strings.Contains(log.String(), "a tool panicked") {
			t.Errorf("the panic is not in the log: %s", log.String())
		}
	})
}

type leaky string

func (l leaky) MarshalJSON() ([]byte, error) { return nil, errors.New(string(l)) }

func TestARecordTellsTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, reveal := range []bool{false, true} {
			var buf bytes.Buffer
			runs := 0
			r := &Runner{Scope: "s", Run: "run-1", OnRecord: JSONL(&buf), RevealResults: reveal, RevealReasoning: reveal, Logger: quiet(), Reveal: map[string][]string{"x": {"/a", "/b/0", "nonsense"}}}
			if err := r.Register(Tool{Name: "x", Effect: Read, Call: func(context.Context, json.RawMessage) (any, error) {
				if runs++; runs == 1 {
					time.Sleep(time.Second)
					return nil, Transient(nil)
				}
				return "found", nil
			}}); err != nil {
				t.Fatal(err)
			}
			got := r.Turn("u", Budget{}).Do(t.Context(), Call{Tool: "x", ID: "call_1", Args: []byte(`{"a":9007199254740993,"b":[true],"c":"hidden"}`), Reasoning: "because"})[0]
			if n := strings.Count(buf.String(), "\n"); n != 1 {
				t.Fatalf("%d lines", n)
			}
			var rec Record
			if err := json.Unmarshal(buf.Bytes(), &rec); err != nil {
				t.Fatal(err)
			}
			exact := got.JSON()
			sum := sha256.Sum256(exact)
			if rec.Run != "run-1" || rec.Turn != "u" || rec.Tool != "x" || rec.CallID != "call_1" || rec.Key != got.Key || rec.SHA256 != hex.EncodeToString(sum[:]) {
				t.Errorf("got %+v", rec)
			}
			if want := `{"/a":9007199254740993,"/b/0":true,"redacted":2}`; string(rec.Args) != want {
				t.Errorf("args: got %s, want %s", rec.Args, want)
			}
			if len(rec.Attempts) != 2 || rec.Attempts[0].Duration != time.Second || rec.Attempts[0].ErrorType != TypeTransient || rec.Latency != time.Second+rec.Attempts[0].Pause {
				t.Errorf("attempts: got %+v, latency %v", rec.Attempts, rec.Latency)
			}
			if reveal && (string(rec.Returned) != string(exact) || rec.Reasoning != "because") {
				t.Errorf("revealed: got %s and %s, want %s", rec.Returned, rec.Reasoning, exact)
			}
			if !reveal && (strings.Contains(string(rec.Returned), "found") || rec.Reasoning != "[redacted, 7 bytes]") {
				t.Errorf("not revealed: got %s and %s", rec.Returned, rec.Reasoning)
			}
		}
	})
}

func TestAHookThatPanicsIsContained(t *testing.T) {
	r := newRunner(t, nil, Tool{Name: "x", Effect: Read, Call: func(context.Context, json.RawMessage) (any, error) { return 1, nil }})
	r.OnRecord = func(context.Context, Record) { panic("x") }
	r.OnCall = func(context.Context, Started) context.Context { panic("x") }
	if got := r.Turn("u", Budget{}).Do(t.Context(), call("x", `{}`), call("x", `{}`)); told(got[1]) != "ok  none use_result" {
		t.Errorf("got %s", told(got[1]))
	}
}

func TestTheContextOfOnCallReachesToolAndRecord(t *testing.T) {
	type mark struct{}
	for _, effect := range []Effect{Read, Keyed} {
		var inTool, inRecord any
		r := newRunner(t, new(oncehttp.MemoryStore), Tool{Name: "x", Effect: effect, Timeout: time.Second, Call: func(ctx context.Context, _ json.RawMessage) (any, error) {
			inTool = ctx.Value(mark{})
			return 1, nil
		}})
		var started []Started
		r.OnCall = func(ctx context.Context, c Started) context.Context {
			if started = append(started, c); c.Tool != "x" {
				return nil // as good as ctx
			}
			return context.WithValue(ctx, mark{}, c.CallID)
		}
		r.OnRecord = func(ctx context.Context, _ Record) { inRecord = ctx.Value(mark{}) }
		turn := r.Turn("u", Budget{})
		turn.Do(t.Context(), Call{Tool: "x", ID: "c1"})
		if inTool != "c1" || inRecord != "c1" {
			t.Errorf("%v: the tool's context has %v and the record's %v, want c1", effect, inTool, inRecord)
		}
		turn.Do(t.Context(), Call{Tool: "made up", ID: "c2"})
		if len(started) != 2 || started[0].Turn != "u" || started[0].Time.IsZero() || started[1].Tool != "[unknown tool]" {
			t.Errorf("%v: OnCall was told of %+v", effect, started)
		}
	}
}

func TestTheAuditFindsWhatIsNotSafe(t *testing.T) {
	f := func(context.Context, json.RawMessage) (any, error) { return nil, nil }
	r := newRunner(t, new(oncehttp.MemoryStore),
		Tool{Name: "search", Effect: Read, Call: f},
		Tool{Name: "set_address", Effect: Idempotent, Timeout: time.Second, Call: f, Note: "PUT"},
		Tool{Name: "refund", Effect: Keyed, Timeout: time.Second, Call: f},
		Tool{Name: "charge", Effect: Keyed, Timeout: time.Second, Call: func(ctx context.Context, _ json.RawMessage) (any, error) {
			_, ok := KeyFromContext(ctx)
			return ok, nil
		}},
		Tool{Name: "mail", Timeout: time.Second, Call: f, Note: "the provider has no keys"},
		Tool{Name: "forgotten", Call: f},
	)
	if got := r.Audit()[2].Problem; got != "" {
		t.Errorf("a Keyed tool that was never run: %s", got)
	}
	turn := r.Turn("u", Budget{})
	turn.Do(t.Context(), call("refund", `{}`), call("charge", `{}`))
	var problems recorder
	audit := r.Audit()
	audit.Check(&problems)
	if len(problems) != 2 || !strings.Contains(problems[0], `"refund"`) || !strings.Contains(problems[0], "key was never sent") ||
		!strings.Contains(problems[1], "not declared") || !strings.Contains(problems[1], "no Timeout") {
		t.Errorf("got %q", problems)
	}
	const want = `TOOL         EFFECT      REPEAT         REASON                                                                    PROBLEM
search       read        safe           changes nothing                                                           -
set_address  idempotent  safe           a second run changes nothing more: PUT                                    -
refund       keyed       safe with key  its server acts once for a key                                            it was run and its key was never sent: use an oncehttp.Transport and toolcall.HTTP, or toolcall.KeyFromContext
charge       keyed       safe with key  its server acts once for a key                                            -
mail         unsafe      unsafe         runs once; an unknown outcome stays unknown: the provider has no keys     -
forgotten    unsafe      unsafe         runs once; an unknown outcome stays unknown                               its effect is not declared: set Effect, or say in Note why it is Unsafe; it changes something and has no Timeout
`
	if got := audit.String(); squeeze(got) != squeeze(want) {
		t.Errorf("got\n%s", got)
	}
	if _, ok := KeyFromContext(t.Context()); ok {
		t.Error("a key outside of a tool")
	}
}

func squeeze(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.Join(strings.Fields(l), " ")
	}
	return strings.Join(lines, "\n")
}

type recorder []string

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	*r = append(*r, fmt.Sprintf(format, args...))
}
