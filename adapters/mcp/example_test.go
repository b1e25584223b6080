package oncemcp_test

import (
	"context"
	"log"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/oncehttp/oncehttp"
	oncemcp "github.com/oncehttp/oncehttp/adapters/mcp"
	"github.com/oncehttp/oncehttp/toolcall"
)

func ExampleMiddleware() {
	server := sdk.NewServer(&sdk.Implementation{Name: "shop", Version: "1"}, nil)
	once := &oncehttp.Once{Store: new(oncehttp.MemoryStore)} // or one that survives a restart
	server.AddReceivingMiddleware(oncemcp.Middleware(once, nil))
}

func ExampleClient() {
	ctx := context.Background()
	agent := sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, nil)
	session, err := agent.Connect(ctx, &sdk.StreamableClientTransport{Endpoint: "https://shop.example/mcp"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	shop := &oncemcp.Client{
		Session: func(context.Context) (*sdk.ClientSession, error) { return session, nil },
		Effects: map[string]toolcall.Effect{"refund_order": toolcall.Keyed}, // its server has the Middleware
		Timeout: 10 * time.Second,
	}
	r := &toolcall.Runner{Scope: "acme/support-agent", Store: new(oncehttp.MemoryStore)}
	for tool, err := range session.Tools(ctx, nil) {
		if err == nil {
			err = r.Register(shop.Tool(tool))
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}
