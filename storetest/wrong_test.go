package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A recorder is a tb that remembers what the suite says.
type recorder struct {
	name string
	said []string
}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}
func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, r.name+": "+fmt.Sprintf(format, args...))
}

// judge runs every case against the stores that open returns.
func judge(open func() oncehttp.Store, reopen func(oncehttp.Store) oncehttp.Store) []string {
	var r recorder
	s := suite{new: open, reopen: reopen, refuse: refuseFake, advance: time.Sleep, unit: 100 * time.Millisecond, patience: 10 * time.Second}
	first := open()
	for _, k := range cases() {
		if s.has(first, k.rule) {
			r.name = k.name
			s.run(&r, k)
		}
	}
	return r.said
}

// dress gives a fake the capabilities that a fault needs.
func dress(f *fake, capability rule) oncehttp.Store {
	switch capability {
	case waiter:
		return fakeWaiter{f}
	case inspector:
		return fakeInspector{f}
	case transactor:
		return fakeTransactor{f}
	}
	return f
}

func undress(s oncehttp.Store) *fake {
	switch s := s.(type) {
	case fakeWaiter:
		return s.fake
	case fakeInspector:
		return s.fake
	case fakeTransactor:
		return s.fake
	}
	return s.(*fake)
}

func reopenFake(capability rule) func(oncehttp.Store) oncehttp.Store {
	return func(s oncehttp.Store) oncehttp.Store { return dress(undress(s).crash(), capability) }
}

// The suite would find fault with anything if it found fault with this.
func TestAPlainStoreWithoutAFaultIsRight(t *testing.T) {
	for _, capability := range []rule{0, waiter, inspector, transactor} {
		synctest.Test(t, func(t *testing.T) {
			open := func() oncehttp.Store { return dress(newFake(""), capability) }
			for _, said := range judge(open, reopenFake(capability)) {
				t.Error(said)
			}
		})
	}
}

// Every wrong store is caught, and the sentence it breaks is the first that is
// quoted.
func TestWrongStoresAreCaught(t *testing.T) {
	for _, row := range []struct {
		fault  string
		breaks rule
	}{
		{"looks first and then inserts", 1},
		{"TakeOver of a free key looks first and then inserts", 5},
		{"the own token is not recognised", 2},
		{"the own token is not recognised after its lease lapsed", 2},
		{"a repeated Claim does not start the lease anew", 2},
		{"a repeated Complete replaces the bytes", 2},
		{"a repeated Complete lengthens the retention", 4},
		{"a repeated Complete is lost", 2},
		{"the token is forgotten by Complete", 2},
		{"Renew of a free key is nil", 2},
		{"Renew of a done record is lost to its own token", 2},
		{"Renew lengthens the retention of a done record", 4},
		{"Complete of a free key makes a record", 2},
		{"Release of a free key is lost", 2},
		{"Release frees a done record", 2},
		{"Renew does not compare the token", 3},
		{"Complete does not compare the token", 3},
		{"Complete by another token on a done record is nil", 3},
		{"Release does not compare the token", 3},
		{"the head is lost", 4},
		{"head and body are recorded one after the other", 4},
		{"a done record never expires", 4},
		{"the keep of Complete is not used", 4},
		{"Release leaves an orphan", 4},
		{"a lapsed lease frees the key", 5},
		{"Claim takes orphans", 5},
		{"TakeOver takes running keys", 5},
		{"TakeOver never wins", 5},
		{"TakeOver looks first and then updates", 5},
		{"TakeOver does not raise Holder", 5},
		{"a repeated TakeOver raises Holder", 5},
		{"TakeOver does not rotate the token", 5},
		{"TakeOver replaces the fingerprint", 5},
		{"a lease of 0 means the one before", 5},
		{"Renew does not heal", 5},
		{"Renew never shortens the lease", 5},
		{"Complete does not heal", 5},
		{"Release does not heal", 5},
		{"keep is counted from the claim, whatever the lease", 6},
		{"Renew does not lengthen the retention", 6},
		{"TakeOver does not lengthen the retention", 6},
		{"an orphan never expires", 6},
		{"asking lengthens the life of an orphan", 6},
		{"what is less than a millisecond is for ever", 7},
		{"durations are 32 bits of milliseconds", 7},
		{"Left is a time since 1970", 7},
		{"Left of a running record is that of its retention", 7},
		{"Left is more than was asked for", 7},
		{"a record dies with the context of its claim", 8},
		{"a cancelled claim is left without its fingerprint", 8},
		{"a cancelled claim is said to be acquired", 8},
		{"a cancelled Complete records a head and no body", 8},
		{"keys are lower-cased", 8},
		{"keys end at a NUL", 8},
		{"trailing space is trimmed", 8},
		{"invalid UTF-8 becomes U+FFFD", 8},
		{"keys are cut at 255 bytes", 8},
		{"the caller's slices are kept", 8},
		{"bodies are text", 8},
		{"bodies are cut at 4 KiB", 8},
		{"what is done is written later", 9},
		{"claims are kept in memory only", 9},
		{"arguments are not looked at", arguments},

		{"Wait returns at once", waiter},
		{"Wait is never woken", waiter},
		{"Wait returns nil when its context ends", waiter},

		{"List is not in byte order", inspector},
		{"List shows bodies", inspector},
		{"List shows what has expired", inspector},
		{"List without a limit shows all", inspector},
		{"List does not look at Status", inspector},
		{"List takes any query", inspector},
		{"After is part of the page", inspector},
		{"Age counts from the takeover", inspector},
		{"Show of a free key is an empty record", inspector},
		{"Show leaves the body out", inspector},
		{"Resolve settles running records", inspector},
		{"Resolve as not applied records it", inspector},
		{"Resolve without Keep keeps for no time", inspector},
		{"Resolve does not rotate the token", 3},
		{"Purge forgets running records", inspector},
		{"Purge refuses done records", inspector},

		{"Transact does not verify the claim", transactor},
		{"Transact runs completed work again", transactor},
		{"Transact keeps for as long as the claim", transactor},
		{"a panic leaves the claim", transactor},
		{"a panic ends in Transact", transactor},
		{"a panic frees a key that was taken over", transactor},
		{"everything is committed", transactor},
		{"work that cannot tell frees the key", transactor},
		{"work that cannot tell leaves the claim", transactor},
		{"an orphan of a transaction is kept as long as an answer", transactor},
		{"a refused commit is nobody's business", transactor},
		{"a refused commit is unknown", transactor},
		{"a refused commit frees a key that was taken over", transactor},
		{"the body is not part of the transaction", transactor},
	} {
		t.Run(row.fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := false
				capability := row.breaks
				if strings.HasPrefix(row.fault, "Resolve") {
					capability = inspector
				}
				var opened []*fake
				open := func() oncehttp.Store {
					f := newFake(row.fault)
					opened = append(opened, f)
					return dress(f, capability)
				}
				said := judge(open, reopenFake(capability))
				for _, f := range opened {
					seen = seen || f.seen.Load()
				}
				if !seen {
					t.Fatal("the store was never wrong")
				}
				if len(said) == 0 {
					t.Fatal("it was not caught")
				}
				t.Log(said[0])
				if got := quoted(said[0]); got != row.breaks {
					t.Errorf("got %v, want %v", got, row.breaks)
				}
			})
		})
	}
}

