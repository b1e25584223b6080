package oncemcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/oncehttp/oncehttp"
	oncemcp "github.com/oncehttp/oncehttp/adapters/mcp"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// A shop is an MCP server whose tools do something that counts.
type shop struct {
	server *sdk.Server
	once   *oncehttp.Once

	mu      sync.Mutex
	effects map[string]int // by tool and raw arguments
	hold    chan struct{}  // a slow tool waits for it
	started chan struct{}  // and says that it has started
}

type refund struct {
	Order  string `json:"order"`
	Amount int64  `json:"amount"`
}

func newShop(scope func(*sdk.CallToolRequest) string) *shop {
	return newShopOn(new(oncehttp.MemoryStore), scope)
}

func newShopOn(store oncehttp.Store, scope func(*sdk.CallToolRequest) string) *shop {
	s := &shop{
		server: sdk.NewServer(&sdk.Implementation{Name: "shop", Version: "1"}, nil),
		once:   &oncehttp.Once{Store: store, Logger: quiet},
		hold:   make(chan struct{}), started: make(chan struct{}, 100),
	}
	s.server.AddReceivingMiddleware(oncemcp.Middleware(s.once, scope))
	object := json.RawMessage(`{"type":"object"}`)
	add := func(name string, f sdk.ToolHandler) {
		s.server.AddTool(&sdk.Tool{Name: name, InputSchema: object}, f)
	}
	done := func(text string) *sdk.CallToolResult {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
	}
	sdk.AddTool(s.server, &sdk.Tool{Name: "refund"}, func(_ context.Context, req *sdk.CallToolRequest, in refund) (*sdk.CallToolResult, refund, error) {
		s.did("refund", req.Params.Arguments)
		return nil, in, nil
	})
	add("raw", func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		n := s.did("raw", req.Params.Arguments)
		return &sdk.CallToolResult{
			Meta:              sdk.Meta{"io.example/big": json.RawMessage("9007199254740993")},
			Content:           []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf(`{"n":%d,"args":%s}`, n, req.Params.Arguments)}},
			StructuredContent: json.RawMessage(`{"big":9007199254740993}`),
		}, nil
	})
	add("slow", func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		s.started <- struct{}{}
		<-s.hold
		s.did("slow", req.Params.Arguments)
		return done("slow and done"), ctx.Err()
	})
	add("panics", func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		s.did("panics", req.Params.Arguments)
		panic("the password is hunter2")
	})
	add("breaks", func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		s.did("breaks", req.Params.Arguments)
		return nil, fmt.Errorf("wrapped: %w", &jsonrpc.Error{Code: 77, Message: "no", Data: json.RawMessage(`{"a":1}`)})
	})
	add("fails", func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		s.did("fails", req.Params.Arguments)
		r := done("card declined by hunter2 bank")
		r.IsError = true
		return r, nil
	})
	add("none", func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		s.did("none", req.Params.Arguments)
		return nil, nil
	})
	add("frees", func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		oncehttp.Release(ctx)
		return done(fmt.Sprint(s.did("frees", req.Params.Arguments))), nil
	})
	add("asks", func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		if len(req.Params.InputResponses) == 0 {
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"sure": &sdk.ElicitParams{Message: "Sure?"}}, RequestState: "x"}, nil
		}
		return done(fmt.Sprint(s.did("asks", req.Params.Arguments))), nil
	})
	return s
}

func (s *shop) did(tool string, args json.RawMessage) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.effects == nil {
		s.effects = make(map[string]int)
	}
	s.effects[tool+" "+string(args)]++
	return s.effects[tool+" "+string(args)]
}

// total is how often a tool took effect.
func (s *shop) total(tool string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for what, k := range s.effects {
		if strings.HasPrefix(what, tool+" ") {
			n += k
		}
	}
	return n
}

var client = sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, &sdk.ClientOptions{
	ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		return &sdk.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
	},
})

// transports are the ways to a shop. Each returns a function that opens a session.
var transports = map[string]func(*testing.T, *shop) func(context.Context) (*sdk.ClientSession, error){
	"in memory": inMemory,
	"over streamable HTTP": func(t *testing.T, s *shop) func(context.Context) (*sdk.ClientSession, error) {
		return overHTTP(t, s, nil, nil)
	},
	"over streamable HTTP with plain JSON": func(t *testing.T, s *shop) func(context.Context) (*sdk.ClientSession, error) {
		return overHTTP(t, s, nil, &sdk.StreamableHTTPOptions{JSONResponse: true})
	},
	"over stateless HTTP": func(t *testing.T, s *shop) func(context.Context) (*sdk.ClientSession, error) {
		return overHTTP(t, s, nil, &sdk.StreamableHTTPOptions{Stateless: true})
	},
}

func inMemory(t *testing.T, s *shop) func(context.Context) (*sdk.ClientSession, error) {
	return func(ctx context.Context) (*sdk.ClientSession, error) {
		c, far := sdk.NewInMemoryTransports()
		ss, err := s.server.Connect(context.WithoutCancel(ctx), far, nil)
		if err != nil {
			return nil, err
		}
		cs, err := client.Connect(context.WithoutCancel(ctx), c, nil)
		if err == nil {
			t.Cleanup(func() { cs.Close(); ss.Wait() })
		}
		return cs, err
	}
}

func overHTTP(t *testing.T, s *shop, hc *http.Client, opts *sdk.StreamableHTTPOptions) func(context.Context) (*sdk.ClientSession, error) {
	srv := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.server }, opts))
	t.Cleanup(srv.Close)
	return func(ctx context.Context) (*sdk.ClientSession, error) {
		cs, err := client.Connect(context.WithoutCancel(ctx), &sdk.StreamableClientTransport{Endpoint: srv.URL, HTTPClient: hc, DisableStandaloneSSE: true}, nil)
		if err == nil {
			t.Cleanup(func() { cs.Close() })
		}
		return cs, err
	}
}

func open(t *testing.T, connect func(context.Context) (*sdk.ClientSession, error)) *sdk.ClientSession {
	t.Helper()
	cs, err := connect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// call calls a tool with a key, or without one if it is nil.
func call(cs *sdk.ClientSession, tool string, key any, args string) (*sdk.CallToolResult, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p := &sdk.CallToolParams{Name: tool, Arguments: json.RawMessage(args)}
	if key != nil {
		p.Meta = sdk.Meta{oncemcp.Key: key}
	}
	return cs.CallTool(ctx, p)
}

// kind is the kind of a refusal, "" if err is none.
func kind(err error) string {
	var wire *jsonrpc.Error
	var d struct{ Type string }
	if !errors.As(err, &wire) || json.Unmarshal(wire.Data, &d) != nil {
		return ""
	}
	return strings.TrimPrefix(d.Type, "urn:oncehttp:")
}

// leaves checks that a test leaves no goroutine behind.
func leaves(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		var n int
		for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
			if n = runtime.NumGoroutine(); n <= before {
				return
			}
		}
		buf := make([]byte, 1<<20)
		t.Errorf("goroutines: got %d, want %d\n%s", n, before, buf[:runtime.Stack(buf, true)])
	})
}
