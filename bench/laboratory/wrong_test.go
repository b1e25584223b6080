package laboratory

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/lab"
)

// mistakes that a durable store could make.
var mistakes = []struct {
	name  string
	wrong func(lab.Store, *past) lab.Store
	only  string // the store that it is put around; "": all
}{
	{"an orphan is free", func(s lab.Store, _ *past) lab.Store { return &freesOrphans{s} }, ""},
	{"any token may complete", func(s lab.Store, p *past) lab.Store { return &comparesNothing{s, p} }, ""},
	{"a claim does not know its own token again", func(s lab.Store, p *past) lab.Store { return &forgetsTokens{s, p} }, ""},
	{"done is said before it is recorded", func(s lab.Store, _ *past) lab.Store { return &saysDoneEarly{s} }, ""},
	// The others make up for what happens to their connections, so this would take
	// hundreds of worlds.
	{"an error of Complete is kept quiet", func(s lab.Store, _ *past) lab.Store { return &givesUp{s} }, "sqlite"},
}

func TestMistakesOfADurableStoreAreNoticed(t *testing.T) {
	const most = 200
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			storage := s.storage(t)
			for _, m := range mistakes {
				if m.only != "" && m.only != s.name {
					continue
				}
				broken, worlds := lab.Broken(t, func(s lab.Setting) lab.Storage {
					return &wrongStorage{storage(s), m.wrong, &past{holders: map[string]string{}}}
				}, most)
				if broken == "" {
					t.Errorf("%s: %d worlds, and nothing was broken", m.name, most)
				} else {
					t.Logf("%s: world %d: %.160s", m.name, worlds, broken)
				}
			}
		})
	}
}

// A past is what all processes of a world have seen.
type past struct {
	mu      sync.Mutex
	holders map[string]string
}

type wrongStorage struct {
	lab.Storage
	wrong func(lab.Store, *past) lab.Store
	past  *past
}

func (w *wrongStorage) Open(host string, log *slog.Logger) (lab.Store, error) {
	s, err := w.Storage.Open(host, log)
	if err != nil {
		return nil, err
	}
	return w.wrong(s, w.past), nil
}

// freesOrphans gives an orphan to whoever claims it.
type freesOrphans struct{ lab.Store }

func (s *freesOrphans) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	c, err := s.Store.Claim(ctx, op, lease, keep)
	if err == nil && c.Status == oncehttp.ClaimOrphaned {
		return s.Store.TakeOver(ctx, op, lease, keep)
	}
	return c, err
}

// comparesNothing lets whoever has held a key complete it.
type comparesNothing struct {
	lab.Store
	past *past
}

func (s *comparesNothing) take(op oncehttp.Op, c oncehttp.Claim, err error) (oncehttp.Claim, error) {
	if err == nil && c.Status == oncehttp.ClaimAcquired {
		s.past.mu.Lock()
		s.past.holders[op.Key] = op.Token
		s.past.mu.Unlock()
	}
	return c, err
}

func (s *comparesNothing) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	c, err := s.Store.Claim(ctx, op, lease, keep)
	return s.take(op, c, err)
}

func (s *comparesNothing) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	c, err := s.Store.TakeOver(ctx, op, lease, keep)
	return s.take(op, c, err)
}

func (s *comparesNothing) holder(op oncehttp.Op) oncehttp.Op {
	s.past.mu.Lock()
	defer s.past.mu.Unlock()
	if holder := s.past.holders[op.Key]; holder != "" {
		op.Token = holder
	}
	return op
}

func (s *comparesNothing) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	return s.Store.Complete(ctx, s.holder(op), head, body, keep)
}

func (s *comparesNothing) Release(ctx context.Context, op oncehttp.Op) error {
	return s.Store.Release(ctx, s.holder(op))
}

// forgetsTokens takes whoever asks again for somebody else.
type forgetsTokens struct {
	lab.Store
	past *past
}

func (s *forgetsTokens) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	c, err := s.Store.Claim(ctx, op, lease, keep)
	if err != nil || c.Status != oncehttp.ClaimAcquired {
		return c, err
	}
	s.past.mu.Lock()
	defer s.past.mu.Unlock()
	if s.past.holders[op.Key] == op.Token {
		c.Status = oncehttp.ClaimRunning
	}
	s.past.holders[op.Key] = op.Token
	return c, nil
}

// saysDoneEarly writes what it was told to record some seconds later, if its process
// lives then.
type saysDoneEarly struct{ lab.Store }

func (s *saysDoneEarly) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	if err := s.Store.Renew(ctx, op, time.Second); err != nil {
		return err
	}
	time.AfterFunc(3*time.Second, func() { s.Store.Complete(context.Background(), op, head, body, keep) })
	return nil
}

// givesUp takes every error of a completion for a success.
type givesUp struct{ lab.Store }

func (s *givesUp) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	s.Store.Complete(ctx, op, head, body, keep)
	return nil
}

// Break keeps the mishaps of the store that is wrapped.
func (s *givesUp) Break(after bool) (string, func()) { return s.Store.(lab.Breakable).Break(after) }
