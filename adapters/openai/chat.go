package onceopenai

import (
	"github.com/openai/openai-go/v3"

	"github.com/oncehttp/oncehttp/toolcall"
	"github.com/oncehttp/oncehttp/toolcall/adapter"
)

// What the API takes in a tool's name and in a call's id.
const maxName, maxID = 64, 40

// ChatParams returns params as they are to be sent now. Once the turn's budget is used up closing is
// true: the tools stay defined, and the model may call none. After its answer the turn is over.
func ChatParams(turn *toolcall.Turn, params openai.ChatCompletionNewParams) (_ openai.ChatCompletionNewParams, closing bool) {
	closing = turn.Exhausted()
	if closing && len(params.Tools) > 0 { // the API takes no tool choice without tools
		params.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("none")}
	}
	return params, closing
}

// AppendChoice appends the model's answer to a conversation, and returns the tool calls in it for
// [toolcall.Turn.Do]. All of them have to be answered, by [AppendResults].
//
// The calls carry the arguments as they came. The conversation is made fit to be sent: ids that are
// missing or used before are replaced, arguments that are no JSON object by {}, and characters of
// a tool's name that the API does not take by _. The input of a custom tool is passed on as a JSON string.
func AppendChoice(messages []openai.ChatCompletionMessageParamUnion, choice openai.ChatCompletionChoice) ([]openai.ChatCompletionMessageParamUnion, []toolcall.Call) {
	used := adapter.IDs{}
	for _, m := range messages {
		for _, c := range m.GetToolCalls() {
			if id := c.GetID(); id != nil {
				used[*id] = true
			}
		}
	}
	answer := choice.Message.ToAssistantMessageParam()
	answer.ToolCalls = nil
	var calls []toolcall.Call
	for i, c := range choice.Message.ToolCalls {
		cut := i == len(choice.Message.ToolCalls)-1 && (choice.FinishReason == "length" || choice.FinishReason == "content_filter")
		call := toolcall.Call{Tool: c.Function.Name, ID: used.Add(c.ID, "call_", maxID), Args: adapter.Arguments(c.Function.Arguments, cut), Reasoning: choice.Message.Content}
		sent := openai.ChatCompletionMessageToolCallUnionParam{}
		if c.Type == "custom" {
			call.Tool, call.Args = c.Custom.Name, adapter.Text(c.Custom.Input, cut)
			sent.OfCustom = &openai.ChatCompletionMessageCustomToolCallParam{ID: call.ID}
			sent.OfCustom.Custom.Name, sent.OfCustom.Custom.Input = adapter.Name(call.Tool, maxName), c.Custom.Input
		} else {
			sent.OfFunction = &openai.ChatCompletionMessageFunctionToolCallParam{ID: call.ID}
			sent.OfFunction.Function.Name, sent.OfFunction.Function.Arguments = adapter.Name(call.Tool, maxName), adapter.Object(c.Function.Arguments)
		}
		calls, answer.ToolCalls = append(calls, call), append(answer.ToolCalls, sent)
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
