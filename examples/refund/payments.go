package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
)

// A refund is money that has left. It is also what a tool call asks for.
type refund struct {
	ID       string `json:"id,omitempty"`
	OrderID  string `json:"order_id"`
	Cents    int64  `json:"amount_cents"`
	Currency string `json:"currency"`
	Reason   string `json:"reason,omitempty"`
}

// payments is the payment provider. It refunds whatever it is asked to, as often
// as it is asked to: it cannot tell a repeat from a second wish.
type payments struct {
	mu   sync.Mutex
	made []refund
}

func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked refund
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.OrderID == "" || asked.Cents <= 0 {
		http.Error(w, "want an order_id and a positive amount_cents", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	json.NewEncoder(w).Encode(p.refund(asked))
}

func (p *payments) refund(asked refund) refund {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 1
	for _, r := range p.made {
		if r.OrderID == asked.OrderID {
			n++
		}
	}
	asked.ID = fmt.Sprintf("re_%s_%d", asked.OrderID, n)
	p.made = append(p.made, asked)
	return asked
}

// A network stands between the caller and next, and misbehaves once for each
// message: the reply to the first request is lost after the work was done, the
// second request never gets through and is answered 503 by a load balancer, and
// from then on all is well. It knows the messages apart by the order they name.
type network struct {
	next http.Handler

	mu       sync.Mutex
	requests int
	byOrder  map[string]int
}

func (n *network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))

	switch n.count(body) {
	case 1:
		n.next.ServeHTTP(nowhere{}, r)
		panic(http.ErrAbortHandler) // closes the connection without an answer
	case 2:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "no healthy upstream", http.StatusServiceUnavailable)
	default:
		n.next.ServeHTTP(w, r)
	}
}

// count says the how-many-th request this is for the order in body.
func (n *network) count(body []byte) int {
	var asked refund
	json.Unmarshal(body, &asked) // an unreadable body counts as the order ""
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byOrder == nil {
		n.byOrder = map[string]int{}
	}
	n.requests++
	n.byOrder[asked.OrderID]++
	return n.byOrder[asked.OrderID]
}

// nowhere is a ResponseWriter whose bytes do not arrive.
type nowhere http.Header

func (w nowhere) Header() http.Header         { return http.Header(w) }
func (w nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (w nowhere) WriteHeader(int)             {}

// listen serves h on a free loopback port until stop is called.
func listen(h http.Handler) (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: h}
	go server.Serve(l)
	return "http://" + l.Addr().String(), func() { server.Close() }, nil
}
