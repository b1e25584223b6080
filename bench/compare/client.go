package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A nothing answers at once, from nothing: what is measured is what stands above it.
type nothing struct{}

var plainText = http.Header{"Content-Type": {"text/plain"}}

func (nothing) RoundTrip(r *http.Request) (*http.Response, error) {
	return answer(r, 200), nil
}

func answer(r *http.Request, status int) *http.Response {
	if r.Body != nil {
		r.Body.Close()
	}
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: plainText, Body: endedBody{}, ContentLength: -1, Request: r,
	}
}

type endedBody struct{}

func (endedBody) Read([]byte) (int, error) { return 0, io.EOF }
func (endedBody) Close() error             { return nil }

// An ask makes the request that is measured, the same for all.
type ask struct {
	name string
	make func(ctx context.Context, host string) *http.Request
}

var (
	refund   = []byte(`{"order":"A-17","amount":100}`)
	jsonType = []string{"application/json"}

	get = ask{"GET", func(ctx context.Context, host string) *http.Request {
		r, _ := http.NewRequestWithContext(ctx, "GET", "http://"+host+"/orders/7", nil)
		return r
	}}
	post = ask{"keyed POST", func(ctx context.Context, host string) *http.Request {
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://"+host+"/refunds", bytes.NewReader(refund))
		r.Header["Content-Type"] = jsonType
		r.Header["Idempotency-Key"] = key
		return r
	}}
	key = []string{"0b5c66b2-8f61-4b8e-9d9c-0a1e3c1f6a11"}
)

// roundTrip makes one call and ends it as a caller does.
func roundTrip(rt http.RoundTripper, r *http.Request) {
	resp, err := rt.RoundTrip(r)
	if err != nil {
		panic(err)
	}
	if resp.StatusCode != 200 {
		panic(resp.Status)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		panic(err)
	}
	resp.Body.Close()
}

func calls(p peer, base http.RoundTripper, a ask) *candidate {
	rt := p.wrap(base, time.Second)
	return &candidate{name: p.name, features: p.features, bench: func(b *testing.B) {
		for b.Loop() {
			roundTrip(rt, a.make(b.Context(), "a.example"))
		}
	}}
}

func clientSection(r *report) {
	for _, a := range []ask{get, post} {
		r.printf("%s, over a base that answers from nothing; the time to make the request is in all of them.\n\n", a.name)
		base, ours, all, hashi := calls(bare, nothing{}, a), calls(oncehttpNoTimeout, nothing{}, a), calls(oncehttpDefaults, nothing{}, a), calls(hashicorp, nothing{}, a)
		fail, reh := calls(failsafe, nothing{}, a), calls(puerkito, nothing{}, a)
		cs := []*candidate{base, ours, all, hashi, fail, reh}
		r.measure("Client_"+a.name, cs)
		r.table(cs)
		r.printf("\n")
		r.judge(a.name+", AttemptTimeout off: time over the bare base, of go-retryablehttp's", (ours.time()-base.time())/(hashi.time()-base.time()), "≤", 1, "×")
		r.judge(a.name+", all defaults: total time, of failsafehttp's", all.time()/fail.time(), "≤", 0.5, "×")
	}
}

// An ailing answers 503, 503, 200 and so on.
type ailing struct{ n atomic.Int64 }

func (a *ailing) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.n.Add(1)%attempts != 0 {
		return answer(r, 503), nil
	}
	return answer(r, 200), nil
}

func retrySection(r *report) {
	r.printf("A keyed POST with a body, without pauses. Breakers and budgets are off, or they would end it.\n\n")
	ours := peer{"oncehttp", "retries, keys", func(base http.RoundTripper, _ time.Duration) http.RoundTripper {
		t := newOnce(base, 0, -1)
		t.Breaker, t.Budget = &oncehttp.Breaker{Disabled: true}, &oncehttp.Budget{Disabled: true}
		return t
	}}
	var cs []*candidate
	for _, p := range []peer{bare, ours, hashicorp, puerkito} {
		var rt http.RoundTripper = p.wrap(&ailing{}, 0)
		if p.name == bare.name {
			rt = nothing{}
		}
		cs = append(cs, &candidate{name: p.name, features: p.features, bench: func(b *testing.B) {
			for b.Loop() {
				roundTrip(rt, post.make(b.Context(), "a.example"))
			}
		}})
	}
	cs[0].features = "one attempt that succeeds"
	r.measure("Retry", cs)
	r.table(cs)
	r.judge("a retried call: allocations, of go-retryablehttp's", cs[1].allocs()/cs[2].allocs(), "≤", 1.3, "×")
	conns, sends := retriedOverTCP(ours)
	r.printf("\nOver TCP, 20 such calls one after another made %d sends over %d connection(s).\n", sends, conns)
	r.judge("a retried call: connections used", float64(conns), "≤", 1, "")
}

// retriedOverTCP counts the connections and requests of twenty retried calls.
func retriedOverTCP(p peer) (conns, sends int64) {
	var opened, served atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		io.Copy(io.Discard, req.Body)
		if served.Add(1)%attempts != 0 {
			http.Error(w, "try later", 503)
		}
	}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	rt := p.wrap(base, 0)
	for range 20 {
		roundTrip(rt, post.make(context.Background(), s.Listener.Addr().String()))
	}
	return opened.Load(), served.Load()
}

// contentionSection compares how much faster two cores are than one.
func contentionSection(r *report) {
	const goroutines = 64
	for _, hosts := range []int{1, 1000} {
		names := make([]string, hosts)
		for i := range names {
			names[i] = fmt.Sprintf("h%d.example", i)
		}
		var cs []*candidate
		for _, p := range []peer{bare, oncehttpDefaults} {
			for _, procs := range []int{1, 2} {
				rt := p.wrap(nothing{}, time.Second)
				cs = append(cs, &candidate{name: fmt.Sprintf("%s on %d core(s)", p.name, procs), features: p.features,
					setup: setProcs(procs), bench: func(b *testing.B) { together(b, goroutines, rt, names) }})
			}
		}
		r.printf("%d goroutines, keyed POSTs to %d host(s).\n\n", goroutines, hosts)
		r.measure(fmt.Sprintf("Contention_%d_hosts", hosts), cs)
		r.table(cs)
		r.printf("\n")
		scaling := func(one, two *candidate) float64 { return one.time() / two.time() }
		r.judge(fmt.Sprintf("%d goroutines, %d host(s): speed-up by a second core, of the bare base's", goroutines, hosts),
			scaling(cs[2], cs[3])/scaling(cs[0], cs[1]), "≥", 0.8, "×")
	}
}

func together(b *testing.B, n int, rt http.RoundTripper, hosts []string) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for g := range n {
		wg.Go(func() {
			for i := g; next.Add(1) <= int64(b.N); i++ {
				roundTrip(rt, post.make(context.Background(), hosts[i%len(hosts)]))
			}
		})
	}
	wg.Wait()
}
