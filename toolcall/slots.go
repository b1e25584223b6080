package toolcall

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncehttp/oncehttp"
)

// Slots are how a tool's latch survives a crash. Before a call that changes something
// starts it claims the next slot of its turn and tool in the store, which says what
// call it is; when the model has been told how it ended, the slot is completed. One
// that is running or orphaned and belongs to another process is a call of which nobody
// told the model anything. Slots are numbered and never used twice, so whoever resumes the turn
// meets all of them.
type slots struct {
	mu    sync.Mutex // held while the store is asked: claims come one after another
	next  int
	open  []*slot
	stale *oncehttp.Op // a claim without an answer
}

type slot struct {
	op     oncehttp.Op // Fingerprint is the call, Binding its arguments as they were sent
	own    bool        // op.Token holds it
	flying atomic.Bool // its call runs here, and nobody was told that it is unknown
}

// storePatience bounds one call of the store.
const storePatience = 5 * time.Second

func (t *Turn) slotsOf(tool string) *slots {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[tool]
	if s == nil {
		s = new(slots)
		if t.slots == nil {
			t.slots = make(map[string]*slots)
		}
		t.slots[tool] = s
	}
	return s
}

// slotOp is an op on the n-th slot of a tool, for a call with key.
func (t *Turn) slotOp(tool, key string, n int, args []byte) oncehttp.Op {
	var b []byte
	b = append(b, "toolcall-slot/v1\x00"...)
	for _, p := range [...]string{t.r.Scope, tool, t.id} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(n))
	sum := digest(t.r.Secret, b)
	return oncehttp.Op{
		Key:         "ts1_" + hex.EncodeToString(sum[:20]),
		Token:       oncehttp.NewToken(),
		Fingerprint: sha256.Sum256([]byte(key)),
		Binding:     digest(t.r.Secret, args),
	}
}

// An entry is what a call learned when it claimed its slot.
type entry struct {
	slot    *slot
	earlier bool // the same call was started before, and nobody knows how it ended
	differs bool // with other arguments, by bytes
}

// enter claims a slot for a call. It returns ErrLatched if another call of the tool
// has an unknown outcome and this one is not a repeat of one that has, too.
func (t *Turn) enter(ctx context.Context, s *slots, tool, key string, args []byte) (e entry, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("toolcall: the store panicked: a value of type %T", p)
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	store, keep := t.r.Store, t.r.keep()
	if s.stale != nil {
		// It may have claimed a slot for a call that was then refused.
		err := bounded(ctx, func(ctx context.Context) error { return store.Release(ctx, *s.stale) })
		if err != nil && !errors.Is(err, oncehttp.ErrClaimLost) {
			return e, err
		}
		s.stale = nil
	}
	mine := t.slotOp(tool, key, s.next, args)
	latched := false
	call, sent := mine.Fingerprint, mine.Binding
	meet := func(o *slot) {
		if o.op.Fingerprint != call {
			latched = true
			return
		}
		if !e.earlier {
			mine.Binding = o.op.Binding // under this key went those arguments
		}
		e.earlier = true
		e.differs = e.differs || o.op.Binding != sent
	}
	kept := s.open[:0]
	for i, o := range s.open {
		if !o.own {
			gone, err := t.look(ctx, o)
			if err != nil {
				s.open = append(kept, s.open[i:]...)
				return e, err
			}
			if gone {
				continue
			}
		}
		kept = append(kept, o)
		if !o.flying.Load() {
			meet(o)
		}
	}
	clear(s.open[len(kept):])
	s.open = kept
	for {
		var c oncehttp.Claim
		err := bounded(ctx, func(ctx context.Context) (err error) {
			c, err = store.Claim(ctx, mine, t.r.lease(), keep)
			return err
		})
		switch {
		case err != nil:
			s.stale = &mine
			if latched && !e.earlier {
				err = ErrLatched
			}
			return e, err
		case c.Status == oncehttp.ClaimAcquired && latched && !e.earlier:
			// No gap: this is the last one, and the next call claims it again.
			if err := bounded(ctx, func(ctx context.Context) error { return store.Release(ctx, mine) }); err != nil {
				s.stale = &mine
			}
			return e, ErrLatched
		case c.Status == oncehttp.ClaimAcquired:
			s.next++
			e.slot = &slot{op: mine, own: true}
			e.slot.flying.Store(true)
			s.open = append(s.open, e.slot)
			return e, nil
		case c.Status == oncehttp.ClaimRunning, c.Status == oncehttp.ClaimOrphaned:
			o := &slot{op: mine}
			o.op.Fingerprint, o.op.Binding = c.Fingerprint, c.Binding
			meet(o)
			s.open = append(s.open, o)
		}
		s.next++
		bound := mine.Binding
		mine = t.slotOp(tool, key, s.next, args)
		mine.Binding = bound
	}
}

