package main

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	speedPairs  = flag.Int("pairs", 20, "how many pairs of runs BenchmarkWithoutAKey compares")
	speedRun    = flag.Duration("run", 500*time.Millisecond, "how long each of them takes")
	memoryTime  = flag.Duration("memorytime", 4*time.Second, "how long TestMemoryStaysFlat loads the proxy")
	connections = 64
)

// bareEnv has a binary of these tests be a bare ReverseProxy to the upstream it names.
const bareEnv = "ONCEPROXY_TEST_BARE"

// serveBare is that ReverseProxy: with the standard Rewrite, and connections as
// onceproxy keeps them.
func serveBare(upstream string) {
	u, _ := url.Parse(upstream)
	s := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(u); p.SetXForwarded() },
		Transport: &http.Transport{DisableCompression: true, MaxIdleConns: 1024, MaxIdleConnsPerHost: 512},
	})
	fmt.Println(s.URL)
	select {} // until it is killed
}

func startBare(tb testing.TB, upstream string) string {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), bareEnv+"="+upstream)
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var addr string
	if _, err := fmt.Fscanln(out, &addr); err != nil {
		tb.Fatal(err)
	}
	return addr
}

// A loader sends requests over a number of connections that stay open.
type loader struct {
	client *http.Client
	conns  int
}

func newLoader(conns int) *loader {
	return &loader{&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: conns, DisableCompression: true}}, conns}
}

// run loads url for a time and returns the requests per second.
func (l *loader) run(tb testing.TB, url string, d time.Duration, change func(*http.Request)) float64 {
	var n atomic.Int64
	began := time.Now()
	var all sync.WaitGroup
	for range l.conns {
		all.Go(func() {
			for time.Since(began) < d {
				req, err := http.NewRequest("POST", url, strings.NewReader(`{"cents":100}`))
				if err != nil {
					tb.Error(err)
					return
				}
				if change != nil {
					change(req)
				}
				resp, err := l.client.Do(req)
				if err != nil {
					tb.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					tb.Errorf("got %d", resp.StatusCode)
					return
				}
				n.Add(1)
			}
		})
	}
	all.Wait()
	return float64(n.Load()) / time.Since(began).Seconds()
}

func quick(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, `{"receipt":"r-1"}`)
}

// BenchmarkWithoutAKey compares throughput without a key with that of a bare
// ReverseProxy, in pairs of runs that alternate, and two bare ones with each other, for
// what such a comparison is worth on this machine.
func BenchmarkWithoutAKey(b *testing.B) {
	up := httptest.NewServer(http.HandlerFunc(quick))
	defer up.Close()
	p, bare, other := start(b, "-upstream", up.URL), startBare(b, up.URL), startBare(b, up.URL)
	l := newLoader(connections)
	for b.Loop() {
		for _, url := range []string{p.URL, bare, other} { // warm
			l.run(b, url, *speedRun, nil)
		}
		var ab, aa []float64
		for i := range *speedPairs {
			pair := func(x, y string) float64 {
				if i%2 == 0 {
					a := l.run(b, x, *speedRun, nil)
					return a / l.run(b, y, *speedRun, nil)
				}
				c := l.run(b, y, *speedRun, nil)
				return l.run(b, x, *speedRun, nil) / c
			}
			ab, aa = append(ab, pair(p.URL, bare)), append(aa, pair(other, bare))
		}
		slices.Sort(ab)
		slices.Sort(aa)
		ratio, quartile := ab[len(ab)/2], aa[len(aa)/4]
		b.ReportMetric(ratio, "onceproxy/bare")
		b.ReportMetric(aa[len(aa)/2], "bare/bare")
		b.ReportMetric(quartile, "bare/bare-lower-quartile")
		if ratio < quartile-0.05 {
			b.Errorf("onceproxy has %.3f of a bare ReverseProxy's throughput, want at least %.3f - 0.05", ratio, quartile)
		}
	}
}

// BenchmarkWithAKey compares the time of a request with a key over SQLite with that of
// one without and with what syncing a file costs on this disk.
func BenchmarkWithAKey(b *testing.B) {
	up := httptest.NewServer(http.HandlerFunc(quick))
	defer up.Close()
	dir := b.TempDir()
	p := start(b, "-upstream", up.URL, "-store", filepath.Join(dir, "once.db"))
	l := newLoader(1)
	// The log of SQLite grows to 4000 pages, some 700 requests, before its room is used
	// again, and growing takes a disk longer. So that comes first.
	const warm, n = 1000, 1000
	for range warm {
		once(b, l, p.URL, "")
		once(b, l, p.URL, fmt.Sprintf("k%d", rand.Uint64()))
	}
	for b.Loop() {
		var keyed, unkeyed, syncs []time.Duration
		for range n {
			unkeyed = append(unkeyed, once(b, l, p.URL, ""))
			keyed = append(keyed, once(b, l, p.URL, fmt.Sprintf("k%d", rand.Uint64())))
			syncs = append(syncs, syncOnce(b, dir))
		}
		k, u, s := median(keyed), median(unkeyed), median(syncs)
		b.ReportMetric(float64(k.Microseconds()), "µs-keyed")
		b.ReportMetric(float64(u.Microseconds()), "µs-unkeyed")
		b.ReportMetric(float64(s.Microseconds()), "µs-fsync")
		if k > u+4*s {
			b.Errorf("with a key a request takes %v, without %v; that is more than 4 times a sync of %v", k, u, s)
		}
	}
}

func once(tb testing.TB, l *loader, url, key string) time.Duration {
	req, _ := http.NewRequest("POST", url, strings.NewReader(`{"cents":100}`))
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	began := time.Now()
	resp, err := l.client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return time.Since(began)
}

func syncOnce(tb testing.TB, dir string) time.Duration {
	f, err := os.OpenFile(filepath.Join(dir, "sync"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	f.Write(make([]byte, 4096))
	began := time.Now()
	if err := f.Sync(); err != nil {
		tb.Fatal(err)
	}
	return time.Since(began)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// Under full load, with keys and without, the proxy's memory does not grow.
func TestMemoryStaysFlat(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(quick))
	defer up.Close()
	p := start(t, "-upstream", up.URL, "-store", filepath.Join(t.TempDir(), "once.db"), "-keep", "1m")
	l := newLoader(connections)
	var samples []int
	const parts = 20
	for i := range parts {
		rate := l.run(t, p.URL, *memoryTime/parts, func(r *http.Request) {
			if rand.IntN(2) == 0 {
				r.Header.Set("Idempotency-Key", fmt.Sprintf("k%d", rand.Uint64()))
			}
		})
		samples = append(samples, residentKiB(t, p.cmd.Process.Pid))
		t.Logf("after %v: %d KiB, %.0f requests a second", *memoryTime*time.Duration(i+1)/parts, samples[i], rate)
	}
	early, late := slices.Max(samples[parts/4:parts/2]), slices.Max(samples[3*parts/4:])
	if late > early+early/4+16<<10 {
		t.Errorf("memory grew from %d KiB to %d KiB within %v", early, late, *memoryTime/2)
	}
}
