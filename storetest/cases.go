package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncehttp/oncehttp"
)

// cases are all cases in the order in which they help most: a store that fails
// the first ones need not look at the last.
func cases() []kase {
	all := tableCases()
	for seed := range 5 {
		all = append(all, kase{fmt.Sprintf("a walk through the table, seed %d", seed), 2, walk(uint64(seed), 60)})
	}
	for _, some := range [][]kase{claimCases, doneCases, orphanCases, timeCases, contextCases, byteCases,
		argumentCases, durableCases, waiterCases, inspectorCases, transactorCases} {
		all = append(all, some...)
	}
	return all
}

const crowd = 16

var claimCases = []kase{
	{"one of many concurrent Claims acquires", 1, func(h *harness) {
		for range 5 {
			h.keys++
			h.race(1, func(int) method { return claim })
		}
	}},
	{"one of many concurrent TakeOvers of a free key acquires", 5, func(h *harness) {
		for range 5 {
			h.keys++
			h.race(5, func(int) method { return takeOver })
		}
	}},
	{"one of many concurrent Claims and TakeOvers acquires", 1, func(h *harness) {
		for range 5 {
			h.keys++
			h.race(1, func(i int) method { return claim + method(i%2) })
		}
	}},
	{"one of many concurrent Claims acquires a key that was released", 1, func(h *harness) {
		for range 3 {
			op := h.op(h.key())
			h.mustClaim(4, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
			h.must(4, h.release(h.ctx, op), nil, "Release by the holder")
			winner := h.race(1, func(int) method { return claim })
			h.must(4, h.release(h.ctx, winner), nil, "Release by the holder")
		}
	}},
	{"concurrent Claims of different keys all acquire", 1, func(h *harness) {
		h.together(crowd, func(i int) {
			op := h.op(fmt.Sprintf("key %d", i))
			c := h.mustClaim(1, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key beside others")
			h.told(1, "Claim of a free key beside others", c, &model{first: op, holders: 1}, h.long(), h.long())
		})
	}},
	{"concurrent repeats of one Claim all acquire", 2, func(h *harness) {
		op := h.op(h.key())
		h.together(crowd, func(int) {
			c := h.mustClaim(2, op, h.long(), h.long(), oncehttp.ClaimAcquired, "repeated at the same time with the same Op")
			h.told(2, "Claim repeated at the same time with the same Op", c, &model{first: op, holders: 1}, h.long(), h.long())
		})
	}},
}

// race lets a crowd take the case's key by Claim or TakeOver, checks that
// exactly one of them got it, and returns the winner.
func (h *harness) race(r rule, by func(i int) method) oncehttp.Op {
	var mu sync.Mutex
	var winners []oncehttp.Op
	var claims []oncehttp.Claim
	h.together(crowd, func(i int) {
		op := h.op(h.key())
		take := h.claim
		if by(i) == takeOver {
			take = h.takeOver
		}
		c, err := take(h.ctx, op, h.long(), h.long())
		if err != nil {
			h.broken(r, "%v beside %d others: got error %v", by(i), crowd-1, show(err))
		}
		mu.Lock()
		defer mu.Unlock()
		if c.Status == oncehttp.ClaimAcquired {
			winners = append(winners, op)
		} else {
			claims = append(claims, c)
		}
	})
	if len(winners) != 1 {
		h.broken(r, "%d of %d concurrent calls acquired the key, want 1", len(winners), crowd)
	}
	m := &model{state: running, first: winners[0], holder: winners[0], holders: 1}
	for _, c := range claims {
		if c.Status != oncehttp.ClaimRunning {
			h.broken(r, "one who did not acquire the key was told %v, want %v", c.Status, oncehttp.ClaimRunning)
		}
		h.told(r, "the answer to one who did not acquire the key", c, m, h.long(), h.long())
	}
	h.look(r, "after a race", m)
	return winners[0]
}

var doneCases = []kase{
	{"a done record is the same for all until keep is over, then the key is free", 4, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(4, op, h.long(), h.u(1), oncehttp.ClaimAcquired, "of a free key")
		m := &model{state: done, first: op, holder: op, holders: 1, head: []byte("201"), body: []byte("{}")}
		at := h.now()
		h.must(4, h.complete(h.ctx, op, m.head, m.body, h.u(10)), nil, "Complete by the holder")
		for range 3 {
			h.pass(h.u(2))
			c, err := h.claim(h.ctx, h.op(h.key()), h.long(), h.long())
			h.before(at + h.u(10))
			h.status(4, "Claim", "before keep is over", c, err, oncehttp.ClaimDone)
			h.told(4, "Claim before keep is over", c, m, h.long(), h.u(10))
		}
		h.pass(h.u(6))
		next := h.op(h.key())
		c := h.mustClaim(4, next, h.long(), h.long(), oncehttp.ClaimAcquired, "after keep was over")
		h.told(4, "Claim after keep was over", c, &model{first: next, holders: 1}, h.long(), h.long())
	}},
	{"the keep that counts is that of Complete, shorter or longer than that of the claim", 4, func(h *harness) {
		long, short := h.op("kept for longer"), h.op("kept for less long")
		at := h.now()
		h.mustClaim(4, long, h.u(1), h.u(1), oncehttp.ClaimAcquired, "of a free key")
		err := h.complete(h.ctx, long, nil, nil, h.long())
		h.before(at + h.u(1)) // or the claim may be gone before it is completed
		h.must(4, err, nil, "Complete by the holder")
		h.mustClaim(4, short, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		h.must(4, h.complete(h.ctx, short, nil, nil, h.u(1)), nil, "Complete by the holder")
		h.pass(h.u(3))
		h.mustClaim(4, h.op(long.Key), h.long(), h.long(), oncehttp.ClaimDone, "before the keep of Complete is over, after that of the claim")
		h.mustClaim(4, h.op(short.Key), h.long(), h.long(), oncehttp.ClaimAcquired, "after the keep of Complete was over, before that of the claim")
	}},
	{"a record completed at the last moment is done", 4, func(h *harness) {
		m, _ := h.reach(orphaned, true)
		h.do(m, step{complete, m.holder, []byte("200"), []byte("late")}, h.long(), h.long())
	}},
	{"a repeated Complete does not lengthen the time a record is kept", 4, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(4, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		at := h.now()
		h.must(4, h.complete(h.ctx, op, []byte("h"), nil, h.u(2)), nil, "Complete by the holder")
		err := h.complete(h.ctx, op, []byte("h"), nil, h.long())
		h.before(at + h.u(2)) // or the record may be gone already
		h.must(2, err, nil, "Complete repeated by the holder")
		err = h.renew(h.ctx, op, h.long())
		h.before(at + h.u(2))
		h.must(2, err, nil, "Renew by the token that completed")
		h.pass(h.u(4))
		h.mustClaim(4, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimAcquired, "after the keep of the first Complete was over")
	}},
	{"whoever sees Done while it is being recorded sees all of it", 4, func(h *harness) {
		for range 5 {
			h.keys++
			op := h.op(h.key())
			h.mustClaim(4, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
			m := &model{state: done, first: op, holder: op, holders: 1, head: []byte("201"), body: bytes.Repeat([]byte("x"), 1000)}
			h.together(crowd, func(i int) {
				if i == 0 {
					h.must(4, h.complete(h.ctx, op, m.head, m.body, h.long()), nil, "Complete by the holder")
					return
				}
				c, err := h.claim(h.ctx, h.op(h.key()), h.long(), h.long())
				switch {
				case err != nil:
					h.broken(4, "Claim beside Complete: got error %v", show(err))
				case c.Status == oncehttp.ClaimDone:
					h.told(4, "Claim beside Complete", c, m, h.long(), h.long())
				case c.Status != oncehttp.ClaimRunning:
					h.broken(4, "Claim beside Complete: got %v, want running or done", c.Status)
				}
			})
			h.look(4, "after Complete", m)
		}
	}},
	{"one of several concurrent Completes of one token is kept", 2, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(2, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		h.together(crowd, func(i int) {
			b := []byte{byte(i)}
			h.must(2, h.complete(h.ctx, op, b, b, h.long()), nil, "Complete repeated at the same time")
		})
		c := h.mustClaim(2, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimDone, "after Complete")
		if len(c.Head) != 1 || !bytes.Equal(c.Head, c.Body) {
			h.broken(2, "head %s and body %s are not from the same Complete", brief(c.Head), brief(c.Body))
		}
	}},
}

var orphanCases = []kase{
	{"a lapsed lease makes the key orphaned, not free", 5, func(h *harness) {
		m := h.lapse()
		c := h.mustClaim(5, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimOrphaned, "by another token after the lease lapsed")
		h.told(5, "Claim by another token after the lease lapsed", c, m, h.long(), h.long())
		h.look(5, "after the lease lapsed", m)
	}},
	{"Renew by the holder heals a lapsed claim", 5, func(h *harness) {
		m := h.lapse()
		h.do(m, step{method: renew, op: m.holder}, h.long(), h.long())
	}},
	{"Complete by the holder heals a lapsed claim", 5, func(h *harness) {
		m := h.lapse()
		h.do(m, step{complete, m.holder, []byte("200"), []byte("late")}, h.long(), h.long())
	}},
	{"Release by the holder heals a lapsed claim", 5, func(h *harness) {
		m := h.lapse()
		h.do(m, step{method: release, op: m.holder}, h.long(), h.long())
	}},
	{"a repeated Claim of a lapsed claim starts the lease anew", 2, func(h *harness) {
		m := h.lapse()
		h.mustClaim(2, m.holder, h.long(), h.long(), oncehttp.ClaimAcquired, "repeated by the holder after the lease lapsed")
		h.mustTakeOver(2, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimRunning, "after the holder repeated its Claim")
	}},
	{"a claim taken over after its lease lapsed is lost to its first holder", 3, func(h *harness) {
		m := h.lapse()
		first := m.holder
		h.do(m, step{method: takeOver, op: h.op(h.key())}, h.long(), h.long())
		for _, late := range []method{renew, renew0, complete, release} {
			h.do(m, step{late, first, []byte("500"), []byte("late")}, h.long(), h.long())
		}
	}},
	{"one of many concurrent TakeOvers of an orphan wins", 5, func(h *harness) {
		for range 5 {
			h.keys++
			m, _ := h.reach(orphaned, false)
			var mu sync.Mutex
			var winners []oncehttp.Op
			h.together(crowd, func(int) {
				op := h.op(h.key())
				c, err := h.takeOver(h.ctx, op, h.long(), h.long())
				if err != nil {
					h.broken(5, "TakeOver beside others: got error %v", show(err))
				}
				switch c.Status {
				case oncehttp.ClaimAcquired:
					mu.Lock()
					winners = append(winners, op)
					mu.Unlock()
				case oncehttp.ClaimRunning:
				default:
					h.broken(5, "TakeOver beside others: got %v, want acquired or running", c.Status)
				}
				h.told(5, "TakeOver beside others", c, &model{first: m.first, holders: 2}, h.long(), h.long())
			})
			if len(winners) != 1 {
				h.broken(5, "%d of %d concurrent TakeOvers won, want 1", len(winners), crowd)
			}
			m.state, m.holder, m.holders = running, winners[0], 2
			h.look(5, "after many TakeOvers", m)
		}
	}},
	{"concurrent repeats of one TakeOver all acquire and raise Holder once", 5, func(h *harness) {
		m, _ := h.reach(orphaned, false)
		op := h.op(h.key())
		h.together(crowd, func(int) {
			c := h.mustTakeOver(5, op, h.long(), h.long(), oncehttp.ClaimAcquired, "repeated at the same time with the same Op")
			h.told(5, "TakeOver repeated at the same time with the same Op", c, &model{first: m.first, holders: 2}, h.long(), h.long())
		})
	}},
	{"Holder counts every takeover", 5, func(h *harness) {
		m, _ := h.reach(orphaned, false)
		for range 3 {
			h.do(m, step{method: takeOver, op: h.op(h.key())}, h.long(), h.long())
			h.do(m, step{method: renew0, op: m.holder}, h.long(), h.long())
		}
	}},
	{"Complete and TakeOver of an orphan: one of them wins", 3, func(h *harness) {
		h.duel(func(m *model, op oncehttp.Op, won bool, err error) {
			switch {
			case won && is(err, lost): // the TakeOver came first
				m.state, m.holder, m.holders = running, op, 2
			case !won && err == nil:
				m.state, m.head, m.body = done, []byte("200"), []byte("body")
			default:
				h.broken(3, "TakeOver acquired: %v; Complete by the holder beside it: %v", won, show(err))
			}
		}, func(op oncehttp.Op) error { return h.complete(h.ctx, op, []byte("200"), []byte("body"), h.long()) })
	}},
	{"Renew and TakeOver of an orphan: one of them wins", 3, func(h *harness) {
		h.duel(func(m *model, op oncehttp.Op, won bool, err error) {
			switch {
			case won && is(err, lost):
				m.state, m.holder, m.holders = running, op, 2
			case !won && err == nil:
				m.state = running
			default:
				h.broken(3, "TakeOver acquired: %v; Renew by the holder beside it: %v", won, show(err))
			}
		}, func(op oncehttp.Op) error { return h.renew(h.ctx, op, h.long()) })
	}},
	{"Release and TakeOver of an orphan: one comes first", 3, func(h *harness) {
		h.duel(func(m *model, op oncehttp.Op, won bool, err error) {
			switch {
			case won && is(err, lost): // the TakeOver came first
				m.state, m.holder, m.holders = running, op, 2
			case won && err == nil: // and took a free key
				*m = model{state: running, first: op, holder: op, holders: 1}
			default:
				h.broken(3, "TakeOver acquired: %v; Release by the holder beside it: %v", won, show(err))
			}
		}, func(op oncehttp.Op) error { return h.release(h.ctx, op) })
	}},
}

// lapse lets a claim's lease lapse by waiting.
func (h *harness) lapse() *model {
	op := h.op(h.key())
	c := h.mustClaim(1, op, h.u(1), h.long(), oncehttp.ClaimAcquired, "of a free key")
	m := &model{state: orphaned, first: op, holder: op, holders: 1}
	h.told(1, "Claim of a free key", c, m, h.u(1), h.long())
	h.passLease(h.u(2))
	return m
}

// passLease lets time pass in which a lease lapses. A store that holds a claim by a
// transaction ends that by itself when the lease is over, on a busy machine a little
// later, and until then says that the claim runs.
func (h *harness) passLease(d time.Duration) {
	h.pass(d)
	if _, ok := h.store.(oncehttp.Transactor); !ok {
		return
	}
	for range 20 {
		if c, err := h.claim(h.ctx, h.op(h.key()), h.long(), h.long()); err != nil || c.Status != oncehttp.ClaimRunning {
			return // what it is instead the case will see
		}
		h.pass(h.u(1))
	}
}

// duel lets the holder of an orphan and one who takes it over act at the same
// time.
func (h *harness) duel(judge func(m *model, op oncehttp.Op, won bool, err error), act func(oncehttp.Op) error) {
	for i := range 10 {
		h.keys++
		m, _ := h.reach(orphaned, false)
		op := h.op(h.key())
		var err error
		var won bool
		h.together(2, func(n int) {
			if (n+i)%2 == 0 {
				err = act(m.holder)
				return
			}
			c, takeErr := h.takeOver(h.ctx, op, h.long(), h.long())
			if takeErr != nil {
				h.broken(5, "TakeOver beside the holder: got error %v", show(takeErr))
			}
			won = c.Status == oncehttp.ClaimAcquired
		})
		judge(m, op, won, err)
		h.look(3, "after holder and TakeOver met", m)
	}
}

var timeCases = []kase{
	{"a running record does not vanish before its lease lapses, however short keep is", 6, func(h *harness) {
		op := h.op(h.key())
		at := h.now()
		h.mustClaim(6, op, h.u(20), h.u(1), oncehttp.ClaimAcquired, "of a free key")
		h.pass(h.u(4))
		c, err := h.claim(h.ctx, h.op(h.key()), h.u(20), h.u(1))
		h.before(at + h.u(20))
		h.status(6, "Claim", "after keep and before the lease lapsed", c, err, oncehttp.ClaimRunning)
		err = h.renew(h.ctx, op, h.long())
		h.before(at + h.u(20))
		h.must(6, err, nil, "Renew by the holder after keep and before the lease lapsed")
		h.must(6, h.complete(h.ctx, op, nil, nil, h.long()), nil, "Complete by the holder after keep and before the lease lapsed")
	}},
	{"an orphaned record lasts for keep after the latest Renew", 6, func(h *harness) {
		h.lasts(func(op oncehttp.Op) (oncehttp.Op, func()) {
			err := h.renew(h.ctx, op, h.u(1))
			return op, func() { h.must(6, err, nil, "Renew by the holder before keep is over") }
		})
	}},
	{"an orphaned record lasts for keep after the latest TakeOver", 6, func(h *harness) {
		h.lasts(func(oncehttp.Op) (oncehttp.Op, func()) {
			op := h.op(h.key())
			c, err := h.takeOver(h.ctx, op, h.u(1), h.u(10))
			return op, func() {
				h.status(6, "TakeOver", "of an orphan before keep is over", c, err, oncehttp.ClaimAcquired)
			}
		})
	}},
	{"an orphaned record lasts for keep after the latest Claim of its holder", 6, func(h *harness) {
		h.lasts(func(op oncehttp.Op) (oncehttp.Op, func()) {
			c, err := h.claim(h.ctx, op, h.u(1), h.u(10))
			return op, func() {
				h.status(6, "Claim", "repeated by the holder before keep is over", c, err, oncehttp.ClaimAcquired)
			}
		})
	}},
	{"a record made an orphan by Renew lasts for keep", 6, func(h *harness) {
		h.lasts(func(op oncehttp.Op) (oncehttp.Op, func()) {
			err := h.renew(h.ctx, op, 0)
			return op, func() {
				h.must(6, err, nil, "Renew with a lease of 0 by the holder before keep is over")
			}
		})
	}},
	{"an orphaned record vanishes", 6, func(h *harness) {
		h.vanishes(h.u(1), h.u(2), h.u(5))
	}},
	{"a record whose lease is longer than its keep vanishes", 6, func(h *harness) {
		h.vanishes(h.u(3), h.u(1), h.u(6))
	}},
	{"Claims by others do not keep an orphaned record for ever", 6, func(h *harness) {
		h.mustClaim(6, h.op(h.key()), h.u(1), h.u(4), oncehttp.ClaimAcquired, "of a free key")
		for range 12 {
			h.pass(h.u(1))
			c, err := h.claim(h.ctx, h.op(h.key()), h.u(1), h.u(4))
			if err != nil {
				h.broken(6, "Claim: got error %v", show(err))
			}
			if c.Status == oncehttp.ClaimAcquired {
				return
			}
		}
		h.broken(6, "an orphaned record with a keep of %v still exists after %v in which others asked for it", h.u(4), h.u(12))
	}},
	{"a repeated Claim starts the lease anew", 2, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(2, op, h.u(4), h.long(), oncehttp.ClaimAcquired, "of a free key")
		h.pass(h.u(3))
		at := h.now()
		h.mustClaim(2, op, h.u(4), h.long(), oncehttp.ClaimAcquired, "repeated by the holder")
		h.pass(h.u(2))
		c, err := h.claim(h.ctx, h.op(h.key()), h.u(4), h.long())
		h.before(at + h.u(4))
		h.status(2, "Claim", "within the lease of the repeated Claim", c, err, oncehttp.ClaimRunning)
	}},
	{"Renew extends the lease from now", 5, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(5, op, h.u(4), h.long(), oncehttp.ClaimAcquired, "of a free key")
		for range 3 {
			h.pass(h.u(2))
			at := h.now()
			h.must(5, h.renew(h.ctx, op, h.u(4)), nil, "Renew by the holder")
			h.pass(h.u(1))
			c, err := h.claim(h.ctx, h.op(h.key()), h.u(4), h.long())
			h.before(at + h.u(4))
			h.status(5, "Claim", "within the renewed lease", c, err, oncehttp.ClaimRunning)
		}
		h.passLease(h.u(5))
		h.mustClaim(5, h.op(h.key()), h.u(4), h.long(), oncehttp.ClaimOrphaned, "after the renewed lease lapsed")
	}},
	{"a Renew may shorten the lease", 5, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(5, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		h.must(5, h.renew(h.ctx, op, h.u(1)), nil, "Renew by the holder")
		h.passLease(h.u(3))
		h.mustClaim(5, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimOrphaned, "after the renewed lease lapsed")
	}},
	{"Left is what is left", 7, func(h *harness) {
		op := h.op(h.key())
		left := func(what string, want time.Duration, since time.Duration, lease, keep time.Duration) {
			c, err := h.claim(h.ctx, h.op(h.key()), lease, keep)
			h.before(since + want)
			if err != nil {
				h.broken(7, "Claim: got error %v", show(err))
			}
			// No more time has passed on the store's clock than on the case's.
			least, most := want-(h.now()-since)-h.unit/10, want+h.unit/10
			if c.Left < least || c.Left > most {
				h.broken(7, "Left of a %s record: got %v, want between %v and %v", what, c.Left, least, most)
			}
		}
		at := h.now()
		h.mustClaim(7, op, h.u(50), h.u(70), oncehttp.ClaimAcquired, "of a free key")
		left("running", h.u(50), at, h.u(30), h.u(20))
		renewed := h.now()
		err := h.renew(h.ctx, op, 0)
		h.before(at + h.u(70))
		h.must(7, err, nil, "Renew by the holder")
		left("orphaned", h.u(70), renewed, h.u(30), h.u(20))
		at = h.now()
		err = h.complete(h.ctx, op, nil, nil, h.u(90))
		h.before(renewed + h.u(70))
		h.must(7, err, nil, "Complete by the holder")
		left("done", h.u(90), at, h.u(30), h.u(20))
		h.pass(h.u(10))
		left("done", h.u(90), at, h.u(30), h.u(20))
	}},
	{"the shortest durations are not rounded to none", 7, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(7, op, 1, h.long(), oncehttp.ClaimAcquired, "with a lease of 1ns")
		h.passLease(h.u(1))
		h.mustClaim(7, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimOrphaned, "after a lease of 1ns lapsed")
		h.must(7, h.renew(h.ctx, op, 1), nil, "Renew with a lease of 1ns")
		h.passLease(h.u(1))
		h.mustClaim(7, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimOrphaned, "after a lease of 1ns lapsed")
		h.must(7, h.complete(h.ctx, op, nil, nil, 1), nil, "Complete with a keep of 1ns")
		h.pass(h.u(1))
		h.mustClaim(7, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimAcquired, "after a keep of 1ns was over")
	}},
	{"a century does not overflow", 7, func(h *harness) {
		const century = 100 * 365 * 24 * time.Hour
		op := h.op(h.key())
		h.mustClaim(7, op, century, century, oncehttp.ClaimAcquired, "with a lease of a hundred years")
		c := h.mustClaim(7, h.op(h.key()), century, century, oncehttp.ClaimRunning, "within a lease of a hundred years")
		if c.Left < century/2 || c.Left > century+h.unit {
			h.broken(7, "Left of a lease of %v: got %v", century, c.Left)
		}
		h.must(7, h.renew(h.ctx, op, century), nil, "Renew with a lease of a hundred years")
		h.must(7, h.complete(h.ctx, op, nil, nil, century), nil, "Complete with a keep of a hundred years")
		h.mustClaim(7, h.op(h.key()), century, century, oncehttp.ClaimDone, "within a keep of a hundred years")
	}},
	{"the longest durations are as long as can be", 7, func(h *harness) {
		const longest time.Duration = math.MaxInt64
		op := h.op(h.key())
		h.pass(h.u(1))
		h.mustClaim(7, op, longest, longest, oncehttp.ClaimAcquired, "with the longest lease there is")
		c := h.mustClaim(7, h.op(h.key()), longest, longest, oncehttp.ClaimRunning, "within the longest lease there is")
		if c.Left <= 0 {
			h.broken(7, "Left of the longest lease there is: got %v", c.Left)
		}
		h.must(7, h.renew(h.ctx, op, longest), nil, "Renew with the longest lease there is")
		h.must(7, h.complete(h.ctx, op, nil, nil, longest), nil, "Complete with the longest keep there is")
		h.mustClaim(7, h.op(h.key()), longest, longest, oncehttp.ClaimDone, "within the longest keep there is")
	}},
}

