package onceotel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/onceotel"
)

// A lens is a Telemetry and what it recorded.
type lens struct {
	onceotel.Telemetry
	t      *testing.T
	spans  *tracetest.SpanRecorder
	reader *metric.ManualReader
}

func newLens(t *testing.T) *lens {
	l := &lens{t: t, spans: tracetest.NewSpanRecorder(), reader: metric.NewManualReader()}
	tracers := trace.NewTracerProvider(trace.WithSpanProcessor(l.spans))
	meters := metric.NewMeterProvider(metric.WithReader(l.reader))
	t.Cleanup(func() {
		tracers.Shutdown(context.Background())
		meters.Shutdown(context.Background())
	})
	l.TracerProvider, l.MeterProvider, l.Propagator = tracers, meters, propagation.TraceContext{}
	return l
}

// points returns what a metric has, as lines "attr=value,… count".
func (l *lens) points(name string) []string {
	l.t.Helper()
	var all metricdata.ResourceMetrics
	if err := l.reader.Collect(context.Background(), &all); err != nil {
		l.t.Fatal(err)
	}
	var lines []string
	add := func(set attribute.Set, n any) {
		lines = append(lines, fmt.Sprint(set.Encoded(attribute.DefaultEncoder()), " ", n))
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					add(p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					add(p.Attributes, p.Count)
				}
			default:
				l.t.Fatalf("%s is a %T", name, d)
			}
		}
	}
	return lines
}

func (l *lens) has(name string, parts ...string) {
	l.t.Helper()
	for _, line := range l.points(name) {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			return
		}
	}
	l.t.Errorf("%s has no point with %q, but\n%s", name, parts, strings.Join(l.points(name), "\n"))
}

func attrs(s trace.ReadOnlySpan) map[string]string {
	m := map[string]string{}
	for _, kv := range s.Attributes() {
		m[string(kv.Key)] = kv.Value.String()
	}
	return m
}

func quick() *oncehttp.Transport {
	return &oncehttp.Transport{BackoffBase: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
}

func TestEveryAttemptIsAClientSpanOfItsOwn(t *testing.T) {
	var n atomic.Int32
	var parents []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parents = append(parents, r.Header.Get("Traceparent"))
		if n.Add(1) < 3 {
			w.WriteHeader(503)
		}
	}))
	defer s.Close()
	l := newLens(t)
	client := http.Client{Transport: l.Transport(quick())}
	ctx, root := l.TracerProvider.Tracer("test").Start(t.Context(), "root")
	req, _ := http.NewRequestWithContext(ctx, "POST", s.URL+"/refunds?card=4242", strings.NewReader("{}"))
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	root.End()
	if got := len(oncehttp.Attempts(resp).Tries); got != 3 {
		t.Errorf("Attempts(resp) has %d tries, want 3: the wrapper hides them", got)
	}
	ended := l.spans.Ended()
	if len(ended) != 4 {
		t.Fatalf("%d spans, want 3 attempts and the root", len(ended))
	}
	for i, span := range ended[:3] {
		a := attrs(span)
		if span.Name() != "POST" || span.SpanKind() != oteltrace.SpanKindClient || span.Parent().SpanID() != root.SpanContext().SpanID() {
			t.Errorf("attempt %d: span %q of kind %v under %v", i+1, span.Name(), span.SpanKind(), span.Parent().SpanID())
		}
		wantResend, wantStatus := "", "503"
		if i > 0 {
			wantResend = fmt.Sprint(i)
		}
		if i == 2 {
			wantStatus = "200"
		}
		if a["http.request.resend_count"] != wantResend || a["http.response.status_code"] != wantStatus {
			t.Errorf("attempt %d: %v, want resend_count %q and status %s", i+1, a, wantResend, wantStatus)
		}
		if (i < 2) != (span.Status().Code == codes.Error) || (i < 2) != (a["error.type"] == "503") {
			t.Errorf("attempt %d: status %v, error.type %q", i+1, span.Status(), a["error.type"])
		}
		if want := s.URL + "/refunds"; a["url.full"] != want {
			t.Errorf("url.full is %q, want %q", a["url.full"], want)
		}
		if !strings.Contains(parents[i], span.SpanContext().SpanID().String()) {
			t.Errorf("attempt %d was sent with traceparent %q, want its span %s", i+1, parents[i], span.SpanContext().SpanID())
		}
	}
	l.has("http.client.request.duration", "http.response.status_code=503", "error.type=503", " 2")
	l.has("http.client.request.duration", "http.response.status_code=200", " 1")
	l.has("oncehttp.client.resends", "server.address=127.0.0.1", " 2")
	l.has("oncehttp.client.requests", "oncehttp.certainty=answered", "oncehttp.stop=none", " 1")
}

