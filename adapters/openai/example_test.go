package onceopenai_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/oncehttp/oncehttp"
	onceopenai "github.com/oncehttp/oncehttp/adapters/openai"
	"github.com/oncehttp/oncehttp/internal/history"
	"github.com/oncehttp/oncehttp/internal/modeltest"
	"github.com/oncehttp/oncehttp/toolcall"
)

// answer is what an agent does about a message of its user.
func answer(ctx context.Context, client openai.Client, turn *toolcall.Turn, params openai.ChatCompletionNewParams) ([]openai.ChatCompletionMessageParamUnion, error) {
	for {
		request, closing := onceopenai.ChatParams(turn, params)
		completion, err := client.Chat.Completions.New(ctx, request)
		if err != nil {
			return params.Messages, err
		}
		turn.Spend(completion.Usage.TotalTokens)
		if len(completion.Choices) == 0 {
			return params.Messages, errors.New("the model gave no answer")
		}
		messages, calls := onceopenai.AppendChoice(params.Messages, completion.Choices[0])
		params.Messages = onceopenai.AppendResults(messages, turn.Do(ctx, calls...))
		if closing || len(calls) == 0 {
			return params.Messages, nil
		}
	}
}

// A model calls a tool, calls it again, and says what came of it.
func Example() {
	srv := httptest.NewServer(&modeltest.Server{API: history.Chat, Next: func(n int, _ bool) modeltest.Answer {
		if n > 2 {
			return modeltest.Answer{Text: "Your refund is made."}
		}
		return modeltest.Answer{Calls: []modeltest.Call{{ID: "call_1", Name: "refund_order", Args: `{"order_id":"A-17"}`}}}
	}})
	defer srv.Close()

	refunds := 0
	r := &toolcall.Runner{Scope: "acme/support-agent", Store: new(oncehttp.MemoryStore)}
	err := r.Register(toolcall.Tool{Name: "refund_order", Effect: toolcall.Unsafe, Timeout: 10 * time.Second, Call: func(context.Context, json.RawMessage) (any, error) {
		refunds++
		return "refunded", nil
	}})
	if err != nil {
		fmt.Println(err)
		return
	}

	t := &oncehttp.Transport{}
	client := openai.NewClient(append(onceopenai.WithHTTPClient(t), option.WithBaseURL(srv.URL), option.WithAPIKey("test"))...)
	messages, err := answer(context.Background(), client, r.Turn("conversation 7, message 3", toolcall.Budget{Calls: 20}), openai.ChatCompletionNewParams{
		Model:    "test",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Refund A-17, please.")},
		Tools:    []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "refund_order"})},
	})
	fmt.Println(len(messages), "messages,", refunds, "refund, error", err)
	// Output:
	// 6 messages, 1 refund, error <nil>
}
