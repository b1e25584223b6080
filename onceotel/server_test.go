package onceotel_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
)

func TestAServersSpanTellsWhatBecameOfTheKey(t *testing.T) {
	l := newLens(t)
	var outcomes int
	m := &oncehttp.Middleware{
		Store: new(oncehttp.MemoryStore), Required: func(*http.Request) bool { return true }, Logger: slog.New(slog.DiscardHandler),
		OnOutcome: func(*http.Request, oncehttp.Outcome) { outcomes++ },
	}
	l.Middleware(m)
	inner := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := l.TracerProvider.Tracer("server").Start(r.Context(), r.Method)
		defer span.End()
		inner.ServeHTTP(w, r.WithContext(ctx))
	})
	post := func(key, body string) {
		r := httptest.NewRequest("POST", "/refunds", strings.NewReader(body))
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	post("canary-key", "{}")
	post("canary-key", "{}")
	post("canary-key", `{"amount":1}`)
	post("", "{}")
	want := []struct{ outcome, refusal, recorded string }{
		{"ran", "", "true"}, {"replayed", "", "true"}, {"refused", "key-reused", "false"}, {"refused", "missing-key", "false"},
	}
	for i, span := range l.spans.Ended() {
		a := attrs(span)
		if a["oncehttp.outcome"] != want[i].outcome || a["oncehttp.refusal"] != want[i].refusal || a["oncehttp.recorded"] != want[i].recorded {
			t.Errorf("request %d: %v, want %v", i+1, a, want[i])
		}
		if (i < 3) != (a["oncehttp.record"] != "") {
			t.Errorf("request %d: record %q", i+1, a["oncehttp.record"])
		}
	}
	if outcomes != 4 {
		t.Errorf("the OnOutcome that was set before was called %d times, want 4", outcomes)
	}
	l.has("oncehttp.server.request.duration", "oncehttp.outcome=ran", "http.response.status_code=201", " 1")
	l.has("oncehttp.server.request.duration", "oncehttp.outcome=replayed", " 1")
	l.has("oncehttp.server.request.duration", "oncehttp.refusal=key-reused", "http.response.status_code=422", " 1")
	if all := l.dump(); strings.Contains(all, "canary") {
		t.Errorf("exported:\n%s", all)
	}
}

func TestAToolCallIsASpanAboveItsRequests(t *testing.T) {
	fails := 1
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if fails > 0 {
			fails--
			w.WriteHeader(503)
			return
		}
		fmt.Fprint(w, `{"refunded":true}`)
	}))
	defer s.Close()
	l := newLens(t)
	client := &http.Client{Transport: l.Transport(quick())}
	var started []string
	r := &toolcall.Runner{
		Scope: "test", Store: new(oncehttp.MemoryStore), Logger: slog.New(slog.DiscardHandler),
		OnCall: func(ctx context.Context, c toolcall.Started) context.Context {
			started = append(started, c.Tool)
			return ctx
		},
	}
	l.Runner(r)
	err := r.Register(toolcall.Tool{
		Name: "refund_order", Effect: toolcall.Keyed, Timeout: 10 * time.Second,
		Call: func(ctx context.Context, args json.RawMessage) (any, error) {
			req, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/refunds", strings.NewReader(string(args)))
			if err != nil {
				return nil, err
			}
			resp, err := client.Do(req)
			return toolcall.HTTP(resp, err)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	turn := r.Turn("turn-1", toolcall.Budget{})
	call := toolcall.Call{Tool: "refund_order", ID: "call_1", Args: json.RawMessage(`{"order":"canary-order"}`), Reasoning: "canary-reasoning"}
	first := turn.Do(t.Context(), call)[0]
	again := turn.Do(t.Context(), call)[0]
	unknown := turn.Do(t.Context(), toolcall.Call{Tool: "canary-tool"})[0]
	if first.Status != toolcall.StatusOK || !again.Replayed || unknown.Status != toolcall.StatusFailed {
		t.Fatalf("results: %s, %s, %s", first.JSON(), again.JSON(), unknown.JSON())
	}
	var tools, attempts []trace.ReadOnlySpan
	for _, span := range l.spans.Ended() {
		if strings.HasPrefix(span.Name(), "execute_tool ") {
			tools = append(tools, span)
		} else {
			attempts = append(attempts, span)
		}
	}
	if len(tools) != 3 || len(attempts) != 2 {
		t.Fatalf("%d tool spans and %d attempts, want 3 and 2", len(tools), len(attempts))
	}
	for i, span := range attempts {
		if span.Parent().SpanID() != tools[0].SpanContext().SpanID() {
			t.Errorf("attempt %d is not a child of its tool call", i+1)
		}
	}
	a := attrs(tools[0])
	for k, v := range map[string]string{
		"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "refund_order", "gen_ai.tool.type": "function", "gen_ai.tool.call.id": "call_1",
		"oncehttp.tool.turn": "turn-1", "oncehttp.tool.status": "ok", "oncehttp.outcome": "applied", "oncehttp.tool.replayed": "false", "oncehttp.tool.attempts": "1",
	} {
		if a[k] != v {
			t.Errorf("%s is %q, want %q", k, a[k], v)
		}
	}
	if tools[0].Name() != "execute_tool refund_order" {
		t.Errorf("the span is called %q", tools[0].Name())
	}
	if attrs(tools[1])["oncehttp.tool.replayed"] != "true" {
		t.Errorf("the repeat's span: %v", attrs(tools[1]))
	}
	if b := attrs(tools[2]); tools[2].Status().Code != codes.Error || b["error.type"] != "bad_arguments" || b["gen_ai.tool.call.id"] != "" {
		t.Errorf("the unknown tool's span: %v, %v", tools[2].Status(), b)
	}
	if len(started) != 3 {
		t.Errorf("the OnCall that was set before was told of %q", started)
	}
	l.has("oncehttp.tool.call.duration", "gen_ai.tool.name=refund_order", "oncehttp.tool.replayed=false", " 1")
	l.has("oncehttp.tool.call.duration", "error.type=bad_arguments", " 1")
	if all := l.dump(); strings.Contains(all, "canary") || strings.Contains(all, first.Key) {
		t.Errorf("exported:\n%s", all)
	}
}
