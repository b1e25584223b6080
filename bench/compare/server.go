package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/idempotency"
	"github.com/valyala/fasthttp"

	"github.com/oncehttp/oncehttp"
)

const smallJSON = `{"amount":10}` // 13 bytes

var created = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(http.StatusCreated)
	io.WriteString(w, `{"refunded":1}`)
})

// serve is the loop body: a request with a key, and the answer recorded.
func serve(h http.Handler, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/refunds", strings.NewReader(smallJSON))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusCreated {
		panic(fmt.Sprint(w.Code, " ", w.Body.String()))
	}
	return w
}

func protected(h http.Handler) http.Handler {
	m := &oncehttp.Middleware{Store: &oncehttp.MemoryStore{MaxRecords: 4_000_000, MaxBytes: 1 << 30, Logger: silent}, Logger: silent}
	return m.Handler(h)
}

// freshStore is how many first executions a store sees before a new one takes its place.
const freshStore = 1 << 20

// keyOf makes the key in the loop, since one comes in with its request. A list of a million
// would have the garbage collector look at each of them, which makes whatever is measured
// slow, the bare handler too.
func keyOf(i int) string { return fmt.Sprintf("order-%08d", i) }

func serverSection(r *report) {
	firsts := func(fresh func() http.Handler) func(b *testing.B) {
		return func(b *testing.B) {
			var h http.Handler
			for i := 0; b.Loop(); i++ {
				if i%freshStore == 0 {
					b.StopTimer()
					h = fresh()
					b.StartTimer()
				}
				serve(h, keyOf(i%freshStore))
			}
		}
	}
	replays := func(h http.Handler) func(b *testing.B) {
		serve(h, "order-1")
		return func(b *testing.B) {
			for b.Loop() {
				serve(h, "order-1")
			}
		}
	}
	r.printf("httptest.NewRequest with a key and %d bytes of JSON, NewRecorder, ServeHTTP.\n\n", len(smallJSON))
	cs := []*candidate{
		{name: "bare handler", features: "nothing", bench: firsts(func() http.Handler { return created })},
		{name: "Middleware, first", features: "runs and records", bench: firsts(func() http.Handler { return protected(created) })},
		{name: "Middleware, replay", features: "answers from the record", bench: replays(protected(created))},
	}
	r.measure("Server", cs)
	r.table(cs)
	r.judge("Middleware over MemoryStore: first execution, of the bare handler's time", cs[1].time()/cs[0].time(), "≤", 1.9, "×")
	r.judge("Middleware over MemoryStore: replay, of the bare handler's time", cs[2].time()/cs[0].time(), "≤", 1.6, "×")

	r.printf("\nFiber's idempotency middleware, through its own app, whose requests are not net/http's: compare it with its own bare handler only.\n\n")
	fs := []*candidate{
		{name: "bare fiber handler", features: "nothing", bench: fiberFirsts(false)},
		{name: "fiber idempotency, first", features: "in memory; no fingerprint, no lease, no binding", bench: fiberFirsts(true)},
		{name: "fiber idempotency, replay", features: "likewise", bench: fiberReplays()},
	}
	r.measure("Fiber", fs)
	r.table(fs)
}

// fiberApp calls a fiber app without a network.
func fiberApp(idempotent bool) fasthttp.RequestHandler {
	app := fiber.New()
	if idempotent {
		app.Use(idempotency.New(idempotency.Config{Lifetime: 24 * time.Hour, KeyHeader: "Idempotency-Key", KeyHeaderValidate: func(string) error { return nil }}))
	}
	app.Post("/refunds", func(c *fiber.Ctx) error {
		c.Set("Content-Type", "application/json")
		return c.Status(fiber.StatusCreated).SendString(`{"refunded":1}`)
	})
	return app.Handler()
}

func fiberServe(h fasthttp.RequestHandler, key string) {
	var ctx fasthttp.RequestCtx
	ctx.Request.Header.SetMethod("POST")
	ctx.Request.SetRequestURI("/refunds")
	ctx.Request.Header.Set("Content-Type", "application/json")
	ctx.Request.Header.Set("Idempotency-Key", key)
	ctx.Request.SetBodyString(smallJSON)
	h(&ctx)
	if ctx.Response.StatusCode() != http.StatusCreated {
		panic(ctx.Response.String())
	}
}

func fiberFirsts(idempotent bool) func(b *testing.B) {
	return func(b *testing.B) {
		var h fasthttp.RequestHandler
		for i := 0; b.Loop(); i++ {
			if i%freshStore == 0 {
				b.StopTimer()
				h = fiberApp(idempotent)
				b.StartTimer()
			}
			fiberServe(h, keyOf(i%freshStore))
		}
	}
}

func fiberReplays() func(b *testing.B) {
	h := fiberApp(true)
	fiberServe(h, "order-1")
	return func(b *testing.B) {
		for b.Loop() {
			fiberServe(h, "order-1")
		}
	}
}

// memorySection weighs a hundred thousand keys, kept and in flight.
func memorySection(r *report) {
	const n = 100_000
	r.printf("The heap's growth by %d keys, each with a head and a body of 14 bytes.\n\n| | bytes a key |\n|---|---|\n", n)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("order-%08d", i)
	}
	kept, h := weigh(func() any {
		h := protected(created)
		for _, k := range names {
			serve(h, k)
		}
		return h
	})
	r.printf("| kept | %.0f |\n", kept/n)
	runtime.KeepAlive(h)
	flying, s := weigh(func() any {
		s := new(oncehttp.MemoryStore)
		for i, k := range names {
			op := oncehttp.Op{Key: oncehttp.DeriveKey("compare", k), Token: fmt.Sprintf("%032x", i)}
			if c, err := s.Claim(context.Background(), op, time.Hour, time.Hour); err != nil || c.Status != oncehttp.ClaimAcquired {
				panic(fmt.Sprint(c, err))
			}
		}
		return s
	})
	r.printf("| in flight, in the store | %.0f |\n", flying/n)
	runtime.KeepAlive(s)
	r.judge("100 000 keys kept: each, its body included", kept/n, "≤", 600+14, " B")
	r.judge("100 000 keys in flight: each", flying/n, "≤", 600, " B")
}

func weigh(build func() any) (float64, any) {
	heap := func() float64 {
		for range 4 { // what is in pools is gone then
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := heap()
	v := build()
	return heap() - before, v
}
