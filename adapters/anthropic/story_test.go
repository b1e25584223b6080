package onceanthropic_test

import (
	"context"
	"testing"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"

	"github.com/oncehttp/oncehttp"
	onceanthropic "github.com/oncehttp/oncehttp/adapters/anthropic"
	"github.com/oncehttp/oncehttp/internal/history"
	"github.com/oncehttp/oncehttp/internal/modeltest"
	"github.com/oncehttp/oncehttp/toolcall"
)

func newClient(t *oncehttp.Transport, url string) anthropic.Client {
	return anthropic.NewClient(append(onceanthropic.WithHTTPClient(t), option.WithBaseURL(url), option.WithAPIKey("test"))...)
}

// An agent is a loop over messages.
type agent struct {
	client anthropic.Client
	params anthropic.MessageNewParams
}

func newAgent(client anthropic.Client) *agent {
	return &agent{client, anthropic.MessageNewParams{
		Model:     "test",
		MaxTokens: 1024,
		Tools:     []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{Name: "pay"}}},
	}}
}

func (a *agent) Say(ctx context.Context, turn *toolcall.Turn, text string, stream bool) error {
	a.params.Messages = append(a.params.Messages, anthropic.NewUserMessage(anthropic.NewTextBlock(text)))
	for {
		params, closing := onceanthropic.MessageParams(turn, a.params)
		message, err := a.ask(ctx, params, stream)
		if err != nil {
			return err
		}
		turn.Spend(message.Usage.InputTokens + message.Usage.OutputTokens)
		messages, calls := onceanthropic.AppendMessage(params.Messages, message)
		a.params.Messages = onceanthropic.AppendResults(messages, turn.Do(ctx, calls...))
		if closing || len(calls) == 0 || ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (a *agent) ask(ctx context.Context, params anthropic.MessageNewParams, stream bool) (*anthropic.Message, error) {
	if !stream {
		return a.client.Messages.New(ctx, params)
	}
	s := a.client.Messages.NewStreaming(ctx, params)
	defer s.Close()
	var m anthropic.Message
	for s.Next() {
		if err := m.Accumulate(s.Current()); err != nil {
			return nil, err
		}
	}
	return &m, s.Err()
}

// Hundreds of conversations, half of the turns streamed: whatever happens, the provider takes
// the conversation, and each call took effect as often as the model was told.
func TestEveryEndingIsAConversationThatTheProviderTakes(t *testing.T) {
	modeltest.TellAll(t, history.Messages, func(rt *oncehttp.Transport) modeltest.Agent { return newAgent(newClient(rt, modeltest.URL)) })
}
