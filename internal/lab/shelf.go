package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A storeFault is what becomes of one call of a store.
type storeFault string

const (
	storeBefore    storeFault = "fails"
	storeAfter     storeFault = "fails, but has taken effect"
	storeSlow      storeFault = "takes its time"
	storeSlowReply storeFault = "takes effect, and answers after its time"
	storeLate      storeFault = "fails, and takes effect later"
	storeHang      storeFault = "hangs"
	storeHangAfter storeFault = "hangs, but has taken effect"
	storePanic     storeFault = "panics"
)

var storeFaults = []storeFault{
	storeBefore, storeAfter, storeSlow, storeSlowReply, storeLate, storeHang, storeHangAfter, storePanic,
}

var (
	errStore = errors.New("lab: the store failed")
	// errDead keeps a dead process from trying on.
	errDead = fmt.Errorf("lab: the process is dead: %w", oncehttp.ErrClaimLost)
)

// longestCall is how long a call of a store takes that is slow.
const longestCall = 10 * time.Second

// A shelf is a store as one process reaches it: over a network, and only as long
// as the process lives.
type shelf struct {
	p *process
	s Store
}

// A wakingShelf is one that also wakes those who wait.
type wakingShelf struct{ shelf }

func (p *process) shelf() oncehttp.Store {
	s := shelf{p, p.store}
	if p.w.plan.waiter {
		return &wakingShelf{s}
	}
	return &s
}

func (s *shelf) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return s.call(ctx, "Claim", op, func(ctx context.Context, a *arrival) (oncehttp.Claim, error) {
		asked := time.Now()
		s.sends(a)
		c, err := s.s.Claim(ctx, op, lease, keep)
		s.learn(a, "Claim", op, c, err, asked, lease)
		return c, err
	})
}

func (s *shelf) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return s.call(ctx, "TakeOver", op, func(ctx context.Context, a *arrival) (oncehttp.Claim, error) {
		asked := time.Now()
		s.sends(a)
		c, err := s.s.TakeOver(ctx, op, lease, keep)
		s.learn(a, "TakeOver", op, c, err, asked, lease)
		return c, err
	})
}

func (s *shelf) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	_, err := s.call(ctx, "Renew", op, func(ctx context.Context, a *arrival) (none oncehttp.Claim, err error) {
		asked := time.Now()
		err = s.s.Renew(ctx, op, lease)
		s.holds(a, err, asked, lease)
		w := s.p.w
		w.mu.Lock()
		began := a.began
		w.mu.Unlock()
		if lease > 0 && !began.IsZero() && time.Since(began) > w.plan.timeout+w.plan.lease+longestCall {
			w.broke(a.id, 4, "a claim is renewed %v after its handler began", time.Since(began))
		}
		return none, err
	})
	if errors.Is(err, oncehttp.ErrClaimLost) {
		a, w := ctx.Value(arrivalKey{}).(*arrival), s.p.w
		w.mu.Lock()
		if a.lost.IsZero() {
			a.lost = time.Now()
		}
		w.mu.Unlock()
	}
	return err
}

func (s *shelf) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	head, body = bytes.Clone(head), bytes.Clone(body) // which are the caller's again when the call has failed
	_, err := s.call(ctx, "Complete", op, func(ctx context.Context, a *arrival) (none oncehttp.Claim, err error) {
		asked := time.Now()
		err = s.s.Complete(ctx, op, head, body, keep)
		s.holds(a, err, asked, keep)
		return none, err
	})
	return err
}

func (s *shelf) Release(ctx context.Context, op oncehttp.Op) error {
	_, err := s.call(ctx, "Release", op, func(ctx context.Context, a *arrival) (none oncehttp.Claim, err error) {
		if err = s.s.Release(ctx, op); err == nil {
			s.holds(a, nil, time.Now(), 0)
		}
		return none, err
	})
	return err
}

// holds notes for how long a request's claim is its own, since it asked for that.
func (s *shelf) holds(a *arrival, err error, asked time.Time, d time.Duration) {
	w, now := s.p.w, time.Now()
	w.mu.Lock()
	own := a.jumps == w.jumps && now.Before(a.own)
	if err == nil {
		a.own, a.jumps = asked.Add(d), w.jumps
	}
	w.mu.Unlock()
	if own && errors.Is(err, oncehttp.ErrClaimLost) {
		w.broke(a.id, 1, "a claim is lost %v before its lease is over", a.own.Sub(now))
	}
}

func (s *wakingShelf) Wait(ctx context.Context, key string) error {
	if a, ok := ctx.Value(arrivalKey{}).(*arrival); ok {
		d, _ := s.roll(a)
		if f := s.p.w.plan.store.choose(&d); f == storeBefore && !s.p.w.calm.Load() {
			s.p.w.did(a.id, "store", "Wait "+string(f))
			return errStore
		}
	}
	return s.s.Wait(ctx, key)
}

// roll returns the dice of the next call for an arrival, and its number.
func (s *shelf) roll(a *arrival) (dice, int) {
	w := s.p.w
	w.mu.Lock()
	a.storeOps++
	n := a.storeOps
	w.mu.Unlock()
	return w.seed.roll("store", a.id.with(a.n, n)...), n
}

