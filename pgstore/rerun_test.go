package pgstore_test

import (
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

func TestAHandlerRunsAgainAfterASerializationFailure(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		var ran atomic.Int32
		m := &oncehttp.Middleware{Store: connect(t, l.DSN(l.db), pgstore.WithIsolation(sql.LevelSerializable))}
		srv := httptest.NewServer(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := ran.Add(1)
			b, err := io.ReadAll(r.Body)
			w.Header().Set("Run", fmt.Sprint(n))
			if err == nil {
				err = add(r.Context(), 1, 100)
			}
			if n < 3 && err == nil {
				err = inTx(r.Context(), "do $$ begin raise exception 'made up' using errcode = '40001'; end $$")
			}
			if err != nil {
				w.Header().Set("Left-Over", "yes")
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Write(b)
		})))
		t.Cleanup(srv.Close)
		for range 2 {
			status, h, answer := post(t, srv.URL, "key", "body")
			if status != http.StatusOK || answer != "body" || h.Get("Run") != "3" || h.Get("Left-Over") != "" {
				t.Errorf("got %d %q, run %q, left over %q; want the third run's 200", status, answer, h.Get("Run"), h.Get("Left-Over"))
			}
		}
		if ran.Load() != 3 || l.cents(t, 1) != "100" {
			t.Errorf("ran %d times, %s cents; want 3, 100", ran.Load(), l.cents(t, 1))
		}
	})
}

// A handler that overlooks an error of a statement asks for a commit that the server
// refuses. Nothing is there then, and nobody has to find out.
func TestARefusedCommitIsAskedForAgain(t *testing.T) {
	pg := services.Postgres(t)
	both(t, func(t *testing.T, connect func(testing.TB, string, ...pgstore.TxOption) *pgstore.TxStore) {
		l := newLedger(t, pg)
		var ran atomic.Int32
		m := &oncehttp.Middleware{Store: connect(t, l.DSN(l.db)), Logger: slog.New(slog.DiscardHandler)}
		srv := httptest.NewServer(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if ran.Add(1) == 1 {
				add(r.Context(), 2, -5000) // which the table forbids
			}
			add(r.Context(), 1, 100)
			w.WriteHeader(http.StatusCreated)
		})))
		t.Cleanup(srv.Close)
		status, h, answer := post(t, srv.URL, "key", "body")
		if status != http.StatusServiceUnavailable || h.Get("Retry-After") != "1" ||
			!strings.Contains(answer, "urn:oncehttp:rolled-back") || !strings.Contains(answer, `"retry_same_key":true`) {
			t.Errorf("got %d, Retry-After %q, %s", status, h.Get("Retry-After"), answer)
		}
		if got := l.cents(t, 1); got != "0" {
			t.Errorf("got %s cents, want 0", got)
		}
		if status, _, answer := post(t, srv.URL, "key", "body"); status != http.StatusCreated || l.cents(t, 1) != "100" {
			t.Errorf("again: got %d %s and %s cents, want 201 and 100", status, answer, l.cents(t, 1))
		}
	})
}
