package history

import (
	"fmt"
	"strings"
	"testing"
)

// A call and its result as each API writes them.
func chatCalls(calls ...string) string {
	return `{"role":"assistant","content":null,"tool_calls":[` + strings.Join(calls, ",") + `]}`
}

func chatCall(id string) string {
	return fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":"pay","arguments":"{\"n\":1}"}}`, id)
}

func chatResult(id string) string {
	return fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":"{}"}`, id)
}

func itemCall(id string) string {
	return fmt.Sprintf(`{"type":"function_call","call_id":%q,"name":"pay","arguments":"{\"n\":1}"}`, id)
}

func itemResult(id string) string {
	return fmt.Sprintf(`{"type":"function_call_output","call_id":%q,"output":"{}"}`, id)
}

func uses(role string, blocks ...string) string {
	return fmt.Sprintf(`{"role":%q,"content":[%s]}`, role, strings.Join(blocks, ","))
}

func use(id string) string {
	return fmt.Sprintf(`{"type":"tool_use","id":%q,"name":"pay","input":{"n":1}}`, id)
}

func result(id string) string {
	return fmt.Sprintf(`{"type":"tool_result","tool_use_id":%q,"content":[{"type":"text","text":"{}"}]}`, id)
}

const (
	says  = `{"role":"user","content":"refund A-17"}`
	tells = `{"role":"assistant","content":"done"}`
	text  = `{"type":"text","text":"hm"}`
)

func body(api API, choice string, messages ...string) []byte {
	where := "messages"
	if api == Responses {
		where = "input"
	}
	return fmt.Appendf(nil, `{"tools":[{}],%s%q:[%s]}`, choice, where, strings.Join(messages, ","))
}

func TestConversationsThatAProviderTakes(t *testing.T) {
	for _, row := range []struct {
		what string
		api  API
		msgs []string
	}{
		{"no call", Chat, []string{says}},
		{"two calls of one message, answered in the other order", Chat, []string{says, chatCalls(chatCall("a"), chatCall("b")), chatResult("b"), chatResult("a")}},
		{"call, answer, text, next turn", Chat, []string{says, chatCalls(chatCall("a")), chatResult("a"), tells, says, chatCalls(chatCall("b")), chatResult("b")}},
		{"a custom tool", Chat, []string{says, chatCalls(`{"id":"a","type":"custom","custom":{"name":"sql","input":"select"}}`), chatResult("a")}},
		{"items of one response", Responses, []string{says, `{"type":"reasoning","summary":[]}`, itemCall("a"), `{"type":"message","role":"assistant","content":[]}`, itemCall("b"), itemResult("a"), itemResult("b")}},
		{"a custom item", Responses, []string{says, `{"type":"custom_tool_call","call_id":"a","name":"sql","input":"select"}`, `{"type":"custom_tool_call_output","call_id":"a","output":""}`}},
		{"blocks", Messages, []string{says, uses("assistant", text, use("a"), use("b")), uses("user", result("a"), result("b"))}},
		{"results, then what the user says, in one message", Messages, []string{says, uses("assistant", use("a")), uses("user", result("a"), text)}},
		{"or in two", Messages, []string{says, uses("assistant", use("a")), uses("user", result("a")), says}},
	} {
		t.Run(row.what, func(t *testing.T) {
			if err := Check(row.api, body(row.api, "", row.msgs...)); err != nil {
				t.Error(err)
			}
		})
	}
	if err := Check(Responses, []byte(`{"input":"refund A-17"}`)); err != nil {
		t.Error(err)
	}
}