// look asks whether a slot of another process still stands open.
func (t *Turn) look(ctx context.Context, o *slot) (gone bool, err error) {
	var c oncehttp.Claim
	err = bounded(ctx, func(ctx context.Context) (err error) {
		c, err = t.r.Store.Claim(ctx, o.op, t.r.lease(), t.r.keep())
		return err
	})
	switch {
	case err != nil:
		return false, err
	case c.Status == oncehttp.ClaimAcquired:
		// It was let go. Who resumes this turn counts on finding no gap.
		return true, t.complete(ctx, o.op)
	}
	return c.Status == oncehttp.ClaimDone, nil
}

// leave ends a call's slot: told says that the model knows how the call ended, and
// then every other slot of the same call is closed too.
func (t *Turn) leave(ctx context.Context, s *slots, own *slot, told bool) {
	defer func() {
		if p := recover(); p != nil {
			t.r.log().ErrorContext(ctx, "toolcall: the store panicked", "type", fmt.Sprintf("%T", p))
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	own.flying.Store(false)
	if !told {
		err := bounded(ctx, func(ctx context.Context) error { return t.r.Store.Renew(ctx, own.op, 0) })
		if err != nil && !errors.Is(err, oncehttp.ErrClaimLost) {
			t.r.log().WarnContext(ctx, "toolcall: a slot of a call whose outcome is unknown is an orphan only once its lease is over", "err", err)
		}
		return
	}
	t.closeSlots(ctx, s, own.op.Fingerprint)
}

// settle closes the slots of a call whose outcome has become known to the model.
func (t *Turn) settle(ctx context.Context, s *slots, key string) {
	defer func() {
		if p := recover(); p != nil {
			t.r.log().ErrorContext(ctx, "toolcall: the store panicked", "type", fmt.Sprintf("%T", p))
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	t.closeSlots(ctx, s, sha256.Sum256([]byte(key)))
}

func (t *Turn) closeSlots(ctx context.Context, s *slots, call [32]byte) {
	kept := s.open[:0]
	for _, o := range s.open {
		if o.op.Fingerprint != call || o.flying.Load() {
			kept = append(kept, o)
			continue
		}
		if !o.own {
			err := bounded(ctx, func(ctx context.Context) error {
				c, err := t.r.Store.TakeOver(ctx, o.op, t.r.lease(), t.r.keep())
				o.own = err == nil && c.Status == oncehttp.ClaimAcquired
				return err
			})
			if err != nil || !o.own {
				continue // its call is settled, so here it latches nothing any more
			}
		}
		if err := t.complete(ctx, o.op); err != nil && !errors.Is(err, oncehttp.ErrClaimLost) {
			t.r.log().WarnContext(ctx, "toolcall: a slot cannot be completed; if this turn is resumed elsewhere, the tool is latched there until the same call is made again", "err", err)
		}
	}
	clear(s.open[len(kept):])
	s.open = kept
}

func (t *Turn) complete(ctx context.Context, op oncehttp.Op) error {
	return bounded(ctx, func(ctx context.Context) error {
		return t.r.Store.Complete(ctx, op, []byte(`{"slot":true}`), nil, t.r.keep())
	})
}

// bounded asks the store, whoever leaves meanwhile.
func bounded(ctx context.Context, ask func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storePatience)
	defer cancel()
	return ask(ctx)
}
