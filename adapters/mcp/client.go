package oncemcp

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
)

// A Client makes the tools of an MCP server tools of a [toolcall.Runner].
type Client struct {
	// Session returns the session for an attempt: a new one if the last broke. Required.
	Session func(context.Context) (*sdk.ClientSession, error)
	// Effects are what the caller knows of tools, by name. They win over annotations.
	Effects map[string]toolcall.Effect
	// Trusted believes the server's annotations. Otherwise they loosen nothing: what is
	// not in Effects is Unsafe.
	Trusted bool
	// Timeout is that of each tool.
	Timeout time.Duration
	// Failed judges a result with isError. If it returns nil, that is a success. Nil: permanent, outcome unknown.
	Failed func(*sdk.CallToolResult) error
}

// Tool makes one tool. Its calls carry their key, except those of a Read tool.
func (c *Client) Tool(t *sdk.Tool) toolcall.Tool {
	tool := toolcall.Tool{Name: t.Name, Timeout: c.Timeout}
	effect, declared := c.Effects[t.Name]
	switch a := t.Annotations; {
	case declared:
		tool.Effect, tool.Note = effect, "declared by the caller"
	case a == nil || !c.Trusted:
	case a.ReadOnlyHint:
		tool.Effect, tool.Note = toolcall.Read, "the server's readOnlyHint"
	case a.IdempotentHint:
		tool.Effect, tool.Note = toolcall.Idempotent, "the server's idempotentHint"
	}
	tool.Call = func(ctx context.Context, args json.RawMessage) (any, error) {
		session, err := c.Session(ctx)
		if err != nil {
			return nil, &toolcall.Error{Type: toolcall.TypeTransient, NotSent: true, Err: err}
		}
		params := &sdk.CallToolParams{Name: t.Name, Arguments: args}
		if key, ok := toolcall.KeyFromContext(ctx); ok && tool.Effect != toolcall.Read {
			params.Meta = sdk.Meta{Key: key}
		}
		// An attempt is a JSON-RPC request of its own, so its HTTP request has a key of its own.
		res, err := session.CallTool(oncehttp.WithKey(ctx, oncehttp.NewKey()), params)
		switch {
		case err != nil:
			return nil, failure(err)
		case res.IsError && c.Failed == nil:
			return nil, errors.New("mcp: the tool says that it failed")
		case res.IsError:
			if err := c.Failed(res); err != nil {
				return nil, err
			}
		}
		return value(res), nil
	}
	return tool
}

// failure judges the error of a call. What the server did not say is a connection that broke.
func failure(err error) error {
	var wire *jsonrpc.Error
	var below *oncehttp.Error
	switch {
	case errors.As(err, &below):
		return err // the Runner knows its kind
	case !errors.As(err, &wire), wire.Code <= -32003 && wire.Code >= -32005: // the SDK's own codes
		return toolcall.Transient(err)
	case wire.Code == jsonrpc.CodeInvalidParams:
		return &toolcall.Error{Type: toolcall.TypeBadArguments, Details: "the MCP server refuses the parameters", Err: err}
	case wire.Code == jsonrpc.CodeMethodNotFound: // an earlier attempt may have met another server
		return &toolcall.Error{Type: toolcall.TypePermanent, NotSent: true, Err: err}
	}
	if refused := toolcall.Refused(wire.Data, err); refused != nil {
		return refused
	}
	return err
}

// value is what the model is given. A text that is JSON comes first: it has every digit
// of an integer, where the SDK has a float64 in StructuredContent.
func value(res *sdk.CallToolResult) any {
	text, _ := sole(res.Content).(*sdk.TextContent)
	switch {
	case text != nil && json.Valid([]byte(text.Text)):
		return json.RawMessage(text.Text)
	case res.StructuredContent != nil:
		return res.StructuredContent
	case text != nil:
		return text.Text
	}
	return res.Content
}

func sole(c []sdk.Content) sdk.Content {
	if len(c) == 1 {
		return c[0]
	}
	return nil
}
