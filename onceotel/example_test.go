package onceotel_test

import (
	"net/http"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/onceotel"
	"github.com/oncehttp/oncehttp/toolcall"
)

var (
	handler http.Handler
	store   oncehttp.Store
)

func ExampleTelemetry() {
	var telemetry onceotel.Telemetry

	// The client half: a span for each attempt.
	client := &http.Client{Transport: telemetry.Transport(&oncehttp.Transport{})}

	// The server half: the span in the request's context is told the outcome.
	middleware := &oncehttp.Middleware{Store: store}
	telemetry.Middleware(middleware)
	if store != nil {
		http.Handle("POST /refunds", middleware.Handler(handler))
	}

	// The tool layer: a span for each call, above the attempts of its requests.
	runner := &toolcall.Runner{Scope: "acme/support-agent", Store: store}
	telemetry.Runner(runner)

	_ = client
}