// lasts checks that an orphan is there for keep after act, which returns who holds
// it then, and what judges how act itself went once it is known not to be late.
func (h *harness) lasts(act func(oncehttp.Op) (holder oncehttp.Op, judge func())) {
	op := h.op(h.key())
	at := h.now()
	h.mustClaim(6, op, h.u(1), h.u(10), oncehttp.ClaimAcquired, "of a free key")
	h.pass(h.u(6))
	acted := h.now()
	op, judge := act(op)
	h.before(at + h.u(10)) // or the record may have been gone before it was acted on
	judge()
	h.pass(h.u(6))
	c, err := h.claim(h.ctx, h.op(h.key()), h.u(1), h.u(10))
	h.before(acted + h.u(10))
	h.status(6, "Claim", "within keep of what was done last", c, err, oncehttp.ClaimOrphaned)
	err = h.complete(h.ctx, op, nil, nil, h.long())
	h.before(acted + h.u(10))
	h.must(6, err, nil, "Complete by the holder within keep of what was done last")
}

// vanishes expects a claim to leave a free key behind after a time.
func (h *harness) vanishes(lease, keep, after time.Duration) {
	op := h.op(h.key())
	h.mustClaim(6, op, lease, keep, oncehttp.ClaimAcquired, "of a free key")
	h.pass(after)
	h.must(6, h.renew(h.ctx, op, h.long()), lost, "Renew by the holder after lease and keep were over")
	h.must(6, h.complete(h.ctx, op, nil, nil, h.long()), lost, "Complete by the holder after lease and keep were over")
	next := h.op(h.key())
	c := h.mustClaim(6, next, h.long(), h.long(), oncehttp.ClaimAcquired, "after lease and keep were over")
	h.told(6, "Claim after lease and keep were over", c, &model{first: next, holders: 1}, h.long(), h.long())
}

