package onceotel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncehttp/oncehttp/toolcall"
)

// Runner makes r start a span execute_tool for each call, by the semantic conventions for
// generative AI, and measure it in oncehttp.tool.call.duration. The requests that a tool
// makes through an instrumented Transport are its children. A call that is answered with an
// earlier result has a span too, with oncehttp.tool.replayed. Arguments, results and the
// model's words are in none; the turn's id and the provider's call id are.
//
// It sets r.OnCall and r.OnRecord, which keep what they were set to, so call it before
// r.Register, and once.
func (o *Telemetry) Runner(r *toolcall.Runner) {
	o.once.Do(o.init)
	onCall, onRecord := r.OnCall, r.OnRecord
	r.OnCall = func(ctx context.Context, c toolcall.Started) context.Context {
		attrs := []attribute.KeyValue{
			str(attrOperation, opExecuteTool), str(attrTool, c.Tool), str(attrToolType, typeFunction), str(attrTurn, c.Turn),
		}
		if c.CallID != "" {
			attrs = append(attrs, str(attrToolCall, c.CallID))
		}
		ctx, span := o.spans.Start(ctx, opExecuteTool+" "+c.Tool, trace.WithTimestamp(c.Time), trace.WithAttributes(attrs...))
		ctx = context.WithValue(ctx, toolSpanKey{}, span)
		if onCall == nil {
			return ctx
		}
		defer func() {
			if v := recover(); v != nil { // the Runner goes on without our context
				span.End()
				panic(v)
			}
		}()
		if inner := onCall(ctx, c); inner != nil {
			return inner
		}
		return ctx
	}
	r.OnRecord = func(ctx context.Context, rec toolcall.Record) {
		o.called(ctx, rec)
		if onRecord != nil {
			onRecord(ctx, rec)
		}
	}
}

type toolSpanKey struct{}

func (o *Telemetry) called(ctx context.Context, rec toolcall.Record) {
	attrs := []attribute.KeyValue{
		str(attrToolState, string(rec.Status)), str(attrOutcome, string(rec.Outcome)), attribute.Bool(attrReplayed, rec.Replayed),
	}
	if rec.ErrorType != "" {
		attrs = append(attrs, str(attrError, string(rec.ErrorType)))
	}
	o.toolCall.Record(ctx, rec.Latency.Seconds(), metric.WithAttributes(append(attrs[:len(attrs):len(attrs)], str(attrTool, rec.Tool))...))
	span, ok := ctx.Value(toolSpanKey{}).(trace.Span)
	if !ok {
		return // what was set as OnCall gave up our context
	}
	span.SetAttributes(attrs...)
	span.SetAttributes(attribute.Int(attrTries, len(rec.Attempts)))
	if rec.Status == toolcall.StatusFailed {
		span.SetStatus(codes.Error, string(rec.ErrorType))
	}
	span.End()
}