func TestASignatureCoversTheTraceContext(t *testing.T) {
	var signed, sent string
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { sent = r.Header.Get("Traceparent") }))
	defer s.Close()
	l := newLens(t)
	tr := quick()
	tr.Prepare = func(r *http.Request) error {
		signed = r.Header.Get("Traceparent")
		return nil
	}
	var seen int
	tr.OnAttempt = func(*http.Request, oncehttp.Attempt) { seen++ }
	resp, err := (&http.Client{Transport: l.Transport(tr)}).Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if signed == "" || signed != sent {
		t.Errorf("Prepare saw traceparent %q and the server %q", signed, sent)
	}
	if seen != 1 {
		t.Errorf("the OnAttempt that was set before was called %d times, want once", seen)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestASpanEndsHoweverItsAttemptDoes(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		set        func(*oncehttp.Transport)
	}{
		{"Base panics", "panic", func(tr *oncehttp.Transport) {
			tr.Base = roundTripper(func(*http.Request) (*http.Response, error) { panic("boom") })
		}},
		{"Prepare fails", "prepare", func(tr *oncehttp.Transport) {
			tr.Prepare = func(*http.Request) error { return errors.New("no credentials") }
		}},
		{"nobody listens", "connect", func(tr *oncehttp.Transport) { tr.Attempts = 1 }},
		{"the attempt times out", "timeout", func(tr *oncehttp.Transport) {
			tr.Attempts, tr.AttemptTimeout = 1, time.Millisecond
			tr.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLens(t)
			tr := quick()
			c.set(tr)
			rt := l.Transport(tr)
			req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:1/", nil)
			func() {
				defer func() { _ = recover() }()
				if resp, err := rt.RoundTrip(req); err == nil {
					resp.Body.Close()
					t.Error("no error")
				}
			}()
			started, ended := l.spans.Started(), l.spans.Ended()
			if len(started) != 1 || len(ended) != 1 {
				t.Fatalf("%d spans started and %d ended, want 1 and 1", len(started), len(ended))
			}
			if got := attrs(ended[0])["error.type"]; got != c.kind || ended[0].Status().Code != codes.Error {
				t.Errorf("error.type %q and status %v, want %q and Error", got, ended[0].Status(), c.kind)
			}
		})
	}
}

func TestARefusedRequestIsCountedWithItsReason(t *testing.T) {
	l := newLens(t)
	tr := quick()
	tr.Attempts = 1
	tr.Base = roundTripper(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF })
	rt := l.Transport(tr)
	for range 6 { // five open the breaker
		req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example/", nil)
		if _, err := rt.RoundTrip(req); err == nil {
			t.Fatal("no error")
		}
	}
	if n := len(l.spans.Ended()); n != 5 {
		t.Errorf("%d spans, want 5: the sixth request had no attempt", n)
	}
	l.has("oncehttp.client.requests", "oncehttp.certainty=unknown", "oncehttp.stop=attempts", " 5")
	l.has("oncehttp.client.requests", "oncehttp.certainty=not sent", "oncehttp.stop=breaker_open", " 1")
}

func TestMetricsTellABoundedNumberOfHostsApart(t *testing.T) {
	l := newLens(t)
	l.Hosts = 3
	tr := quick()
	tr.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
	})
	rt := l.Transport(tr)
	for i := range 50 {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://h%d.example:%d/", i, 1000+i), nil)
		resp, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	if n := len(l.points("oncehttp.client.requests")); n != 4 {
		t.Errorf("%d series, want 3 hosts and %s:\n%s", n, onceotel.OtherHost, strings.Join(l.points("oncehttp.client.requests"), "\n"))
	}
	l.has("oncehttp.client.requests", "server.address="+onceotel.OtherHost, " 47")
	if n := len(l.spans.Ended()); n != 50 || attrs(l.spans.Ended()[49])["server.address"] != "h49.example" {
		t.Errorf("%d spans, the last for %v", n, attrs(l.spans.Ended()[n-1]))
	}
}

// dump is everything that was exported.
func (l *lens) dump() string {
	var b strings.Builder
	for _, s := range l.spans.Ended() {
		fmt.Fprintln(&b, s.Name(), s.Attributes(), s.Status(), s.Events(), s.Links())
	}
	var all metricdata.ResourceMetrics
	_ = l.reader.Collect(context.Background(), &all)
	fmt.Fprintf(&b, "%+v", all)
	return b.String()
}

func TestNoSecretIsExported(t *testing.T) {
	l := newLens(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		fmt.Fprint(w, "canary-reply")
	}))
	s.Close() // so that an error with the URL comes too
	client := http.Client{Transport: l.Transport(quick())}
	ctx := oncehttp.WithKey(t.Context(), "canary-key")
	for _, method := range []string{"POST", "canary-METHOD"} {
		u := strings.Replace(s.URL, "http://", "http://canary-user:canary-password@", 1)
		req, _ := http.NewRequestWithContext(ctx, method, u+"/x?canary-query=1#canary-fragment", strings.NewReader("canary-body"))
		req.Header.Set("Authorization", "canary-token")
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
		}
	}
	if len(l.spans.Ended()) < 2 {
		t.Fatal("nothing was exported")
	}
	if all := l.dump(); strings.Contains(all, "canary") {
		t.Errorf("exported:\n%s", all)
	}
}
