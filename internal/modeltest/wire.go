// Package modeltest is a model to test adapters with: a server that answers from a script, in the wire
// formats of the providers' documentation, whole or as a stream, and a story in which
// everything happens that a model and its tools can do. It imports no SDK.
package modeltest

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/oncehttp/oncehttp/internal/history"
)

// An Answer is what the model says.
type Answer struct {
	Text  string
	Calls []Call
	Cut   bool // the token limit ended it
}

// A Call is a tool call in it.
type Call struct {
	ID   string // "": null
	Name string
	Args string // as the model writes them, JSON or not
}

type object = map[string]any

func id(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// pieces cuts a text as a stream does.
func pieces(s string) []string {
	var all []string
	for len(s) > 5 {
		all, s = append(all, s[:5]), s[5:]
	}
	return append(all, s)
}

func either[T any](which bool, yes, no T) T {
	if which {
		return yes
	}
	return no
}

// write returns an answer as api sends it, and its Content-Type.
func write(api history.API, a Answer, n int, stream bool) ([]byte, string) {
	var events []event
	var whole any
	switch api {
	case history.Chat:
		whole, events = chat(a, n)
	case history.Responses:
		whole, events = response(a, n)
	default:
		whole, events = message(a, n)
	}
	var b bytes.Buffer
	if !stream {
		encode(&b, whole)
		return b.Bytes(), "application/json"
	}
	for _, e := range events {
		if e.name != "" {
			fmt.Fprintf(&b, "event: %s\n", e.name)
		}
		b.WriteString("data: ")
		if e.data == nil {
			b.WriteString("[DONE]\n")
		} else {
			encode(&b, e.data)
		}
		b.WriteByte('\n')
	}
	return b.Bytes(), "text/event-stream"
}

func encode(b *bytes.Buffer, v any) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
}

type event struct {
	name string
	data any
}