// quoted is the rule whose name and text stand in what was said.
func quoted(said string) rule {
	for r, text := range texts {
		if strings.Contains(said, "breaks "+r.String()+":\n\t"+text+"\n") {
			return r
		}
	}
	return 0
}

// A method that hangs or panics fails its case, with its name and in good time.
func TestAMethodThatDoesNotReturnIsNamed(t *testing.T) {
	for fault, want := range map[string]string{
		"Claim hangs on a done record":  "Claim has not returned for 10s",
		"Claim panics on a done record": "Claim panicked: nil pointer, say",
	} {
		t.Run(fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				said := judge(func() oncehttp.Store { return newFake(fault) }, nil)
				if !strings.Contains(strings.Join(said, "\n"), want) {
					t.Errorf("got %q, want %q among it", said, want)
				}
			})
		})
	}
	t.Run("Wait does not look at its context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var opened []*fake
			said := judge(func() oncehttp.Store {
				f := newFake("Wait does not look at its context")
				opened = append(opened, f)
				return fakeWaiter{f}
			}, nil)
			if want := "Wait has not returned for 10s"; !strings.Contains(strings.Join(said, "\n"), want) {
				t.Errorf("got %q, want %q among it", said, want)
			}
			for _, f := range opened {
				f.ended.Store(true)
			}
			time.Sleep(time.Second) // until those who still wait are gone
		})
	})
}

// A store that is slower than the units of time that the cases use is not blamed
// for what it did too late.
func TestASlowStoreIsMeasuredWithLongerUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := judge(func() oncehttp.Store { return slow{newFake(""), 300 * time.Millisecond} }, nil)
		for _, s := range said {
			t.Error(s)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		said := judge(func() oncehttp.Store { return slow{newFake(""), 8 * time.Second} }, nil)
		if !strings.Contains(strings.Join(said, "\n"), "too slow to judge") {
			t.Errorf("got %q, want it said that the store is too slow to judge", said)
		}
	})
}

type slow struct {
	oncehttp.Store
	by time.Duration
}

func (s slow) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	time.Sleep(s.by)
	return s.Store.Claim(ctx, op, lease, keep)
}
