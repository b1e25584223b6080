package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/oncehttp/oncehttp"
)

// A shop refunds, moves points and sends coupons, and writes each into its ledger.
type shop struct {
	mu   sync.Mutex
	made []string
	lost int // replies
}

// ledger returns what was done, in order.
func (s *shop) ledger() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.made...)
}

// handler is the shop behind the server half of oncehttp and a network that
// loses the first two replies, after the work was done.
func (s *shop) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /refunds", s.act("refund", "order_id", "amount_cents"))
	mux.HandleFunc("POST /points", s.act("points", "card", "points"))
	mux.HandleFunc("POST /coupons", s.act("coupon", "customer", "percent"))
	once := (&oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}).Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.lost++
		lose := s.lost <= 2
		s.mu.Unlock()
		if !lose {
			once.ServeHTTP(w, r)
			return
		}
		once.ServeHTTP(nowhere{}, r)
		<-r.Context().Done() // until the client gives up
	})
}

// act does what is asked for, as often as it is asked for.
func (s *shop) act(what, whom, amount string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		in := json.NewDecoder(r.Body)
		in.UseNumber() // every digit counts
		var asked map[string]any
		if err := in.Decode(&asked); err != nil || asked[whom] == nil || asked[amount] == nil {
			http.Error(w, "want "+whom+" and "+amount, http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.made = append(s.made, fmt.Sprintf("%s %v %v", what, asked[whom], asked[amount]))
		receipt := fmt.Sprintf("%s-%d", strings.ToUpper(what), len(s.made))
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(map[string]string{"receipt": receipt})
	}
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
