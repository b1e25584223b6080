// Package oncemcp makes tools/call of the Model Context Protocol take effect once for a key,
// over github.com/modelcontextprotocol/go-sdk. docs/mcp.md tells how.
package oncemcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
	"github.com/oncehttp/oncehttp/toolcall/adapter"
)

// Key is the member of a call's _meta that holds its key, as an Idempotency-Key header would.
// Replayed is the member of a result's _meta that says that this call did not run the tool.
const (
	Key      = "io.github.oncehttp/idempotency-key"
	Replayed = "io.github.oncehttp/replayed"
)

// Middleware is for [sdk.Server.AddReceivingMiddleware]. A tools/call with a Key runs once;
// repeats get its result, or wait for it up to once.Wait. scope says who calls, and "" is
// refused. Nil: the user of a verified token; without one the record is bound to the
// Authorization, X-Api-Key or Cookie header. A panic, of any method, becomes an error.
func Middleware(once *oncehttp.Once, scope func(*sdk.CallToolRequest) string) sdk.Middleware {
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (res sdk.Result, err error) {
			defer adapter.Contain(ctx, once.Logger, "mcp", method, func(e *adapter.RPCError) { res, err = nil, (*jsonrpc.Error)(e) })
			if call, ok := req.(*sdk.CallToolRequest); ok && call.Params != nil {
				if key, keyed := call.Params.Meta[Key]; keyed {
					return answer(served(call, key, scope).Once(ctx, once, func(ctx context.Context) adapter.End {
						return end(next(ctx, method, req))
					}))
				}
			}
			return next(ctx, method, req)
		}
	}
}

// served is the call, and who asks for it.
func served(call *sdk.CallToolRequest, key any, scope func(*sdk.CallToolRequest) string) *adapter.Served {
	c := &adapter.Served{Protocol: "mcp", Tool: call.Params.Name, Args: call.Params.Arguments, Key: key}
	switch x := call.Extra; {
	case scope != nil:
		c.Kind, c.Who = "scope", scope(call)
	case x != nil && x.TokenInfo != nil && x.TokenInfo.UserID != "":
		c.Kind, c.Who = "user", x.TokenInfo.UserID
	case x != nil:
		c.Header = x.Header
	}
	return c
}

// end is how a tool ended. If it asks for input, the call comes again with that.
func end(own sdk.Result, failure error) adapter.End {
	var wire *jsonrpc.Error
	errors.As(failure, &wire)
	e := adapter.End{Err: failure, Wire: (*adapter.RPCError)(wire)}
	if res, _ := own.(*sdk.CallToolResult); res != nil {
		e.Result, e.Failed, e.Again = res, res.IsError, res.InputRequests != nil
	}
	return e
}

// answer is a result with every digit of its numbers: the SDK decodes them as float64.
func answer(reply adapter.Reply) (sdk.Result, error) {
	res, exact := new(sdk.CallToolResult), struct {
		Meta              sdk.Meta        `json:"_meta"`
		StructuredContent json.RawMessage `json:"structuredContent"`
	}{Meta: sdk.Meta{}}
	if e := reply.Decode(res, &exact); e != nil {
		return nil, (*jsonrpc.Error)(e)
	}
	if exact.StructuredContent != nil {
		res.StructuredContent = exact.StructuredContent
	}
	if res.Meta = exact.Meta; reply.Repeated {
		res.Meta[Replayed] = true
	}
	return res, nil
}

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
	tool, a := toolcall.Tool{Name: t.Name, Timeout: c.Timeout}, cmp.Or(t.Annotations, &sdk.ToolAnnotations{})
	adapter.Hints{ReadOnly: a.ReadOnlyHint, Idempotent: a.IdempotentHint}.Declare(&tool, c.Effects, c.Trusted)
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
			var wire *jsonrpc.Error
			if errors.As(err, &wire) && wire.Code <= -32003 && wire.Code >= -32005 {
				wire = nil // the SDK's own codes: the server did not say it
			}
			return nil, (*adapter.RPCError)(wire).Judge(err)
		case !res.IsError:
			return value(res), nil
		case c.Failed == nil:
			return nil, errors.New("mcp: the tool says that it failed")
		}
		return value(res), c.Failed(res)
	}
	return tool
}

// value is what the model is given. A text that is JSON comes first: it has every digit
// of an integer, where the SDK has a float64 in StructuredContent.
func value(res *sdk.CallToolResult) (v any) {
	v = res.Content
	if len(res.Content) == 1 {
		if text, ok := res.Content[0].(*sdk.TextContent); ok {
			v = adapter.Value(text.Text)
		}
	}
	if _, exact := v.(json.RawMessage); !exact && res.StructuredContent != nil {
		return res.StructuredContent
	}
	return v
}
