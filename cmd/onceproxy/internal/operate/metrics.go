package operate

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/oncehttp/oncehttp"
)

// Metrics are what Prometheus is told. Labels are names of routes, of outcomes and of
// problems, and hosts of upstreams: all of them from the settings or from this program,
// none from a request.
type Metrics struct {
	registry  *prometheus.Registry
	durations *prometheus.HistogramVec
	store     *prometheus.HistogramVec
	reloads   *prometheus.CounterVec

	mu     sync.Mutex
	meters map[string]*Meter
	routes func() []Route // for the breakers; nil before they are there
}

var (
	requestsDesc  = desc("requests_total", "Requests by how they ended.", "route", "outcome")
	refusalsDesc  = desc("refusals_total", "Refused requests by the problem that their clients were told.", "route", "problem")
	preventedDesc = desc("duplicate_effects_prevented_total", "Requests that would have had an effect once more.", "route")
	failuresDesc  = desc("upstream_failures_total", "Requests without a whole answer of the upstream, by what became of them: not-sent, unknown, left, refused.", "route", "fate")
	answersDesc   = desc("upstream_responses_total", "Answers of the upstream by the class of their status.", "route", "class")
	inFlightDesc  = desc("requests_in_flight", "Requests under way.", "route")
	breakerDesc   = desc("breaker_state", "0 closed, 1 half-open, 2 open.", "route", "host")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("onceproxy_"+name, help, labels, nil)
}

// seconds are the buckets of durations: from a replay out of memory to the slowest
// upstream.
var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// NewMetrics makes an empty set.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), meters: map[string]*Meter{},
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "onceproxy_request_duration_seconds", Help: "How long requests took, by how they ended.", Buckets: seconds,
		}, []string{"route", "outcome"}),
		store: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "onceproxy_store_call_duration_seconds", Help: "How long calls of the store took.", Buckets: seconds[:13],
		}, []string{"call", "result"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "onceproxy_reloads_total", Help: "Times that the settings were loaded anew, or could not be.",
		}, []string{"result"}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "onceproxy_build_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	m.registry.MustRegister(m, m.durations, m.store, m.reloads, info, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// outcomes are the label values, by kind; at 0 for what was not protected.
var outcomes = [...]string{"passed", "executed", "released", "attached", "replayed", "refused", "unknown"}

// Meter returns the route's, which outlives a reload.
func (m *Metrics) Meter(route string) *Meter {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.meters[route]; r != nil {
		return r
	}
	r := &Meter{route: route, refusals: map[string]uint64{}, fates: map[string]uint64{}}
	for i := range r.durations {
		r.durations[i] = m.durations.WithLabelValues(route, outcomes[i])
	}
	m.meters[route] = r
	return r
}

// Watch has the breakers of routes shown.
func (m *Metrics) Watch(routes func() []Route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.routes = routes
}

// Reloaded counts a reload.
func (m *Metrics) Reloaded(err error) {
	result := "ok"
	if err != nil {
		result = "refused"
	}
	m.reloads.WithLabelValues(result).Inc()
}

// Handler serves them.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{requestsDesc, refusalsDesc, preventedDesc, failuresDesc, answersDesc, inFlightDesc, breakerDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for route, r := range m.meters {
		count(requestsDesc, r.passed.Load(), route, outcomes[0])
		for kind := 1; kind < len(outcomes); kind++ {
			count(requestsDesc, r.outcomes[kind].Load(), route, outcomes[kind])
		}
		count(preventedDesc, r.prevented.Load(), route)
		for class := 1; class < len(r.classes); class++ {
			count(answersDesc, r.classes[class].Load(), route, strconv.Itoa(class)+"xx")
		}
		ch <- prometheus.MustNewConstMetric(inFlightDesc, prometheus.GaugeValue, float64(r.inFlight.Load()), route)
		r.mu.Lock()
		for name, n := range r.refusals {
			count(refusalsDesc, n, route, name)
		}
		for fate, n := range r.fates {
			count(failuresDesc, n, route, fate)
		}
		r.mu.Unlock()
	}
	if m.routes == nil {
		return
	}
	for _, r := range m.routes() {
		for _, b := range r.Breakers {
			ch <- prometheus.MustNewConstMetric(breakerDesc, prometheus.GaugeValue, float64(b.State), r.Name, b.Host)
		}
	}
}

func problemName(kind string) string { return strings.TrimPrefix(kind, "urn:oncehttp:") }

// A Store is what a store has to be able to do.
type Store interface {
	oncehttp.Store
	oncehttp.Waiter
	oncehttp.Inspector
}

// Measured returns s, with the calls measured by which requests are protected.
func (m *Metrics) Measured(s Store) Store { return &measuredStore{s, m.store} }

type measuredStore struct {
	Store
	durations *prometheus.HistogramVec
}

func (s *measuredStore) note(call string, began time.Time, err error) {
	result := "ok"
	switch {
	case errors.Is(err, oncehttp.ErrClaimLost):
		result = "lost"
	case errors.Is(err, oncehttp.ErrFull):
		result = "full"
	case err != nil:
		result = "error"
	}
	s.durations.WithLabelValues(call, result).Observe(time.Since(began).Seconds())
}

// Claim implements oncehttp.Store.
func (s *measuredStore) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (c oncehttp.Claim, err error) {
	defer func(t time.Time) { s.note("claim", t, err) }(time.Now())
	return s.Store.Claim(ctx, op, lease, keep)
}

// TakeOver implements oncehttp.Store.
func (s *measuredStore) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (c oncehttp.Claim, err error) {
	defer func(t time.Time) { s.note("take-over", t, err) }(time.Now())
	return s.Store.TakeOver(ctx, op, lease, keep)
}

// Renew implements oncehttp.Store.
func (s *measuredStore) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) (err error) {
	defer func(t time.Time) { s.note("renew", t, err) }(time.Now())
	return s.Store.Renew(ctx, op, lease)
}

// Complete implements oncehttp.Store.
func (s *measuredStore) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) (err error) {
	defer func(t time.Time) { s.note("complete", t, err) }(time.Now())
	return s.Store.Complete(ctx, op, head, body, keep)
}

// Release implements oncehttp.Store.
func (s *measuredStore) Release(ctx context.Context, op oncehttp.Op) (err error) {
	defer func(t time.Time) { s.note("release", t, err) }(time.Now())
	return s.Store.Release(ctx, op)
}
