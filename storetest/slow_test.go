package storetest

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// On a machine with too much to do any call may take its time, before it has taken
// effect or after. The suite may then begin anew, with longer units, but not say
// that a good store is wrong. Here each call of each case is late once.
func TestASlowMachineIsNotTakenForAWrongStore(t *testing.T) {
	const unit = 100 * time.Millisecond
	const most = 12 // calls of a case; what comes later is like what came before
	synctest.Test(t, func(t *testing.T) {
		for _, k := range cases() {
			if !(suite{}).has(&loaded{}, k.rule) {
				continue
			}
			for _, late := range []time.Duration{3 * unit / 2, 5 * unit, 12 * unit, 100 * unit} {
				for _, after := range []bool{false, true} {
					made := int64(most)
					for nth := int64(1); nth <= min(made, most); nth++ {
						var calls atomic.Int64
						s := suite{advance: time.Sleep, unit: unit, patience: time.Hour}
						s.new = func() oncehttp.Store {
							return &loaded{&oncehttp.MemoryStore{}, &calls, nth, late, after}
						}
						said := recorder{name: k.name}
						s.run(&said, k)
						made = calls.Load()
						if len(said.said) > 0 {
							t.Errorf("call %d was late by %v, after it had taken effect: %v\n%s", nth, late, after, strings.Join(said.said, "\n"))
						}
					}
				}
			}
		}
	})
}

// A loaded store is late once.
type loaded struct {
	oncehttp.Store
	calls *atomic.Int64
	nth   int64 // the call that is late
	late  time.Duration
	after bool // it has taken effect
}

// do makes a call.
func (s *loaded) do(ctx context.Context, call func()) {
	late := s.calls.Add(1) == s.nth
	if late && !s.after {
		pause(ctx, s.late)
	}
	call()
	if late && s.after {
		pause(ctx, s.late)
	}
}

// pause waits no longer than ctx lasts, as a good store does.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (s *loaded) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (c oncehttp.Claim, err error) {
	s.do(ctx, func() { c, err = s.Store.Claim(ctx, op, lease, keep) })
	return c, err
}

func (s *loaded) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (c oncehttp.Claim, err error) {
	s.do(ctx, func() { c, err = s.Store.TakeOver(ctx, op, lease, keep) })
	return c, err
}

func (s *loaded) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) (err error) {
	s.do(ctx, func() { err = s.Store.Renew(ctx, op, lease) })
	return err
}

func (s *loaded) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) (err error) {
	s.do(ctx, func() { err = s.Store.Complete(ctx, op, head, body, keep) })
	return err
}

func (s *loaded) Release(ctx context.Context, op oncehttp.Op) (err error) {
	s.do(ctx, func() { err = s.Store.Release(ctx, op) })
	return err
}
