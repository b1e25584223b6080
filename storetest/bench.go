package storetest

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// Bench measures what a server asks of a store: keys that are new, keys that are
// repeated, and a heartbeat; one after another, and from many goroutines at
// once, with a head of 200 bytes and a body of 1000. new returns an empty store;
// it is called once for each of these.
func Bench(b *testing.B, new func(b *testing.B) oncehttp.Store) {
	head, body := make([]byte, 200), make([]byte, 1000)
	const lease, keep = 30 * time.Second, time.Hour
	ctx := context.Background()
	key := func(n int64) oncehttp.Op {
		return oncehttp.Op{Key: fmt.Sprintf("bench-%040d", n), Token: oncehttp.NewToken()}
	}
	first := func(b *testing.B, s oncehttp.Store, op oncehttp.Op) {
		c, err := s.Claim(ctx, op, lease, keep)
		if err != nil || c.Status != oncehttp.ClaimAcquired {
			b.Errorf("Claim of a free key: %v, %v", c.Status, err)
			return
		}
		if err := s.Complete(ctx, op, head, body, keep); err != nil {
			b.Errorf("Complete: %v", err)
		}
	}
	replay := func(b *testing.B, s oncehttp.Store, op oncehttp.Op) {
		if c, err := s.Claim(ctx, op, lease, keep); err != nil || c.Status != oncehttp.ClaimDone {
			b.Errorf("Claim of a done key: %v, %v", c.Status, err)
		}
	}

	b.Run("first", func(b *testing.B) {
		s := new(b)
		b.ReportAllocs()
		var n int64
		for b.Loop() {
			n++
			first(b, s, key(n))
		}
	})
	b.Run("replay", func(b *testing.B) {
		s := new(b)
		first(b, s, key(0))
		op := key(0)
		b.ReportAllocs()
		for b.Loop() {
			replay(b, s, op)
		}
	})
	b.Run("renew", func(b *testing.B) {
		s := new(b)
		op := key(0)
		if _, err := s.Claim(ctx, op, lease, keep); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Renew(ctx, op, lease); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, n := range []int{8, 64} {
		b.Run("first/parallel="+strconv.Itoa(n), func(b *testing.B) {
			s := new(b)
			var keys atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(n)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					first(b, s, key(keys.Add(1)))
				}
			})
		})
		b.Run("replay/parallel="+strconv.Itoa(n), func(b *testing.B) {
			s := new(b)
			first(b, s, key(0))
			b.ReportAllocs()
			b.SetParallelism(n)
			b.RunParallel(func(pb *testing.PB) {
				op := key(0)
				for pb.Next() {
					replay(b, s, op)
				}
			})
		})
	}
}
