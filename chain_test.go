package oncehttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/oncehttp/oncehttp"
)

// A gateway behind a Middleware calls a ledger through a Transport.
type chain struct {
	gateway http.Handler
	ledger  *httptest.Server

	mu   sync.Mutex
	keys []string // as the ledger sees them
}

func newChain(t *testing.T, store oncehttp.Store) *chain {
	c := &chain{}
	c.ledger = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.keys = append(c.keys, r.Header.Get(oncehttp.Header))
	}))
	t.Cleanup(c.ledger.Close)
	client := &http.Client{Transport: &oncehttp.Transport{}}
	c.gateway = (&oncehttp.Middleware{
		Store:  store,
		Orphan: oncehttp.OrphanRerun,
		Scope:  func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil },
	}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key, ok := oncehttp.KeyFromContext(r.Context()); !ok || key != "order-1" {
			t.Errorf("the handler reads key %q, want its caller's", key)
		}
		req, _ := http.NewRequestWithContext(r.Context(), "POST", c.ledger.URL+"/entries", strings.NewReader("entry"))
		resp, err := client.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
		oncehttp.Release(r.Context()) // so that a repeat runs again
	}))
	return c
}

func (c *chain) ask(t *testing.T, rt http.RoundTripper, url, tenant string) {
	req := newRequest(t, t.Context(), "POST", url+"/orders", "order")
	req.Header.Set("X-Tenant", tenant)
	req.Header.Set(oncehttp.Header, "order-1")
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
}

func TestACallersKeyIsNeverForwarded(t *testing.T) {
	inProcess := func(h http.Handler) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, r)
			return rec.Result(), nil
		})
	}
	for name, serve := range map[string]func(http.Handler) (http.RoundTripper, string){
		"over TCP": func(h http.Handler) (http.RoundTripper, string) {
			srv := httptest.NewServer(h)
			t.Cleanup(srv.Close)
			return http.DefaultTransport, srv.URL
		},
		// The handler's context then descends from the Transport's own request.
		"in one process, through a Transport": func(h http.Handler) (http.RoundTripper, string) {
			return &oncehttp.Transport{Base: inProcess(h)}, "http://gateway.example"
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChain(t, &oncehttp.MemoryStore{Logger: quiet()})
			rt, url := serve(c.gateway)
			for _, tenant := range []string{"a", "b", "a"} {
				c.ask(t, rt, url, tenant)
			}
			if len(c.keys) != 3 {
				t.Fatalf("the ledger saw %d requests, want 3", len(c.keys))
			}
			for _, key := range c.keys {
				if key == "" || key == "order-1" {
					t.Errorf("the ledger saw key %q, want one derived from the gateway's record", key)
				}
			}
			if c.keys[0] == c.keys[1] {
				t.Error("two tenants with the same key reach the ledger under one key")
			}
			if c.keys[0] != c.keys[2] {
				t.Error("a repeat of one tenant's order reaches the ledger under another key")
			}
		})
	}
}