var contextCases = []kase{
	{"a record outlives the contexts of its calls", 8, func(h *harness) {
		op := h.op(h.key())
		ctx, cancel := context.WithCancel(h.ctx)
		c, err := h.claim(ctx, op, h.long(), h.long())
		h.status(8, "Claim", "of a free key", c, err, oncehttp.ClaimAcquired)
		cancel()
		h.pass(h.u(1))
		m := &model{state: running, first: op, holder: op, holders: 1}
		h.look(8, "after the context of Claim was cancelled", m)
		m.state, m.head, m.body = done, []byte("200"), []byte("body")
		ctx, cancel = context.WithCancel(h.ctx)
		h.must(8, h.complete(ctx, op, m.head, m.body, h.long()), nil, "Complete by the holder")
		cancel()
		h.pass(h.u(1))
		h.look(8, "after the context of Complete was cancelled", m)
	}},
	{"a context cancelled before Claim leaves all or nothing", 8, func(h *harness) {
		h.cancelled(claim, true)
	}},
	{"a context cancelled before TakeOver leaves all or nothing", 8, func(h *harness) {
		h.cancelled(takeOver, true)
	}},
	{"a context cancelled before Renew leaves all or nothing", 8, func(h *harness) {
		h.cancelled(renew, true)
	}},
	{"a context cancelled before Complete leaves all or nothing", 8, func(h *harness) {
		h.cancelled(complete, true)
	}},
	{"a context cancelled before Release leaves all or nothing", 8, func(h *harness) {
		h.cancelled(release, true)
	}},
	{"a context cancelled during Claim leaves all or nothing", 8, func(h *harness) {
		h.cancelled(claim, false)
	}},
	{"a context cancelled during TakeOver leaves all or nothing", 8, func(h *harness) {
		h.cancelled(takeOver, false)
	}},
	{"a context cancelled during Renew leaves all or nothing", 8, func(h *harness) {
		h.cancelled(renew, false)
	}},
	{"a context cancelled during Complete leaves all or nothing", 8, func(h *harness) {
		h.cancelled(complete, false)
	}},
	{"a context cancelled during Release leaves all or nothing", 8, func(h *harness) {
		h.cancelled(release, false)
	}},
}

