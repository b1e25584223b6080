package pgstore_test

import (
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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
