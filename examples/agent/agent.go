package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"

	"github.com/oncehttp/oncehttp"
	onceopenai "github.com/oncehttp/oncehttp/adapters/openai"
	"github.com/oncehttp/oncehttp/toolcall"
)

// An agent answers a user with the help of a model and its tools.
type agent struct {
	client openai.Client
	runner *toolcall.Runner
	params openai.ChatCompletionNewParams // with the whole conversation
	out    io.Writer
}

func newAgent(modelURL, shopURL string, store oncehttp.Store, out io.Writer) (*agent, error) {
	options := onceopenai.WithHTTPClient(&oncehttp.Transport{})
	a := &agent{
		client: openai.NewClient(append(options, option.WithBaseURL(modelURL), option.WithAPIKey("none"))...),
		// An operator would be told of unknown outcomes; here the conversation tells it.
		runner: &toolcall.Runner{Scope: "acme/support-agent", Store: store, Logger: slog.New(slog.DiscardHandler)},
		params: openai.ChatCompletionNewParams{Model: "script"},
		out:    out,
	}
	shop := &http.Client{Transport: &oncehttp.Transport{Attempts: 2, AttemptTimeout: time.Second, BackoffBase: 50 * time.Millisecond}}
	for _, tool := range []struct{ name, path, schema string }{
		{"refund_order", "/refunds", `{"type":"object","properties":{"order_id":{"type":"string"},"amount_cents":{"type":"integer"}}}`},
		{"move_points", "/points", `{"type":"object","properties":{"card":{"type":"string"},"points":{"type":"integer"}}}`},
		{"send_coupon", "/coupons", `{"type":"object","properties":{"customer":{"type":"string"},"percent":{"type":"integer"}}}`},
	} {
		if err := a.runner.Register(toolcall.Tool{
			Name:    tool.name,
			Effect:  toolcall.Keyed,
			Timeout: 10 * time.Second,
			Call: func(ctx context.Context, args json.RawMessage) (any, error) {
				req, err := http.NewRequestWithContext(ctx, "POST", shopURL+tool.path, bytes.NewReader(args))
				if err != nil {
					return nil, toolcall.Permanent(err)
				}
				return toolcall.HTTP(shop.Do(req))
			},
		}); err != nil {
			return nil, err
		}
		var schema shared.FunctionParameters
		if err := json.Unmarshal([]byte(tool.schema), &schema); err != nil {
			return nil, err
		}
		a.params.Tools = append(a.params.Tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: tool.name, Parameters: schema}))
	}
	return a, nil
}

// say adds what the user says to the conversation, and answers it: the turn.
func (a *agent) say(ctx context.Context, turn *toolcall.Turn, text string) error {
	fmt.Fprintf(a.out, "\nuser    %s\n", text)
	a.params.Messages = append(a.params.Messages, openai.UserMessage(text))
	for {
		params, closing := onceopenai.ChatParams(turn, a.params)
		completion, err := a.client.Chat.Completions.New(ctx, params)
		if err != nil {
			return err
		}
		turn.Spend(completion.Usage.TotalTokens)
		if len(completion.Choices) == 0 {
			return errors.New("the model gave no answer")
		}
		messages, calls := onceopenai.AppendChoice(a.params.Messages, completion.Choices[0])
		results := turn.Do(ctx, calls...)
		a.params.Messages = onceopenai.AppendResults(messages, results)
		a.show(completion.Choices[0].Message.Content, calls, results)
		if closing || len(calls) == 0 {
			return nil
		}
	}
}

// show prints what the model said, and what it is told of its calls.
func (a *agent) show(text string, calls []toolcall.Call, results []toolcall.Result) {
	if text != "" {
		fmt.Fprintf(a.out, "model   %s\n", text)
	}
	for i, c := range calls {
		r := results[i]
		why := string(r.Status)
		if r.ErrorType != "" {
			why += ", " + string(r.ErrorType)
		}
		if r.Replayed {
			why += ", replayed"
		}
		fmt.Fprintf(a.out, "call    %s %s\n", c.Tool, c.Args)
		fmt.Fprintf(a.out, "result  %s; outcome %s; next %s\n", why, r.Outcome, r.Next)
	}
}
