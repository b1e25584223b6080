package oncetest_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/oncetest"
)

// In the examples a printer stands for the *testing.T of a test: it prints the
// first line of each failure.
type printer struct{ recorder }

func (p *printer) Errorf(format string, args ...any) {
	line, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
	fmt.Println(line)
}

// An adapter that repeats without a key refunds twice when the first reply is lost.
func Example() {
	t := new(printer)
	defer t.finish()

	srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		oncetest.Effect(r)
		w.WriteHeader(http.StatusCreated)
	}), oncetest.LoseReply(), oncetest.Memory())
	adapter := Refunds{Client: srv.Client(), URL: srv.URL}
	adapter.Refund("A-17", 100)
	oncetest.Once(t, srv)
	// Output: oncetest: POST /refunds took effect 2 times, but must at most once (action A)
}

// An agent's tool that sends one key for its action, to a server that honours
// keys, survives a lost reply and an overloaded server.
func ExampleOnce() {
	t := new(printer)
	defer t.finish()

	once := &oncehttp.Middleware{Store: new(oncehttp.MemoryStore)}
	srv := oncetest.NewServer(t, once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		oncetest.Effect(r)
		w.WriteHeader(http.StatusCreated)
	})), oncetest.LoseReply(), oncetest.Status(503).On(2), oncetest.Memory())
	client := srv.Client()
	client.Transport = &oncehttp.Transport{Base: client.Transport, BackoffBase: time.Millisecond}

	tool := func(ctx context.Context, order string) (string, error) {
		req, _ := http.NewRequestWithContext(oncehttp.WithAction(ctx, "refund "+order), "POST", srv.URL+"/refunds", strings.NewReader(order))
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		return resp.Status, nil
	}
	fmt.Println(tool(context.Background(), "A-17"))
	fmt.Println(tool(context.Background(), "A-17")) // the model asks again
	oncetest.Once(t, srv)
	fmt.Println("sends:", srv.Sends(), "refunds:", srv.Effects())
	// Output:
	// 201 Created <nil>
	// 201 Created <nil>
	// sends: 4 refunds: 1
}

// The server's own answer may be the broken half: this one notes that a key is done
// before it does anything.
func ExampleOnce_handler() {
	t := new(printer)
	defer t.finish()

	done := map[string]bool{}
	srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("Idempotency-Key"); !done[key] {
			done[key] = true
			http.Error(w, "database is away", http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "done")
	}), oncetest.Memory())
	client := srv.Client()
	client.Transport = &oncehttp.Transport{Base: client.Transport, BackoffBase: time.Millisecond}
	resp, err := client.Post(srv.URL+"/refunds", "text/plain", strings.NewReader("A-17"))
	if err == nil {
		resp.Body.Close()
	}
	oncetest.Once(t, srv)
	// Output: oncetest: POST /refunds was told 200, but nothing took effect (action A)
}

func ExampleFault_On() {
	fmt.Println(oncetest.LoseReply())
	fmt.Println(oncetest.Status(503, "Retry-After: 2").On(2, 3))
	fmt.Println(oncetest.DelayHeaders(time.Minute).Always())
	// Output:
	// LoseReply()
	// Status(503).On(2, 3)
	// DelayHeaders(1m0s).Always()
}

// Requests tells what a client really sent: here that a repeat kept its key.
func ExampleServer_Requests() {
	t := new(printer)
	defer t.finish()

	srv := oncetest.NewServer(t, http.NotFoundHandler(), oncetest.ResetBefore(), oncetest.Memory())
	client := srv.Client()
	client.Transport = &oncehttp.Transport{Base: client.Transport, BackoffBase: time.Millisecond}
	req, _ := http.NewRequestWithContext(oncehttp.WithKey(context.Background(), "refund-A-17"), "POST", srv.URL+"/refunds", strings.NewReader("A-17"))
	if resp, err := client.Do(req); err == nil {
		resp.Body.Close()
	}
	for _, r := range srv.Requests() {
		fmt.Println(r.N, r.Method, r.URL, r.Key, string(r.Body), r.Runs, r.Status)
	}
	// Output:
	// 1 POST /refunds refund-A-17 A-17 0 0
	// 2 POST /refunds refund-A-17 A-17 1 404
}
