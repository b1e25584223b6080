package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/oncehttp/oncehttp"
)

// A way is one manner of making the calls.
type way struct {
	name string
	// send makes one tool call: a POST of its arguments to url.
	send func(ctx context.Context, url, turn string, c call) (*http.Response, error)
	// server is put around the payment provider's handler. Nil leaves it as it is.
	server func(http.Handler) http.Handler
}

// ways returns the three that are compared, oncehttp last.
func ways() []way {
	return []way{
		{name: "http.Client and a retry loop", send: naively(&http.Client{})},
		{name: "go-retryablehttp, defaults", send: retryably()},
		{name: "oncehttp", send: once(&http.Client{Transport: &oncehttp.Transport{}}), server: protected},
	}
}

// protected is the server half of oncehttp.
func protected(h http.Handler) http.Handler {
	return (&oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}).Handler(h)
}

// once names the action before it sends: the same tool with the same arguments in
// the same turn is the same action, however the model spells it and however often
// it asks.
func once(client *http.Client) func(ctx context.Context, url, turn string, c call) (*http.Response, error) {
	return func(ctx context.Context, url, turn string, c call) (*http.Response, error) {
		args, err := canonical(c.args)
		if err != nil {
			return nil, err
		}
		ctx = oncehttp.WithAction(ctx, oncehttp.DeriveKey(turn, c.tool, args))
		return post(ctx, client, url, c.args)
	}
}

// naively is the loop that everybody has written once.
func naively(client *http.Client) func(ctx context.Context, url, turn string, c call) (*http.Response, error) {
	return func(ctx context.Context, url, turn string, c call) (*http.Response, error) {
		for try := 1; ; try++ {
			resp, err := post(ctx, client, url, c.args)
			if try == 5 || err == nil && resp.StatusCode < 500 {
				return resp, err
			}
			if err == nil {
				resp.Body.Close()
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// retryably leaves go-retryablehttp as it comes, but for its log.
func retryably() func(ctx context.Context, url, turn string, c call) (*http.Response, error) {
	client := retryablehttp.NewClient()
	client.Logger = nil
	return func(ctx context.Context, url, turn string, c call) (*http.Response, error) {
		return post(ctx, client.StandardClient(), url, c.args)
	}
}

func post(ctx context.Context, client *http.Client, url string, args json.RawMessage) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(args))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return client.Do(req)
}
