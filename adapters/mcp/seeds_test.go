package oncemcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/oncehttp/oncehttp"
	oncemcp "github.com/oncehttp/oncehttp/adapters/mcp"
	"github.com/oncehttp/oncehttp/toolcall"
)

// What becomes of a tools/call on its way.
const (
	arrives    = iota
	neverSent  // the connection breaks before it
	lost       // it never arrives, and nobody says so
	replyLost  // it is done, and nobody says so
	replyBreak // it is done, and the connection breaks
	twice      // somebody in between sends it a second time
	fates
)

// A road is a transport on which a tools/call meets its fate.
type road struct {
	sdk.Transport
	fate   func() int
	broken *atomic.Bool
}

func (r road) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := r.Transport.Connect(ctx)
	return &roadConn{Connection: c, road: r, swallow: make(map[any]int)}, err
}

type roadConn struct {
	sdk.Connection
	road

	mu      sync.Mutex
	swallow map[any]int // by request id, the fate of its reply
}

func (c *roadConn) breakOff() {
	c.broken.Store(true)
	c.Close()
}

func (c *roadConn) Write(ctx context.Context, m jsonrpc.Message) error {
	req, ok := m.(*jsonrpc.Request)
	if !ok || req.Method != "tools/call" {
		return c.Connection.Write(ctx, m)
	}
	fate := c.fate()
	c.mu.Lock()
	c.swallow[req.ID.Raw()] = fate
	c.mu.Unlock()
	switch fate {
	case neverSent:
		c.breakOff()
		return io.ErrClosedPipe
	case lost:
		return nil
	case twice:
		again := *req
		again.ID, _ = jsonrpc.MakeID(fmt.Sprint("again ", req.ID.Raw()))
		if err := c.Connection.Write(ctx, &again); err != nil {
			return err
		}
	}
	return c.Connection.Write(ctx, m)
}

func (c *roadConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		m, err := c.Connection.Read(ctx)
		resp, ok := m.(*jsonrpc.Response)
		if err != nil || !ok {
			return m, err
		}
		c.mu.Lock()
		fate := c.swallow[resp.ID.Raw()]
		c.mu.Unlock()
		switch fate {
		case replyLost:
			continue
		case replyBreak:
			c.breakOff()
			return nil, io.ErrUnexpectedEOF
		}
		return m, nil
	}
}

