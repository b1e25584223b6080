package onceotel

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncehttp/oncehttp"
)

// Middleware makes m tell how each request with a key, or that was refused for want of one,
// ended: as attributes of the span in the request's context, which an instrumented server
// outside of m has started, and in the metric oncehttp.server.request.duration.
//
// It sets m.OnOutcome, which keeps what it was set to, so call it before m.Handler, and once.
func (o *Telemetry) Middleware(m *oncehttp.Middleware) {
	o.once.Do(o.init)
	onOutcome := m.OnOutcome
	m.OnOutcome = func(r *http.Request, out oncehttp.Outcome) {
		o.outcome(r, out)
		if onOutcome != nil {
			onOutcome(r, out)
		}
	}
}

func (o *Telemetry) outcome(r *http.Request, out oncehttp.Outcome) {
	ctx := r.Context()
	attrs := []attribute.KeyValue{str(attrOutcome, out.Kind.String())}
	if out.Refusal != nil {
		attrs = append(attrs, str(attrRefusal, out.Refusal.Type[strings.LastIndexByte(out.Refusal.Type, ':')+1:]))
	}
	o.answer.Record(ctx, out.Duration.Seconds(), metric.WithAttributes(append(attrs[:len(attrs):len(attrs)], attribute.Int(attrStatus, out.Status))...))
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	attrs = append(attrs, attribute.Bool(attrRecorded, out.Recorded))
	if out.Key != "" {
		attrs = append(attrs, str(attrRecord, out.Key))
	}
	if out.Holder > 1 {
		attrs = append(attrs, attribute.Int(attrHolder, out.Holder))
	}
	span.SetAttributes(attrs...)
}
