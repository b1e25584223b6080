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
	closing = turn.Exhausted()
	if closing && len(params.Tools) > 0 {
		params.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{OfToolChoiceMode: param.NewOpt(responses.ToolChoiceOptionsNone)}
	}
	return params, closing
}

// AppendResponse is [AppendChoice] for the Responses API. It returns the calls of functions and of custom
// tools; other items that want an answer, such as the approval of an MCP call, are the program's to
// answer. With PreviousResponseID only what [AppendOutputs] appends is to be sent.
func AppendResponse(items []responses.ResponseInputItemUnionParam, resp *responses.Response) ([]responses.ResponseInputItemUnionParam, []toolcall.Call) {
	used := adapter.IDs{}
	for _, item := range items {
		if id := item.GetCallID(); id != nil {
			used[*id] = true
		}
	}
	var calls []toolcall.Call
	said := ""
	for i, item := range resp.Output {
		raw := json.RawMessage(item.RawJSON())
		cut := item.Status == "incomplete" || resp.Status == responses.ResponseStatusIncomplete && i == len(resp.Output)-1
		switch item.Type {
		case "function_call":
			c := item.AsFunctionCall()
			call := toolcall.Call{Tool: c.Name, ID: used.Add(c.CallID, "call_", maxID), Args: adapter.Arguments(c.Arguments, cut), Reasoning: said}
			sent := new(responses.ResponseFunctionToolCallParam)
			_ = json.Unmarshal(raw, sent) // an item that the SDK has read
			sent.CallID, sent.Name, sent.Arguments = call.ID, adapter.Name(c.Name, maxName), adapter.Object(c.Arguments)
			calls, items = append(calls, call), append(items, responses.ResponseInputItemUnionParam{OfFunctionCall: sent})
		case "custom_tool_call":
			c := item.AsCustomToolCall()
			call := toolcall.Call{Tool: c.Name, ID: used.Add(c.CallID, "call_", maxID), Args: adapter.Text(c.Input, cut), Reasoning: said}
			sent := new(responses.ResponseCustomToolCallParam)
			_ = json.Unmarshal(raw, sent)
			sent.CallID, sent.Name = call.ID, adapter.Name(c.Name, maxName)
			calls, items = append(calls, call), append(items, responses.ResponseInputItemUnionParam{OfCustomToolCall: sent})
		default:
			for _, part := range item.Content {
				said += part.Text
			}
			for _, part := range item.Summary {
				said += part.Text
			}
			items = append(items, param.Override[responses.ResponseInputItemUnionParam](raw))
		}
	}
	return items, calls
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
		if custom[r.ID] {
			output = responses.ResponseInputItemParamOfCustomToolCallOutput(r.ID, string(r.JSON()))
		} else {
			output.OfFunctionCallOutput.CallID = param.NewOpt(r.ID)
		}
		items = append(items, output)
	}
	return items
}