// cancelled calls a method with a context that ends, and checks that what it
// left behind is what was before or what should come of the call.
func (h *harness) cancelled(m method, early bool) {
	for i := range 8 {
		h.keys++
		from := running
		switch m {
		case claim:
			from = free
		case takeOver, renew:
			from = orphaned
		}
		at, op := h.reach(from, false)
		if m == takeOver {
			op = h.op(h.key())
		}
		ctx, cancel := context.WithCancel(h.ctx)
		var started atomic.Bool
		var wg sync.WaitGroup
		if early {
			cancel()
		} else {
			wg.Go(func() {
				for n := 0; !started.Load() || n < i*i*i; n++ { // from at once to after the call
				}
				cancel()
			})
		}
		started.Store(true)
		var err error
		var c oncehttp.Claim
		switch m {
		case claim:
			c, err = h.claim(ctx, op, h.long(), h.long())
		case takeOver:
			c, err = h.takeOver(ctx, op, h.long(), h.long())
		case renew:
			err = h.renew(ctx, op, h.long())
		case complete:
			err = h.complete(ctx, op, []byte("200"), []byte("body"), h.long())
		case release:
			err = h.release(ctx, op)
		}
		wg.Wait()
		cancel()

		all := *at
		switch m {
		case claim:
			all = model{state: running, first: op, holder: op, holders: 1}
		case takeOver:
			all.state, all.holder, all.holders = running, op, 2
		case renew:
			all.state = running
		case complete:
			all.state, all.head, all.body = done, []byte("200"), []byte("body")
		case release:
			all = model{}
		}
		when := fmt.Sprintf("after %v with a context that was cancelled", m)
		if err == nil {
			if (m == claim || m == takeOver) && c.Status != oncehttp.ClaimAcquired {
				h.broken(8, "%v with a context that was cancelled: got %v and no error", m, c.Status)
			}
			h.look(8, when+" and returned no error", &all)
			continue
		}
		if errors.Is(err, oncehttp.ErrClaimLost) || errors.Is(err, oncehttp.ErrFull) {
			h.broken(8, "%v with a context that was cancelled: got error %v", m, show(err))
		}
		if !early {
			h.pass(h.u(1)) // a server may finish what its client has given up
		}
		h.mayBe(8, when, at, &all)
	}
}

