package crash_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/crash"
	"github.com/oncehttp/oncehttp/pgstore"
	"github.com/oncehttp/oncehttp/redisstore"
	"github.com/oncehttp/oncehttp/sqlitestore"
)

// childEnv has a binary of these tests be a server.
const childEnv = "ONCEHTTP_CRASH_SERVER"

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	flag.Set("test.parallel", "5") // these tests wait more than they compute
	os.Exit(m.Run())
}

// A setup says what a server is made of.
type setup struct {
	Store string // sqlite, postgres or redis
	DSN   string // a path, a connection string, an address
	Name  string // of Redis' keys
	Tx    bool   // transactional mode: effects are rows, not lines of the journal
	Wrong string // a deliberate mistake

	Addr     string
	Journal  string
	Progress string
}

const (
	lease = time.Second

	// wait is short, so that clients ask for something else instead of waiting for
	// a handler that has died. To record an answer a Middleware takes longer.
	wait = 20 * time.Millisecond
)

// command returns the command that serves as s says.
func (s setup) command() *exec.Cmd {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	return cmd
}

// serve is the server.
func serve(text string) error {
	var s setup
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	progress, err := crash.OpenProgress(s.Progress)
	if err != nil {
		return err
	}
	journal, err := crash.OpenJournal(s.Journal)
	if err != nil {
		return err
	}
	o, err := s.open(context.Background())
	if err != nil {
		return err
	}
	work := &crash.Work{Effect: journal.Append, Progress: progress}
	if s.Tx && s.Wrong != effectOutside {
		work.Effect = o.insert
	}
	once := &oncehttp.Middleware{Lease: lease, Wait: wait, Logger: quiet, Store: crash.Watch(o.store, progress)}
	handler := s.wrong(once, o.store, progress).Handler(work)
	if s.Wrong == noStore {
		handler = work
	}
	return errors.Join(crash.Serve(s.Addr, crash.Arrivals(handler), once.Drain), o.close())
}

var quiet = slog.New(slog.DiscardHandler)

// An opened store is one in use.
type opened struct {
	store  oncehttp.Store
	base   oncehttp.Inspector
	insert func(ctx context.Context, action string, e crash.Effect) error // in the store's transaction
	close  func() error
}

func (s setup) open(ctx context.Context) (opened, error) {
	switch s.Store {
	case "sqlite":
		return s.sqlite()
	case "postgres":
		return s.postgres(ctx)
	case "redis":
		return s.redis()
	}
	return opened{}, fmt.Errorf("no store is called %q", s.Store)
}

const (
	createEffects = "CREATE TABLE effects (action TEXT, run TEXT, arrived BIGINT, began BIGINT)" // and nothing in it is unique
	selectEffects = "SELECT action, run, arrived, began FROM effects"
)

func (s setup) sqlite() (opened, error) {
	store, err := sqlitestore.Open(s.DSN, sqlitestore.WithLogger(quiet))
	if err != nil {
		return opened{}, err
	}
	o := opened{store: store, base: store, close: store.Close}
	if s.Tx {
		o.store = store.Transactional()
		o.insert = func(ctx context.Context, action string, e crash.Effect) error {
			_, err := sqlitestore.Tx(ctx).ExecContext(ctx, "INSERT INTO effects VALUES (?, ?, ?, ?)",
				action, e.Run, e.Arrived.UnixNano(), e.Began.UnixNano())
			return err
		}
	}
	return o, nil
}

func (s setup) postgres(ctx context.Context) (opened, error) {
	c, err := pgxpool.ParseConfig(s.DSN)
	if err != nil {
		return opened{}, err
	}
	c.MaxConns = 20 // more than clients, each of which a transaction can need
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return opened{}, err
	}
	store := pgstore.New(pool, pgstore.WithLogger(quiet))
	o := opened{store: store, base: store, close: func() error {
		store.Close()
		pool.Close()
		return nil
	}}
	if s.Tx {
		o.store = store.Transactional()
		o.insert = func(ctx context.Context, action string, e crash.Effect) error {
			_, err := pgstore.Tx(ctx).Exec(ctx, "INSERT INTO effects VALUES ($1, $2, $3, $4)",
				action, e.Run, e.Arrived.UnixNano(), e.Began.UnixNano())
			return err
		}
	}
	return o, nil
}

func (s setup) redis() (opened, error) {
	client := redis.NewClient(&redis.Options{Addr: s.DSN})
	store := redisstore.New(client, redisstore.WithPrefix(s.Name), redisstore.WithLogger(quiet))
	return opened{store: store, base: store, close: func() error {
		store.Close()
		return client.Close()
	}}, nil
}

// effects returns what took effect.
func (s setup) effects(ctx context.Context) (map[string][]crash.Effect, error) {
	if !s.Tx || s.Wrong == effectOutside {
		return crash.ReadJournal(s.Journal)
	}
	driver := "pgx"
	if s.Store == "sqlite" {
		driver = "sqlite"
	}
	db, err := sql.Open(driver, s.DSN)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, selectEffects)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[string][]crash.Effect)
	for rows.Next() {
		var action string
		var e crash.Effect
		var arrived, began int64
		if err := rows.Scan(&action, &e.Run, &arrived, &began); err != nil {
			return nil, err
		}
		e.Arrived, e.Began = time.Unix(0, arrived), time.Unix(0, began)
		all[action] = append(all[action], e)
	}
	return all, rows.Err()
}

// running counts the records that are running.
func (s setup) running(ctx context.Context) (int, error) {
	o, err := s.open(ctx)
	if err != nil {
		return 0, err
	}
	n, err := crash.CountRunning(ctx, o.base)
	return n, errors.Join(err, o.close())
}
