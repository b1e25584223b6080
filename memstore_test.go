package oncehttp

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func BenchmarkMemoryStore(b *testing.B) {
	ctx := context.Background()
	head, body := make([]byte, 100), make([]byte, 100)
	for _, n := range []int{100, 10_000, 1_000_000} {
		var s MemoryStore
		s.MaxRecords = 1 << 40
		s.MaxBytes = 1 << 40
		op := func(i int) Op { return Op{Key: fmt.Sprintf("key-%060d", i), Token: fmt.Sprintf("%032d", i)} }
		for i := range n {
			op := op(i)
			s.Claim(ctx, op, time.Second, time.Hour)
			s.Complete(ctx, op, head, body, time.Hour)
		}
		b.Run(fmt.Sprintf("claim,complete,purge/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			op := op(n)
			for b.Loop() {
				s.Claim(ctx, op, time.Second, time.Hour)
				s.Complete(ctx, op, head, body, time.Hour)
				s.Purge(ctx, op.Key)
			}
		})
		b.Run(fmt.Sprintf("replay/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			ops := make([]Op, 1000)
			for i := range ops {
				ops[i] = op(i * 7919 % n)
			}
			i := 0
			for b.Loop() {
				s.Claim(ctx, ops[i%1000], time.Second, time.Hour)
				i++
			}
		})
	}
}

func TestMemSmoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s MemoryStore
		ctx := t.Context()
		op := Op{Key: "k", Token: NewToken()}
		c, err := s.Claim(ctx, op, time.Second, time.Hour)
		t.Log(c.Status, c.Left, c.Holder, err)
		time.Sleep(2 * time.Second)
		o2 := Op{Key: "k", Token: NewToken()}
		c, err = s.Claim(ctx, o2, time.Second, time.Hour)
		t.Log(c.Status, c.Left, c.Holder, err)
		c, err = s.TakeOver(ctx, o2, time.Second, time.Hour)
		t.Log(c.Status, c.Left, c.Holder, err)
		t.Log(s.Complete(ctx, op, nil, nil, time.Hour))
		go func() { time.Sleep(time.Second / 2); s.Complete(ctx, o2, []byte("h"), []byte("b"), time.Hour) }()
		start := time.Now()
		t.Log(s.Wait(ctx, "k"), time.Since(start))
		c, err = s.Claim(ctx, op, time.Second, time.Hour)
		t.Log(c.Status, c.Left, c.Holder, err, string(c.Head), string(c.Body))
		time.Sleep(time.Hour)
		c, err = s.Claim(ctx, op, time.Second, time.Hour)
		t.Log(c.Status, c.Left, c.Holder, err)
	})
}
