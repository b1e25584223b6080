// Package stores opens the store that a setting names.
package stores

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/pgstore"
	"github.com/oncehttp/oncehttp/redisstore"
	"github.com/oncehttp/oncehttp/sqlitestore"
)

// A Store is any of the stores: all of them can wake who waits, and be looked at.
type Store interface {
	oncehttp.Store
	oncehttp.Waiter
	oncehttp.Inspector
}

// An Opened is a store, and what goes with it. Call Close when nothing uses it any more.
type Opened struct {
	Store
	Name  string                      // for people; without a password
	Ready func(context.Context) error // whether it answers
	Close func()
}

// patience is how long a server gets to answer when it is looked at.
const patience = 10 * time.Second

// Open opens what setting names: memory:, postgres://…, redis://…, or the path of an
// SQLite file, which sqlite:// may stand before. A database's table and a file are made
// if they are not there. No error holds a password.
func Open(ctx context.Context, setting string, log *slog.Logger) (*Opened, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	scheme, _, _ := strings.Cut(setting, ":")
	switch scheme {
	case "memory":
		if setting != "memory:" {
			return nil, fmt.Errorf("store: %q: nothing may follow the colon", setting)
		}
		return &Opened{
			Store: new(oncehttp.MemoryStore), Name: "memory (keys are forgotten when the proxy ends)",
			Ready: func(context.Context) error { return nil }, Close: func() {},
		}, nil
	case "postgres", "postgresql":
		return openPostgres(ctx, setting, log)
	case "redis", "rediss":
		return openRedis(ctx, setting, log)
	}
	return openSQLite(strings.TrimPrefix(setting, "sqlite://"), log)
}

func openSQLite(path string, log *slog.Logger) (*Opened, error) {
	s, err := sqlitestore.Open(path, sqlitestore.WithLogger(log))
	if err != nil {
		return nil, err
	}
	return &Opened{Store: s, Name: "SQLite file " + path, Ready: readable(s), Close: func() { s.Close() }}, nil
}

func openPostgres(ctx context.Context, setting string, log *slog.Logger) (*Opened, error) {
	conf, err := pgxpool.ParseConfig(setting)
	if err != nil {
		return nil, fmt.Errorf("store: the postgres:// URL cannot be read: %s", blot(err.Error(), setting))
	}
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return nil, fmt.Errorf("store: %s", blot(err.Error(), setting))
	}
	s := pgstore.New(pool, pgstore.WithLogger(log))
	closeAll := func() { s.Close(); pool.Close() }
	if err := s.Migrate(ctx); err != nil {
		closeAll()
		return nil, fmt.Errorf("store: PostgreSQL at %s: %s", hostOf(setting), blot(err.Error(), setting))
	}
	c := conf.ConnConfig
	return &Opened{Store: s, Name: fmt.Sprintf("PostgreSQL database %s at %s:%d", c.Database, c.Host, c.Port), Ready: pool.Ping, Close: closeAll}, nil
}

func openRedis(ctx context.Context, setting string, log *slog.Logger) (*Opened, error) {
	opts, err := redis.ParseURL(setting)
	if err != nil {
		return nil, fmt.Errorf("store: the redis:// URL cannot be read: %s", blot(err.Error(), setting))
	}
	client := redis.NewClient(opts)
	s := redisstore.New(client, redisstore.WithLogger(log))
	closeAll := func() { s.Close(); client.Close() }
	if err := s.Check(ctx); err != nil {
		closeAll()
		return nil, fmt.Errorf("store: Redis at %s: %s", opts.Addr, blot(err.Error(), setting))
	}
	return &Opened{Store: s, Name: fmt.Sprintf("Redis database %d at %s", opts.DB, opts.Addr), Ready: s.Check, Close: closeAll}, nil
}

// readable asks a store for a key that nobody can have.
func readable(s oncehttp.Inspector) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := s.List(ctx, oncehttp.RecordQuery{After: "\xff", Limit: 1})
		return err
	}
}

func hostOf(setting string) string {
	if u, err := url.Parse(setting); err == nil && u.Host != "" {
		return u.Host
	}
	return "the server"
}

// blot takes a URL and its password out of a text.
func blot(text, setting string) string {
	text = strings.ReplaceAll(text, setting, "(the URL)")
	if u, err := url.Parse(setting); err == nil {
		if p, ok := u.User.Password(); ok && p != "" {
			text = strings.ReplaceAll(text, p, "xxxxx")
			text = strings.ReplaceAll(text, url.QueryEscape(p), "xxxxx")
		}
	}
	return text
}
