package laboratory

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp/internal/lab"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
	"github.com/oncehttp/oncehttp/redisstore"
)

// A machine is where a server runs. Its clock goes on from world to world, and never
// back.
type machine struct {
	clock *services.Clock
	at    time.Time // of the clock, when a world begins
	n     int       // of the world
}

func newMachine(t *testing.T) *machine {
	at := time.Now()
	return &machine{clock: services.NewClock(t, at), at: at}
}

// A world is what the storages of servers have in common.
type world struct {
	m    *machine
	born time.Time
	said atomic.Int64

	mu     sync.Mutex
	jumped time.Duration
}

func (m *machine) world() *world {
	m.n++
	return &world{m: m, born: time.Now()}
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.m.at.Add(time.Since(w.born) + w.jumped)
}

// tick sets the server's clock to the world's.
func (w *world) tick() { w.m.clock.Set(w.now()) }

// Jump implements lab.Storage.
func (w *world) Jump(by time.Duration) {
	w.mu.Lock()
	w.jumped += by
	w.mu.Unlock()
	w.tick()
}

func (w *world) end() { w.m.at = w.now() }

// name is that of a host, as part of another name.
func (w *world) name(host string) string {
	return fmt.Sprintf("lab_%d_%s", w.m.n, strings.ReplaceAll(host, ".", "_"))
}

// postgres makes storages of a PostgreSQL server.
func postgres(t *testing.T) func(lab.Setting) lab.Storage {
	m := newMachine(t)
	pg := services.Postgres(t, services.On(m.clock))
	dsn := pg.DSN(pg.Database(t))
	return func(lab.Setting) lab.Storage { return &pgWorld{world: m.world(), dsn: dsn} }
}

type pgWorld struct {
	*world
	dsn    string
	tables sync.Map
}

func (w *pgWorld) Open(host string, log *slog.Logger) (lab.Store, error) {
	c, err := pgxpool.ParseConfig(w.dsn)
	if err != nil {
		return nil, err
	}
	ws := newWires(w.tick, &w.said)
	c.ConnConfig.DialFunc = ws.dial
	c.MaxConns = 6
	pool, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		return nil, err
	}
	s := &pgStore{pgstore.New(pool, pgstore.WithTable(w.name(host)), pgstore.WithLogger(log)), pool, ws}
	if _, made := w.tables.LoadOrStore(w.name(host), true); made {
		return s, nil
	}
	return s, s.Migrate(context.Background())
}

// Close drops the tables, and the views of them.
func (w *pgWorld) Close() {
	defer w.end()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		panic(err)
	}
	defer conn.Close(ctx)
	for table := range w.tables.Range {
		if _, err := conn.Exec(ctx, "DROP TABLE "+table.(string)+" CASCADE"); err != nil {
			panic(err)
		}
	}
}

type pgStore struct {
	*pgstore.Store
	pool *pgxpool.Pool
	*wires
}

func (s *pgStore) Kill() { s.kill() }

func (s *pgStore) Close() {
	s.Store.Close()
	s.pool.Close()
}

// redisServer makes storages of a Redis server.
func redisServer(t *testing.T) func(lab.Setting) lab.Storage {
	m := newMachine(t)
	r := services.Redis(t, services.RedisOn(m.clock))
	return func(lab.Setting) lab.Storage { return &redisWorld{world: m.world(), addr: r.Addr()} }
}

func init() { redis.SetLogger(silence{}) }

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

type redisWorld struct {
	*world
	addr string
}

func (w *redisWorld) client(ws *wires) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: w.addr, Dialer: ws.dial, PoolSize: 6})
}

func (w *redisWorld) Open(host string, log *slog.Logger) (lab.Store, error) {
	ws := newWires(w.tick, &w.said)
	client := w.client(ws)
	return &redisStore{redisstore.New(client, redisstore.WithPrefix(w.name(host)+":"), redisstore.WithLogger(log)), client, ws}, nil
}

func (w *redisWorld) Close() {
	client := w.client(newWires(w.tick, &w.said))
	defer client.Close()
	if err := client.FlushAll(context.Background()).Err(); err != nil {
		panic(err)
	}
	w.end()
}

type redisStore struct {
	*redisstore.Store
	client *redis.Client
	*wires
}

func (s *redisStore) Kill() { s.kill() }

func (s *redisStore) Close() {
	s.Store.Close()
	s.client.Close()
	// What the client starts when it cannot connect sees once a second that it is
	// closed.
	time.Sleep(2 * time.Second)
}
