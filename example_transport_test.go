package oncehttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A payment service makes the refund, but its first reply is lost. The client
// does not notice: the second attempt carries the same key and gets the first
// result.
func ExampleTransport() {
	refunds := 0
	done := map[string]string{} // what was answered under each key
	requests := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, err := oncehttp.ParseKey(r.Header)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if _, ok := done[key]; !ok {
			refunds++
			done[key] = fmt.Sprintf("refund no. %d", refunds)
		}
		if requests++; requests == 1 {
			panic(http.ErrAbortHandler) // the connection dies
		}
		io.WriteString(w, done[key])
	}))
	defer srv.Close()

	client := &http.Client{Transport: &oncehttp.Transport{
		BackoffBase: time.Millisecond,
		Logger:      slog.New(slog.DiscardHandler),
	}}
	resp, err := client.Post(srv.URL+"/refunds", "application/json", strings.NewReader(`{"order":"A-17"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	fmt.Printf("%s, after %d attempts; refunds made: %d\n", answer, len(oncehttp.Attempts(resp).Tries), refunds)
	// Output:
	// refund no. 1, after 2 attempts; refunds made: 1
}

// A response comes back whatever its status; Attempts tells why there was no
// further attempt and when one could make sense.
func ExampleAttempts() {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
	resp, err := (&http.Client{Transport: &oncehttp.Transport{}}).Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	a := oncehttp.Attempts(resp)
	fmt.Println(resp.StatusCode, len(a.Tries), errors.Is(a.Stop, oncehttp.ErrDeadline), time.Until(a.RetryAt).Round(time.Second))
	// Output:
	// 503 1 true 30s
}

// An *Error says what is known of the effect.
func ExampleError() {
	lost := roundTrip(func(r *http.Request) (*http.Response, error) {
		return nil, errors.New("connection reset by peer")
	})
	client := &http.Client{Transport: &oncehttp.Transport{
		Base:   lost,
		Honors: func(*http.Request) bool { return false }, // this server ignores keys
	}}
	_, err := client.Post("http://refund.example/refunds", "application/json", strings.NewReader(`{"order":"A-17"}`))
	var e *oncehttp.Error
	if errors.As(err, &e) {
		fmt.Println(e)
		fmt.Println(e.Certainty, errors.Is(err, oncehttp.ErrUnsafe))
	}
	// Output:
	// POST refund.example/refunds: gave up after 1 attempt: sending it again is not safe without an idempotency key that the server honours: connection reset by peer; it may have taken effect
	// unknown true
}

// A Breaker and a Budget can be shared, so that several clients spare a host
// together.
func ExampleTransport_shared() {
	breaker, budget := new(oncehttp.Breaker), new(oncehttp.Budget)
	reads := &http.Client{Transport: &oncehttp.Transport{Breaker: breaker, Budget: budget}}
	writes := &http.Client{Transport: &oncehttp.Transport{Breaker: breaker, Budget: budget, Attempts: 2}}
	_, _ = reads, writes
	fmt.Println(breaker.State("https://refund.example").State)
	// Output:
	// closed
}
