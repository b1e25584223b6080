package onceanthropic_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go/v2"

	"github.com/oncehttp/oncehttp"
	onceanthropic "github.com/oncehttp/oncehttp/adapters/anthropic"
	"github.com/oncehttp/oncehttp/internal/history"
	"github.com/oncehttp/oncehttp/internal/modeltest"
	"github.com/oncehttp/oncehttp/toolcall"
)

// talk plays one message of the model, and returns the calls that a tool saw and the second request.
func talk(t *testing.T, stream bool, say modeltest.Answer) (ran []string, body string) {
	t.Helper()
	model := &modeltest.Server{API: history.Messages, Next: func(n int, _ bool) modeltest.Answer {
		if n == 1 {
			return say
		}
		return modeltest.Answer{Text: "Done."}
	}}
	srv := httptest.NewServer(model)
	defer srv.Close()
	var mu sync.Mutex
	r := &toolcall.Runner{Scope: "acme/test", Store: new(oncehttp.MemoryStore)}
	if err := r.Register(toolcall.Tool{Name: "pay", Effect: toolcall.Unsafe, Timeout: time.Minute, Call: func(_ context.Context, args json.RawMessage) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, string(args))
		return "paid", nil
	}}); err != nil {
		t.Fatal(err)
	}
	if err := newAgent(newClient(&oncehttp.Transport{}, srv.URL)).Say(t.Context(), r.Turn("u", toolcall.Budget{}), "refund A-17", stream); err != nil {
		t.Fatal(err)
	}
	for _, err := range model.Errs() {
		t.Error(err)
	}
	return ran, string(model.Bodies()[1])
}

func each(t *testing.T, f func(t *testing.T, stream bool)) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("streamed %v", stream), func(t *testing.T) { f(t, stream) })
	}
}

// Decoded into a float64 these would be other numbers, and one call.
func TestTheInputIsPassedOnByteForByte(t *testing.T) {
	each(t, func(t *testing.T, stream bool) {
		inputs := []string{`{"n":9007199254740993,"x":1.0}`, `{"n":9007199254740992,"x":1.0}`}
		ran, body := talk(t, stream, modeltest.Answer{Calls: []modeltest.Call{{ID: "toolu_1", Name: "pay", Args: inputs[0]}, {ID: "toolu_2", Name: "pay", Args: inputs[1]}}})
		if len(ran) != 2 {
			t.Errorf("the tool ran for %q, want both", ran)
		}
		for _, in := range inputs {
			if !strings.Contains(strings.Join(ran, " "), in) || !strings.Contains(body, in) {
				t.Errorf("%s is not among what the tool got, %q, and in the conversation:\n%s", in, ran, body)
			}
		}
	})
}

// The SDK makes an input that a stream cut off into {}.
func TestACallThatWasCutOffIsNotRun(t *testing.T) {
	each(t, func(t *testing.T, stream bool) {
		for _, input := range []string{"", `{`, `{"n":1`} {
			whole := modeltest.Call{ID: "toolu_1", Name: "pay", Args: `{}`}
			ran, body := talk(t, stream, modeltest.Answer{Cut: true, Calls: []modeltest.Call{whole, {ID: "toolu_2", Name: "pay", Args: input}}})
			if len(ran) != 1 || ran[0] != "{}" || !strings.Contains(body, "bad_arguments") || !strings.Contains(body, `"is_error":true`) {
				t.Errorf("cut after %q: the tool ran for %q, want the whole call only", input, ran)
			}
		}
		ran, body := talk(t, stream, modeltest.Answer{Calls: []modeltest.Call{{ID: "toolu_1", Name: "pay", Args: `{}`}}})
		if len(ran) != 1 || !strings.Contains(body, `"is_error":false`) {
			t.Errorf("a call without arguments: the tool ran for %q", ran)
		}
	})
}

func TestIDsAreNotTrusted(t *testing.T) {
	each(t, func(t *testing.T, stream bool) {
		var calls []modeltest.Call
		for i, id := range []string{"", "toolu_1", "toolu_1", "", "functions.pay:0", strings.Repeat("x", 65)} {
			calls = append(calls, modeltest.Call{ID: id, Name: "pay", Args: fmt.Sprintf(`{"n":%d}`, i)})
		}
		if ran, _ := talk(t, stream, modeltest.Answer{Calls: calls}); len(ran) != len(calls) {
			t.Errorf("%d of %d calls were run", len(ran), len(calls))
		}
	})
}

func TestToolsAreWithheldOnceTheBudgetIsUsedUp(t *testing.T) {
	r := &toolcall.Runner{Scope: "acme/test"}
	open, used := r.Turn("u", toolcall.Budget{Tokens: 10}), r.Turn("u", toolcall.Budget{Tokens: 10})
	used.Spend(10)
	params := newAgent(anthropic.Client{}).params
	bare := params
	bare.Tools = nil
	for _, row := range []struct {
		what    string
		turn    *toolcall.Turn
		params  anthropic.MessageNewParams
		closing bool
		none    bool
	}{
		{"budget is left", open, params, false, false},
		{"it is used up", used, params, true, true},
		{"used up, but there are no tools, for which the API takes no choice", used, bare, true, false},
	} {
		got, closing := onceanthropic.MessageParams(row.turn, row.params)
		b, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if closing != row.closing || strings.Contains(string(b), `"tool_choice":{"type":"none"}`) != row.none || len(got.Tools) != len(row.params.Tools) {
			t.Errorf("%s: closing %v, sent %s", row.what, closing, b)
		}
	}
	if params.ToolChoice.OfNone != nil {
		t.Error("the caller's own params were changed")
	}
}

