package linear

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
	"github.com/oncehttp/oncehttp/redisstore"
	"github.com/oncehttp/oncehttp/sqlitestore"
)

// durable opens each of the durable stores: twice, because two processes that
// share the records are what they are for.
var durable = []struct {
	name string
	open func(t *testing.T) []oncehttp.Store
}{
	{"sqlitestore", openSQLite},
	{"pgstore", openPostgres},
	{"redisstore", openRedis},
}

var quiet = slog.New(slog.DiscardHandler)

func openSQLite(t *testing.T) (all []oncehttp.Store) {
	path := filepath.Join(t.TempDir(), "once.db")
	for range 2 {
		s, err := sqlitestore.Open(path, sqlitestore.WithLogger(quiet), sqlitestore.WithBusyTimeout(20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		all = append(all, s)
	}
	return all
}

func openPostgres(t *testing.T) (all []oncehttp.Store) {
	pg := services.Postgres(t)
	dsn := pg.DSN(pg.Database(t))
	for range 2 {
		pool, err := pgxpool.New(context.Background(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		s := pgstore.New(pool, pgstore.WithLogger(quiet))
		t.Cleanup(s.Close)
		if err := s.Migrate(context.Background()); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

func openRedis(t *testing.T) (all []oncehttp.Store) {
	server := services.Redis(t)
	prefix := fmt.Sprintf("%s %d:", t.Name(), time.Now().UnixNano()) // the server may know an earlier run
	for range 2 {
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { client.Close() })
		s := redisstore.New(client, redisstore.WithPrefix(prefix), redisstore.WithLogger(quiet))
		t.Cleanup(s.Close)
		all = append(all, s)
	}
	return all
}

func TestTheDurableStoresAreLinearizable(t *testing.T) {
	histories := uint64(20)
	if os.Getenv("ONCEHTTP_SOAK") == "1" {
		histories = 1000
	}
	for _, d := range durable {
		t.Run(d.name, func(t *testing.T) {
			stores := d.open(t)
			began, calls := time.Now(), 0
			for seed := range histories {
				c := Config{Seed: seed, Prefix: fmt.Sprintf("%d-", seed)}
				calls += Check(t, &shared{stores: stores}, c)
				if t.Failed() {
					return
				}
			}
			t.Logf("%d histories of 8 writers, %d calls in all, have an order; %v", histories, calls, time.Since(began).Round(time.Millisecond))
		})
	}
}

// Mistakes that a durable store could make are found through it, too.
func TestWrongDurableStoresAreFound(t *testing.T) {
	for _, d := range durable {
		for name, wrong := range wrongStores {
			t.Run(d.name+", "+name, func(t *testing.T) {
				stores := d.open(t)
				for seed := range uint64(50) {
					c := Config{Seed: seed, Prefix: fmt.Sprintf("%d-", seed)}
					if !linearizable(record(t, wrong(&shared{stores: stores}), c)) {
						return
					}
				}
				t.Error("not found in 50 histories")
			})
		}
	}
}
