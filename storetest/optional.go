package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oncehttp/oncehttp"
)

// has reports whether a case of this rule can be held against a store.
func (s suite) has(store oncehttp.Store, r rule) (ok bool) {
	switch r {
	case waiter:
		_, ok = store.(oncehttp.Waiter)
	case inspector:
		_, ok = store.(oncehttp.Inspector)
	case transactor:
		_, ok = store.(oncehttp.Transactor)
	case refusedCommit:
		_, ok = store.(oncehttp.Transactor)
		ok = ok && s.refuse != nil
	case 9:
		ok = s.reopen != nil
	default:
		ok = true
	}
	return ok
}

var waiterCases = []kase{
	{"Wait is woken by Complete", waiter, func(h *harness) {
		h.wakes("Complete", 1, func(m *model) {
			h.must(4, h.complete(h.ctx, m.holder, nil, nil, h.long()), nil, "Complete by the holder")
		})
	}},
	{"Wait is woken by Release", waiter, func(h *harness) {
		h.wakes("Release", 1, func(m *model) {
			h.must(4, h.release(h.ctx, m.holder), nil, "Release by the holder")
		})
	}},
	{"everyone who waits is woken", waiter, func(h *harness) {
		h.wakes("Complete", crowd, func(m *model) {
			h.must(4, h.complete(h.ctx, m.holder, nil, nil, h.long()), nil, "Complete by the holder")
		})
	}},
	{"Wait for a key that nothing happens to ends with its context", waiter, func(h *harness) {
		m, _ := h.reach(running, false)
		for _, want := range []error{context.Canceled, context.DeadlineExceeded} {
			ctx, cancel := context.WithCancel(h.ctx)
			if want == context.DeadlineExceeded {
				ctx, cancel = context.WithTimeout(h.ctx, settle)
			} else {
				time.AfterFunc(settle, cancel)
			}
			if err := h.waitFor(ctx, h.key(), func() bool { return false }); !errors.Is(err, want) {
				h.broken(waiter, "Wait after its context ended: got error %v, want %v", show(err), want)
			}
			cancel()
		}
		h.look(waiter, "after Wait", m)
	}},
	{"Wait with a context that has ended returns its error", waiter, func(h *harness) {
		h.reach(running, false)
		ctx, cancel := context.WithCancel(h.ctx)
		cancel()
		if err := h.wait(ctx, h.key()); !errors.Is(err, context.Canceled) {
			h.broken(waiter, "Wait with a context that has ended: got error %v, want %v", show(err), context.Canceled)
		}
	}},
	{"Wait for a key that is free, done or orphaned ends with its context at the latest", waiter, func(h *harness) {
		for _, s := range []state{free, done, orphaned} {
			h.keys++
			m, _ := h.reach(s, false)
			ctx, cancel := context.WithTimeout(h.ctx, settle)
			if err := h.wait(ctx, h.key()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				h.broken(waiter, "Wait for a key that is %v: got error %v", s, show(err))
			}
			cancel()
			h.look(waiter, "after Wait", m)
		}
	}},
	{"a Wait that was given up disturbs nobody", waiter, func(h *harness) {
		m, _ := h.reach(running, false)
		h.together(crowd, func(int) {
			ctx, cancel := context.WithTimeout(h.ctx, settle)
			defer cancel()
			h.waitFor(ctx, h.key(), func() bool { return false })
		})
		h.do(m, step{complete, m.holder, []byte("200"), []byte("body")}, h.long(), h.long())
	}},
}

// settle is long enough for a goroutine to be inside a call.
const settle = 50 * time.Millisecond

