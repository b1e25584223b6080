package linear

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/oncehttp/oncehttp"
)

func TestTheMemoryStoreIsLinearizable(t *testing.T) {
	for seed := range uint64(50) {
		Check(t, &oncehttp.MemoryStore{}, Config{Seed: seed})
	}
}

// A checker that finds nothing proves nothing, so it is fed stores that are wrong.
func TestWrongStoresAreFound(t *testing.T) {
	for name, wrong := range map[string]func(oncehttp.Store) oncehttp.Store{
		"a claim that is granted twice":          func(s oncehttp.Store) oncehttp.Store { return &grants{Store: s} },
		"a release that compares no token":       func(s oncehttp.Store) oncehttp.Store { return &frees{Store: s, holder: map[string]string{}} },
		"a completion that keeps the last bytes": func(s oncehttp.Store) oncehttp.Store { return &last{Store: s, head: map[string][]byte{}} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(50) {
				history := record(t, wrong(&oncehttp.MemoryStore{}), Config{Seed: seed})
				if porcupine.CheckOperationsTimeout(model, history, time.Minute) == porcupine.Illegal {
					return
				}
			}
			t.Error("not found in 50 histories")
		})
	}
}

// grants tells every third who finds a key running that it is theirs.
type grants struct {
	oncehttp.Store
	n atomic.Int32
}

func (s *grants) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	c, err := s.Store.Claim(ctx, op, lease, keep)
	if c.Status == oncehttp.ClaimRunning && s.n.Add(1)%3 == 0 {
		c.Status = oncehttp.ClaimAcquired
	}
	return c, err
}

// frees lets anybody free a key.
type frees struct {
	oncehttp.Store
	mu     sync.Mutex
	holder map[string]string
}

func (s *frees) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.Store.Claim(ctx, op, lease, keep)
	if c.Status == oncehttp.ClaimAcquired {
		s.holder[op.Key] = op.Token
	}
	return c, err
}

func (s *frees) Release(ctx context.Context, op oncehttp.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	op.Token = s.holder[op.Key]
	if op.Token == "" {
		return nil
	}
	return s.Store.Release(ctx, op)
}

// last lets a repeated completion change the bytes.
type last struct {
	oncehttp.Store
	mu   sync.Mutex
	head map[string][]byte
}

func (s *last) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.Store.Complete(ctx, op, head, body, keep)
	if err == nil {
		s.head[op.Key] = head
	}
	return err
}

func (s *last) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.Store.Claim(ctx, op, lease, keep)
	if c.Status == oncehttp.ClaimDone {
		c.Head = s.head[op.Key]
	}
	return c, err
}
