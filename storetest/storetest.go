// Package storetest checks that an [oncehttp.Store] keeps its contract. What it
// finds broken it quotes.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Config{
//			New: func(t *testing.T) oncehttp.Store { return mystore.Open(t.TempDir()) },
//		})
//	}
//
// The contract is printed in docs/store-contract.md.
package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A Config tells [Run] how to make a store and how its time passes. Only New is
// required.
type Config struct {
	// New returns an empty store. It is called once to see what the store can
	// do and then at least once for every case; what one case does must not be
	// seen by the next. t.Cleanup and
	// t.TempDir may be used. The cases of one Run follow one another.
	New func(t *testing.T) oncehttp.Store

	// Reopen, for a durable store, ends the given store as a crash would and
	// returns one that has only what was durable by then. Nil means that the
	// store promises nothing beyond the process, and the cases that need it
	// are left out.
	Reopen func(t *testing.T, s oncehttp.Store) oncehttp.Store

	// RefuseCommit, for a [oncehttp.Transactor], does something in the
	// transaction that ctx carries for which its commit will be refused, for
	// instance a statement that fails, or a row that a deferred constraint
	// forbids. Nil means that the case that needs it is left out.
	RefuseCommit func(ctx context.Context)

	// Advance lets d pass on the store's clock. Nil means time.Sleep, which is
	// right for real clocks and inside a testing/synctest bubble. It is for
	// stores whose clock a test can set.
	Advance func(d time.Duration)

	// Unit is the length that the leases and retentions of the cases are
	// multiples of. Zero means 100ms if Advance is nil and one minute
	// otherwise. A case that was too slow for its units to be told apart is
	// repeated with longer ones.
	Unit time.Duration

	// Patience is the longest that one call of the store may take. Zero means
	// 10s.
	Patience time.Duration
}

// Run checks the nine sentences of the contract, the table of every method in
// every state, and those of the optional capabilities ([oncehttp.Waiter],
// [oncehttp.Inspector], [oncehttp.Transactor]) that the store has.
//
// Each case is a subtest with a store of its own. Inside a bubble of
// testing/synctest, where there are no subtests, the name of the case is part
// of the message instead. A method that does not return fails its case; inside
// a bubble it also makes synctest panic when the bubble ends.
func Run(t *testing.T, c Config) {
	t.Helper()
	switch {
	case c.New == nil:
		t.Fatal("storetest: Config.New is nil")
	case c.Unit < 0:
		t.Fatal("storetest: Config.Unit is negative")
	case c.Patience < 0:
		t.Fatal("storetest: Config.Patience is negative")
	}
	bubble := inBubble(t)
	first := c.New(t)
	s := c.suite(t)
	for _, k := range cases() {
		switch {
		case !s.has(first, k.rule):
		case bubble:
			c.suite(t).run(named{t, k.name}, k)
		default:
			t.Run(k.name, func(t *testing.T) { c.suite(t).run(t, k) })
		}
	}
}

func (c Config) suite(t *testing.T) suite {
	s := suite{
		new:      func() oncehttp.Store { return c.New(t) },
		refuse:   c.RefuseCommit,
		advance:  c.Advance,
		unit:     c.Unit,
		patience: c.Patience,
	}
	if c.Reopen != nil {
		s.reopen = func(old oncehttp.Store) oncehttp.Store { return c.Reopen(t, old) }
	}
	if s.unit == 0 {
		s.unit = 100 * time.Millisecond
		if c.Advance != nil {
			s.unit = time.Minute
		}
	}
	if s.advance == nil {
		s.advance = time.Sleep
	}
	if s.patience == 0 {
		s.patience = 10 * time.Second
	}
	return s
}

// inBubble reports whether t is that of a synctest bubble, where T.Run panics.
// So does T.Deadline, which is how to find out without starting a subtest.
func inBubble(t *testing.T) (in bool) {
	defer func() { in = recover() != nil }()
	t.Deadline()
	return false
}

// named puts a case's name before its messages.
type named struct {
	tb
	name string
}

func (n named) Errorf(format string, args ...any) {
	n.tb.Helper()
	n.tb.Errorf("%s: %s", n.name, fmt.Sprintf(format, args...))
}

func (n named) Logf(format string, args ...any) {
	n.tb.Helper()
	n.tb.Logf("%s: %s", n.name, fmt.Sprintf(format, args...))
}
