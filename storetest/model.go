package storetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A model is what a right store knows of one key when no time passes.
type model struct {
	state      state
	first      oncehttp.Op // whose fingerprint and binding count
	holder     oncehttp.Op
	holders    int
	head, body []byte
}

func (m *model) who(op oncehttp.Op) who {
	return who(m.state == free || m.holder.Token != op.Token)
}

// A step is a call as the table knows it.
type step struct {
	method     method
	op         oncehttp.Op
	head, body []byte
}

// do makes a call, checks what came of it, and follows it in the model.
func (h *harness) do(m *model, s step, lease, keep time.Duration) {
	w := m.who(s.op)
	want := table[m.state][w][s.method]
	call := fmt.Sprintf("%v by %v on %s", s.method, w, m.state.record())
	if m.state == free {
		call = fmt.Sprintf("%v on a free key", s.method)
	}
	was := m.state
	var c oncehttp.Claim
	var err error
	switch s.method {
	case claim:
		c, err = h.claim(h.ctx, s.op, lease, keep)
	case takeOver:
		c, err = h.takeOver(h.ctx, s.op, lease, keep)
	case renew:
		err = h.renew(h.ctx, s.op, lease)
	case renew0:
		err = h.renew(h.ctx, s.op, 0)
	case complete:
		err = h.complete(h.ctx, s.op, s.head, s.body, keep)
	case release:
		err = h.release(h.ctx, s.op)
	}
	if want.status == 0 {
		h.must(want.rule, err, want.err, "%s", call)
	} else {
		if err != nil {
			h.broken(want.rule, "%s: got error %v, want %v", call, show(err), want.status)
		}
		if c.Status != want.status {
			h.broken(want.rule, "%s: got %v, want %v", call, c.Status, want.status)
		}
	}
	m.state = want.then
	switch {
	case want.status == oncehttp.ClaimAcquired && was == free:
		*m = model{state: running, first: s.op, holder: s.op, holders: 1}
	case want.status == oncehttp.ClaimAcquired && w == other:
		m.holder = s.op
		m.holders++
	case s.method == complete && want.err == nil && was != done:
		m.head, m.body = s.head, s.body
	case m.state == free:
		*m = model{}
	}
	if want.status != 0 {
		h.told(want.rule, call, c, m, lease, keep)
	}
	h.look(want.rule, "after "+call, m)
}

// told checks everything that a claim says.
func (h *harness) told(r rule, call string, c oncehttp.Claim, m *model, lease, keep time.Duration) {
	switch {
	case c.Fingerprint != m.first.Fingerprint:
		h.broken(r, "%s: the fingerprint is not that of the first claim", call)
	case c.Binding != m.first.Binding:
		h.broken(r, "%s: the binding is not that of the first claim", call)
	case c.Holder != m.holders:
		h.broken(r, "%s: got Holder %d, want %d", call, c.Holder, m.holders)
	}
	most := keep
	switch c.Status {
	case oncehttp.ClaimAcquired, oncehttp.ClaimRunning:
		most = lease
	case oncehttp.ClaimOrphaned:
		most = max(lease, keep)
	}
	if c.Left <= 0 || c.Left > most+h.unit/10 { // a store may round up
		h.broken(7, "%s: got Left %v, want more than 0 and at most %v", call, c.Left, most)
	}
	if c.Status != oncehttp.ClaimDone {
		if len(c.Head) > 0 || len(c.Body) > 0 {
			h.broken(r, "%s: a record that is not done has a head or body", call)
		}
		return
	}
	switch {
	case !bytes.Equal(c.Head, m.head):
		h.broken(r, "%s: got head %s, want %s", call, brief(c.Head), brief(m.head))
	case c.BodyDropped:
		h.broken(r, "%s: a body of %d bytes was dropped from a store that is not under pressure", call, len(m.body))
	case !bytes.Equal(c.Body, m.body):
		h.broken(r, "%s: got body %s, want %s", call, brief(c.Body), brief(m.body))
	}
}

