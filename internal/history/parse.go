package history

import (
	"bytes"
	"encoding/json"
	"fmt"
)

func parse(api API, body []byte) (*request, error) {
	var in struct {
		Messages []json.RawMessage
		Input    json.RawMessage
		Tools    []json.RawMessage
		Choice   json.RawMessage `json:"tool_choice"`
		Previous string          `json:"previous_response_id"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("%s: %w", api, err)
	}
	r := &request{tools: len(in.Tools), choice: len(in.Choice) > 0}
	var choice struct{ Type string }
	_ = json.Unmarshal(in.Choice, &choice) // a string is no object
	r.closing = string(in.Choice) == `"none"` || choice.Type == "none"
	read := map[API]func(json.RawMessage) ([]part, error){Chat: chatMessage, Responses: responseItem, Messages: message}[api]
	items := in.Messages
	if api == Responses {
		if in.Previous != "" {
			return nil, fmt.Errorf("%s: a conversation that the server keeps cannot be checked", api)
		}
		if err := json.Unmarshal(in.Input, &items); err != nil { // a text alone
			items = []json.RawMessage{[]byte(`{"role":"user"}`)}
		}
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("%s: no messages", api)
	}
	for i, m := range items {
		parts, err := read(m)
		if err != nil {
			return nil, fmt.Errorf("%s, message %d: %w", api, i, err)
		}
		r.parts = append(r.parts, parts...)
	}
	return r, r.resultsFirst(api)
}

// resultsFirst is the rule of Messages: the API joins messages of one role, and in such a
// turn nothing stands before a tool_result.
func (r *request) resultsFirst(api API) error {
	for i := 1; api == Messages && i < len(r.parts); i++ {
		if r.parts[i].kind == answers && r.parts[i-1].kind == user {
			return fmt.Errorf("%s, part %d: a tool_result does not come first in its turn", api, i)
		}
	}
	return nil
}

func compact(raw []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

func empty(content json.RawMessage) bool {
	c := compact(content)
	return c == "" || c == "null" || c == `""` || c == "[]"
}

func chatMessage(raw json.RawMessage) ([]part, error) {
	var m struct {
		Role    string
		Content json.RawMessage
		Refusal json.RawMessage
		Calls   []struct {
			ID, Type string
			Function struct{ Name, Arguments string }
			Custom   struct{ Name, Input string }
		} `json:"tool_calls"`
		ID string `json:"tool_call_id"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	p := part{raw: compact(raw)}
	switch m.Role {
	case "system", "developer", "user":
		p.kind = user
	case "tool":
		p.kind, p.ids = answers, []string{m.ID}
	case "assistant":
		p.kind = assistant
		if empty(m.Content) && empty(m.Refusal) && len(m.Calls) == 0 {
			return nil, fmt.Errorf("an assistant's message is empty")
		}
		for _, c := range m.Calls {
			switch c.Type {
			case "function":
				p.calls = append(p.calls, call{id: c.ID, name: c.Function.Name, args: c.Function.Arguments})
			case "custom":
				p.calls = append(p.calls, call{id: c.ID, name: c.Custom.Name, free: true})
			default:
				return nil, fmt.Errorf("a call has the type %q", c.Type)
			}
		}
	default:
		return nil, fmt.Errorf("the role %q", m.Role)
	}
	return []part{p}, nil
}

func responseItem(raw json.RawMessage) ([]part, error) {
	var m struct {
		Type, Role, Name, Arguments string
		ID                          string `json:"call_id"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	p := part{kind: assistant, raw: compact(raw)}
	switch m.Type {
	case "function_call":
		p.calls = []call{{id: m.ID, name: m.Name, args: m.Arguments}}
	case "custom_tool_call":
		p.calls = []call{{id: m.ID, name: m.Name, free: true}}
	case "function_call_output", "custom_tool_call_output":
		p.kind, p.ids = answers, []string{m.ID}
	case "reasoning":
		p.leads = true
	case "message", "":
		if m.Role != "assistant" {
			p.kind = user
		}
	}
	return []part{p}, nil
}

func message(raw json.RawMessage) ([]part, error) {
	var m struct {
		Role    string
		Content json.RawMessage
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	if m.Role != "user" && m.Role != "assistant" {
		return nil, fmt.Errorf("the role %q", m.Role)
	}
	if empty(m.Content) {
		return nil, fmt.Errorf("a message without content")
	}
	var blocks []json.RawMessage
	if json.Unmarshal(m.Content, &blocks) != nil { // a text alone
		return []part{{kind: kind(m.Role), raw: compact(raw)}}, nil
	}
	var parts []part
	for _, b := range blocks {
		var block struct {
			Type, ID, Name, Text string
			Input                json.RawMessage
			UseID                string `json:"tool_use_id"`
		}
		if err := json.Unmarshal(b, &block); err != nil {
			return nil, err
		}
		p := part{kind: kind(m.Role), raw: compact(b)}
		switch {
		case block.Type == "text" && block.Text == "":
			return nil, fmt.Errorf("a text block is empty")
		case block.Type == "tool_use" && m.Role == "assistant":
			p.calls = []call{{id: block.ID, name: block.Name, args: string(block.Input)}}
		case block.Type == "tool_result" && m.Role == "user":
			p.kind, p.ids = answers, []string{block.UseID}
		case block.Type == "tool_use" || block.Type == "tool_result":
			return nil, fmt.Errorf("a %s in a message of the %s", block.Type, m.Role)
		}
		parts = append(parts, p)
	}
	return parts, nil
}
