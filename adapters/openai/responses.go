package onceopenai

import (
	"encoding/json"

	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"

	"github.com/oncehttp/oncehttp/toolcall"
	"github.com/oncehttp/oncehttp/toolcall/adapter"
)

// ResponseParams is [ChatParams] for the Responses API.
func ResponseParams(turn *toolcall.Turn, params responses.ResponseNewParams) (_ responses.ResponseNewParams, closing bool) {
	if closing = turn.Exhausted(); closing && len(params.Tools) > 0 {
		params.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{OfToolChoiceMode: param.NewOpt(responses.ToolChoiceOptionsNone)}
	}
	return params, closing
}

// AppendResponse is [AppendChoice] for the Responses API. Other items that want an answer than calls of functions and
// custom tools are the program's to answer. With PreviousResponseID only what [AppendOutputs] appends is to be sent.
func AppendResponse(items []responses.ResponseInputItemUnionParam, resp *responses.Response) (_ []responses.ResponseInputItemUnionParam, calls []toolcall.Call) {
	used := adapter.IDs{}
	for _, item := range items {
		used.Use(item.GetCallID())
	}
	said, complete := "", len(items)
	for i, item := range resp.Output {
		cut := item.Status == "incomplete" || resp.Status != responses.ResponseStatusCompleted && i == len(resp.Output)-1
		call, union := toolcall.Call{Reasoning: said}, responses.ResponseInputItemUnionParam{}
		switch item.Type {
		case "function_call":
			c, sent := item.AsFunctionCall(), new(responses.ResponseFunctionToolCallParam)
			_ = json.Unmarshal([]byte(item.RawJSON()), sent) // an item that the SDK has read
			call.Tool, call.ID, call.Args = c.Name, used.Add(c.CallID, "call_", maxID), adapter.Arguments(c.Arguments, cut)
			sent.CallID, sent.Name, sent.Arguments = call.ID, adapter.Name(c.Name, maxName), adapter.Object(c.Arguments)
			calls, union.OfFunctionCall = append(calls, call), sent
		case "custom_tool_call":
			c, sent := item.AsCustomToolCall(), new(responses.ResponseCustomToolCallParam)
			_ = json.Unmarshal([]byte(item.RawJSON()), sent)
			call.Tool, call.ID, call.Args = c.Name, used.Add(c.CallID, "call_", maxID), adapter.Text(c.Input, cut)
			sent.CallID, sent.Name = call.ID, adapter.Name(c.Name, maxName)
			calls, union.OfCustomToolCall = append(calls, call), sent
		default:
			for _, part := range item.Content {
				said += part.Text
			}
			for _, part := range item.Summary {
				said += part.Text
			}
			union = param.Override[responses.ResponseInputItemUnionParam](json.RawMessage(item.RawJSON()))
		}
		if items = append(items, union); item.Type != "reasoning" {
			complete = len(items)
		}
	}
	return items[:complete], calls // the API takes no reasoning that led to nothing
}

// AppendOutputs appends the results of the calls that [AppendResponse] returned.
func AppendOutputs(items []responses.ResponseInputItemUnionParam, results []toolcall.Result) []responses.ResponseInputItemUnionParam {
	custom := map[string]bool{}
	for _, item := range items {
		if item.OfCustomToolCall != nil {
			custom[item.OfCustomToolCall.CallID] = true
		}
	}
	for _, r := range results {
		output := responses.ResponseInputItemParamOfFunctionCallOutput(string(r.JSON()))
		if output.OfFunctionCallOutput.CallID = param.NewOpt(r.ID); custom[r.ID] {
			output = responses.ResponseInputItemParamOfCustomToolCallOutput(r.ID, string(r.JSON()))
		}
		items = append(items, output)
	}
	return items
}