func TestBrokenConversationsAreRefused(t *testing.T) {
	badArgs := func(s string) string { return strings.ReplaceAll(s, `{\"n\":1}`, `{\"n\":`) }
	for _, row := range []struct {
		what string
		api  API
		want string
		msgs []string
	}{
		{"a call without an answer at the end", Chat, "a call has no answer", []string{says, chatCalls(chatCall("a"))}},
		{"one of two has none", Chat, "a call has no answer", []string{says, chatCalls(chatCall("a"), chatCall("b")), chatResult("a")}},
		{"the user speaks before the answer", Chat, "before it has no answer", []string{says, chatCalls(chatCall("a")), says, chatResult("a")}},
		{"the model speaks before the answer", Chat, "before it has no answer", []string{says, chatCalls(chatCall("a")), tells, chatResult("a")}},
		{"two messages of calls, then the answers", Chat, "before it has no answer", []string{says, chatCalls(chatCall("a")), chatCalls(chatCall("b")), chatResult("a"), chatResult("b")}},
		{"two answers", Chat, "a second answer", []string{says, chatCalls(chatCall("a")), chatResult("a"), chatResult("a")}},
		{"an answer to nothing", Chat, "an id that no call has", []string{says, chatCalls(chatCall("a")), chatResult("a"), chatResult("b")}},
		{"an answer before its call", Chat, "an id that no call has", []string{says, chatResult("a"), chatCalls(chatCall("a"))}},
		{"an id twice in a message", Chat, "was used before", []string{says, chatCalls(chatCall("a"), chatCall("a")), chatResult("a")}},
		{"an id twice in the conversation", Chat, "was used before", []string{says, chatCalls(chatCall("a")), chatResult("a"), chatCalls(chatCall("a")), chatResult("a")}},
		{"no id", Chat, "id is missing", []string{says, chatCalls(chatCall("")), chatResult("")}},
		{"an id that is too long", Chat, "malformed", []string{says, chatCalls(chatCall(strings.Repeat("a", 41))), chatResult(strings.Repeat("a", 41))}},
		{"arguments that are no JSON", Chat, "no JSON object", []string{says, badArgs(chatCalls(chatCall("a"))), chatResult("a")}},
		{"no arguments", Chat, "no JSON object", []string{says, strings.ReplaceAll(chatCalls(chatCall("a")), `{\"n\":1}`, ""), chatResult("a")}},
		{"a made-up name", Chat, "name is malformed", []string{says, strings.ReplaceAll(chatCalls(chatCall("a")), "pay", "pay now!"), chatResult("a")}},
		{"an empty message", Chat, "is empty", []string{says, `{"role":"assistant","content":""}`, says}},
		{"a call without a type", Chat, "the type", []string{says, chatCalls(`{"id":"a"}`), chatResult("a")}},
		{"a role that there is not", Chat, "the role", []string{`{"role":"tools"}`}},
		{"nothing to answer", Chat, "last word", []string{says, tells}},
		{"nothing", Chat, "no messages", nil},

		{"an item without an answer", Responses, "a call has no answer", []string{says, itemCall("a")}},
		{"a call between call and answer", Responses, "before it has no answer", []string{says, itemCall("a"), itemCall("b"), itemResult("b"), itemCall("c"), itemResult("a"), itemResult("c")}},
		{"reasoning that led to nothing", Responses, "without the item", []string{says, `{"type":"reasoning","summary":[]}`, says}},
		{"reasoning at the end", Responses, "without the item", []string{says, `{"type":"reasoning","summary":[]}`}},
		{"a second answer", Responses, "a second answer", []string{says, itemCall("a"), itemResult("a"), itemResult("a")}},
		{"an answer to nothing", Responses, "an id that no call has", []string{says, itemResult("a")}},
		{"arguments that are no JSON", Responses, "no JSON object", []string{says, badArgs(itemCall("a")), itemResult("a")}},

		{"a result that is not there", Messages, "a call has no answer", []string{says, uses("assistant", use("a"), use("b")), uses("user", result("b"))}},
		{"a text before the results", Messages, "does not come first", []string{says, uses("assistant", use("a")), uses("user", text, result("a"))}},
		{"a message before them", Messages, "does not come first", []string{says, uses("assistant", use("a")), says, uses("user", result("a"))}},
		{"results in two turns", Messages, "before it has no answer", []string{says, uses("assistant", use("a"), use("b")), uses("user", result("a")), uses("assistant", text), uses("user", result("b"))}},
		{"an id twice", Messages, "was used before", []string{says, uses("assistant", use("a"), use("a")), uses("user", result("a"))}},
		{"an id with a colon", Messages, "malformed", []string{says, uses("assistant", use("pay:0")), uses("user", result("pay:0"))}},
		{"an input that is no object", Messages, "no JSON object", []string{says, strings.ReplaceAll(uses("assistant", use("a")), `{"n":1}`, `"n"`), uses("user", result("a"))}},
		{"no input", Messages, "no JSON object", []string{says, strings.ReplaceAll(uses("assistant", use("a")), `,"input":{"n":1}`, ""), uses("user", result("a"))}},
		{"an empty text", Messages, "empty", []string{says, uses("assistant", `{"type":"text","text":""}`), says}},
		{"an empty message", Messages, "without content", []string{says, uses("assistant"), says}},
		{"a result of the assistant", Messages, "a tool_result in a message", []string{says, uses("assistant", result("a"))}},
	} {
		t.Run(string(row.api)+", "+row.what, func(t *testing.T) {
			err := Check(row.api, body(row.api, "", row.msgs...))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want an error with %q", err, row.want)
			}
		})
	}
	for _, broken := range []struct{ api, body, want string }{
		{"chat completions", `{`, "no JSON"},
		{"chat completions", fmt.Sprintf(`{"messages":[%s,%s,%s]}`, says, chatCalls(chatCall("a")), chatResult("a")), "no tool is defined"},
		{"messages", fmt.Sprintf(`{"tool_choice":{"type":"none"},"messages":[%s]}`, says), "no tool is defined"},
		{"responses", `{"previous_response_id":"r","input":"x"}`, "cannot be checked"},
	} {
		if err := Check(API(broken.api), []byte(broken.body)); err == nil || !strings.Contains(err.Error(), broken.want) {
			t.Errorf("%s: got %v, want an error with %q", broken.body, err, broken.want)
		}
	}
}

