package crash

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// childEnv has a binary of these tests be a reverse proxy: "address upstream".
const childEnv = "ONCEHTTP_CRASH_PROXY"

func TestMain(m *testing.M) {
	if addr, upstream, ok := strings.Cut(os.Getenv(childEnv), " "); ok {
		u, err := url.Parse(upstream)
		if err == nil {
			p := httputil.NewSingleHostReverseProxy(u)
			p.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			err = Serve(addr, p, func(context.Context) error { return nil })
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// A proxy that knows nothing of keys is killed in front of a server that lives.
func proxied(t *testing.T, protected bool) Config {
	t.Helper()
	dir := t.TempDir()
	journal, err := OpenJournal(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { journal.Close() })
	progress, err := OpenProgress(filepath.Join(dir, "progress"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { progress.Close() })
	var upstream http.Handler = &Work{Effect: journal.Append, Progress: progress, Pause: 20 * time.Millisecond}
	once := &oncehttp.Middleware{Store: Watch(&oncehttp.MemoryStore{}, progress), Wait: 20 * time.Millisecond}
	if protected {
		upstream = once.Handler(upstream)
	}
	srv := httptest.NewServer(Arrivals(upstream))
	t.Cleanup(func() {
		srv.Close()
		if err := once.Drain(context.Background()); err != nil {
			t.Error(err)
		}
	})
	addr, err := Addr()
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Name: "a proxy",
		Victim: &Process{Addr: addr, Command: func() *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"="+addr+" "+srv.URL)
			return cmd
		}},
		URL:     "http://" + addr + "/",
		Effects: func(context.Context) (map[string][]Effect, error) { return ReadJournal(filepath.Join(dir, "journal")) },
		Phases: func() Phases { // nothing here dies: what still runs ran when the proxy died
			p, err := ReadPhases(filepath.Join(dir, "progress"))
			if err != nil {
				t.Error(err)
			}
			return p
		},
		Kills:   8,
		Exactly: true,
	}
}

func TestAProxyThatIsKilledInFrontOfAServerWithAStoreDoesNoHarm(t *testing.T) {
	t.Parallel()
	r, err := Run(t.Context(), proxied(t, true))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	for _, f := range r.Faults {
		t.Error(f)
	}
	if r.Replays == 0 {
		t.Error("nothing was answered from a record, though answers were lost")
	}
}

func TestAProxyThatIsKilledInFrontOfAServerWithoutAStoreIsFound(t *testing.T) {
	t.Parallel()
	r, err := Run(t.Context(), proxied(t, false))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	if !strings.Contains(strings.Join(r.Faults, "\n"), "took effect 2 times") {
		t.Error("not found")
	}
}

func TestAVictimThatEndsByItselfIsAnError(t *testing.T) {
	t.Parallel()
	c := proxied(t, true)
	c.Victim = &Process{Addr: "127.0.0.1:1", Command: func() *exec.Cmd {
		return exec.Command("sh", "-c", "echo out of luck >&2; exit 3")
	}}
	_, err := Run(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "out of luck") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got error %v, want one with the process' own words", err)
	}
	if _, err := Run(t.Context(), Config{}); err == nil {
		t.Error("a Config without anything in it: got no error")
	}
}

// What a store that is watched is doing can be read from the file.
func TestAWatchedStoreTellsWhatItIsDoing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "progress")
	p, err := OpenProgress(path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	want := func(what string, want Phases) {
		t.Helper()
		if got, err := ReadPhases(path); got != want || err != nil {
			t.Errorf("%s: got %+v, %v; want %+v", what, got, err, want)
		}
	}
	ctx := t.Context()
	inner := &noticing{Store: &oncehttp.MemoryStore{}}
	s := Watch(inner, p)
	op := oncehttp.Op{Key: "key", Token: oncehttp.NewToken()}
	twin := oncehttp.Op{Key: "key", Token: oncehttp.NewToken()}
	claim := func(op oncehttp.Op) {
		t.Helper()
		if _, err := s.Claim(ctx, op, time.Minute, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	want("nothing", Phases{})
	inner.during = func() { want("a claim", Phases{Claiming: 1}) }
	claim(op)
	want("a claim was acquired", Phases{Running: 1})
	inner.during = func() { want("a second claim", Phases{Claiming: 1, Running: 1}) }
	claim(op)
	claim(twin)
	want("it was acquired again, and refused to another", Phases{Running: 1})
	inner.during = func() { want("a completion", Phases{Running: 1, Recording: 1}) }
	inner.err = errors.New("no answer")
	if err := s.Complete(ctx, op, nil, nil, time.Hour); err == nil {
		t.Error("Complete hides an error")
	}
	want("a completion failed", Phases{Running: 1})
	inner.err = nil
	if err := s.Complete(ctx, op, nil, nil, time.Hour); err != nil {
		t.Error(err)
	}
	want("it was completed", Phases{})
	inner.during = func() {}
	claim(twin)
	want("a claim on what is done", Phases{})
	given := oncehttp.Op{Key: "another", Token: oncehttp.NewToken()}
	claim(given)
	if err := s.Renew(ctx, given, 0); err != nil {
		t.Error(err)
	}
	want("a claim was given up", Phases{})
	if _, ok := s.(oncehttp.Waiter); ok {
		t.Error("a store that cannot wait became one that can")
	}
	if _, ok := Watch(&oncehttp.MemoryStore{}, p).(oncehttp.Waiter); !ok {
		t.Error("a store that can wait became one that cannot")
	}
}

// noticing lets the test look while a call is under way.
type noticing struct {
	oncehttp.Store
	during func()
	err    error
}

func (s *noticing) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	s.during()
	return s.Store.Claim(ctx, op, lease, keep)
}

func (s *noticing) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	s.during()
	if s.err != nil {
		return s.err
	}
	return s.Store.Complete(ctx, op, head, body, keep)
}