// chat is https://developers.openai.com/api/reference/resources/chat, a completion and its chunks.
func chat(a Answer, n int) (whole any, events []event) {
	reason := either(len(a.Calls) > 0, "tool_calls", "stop")
	if a.Cut {
		reason = "length"
	}
	chunk := func(delta object, reason any) {
		events = append(events, event{"", object{"id": fmt.Sprint("chatcmpl-", n), "object": "chat.completion.chunk", "created": 1760000000, "model": "test",
			"choices": []any{object{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": reason}}}})
	}
	chunk(object{"role": "assistant", "content": text(a.Text), "refusal": nil}, nil)
	calls := []any{}
	for i, c := range a.Calls {
		calls = append(calls, object{"id": id(c.ID), "type": "function", "function": object{"name": c.Name, "arguments": c.Args}})
		chunk(object{"tool_calls": []any{object{"index": i, "id": id(c.ID), "type": "function", "function": object{"name": c.Name, "arguments": ""}}}}, nil)
		for _, p := range pieces(c.Args) {
			chunk(object{"tool_calls": []any{object{"index": i, "function": object{"arguments": p}}}}, nil)
		}
	}
	chunk(object{}, reason)
	events = append(events, event{})
	m := object{"role": "assistant", "content": text(a.Text), "refusal": nil, "annotations": []any{}}
	if len(calls) > 0 {
		m["tool_calls"] = calls
	}
	return object{"id": fmt.Sprint("chatcmpl-", n), "object": "chat.completion", "created": 1760000000, "model": "test",
		"choices": []any{object{"index": 0, "message": m, "logprobs": nil, "finish_reason": reason}},
		"usage":   object{"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}}, events
}

// response is https://developers.openai.com/api/reference/resources/responses, a response and its events.
func response(a Answer, n int) (whole any, events []event) {
	emit := func(e object) {
		e["sequence_number"] = len(events)
		events = append(events, event{e["type"].(string), e})
	}
	status := either(a.Cut, "incomplete", "completed")
	r := func(status string, output []any) object {
		return object{"id": fmt.Sprint("resp_", n), "object": "response", "created_at": 1760000000, "model": "test", "status": status, "output": output,
			"error": nil, "incomplete_details": either[any](status == "incomplete", object{"reason": "max_output_tokens"}, nil), "parallel_tool_calls": true, "tools": []any{}, "tool_choice": "auto",
			"usage": object{"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}}
	}
	emit(object{"type": "response.created", "response": r("in_progress", []any{})})
	output := []any{object{"type": "reasoning", "id": fmt.Sprintf("rs_%d", n), "summary": []any{}}}
	if a.Text != "" {
		output = append(output, object{"type": "message", "id": fmt.Sprintf("msg_%d", n), "role": "assistant", "status": "completed",
			"content": []any{object{"type": "output_text", "text": a.Text, "annotations": []any{}, "logprobs": []any{}}}})
	}
	for i, c := range a.Calls {
		last := a.Cut && i == len(a.Calls)-1
		item := object{"type": "function_call", "id": fmt.Sprintf("fc_%d_%d", n, i), "call_id": id(c.ID), "name": c.Name, "arguments": c.Args, "status": either(last, "incomplete", "completed")}
		started := object{"type": "function_call", "id": item["id"], "call_id": id(c.ID), "name": c.Name, "arguments": "", "status": "in_progress"}
		at := len(output)
		emit(object{"type": "response.output_item.added", "output_index": at, "item": started})
		for _, p := range pieces(c.Args) {
			emit(object{"type": "response.function_call_arguments.delta", "item_id": item["id"], "output_index": at, "delta": p})
		}
		emit(object{"type": "response.function_call_arguments.done", "item_id": item["id"], "output_index": at, "name": c.Name, "arguments": c.Args})
		emit(object{"type": "response.output_item.done", "output_index": at, "item": item})
		output = append(output, item)
	}
	emit(object{"type": "response." + status, "response": r(status, output)})
	return r(status, output), events
}

// message is https://platform.claude.com/docs/en/api/messages, a message and its events.
func message(a Answer, n int) (whole any, events []event) {
	emit := func(e object) { events = append(events, event{e["type"].(string), e}) }
	reason := either(len(a.Calls) > 0, "tool_use", "end_turn")
	if a.Cut {
		reason = "max_tokens"
	}
	m := func(content []any, reason any) object {
		return object{"id": fmt.Sprint("msg_", n), "type": "message", "role": "assistant", "model": "test", "content": content,
			"stop_reason": reason, "stop_sequence": nil, "usage": object{"input_tokens": 100, "output_tokens": 20}}
	}
	emit(object{"type": "message_start", "message": m([]any{}, nil)})
	content := []any{}
	if a.Text != "" {
		emit(object{"type": "content_block_start", "index": 0, "content_block": object{"type": "text", "text": ""}})
		for _, p := range pieces(a.Text) {
			emit(object{"type": "content_block_delta", "index": 0, "delta": object{"type": "text_delta", "text": p}})
		}
		emit(object{"type": "content_block_stop", "index": 0})
		content = append(content, object{"type": "text", "text": a.Text})
	}
	for _, c := range a.Calls {
		at := len(content)
		emit(object{"type": "content_block_start", "index": at, "content_block": object{"type": "tool_use", "id": id(c.ID), "name": c.Name, "input": object{}}})
		for _, p := range pieces(c.Args) {
			emit(object{"type": "content_block_delta", "index": at, "delta": object{"type": "input_json_delta", "partial_json": p}})
		}
		emit(object{"type": "content_block_stop", "index": at})
		input := json.RawMessage(c.Args)
		if !json.Valid(input) { // the API sends what it could read
			input = json.RawMessage("{}")
		}
		content = append(content, object{"type": "tool_use", "id": id(c.ID), "name": c.Name, "input": input})
	}
	emit(object{"type": "message_delta", "delta": object{"stop_reason": reason, "stop_sequence": nil}, "usage": object{"output_tokens": 20}})
	emit(object{"type": "message_stop"})
	return m(content, reason), events
}
