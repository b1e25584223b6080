package redisstore_test

import (
	"context"
	"log"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/redisstore"
)

func ExampleNew() {
	store := redisstore.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	defer store.Close()
	if err := store.Check(context.Background()); err != nil {
		log.Fatal(err) // a server that evicts records, a replica, …
	}
	refund := func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusCreated) }
	mux := http.NewServeMux()
	mux.Handle("POST /refunds", (&oncehttp.Middleware{Store: store}).Handler(http.HandlerFunc(refund)))
	log.Fatal(http.ListenAndServe("localhost:8080", mux))
}
