package pgstore_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

func post(t testing.TB, url, key, body string) (status int, h http.Header, answer string) {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "pay.example" // whichever server it comes to
	req.Header.Set(oncehttp.Header, key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// Two servers, one database, and handlers that write to it.
func TestAHandlersWritesCommitWithItsAnswer(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		var ran atomic.Int32
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran.Add(1)
			b, _ := io.ReadAll(r.Body)
			if err := add(r.Context(), 1, 100); err != nil {
				http.Error(w, "database", http.StatusInternalServerError)
				return
			}
			time.Sleep(50 * time.Millisecond)
			if strings.Contains(string(b), "fail") {
				http.Error(w, "failed half-way", http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "paid %s", b)
		})
		var urls []string
		for range 2 {
			m := &oncehttp.Middleware{Store: connect(t, l.DSN(l.db))}
			srv := httptest.NewServer(m.Handler(handler))
			t.Cleanup(srv.Close)
			urls = append(urls, srv.URL+"/payments")
		}
		var wg sync.WaitGroup
		var replayed atomic.Int32
		for i := range 10 {
			wg.Go(func() {
				status, h, answer := post(t, urls[i%2], "one-payment", `{"to":"A-17"}`)
				if status != http.StatusCreated || answer != `paid {"to":"A-17"}` {
					t.Errorf("got %d %q", status, answer)
				}
				if h.Get("Idempotent-Replayed") == "true" {
					replayed.Add(1)
				}
			})
		}
		wg.Wait()
		if ran.Load() != 1 || replayed.Load() != 9 || l.cents(t, 1) != "100" {
			t.Errorf("ran %d times, replayed %d, %s cents; want 1, 9, 100", ran.Load(), replayed.Load(), l.cents(t, 1))
		}
		for i := range 2 {
			if status, _, _ := post(t, urls[i], "half-way", "fail"); status != http.StatusInternalServerError {
				t.Errorf("got %d, want 500", status)
			}
		}
		if ran.Load() != 3 || l.cents(t, 1) != "100" {
			t.Errorf("ran %d times and %s cents; want 3, because what was rolled back may run again, and 100", ran.Load(), l.cents(t, 1))
		}
	})
}

// A twin that has waited as long as it may gets 409, in the same process and in
// another one, however long the transaction takes; and it never runs.
func TestATwinOfATransactionGets409AfterItsWait(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		const wait = 400 * time.Millisecond // longer than a claim has to lock its row
		var ran atomic.Int32
		runs, goOn := make(chan bool), make(chan bool)
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran.Add(1)
			if err := add(r.Context(), 1, 100); err != nil {
				t.Error(err)
			}
			close(runs)
			<-goOn
			w.WriteHeader(http.StatusCreated)
		})
		var urls []string
		for range 2 {
			m := &oncehttp.Middleware{Store: connect(t, l.DSN(l.db)), Wait: wait}
			srv := httptest.NewServer(m.Handler(handler))
			t.Cleanup(srv.Close)
			urls = append(urls, srv.URL+"/payments")
		}
		var first sync.WaitGroup
		first.Go(func() {
			if status, _, answer := post(t, urls[0], "key", "body"); status != http.StatusCreated {
				t.Errorf("the first got %d %s, want 201", status, answer)
			}
		})
		<-runs
		for i, url := range urls {
			began := time.Now()
			status, h, answer := post(t, url, "key", "body")
			if status != http.StatusConflict || !strings.Contains(answer, "urn:oncehttp:in-progress") || h.Get("Retry-After") == "" {
				t.Errorf("a twin at server %d got %d, Retry-After %q, %s; want 409 in-progress", i, status, h.Get("Retry-After"), answer)
			}
			if d := time.Since(began); d < wait {
				t.Errorf("a twin at server %d was refused after %v, want %v", i, d, wait)
			}
		}
		close(goOn)
		first.Wait()
		if status, h, answer := post(t, urls[1], "key", "body"); status != http.StatusCreated || h.Get("Idempotent-Replayed") != "true" {
			t.Errorf("afterwards: got %d %s, want the recorded 201", status, answer)
		}
		if ran.Load() != 1 || l.cents(t, 1) != "100" {
			t.Errorf("ran %d times, %s cents; want 1, 100", ran.Load(), l.cents(t, 1))
		}
	})
}