// wakes checks that those who wait for a running key learn what act does to it.
// A wake-up may be lost, but not every time.
func (h *harness) wakes(what string, n int, act func(*model)) {
	const tries = 5
	lost := 0
	for range tries {
		h.keys++
		m, _ := h.reach(running, false)
		key := h.key()
		var asleep atomic.Int32
		h.together(n+1, func(i int) {
			if i == n {
				time.Sleep(settle)
				act(m)
				return
			}
			ctx, cancel := context.WithTimeout(h.ctx, settle+h.patience/(2*tries))
			defer cancel()
			err := h.waitFor(ctx, key, func() bool {
				c, err := h.claim(h.ctx, h.op(key), h.long(), h.long())
				if err != nil {
					h.broken(waiter, "Claim after Wait: got error %v", show(err))
				}
				if c.Status == oncehttp.ClaimAcquired || c.Status == oncehttp.ClaimDone {
					return true
				}
				return what == "Release" // one of the others was faster
			})
			if err != nil {
				asleep.Add(1)
			}
		})
		if asleep.Load() == 0 {
			return
		}
		lost++
	}
	h.broken(waiter, "%d times out of %d somebody who waited for a running key was not woken by %s", lost, tries, what)
}

// waitFor waits until changed says that the key has changed, or for ctx.
func (h *harness) waitFor(ctx context.Context, key string, changed func() bool) error {
	const many = 1000
	began := time.Now()
	for n, late := 1, 0; ; n++ {
		ended := ctx.Err() != nil
		if err := h.wait(ctx, key); err != nil {
			return err
		}
		if changed() {
			return nil
		}
		if ended {
			late++
		}
		switch {
		case late > 3:
			h.broken(waiter, "Wait for a running key, with a context that has ended, returns nil")
		case n%many == 0 && time.Since(began) < 100*time.Millisecond:
			h.broken(waiter, "Wait does not wait: for a running key it returned nil %d times in %v", many, time.Since(began))
		case n%many == 0:
			began = time.Now()
		}
	}
}

func (h *harness) wait(ctx context.Context, key string) (err error) {
	w := h.store.(oncehttp.Waiter)
	h.watch("Wait", func() { err = w.Wait(ctx, key) })
	return err
}

