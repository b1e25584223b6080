package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// payments is a server that does as it is told, each time that it is told.
type payments struct {
	server *httptest.Server

	mu   sync.Mutex
	made map[string]int // by order
}

func newPayments() *payments {
	p := &payments{made: make(map[string]int)}
	p.server = httptest.NewServer(http.HandlerFunc(p.serve))
	return p
}

func (p *payments) serve(w http.ResponseWriter, r *http.Request) {
	var refund struct{ Order string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&refund); err != nil {
		http.Error(w, "the body is no refund", http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	p.made[refund.Order]++
	n := p.made[refund.Order]
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"refunded":%q,"payment":%d}`, refund.Order, n)
}

func (p *payments) refunds(order string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made[order]
}

func (p *payments) url() string  { return p.server.URL }
func (p *payments) addr() string { return strings.TrimPrefix(p.server.URL, "http://") }
func (p *payments) close()       { p.server.Close() }
