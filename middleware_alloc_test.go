package oncehttp

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The allocations of a Middleware over those of the bare handler.
func TestMiddlewareAllocatesLittle(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		w.Write([]byte(`{"refund":"re_1"}`))
	})
	serve := func(h http.Handler, key string) {
		r := httptest.NewRequest("POST", "/refunds", strings.NewReader(`{"order":"A-17","amount":100}`))
		r.Header.Set("Content-Type", "application/json")
		if key != "" {
			r.Header.Set(Header, key)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusCreated {
			t.Fatalf("status = %d, want 201", w.Code)
		}
	}
	const runs = 2000
	keys := make([]string, 2*runs)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%d", i)
	}
	bare := func(key string) float64 {
		return testing.AllocsPerRun(runs, func() { serve(h, key) })
	}
	for _, tt := range []struct {
		name string
		over float64
		key  func(i int) string
		want float64
	}{
		{"a request without a key", bare(""), func(int) string { return "" }, 0},
		{"the first request with a key", bare("k"), func(i int) string { return keys[i] }, 5},
		{"a repeat", bare("k"), func(int) string { return "k1" }, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := &Middleware{Store: &MemoryStore{}}
			p := m.Handler(h)
			serve(p, tt.key(0))
			i := 0
			got := testing.AllocsPerRun(runs, func() { i++; serve(p, tt.key(i)) }) - tt.over
			t.Logf("%v allocations more than without a Middleware", got)
			if got > tt.want && !raceEnabled { // the race detector allocates too
				t.Errorf("%v allocations more than without a Middleware, want at most %v", got, tt.want)
			}
		})
	}
}
