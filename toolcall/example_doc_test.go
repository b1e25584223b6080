package toolcall_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log"
	"net/http"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
)

// A tool over HTTP, and one message's calls.
func ExampleHTTP_tool() {
	ctx := context.Background()
	client := &http.Client{Transport: &oncehttp.Transport{}}
	refundsURL := "https://payments.example/refunds"
	var calls []toolcall.Call
	send := func(id string, result []byte) {}

	store := new(oncehttp.MemoryStore) // or one that survives a restart
	r := &toolcall.Runner{Scope: "acme/support-agent", Store: store}
	err := r.Register(toolcall.Tool{
		Name:    "refund_order",
		Effect:  toolcall.Keyed,
		Timeout: 10 * time.Second,
		Call: func(ctx context.Context, args json.RawMessage) (any, error) {
			req, err := http.NewRequestWithContext(ctx, "POST", refundsURL, bytes.NewReader(args))
			if err != nil {
				return nil, toolcall.Permanent(err)
			}
			return toolcall.HTTP(client.Do(req)) // client's Transport is an *oncehttp.Transport
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	turn := r.Turn("conversation 7, message 3", toolcall.Budget{Calls: 20, Wall: time.Minute})
	for _, res := range turn.Do(ctx, calls...) { // one result for each call, in order
		send(res.ID, res.JSON())
	}
}
