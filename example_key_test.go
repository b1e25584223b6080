package oncehttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/oncehttp/oncehttp"
)

// An order is refunded at most once, so its key is named after it. A program
// that starts anew and asks again sends the same key.
func ExampleWithKey() {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("key:", r.Header.Get(oncehttp.Header))
	}))
	defer srv.Close()
	client := &http.Client{Transport: &oncehttp.Transport{}}

	refund := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, "POST", srv.URL+"/refunds", strings.NewReader(`{"order":"A-17"}`))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}

	ctx := oncehttp.WithKey(context.Background(), "refund-A-17")
	fmt.Println(refund(ctx))

	// A key that is none fails the request. Were it replaced by a random one, a
	// repeat would be another refund.
	orderID := ""
	err := refund(oncehttp.WithKey(context.Background(), orderID))
	fmt.Println(errors.Is(err, oncehttp.ErrBadKey))
	// Output:
	// key: refund-A-17
	// <nil>
	// true
}

// Cancelling an order takes several requests. The action gives each its key, and
// the same ones when all of it is done again.
func ExampleWithAction() {
	sent := map[string]int{} // how often each key came
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent[r.Header.Get(oncehttp.Header)]++
	}))
	defer srv.Close()
	client := &http.Client{Transport: &oncehttp.Transport{}}

	send := func(ctx context.Context, method, path, body string) error {
		req, err := http.NewRequestWithContext(ctx, method, srv.URL+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	cancel := func(ctx context.Context) error {
		ctx = oncehttp.WithAction(ctx, "cancel order A-17")
		err := send(ctx, "DELETE", "/orders/A-17", "")
		// Two refunds go to one path. Each is a step with a name.
		for i, amount := range []int{100, 20} {
			step := oncehttp.WithAction(ctx, fmt.Sprint("line ", i+1))
			err = errors.Join(err, send(step, "POST", "/refunds", fmt.Sprintf(`{"amount":%d}`, amount)))
		}
		return err
	}
	fmt.Println(cancel(context.Background()), len(sent), "keys")
	fmt.Println(cancel(context.Background()), len(sent), "keys")

	// Without names the second refund would look like a repeat of the first.
	ctx := oncehttp.WithAction(context.Background(), "cancel order B-4")
	fmt.Println(send(ctx, "POST", "/refunds", `{"amount":100}`))
	fmt.Println(errors.Is(send(ctx, "POST", "/refunds", `{"amount":20}`), oncehttp.ErrActionReused))
	// Output:
	// <nil> 3 keys
	// <nil> 3 keys
	// <nil>
	// true
}

func ExampleDeriveKey() {
	fmt.Println(oncehttp.DeriveKey("refund", "A-17"))
	fmt.Println(oncehttp.DeriveKey("refund", "A-17"))
	fmt.Println(oncehttp.DeriveKey("refund", "A-1", "7"))
	// Output:
	// ok1_c442ea8d90708fba1d3e72da7969713ca4cacae5
	// ok1_c442ea8d90708fba1d3e72da7969713ca4cacae5
	// ok1_1eee14ec8dc14479a6aeb9f467dc9b36ba526fd6
}

// The bare form and the quoted form of the IETF draft are the same key.
func ExampleParseKey() {
	for _, value := range []string{`order-17`, `"order-17"`, `order-17, order-18`} {
		key, err := oncehttp.ParseKey(http.Header{oncehttp.Header: {value}})
		fmt.Printf("%q %v\n", key, err)
	}
	_, err := oncehttp.ParseKey(http.Header{})
	fmt.Println(err == oncehttp.ErrNoKey)
	// Output:
	// "order-17" <nil>
	// "order-17" <nil>
	// "" oncehttp: bad idempotency key: Idempotency-Key header: it is a list or contains a comma; send one key, in double quotes if it contains a comma
	// true
}
