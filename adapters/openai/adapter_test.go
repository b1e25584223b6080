package onceopenai_test

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

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"

	"github.com/oncehttp/oncehttp"
	onceopenai "github.com/oncehttp/oncehttp/adapters/openai"
	"github.com/oncehttp/oncehttp/internal/history"
	"github.com/oncehttp/oncehttp/internal/modeltest"
	"github.com/oncehttp/oncehttp/toolcall"
)

const big = `{"n" : 9007199254740993, "x": 1.0}` // decoded it is another text, and another number

// talk plays one message of the model, and returns the calls that a tool saw and the second request.
func talk(t *testing.T, api history.API, stream bool, say modeltest.Answer) (ran []string, body string) {
	t.Helper()
	model := &modeltest.Server{API: api, Next: func(n int, _ bool) modeltest.Answer {
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
	client := newClient(&oncehttp.Transport{}, srv.URL)
	var agent modeltest.Agent = newChatAgent(client)
	if api == history.Responses {
		agent = newResponsesAgent(client)
	}
	if err := agent.Say(t.Context(), r.Turn("u", toolcall.Budget{}), "refund A-17", stream); err != nil {
		t.Fatal(err)
	}
	for _, err := range model.Errs() {
		t.Error(err)
	}
	return ran, string(model.Bodies()[1])
}

func each(t *testing.T, f func(t *testing.T, api history.API, stream bool)) {
	for _, api := range []history.API{history.Chat, history.Responses} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, streamed %v", api, stream), func(t *testing.T) { f(t, api, stream) })
		}
	}
}

func TestArgumentsArePassedOnByteForByte(t *testing.T) {
	each(t, func(t *testing.T, api history.API, stream bool) {
		ran, body := talk(t, api, stream, modeltest.Answer{Calls: []modeltest.Call{{ID: "call_1", Name: "pay", Args: big}}})
		if len(ran) != 1 || ran[0] != big {
			t.Errorf("the tool got %q, want %q", ran, big)
		}
		if quoted, _ := json.Marshal(big); !strings.Contains(body, string(quoted)) {
			t.Errorf("the conversation does not hold %s:\n%s", quoted, body)
		}
	})
}

// To a Runner no arguments are {}. In an answer that was cut off they are missing.
func TestACallThatWasCutOffIsNotRun(t *testing.T) {
	each(t, func(t *testing.T, api history.API, stream bool) {
		for _, args := range []string{"", `{`, `{"n":1`} {
			whole := modeltest.Call{ID: "call_1", Name: "pay", Args: "{}"}
			ran, body := talk(t, api, stream, modeltest.Answer{Cut: true, Calls: []modeltest.Call{whole, {ID: "call_2", Name: "pay", Args: args}}})
			if len(ran) != 1 || ran[0] != "{}" || !strings.Contains(body, "bad_arguments") {
				t.Errorf("cut after %q: the tool ran for %q, want the whole call only", args, ran)
			}
		}
		if ran, _ := talk(t, api, stream, modeltest.Answer{Calls: []modeltest.Call{{ID: "call_1", Name: "pay", Args: ""}}}); len(ran) != 1 {
			t.Error("a call without arguments was not run")
		}
	})
}

// A stream that broke off has no reason to finish, and a gateway may have reasons of its own.
func TestOnlyAnAnswerThatIsWholeHasCallsWithoutArguments(t *testing.T) {
	for reason, want := range map[string]bool{"tool_calls": true, "stop": true, "": false, "length": false, "content_filter": false, "error": false} {
		var choice openai.ChatCompletionChoice
		if err := json.Unmarshal(fmt.Appendf(nil, `{"finish_reason":%q,"message":{"tool_calls":[{"id":"a","type":"function","function":{"name":"pay","arguments":""}}]}}`, reason), &choice); err != nil {
			t.Fatal(err)
		}
		if _, calls := onceopenai.AppendChoice(nil, choice); (len(calls[0].Args) == 0) != want {
			t.Errorf("finish reason %q: the arguments are %q", reason, calls[0].Args)
		}
	}
	for status, want := range map[string]bool{"completed": true, "": false, "incomplete": false, "failed": false} {
		var resp responses.Response
		if err := json.Unmarshal(fmt.Appendf(nil, `{"status":%q,"output":[{"type":"function_call","call_id":"a","name":"pay","arguments":""}]}`, status), &resp); err != nil {
			t.Fatal(err)
		}
		if _, calls := onceopenai.AppendResponse(nil, &resp); (len(calls[0].Args) == 0) != want {
			t.Errorf("status %q: the arguments are %q", status, calls[0].Args)
		}
	}
}

