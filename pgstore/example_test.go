package pgstore_test

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/pgstore"
)

func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://app@db.example/app")
	if err != nil {
		panic(err)
	}
	store := pgstore.New(pool)
	if err := store.Migrate(ctx); err != nil {
		panic(err)
	}
	once := &oncehttp.Middleware{Store: store}
	http.Handle("POST /refunds", once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
	})))
}

// What the handler writes by this transaction and its answer are committed
// together, or neither is.
func ExampleTx() {
	var store *pgstore.Store // as above

	once := &oncehttp.Middleware{Store: store.Transactional()}
	transfer := func(w http.ResponseWriter, r *http.Request) {
		var in struct{ From, To, Cents int }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, "that is not a transfer", http.StatusBadRequest)
			return
		}
		tx := pgstore.Tx(r.Context())
		_, err := tx.Exec(r.Context(), "update accounts set cents = cents - $2 where id = $1", in.From, in.Cents)
		if err == nil {
			_, err = tx.Exec(r.Context(), "update accounts set cents = cents + $2 where id = $1", in.To, in.Cents)
		}
		if err != nil {
			http.Error(w, "try again", http.StatusInternalServerError) // rolls back
			return
		}
		w.WriteHeader(http.StatusCreated) // commits
	}
	everyRequest := func(*http.Request) bool { return true }
	once.Required = everyRequest // without a key there is no transaction
	http.Handle("POST /transfers", once.Handler(http.HandlerFunc(transfer)))
}