var inspectorCases = []kase{
	{"List shows every record in key order, without heads and bodies", inspector, func(h *harness) {
		want := h.populate()
		got := h.list(oncehttp.RecordQuery{})
		if len(got) != len(want) {
			h.broken(inspector, "List: got %d records, want %d", len(got), len(want))
		}
		for i := range got {
			h.shown("List", got[i], want[i])
			if got[i].Head != nil || got[i].Body != nil {
				h.broken(inspector, "List: record %q has a head or body", got[i].Key)
			}
		}
	}},
	{"List shows the records of one state", inspector, func(h *harness) {
		all := h.populate()
		for _, s := range []state{running, orphaned, done} {
			var want []model
			for _, m := range all {
				if m.state == s {
					want = append(want, m)
				}
			}
			got := h.list(oncehttp.RecordQuery{Status: s.status()})
			if len(got) != len(want) {
				h.broken(inspector, "List of %v records: got %d, want %d", s, len(got), len(want))
			}
			for i := range got {
				h.shown(fmt.Sprintf("List of %v records", s), got[i], want[i])
			}
		}
	}},
	{"List goes page by page", inspector, func(h *harness) {
		want := h.populate()
		for _, limit := range []int{1, 2, len(want), len(want) + 1} {
			var got []oncehttp.Record
			for q := (oncehttp.RecordQuery{Limit: limit}); ; q.After = got[len(got)-1].Key {
				page := h.list(q)
				if len(page) > limit {
					h.broken(inspector, "List with a Limit of %d: got %d records", limit, len(page))
				}
				if len(page) == 0 || len(got) > len(want) {
					break
				}
				got = append(got, page...)
			}
			if len(got) != len(want) {
				h.broken(inspector, "List in pages of %d: got %d records, want %d", limit, len(got), len(want))
			}
			for i := range got {
				h.shown(fmt.Sprintf("List in pages of %d", limit), got[i], want[i])
			}
		}
	}},
	{"List without a limit shows 100 records", inspector, func(h *harness) {
		for i := range 120 {
			h.mustClaim(inspector, h.op(fmt.Sprintf("k%03d", i)), h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		}
		got := h.list(oncehttp.RecordQuery{})
		if len(got) != 100 || got[0].Key != "k000" || got[99].Key != "k099" {
			h.broken(inspector, "List of the first of 120 records: got %d, want k000 to k099", len(got))
		}
		if got := h.list(oncehttp.RecordQuery{Limit: 1000, After: "k009"}); len(got) != 110 {
			h.broken(inspector, "List of what comes after the tenth of 120 records, with a Limit of 1000: got %d, want 110", len(got))
		}
	}},
	{"List shows the records of a certain age", inspector, func(h *harness) {
		old, young := h.op("z old"), h.op("a young")
		h.mustClaim(inspector, old, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		h.must(5, h.renew(h.ctx, old, 0), nil, "Renew by the holder")
		h.pass(h.u(6))
		h.mustTakeOver(inspector, h.op(old.Key), h.long(), h.long(), oncehttp.ClaimAcquired, "of an orphan")
		at := h.now()
		h.mustClaim(inspector, young, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		got := h.list(oncehttp.RecordQuery{MinAge: h.u(5)})
		h.before(at + h.u(5))
		if len(got) != 1 || got[0].Key != old.Key {
			h.broken(inspector, "List of records older than %v: got %d, want the one first claimed %v ago, though it was taken over since", h.u(5), len(got), h.u(6))
		}
		if got[0].Age < h.u(6)-h.unit/10 || got[0].Age > h.now()+h.unit/10 {
			h.broken(inspector, "Age of a record first claimed %v ago: got %v", h.u(6), got[0].Age)
		}
	}},
	{"List and Show see that a lease has lapsed, and that a record has expired", inspector, func(h *harness) {
		m := h.lapse()
		gone := h.op("gone")
		h.mustClaim(inspector, gone, h.u(1), h.u(1), oncehttp.ClaimAcquired, "of a free key")
		h.pass(h.u(3))
		got := h.list(oncehttp.RecordQuery{Status: oncehttp.ClaimOrphaned})
		if len(got) != 1 || got[0].Key != h.key() {
			h.broken(inspector, "List of orphaned records after a lease lapsed and another record expired: got %d, want 1", len(got))
		}
		h.shown("Show", h.mustShow(h.key()), *m)
		if _, err := h.show(gone.Key); !errors.Is(err, oncehttp.ErrNotFound) {
			h.broken(inspector, "Show of a record that has expired: got error %v, want ErrNotFound", show(err))
		}
	}},
	{"List refuses a query that makes no sense", inspector, func(h *harness) {
		h.populate()
		for _, q := range []oncehttp.RecordQuery{
			{Limit: -1}, {Limit: 1001}, {MinAge: -1}, {Status: -1}, {Status: oncehttp.ClaimAcquired}, {Status: 99},
		} {
			i := h.store.(oncehttp.Inspector)
			var err error
			h.watch("List", func() { _, err = i.List(h.ctx, q) })
			if err == nil {
				h.broken(inspector, "List with %+v: got no error", q)
			}
		}
	}},
	{"Show shows a record whole", inspector, func(h *harness) {
		for _, m := range h.populate() {
			got := h.mustShow(m.first.Key)
			h.shown("Show", got, m)
			if !bytes.Equal(got.Head, m.head) || !bytes.Equal(got.Body, m.body) {
				h.broken(inspector, "Show of %s: got head %s and body %s, want %s and %s", m.state.record(),
					brief(got.Head), brief(got.Body), brief(m.head), brief(m.body))
			}
		}
		if _, err := h.show("nobody's"); !errors.Is(err, oncehttp.ErrNotFound) {
			h.broken(inspector, "Show of a free key: got error %v, want ErrNotFound", show(err))
		}
	}},
	{"Resolve as applied makes an orphan done, and its holder has lost it", inspector, func(h *harness) {
		m := h.lapse()
		late := m.holder
		h.mustResolve(oncehttp.Resolution{Applied: true, Head: []byte("200"), Body: []byte("by hand"), Keep: h.long()}, nil)
		m.state, m.holder, m.head, m.body = done, oncehttp.Op{}, []byte("200"), []byte("by hand")
		h.look(inspector, "after Resolve", m)
		for _, method := range []method{renew, renew0, complete, release, claim, takeOver} {
			h.do(m, step{method, late, []byte("500"), []byte("late")}, h.long(), h.long())
		}
	}},
	{"Resolve as not applied frees an orphan, and its holder has lost it", inspector, func(h *harness) {
		m := h.lapse()
		late := m.holder
		h.mustResolve(oncehttp.Resolution{}, nil)
		*m = model{}
		h.look(inspector, "after Resolve", m)
		for _, method := range []method{renew, complete, release} {
			h.do(m, step{method, late, []byte("500"), []byte("late")}, h.long(), h.long())
		}
		h.do(m, step{method: claim, op: h.op(h.key())}, h.long(), h.long())
		for _, method := range []method{renew, complete, release} {
			h.do(m, step{method, late, []byte("500"), []byte("late")}, h.long(), h.long())
		}
	}},
	{"Resolve keeps for Keep, or for as long as the holder asked", inspector, func(h *harness) {
		for _, key := range []string{"short", "long"} {
			op := h.op(key)
			h.mustClaim(inspector, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
			h.must(5, h.renew(h.ctx, op, 0), nil, "Renew by the holder")
		}
		h.resolve("short", oncehttp.Resolution{Applied: true, Keep: h.u(1)}, nil)
		h.resolve("long", oncehttp.Resolution{Applied: true}, nil)
		h.pass(h.u(3))
		h.mustClaim(inspector, h.op("short"), h.long(), h.long(), oncehttp.ClaimAcquired, "after the Keep of Resolve was over")
		h.mustClaim(inspector, h.op("long"), h.long(), h.long(), oncehttp.ClaimDone, "within the keep that the holder asked for")
	}},
	{"Resolve refuses what is not an orphan", inspector, func(h *harness) {
		for _, s := range []state{free, running, done} {
			h.keys++
			m, _ := h.reach(s, false)
			want := oncehttp.ErrNotOrphaned
			if s == free {
				want = oncehttp.ErrNotFound
			}
			for _, applied := range []bool{true, false} {
				h.mustResolve(oncehttp.Resolution{Applied: applied, Head: []byte("200"), Keep: h.long()}, want)
				h.look(inspector, "after Resolve was refused", m)
			}
		}
	}},
	{"Resolve and Complete of an orphan: one of them wins", inspector, func(h *harness) {
		for range 10 {
			h.keys++
			m, _ := h.reach(orphaned, false)
			i := h.store.(oncehttp.Inspector)
			var resolved, completed error
			h.together(2, func(n int) {
				if n == 0 {
					completed = h.complete(h.ctx, m.holder, []byte("200"), nil, h.long())
					return
				}
				h.watch("Resolve", func() {
					resolved = i.Resolve(h.ctx, h.key(), oncehttp.Resolution{Applied: true, Head: []byte("by hand"), Keep: h.long()})
				})
			})
			m.state = done
			switch {
			case resolved == nil && is(completed, lost):
				m.head = []byte("by hand")
			case completed == nil && is(resolved, oncehttp.ErrNotOrphaned):
				m.head = []byte("200")
			default:
				h.broken(inspector, "Resolve: %v; Complete by the holder beside it: %v", show(resolved), show(completed))
			}
			h.look(inspector, "after Resolve and Complete", m)
		}
	}},
	{"Purge frees a key in any state but running", inspector, func(h *harness) {
		for _, s := range []state{free, running, orphaned, done} {
			h.keys++
			m, _ := h.reach(s, false)
			late := m.holder
			var want error
			switch s {
			case free:
				want = oncehttp.ErrNotFound
			case running:
				want = oncehttp.ErrNotPurgeable
			default:
				*m = model{}
			}
			i := h.store.(oncehttp.Inspector)
			var err error
			h.watch("Purge", func() { err = i.Purge(h.ctx, h.key()) })
			h.must(inspector, err, want, "Purge of a key that is %v", s)
			h.look(inspector, "after Purge", m)
			if s == orphaned || s == done {
				h.do(m, step{complete, late, []byte("500"), nil}, h.long(), h.long())
			}
		}
	}},
}

// populate makes records in every state and returns them in key order.
func (h *harness) populate() []model {
	keys := []string{"", "A", "B", "a", "b", "b\x00", "b!", "é", "\xff"}[1:]
	all := make([]model, len(keys))
	for _, i := range []int{3, 0, 7, 5, 1, 6, 2, 4} {
		op := h.op(keys[i])
		h.mustClaim(inspector, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		m := model{state: state(i%3) + running, first: op, holder: op, holders: 1}
		switch m.state {
		case orphaned:
			h.must(5, h.renew(h.ctx, op, 0), nil, "Renew by the holder")
		case done:
			m.head, m.body = []byte("head of "+op.Key), []byte("body of "+op.Key)
			h.must(4, h.complete(h.ctx, op, m.head, m.body, h.long()), nil, "Complete by the holder")
		}
		all[i] = m
	}
	return all
}

func (h *harness) list(q oncehttp.RecordQuery) (records []oncehttp.Record) {
	i := h.store.(oncehttp.Inspector)
	var err error
	h.watch("List", func() { records, err = i.List(h.ctx, q) })
	if err != nil {
		h.broken(inspector, "List with %+v: got error %v", q, show(err))
	}
	return records
}

func (h *harness) show(key string) (r oncehttp.Record, err error) {
	i := h.store.(oncehttp.Inspector)
	h.watch("Show", func() { r, err = i.Show(h.ctx, key) })
	return r, err
}

func (h *harness) mustShow(key string) oncehttp.Record {
	r, err := h.show(key)
	if err != nil {
		h.broken(inspector, "Show: got error %v", show(err))
	}
	return r
}

func (h *harness) mustResolve(r oncehttp.Resolution, want error) { h.resolve(h.key(), r, want) }

func (h *harness) resolve(key string, r oncehttp.Resolution, want error) {
	i := h.store.(oncehttp.Inspector)
	var err error
	h.watch("Resolve", func() { err = i.Resolve(h.ctx, key, r) })
	h.must(inspector, err, want, "Resolve with Applied %v", r.Applied)
}

// shown checks a record that an operator sees.
func (h *harness) shown(call string, got oncehttp.Record, want model) {
	switch {
	case got.Key != want.first.Key:
		h.broken(inspector, "%s: got key %q, want %q", call, got.Key, want.first.Key)
	case got.Status != want.state.status():
		h.broken(inspector, "%s: got status %v, want %v", call, got.Status, want.state)
	case got.Fingerprint != want.first.Fingerprint || got.Binding != want.first.Binding:
		h.broken(inspector, "%s: fingerprint or binding are not those of the first claim", call)
	case got.Holder != want.holders:
		h.broken(inspector, "%s: got Holder %d, want %d", call, got.Holder, want.holders)
	case got.Left <= 0 || got.Left > h.long()+h.unit/10:
		h.broken(inspector, "%s: got Left %v, want more than 0 and at most %v", call, got.Left, h.long())
	case got.Age < 0 || got.Age > h.now()+h.unit/10:
		h.broken(inspector, "%s: got Age %v, want at most %v", call, got.Age, h.now())
	case got.BodyDropped:
		h.broken(inspector, "%s: a body was dropped from a store that is not under pressure", call)
	}
}

var transactorCases = []kase{
	{"Transact records what work returns", transactor, func(h *harness) {
		for _, s := range []state{running, orphaned} {
			h.keys++
			m, _ := h.reach(s, false)
			ran, err := h.transact(h.ctx, m.holder, []byte("201"), []byte("committed"), oncehttp.TxCommit)
			h.must(transactor, err, nil, "Transact by the holder of %s", s.record())
			if ran != 1 {
				h.broken(transactor, "work ran %d times, want 1", ran)
			}
			m.state, m.head, m.body = done, []byte("201"), []byte("committed")
			h.look(transactor, "after Transact", m)
		}
	}},
	{"Transact keeps for keep", transactor, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(transactor, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		t := h.store.(oncehttp.Transactor)
		var err error
		h.watch("Transact", func() {
			err = t.Transact(h.ctx, op, h.u(1), func(context.Context) (head, body []byte, end oncehttp.TxEnd) { return nil, nil, oncehttp.TxCommit })
		})
		h.must(transactor, err, nil, "Transact by the holder")
		h.pass(h.u(3))
		h.mustClaim(transactor, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimAcquired, "after the keep of Transact was over")
	}},
	{"Transact frees the key when work does not commit", transactor, func(h *harness) {
		for _, end := range []oncehttp.TxEnd{oncehttp.TxRollback, -1, 99} {
			h.keys++
			m, _ := h.reach(running, false)
			_, err := h.transact(h.ctx, m.holder, []byte("500"), []byte("rolled back"), end)
			h.must(transactor, err, nil, "Transact of work that does not commit")
			h.look(transactor, "after work did not commit", &model{})
		}
	}},
	{"Transact makes an orphan of the key when work cannot tell", transactor, func(h *harness) {
		for _, s := range []state{running, orphaned} {
			h.keys++
			m, _ := h.reach(s, false)
			ran, err := h.transact(h.ctx, m.holder, []byte("502"), []byte("no answer"), oncehttp.TxUnknown)
			h.must(transactor, err, nil, "Transact of work that cannot tell, by the holder of %s", s.record())
			if ran != 1 {
				h.broken(transactor, "work that cannot tell ran %d times, want 1", ran)
			}
			m.state = orphaned
			h.look(transactor, "after work that cannot tell", m)
			h.do(m, step{method: takeOver, op: h.op(h.key())}, h.long(), h.long())
		}
	}},
	{"Transact keeps an orphan for as long as its claim asked", transactor, func(h *harness) {
		op := h.op(h.key())
		h.mustClaim(transactor, op, h.long(), h.long(), oncehttp.ClaimAcquired, "of a free key")
		t := h.store.(oncehttp.Transactor)
		var err error
		h.watch("Transact", func() {
			err = t.Transact(h.ctx, op, h.u(1), func(context.Context) (head, body []byte, end oncehttp.TxEnd) { return nil, nil, oncehttp.TxUnknown })
		})
		h.must(transactor, err, nil, "Transact by the holder")
		h.pass(h.u(3))
		h.mustClaim(transactor, h.op(h.key()), h.long(), h.long(), oncehttp.ClaimOrphaned, "within the keep of its claim")
	}},
	{"Transact says when what it was to commit was rolled back, and its token can free the key", refusedCommit, func(h *harness) {
		for range 3 {
			h.keys++
			m, _ := h.reach(running, false)
			t := h.store.(oncehttp.Transactor)
			var err error
			h.watch("Transact", func() {
				err = t.Transact(h.ctx, m.holder, h.long(), func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
					h.refuse(ctx)
					return []byte("201"), []byte("never"), oncehttp.TxCommit
				})
			})
			h.must(transactor, err, oncehttp.ErrRolledBack, "Transact of work whose commit is refused")
			h.rolledBack(m)
		}
	}},
	{"Transact frees the key when work panics, and lets the panic through", transactor, func(h *harness) {
		m, _ := h.reach(running, false)
		t := h.store.(oncehttp.Transactor)
		var p any
		h.watch("Transact", func() {
			defer func() { p = recover() }()
			t.Transact(h.ctx, m.holder, h.long(), func(context.Context) (head, body []byte, end oncehttp.TxEnd) { panic("work") })
		})
		if p != "work" {
			h.broken(transactor, "Transact of work that panics: recovered %v, want what work panicked with", p)
		}
		h.look(transactor, "after work panicked", &model{})
	}},
	{"Transact makes an orphan again of a key that was taken over when work panics", transactor, func(h *harness) {
		m, _ := h.reach(running, true)
		t := h.store.(oncehttp.Transactor)
		h.watch("Transact", func() {
			defer func() { recover() }()
			t.Transact(h.ctx, m.holder, h.long(), func(context.Context) (head, body []byte, end oncehttp.TxEnd) { panic("work") })
		})
		m.state = orphaned
		h.look(transactor, "after work on a key that was taken over panicked", m)
	}},
	{"Transact does not free a key that was taken over when its commit is refused", refusedCommit, func(h *harness) {
		m, _ := h.reach(running, true)
		t := h.store.(oncehttp.Transactor)
		var err error
		h.watch("Transact", func() {
			err = t.Transact(h.ctx, m.holder, h.long(), func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
				h.refuse(ctx)
				return []byte("201"), []byte("never"), oncehttp.TxCommit
			})
		})
		h.must(transactor, err, oncehttp.ErrRolledBack, "Transact of work whose commit is refused")
		c, err := h.claim(h.ctx, h.op(h.key()), h.long(), h.long())
		if err != nil || c.Status == oncehttp.ClaimAcquired {
			h.broken(transactor, "Claim after the refused commit of a key that was taken over: got %v and error %v, want orphaned or running", c.Status, show(err))
		}
		h.must(transactor, h.renew(h.ctx, m.holder, 0), nil, "Renew with a lease of 0 after ErrRolledBack")
		m.state = orphaned
		h.look(transactor, "after a refused commit of a key that was taken over", m)
	}},
	{"Transact does not start work whose claim is lost", transactor, func(h *harness) {
		for _, s := range []state{free, running, orphaned, done} {
			for _, earlier := range []bool{false, s != free} {
				h.keys++
				m, op := h.reach(s, earlier)
				if !earlier {
					op = h.op(h.key())
				}
				ran, err := h.transact(h.ctx, op, []byte("201"), nil, oncehttp.TxCommit)
				h.must(transactor, err, lost, "Transact by a token that does not hold a key that is %v", s)
				if ran > 0 {
					h.broken(transactor, "work ran though another token holds the key, or none (%v)", s)
				}
				h.look(transactor, "after Transact was refused", m)
			}
		}
	}},
	{"Transact does not run work that has been completed", transactor, func(h *harness) {
		m, _ := h.reach(done, false)
		ran, err := h.transact(h.ctx, m.holder, []byte("201"), []byte("second"), oncehttp.TxCommit)
		h.must(transactor, err, lost, "Transact by the token that completed")
		if ran > 0 {
			h.broken(transactor, "work ran though its token had completed it")
		}
		h.look(transactor, "after Transact of completed work", m)
	}},
	{"Transact with a context that is cancelled leaves all or nothing", transactor, func(h *harness) {
		for _, early := range []bool{true, false} {
			h.keys++
			m, _ := h.reach(running, false)
			all := *m
			all.state, all.head, all.body = done, []byte("201"), []byte("body")
			ctx, cancel := context.WithCancel(h.ctx)
			if early {
				cancel()
			}
			t := h.store.(oncehttp.Transactor)
			var err error
			h.watch("Transact", func() {
				err = t.Transact(ctx, m.holder, h.long(), func(context.Context) (head, body []byte, end oncehttp.TxEnd) {
					cancel()
					return all.head, all.body, oncehttp.TxCommit
				})
			})
			cancel()
			switch {
			case err == nil:
				h.look(transactor, "after Transact", &all)
				continue
			case errors.Is(err, oncehttp.ErrRolledBack):
				h.rolledBack(m)
				continue
			}
			// The key may also have been freed: what work did was rolled back.
			h.mayBe(transactor, "after Transact with a context that was cancelled", m, &all, &model{})
		}
	}},
}

// rolledBack checks what ErrRolledBack promises to the holder of m.
func (h *harness) rolledBack(m *model) {
	h.must(transactor, h.release(h.ctx, m.holder), nil, "Release after ErrRolledBack")
	h.look(transactor, "after ErrRolledBack and a Release", &model{})
}

func (h *harness) transact(ctx context.Context, op oncehttp.Op, head, body []byte, end oncehttp.TxEnd) (ran int32, err error) {
	t := h.store.(oncehttp.Transactor)
	var n atomic.Int32
	h.watch("Transact", func() {
		err = t.Transact(ctx, op, h.long(), func(context.Context) ([]byte, []byte, oncehttp.TxEnd) {
			n.Add(1)
			return head, body, end
		})
	})
	return n.Load(), err
}
