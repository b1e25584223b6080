package redisstore_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/redisstore"
	"github.com/oncehttp/oncehttp/storetest"
)

// unit is short, because several suites run at the same time and mostly sleep.
const unit = 70 * time.Millisecond

var ctx = context.Background()

func TestMain(m *testing.M) {
	// The client logs every connection that breaks, which is what these tests do.
	redis.SetLogger(silence{})
	// The tests mostly wait: for leases to lapse, and for servers to start.
	flag.Parse()
	if n := flag.Lookup("test.parallel"); n.Value.String() == n.DefValue {
		n.Value.Set("8")
	}
	m.Run()
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func TestTheStoreKeepsItsContract(t *testing.T) {
	t.Parallel()
	disk := services.Redis(t, onDisk...)
	master := services.Redis(t, services.RedisPrivate())
	replica(t, master)
	for _, v := range []struct {
		name   string
		client redis.UniversalClient
		opts   []redisstore.Option
		reopen *services.RedisServer
		plain  bool
	}{
		{name: "on a server with a disk", client: connect(t, disk), reopen: disk},
		{name: "on a cluster", client: connectCluster(t, services.RedisCluster(t))},
		{name: "with the scripts of Redis 6", client: connect(t, services.Redis(t)), plain: true},
		{name: "with a replica", client: connect(t, master), opts: []redisstore.Option{redisstore.WithReplicas(1, 5*time.Second)}},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			c := storetest.Config{
				New: func(t *testing.T) oncehttp.Store {
					s := open(t, v.client, v.opts...)
					if v.plain {
						redisstore.AsOnRedis6(s)
					}
					return s
				},
				Unit:     unit,
				Patience: 30 * time.Second,
			}
			if v.reopen != nil {
				c.Reopen = func(t *testing.T, s oncehttp.Store) oncehttp.Store {
					v.reopen.Kill(t)
					v.reopen.Start(t)
					return s
				}
			}
			storetest.Run(t, c)
		})
	}
}

// onDisk asks for a server that forgets nothing that it has acknowledged.
var onDisk = []services.RedisOption{services.RedisSet("appendonly", "yes"), services.RedisSet("appendfsync", "always")}

// quiet keeps warnings of a server without a disk out of the tests' output.
var quiet = redisstore.WithLogger(slog.New(slog.DiscardHandler))

// connect returns a client of a server that lasts as long as the test.
func connect(t testing.TB, r *services.RedisServer) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: r.Addr()})
	t.Cleanup(func() { c.Close() })
	return c
}

func connectCluster(t testing.TB, nodes []*services.RedisServer) *redis.ClusterClient {
	var addrs []string
	for _, r := range nodes {
		addrs = append(addrs, r.Addr())
	}
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { c.Close() })
	return c
}

// open returns a store with a prefix that no other store of the binary has.
func open(t testing.TB, c redis.UniversalClient, opts ...redisstore.Option) *redisstore.Store {
	s := redisstore.New(c, append([]redisstore.Option{quiet, redisstore.WithPrefix(prefix())}, opts...)...)
	t.Cleanup(s.Close)
	return s
}

var prefixes atomic.Int64

func prefix() string { return fmt.Sprintf("test[%d]*:", prefixes.Add(1)) }

// replica returns a replica of a server, in step with it.
func replica(t testing.TB, master *services.RedisServer) *services.RedisServer {
	t.Helper()
	r := services.Redis(t, services.RedisSet("replicaof", master.Host, fmt.Sprint(master.Port)), services.RedisSet("repl-ping-replica-period", "1"))
	conn := connect(t, master).Conn()
	defer conn.Close()
	soon(t, "the replica is in step", func() bool {
		conn.Set(ctx, "step", "", time.Second)
		return conn.Wait(ctx, 1, time.Second).Val() == 1
	})
	return r
}

var ops atomic.Int64

// newOp is an action with a key and a token of its own.
func newOp() oncehttp.Op {
	return oncehttp.Op{Key: fmt.Sprintf("key %d", ops.Add(1)), Token: oncehttp.NewToken(), Fingerprint: [32]byte{1}, Binding: [32]byte{2}}
}

func mustClaim(t testing.TB, s *redisstore.Store, op oncehttp.Op, want oncehttp.ClaimStatus) oncehttp.Claim {
	t.Helper()
	c, err := s.Claim(ctx, op, time.Minute, time.Hour)
	if err != nil || c.Status != want {
		t.Fatalf("Claim: got %v, %v, want %v", c.Status, err, want)
	}
	return c
}
