package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/operate"
)

// errTooManyKeys says that one client has used as many new keys as it may. It is an
// ErrFull, which the Middleware takes for final.
var errTooManyKeys = fmt.Errorf("this client uses too many new keys: %w", oncehttp.ErrFull)

// A KeyLimit bounds how many new keys each client of a route may use within a time. A
// key that has a record costs nothing, so repeats are answered whatever was used.
type KeyLimit struct {
	mu      sync.Mutex
	n       int
	within  time.Duration
	clients map[string]*rate.Limiter
}

// maxClients bounds the memory for clients, to about 20 MiB. Beyond it all begin anew.
const maxClients = 100_000

// take pays for a new key, or says that the client cannot.
func (l *KeyLimit) take(client string, n int, within time.Duration, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.clients == nil || l.n != n || l.within != within || len(l.clients) >= maxClients && l.clients[client] == nil {
		l.n, l.within, l.clients = n, within, map[string]*rate.Limiter{}
	}
	c := l.clients[client]
	if c == nil {
		c = rate.NewLimiter(rate.Limit(float64(n)/within.Seconds()), n)
		l.clients[client] = c
	}
	return c.AllowN(now, 1)
}

// A limitedStore takes new keys only from clients that may have them.
type limitedStore struct {
	operate.Store
	limit  *KeyLimit
	n      int
	within time.Duration
}

// Claim implements oncehttp.Store.
func (s *limitedStore) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	c, err := s.Store.Claim(ctx, op, lease, keep)
	if err != nil || c.Status != oncehttp.ClaimAcquired || c.Holder > 1 {
		return c, err
	}
	who := principalOf(ctx)
	if who == nil || s.limit.take(who.id, s.n, s.within, time.Now()) {
		return c, nil
	}
	if err := s.Store.Release(ctx, op); err != nil {
		return oncehttp.Claim{}, err // it is asked again, or released in the background
	}
	return oncehttp.Claim{}, errTooManyKeys
}

// refuse writes what the Middleware refuses, in words of its own where it cannot know
// better.
func (rt *Route) refuse(w http.ResponseWriter, r *http.Request, p *oncehttp.Refusal) {
	if errors.Is(p.Err, errTooManyKeys) {
		p.Type, p.Status = problem("too-many-keys"), http.StatusTooManyRequests
		p.Title = "This client uses too many new idempotency keys"
		p.Detail = "This request was not sent on. Send it again later, with the same key."
	}
	p.ServeHTTP(w, r)
}
