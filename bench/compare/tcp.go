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
	a, again, ours := client(bare), client(bare), client(oncehttpDefaults)
	for _, c := range []*http.Client{a, again, ours} {
		rate(c, s.URL) // opens its connections
		defer c.CloseIdleConnections()
	}
	var same, ratio, plain []float64
	for i := range tcpPairs {
		// Who comes first changes, since the second may meet the first one's garbage.
		pair := func(x, y *http.Client) float64 {
			if i%2 == 0 {
				p := rate(x, s.URL)
				return rate(y, s.URL) / p
			}
			q := rate(y, s.URL)
			return q / rate(x, s.URL)
		}
		same = append(same, pair(a, again))
		ratio = append(ratio, pair(a, ours))
		plain = append(plain, rate(a, s.URL))
	}
	r.printf("Keyed POSTs over %d connections, %d alternating pairs of %v; the rate of one, of that of a bare http.Client.\n\n", tcpConns, tcpPairs, tcpTime)
	r.printf("| pair | lower quartile | median | upper quartile |\n|---|---|---|---|\n")
	for _, row := range []struct {
		name string
		x    []float64
	}{{"http.Client and itself (A/A)", same}, {"http.Client and oncehttp, all defaults", ratio}} {
		r.printf("| %s | %.3f | %.3f | %.3f |\n", row.name, quantile(row.x, 0.25), median(row.x), quantile(row.x, 0.75))
	}
	r.printf("\nThe bare client made %.0f requests a second.\n", median(plain))
	r.judge("loopback TCP: rate, of a bare client's (limit: A/A's lower quartile − 0.03)", median(ratio), "≥", quantile(same, 0.25)-0.03, "×")
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