func TestWhatMustHoldBetweenRequests(t *testing.T) {
	one, answer := chatCalls(chatCall("a")), chatResult("a")
	two, second := chatCalls(chatCall("b")), chatResult("b")
	none := `"tool_choice":"none",`
	for _, row := range []struct {
		what string
		want string
		sent [][]byte
	}{
		{"it grows", "", [][]byte{body(Chat, "", says), body(Chat, "", says, one, answer), body(Chat, none, says, one, answer, two, second)}},
		{"the same again is a retry", "", [][]byte{body(Chat, "", says), body(Chat, "", says)}},
		{"it does not grow", "did not grow", [][]byte{body(Chat, "", says), body(Chat, none, says)}},
		{"it is rewritten", "is not what it was", [][]byte{body(Chat, "", says), body(Chat, "", `{"role":"user","content":"else"}`, one, answer)}},
		{"the next turn comes after the closing answer", "", [][]byte{body(Chat, none, says), body(Chat, "", says, tells, says)}},
		{"and after the calls that it makes all the same", "", [][]byte{body(Chat, none, says), body(Chat, "", says, one, answer, says)}},
		{"the turn goes on after the closing request", "goes on", [][]byte{body(Chat, none, says), body(Chat, "", says, one, answer)}},
		{"it closes twice", "goes on", [][]byte{body(Chat, none, says), body(Chat, none, says, one, answer)}},
		{"there are calls after the closing answer", "a second answer of the model", [][]byte{body(Chat, none, says), body(Chat, "", says, one, answer, two, second, says)}},
	} {
		t.Run(row.what, func(t *testing.T) {
			l := Log{API: Chat}
			var err error
			for _, b := range row.sent {
				if err != nil {
					t.Fatalf("refused too early: %v", err)
				}
				err = l.Sent(b)
			}
			if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("got %v, want an error with %q", err, row.want)
			}
		})
	}
	l := Log{API: Messages}
	closing := `"tool_choice":{"type":"none"},`
	if err := l.Sent(body(Messages, closing, says)); err != nil {
		t.Fatal(err)
	}
	if err := l.Sent(body(Messages, "", says, uses("assistant", text, use("a")), uses("user", result("a")))); err == nil {
		t.Error("Messages: the turn goes on after the closing request, and that is accepted")
	}
	if all, closed := l.Requests(); all != 1 || closed != 1 {
		t.Errorf("%d requests, %d closing ones, want 1 and 1", all, closed)
	}
}
