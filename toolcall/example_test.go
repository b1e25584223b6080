package toolcall_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
)

// A refund ran and its reply was lost. The model asks again, then tries a smaller amount.
func Example() {
	refunds := 0
	type refund struct {
		OrderID string `json:"order_id"`
		Amount  int64  `json:"amount"`
	}
	r := &toolcall.Runner{
		Scope:  "acme/support-agent",
		Store:  new(oncehttp.MemoryStore),
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	err := r.Register(toolcall.Tool{
		Name:    "refund_order",
		Effect:  toolcall.Unsafe,
		Note:    "the bank has no idempotency keys",
		Timeout: 10 * time.Second,
		Call: toolcall.Func(func(ctx context.Context, in refund) (any, error) {
			refunds++
			return nil, errors.New("connection reset by peer")
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	turn := r.Turn("conversation 7, message 3", toolcall.Budget{Calls: 20, Wall: time.Minute})
	for _, args := range []string{
		`{"order_id":"A-17","amount":100}`,
		`{"order_id":"A-17","amount":1.00e2}`,
		`{"order_id":"A-17","amount":10}`,
	} {
		for _, res := range turn.Do(context.Background(), toolcall.Call{Tool: "refund_order", Args: json.RawMessage(args)}) {
			fmt.Println(res.Status, res.Outcome, res.Next)
		}
	}
	fmt.Println("refunds:", refunds)
	// Output:
	// failed unknown verify
	// failed unknown verify
	// failed none verify
	// refunds: 1
}

// A tool over HTTP. The Transport sends the call's key, and repeats what may be
// repeated; HTTP turns what came back into the tool's result.
func ExampleHTTP() {
	bank := &oncehttp.Middleware{Store: new(oncehttp.MemoryStore)}
	srv := httptest.NewServer(bank.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("the bank refunds")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"refund":"r-1"}`)
	})))
	defer srv.Close()
	client := &http.Client{Transport: &oncehttp.Transport{}}

	store := new(oncehttp.MemoryStore) // or one that survives a restart
	r := &toolcall.Runner{Scope: "acme/support-agent", Store: store}
	err := r.Register(toolcall.Tool{
		Name:    "refund_order",
		Effect:  toolcall.Keyed,
		Timeout: 10 * time.Second,
		Call: func(ctx context.Context, args json.RawMessage) (any, error) {
			req, err := http.NewRequestWithContext(ctx, "POST", srv.URL+"/refunds", bytes.NewReader(args))
			if err != nil {
				return nil, toolcall.Permanent(err)
			}
			return toolcall.HTTP(client.Do(req))
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	turn := r.Turn("conversation 7, message 3", toolcall.Budget{Calls: 20, Wall: time.Minute})
	refund := toolcall.Call{Tool: "refund_order", ID: "call_1", Args: json.RawMessage(`{"order_id":"A-17","amount":100}`)}
	for range 2 {
		for _, res := range turn.Do(context.Background(), refund) { // one result for each call, in order
			fmt.Println(res.ID, res.Status, res.Outcome, res.Replayed, string(res.Result))
		}
	}
	// Output:
	// the bank refunds
	// call_1 ok applied false {"refund":"r-1"}
	// call_1 ok applied true {"refund":"r-1"}
}

// A wrong argument name is found before the tool runs.
func ExampleFunc() {
	type in struct {
		Train string `json:"train"`
	}
	r := &toolcall.Runner{Scope: "demo"}
	if err := r.Register(toolcall.Tool{
		Name:   "train_status",
		Effect: toolcall.Read,
		Call:   toolcall.Func(func(ctx context.Context, a in) (any, error) { return map[string]int{"delay": 4}, nil }),
	}); err != nil {
		fmt.Println(err)
		return
	}
	turn := r.Turn("turn_01", toolcall.Budget{})
	for _, res := range turn.Do(context.Background(),
		toolcall.Call{Tool: "train_status", Args: json.RawMessage(`{"train":"ICE 75"}`)},
		toolcall.Call{Tool: "train_status", Args: json.RawMessage(`{"trian":"ICE 75"}`)},
	) {
		fmt.Printf("%s %s%s\n", res.Status, res.Result, res.Details)
	}
	// Output:
	// ok {"delay":4}
	// failed argument "trian" does not exist; argument "train" is missing
}

func ExampleKey() {
	key, err := toolcall.Key(nil, "acme/support-agent", "refund_order", "turn_01", json.RawMessage(` {"amount":1.00e2,"order_id":"A-17"}`), 0)
	fmt.Println(key, err)
	// Output: tc1_5230094754c7fb5a3561e8a25b19aeeebe3a14db <nil>
}

// Exhausted tells the loop to ask the model once more, without tools.
func ExampleTurn_Exhausted() {
	r := &toolcall.Runner{Scope: "demo"}
	if err := r.Register(toolcall.Tool{
		Name:   "search",
		Effect: toolcall.Read,
		Call:   func(context.Context, json.RawMessage) (any, error) { return "found", nil },
	}); err != nil {
		fmt.Println(err)
		return
	}
	turn := r.Turn("turn_01", toolcall.Budget{Calls: 2})
	search := toolcall.Call{Tool: "search", Args: json.RawMessage(`{}`)}
	for _, res := range turn.Do(context.Background(), search, search, search) {
		fmt.Println(res.Status, res.ErrorType, res.Next)
	}
	fmt.Println("withhold tools:", turn.Exhausted())
	// Output:
	// ok  use_result
	// ok  use_result
	// failed budget_exceeded summarise_and_stop
	// withhold tools: true
}

func ExampleRunner_Audit() {
	nop := func(context.Context, json.RawMessage) (any, error) { return nil, nil }
	r := &toolcall.Runner{Scope: "demo", Store: new(oncehttp.MemoryStore)}
	if err := r.Register(
		toolcall.Tool{Name: "search", Effect: toolcall.Read, Call: nop},
		toolcall.Tool{Name: "refund_order", Effect: toolcall.Keyed, Timeout: time.Minute, Call: nop},
		toolcall.Tool{Name: "send_mail", Call: nop, Timeout: time.Minute, Note: "the provider has no keys"},
	); err != nil {
		fmt.Println(err)
		return
	}
	r.Audit().WriteTo(os.Stdout)
	// Output:
	// TOOL          EFFECT  REPEAT         REASON                                                                 PROBLEM
	// search        read    safe           changes nothing                                                        -
	// refund_order  keyed   safe with key  its server acts once for a key                                         -
	// send_mail     unsafe  unsafe         runs once; an unknown outcome stays unknown: the provider has no keys  -
}
