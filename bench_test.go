package oncehttp_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A noBase answers at once, from nothing: what is measured is the Transport.
type noBase struct{}

var noHeader = http.Header{"Content-Type": {"text/plain"}}

func (noBase) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		r.Body.Close()
	}
	return &http.Response{
		Status: "200 OK", StatusCode: 200, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: noHeader, Body: eofBody{}, ContentLength: -1, Request: r,
	}, nil
}

type eofBody struct{}

func (eofBody) Read([]byte) (int, error) { return 0, io.EOF }
func (eofBody) Close() error             { return nil }

type requestMaker func(context.Context) *http.Request

// The requests that are measured. They are made on both sides of a comparison.
var hotRequests = []struct {
	name string
	make requestMaker
}{
	{"GET", func(ctx context.Context) *http.Request {
		r, _ := http.NewRequestWithContext(ctx, "GET", "http://a.example/orders/7", nil)
		return r
	}},
	{"keyed POST", func(ctx context.Context) *http.Request {
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://a.example/refunds", bytes.NewReader(hotBody))
		r.Header["Content-Type"] = jsonType
		return r
	}},
}

var (
	hotBody  = []byte(`{"order":"A-17","amount":100}`)
	jsonType = []string{"application/json"}
)

// hotTransports are made anew by each call.
var hotTransports = []struct {
	name string
	make func() *oncehttp.Transport
}{
	{"AttemptTimeout off", func() *oncehttp.Transport { return &oncehttp.Transport{Base: noBase{}, AttemptTimeout: -1} }},
	{"all defaults", func() *oncehttp.Transport { return &oncehttp.Transport{Base: noBase{}} }},
}

func roundTripOnce(tb testing.TB, rt http.RoundTripper, r *http.Request) {
	resp, err := rt.RoundTrip(r)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := resp.Body.Read(nil); err != io.EOF {
		tb.Fatal(err)
	}
	resp.Body.Close()
}

func BenchmarkTransport(b *testing.B) {
	for _, req := range hotRequests {
		b.Run(req.name+"/bare", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				roundTripOnce(b, noBase{}, req.make(b.Context()))
			}
		})
		for _, kind := range hotTransports {
			b.Run(req.name+"/"+kind.name, func(b *testing.B) {
				tr := kind.make()
				b.ReportAllocs()
				for b.Loop() {
					roundTripOnce(b, tr, req.make(b.Context()))
				}
			})
			b.Run(req.name+"/"+kind.name+", in parallel", func(b *testing.B) {
				tr := kind.make()
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						roundTripOnce(b, tr, req.make(b.Context()))
					}
				})
			})
		}
	}
}

// A retry costs more, but not much more: it goes through go-retryablehttp.
func BenchmarkTransportRetry(b *testing.B) {
	tr := &oncehttp.Transport{
		Budget: &oncehttp.Budget{Disabled: true}, Breaker: &oncehttp.Breaker{Disabled: true}, Logger: quiet(),
		Backoff: func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return 0 },
	}
	n := 0
	tr.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
		resp, err := noBase{}.RoundTrip(r)
		if n++; n%2 == 1 {
			resp.StatusCode = 503
		}
		return resp, err
	})
	b.ReportAllocs()
	for b.Loop() {
		roundTripOnce(b, tr, hotRequests[1].make(b.Context()))
	}
}
