package onceopenai_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"github.com/oncehttp/oncehttp"
	onceopenai "github.com/oncehttp/oncehttp/adapters/openai"
	"github.com/oncehttp/oncehttp/internal/history"
	"github.com/oncehttp/oncehttp/internal/modeltest"
	"github.com/oncehttp/oncehttp/toolcall"
)

func newClient(t *oncehttp.Transport, url string) openai.Client {
	return openai.NewClient(append(onceopenai.WithHTTPClient(t), option.WithBaseURL(url), option.WithAPIKey("test"))...)
}

// A chatAgent is a loop over chat completions.
type chatAgent struct {
	client openai.Client
	params openai.ChatCompletionNewParams
}

func newChatAgent(client openai.Client) *chatAgent {
	return &chatAgent{client, openai.ChatCompletionNewParams{
		Model: "test",
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "pay"})},
	}}
}

func (a *chatAgent) Say(ctx context.Context, turn *toolcall.Turn, text string, stream bool) error {
	a.params.Messages = append(a.params.Messages, openai.UserMessage(text))
	for {
		params, closing := onceopenai.ChatParams(turn, a.params)
		completion, err := a.ask(ctx, params, stream)
		if err != nil {
			return err
		}
		turn.Spend(completion.Usage.TotalTokens)
		messages, calls := onceopenai.AppendChoice(params.Messages, completion.Choices[0])
		a.params.Messages = onceopenai.AppendResults(messages, turn.Do(ctx, calls...))
		if closing || len(calls) == 0 || ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (a *chatAgent) ask(ctx context.Context, params openai.ChatCompletionNewParams, stream bool) (*openai.ChatCompletion, error) {
	if !stream {
		return a.client.Chat.Completions.New(ctx, params)
	}
	s := a.client.Chat.Completions.NewStreaming(ctx, params)
	defer s.Close()
	var acc openai.ChatCompletionAccumulator
	for s.Next() {
		if !acc.AddChunk(s.Current()) {
			return nil, fmt.Errorf("a chunk does not fit")
		}
	}
	return &acc.ChatCompletion, s.Err()
}

// A responsesAgent is a loop over responses.
type responsesAgent struct {
	client openai.Client
	params responses.ResponseNewParams
	items  []responses.ResponseInputItemUnionParam
}

func newResponsesAgent(client openai.Client) *responsesAgent {
	return &responsesAgent{client: client, params: responses.ResponseNewParams{
		Model: "test",
		Tools: []responses.ToolUnionParam{{OfFunction: &responses.FunctionToolParam{Name: "pay"}}},
	}}
}

func (a *responsesAgent) Say(ctx context.Context, turn *toolcall.Turn, text string, stream bool) error {
	a.items = append(a.items, responses.ResponseInputItemParamOfMessage(text, responses.EasyInputMessageRoleUser))
	for {
		params, closing := onceopenai.ResponseParams(turn, a.params)
		params.Input.OfInputItemList = a.items
		resp, err := a.ask(ctx, params, stream)
		if err != nil {
			return err
		}
		turn.Spend(resp.Usage.TotalTokens)
		items, calls := onceopenai.AppendResponse(a.items, resp)
		a.items = onceopenai.AppendOutputs(items, turn.Do(ctx, calls...))
		if closing || len(calls) == 0 || ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (a *responsesAgent) ask(ctx context.Context, params responses.ResponseNewParams, stream bool) (*responses.Response, error) {
	if !stream {
		return a.client.Responses.New(ctx, params)
	}
	s := a.client.Responses.NewStreaming(ctx, params)
	defer s.Close()
	var last *responses.Response
	for s.Next() {
		if e := s.Current(); e.Type == "response.completed" || e.Type == "response.incomplete" {
			last = &e.Response
		}
	}
	if last == nil && s.Err() == nil {
		return nil, fmt.Errorf("the stream ended early")
	}
	return last, s.Err()
}

// Hundreds of conversations, half of the turns streamed: whatever happens, the provider takes
// the conversation, and each call took effect as often as the model was told.
func TestEveryEndingIsAConversationThatTheProviderTakes(t *testing.T) {
	for api, agent := range map[history.API]func(openai.Client) modeltest.Agent{
		history.Chat:      func(c openai.Client) modeltest.Agent { return newChatAgent(c) },
		history.Responses: func(c openai.Client) modeltest.Agent { return newResponsesAgent(c) },
	} {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			modeltest.TellAll(t, api, func(rt *oncehttp.Transport) modeltest.Agent { return agent(newClient(rt, modeltest.URL)) })
		})
	}
}
