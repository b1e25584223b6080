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

// A refund is made once, however often the request arrives.
func ExampleMiddleware() {
	refunds := 0
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refunds++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "refund %d", refunds)
	})
	m := &oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}
	mux := http.NewServeMux()
	mux.Handle("POST /refunds", m.Handler(h))

	for range 3 {
		r := httptest.NewRequest("POST", "/refunds", strings.NewReader(`{"order":"A-17","amount":100}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "refund-A-17")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body, "replayed:", w.Header().Get("Idempotent-Replayed") == "true")
	}
	// Output:
	// 201 refund 1 replayed: false
	// 201 refund 1 replayed: true
	// 201 refund 1 replayed: true
}

// Tenants are told apart by an identity that was verified before.
func ExampleMiddleware_scope() {
	type account struct{} // the key under which authentication keeps it
	m := &oncehttp.Middleware{
		Store: &oncehttp.MemoryStore{},
		Scope: func(r *http.Request) (string, error) {
			id, ok := r.Context().Value(account{}).(string)
			if !ok {
				return "", errors.New("no account: the Middleware must run inside of authentication")
			}
			return id, nil
		},
	}
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "paid by %s", r.Context().Value(account{}))
	}))

	for _, who := range []string{"alice", "bob", "alice"} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		r = r.WithContext(context.WithValue(r.Context(), account{}, who))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(w.Body)
	}
	// Output:
	// paid by alice
	// paid by bob
	// paid by alice
}

// Work that is no HTTP request takes effect once as well.
func ExampleOnce() {
	once := &oncehttp.Once{Store: &oncehttp.MemoryStore{}}
	mails := 0
	send := func(ctx context.Context) (head, body []byte, err error) {
		mails++
		return nil, fmt.Appendf(nil, "mail %d", mails), nil
	}
	for range 2 {
		a, err := once.Do(context.Background(), oncehttp.Op{Key: "welcome mail for user 42"}, send)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %s\n", a.Kind, a.Body)
	}
	// Output:
	// ran: mail 1
	// replayed: mail 1
}

// A handler that knows that it did nothing says so, and a repeat runs it again.
func ExampleRelease() {
	stock := 0
	m := &oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if stock == 0 {
			oncehttp.Release(r.Context())
			http.Error(w, "sold out", http.StatusConflict)
			return
		}
		stock--
		fmt.Fprintln(w, "ordered")
	}))
	order := func() {
		r := httptest.NewRequest("POST", "/orders", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Print(w.Body)
	}
	order()
	stock = 1
	order()
	order() // a replay
	fmt.Println(stock, "left")
	// Output:
	// sold out
	// ordered
	// ordered
	// 0 left
}

// A handler that calls on another server may not learn what became of it.
func ExampleUnknown() {
	m := &oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := errors.New("the bank does not answer") // of a payment that was sent
		if err != nil {
			oncehttp.Unknown(r.Context())
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("Content-Type"))
	}
	// Output:
	// 502 text/plain; charset=utf-8
	// 409 application/problem+json
}