// look checks, by calls that leave it as it is, that a key is as the model says.
func (h *harness) look(r rule, when string, m *model) {
	if m.state == running {
		// Claims that are turned away say nothing of who holds the key.
		h.must(r, h.renew(h.ctx, m.holder, h.long()), nil, "%s: Renew by the holder", when)
	}
	stranger := h.op(h.key())
	c := h.mustClaim(r, stranger, h.long(), h.long(), m.state.status(), when+", by a stranger")
	if m.state == free {
		h.told(r, when+": Claim", c, &model{first: stranger, holders: 1}, h.long(), h.long())
		h.must(r, h.release(h.ctx, stranger), nil, "%s: Claim and Release by a stranger", when)
		return
	}
	h.told(r, when+": Claim", c, m, h.long(), h.long())
}

// key is the one that a case works on.
func (h *harness) key() string { return fmt.Sprintf("refund/A-%d", h.keys) }

func brief(b []byte) string {
	if len(b) > 40 {
		return fmt.Sprintf("%q… (%d bytes)", b[:40], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// reach brings the case's key into a state, and says who holds it. With an
// earlier holder the key was taken over once.
func (h *harness) reach(s state, earlier bool) (m *model, before oncehttp.Op) {
	m = new(model)
	if s == free {
		return m, h.op(h.key())
	}
	before = h.op(h.key())
	h.do(m, step{method: claim, op: before}, h.long(), h.long())
	if earlier {
		h.do(m, step{method: renew0, op: before}, h.long(), h.long())
		h.do(m, step{method: takeOver, op: h.op(h.key())}, h.long(), h.long())
	}
	switch s {
	case orphaned:
		h.do(m, step{method: renew0, op: m.holder}, h.long(), h.long())
	case done:
		h.do(m, step{method: complete, op: m.holder, head: []byte("201"), body: []byte("first")}, h.long(), h.long())
	}
	return m, before
}

// tableCases are the rows of the table, one case each.
func tableCases() []kase {
	var all []kase
	for s := free; s <= done; s++ {
		for _, w := range []who{holder, other} {
			for m := claim; m <= release; m++ {
				row, ok := table[s][w][m]
				if !ok {
					continue
				}
				add := func(name string, earlier bool) {
					all = append(all, kase{name, row.rule, func(h *harness) {
						at, before := h.reach(s, earlier)
						op := at.holder
						switch {
						case w == other && earlier:
							op = before
						case w == other:
							op = h.op(h.key())
						}
						h.do(at, step{m, op, []byte("500"), []byte("second")}, h.long(), h.long())
					}})
				}
				switch {
				case s == free:
					add(fmt.Sprintf("%v on a free key", m), false)
				case w == holder:
					add(fmt.Sprintf("%v by the holder of %s", m, s.record()), false)
				default:
					add(fmt.Sprintf("%v by a stranger on %s", m, s.record()), false)
					add(fmt.Sprintf("%v by an earlier holder of %s", m, s.record()), true)
				}
			}
		}
	}
	return all
}

// walk takes the table's steps in random order: a few callers, each with a token
// of its own until that token has lost, and repeats of everything.
func walk(seed uint64, steps int) func(*harness) {
	return func(h *harness) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m := new(model)
		callers := make([]oncehttp.Op, 3)
		var gone []oncehttp.Op
		for i := range callers {
			callers[i] = h.op(h.key())
		}
		for range steps {
			i := rnd.IntN(len(callers))
			s := step{method: method(rnd.IntN(int(release) + 1)), op: callers[i]}
			if len(gone) > 0 && rnd.IntN(5) == 0 { // a late repeat
				s.op = gone[rnd.IntN(len(gone))]
				s.method = renew + method(rnd.IntN(int(release-renew)+1))
			}
			if m.state == done && rnd.IntN(6) == 0 { // on to another key
				h.keys++
				m, gone = new(model), nil
				for i := range callers {
					callers[i] = h.op(h.key())
				}
				continue
			}
			for range 1 + rnd.IntN(2) {
				s.head = fmt.Appendf(nil, "head %d", rnd.IntN(100))
				s.body = bytes.Repeat([]byte("b"), rnd.IntN(3))
				held := m.holder
				h.do(m, s, h.long(), h.long())
				if held.Token != "" && held.Token != m.holder.Token {
					gone = append(gone, held)
					for i := range callers {
						if callers[i].Token == held.Token {
							callers[i] = h.op(h.key())
						}
					}
				}
			}
		}
	}
}
