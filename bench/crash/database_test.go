package crash_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp/internal/crash"
	"github.com/oncehttp/oncehttp/internal/services"
)

// The server of the store is killed under load and started again; the server that
// uses it lives.
func TestADatabaseThatIsKilled(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name    string
		make    func(t *testing.T) (setup, database)
		forgets bool
	}{
		{"Postgres", killedPostgres(false), false},
		{"Postgres, transactional", killedPostgres(true), false},
		{"Redis that writes everything to its disk", killedRedis(
			services.RedisSet("appendonly", "yes"), services.RedisSet("appendfsync", "always")), false},
		{"Redis without persistence", killedRedis(services.RedisPrivate()), true},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			s, db := v.make(t)
			c, stop := configDatabase(t, s, db)
			c.Name, c.Forgets = v.name+", killed", v.forgets
			c.Bound = 30 * time.Second
			r := holds(t, c)
			stop()
			if r.Refusals["503 store-unavailable"] == 0 {
				t.Error("nobody was told that the store cannot be reached, so it was not killed under load")
			}
			if v.forgets && r.Repeated == 0 {
				t.Error("nothing was forgotten, though the server had no disk")
			}
		})
	}
}

// What a Redis without persistence loses would be a fault anywhere else.
func TestADatabaseThatForgetsIsFound(t *testing.T) {
	t.Parallel()
	s, db := killedRedis(services.RedisPrivate())(t)
	c, stop := configDatabase(t, s, db)
	c.Kills = 2
	r, err := crash.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if text := strings.Join(r.Faults, "\n"); !strings.Contains(text, "took effect 2 times") {
		t.Errorf("not found: %v", r)
	}
}

// configDatabase has a database killed while a server of the setup uses it. The
// server leaves in order when stop is called.
func configDatabase(t *testing.T, s setup, db database) (c crash.Config, stop func()) {
	t.Helper()
	c = config(t, s)
	server := c.Victim.(*crash.Process)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := server.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	c.Victim = service{t, db}
	// Down long enough for a claim to be given up: it is asked for twice, for a
	// third of a lease each.
	c.Kills, c.Life, c.Down = 3, 400*time.Millisecond, 1200*time.Millisecond
	c.Phases = nil // the server does not die, and what it was doing goes on
	return c, func() {
		if err := server.Stop(time.Minute); err != nil {
			t.Errorf("told to leave, %v", err)
		}
	}
}

// A database is a server that a test can kill and start.
type database interface {
	Kill(testing.TB)
	Start(testing.TB)
}

// A service is a database as a victim. It is stopped at first.
type service struct {
	t  *testing.T
	db database
}

func (s service) Start() error {
	s.db.Start(s.t)
	return nil
}

func (s service) Ready(context.Context) error { return nil } // Start has seen to it

func (s service) Kill() error {
	s.db.Kill(s.t)
	return nil
}

func killedPostgres(tx bool) func(t *testing.T) (setup, database) {
	return func(t *testing.T) (setup, database) {
		pg := services.Postgres(t, services.Private())
		s := inPostgres(t, pg, tx)
		pg.Stop(t)
		return s, pg
	}
}

func killedRedis(opts ...services.RedisOption) func(t *testing.T) (setup, database) {
	return func(t *testing.T) (setup, database) {
		r := services.Redis(t, opts...)
		r.Stop(t)
		return inRedis(r, "crash"), r
	}
}
