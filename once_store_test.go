package oncehttp

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// A faulty is a Store that does what before and after say around every call of
// the store behind it: fail, hang, panic, be slow. Either may be nil.
type faulty struct {
	Store
	before, after func(ctx context.Context, c storeCall) error

	mu    sync.Mutex
	calls []storeCall
	n     map[string]int // by method
}

type storeCall struct {
	method string
	op     Op
	lease  time.Duration
	at     time.Time
	n      int // of this method, from 1
}

func (f *faulty) call(ctx context.Context, method string, op Op, lease time.Duration, do func() error) error {
	f.mu.Lock()
	if f.n == nil {
		f.n = make(map[string]int)
	}
	f.n[method]++
	c := storeCall{method, op, lease, time.Now(), f.n[method]}
	f.calls = append(f.calls, c)
	f.mu.Unlock()
	if f.before != nil {
		if err := f.before(ctx, c); err != nil {
			return err
		}
	}
	err := do()
	if f.after != nil {
		if err := f.after(ctx, c); err != nil {
			return err
		}
	}
	return err
}

// made returns the calls of a method.
func (f *faulty) made(method string) (made []storeCall) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.method == method {
			made = append(made, c)
		}
	}
	return made
}

func (f *faulty) Claim(ctx context.Context, op Op, lease, keep time.Duration) (c Claim, err error) {
	err = f.call(ctx, "Claim", op, lease, func() error { c, err = f.Store.Claim(ctx, op, lease, keep); return err })
	return c, err
}

func (f *faulty) TakeOver(ctx context.Context, op Op, lease, keep time.Duration) (c Claim, err error) {
	err = f.call(ctx, "TakeOver", op, lease, func() error { c, err = f.Store.TakeOver(ctx, op, lease, keep); return err })
	return c, err
}

func (f *faulty) Renew(ctx context.Context, op Op, lease time.Duration) error {
	return f.call(ctx, "Renew", op, lease, func() error { return f.Store.Renew(ctx, op, lease) })
}

func (f *faulty) Complete(ctx context.Context, op Op, head, body []byte, keep time.Duration) error {
	return f.call(ctx, "Complete", op, 0, func() error { return f.Store.Complete(ctx, op, head, body, keep) })
}

func (f *faulty) Release(ctx context.Context, op Op) error {
	return f.call(ctx, "Release", op, 0, func() error { return f.Store.Release(ctx, op) })
}

var errStore = errors.New("the store is on fire")

// during makes a hook act on one method only.
func during(method string, act func(ctx context.Context, c storeCall) error) func(context.Context, storeCall) error {
	return func(ctx context.Context, c storeCall) error {
		if c.method != method {
			return nil
		}
		return act(ctx, c)
	}
}

func fails(context.Context, storeCall) error { return errStore }

func panics(context.Context, storeCall) error { panic("a store's secret") }

// hangs until the context of the call ends.
func hangs(ctx context.Context, _ storeCall) error {
	<-ctx.Done()
	return ctx.Err()
}

func slow(d time.Duration) func(context.Context, storeCall) error {
	return func(ctx context.Context, _ storeCall) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A transacting is a Store with transactions: a claim is held by a lock, and the
// record is made when the work's writes are.
type transacting struct {
	*MemoryStore
	txFaults

	end TxEnd // that work asked for last

	mu     sync.Mutex
	writes []string // what was committed
}

type txFaults struct {
	begin  error // Transact returns it before the work
	commit error // and this instead of committing
	lose   error // and this after it has committed
	undo   error // and this after it has rolled back
	panics bool
	again  bool // it runs the work again once
}

type txKey struct{}

type tx struct{ writes []string }

// write is what a handler does within its transaction.
func write(ctx context.Context, s string) {
	t := ctx.Value(txKey{}).(*tx)
	t.writes = append(t.writes, s)
}

func (s *transacting) Transact(ctx context.Context, op Op, keep time.Duration, work func(context.Context) ([]byte, []byte, TxEnd)) error {
	if s.begin != nil {
		return s.begin
	}
	if err := s.Renew(ctx, op, time.Hour); err != nil {
		return err
	}
	t := new(tx)
	committed := false
	defer func() {
		if !committed { // also when the work panics
			s.Release(context.WithoutCancel(ctx), op)
		}
	}()
	head, body, end := work(context.WithValue(ctx, txKey{}, t))
	if s.again {
		t.writes = nil
		head, body, end = work(context.WithValue(ctx, txKey{}, t))
	}
	s.end = end
	if s.panics {
		committed = true
		panic("a store's secret")
	}
	if end == TxUnknown && s.undo == nil {
		committed = true
		return s.Renew(context.WithoutCancel(ctx), op, 0)
	}
	if end != TxCommit {
		return s.undo
	}
	if s.commit != nil {
		return s.commit
	}
	if err := s.Complete(context.WithoutCancel(ctx), op, head, body, keep); err != nil {
		return err
	}
	committed = true
	s.mu.Lock()
	s.writes = append(s.writes, t.writes...)
	s.mu.Unlock()
	return s.lose
}

var quiet = slog.New(slog.DiscardHandler)
