package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A told is what a client knows in the end.
type told struct {
	Entry   int64 // the transfer's number in the ledger; 0: it was not told of success
	Unknown bool  // it was told that nobody knows
	Tries   int
	Why     string // what it was told instead
}

// newClient makes a client that has nothing from any other one, and tries again with
// the same key.
func newClient() *http.Client {
	return &http.Client{Transport: &oncehttp.Transport{
		Base:        &http.Transport{},
		Attempts:    6,
		BackoffBase: 20 * time.Millisecond,
		BackoffCap:  200 * time.Millisecond,
		// A server that dies as often as this one would not be asked for a while.
		Breaker: &oncehttp.Breaker{Disabled: true},
	}}
}

// ask has a transfer made. Its memo is its key.
func ask(ctx context.Context, client *http.Client, url string, x transfer) told {
	body, err := json.Marshal(x)
	if err != nil {
		return told{Why: err.Error()}
	}
	ctx = oncehttp.WithKey(ctx, x.Memo)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/tools/transfer", bytes.NewReader(body))
	if err != nil {
		return told{Why: err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return told{Why: err.Error()}
	}
	defer resp.Body.Close()
	t := told{Tries: len(oncehttp.Attempts(resp).Tries)}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		t.Why = err.Error()
		return t
	}
	var got transfer
	if resp.StatusCode == http.StatusCreated && json.Unmarshal(text, &got) == nil {
		t.Entry = got.ID
		return t
	}
	var problem struct{ Type string }
	json.Unmarshal(text, &problem)
	t.Unknown = problem.Type == "urn:oncehttp:outcome-unknown"
	t.Why = fmt.Sprintf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	return t
}