// A model may say nothing at all, and its provider does not take that back.
func TestAnEmptyAnswerIsNotRepeated(t *testing.T) {
	each(t, func(t *testing.T, api history.API, stream bool) {
		model := &modeltest.Server{API: api, Next: func(int, bool) modeltest.Answer { return modeltest.Answer{} }}
		srv := httptest.NewServer(model)
		defer srv.Close()
		client := newClient(&oncehttp.Transport{}, srv.URL)
		var agent modeltest.Agent = newChatAgent(client)
		if api == history.Responses {
			agent = newResponsesAgent(client)
		}
		r := &toolcall.Runner{Scope: "acme/test"}
		for range 2 {
			if err := agent.Say(t.Context(), r.Turn("u", toolcall.Budget{}), "refund A-17", stream); err != nil {
				t.Fatal(err)
			}
		}
		for _, err := range model.Errs() {
			t.Error(err)
		}
	})
}

func TestIDsAreNotTrusted(t *testing.T) {
	each(t, func(t *testing.T, api history.API, stream bool) {
		var calls []modeltest.Call
		for i, id := range []string{"", "call_1", "call_1", "", strings.Repeat("x", 41), "functions.pay:0"} {
			calls = append(calls, modeltest.Call{ID: id, Name: "pay", Args: fmt.Sprintf(`{"n":%d}`, i)})
		}
		if ran, _ := talk(t, api, stream, modeltest.Answer{Calls: calls}); len(ran) != len(calls) {
			t.Errorf("%d of %d calls were run", len(ran), len(calls))
		}
	})
}

func TestToolsAreWithheldOnceTheBudgetIsUsedUp(t *testing.T) {
	r := &toolcall.Runner{Scope: "acme/test"}
	open, used := r.Turn("u", toolcall.Budget{Tokens: 10}), r.Turn("u", toolcall.Budget{Tokens: 10})
	used.Spend(10)
	chat, resp := newChatAgent(openai.Client{}).params, newResponsesAgent(openai.Client{}).params
	for _, row := range []struct {
		what   string
		turn   *toolcall.Turn
		tools  bool
		choice string
	}{
		{"budget is left", open, true, `{}`},
		{"it is used up", used, true, `{"tool_choice":"none"}`},
		{"used up, but there are no tools, for which the API takes no choice", used, false, `{}`},
	} {
		c, p := chat, resp
		if !row.tools {
			c.Tools, p.Tools = nil, nil
		}
		c, closing := onceopenai.ChatParams(row.turn, c)
		p, closing2 := onceopenai.ResponseParams(row.turn, p)
		if want := row.turn == used; closing != want || closing2 != want {
			t.Errorf("%s: closing %v and %v, want %v", row.what, closing, closing2, want)
		}
		for _, params := range []any{c, p} {
			b, err := json.Marshal(params)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Choice json.RawMessage `json:"tool_choice,omitempty"`
				Tools  []any           `json:"tools"`
			}
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			if want := strings.Contains(row.choice, "none"); string(got.Choice) == `"none"` != want || len(got.Tools) > 0 != row.tools {
				t.Errorf("%s: sent %s", row.what, b)
			}
		}
	}
	if chat.ToolChoice.OfAuto.Valid() {
		t.Error("the caller's own params were changed")
	}
}

