// Package onceanthropic connects package toolcall to anthropic-sdk-go: it makes the tool
// calls of a model's answer into a conversation that the API accepts and into calls for
// [toolcall.Turn.Do], and the results into tool_result blocks. docs/toolcall.md shows a loop.
//
// A message that was accumulated from a stream serves as well, once the stream has ended.
package onceanthropic

import (
	"net/http"
	"strings"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
	"github.com/oncehttp/oncehttp/toolcall/adapter"
)

// WithHTTPClient returns options for anthropic.NewClient that send everything through t and turn the
// SDK's own retries off, so that t alone repeats, under one key. A model that is called
// inside a tool does not use up the key of the tool's call: see [adapter.Transport].
func WithHTTPClient(t *oncehttp.Transport) []option.RequestOption {
	rt := &adapter.Transport{Transport: t, Paths: []string{"/v1/messages"}}
	return []option.RequestOption{option.WithHTTPClient(&http.Client{Transport: rt}), option.WithMaxRetries(0)}
}

// MessageParams returns params as they are to be sent now. Once the turn's budget is used up closing is
// true: the tools stay defined, and the model may call none. After its answer the turn is over.
func MessageParams(turn *toolcall.Turn, params anthropic.MessageNewParams) (_ anthropic.MessageNewParams, closing bool) {
	closing = turn.Exhausted()
	if closing && len(params.Tools) > 0 { // the API takes no tool choice without tools
		params.ToolChoice = anthropic.ToolChoiceUnionParam{OfNone: &anthropic.ToolChoiceNoneParam{}}
	}
	return params, closing
}

// AppendMessage appends the model's answer to a conversation, and returns the tool calls in it for
// [toolcall.Turn.Do]. All of them have to be answered, by [AppendResults]. Tools that the API runs
// itself are not among them. An answer without content is not appended, since the API does not take it back.
//
// The calls carry the bytes of the input as they came; a decoded number above 2⁵³ would be another one.
// The conversation is made fit to be sent: ids that are missing or used before are replaced, an
// input that is no JSON object by {}, and characters of a tool's name that the API does not take by _.
func AppendMessage(messages []anthropic.MessageParam, message *anthropic.Message) ([]anthropic.MessageParam, []toolcall.Call) {
	used := adapter.IDs{}
	for _, m := range messages {
		if m.OfAssistant == nil {
			continue
		}
		for _, block := range m.OfAssistant.Content {
			used.Use(block.GetID())
		}
	}
	var content []anthropic.ContentBlockParamUnion
	var calls []toolcall.Call
	var said strings.Builder
	for i, block := range message.Content {
		switch block.Type {
		case "tool_use":
			call := toolcall.Call{Tool: block.Name, ID: used.Add(block.ID, "toolu_", 64), Args: block.Input, Reasoning: said.String()}
			if i == len(message.Content)-1 && cut(message.StopReason) {
				call.Args = adapter.Refused
			}
			sent := block.AsToolUse().ToParam()
			sent.ID, sent.Name, sent.Input = call.ID, adapter.Name(block.Name, 128), adapter.Object(block.Input)
			calls, content = append(calls, call), append(content, anthropic.ContentBlockParamUnion{OfToolUse: &sent})
			continue
		case "text":
			if block.Text == "" {
				continue // the API does not take it back
			}
		}
		said.WriteString(block.Text)
		said.WriteString(block.Thinking)
		content = append(content, block.ToParam())
	}
	if len(content) == 0 {
		return messages, nil
	}
	return append(messages, anthropic.NewAssistantMessage(content...)), calls
}

// AppendResults appends the results of the calls that [AppendMessage] returned, as one message of the
// user. What the user says next comes after it. Without results it appends nothing.
func AppendResults(messages []anthropic.MessageParam, results []toolcall.Result) []anthropic.MessageParam {
	if len(results) == 0 {
		return messages
	}
	uses := map[string]*anthropic.ToolUseBlockParam{}
	if len(messages) > 0 && messages[len(messages)-1].OfAssistant != nil {
		for _, block := range messages[len(messages)-1].OfAssistant.Content {
			if block.OfToolUse != nil {
				uses[block.OfToolUse.ID] = block.OfToolUse
			}
		}
	}
	answers := make([]anthropic.ContentBlockParamUnion, len(results))
	for i, r := range results {
		answers[i] = anthropic.NewToolResultBlock(r.ID, string(r.JSON()), r.Status == toolcall.StatusFailed)
		if use := uses[r.ID]; use != nil {
			answers[i].OfToolResult.ToolsetName = use.ToolsetName // the API wants it again
		}
	}
	return append(messages, anthropic.NewUserMessage(answers...))
}

// cut reports whether the last block may lack its end. The SDK makes an input that was cut off in a
// stream into {}, which is what a call without arguments looks like.
func cut(reason anthropic.StopReason) bool {
	switch reason {
	case anthropic.StopReasonToolUse, anthropic.StopReasonEndTurn, anthropic.StopReasonStopSequence, anthropic.StopReasonPauseTurn:
		return false
	}
	return true
}
