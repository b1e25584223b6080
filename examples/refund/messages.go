package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io"
)

//go:embed testdata/*.json
var testdata embed.FS

// A message is what a model answered: the tool calls that it wants made.
type message struct {
	// turn is the agent's name for the step it is working on. Here the
	// provider's id of the message serves, because each message is a turn of its
	// own. The ids of the calls would not do: they are new each time.
	turn  string
	calls []call
}

// A call is one tool call as the model wrote it.
type call struct {
	tool string
	args json.RawMessage
}

// messages reads the two messages in testdata: one as OpenAI's chat completions
// send it, one as Anthropic's messages API does. In each the model asks for one
// refund and, hearing nothing, asks for it twice more.
func messages() ([]message, error) {
	var all []message
	for _, m := range []struct {
		file  string
		parse func([]byte) (message, error)
	}{
		{"testdata/openai.json", parseOpenAI},
		{"testdata/anthropic.json", parseAnthropic},
	} {
		text, err := testdata.ReadFile(m.file)
		if err != nil {
			return nil, err
		}
		parsed, err := m.parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.file, err)
		}
		all = append(all, parsed)
	}
	return all, nil
}

func parseOpenAI(text []byte) (message, error) {
	var in struct {
		ID      string
		Choices []struct {
			Message struct {
				ToolCalls []struct {
					Function struct {
						Name      string
						Arguments string // JSON inside a JSON string
					}
				} `json:"tool_calls"`
			}
		}
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return message{}, err
	}
	m := message{turn: in.ID}
	for _, choice := range in.Choices {
		for _, c := range choice.Message.ToolCalls {
			m.calls = append(m.calls, call{c.Function.Name, json.RawMessage(c.Function.Arguments)})
		}
	}
	return m, nil
}

func parseAnthropic(text []byte) (message, error) {
	var in struct {
		ID      string
		Content []struct {
			Type  string
			Name  string
			Input json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return message{}, err
	}
	m := message{turn: in.ID}
	for _, block := range in.Content {
		if block.Type == "tool_use" {
			m.calls = append(m.calls, call{block.Name, block.Input})
		}
	}
	return m, nil
}

// canonical returns the arguments in a form that does not depend on spacing or
// on the order of members, while every number keeps its digits.
func canonical(args json.RawMessage) (string, error) {
	in := json.NewDecoder(bytes.NewReader(args))
	in.UseNumber()
	var v any
	if err := in.Decode(&v); err != nil {
		return "", err
	}
	if _, err := in.Token(); err != io.EOF {
		return "", fmt.Errorf("data after the arguments")
	}
	text, err := json.Marshal(v) // sorts the members
	return string(text), err
}
