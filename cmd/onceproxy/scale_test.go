package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp/internal/services"
)

// Two proxies over one store: twins of a request, one sent to each at the same time,
// have one effect and get one answer.
func TestTwinsAtTwoProxiesHaveOneEffect(t *testing.T) {
	pg := services.Postgres(t)
	r := services.Redis(t)
	for name, store := range map[string]string{
		"Postgres": pg.DSN(pg.Database(t)),
		"Redis":    "redis://" + r.Addr() + "/7",
	} {
		t.Run(name, func(t *testing.T) {
			var effects sync.Map
			up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, _ := effects.LoadOrStore(r.URL.Path, new(atomic.Int64))
				time.Sleep(2 * time.Millisecond)
				fmt.Fprintf(w, "%s run %d", r.URL.Path, n.(*atomic.Int64).Add(1))
			}))
			defer up.Close()
			proxies := []*process{start(t, "-upstream", up.URL, "-store", store, "-wait", "30s"), start(t, "-upstream", up.URL, "-store", store, "-wait", "30s")}
			const keys, tries = 40, 3
			began := time.Now().UnixNano() // a server of an earlier round may still know its keys
			var all sync.WaitGroup
			for k := range keys {
				path := fmt.Sprintf("/%s/%d/%d", name, began, k)
				for i := range 2 * tries {
					all.Go(func() {
						a, err := try("POST", proxies[i%2].URL+path, "x", key("twin"))
						if want := path + " run 1"; err != nil || a.status != 200 || a.body != want {
							t.Errorf("%s at proxy %d: got %d %q, %v", path, i%2, a.status, a.body, err)
						}
					})
				}
			}
			all.Wait()
			effects.Range(func(path, n any) bool {
				if n := n.(*atomic.Int64).Load(); n != 1 {
					t.Errorf("%s had %d effects", path, n)
				}
				return true
			})
		})
	}
}
