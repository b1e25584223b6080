// Package onceopenai connects package toolcall to openai-go: it makes a model's answer into calls for [toolcall.Turn.Do] and
// into a conversation that providers accept. docs/toolcall.md shows a loop. Streamed answers serve as well: the Choice
// of a ChatCompletionAccumulator, or the Response of the event response.completed or response.incomplete.
package onceopenai

import (
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
	"github.com/oncehttp/oncehttp/toolcall/adapter"
)

const maxName, maxID = 64, 40 // of a tool's name and a call's id, that the API takes

// WithHTTPClient returns options for openai.NewClient that send everything through t and turn the SDK's own
// retries off, so that t alone repeats. See [adapter.Transport] for a model that is called inside a tool.
func WithHTTPClient(t *oncehttp.Transport) []option.RequestOption {
	return []option.RequestOption{option.WithMaxRetries(0), option.WithHTTPClient(&http.Client{
		Transport: &adapter.Transport{Transport: t, Paths: []string{"/chat/completions", "/responses"}}})}
}

// ChatParams returns params as they are to be sent now. Once the turn's budget is used up closing is
// true: the tools stay defined, and the model may call none. After its answer the turn is over.
func ChatParams(turn *toolcall.Turn, params openai.ChatCompletionNewParams) (_ openai.ChatCompletionNewParams, closing bool) {
	if closing = turn.Exhausted(); closing && len(params.Tools) > 0 { // the API takes no tool choice without tools
		params.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("none")}
	}
	return params, closing
}

// AppendChoice appends the model's answer to a conversation, unless it is empty, and returns the tool calls in it
// for [toolcall.Turn.Do]. All have to be answered, by [AppendResults]. Their arguments are as they came, and {"input":…}
// for a custom tool. What the API would not take back of ids, names and arguments is replaced in the conversation.
func AppendChoice(messages []openai.ChatCompletionMessageParamUnion, choice openai.ChatCompletionChoice) (_ []openai.ChatCompletionMessageParamUnion, calls []toolcall.Call) {
	used := adapter.IDs{}
	for _, m := range messages {
		for _, c := range m.GetToolCalls() {
			used.Use(c.GetID())
		}
	}
	answer := choice.Message.ToAssistantMessageParam()
	answer.ToolCalls = nil
	for i, c := range choice.Message.ToolCalls {
		cut := i == len(choice.Message.ToolCalls)-1 && choice.FinishReason != "tool_calls" && choice.FinishReason != "stop"
		call, sent := toolcall.Call{ID: used.Add(c.ID, "call_", maxID), Reasoning: choice.Message.Content}, openai.ChatCompletionMessageToolCallUnionParam{}
		if c.Type == "custom" {
			call.Tool, call.Args = c.Custom.Name, adapter.Text(c.Custom.Input, cut)
			sent.OfCustom = &openai.ChatCompletionMessageCustomToolCallParam{ID: call.ID, Custom: openai.ChatCompletionMessageCustomToolCallCustomParam{
				Name: adapter.Name(call.Tool, maxName), Input: c.Custom.Input}}
		} else {
			call.Tool, call.Args = c.Function.Name, adapter.Arguments(c.Function.Arguments, cut)
			sent.OfFunction = &openai.ChatCompletionMessageFunctionToolCallParam{ID: call.ID, Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{
				Name: adapter.Name(call.Tool, maxName), Arguments: adapter.Object(c.Function.Arguments)}}
		}
		calls, answer.ToolCalls = append(calls, call), append(answer.ToolCalls, sent)
	}
	if m := choice.Message; len(calls) == 0 && m.Content == "" && m.Refusal == "" && m.Audio.ID == "" {
		return messages, nil // the API does not take it back
	}
	return append(messages, openai.ChatCompletionMessageParamUnion{OfAssistant: &answer}), calls
}

// AppendResults appends the results of the calls that [AppendChoice] returned.
func AppendResults(messages []openai.ChatCompletionMessageParamUnion, results []toolcall.Result) []openai.ChatCompletionMessageParamUnion {
	for _, r := range results {
		messages = append(messages, openai.ToolMessage(string(r.JSON()), r.ID))
	}
	return messages
}