// mayBe finds out which of some states a key is in, and checks that it is wholly
// in that one.
func (h *harness) mayBe(r rule, when string, either ...*model) {
	stranger := h.op(h.key())
	c, err := h.claim(h.ctx, stranger, h.long(), h.long())
	if err != nil {
		h.broken(r, "Claim %s: got error %v", when, show(err))
	}
	if c.Status == oncehttp.ClaimAcquired {
		h.must(r, h.release(h.ctx, stranger), nil, "%s: Claim and Release by a stranger", when)
	}
	for _, m := range either {
		if c.Status == m.state.status() {
			h.look(r, when, m)
			return
		}
	}
	h.broken(r, "%s: Claim by a stranger got %v, which is neither what was before nor what should be after", when, c.Status)
}

var byteCases = []kase{
	{"keys are compared byte by byte", 8, func(h *harness) {
		keys := []string{
			"a", "A", "b", "a ", " a", "a\x00", "a\x00b", "\x00", "\x00\x00", "\xff", "\xfe", "a\n", "\t",
			"é", "e\u0301", "%", "_", "a%", "*", "a*", "[a]", "{a}", "'", "''", `"`, `\`, `\\`, "a:b", "a/b", "{a}:b",
			"0", "00", "1e0", "1", "1.0", "null", "None", "NULL", "nil", "true", "\u2028", "\U0001F4B8",
			string(bytes.Repeat([]byte("k"), 1024)), string(bytes.Repeat([]byte("k"), 1023)),
		}
		models := make([]model, len(keys))
		for i, key := range keys {
			op := h.op(key)
			c := h.mustClaim(8, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of the free key "+brief([]byte(key)))
			models[i] = model{state: done, first: op, holder: op, holders: 1, head: []byte("head of " + key), body: []byte("body of " + key)}
			h.told(8, "Claim of the free key "+brief([]byte(key)), c, &models[i], h.long(), h.long())
		}
		for i, key := range keys {
			m := &models[i]
			h.must(8, h.complete(h.ctx, m.holder, m.head, m.body, h.long()), nil, "Complete of the key %s", brief([]byte(key)))
		}
		for i, key := range keys {
			when := "of the done key " + brief([]byte(key))
			c := h.mustClaim(8, h.op(key), h.long(), h.long(), oncehttp.ClaimDone, when)
			h.told(8, "Claim "+when, c, &models[i], h.long(), h.long())
		}
	}},
	{"heads and bodies come back byte by byte", 8, func(h *harness) {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		for _, b := range []struct{ head, body []byte }{
			{nil, nil},
			{[]byte{}, []byte{}},
			{every, nil},
			{nil, every},
			{every, every},
			{[]byte("\x00"), []byte("\xff\xfe")},
			{[]byte("null"), []byte("{}")},
			{bytes.Repeat(every, 16), bytes.Repeat(every, 256)}, // 4 and 64 KiB
		} {
			h.keys++
			m, _ := h.reach(running, false)
			h.must(8, h.complete(h.ctx, m.holder, b.head, b.body, h.long()), nil, "Complete by the holder")
			m.state, m.head, m.body = done, b.head, b.body
			h.look(8, "after Complete", m)
		}
	}},
	{"a body of 1 MiB comes back, or is dropped and said to be", 8, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(8, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		h.must(8, h.complete(h.ctx, op, []byte("200"), body, h.long()), nil, "Complete with a body of 1 MiB")
		c := h.mustClaim(8, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimDone, "of a done key")
		switch {
		case string(c.Head) != "200":
			h.broken(8, "got head %s, want %q", brief(c.Head), "200")
		case c.BodyDropped && c.Body != nil:
			h.broken(8, "a dropped body is not nil")
		case !c.BodyDropped && !bytes.Equal(c.Body, body):
			h.broken(8, "got body %s, want 1 MiB", brief(c.Body))
		}
	}},
	{"the store keeps copies of the bytes it is given", 8, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(8, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		head, body := []byte("head"), []byte("body")
		h.must(8, h.complete(h.ctx, op, head, body, h.long()), nil, "Complete by the holder")
		copy(head, "XXXX")
		copy(body, "XXXX")
		m := &model{state: done, first: op, holder: op, holders: 1, head: []byte("head"), body: []byte("body")}
		h.look(8, "after the caller used its slices for something else", m)
	}},
}

var argumentCases = []kase{
	{"arguments that make no sense are an error and change nothing", arguments, func(h *harness) {
		m, _ := h.reach(running, false)
		op, fresh := m.holder, h.op("another key")
		noKey, noToken := fresh, fresh
		noKey.Key, noToken.Token = "", ""
		long := h.long()
		for _, call := range []struct {
			name string
			do   func() error
		}{
			{"Claim without a key", func() error { _, err := h.claim(h.ctx, noKey, long, long); return err }},
			{"Claim without a token", func() error { _, err := h.claim(h.ctx, noToken, long, long); return err }},
			{"Claim with a lease of 0", func() error { _, err := h.claim(h.ctx, fresh, 0, long); return err }},
			{"Claim with a negative lease", func() error { _, err := h.claim(h.ctx, fresh, -1, long); return err }},
			{"Claim with a keep of 0", func() error { _, err := h.claim(h.ctx, fresh, long, 0); return err }},
			{"Claim with a negative keep", func() error { _, err := h.claim(h.ctx, fresh, long, -1); return err }},
			{"TakeOver without a key", func() error { _, err := h.takeOver(h.ctx, noKey, long, long); return err }},
			{"TakeOver without a token", func() error { _, err := h.takeOver(h.ctx, noToken, long, long); return err }},
			{"TakeOver with a lease of 0", func() error { _, err := h.takeOver(h.ctx, fresh, 0, long); return err }},
			{"TakeOver with a keep of 0", func() error { _, err := h.takeOver(h.ctx, fresh, long, 0); return err }},
			{"Renew without a token", func() error { return h.renew(h.ctx, oncehttp.Op{Key: op.Key}, long) }},
			{"Renew with a negative lease", func() error { return h.renew(h.ctx, op, -1) }},
			{"Complete without a token", func() error { return h.complete(h.ctx, oncehttp.Op{Key: op.Key}, nil, nil, long) }},
			{"Complete with a keep of 0", func() error { return h.complete(h.ctx, op, nil, nil, 0) }},
			{"Complete with a negative keep", func() error { return h.complete(h.ctx, op, nil, nil, -1) }},
			{"Release without a key", func() error { return h.release(h.ctx, oncehttp.Op{Token: op.Token}) }},
			{"Release without a token", func() error { return h.release(h.ctx, oncehttp.Op{Key: op.Key}) }},
		} {
			if call.do() == nil {
				h.broken(arguments, "%s: got no error", call.name)
			}
			h.look(arguments, "after "+call.name, m)
		}
		h.mustClaim(arguments, fresh, long, long, oncehttp.ClaimAcquired, "of a key that only wrong calls named")
	}},
}

var durableCases = []kase{
	{"a completed record is there after a crash", 9, func(h *harness) {
		m, _ := h.reach(done, false)
		h.crash()
		h.look(9, "after a crash", m)
	}},
	{"a claim is there after a crash", 9, func(h *harness) {
		m, _ := h.reach(running, false)
		h.crash()
		h.look(9, "after a crash", m)
	}},
	{"a takeover is there after a crash", 9, func(h *harness) {
		m, before := h.reach(running, true)
		h.crash()
		h.do(m, step{complete, before, []byte("500"), []byte("late")}, h.long(), h.long())
	}},
	{"a release is there after a crash", 9, func(h *harness) {
		m, _ := h.reach(running, false)
		h.do(m, step{method: release, op: m.holder}, h.long(), h.long())
		h.crash()
		h.look(9, "after a crash", m)
	}},
	{"what was seen to be done is there after a crash", 9, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(9, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		s := h.store
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { // the crash does not wait for it to return, and may make it fail
			h.watch("Complete", func() { s.Complete(h.ctx, op, []byte("200"), nil, h.long()) })
		})
		for give := time.Now().Add(h.patience); ; {
			c, err := h.claim(h.ctx, h.op(h.key()), h.long(), h.long())
			if err != nil {
				h.broken(9, "Claim beside Complete: got error %v", show(err))
			}
			if c.Status == oncehttp.ClaimDone {
				break
			}
			if time.Now().After(give) {
				h.broken(9, "Claim beside Complete: still %v after %v", c.Status, h.patience)
			}
			time.Sleep(time.Millisecond)
		}
		h.crash()
		h.mustClaim(9, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimDone, "after a crash that came when it had been seen to be done")
	}},
}

// crash ends the store and opens it again.
func (h *harness) crash() {
	opened := make(chan oncehttp.Store, 1)
	h.main <- func() { opened <- h.reopen(h.store) }
	select {
	case h.store = <-opened:
	case <-h.ctx.Done(): // Reopen ended the test
		runtime.Goexit()
	}
}
