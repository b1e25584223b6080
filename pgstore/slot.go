package pgstore

import (
	"context"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A slot is what this process holds for a token. Calls for one token follow one
// another.
type slot struct {
	turn chan struct{} // holds one value while it is nobody's turn
	n    int           // calls that have or await their turn; one more if it is held

	// The rest is for whose turn it is.
	op          oncehttp.Op
	claim       oncehttp.Claim
	sess        session // its transaction locks the row; nil: not held
	since       time.Time
	lease, keep time.Duration
	lapses      time.Time
	timer       *time.Timer
}

// extend gives a held claim a lease from now.
func (sl *slot) extend(lease, keep time.Duration) {
	sl.lease, sl.keep = lease, keep
	sl.since = time.Now()
	sl.lapses = sl.since.Add(lease)
	if sl.timer != nil {
		sl.timer.Reset(lease)
	}
}

// slots are those of a store, by token.
type slots struct {
	mu      sync.Mutex
	byToken map[string]*slot
	closed  bool
}

// enter awaits a turn for a token.
func (s *slots) enter(ctx context.Context, token string) (*slot, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	sl := s.byToken[token]
	if sl == nil {
		sl = &slot{turn: make(chan struct{}, 1)}
		sl.turn <- struct{}{}
		if s.byToken == nil {
			s.byToken = make(map[string]*slot)
		}
		s.byToken[token] = sl
	}
	sl.n++
	s.mu.Unlock()
	select {
	case <-sl.turn:
		return sl, nil
	case <-ctx.Done():
		s.forget(token, sl)
		return nil, ctx.Err()
	}
}

// leave ends a turn.
func (s *slots) leave(token string, sl *slot) {
	sl.turn <- struct{}{}
	s.forget(token, sl)
}

// retain keeps a slot although nobody has or awaits a turn.
func (s *slots) retain(sl *slot) {
	s.mu.Lock()
	sl.n++
	s.mu.Unlock()
}

func (s *slots) forget(token string, sl *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sl.n--; sl.n == 0 && s.byToken[token] == sl {
		delete(s.byToken, token)
	}
}

// close calls end for every slot for which nobody acts, and lets no one enter any
// more.
func (s *slots) close(end func(*slot)) {
	s.mu.Lock()
	s.closed = true
	all := make([]*slot, 0, len(s.byToken))
	for _, sl := range s.byToken {
		all = append(all, sl)
	}
	s.mu.Unlock()
	for _, sl := range all {
		select {
		case <-sl.turn:
			end(sl)
			sl.turn <- struct{}{}
		default: // work runs; it ends its transaction itself
		}
	}
}
