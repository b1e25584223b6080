package redisstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/redisstore"
)

// realistic is how a Middleware records a small answer: keys of 44 bytes, and a
// head with the one header field that every API sends.
func realistic(n int) (op oncehttp.Op, head []byte) {
	op = oncehttp.Op{Key: "or1_" + oncehttp.DeriveKey("record", fmt.Sprint(n))[4:], Token: oncehttp.NewToken()}
	for i := range op.Fingerprint {
		op.Fingerprint[i], op.Binding[i] = byte(n)+byte(i), byte(n>>8)^byte(i)
	}
	return op, []byte("\x01\x00\xc9\x01\x00\x01\x0cContent-Type\x01\x10application/json\x00")
}

func TestARecordWithoutABodyTakesAtMost500Bytes(t *testing.T) {
	t.Parallel()
	const records, limit = 100_000, 500
	r := services.Redis(t, services.RedisPrivate())
	c := connect(t, r)
	s := redisstore.New(c, quiet)
	defer s.Close()
	if err := s.Check(ctx); err != nil {
		t.Fatal(err)
	}
	before := usedMemory(t, c)
	var wg sync.WaitGroup
	const writers = 64
	for w := range writers {
		wg.Go(func() {
			for n := w; n < records; n += writers {
				op, head := realistic(n)
				if err := claimErr(s, op); err != nil {
					t.Error(err)
					return
				}
				if err := s.Complete(ctx, op, head, nil, 24*time.Hour); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	all := float64(usedMemory(t, c)-before) / records
	var sum int64
	const sample = 1000
	for n := range sample {
		op, _ := realistic(n * (records / sample))
		b, err := c.MemoryUsage(ctx, "oncehttp:"+op.Key).Result()
		if err != nil {
			t.Fatal(err)
		}
		sum += b
	}
	t.Logf("%d records: %.0f bytes each of used_memory, %.0f by MEMORY USAGE", records, all, float64(sum)/sample)
	if all > limit || float64(sum)/sample > limit {
		t.Errorf("got %.0f and %.0f bytes a record, want at most %d", all, float64(sum)/sample, limit)
	}
}

func usedMemory(t testing.TB, c *redis.Client) int64 {
	t.Helper()
	info, err := c.InfoMap(ctx, "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	if _, err := fmt.Sscan(info["Memory"]["used_memory"], &n); err != nil {
		t.Fatal(err)
	}
	return n
}
