package redisstore_test

import (
	"testing"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/storetest"
)

func BenchmarkStore(b *testing.B) {
	c := connect(b, services.Redis(b))
	storetest.Bench(b, func(b *testing.B) oncehttp.Store { return open(b, c) })
}

func BenchmarkStoreOnACluster(b *testing.B) {
	c := connectCluster(b, services.RedisCluster(b))
	storetest.Bench(b, func(b *testing.B) oncehttp.Store { return open(b, c) })
}
