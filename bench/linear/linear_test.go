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

// wrongStores make mistakes of their own around a store.
var wrongStores = map[string]func(oncehttp.Store) oncehttp.Store{
	"a claim that is granted twice":          func(s oncehttp.Store) oncehttp.Store { return &grants{Store: s} },
	"a release that compares no token":       func(s oncehttp.Store) oncehttp.Store { return &frees{holding{Store: s}} },
	"a completion that compares no token":    func(s oncehttp.Store) oncehttp.Store { return &records{holding{Store: s}} },
	"a completion that keeps the last bytes": func(s oncehttp.Store) oncehttp.Store { return &last{Store: s, head: map[string][]byte{}} },
	"a done that is told before it is so":    func(s oncehttp.Store) oncehttp.Store { return &early{Store: s} },
}

// A checker that finds nothing proves nothing, so it is fed stores that are wrong.
func TestWrongStoresAreFound(t *testing.T) {
	for name, wrong := range wrongStores {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(50) {
				if !linearizable(record(t, wrong(&oncehttp.MemoryStore{}), Config{Seed: seed})) {
					return
				}
			}
			t.Error("not found in 50 histories")
		})
	}
}

func linearizable(history []porcupine.Operation) bool {
	return porcupine.CheckOperationsTimeout(model, history, time.Minute) != porcupine.Illegal
}

// shared is several stores that share their records, as one: a key's calls go now
// to one of them, now to another.
type shared struct {
	stores []oncehttp.Store
	n      atomic.Uint32
}

func (s *shared) any() oncehttp.Store { return s.stores[int(s.n.Add(1))%len(s.stores)] }

func (s *shared) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return s.any().Claim(ctx, op, lease, keep)
}

func (s *shared) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return s.any().TakeOver(ctx, op, lease, keep)
}

func (s *shared) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	return s.any().Renew(ctx, op, lease)
}

func (s *shared) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	return s.any().Complete(ctx, op, head, body, keep)
}

func (s *shared) Release(ctx context.Context, op oncehttp.Op) error {
	return s.any().Release(ctx, op)
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

// holding knows who holds each key.
type holding struct {
	oncehttp.Store
	mu     sync.Mutex
	holder map[string]string
}

func (s *holding) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.Store.Claim(ctx, op, lease, keep)
	if c.Status == oncehttp.ClaimAcquired {
		if s.holder == nil {
			s.holder = map[string]string{}
		}
		s.holder[op.Key] = op.Token
	}
	return c, err
}

// frees lets anybody free a key.
type frees struct{ holding }

func (s *frees) Release(ctx context.Context, op oncehttp.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op.Token = s.holder[op.Key]; op.Token == "" {
		return nil
	}
	return s.Store.Release(ctx, op)
}

// records lets anybody complete a key.
type records struct{ holding }

func (s *records) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if holder := s.holder[op.Key]; holder != "" {
		op.Token = holder
	}
	return s.Store.Complete(ctx, op, head, body, keep)
}

// early says that a key is done, and records that a moment later.
type early struct{ oncehttp.Store }

func (s *early) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	if err := s.Store.Renew(ctx, op, time.Hour); err != nil {
		return err
	}
	time.AfterFunc(100*time.Microsecond, func() { s.Store.Complete(context.Background(), op, head, body, keep) })
	return nil
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
