package main

import (
	"context"
	"flag"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/stores"
	"github.com/oncehttp/oncehttp/internal/crash"
	"github.com/oncehttp/oncehttp/internal/services"
)

var (
	kills    = flag.Int("kills", 30, "how often TestKill kills the proxy over each store")
	killSeed = flag.Uint64("killseed", 0, "what decides when TestKill kills; 0: a random number, which it prints")
)

// A proxy is killed at random points, with requests on their way to an upstream that
// lives on. Each takes effect at most once, is answered clearly, and nothing is stuck.
func TestKill(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		kill(t, filepath.Join(t.TempDir(), "once.db"))
	})
	t.Run("Postgres", func(t *testing.T) {
		t.Parallel()
		pg := services.Postgres(t)
		kill(t, pg.DSN(pg.Database(t)))
	})
}

var quiet = slog.New(slog.DiscardHandler)

// A victim is a proxy, and knows how much its upstream was doing when it died.
type victim struct {
	crash.Process
	atWork *atomic.Int64
	phases crash.Phases
}

func (v *victim) Kill() error {
	n := int(v.atWork.Load())
	v.phases = crash.Phases{Running: n, During: n}
	return v.Process.Kill()
}

func kill(t *testing.T, store string) {
	path := filepath.Join(t.TempDir(), "journal")
	journal, err := crash.OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	var atWork atomic.Int64
	work := crash.Arrivals(&crash.Work{Effect: journal.Append})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		atWork.Add(1)
		defer atWork.Add(-1)
		work.ServeHTTP(w, r)
	}))
	defer up.Close()
	addr, err := crash.Addr()
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{atWork: &atWork}
	v.Addr = addr
	v.Command = func() *exec.Cmd {
		return exec.Command(binary, "-listen", addr, "-admin", "off", "-upstream", up.URL, "-store", store, "-lease", "1s", "-wait", "20ms", "-log-level", "error")
	}
	c := crash.Config{
		Name: t.Name(), Victim: v, URL: "http://" + addr + "/actions", Kills: *kills, Seed: *killSeed, StartUp: true,
		Effects: func(context.Context) (map[string][]crash.Effect, error) { return crash.ReadJournal(path) },
		Phases:  func() crash.Phases { return v.phases },
		Running: func(ctx context.Context) (int, error) {
			s, err := stores.Open(ctx, store, quiet)
			if err != nil {
				return 0, err
			}
			defer s.Close()
			return crash.CountRunning(ctx, s)
		},
	}
	r, err := crash.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	for _, f := range r.Faults {
		t.Error(f)
	}
}