// A Runner refuses arguments that are no object.
func TestACustomToolIsRunWithItsText(t *testing.T) {
	var choice openai.ChatCompletionChoice
	if err := json.Unmarshal([]byte(`{"finish_reason":"tool_calls","message":{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"custom","custom":{"name":"sql","input":"select \"1\""}}]}}`), &choice); err != nil {
		t.Fatal(err)
	}
	messages, calls := onceopenai.AppendChoice(nil, choice)
	if len(calls) != 1 || calls[0].Tool != "sql" || string(calls[0].Args) != `{"input":"select \"1\""}` {
		t.Errorf("got %+v", calls)
	}
	ran := ""
	r := &toolcall.Runner{Scope: "acme/test"}
	if err := r.Register(toolcall.Tool{Name: "sql", Effect: toolcall.Read, Call: toolcall.Func(func(_ context.Context, in struct {
		Input string `json:"input"`
	}) (any, error) {
		ran = in.Input
		return nil, nil
	})}); err != nil {
		t.Fatal(err)
	}
	if got := r.Turn("u", toolcall.Budget{}).Do(t.Context(), calls...)[0]; got.Status != toolcall.StatusOK || ran != `select "1"` {
		t.Errorf("got %s, and the tool %q", got.JSON(), ran)
	}
	b, err := json.Marshal(onceopenai.AppendResults(messages, []toolcall.Result{{ID: "c1"}}))
	if err != nil || !strings.Contains(string(b), `"input":"select \"1\""`) {
		t.Errorf("the conversation is %s, %v", b, err)
	}
	choice.FinishReason = "length"
	if _, calls := onceopenai.AppendChoice(nil, choice); json.Valid(calls[0].Args) {
		t.Error("a text that was cut off is passed on")
	}

	var resp responses.Response
	if err := json.Unmarshal([]byte(`{"status":"completed","output":[{"type":"custom_tool_call","id":"i","call_id":"c1","name":"sql","input":"select"},{"type":"function_call","id":"j","call_id":"c2","name":"pay","arguments":"{}","namespace":"bank","status":"completed"}]}`), &resp); err != nil {
		t.Fatal(err)
	}
	items, calls := onceopenai.AppendResponse(nil, &resp)
	if len(calls) != 2 || string(calls[0].Args) != `{"input":"select"}` {
		t.Errorf("got %+v", calls)
	}
	b, err = json.Marshal(onceopenai.AppendOutputs(items, []toolcall.Result{{ID: "c1"}, {ID: "c2"}}))
	if err != nil || !strings.Contains(string(b), `"custom_tool_call_output"`) || !strings.Contains(string(b), `"function_call_output"`) || !strings.Contains(string(b), `"namespace":"bank"`) {
		t.Errorf("the items are %s, %v", b, err)
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
		_, err := client.Chat.Completions.New(t.Context(), newChatAgent(client).params)
		srv.Close()
		if err == nil || len(keys) != attempts || keys[0] == "" || keys[0] != keys[len(keys)-1] {
			t.Errorf("%d attempts allowed: sent %q, %v", attempts, keys, err)
		}
	}
}

// A sub-agent calls its model inside a tool, more than once, and may send the tool's own request through the
// same client.
func TestAModelInsideAToolDoesNotTakeTheToolsKey(t *testing.T) {
	keys := map[string][]string{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys[r.URL.Path] = append(keys[r.URL.Path], r.Header.Get("Idempotency-Key"))
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"hm"}}]}`)
	}))
	defer srv.Close()
	client := newClient(&oncehttp.Transport{}, srv.URL)
	r := &toolcall.Runner{Scope: "acme/test", Store: new(oncehttp.MemoryStore)}
	if err := r.Register(toolcall.Tool{Name: "research", Effect: toolcall.Keyed, Timeout: time.Minute, Call: func(ctx context.Context, _ json.RawMessage) (any, error) {
		for _, text := range []string{"one", "two", "one"} {
			params := newChatAgent(client).params
			params.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}
			if _, err := client.Chat.Completions.New(ctx, params); err != nil {
				return nil, err
			}
		}
		return "done", client.Post(ctx, "payments", map[string]int{"n": 1}, nil, option.WithMaxRetries(2))
	}}); err != nil {
		t.Fatal(err)
	}
	got := r.Turn("u", toolcall.Budget{}).Do(t.Context(), toolcall.Call{Tool: "research"})[0]
	if got.Status != toolcall.StatusOK {
		t.Errorf("got %s: %v", got.Status, got.Err)
	}
	asked, paid := keys["/chat/completions"], keys["/payments"]
	if len(asked) != 3 || asked[0] == asked[1] || asked[0] != asked[2] || asked[0] == got.Key {
		t.Errorf("the model's keys are %q, want two different ones, and the same for the same question", asked)
	}
	if len(paid) != 1 || paid[0] == "" || strings.Contains(strings.Join(asked, " "), paid[0]) {
		t.Errorf("the payment's key is %q", paid)
	}
}