// call makes one call of the store, or what becomes of it.
func (s *shelf) call(ctx context.Context, method string, op oncehttp.Op, do func(context.Context, *arrival) (oncehttp.Claim, error)) (c oncehttp.Claim, err error) {
	w := s.p.w
	a := ctx.Value(arrivalKey{}).(*arrival)
	d, n := s.roll(a)
	if s.p.dead() && !s.p.died.Load() {
		w.broke(a.id, 5, "a process that was drained still has something to tell the store: %s", method)
	}
	s.p.step(a.id, 100*a.n+n, beforeThe+method)
	if s.p.dead() {
		return c, errDead
	}
	defer func() {
		if err != nil {
			c = oncehttp.Claim{}
			w.note(a.id, "store", "%s, claim %d: %v", method, w.claim(op.Token), err)
		} else {
			w.note(a.id, "store", "%s, claim %d: ok", method, w.claim(op.Token))
		}
		s.p.step(a.id, 100*a.n+n, afterThe+method)
		if s.p.dead() {
			c, err = oncehttp.Claim{}, errDead
		}
	}()
	f := w.plan.store.choose(&d)
	if f == "" && method == "TakeOver" { // which is rare, and risky
		f = w.plan.store.choose(&d)
	}
	wait := d.spread(time.Millisecond, longestCall)
	for _, o := range w.plan.outages {
		if at := time.Since(w.born); at >= o.from && at < o.to {
			f = storeBefore
		}
	}
	if w.calm.Load() {
		return do(ctx, a)
	}
	if f == "" {
		mend := s.mishap(a, method, &d)
		defer mend()
		return do(ctx, a)
	}
	w.excuse(a.a, storeFailed)
	if method == "Complete" {
		w.excuse(a.a, unrecorded)
	}
	w.did(a.id, "store", method+" "+string(f))
	switch f {
	case storeAfter:
		do(ctx, a)
	case storeSlow:
		if err := sleep(ctx, wait); err != nil {
			return c, err
		}
		return do(ctx, a)
	case storeSlowReply:
		c, err := do(ctx, a)
		if slow := sleep(ctx, wait); slow != nil {
			return c, slow
		}
		return c, err
	case storeLate:
		// It is on its way, whoever has given up on it meanwhile. One lease is
		// what that may take.
		time.AfterFunc(min(wait, w.plan.lease*9/10), func() {
			_, err := do(context.Background(), a)
			w.note(a.id, "store", "%s, claim %d, arrives late: %v", method, w.claim(op.Token), err)
		})
	case storeHang:
		<-ctx.Done()
		return c, ctx.Err()
	case storeHangAfter:
		do(ctx, a)
		<-ctx.Done()
		return c, ctx.Err()
	case storePanic:
		panic("lab: the store panics")
	}
	return c, errStore
}

// claim numbers tokens, which are random, in the order in which they are seen.
func (w *world) claim(token string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, ok := w.claims[token]
	if !ok {
		n = len(w.claims) + 1
		w.claims[token] = n
	}
	return n
}

// learn notes what a claim found.
func (s *shelf) learn(a *arrival, method string, op oncehttp.Op, c oncehttp.Claim, err error, asked time.Time, lease time.Duration) {
	w := s.p.w
	if err != nil {
		return
	}
	w.note(a.id, "store", "%s, claim %d, finds it %v, holder %d", method, w.claim(op.Token), c.Status, c.Holder)
	switch c.Status {
	case oncehttp.ClaimAcquired:
		w.mu.Lock()
		a.a.claims[w.calls[a.id.callID].ask] = true
		w.mu.Unlock()
		s.holds(a, nil, asked, lease)
	case oncehttp.ClaimRunning, oncehttp.ClaimOrphaned:
		w.mu.Lock()
		own := a.jumps == w.jumps && time.Now().Before(a.own)
		w.mu.Unlock()
		if own {
			w.broke(a.id, 1, "a claim that is asked for again, because its answer was lost, is told to be somebody else's")
		}
	}
}

// sends notes that a request's claim is on its way to a store that is far off. Twins
// may be told of it before its own request is.
func (s *shelf) sends(a *arrival) {
	if _, ok := s.s.(Breakable); !ok {
		return
	}
	w := s.p.w
	w.mu.Lock()
	a.a.claims[w.calls[a.id.callID].ask] = true
	w.mu.Unlock()
}

const clockJumps = "its clock jumps"

// A storeBreak is what happens to a process's way to its store.
type storeBreak string

const (
	breaksBefore storeBreak = "before the call has taken effect"
	breaksAfter  storeBreak = "after the call has taken effect"
)

var storeBreaks = []storeBreak{breaksBefore, breaksAfter}

// mishap has the way to the store break under the next call, if the seed says so.
// Whose call that is is not known: others may come at the same time, and the store
// has things to say of its own. So all whom the process serves are excused.
func (s *shelf) mishap(a *arrival, method string, d *dice) (mend func()) {
	w := s.p.w
	b, ok := s.s.(Breakable)
	if !ok {
		return func() {}
	}
	f := w.plan.breaks.choose(d)
	if f == "" {
		return func() {}
	}
	what, mend := b.Break(f == breaksAfter)
	w.did(a.id, "store", method+" "+what)
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	for served := range s.p.served {
		w.excuse(served, storeFailed)
		w.excuse(served, unrecorded)
		w.doubt(served)
	}
	return mend
}

// doubt notes that a claim for an action may have been granted, and nobody knows.
func (w *world) doubt(a *action) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a.granted = true
}

// jump moves the stores' clocks on.
func (w *world) jump(by time.Duration) {
	if w.calm.Load() {
		return
	}
	w.did(tryID{}, "store", clockJumps)
	w.note(tryID{}, "store", "by %v", by)
	w.mu.Lock()
	w.jumps++
	w.mu.Unlock()
	for _, a := range w.actions {
		w.excuse(a, jumped)
	}
	w.storage.Jump(by)
	w.mu.Lock()
	w.jumps++ // who has asked meanwhile does not know which clock answered
	w.mu.Unlock()
}
