package sqlitestore_test

import (
	"database/sql"
	"log"
	"net/http"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/sqlitestore"
)

// A server that keeps its keys in a file.
func ExampleOpen_server() {
	var h http.Handler
	mux := http.NewServeMux()
	store, err := sqlitestore.Open("/var/lib/shop/once.db")
	if err != nil {
		log.Fatal(err) // says which file, what is wrong with it, and what to do
	}
	defer store.Close() // after the Middleware's Drain
	mux.Handle("POST /refunds", (&oncehttp.Middleware{Store: store}).Handler(h))
	log.Print(http.ListenAndServe("localhost:8080", mux))
}

// A server whose refunds and records are committed together.
func ExampleTx_server() {
	mux := http.NewServeMux()
	db, err := sql.Open("sqlite", "file:/var/lib/shop/shop.db?_pragma=foreign_keys(1)&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	store, err := sqlitestore.New(db)
	if err != nil {
		log.Fatal(err)
	}
	once := &oncehttp.Middleware{Store: store.Transactional()}
	mux.Handle("POST /refunds", once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx := sqlitestore.Tx(r.Context())
		if _, err := tx.ExecContext(r.Context(), "INSERT INTO refunds …"); err != nil {
			http.Error(w, "cannot refund", http.StatusInternalServerError) // rolls back, frees the key
			return
		}
		w.WriteHeader(http.StatusCreated) // commits the refund, and this answer
	})))
	log.Print(http.ListenAndServe("localhost:8080", mux))
}
