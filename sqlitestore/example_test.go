package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/sqlitestore"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// refund asks for a refund.
func refund(h http.Handler, key string) {
	r := httptest.NewRequest("POST", "/refunds", strings.NewReader(`{"order":"A-17","amount":100}`))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Printf("%d %s, replayed: %t\n", w.Code, strings.TrimSpace(w.Body.String()), w.Header().Get("Idempotent-Replayed") == "true")
}

// What was done is still known after a restart.
func ExampleOpen() {
	dir := must(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	made := 0
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		made++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "receipt %d", made)
	})

	for range 2 { // the second time is after a restart
		store, err := sqlitestore.Open(filepath.Join(dir, "once.db"))
		if err != nil {
			fmt.Println(err)
			return
		}
		once := &oncehttp.Middleware{Store: store}
		refund(once.Handler(handler), "refund-A-17")
		once.Drain(context.Background())
		store.Close()
	}
	fmt.Println("refunds made:", made)
	// Output:
	// 201 receipt 1, replayed: false
	// 201 receipt 1, replayed: true
	// refunds made: 1
}

// The refund and the record of its answer are committed together, or not at all.
func ExampleStore_Transactional() {
	dir := must(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	db := must(sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")))
	defer db.Close()
	must(db.Exec("CREATE TABLE refunds (amount INTEGER)"))

	store := must(sqlitestore.New(db))
	defer store.Close()
	once := &oncehttp.Middleware{Store: store.Transactional()}
	tries := 0
	handler := once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx := sqlitestore.Tx(r.Context())
		if _, err := tx.ExecContext(r.Context(), "INSERT INTO refunds VALUES (100)"); err != nil {
			http.Error(w, "cannot refund", http.StatusInternalServerError)
			return
		}
		if tries++; tries == 1 {
			http.Error(w, "the printer is out of paper", http.StatusInternalServerError) // rolls back
			return
		}
		w.WriteHeader(http.StatusCreated) // commits
		fmt.Fprint(w, "refunded")
	}))

	for range 3 {
		refund(handler, "refund-A-17")
	}
	var refunds int
	db.QueryRow("SELECT count(*) FROM refunds").Scan(&refunds)
	fmt.Println("refunds:", refunds)
	// Output:
	// 500 the printer is out of paper, replayed: false
	// 201 refunded, replayed: false
	// 201 refunded, replayed: true
	// refunds: 1
}
