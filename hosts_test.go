package oncehttp

import (
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

func TestHostsAreTheSameHoweverTheirURLIsSpelled(t *testing.T) {
	for _, tt := range []struct{ url, want string }{
		{"https://api.example.com/v1?q", "https://api.example.com"},
		{"https://API.Example.COM", "https://api.example.com"},
		{"https://api.example.com:443", "https://api.example.com"},
		{"https://api.example.com:", "https://api.example.com"},
		{"https://api.example.com:8443", "https://api.example.com:8443"},
		{"https://api.example.com:80", "https://api.example.com:80"},
		{"https://api.example.com:4430", "https://api.example.com:4430"},
		{"http://api.example.com:80", "http://api.example.com"},
		{"http://api.example.com:443", "http://api.example.com:443"},
		{"HTTP://user:secret@api.example.com:80/", "http://api.example.com"},
		{"http://192.0.2.1:80", "http://192.0.2.1"},
		{"http://[2001:DB8::1]", "http://[2001:db8::1]"},
		{"http://[2001:db8::80]", "http://[2001:db8::80]"},
		{"http://[2001:db8::1]:80", "http://[2001:db8::1]"},
		{"http://[2001:db8::1]:", "http://[2001:db8::1]"},
		{"https://[::1]:8443", "https://[::1]:8443"},
		{"https://[fe80::1%25eth0]:443", "https://[fe80::1%eth0]"},
	} {
		u, err := url.Parse(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		if got := hostKeyOf(u).String(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.url, got, tt.want)
		}
	}
	for _, u := range []*url.URL{{}, {Host: ":"}, {Host: "]"}, {Host: ":]"}, {Host: "::1"}, {Scheme: "http"}} {
		hostKeyOf(u) // does not panic
	}
}

func TestAHostKeyAllocatesOnlyToLowerCase(t *testing.T) {
	u := &url.URL{Scheme: "https", Host: "api.example.com:443"}
	var k hostKey
	if n := testing.AllocsPerRun(100, func() { k = hostKeyOf(u) }); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
	_ = k
}

// A guest is a hostEntry that stays while busy is set.
type guest struct {
	busy, gone bool
	n          atomic.Int64
}

func (g *guest) leave(_ time.Time, must bool) bool {
	g.gone = must || !g.busy
	return g.gone
}

type guests = hostMap[guest, *guest]

func nth(i int) hostKey { return hostKey{"https", fmt.Sprintf("h%d.example", i)} }

func TestAHostMapGivesOneEntryToAHost(t *testing.T) {
	var m guests
	for i := range 500 {
		var wg sync.WaitGroup
		k := nth(i)
		m.mu.Lock() // so that all of them look for it before any has made it
		for range 8 {
			wg.Go(func() { m.get(k, time.Time{}).n.Add(1) })
		}
		for range 20 {
			runtime.Gosched()
		}
		m.mu.Unlock()
		wg.Wait()
		if got := m.get(k, time.Time{}).n.Load(); got != 8 {
			t.Fatalf("host %d has been seen %d times by its entry, want 8", i, got)
		}
	}
	if m.find(nth(500)) != nil {
		t.Error("find has made an entry")
	}
	seen := 0
	m.each(func(hostKey, *guest) { seen++ })
	if seen != 500 {
		t.Errorf("each has seen %d entries, want 500", seen)
	}
}

func TestAHostMapIsBoundedAndForgetsTheLeastRecentlyUsed(t *testing.T) {
	var m guests
	regular := m.get(nth(-1), time.Time{})
	first := m.get(nth(0), time.Time{})
	for i := range 10_000 {
		m.get(nth(i), time.Time{})
		if m.get(nth(-1), time.Time{}) != regular {
			t.Fatalf("the host that was used all the time is forgotten after %d others", i)
		}
		if n := len(m.m); n > hostsKept {
			t.Fatalf("%d hosts are kept, want at most %d", n, hostsKept)
		}
	}
	if m.find(nth(0)) != nil || !first.gone {
		t.Error("the host that was used least recently is kept, or does not know that it is forgotten")
	}
	for i := 10_000 - hostsKept/2; i < 10_000; i++ {
		if m.find(nth(i)) == nil {
			t.Fatalf("host %d, used recently, is forgotten", i)
		}
	}
}

func TestAHostMapKeepsWhoIsBusyUpToAHardBound(t *testing.T) {
	var m guests
	busy := make([]*guest, 0, hostsMost)
	for i := range hostsMost - hostsKept {
		g := m.get(nth(i), time.Time{})
		g.busy = true
		busy = append(busy, g)
	}
	for i := range 3 * hostsKept {
		m.get(nth(-1-i), time.Time{})
	}
	for i, g := range busy {
		if m.find(nth(i)) != g || g.gone {
			t.Fatalf("host %d is forgotten although it is busy", i)
		}
	}
	for i := range 5 * hostsMost {
		m.get(nth(len(busy)+i), time.Time{}).busy = true
		if n := len(m.m); n > hostsMost {
			t.Fatalf("%d busy hosts are kept, want at most %d", n, hostsMost)
		}
	}
	if !busy[0].gone {
		t.Error("the busy host that was used least recently does not know that it is forgotten")
	}
	m.each(func(k hostKey, g *guest) {
		if g.gone {
			t.Errorf("%v was told to leave and is still there", k)
		}
		g.busy = false
	})
	m.get(nth(-1), time.Time{})
	for i := range 2 * hostsMost {
		m.get(nth(-1-i), time.Time{})
	}
	if n := len(m.m); n > hostsKept {
		t.Errorf("%d hosts are kept once none is busy, want at most %d", n, hostsKept)
	}
}

func TestAHostMapKeepsNoURLAlive(t *testing.T) {
	var m guests
	u, err := url.Parse("https://api.example.com/" + strings.Repeat("x", 1000))
	if err != nil {
		t.Fatal(err)
	}
	k := hostKeyOf(u)
	m.get(k, time.Time{})
	m.each(func(kept hostKey, _ *guest) {
		if kept != k {
			t.Fatalf("got %v, want %v", kept, k)
		}
		if unsafe.StringData(kept.host) == unsafe.StringData(k.host) {
			t.Error("the key is a part of the URL's text and keeps all of it in memory")
		}
	})
}

func TestAHostMapHitAllocatesNothing(t *testing.T) {
	var m guests
	k := nth(1)
	m.get(k, time.Time{})
	if n := testing.AllocsPerRun(100, func() { m.get(k, time.Time{}) }); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

func BenchmarkHostMap(b *testing.B) {
	for _, hosts := range []int{1, 1000, 10_000} {
		keys := make([]hostKey, hosts)
		for i := range keys {
			keys[i] = nth(i)
		}
		b.Run(fmt.Sprint(hosts), func(b *testing.B) {
			b.ReportAllocs()
			var m guests
			var next atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				i := int(next.Add(7919))
				for ; pb.Next(); i++ {
					m.get(keys[i%hosts], time.Time{})
				}
			})
		})
	}
}
