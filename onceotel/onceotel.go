// Package onceotel shows oncehttp's work to OpenTelemetry: a client span for each attempt of
// a Transport, what a Middleware did with each key, a span for each tool call, and metrics of
// all three.
//
//	var telemetry onceotel.Telemetry
//	client := &http.Client{Transport: telemetry.Transport(&oncehttp.Transport{})}
//	telemetry.Middleware(middleware)
//	telemetry.Runner(runner)
//
// Spans and metrics never hold a whole idempotency key, a query, a body, an argument or a
// result. Metrics have bounded labels only: never a key, a path or a call's id.
package onceotel

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the name of this package's tracer and meter.
const Scope = "github.com/oncehttp/oncehttp/onceotel"

// Telemetry instruments Transports, Middlewares and Runners. The zero value uses the global
// providers and propagator. It is safe for concurrent use, and must not be copied, nor its
// fields be changed, after the first use.
type Telemetry struct {
	// TracerProvider and MeterProvider are where spans and metrics go. Nil means
	// otel.GetTracerProvider() and otel.GetMeterProvider().
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider

	// Propagator writes the trace's context into each attempt's headers. Nil
	// means otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator

	// Hosts is how many different hosts metrics tell apart; all further ones
	// are [OtherHost]. Zero means 100. Spans always have the host.
	Hosts int

	once  sync.Once
	spans trace.Tracer
	instruments

	mu   sync.Mutex
	seen map[string]struct{}
}

// OtherHost is server.address in metrics for hosts beyond Telemetry.Hosts.
const OtherHost = "_other"

const defaultHosts = 100

// instruments are the metrics, as docs/onceotel.md lists them.
type instruments struct {
	attempt  metric.Float64Histogram // one attempt of a Transport
	request  metric.Int64Counter     // one logical request of a Transport
	resend   metric.Int64Counter     // attempts after the first
	answer   metric.Float64Histogram // one request to a Middleware
	toolCall metric.Float64Histogram // one call of a tool
}

// seconds are the bucket boundaries that the HTTP semantic conventions advise.
var seconds = metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

func (o *Telemetry) init() {
	tracers, meters := o.TracerProvider, o.MeterProvider
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	o.spans = tracers.Tracer(Scope)
	o.seen = make(map[string]struct{})
	m := meters.Meter(Scope)
	o.attempt = made(m.Float64Histogram(metricAttempt, metric.WithUnit("s"), seconds,
		metric.WithDescription("Duration of the attempts of client requests, until the response's headers.")))
	o.request = made(m.Int64Counter(metricRequests, metric.WithUnit("{request}"),
		metric.WithDescription("Client requests, by what is known of their effect and why they ended.")))
	o.resend = made(m.Int64Counter(metricResends, metric.WithUnit("{attempt}"),
		metric.WithDescription("Attempts of client requests after the first.")))
	o.answer = made(m.Float64Histogram(metricAnswer, metric.WithUnit("s"), seconds,
		metric.WithDescription("Duration of server requests with an idempotency key, by how they ended.")))
	o.toolCall = made(m.Float64Histogram(metricTool, metric.WithUnit("s"), seconds,
		metric.WithDescription("Duration of tool calls, by how they ended.")))
}

// made returns the instrument. One that a provider refuses is still usable, and does nothing.
func made[T any](instrument T, err error) T {
	if err != nil {
		otel.Handle(err)
	}
	return instrument
}

func (o *Telemetry) propagator() propagation.TextMapPropagator {
	if o.Propagator != nil {
		return o.Propagator
	}
	return otel.GetTextMapPropagator()
}

// host is the host as metrics may show it.
func (o *Telemetry) host(name string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.seen[name]; ok {
		return name
	}
	if len(o.seen) >= cmp.Or(o.Hosts, defaultHosts) {
		return OtherHost
	}
	o.seen[name] = struct{}{}
	return name
}

// hostAndPort are server.address and server.port of u.
func hostAndPort(u *url.URL) (string, int) {
	port := u.Port()
	if port == "" {
		port = "80"
		if u.Scheme == "https" {
			port = "443"
		}
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		n = 0
	}
	return strings.ToLower(u.Hostname()), n
}

// method is http.request.method: the conventions know these, and take all others for _OTHER.
func method(m string) string {
	switch m {
	case "":
		return "GET"
	case "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY":
		return m
	}
	return "_OTHER"
}

func str(k, v string) attribute.KeyValue { return attribute.String(k, v) }
