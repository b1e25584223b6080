package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

// A model answers with what its script says next. It speaks the chat completions of OpenAI's API, as
// far as an agent needs them.
type model struct {
	mu     sync.Mutex
	asked  int
	bodies []json.RawMessage // of the requests, for the test
}

// An answer is one message of the model.
type answer struct {
	text  string
	calls []call
}

type call struct{ id, tool, args string }

// script has an answer for each request that the agent makes.
var script = []answer{
	// The first turn: the reply to the refund is lost.
	{"I refund the order.", []call{{"call_1", "refund_order", `{"order_id":"A-1041","amount_cents":12000}`}}},
	{"That did not work. I test the service with a smaller amount.", []call{{"call_2", "refund_order", `{"order_id":"A-1041","amount_cents":100}`}}},
	{"Then the same call once more.", []call{{"call_3", "refund_order", `{"amount_cents":1.2e4,"order_id":"A-1041"}`}}},
	{"Your $120.00 are on their way.", nil},

	// The second: the same arguments are meant again, the id of a call is used again, one call stands there
	// twice, and two numbers differ by less than a float64 can tell.
	{"I do all of that at once.", []call{
		{"call_1", "refund_order", `{"order_id":"A-1041","amount_cents":12000}`},
		{"call_1", "refund_order", `{"order_id":"B-2207","amount_cents":3550}`},
		{"", "refund_order", `{"order_id":"B-2207","amount_cents":3550}`},
		{"call_6", "move_points", `{"card":"old-card","points":9007199254740992}`},
		{"call_7", "move_points", `{"card":"new-card","points":9007199254740993}`},
	}},
	{"Both refunds are made and your points are moved.", nil},

	// The third: the budget is two calls, and the model goes on when it may no more.
	{"I send the coupons.", []call{
		{"call_8", "send_coupon", `{"customer":"ada","percent":10}`},
		{"call_9", "send_coupon", `{"customer":"ben","percent":10}`},
		{"call_10", "send_coupon", `{"customer":"cyd","percent":10}`},
		{"call_11", "send_coupon", `{"customer":"dan","percent":10}`},
	}},
	{"Two are sent, two are not.", []call{{"call_12", "send_coupon", `{"customer":"cyd","percent":10}`}}},
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, "want JSON", http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	n := m.asked
	m.asked++
	m.bodies = append(m.bodies, body)
	m.mu.Unlock()
	if n >= len(script) {
		http.Error(w, "the script is at its end", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(completion(n, script[n]))
}

type object = map[string]any

func completion(n int, a answer) object {
	message, reason := object{"role": "assistant", "content": a.text, "refusal": nil}, "stop"
	if len(a.calls) > 0 {
		var calls []object
		for _, c := range a.calls {
			var id any = c.id
			if c.id == "" {
				id = nil
			}
			calls = append(calls, object{"id": id, "type": "function", "function": object{"name": c.tool, "arguments": c.args}})
		}
		message["tool_calls"], reason = calls, "tool_calls"
	}
	return object{
		"id": fmt.Sprint("chatcmpl-", n), "object": "chat.completion", "created": 1760000000, "model": "script",
		"choices": []object{{"index": 0, "message": message, "logprobs": nil, "finish_reason": reason}},
		"usage":   object{"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
	}
}
