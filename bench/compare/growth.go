package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"testing"
	"time"
)

// growthSection compares a call's cost among few with that among many.
func growthSection(r *report) {
	r.printf("Keyed POSTs, all defaults, to hosts in turn. Breakers and budgets of 1024 hosts are remembered, beyond that the least recently used goes.\n\n")
	var cs []*candidate
	for _, hosts := range []int{1, 1000, 10_000} {
		names := make([]string, hosts)
		for i := range names {
			names[i] = fmt.Sprintf("h%d.example", i)
		}
		rt := oncehttpDefaults.wrap(nothing{}, time.Second)
		for _, h := range names {
			roundTrip(rt, post.make(context.Background(), h))
		}
		cs = append(cs, &candidate{name: fmt.Sprintf("%d host(s)", hosts), bench: func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				roundTrip(rt, post.make(b.Context(), names[i%hosts]))
			}
		}})
	}
	r.measure("Hosts", cs)
	r.table(cs)
	r.judge("cost of a call at 1 000 hosts, of that at one", cs[1].time()/cs[0].time(), "≤", 1.5, "×")
	r.judge("cost of a call at 10 000 hosts, of that at one", cs[2].time()/cs[0].time(), "≤", 4, "×")

	r.printf("\nFirst executions and replays in a MemoryStore that already has this many keys. A key is made in the loop, since one comes in with its request: it is not looked up in a list of a million.\n\n")
	var firsts, replays []*candidate
	for _, n := range []int{100, 10_000, 1_000_000} {
		h, next := filled(n)
		firsts = append(firsts, &candidate{name: fmt.Sprintf("first, %d keys", n), bench: func(b *testing.B) {
			for b.Loop() {
				serve(h, fmt.Sprintf("more-%010d", *next))
				*next++
			}
		}, setup: func() func() {
			if n < 1_000_000 { // among so many, those of a round do not count
				h, next = filled(n)
			}
			return func() {}
		}})
		other, _ := filled(n)
		replays = append(replays, &candidate{name: fmt.Sprintf("replay, %d keys", n), bench: func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				serve(other, keyOf(i*7919%n))
			}
		}})
	}
	all := append(append([]*candidate{}, firsts...), replays...)
	all = append(all, &candidate{name: "replay, 100 keys, and a look at one of 1000000 places", features: "two reads of memory that no cache has", bench: looking()})
	r.measure("Keys", all)
	r.table(all)
	r.judge("first execution at 10⁶ keys, of that at 10²", firsts[2].time()/firsts[0].time(), "≤", 1.2, "×")
	r.judge("replay at 10⁶ keys, of that at 10²", replays[2].time()/replays[0].time(), "≤", 1.2, "×")
}

// looking is a replay among few keys, and beside it what no store of a million records
// can do without: to look up where a record is, and to read some of its lines.
func looking() func(b *testing.B) {
	const n, lines = 1_000_000, 5
	where := make([]uint64, 1<<21) // as large as an index of that many
	what := make([][lines][8]uint64, n)
	for i := range where {
		where[i] = uint64(i) * 2654435761 % n
	}
	for i := range what {
		for j := range what[i] {
			what[i][j][0] = uint64(i)
		}
	}
	h, _ := filled(100)
	return func(b *testing.B) {
		sum := uint64(0)
		for i := 0; b.Loop(); i++ {
			at := &what[where[uint64(i)*0x9e3779b97f4a7c15>>43]]
			for j := range lines - 1 {
				sum += at[j][0]
			}
			serve(h, keyOf(i*7919%100))
		}
		runtime.KeepAlive(sum)
	}
}

// filled is a protected handler whose store has n keys.
func filled(n int) (http.Handler, *int) {
	h := protected(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
	}))
	for i := range n {
		serve(h, keyOf(i))
	}
	next := 0
	return h, &next
}
