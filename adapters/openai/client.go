// Package onceopenai connects package toolcall to openai-go: it makes the tool calls of
// a model's answer into a conversation that every provider accepts and into calls
// for [toolcall.Turn.Do], and the results into messages. docs/toolcall.md shows a loop.
//
// For the Responses API there are [ResponseParams], [AppendResponse] and [AppendOutputs]. Answers that
// were streamed serve as well: a Choice of an openai.ChatCompletionAccumulator, and the
// Response of the event response.completed or response.incomplete.
package onceopenai

import (
	"net/http"

	"github.com/openai/openai-go/v3/option"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall/adapter"
)

// WithHTTPClient returns options for openai.NewClient that send everything through t and turn the
// SDK's own retries off, so that t alone repeats, under one key. A model that is called
// inside a tool does not use up the key of the tool's call: see [adapter.Transport].
func WithHTTPClient(t *oncehttp.Transport) []option.RequestOption {
	rt := &adapter.Transport{Transport: t, Paths: []string{"/chat/completions", "/responses"}}
	return []option.RequestOption{option.WithHTTPClient(&http.Client{Transport: rt}), option.WithMaxRetries(0)}
}
