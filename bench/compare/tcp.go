package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

func setProcs(n int) func() func() {
	return func() func() {
		old := runtime.GOMAXPROCS(n)
		return func() { runtime.GOMAXPROCS(old) }
	}
}

const (
	tcpConns = 64
	tcpPairs = 20
	tcpTime  = 400 * time.Millisecond
)

// tcpSection compares throughput over real connections in pairs that follow each
// other at once, since a machine's speed drifts by more than the difference.
func tcpSection(r *report) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		io.Copy(io.Discard, req.Body)
		io.WriteString(w, `{"refunded":true}`)
	}))
	defer s.Close()
	client := func(p peer) *http.Client {
		base := http.DefaultTransport.(*http.Transport).Clone()
		base.MaxIdleConnsPerHost, base.MaxIdleConns = tcpConns, tcpConns
		return &http.Client{Transport: p.wrap(base, time.Second)}
	}
	reference := client(bare)
	// What anybody's wrapper does that can end an attempt, and what others do.
	beside := []peer{bare, oncehttpDefaults, oncehttpNoTimeout, cancelOnly, hashicorp, failsafe}
	clients := make([]*http.Client, len(beside))
	for i, p := range beside {
		clients[i] = client(p)
	}
	for _, c := range append(clients, reference) {
		rate(c, s.URL) // opens its connections
		defer c.CloseIdleConnections()
	}
	ratios := make([][]float64, len(beside))
	var plain []float64
	for i := range tcpPairs {
		for j, c := range clients {
			// Who comes first changes, since the second may meet the first one's garbage.
			var of, other float64
			if i%2 == 0 {
				of = rate(reference, s.URL)
				other = rate(c, s.URL)
			} else {
				other = rate(c, s.URL)
				of = rate(reference, s.URL)
			}
			ratios[j] = append(ratios[j], other/of)
			plain = append(plain, of)
		}
	}
	r.printf("Keyed POSTs over %d connections, %d alternating pairs of %v; the rate of each, of that of a bare http.Client.\n\n", tcpConns, tcpPairs, tcpTime)
	r.printf("| | lower quartile | median | upper quartile | has |\n|---|---|---|---|---|\n")
	for j, p := range beside {
		name := p.name
		if j == 0 {
			name = "http.Client and itself (A/A)"
		}
		r.printf("| %s | %.3f | %.3f | %.3f | %s |\n", name, quantile(ratios[j], 0.25), median(ratios[j]), quantile(ratios[j], 0.75), p.features)
	}
	r.printf("\nThe bare client made %.0f requests a second.\n", median(plain))
	r.judge("loopback TCP: rate, of a bare client's (limit: A/A's lower quartile − 0.03)", median(ratios[1]), "≥", quantile(ratios[0], 0.25)-0.03, "×")
}

// rate is how many requests a second go over all connections together.
func rate(c *http.Client, url string) float64 {
	var n atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	host := url[len("http://"):]
	for range tcpConns {
		wg.Go(func() {
			for time.Since(start) < tcpTime {
				resp, err := c.Do(post.make(context.Background(), host))
				if err != nil {
					panic(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(start).Seconds()
}
