package crash

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
)

// Watch returns a store that does what s does and has p know of its claims. It is a
// Waiter, and a Transactor, where s is one.
func Watch(s oncehttp.Store, p *Progress) oncehttp.Store {
	w := &watched{Store: s, p: p, at: make(map[string]int64)}
	waiter, waits := s.(oncehttp.Waiter)
	transactor, transacts := s.(oncehttp.Transactor)
	switch {
	case waits && transacts:
		return struct {
			*watched
			oncehttp.Waiter
			*transacted
		}{w, waiter, &transacted{w, transactor}}
	case transacts:
		return struct {
			*watched
			*transacted
		}{w, &transacted{w, transactor}}
	case waits:
		return struct {
			*watched
			oncehttp.Waiter
		}{w, waiter}
	}
	return w
}

type watched struct {
	oncehttp.Store
	p *Progress

	mu sync.Mutex
	at map[string]int64 // where the claim of a token stands
}

func (w *watched) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return w.claim(ctx, op, lease, keep, w.Store.Claim)
}

func (w *watched) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return w.claim(ctx, op, lease, keep, w.Store.TakeOver)
}

func (w *watched) claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration,
	call func(context.Context, oncehttp.Op, time.Duration, time.Duration) (oncehttp.Claim, error)) (oncehttp.Claim, error) {
	at := w.p.begin(claiming)
	c, err := call(ctx, op, lease, keep)
	if err != nil || c.Status != oncehttp.ClaimAcquired {
		w.p.end(at)
		return c, err
	}
	w.p.set(at, held)
	w.mu.Lock()
	old, again := w.at[op.Token]
	w.at[op.Token] = at
	w.mu.Unlock()
	if again {
		w.p.end(old)
	}
	return c, nil
}

func (w *watched) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	w.now(op, recording)
	err := w.Store.Complete(ctx, op, head, body, keep)
	w.ended(op, err)
	return err
}

func (w *watched) Release(ctx context.Context, op oncehttp.Op) error {
	w.now(op, freeing)
	err := w.Store.Release(ctx, op)
	w.ended(op, err)
	return err
}

// Renew with a lease of zero gives a claim up.
func (w *watched) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	err := w.Store.Renew(ctx, op, lease)
	if lease == 0 {
		w.ended(op, err)
	}
	return err
}

// now notes what becomes of a token's claim.
func (w *watched) now(op oncehttp.Op, what byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, ok := w.at[op.Token]; ok {
		w.p.set(at, what)
	}
}

// ended notes the end of a token's claim, unless the call that was to end it failed.
func (w *watched) ended(op oncehttp.Op, err error) {
	if err != nil && !errors.Is(err, oncehttp.ErrClaimLost) {
		w.now(op, held)
		return
	}
	w.mu.Lock()
	at, ok := w.at[op.Token]
	delete(w.at, op.Token)
	w.mu.Unlock()
	if ok {
		w.p.end(at)
	}
}

type transacted struct {
	w     *watched
	store oncehttp.Transactor
}

func (t *transacted) Transact(ctx context.Context, op oncehttp.Op, keep time.Duration, work func(context.Context) ([]byte, []byte, oncehttp.TxEnd)) error {
	err := t.store.Transact(ctx, op, keep, func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd) {
		t.w.now(op, held) // work may run again
		head, body, end := work(ctx)
		t.w.now(op, recording)
		return head, body, end
	})
	t.w.ended(op, nil)
	return err
}

// CountRunning counts the records of a store that are running.
func CountRunning(ctx context.Context, s oncehttp.Inspector) (int, error) {
	n := 0
	for q := (oncehttp.RecordQuery{Status: oncehttp.ClaimRunning, Limit: 1000}); ; {
		page, err := s.List(ctx, q)
		if err != nil {
			return 0, err
		}
		n += len(page)
		if len(page) == 0 {
			return n, nil
		}
		q.After = page[len(page)-1].Key
	}
}