// An agent whose calls, replies and connections are lost, which crashes and comes back
// with or without what it had recorded, and whose model repeats itself, causes one
// effect; and no more than one if it is never told that it did.
func TestAThousandBadRoadsAreOneEffectEach(t *testing.T) {
	var oks, unknowns, replays int
	for seed := range uint64(1000) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			effects, results := 0, make(map[string]bool)
			var mu sync.Mutex
			server := sdk.NewServer(&sdk.Implementation{Name: "bank", Version: "1"}, nil)
			server.AddReceivingMiddleware(oncemcp.Middleware(&oncehttp.Once{Store: new(oncehttp.MemoryStore), Logger: quiet}, nil))
			work := time.Duration(rng.IntN(4)) * time.Second
			server.AddTool(&sdk.Tool{Name: "pay", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				time.Sleep(work)
				mu.Lock()
				defer mu.Unlock()
				effects++
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf(`{"payment":%d,"args":%s}`, effects, req.Params.Arguments)}}}, nil
			})
			next := func() int {
				mu.Lock()
				defer mu.Unlock()
				return rng.IntN(fates)
			}
			var open []interface{ Close() error }
			var session *sdk.ClientSession
			var broken atomic.Bool
			connect := func(ctx context.Context) (*sdk.ClientSession, error) {
				if session != nil && !broken.Load() {
					return session, nil
				}
				broken.Store(false)
				near, far := sdk.NewInMemoryTransports()
				ss, err := server.Connect(context.WithoutCancel(ctx), far, nil)
				if err != nil {
					return nil, err
				}
				cs, err := client.Connect(context.WithoutCancel(ctx), road{near, next, &broken}, nil)
				if err == nil {
					open = append(open, cs, ss)
				}
				session = cs
				return cs, err
			}
			pay := (&oncemcp.Client{Session: connect, Timeout: 2 * time.Second, Effects: map[string]toolcall.Effect{"pay": toolcall.Keyed}}).Tool(&sdk.Tool{Name: "pay"})
			store := new(oncehttp.MemoryStore)
			told := false
			for range 1 + rng.IntN(3) {
				if rng.IntN(3) == 0 {
					store = new(oncehttp.MemoryStore) // and what it knew is lost
				}
				r := &toolcall.Runner{Scope: "acme/agent", Store: store, Logger: quiet}
				if err := r.Register(pay); err != nil {
					t.Fatal(err)
				}
				turn := r.Turn("turn_01", toolcall.Budget{})
				for range 1 + rng.IntN(2) {
					res := turn.Do(t.Context(), toolcall.Call{Tool: "pay", Args: json.RawMessage(`{"amount":9007199254740993}`)})[0]
					switch res.Outcome {
					case toolcall.OutcomeApplied:
						told = true
						oks++
						results[string(res.Result)] = true
					case toolcall.OutcomeUnknown:
						unknowns++
					}
					if res.Replayed {
						replays++
					}
				}
				if err := r.Drain(t.Context()); err != nil {
					t.Error(err)
				}
			}
			for _, c := range open {
				c.Close()
			}
			time.Sleep(time.Minute)
			if effects > 1 || told && effects != 1 || len(results) > 1 {
				t.Errorf("seed %d: %d effects, told that it is done: %v, results %v", seed, effects, told, results)
			}
		})
	}
	t.Logf("%d told done, %d of them replays; %d told unknown", oks, replays, unknowns)
	if oks < 500 || unknowns < 100 || replays < 100 {
		t.Error("the roads are not as bad, or not as good, as they should be")
	}
}

// A reply is lost, and the next attempt meets a server that has no tools. That one knows
// nothing of what the first one did.
func TestAServerWithoutToolsDoesNotSettleWhatAnotherDid(t *testing.T) {
	for lost, want := range map[bool]string{true: "failed permanent unknown", false: "failed permanent none"} {
		synctest.Test(t, func(t *testing.T) {
			busy := sdk.NewServer(&sdk.Implementation{Name: "bank", Version: "1"}, nil)
			busy.AddTool(&sdk.Tool{Name: "pay", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				time.Sleep(time.Minute)
				return &sdk.CallToolResult{}, nil
			})
			bare := sdk.NewServer(&sdk.Implementation{Name: "bank", Version: "2"}, nil)
			bare.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
				return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
					if method == "tools/call" {
						return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no tools"}
					}
					return next(ctx, method, req)
				}
			})
			servers := []*sdk.Server{bare}
			if lost {
				servers = []*sdk.Server{busy, bare}
			}
			var open []interface{ Close() error }
			connect := func(ctx context.Context) (*sdk.ClientSession, error) {
				near, far := sdk.NewInMemoryTransports()
				ss, err := servers[0].Connect(context.WithoutCancel(ctx), far, nil)
				if err != nil {
					return nil, err
				}
				servers = servers[1:]
				cs, err := client.Connect(context.WithoutCancel(ctx), near, nil)
				if err == nil {
					open = append(open, cs, ss)
				}
				return cs, err
			}
			r := &toolcall.Runner{Scope: "acme/agent", Store: new(oncehttp.MemoryStore), Logger: quiet}
			c := &oncemcp.Client{Session: connect, Timeout: 2 * time.Second, Effects: map[string]toolcall.Effect{"pay": toolcall.Keyed}}
			if err := r.Register(c.Tool(&sdk.Tool{Name: "pay"})); err != nil {
				t.Fatal(err)
			}
			res := r.Turn("turn_01", toolcall.Budget{}).Do(t.Context(), toolcall.Call{Tool: "pay"})[0]
			if told(res) != want {
				t.Errorf("a reply was lost %v: got %s (%v), want %s", lost, told(res), res.Err, want)
			}
			time.Sleep(2 * time.Minute)
			for _, c := range open {
				c.Close()
			}
			synctest.Wait()
		})
	}
}