// Blocks of the API's own tools are kept and are nobody's to answer. The toolset of a call is named again.
func TestOnlyToolUseIsAnswered(t *testing.T) {
	var m anthropic.Message
	if err := json.Unmarshal([]byte(`{"role":"assistant","stop_reason":"tool_use","content":[
		{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":""},
		{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"q"}},
		{"type":"tool_use","id":"toolu_1","name":"pay","input":{"n":1},"toolset_name":"bank"}]}`), &m); err != nil {
		t.Fatal(err)
	}
	messages, calls := onceanthropic.AppendMessage(nil, &m)
	if len(calls) != 1 || calls[0].Tool != "pay" || calls[0].Reasoning != "hm" || len(messages) != 1 || len(messages[0].OfAssistant.Content) != 3 {
		t.Errorf("got %+v and %d messages", calls, len(messages))
	}
	b, err := json.Marshal(onceanthropic.AppendResults(messages, []toolcall.Result{{ID: "toolu_1", Status: toolcall.StatusFailed}}))
	if err != nil || strings.Count(string(b), `"toolset_name":"bank"`) != 2 || !strings.Contains(string(b), `"is_error":true`) {
		t.Errorf("the conversation is %s, %v", b, err)
	}
	messages, calls = onceanthropic.AppendMessage(nil, &anthropic.Message{})
	if messages = onceanthropic.AppendResults(messages, nil); len(messages) != 0 || len(calls) != 0 {
		t.Errorf("an empty answer: %d messages, %d calls", len(messages), len(calls))
	}
}

func TestTheTransportAloneRepeats(t *testing.T) {
	for _, attempts := range []int{1, 3} {
		var keys []string
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			keys = append(keys, r.Header.Get("Idempotency-Key"))
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		rt := &oncehttp.Transport{Attempts: attempts, BackoffBase: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
		client := newClient(rt, srv.URL)
		_, err := client.Messages.New(t.Context(), newAgent(client).params)
		srv.Close()
		if err == nil || len(keys) != attempts || keys[0] == "" || keys[0] != keys[len(keys)-1] {
			t.Errorf("%d attempts allowed: sent %q, %v", attempts, keys, err)
		}
	}
}

// A sub-agent calls its model inside a tool, more than once.
func TestAModelInsideAToolDoesNotTakeTheToolsKey(t *testing.T) {
	var keys []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"role":"assistant","content":[{"type":"text","text":"hm"}]}`)
	}))
	defer srv.Close()
	client := newClient(&oncehttp.Transport{}, srv.URL)
	r := &toolcall.Runner{Scope: "acme/test", Store: new(oncehttp.MemoryStore)}
	if err := r.Register(toolcall.Tool{Name: "research", Effect: toolcall.Keyed, Timeout: time.Minute, Call: func(ctx context.Context, _ json.RawMessage) (any, error) {
		for _, text := range []string{"one", "two", "one"} {
			params := newAgent(client).params
			params.Messages = []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(text))}
			if _, err := client.Messages.New(ctx, params); err != nil {
				return nil, err
			}
		}
		return "done", nil
	}}); err != nil {
		t.Fatal(err)
	}
	got := r.Turn("u", toolcall.Budget{}).Do(t.Context(), toolcall.Call{Tool: "research"})[0]
	if got.Status != toolcall.StatusOK {
		t.Errorf("got %s: %v", got.Status, got.Err)
	}
	if len(keys) != 3 || keys[0] == keys[1] || keys[0] != keys[2] || keys[0] == got.Key {
		t.Errorf("the model's keys are %q, want two different ones, and the same for the same question", keys)
	}
}

// The API does not send one, but a gateway in front of another model may.
func TestAnInputThatIsNoObjectIsNotRepeated(t *testing.T) {
	for _, input := range []string{`[1]`, `"x"`, `null`, `7`} {
		var m anthropic.Message
		if err := json.Unmarshal([]byte(`{"role":"assistant","stop_reason":"tool_use","content":[{"type":"tool_use","id":"toolu_1","name":"pay","input":`+input+`}]}`), &m); err != nil {
			t.Fatal(err)
		}
		messages, calls := onceanthropic.AppendMessage(nil, &m)
		b, err := json.Marshal(messages)
		if err != nil || !strings.Contains(string(b), `"input":{}`) {
			t.Errorf("%s: the conversation is %s, %v", input, b, err)
		}
		if len(calls) != 1 || input != "null" && string(calls[0].Args) != input {
			t.Errorf("%s: got %+v", input, calls)
		}
	}
}
