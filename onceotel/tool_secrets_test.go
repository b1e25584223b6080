package onceotel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
)

// A canary stands wherever a secret may stand in a tool call. None is exported, however the
// call ends, and an id of any length is cut.
func TestNoSecretOfAToolCallIsExported(t *testing.T) {
	l := newLens(t)
	n := 0
	canary := func() string { n++; return fmt.Sprintf("canary-%02d", n) }
	inArgs, inName, inNested, inText, inTool := canary(), canary(), canary(), canary(), canary()
	plain, typed, panicked, cause, result, part, details := canary(), canary(), canary(), canary(), canary(), canary(), canary()
	ends := map[string]func() (any, error){
		"plain":    func() (any, error) { return nil, errors.New(plain) },
		"typed":    func() (any, error) { return nil, toolcall.Transient(errors.New(typed)) },
		"panics":   func() (any, error) { panic(panicked) },
		"wraps":    func() (any, error) { return nil, fmt.Errorf("%s: %w", cause, toolcall.Permanent(nil)) },
		"returns":  func() (any, error) { return result, nil },
		"half":     func() (any, error) { return nil, toolcall.Degraded(part, nil) },
		"explains": func() (any, error) { return nil, toolcall.BadArguments(details) },
	}
	r := &toolcall.Runner{Scope: "test", Store: new(oncehttp.MemoryStore), Logger: slog.New(slog.DiscardHandler), BackoffBase: time.Millisecond}
	l.Runner(r)
	for name, end := range ends {
		for _, effect := range []toolcall.Effect{toolcall.Unsafe, toolcall.Keyed, toolcall.Idempotent, toolcall.Read} {
			if err := r.Register(toolcall.Tool{Name: fmt.Sprint(name, "_", effect), Effect: effect, Timeout: time.Minute, Call: func(context.Context, json.RawMessage) (any, error) { return end() }}); err != nil {
				t.Fatal(err)
			}
		}
	}
	args := fmt.Sprintf(`{"a":%q,%q:{%q:1}}`, inArgs, inName, inNested)
	turn := r.Turn("turn-1", toolcall.Budget{})
	for name := range ends {
		for _, effect := range []string{"unsafe", "keyed", "idempotent", "read"} {
			for _, args := range []string{args, args, args[1:]} {
				turn.Do(t.Context(), toolcall.Call{Tool: name + "_" + effect, ID: strings.Repeat("i", 4096), Args: json.RawMessage(args), Reasoning: inText})
			}
		}
	}
	turn.Do(t.Context(), toolcall.Call{Tool: inTool, Args: json.RawMessage(args), Reasoning: inText})
	if spans := len(l.spans.Ended()); n != 12 || spans != 7*4*3+1 {
		t.Errorf("%d canaries and %d spans, want 12 and 85", n, spans)
	}
	all := l.dump()
	if strings.Contains(all, "canary") {
		t.Errorf("exported:\n%s", all)
	}
	if strings.Contains(all, strings.Repeat("i", 129)) {
		t.Error("a provider's id is exported whole, whatever its length")
	}
}
