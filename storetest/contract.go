package storetest

import (
	"errors"
	"fmt"

	"github.com/oncehttp/oncehttp"
)

// A rule is a sentence of the Store contract, by its number, or one of those
// that follow.
type rule int

const (
	arguments rule = iota + 100
	waiter
	inspector
	transactor
	refusedCommit // of a transactor; only where the suite can have a commit refused
)

func (r rule) String() string {
	switch r {
	case arguments:
		return "what the Store contract says of arguments"
	case waiter:
		return "the contract of Waiter"
	case inspector:
		return "the contract of Inspector"
	case transactor, refusedCommit:
		return "the contract of Transactor"
	}
	return fmt.Sprintf("sentence %d of the Store contract", int(r))
}

func (r rule) text() string {
	if r == refusedCommit {
		r = transactor
	}
	return texts[r]
}

// The sentences as the documentation of Store prints them; a test compares.
var texts = map[rule]string{
	1: "Of any number of concurrent Claims on a free key exactly one acquires.",
	2: "Every method may be called again with the same Op: a lost reply does no " +
		"harm. A repeated Claim finds its own token and is acquired; a repeated " +
		"Complete by the same token is nil and keeps the first bytes; Release on " +
		"a free key is nil and on a Done record changes nothing; Renew and " +
		"Complete on a free key are ErrClaimLost.",
	3: "Renew, Complete and Release compare the token: once another holds the key " +
		"they return ErrClaimLost and change nothing.",
	4: "After Complete every Claim is ClaimDone with the same head until keep is " +
		"over; after Release the key is free.",
	5: "A lapsed lease makes the key orphaned, not free. Its holder may still " +
		"Renew, Complete or Release, which heals it. TakeOver, and only TakeOver, " +
		"gives it to someone else: exactly one of several wins, rotates the token " +
		"and raises Holder, and its repeat is idempotent.",
	6: "A running or orphaned record lasts at least keep after its latest Claim, " +
		"TakeOver or Renew (the store remembers keep), never vanishes before its " +
		"lease lapses, and then does vanish: nothing is stuck for ever.",
	7: "Only the store's clock counts; only durations cross the interface.",
	8: "A cancelled context leaves all or nothing. Keys, heads and bodies are " +
		"opaque bytes.",
	9: "A store never says Done before it is durable.",

	arguments: "An empty key or token, a lease or keep that is not positive (for Renew: a " +
		"negative lease) is an error that changes nothing.",
	waiter: "Wait returns nil when the key may have changed since the caller last " +
		"looked (spurious wake-ups are allowed, lost ones only as far as the " +
		"caller's own polling interval) and ctx's error when ctx ends first.",
	inspector: "List returns the selected records in key order, without heads and bodies. " +
		"Show returns one record whole, or ErrNotFound. Resolve settles an " +
		"orphaned record and rotates its token, so that a holder that comes back " +
		"late gets ErrClaimLost. Purge forgets a key in any state but running, and returns " +
		"ErrNotFound or ErrNotPurgeable.",
	transactor: "When work returns TxCommit, its head and body are recorded as by " +
		"Complete in the same transaction. Otherwise everything is rolled back, " +
		"and the key is freed, or after TxUnknown becomes an orphan. Transact " +
		"returns ErrClaimLost when the claim was lost before work started, " +
		"ErrRolledBack when a commit was asked for and everything was rolled " +
		"back, and ErrOutcomeUnknown when it cannot learn whether the commit " +
		"took effect; in all three cases the caller must not deliver work's " +
		"answer.",
}

// The states of a key.
type state int

const (
	free state = iota
	running
	orphaned
	done
)

func (s state) String() string { return [...]string{"free", "running", "orphaned", "done"}[s] }

// record is "a done record" and the like.
func (s state) record() string {
	if s == orphaned {
		return "an orphaned record"
	}
	return "a " + s.String() + " record"
}

func (s state) status() oncehttp.ClaimStatus {
	return [...]oncehttp.ClaimStatus{
		free:     oncehttp.ClaimAcquired,
		running:  oncehttp.ClaimRunning,
		orphaned: oncehttp.ClaimOrphaned,
		done:     oncehttp.ClaimDone,
	}[s]
}

type method int

const (
	claim method = iota
	takeOver
	renew
	renew0
	complete
	release
)

func (m method) String() string {
	return [...]string{"Claim", "TakeOver", "Renew", "Renew with a lease of 0", "Complete", "Release"}[m]
}

// who calls: the token that holds (or completed) the record, or any other.
type who bool

const (
	holder who = false
	other  who = true
)

func (w who) String() string {
	if w == holder {
		return "its holder"
	}
	return "another token"
}

// An answer is what a method returns in a state, and the state after it. Claim
// and TakeOver answer with a status, the others with nil or ErrClaimLost.
type answer struct {
	status oncehttp.ClaimStatus
	err    error
	then   state
	rule   rule
}

var lost = oncehttp.ErrClaimLost

// table is the whole contract but for time and concurrency. A free key has no
// holder: there everyone is another token.
var table = map[state]map[who]map[method]answer{
	free: {
		other: {
			claim:    {status: oncehttp.ClaimAcquired, then: running, rule: 4},
			takeOver: {status: oncehttp.ClaimAcquired, then: running, rule: 5},
			renew:    {err: lost, then: free, rule: 2},
			renew0:   {err: lost, then: free, rule: 2},
			complete: {err: lost, then: free, rule: 2},
			release:  {err: nil, then: free, rule: 2},
		},
	},
	running: {
		holder: {
			claim:    {status: oncehttp.ClaimAcquired, then: running, rule: 2},
			takeOver: {status: oncehttp.ClaimAcquired, then: running, rule: 5},
			renew:    {err: nil, then: running, rule: 2},
			renew0:   {err: nil, then: orphaned, rule: 5},
			complete: {err: nil, then: done, rule: 4},
			release:  {err: nil, then: free, rule: 4},
		},
		other: {
			claim:    {status: oncehttp.ClaimRunning, then: running, rule: 1},
			takeOver: {status: oncehttp.ClaimRunning, then: running, rule: 5},
			renew:    {err: lost, then: running, rule: 3},
			renew0:   {err: lost, then: running, rule: 3},
			complete: {err: lost, then: running, rule: 3},
			release:  {err: lost, then: running, rule: 3},
		},
	},
	orphaned: {
		holder: {
			claim:    {status: oncehttp.ClaimAcquired, then: running, rule: 2},
			takeOver: {status: oncehttp.ClaimAcquired, then: running, rule: 5},
			renew:    {err: nil, then: running, rule: 5},
			renew0:   {err: nil, then: orphaned, rule: 5},
			complete: {err: nil, then: done, rule: 5},
			release:  {err: nil, then: free, rule: 5},
		},
		other: {
			claim:    {status: oncehttp.ClaimOrphaned, then: orphaned, rule: 5},
			takeOver: {status: oncehttp.ClaimAcquired, then: running, rule: 5},
			renew:    {err: lost, then: orphaned, rule: 3},
			renew0:   {err: lost, then: orphaned, rule: 3},
			complete: {err: lost, then: orphaned, rule: 3},
			release:  {err: lost, then: orphaned, rule: 3},
		},
	},
	done: {
		holder: {
			claim:    {status: oncehttp.ClaimDone, then: done, rule: 4},
			takeOver: {status: oncehttp.ClaimDone, then: done, rule: 4},
			renew:    {err: nil, then: done, rule: 2},
			renew0:   {err: nil, then: done, rule: 2},
			complete: {err: nil, then: done, rule: 2},
			release:  {err: nil, then: done, rule: 2},
		},
		other: {
			claim:    {status: oncehttp.ClaimDone, then: done, rule: 4},
			takeOver: {status: oncehttp.ClaimDone, then: done, rule: 4},
			renew:    {err: lost, then: done, rule: 3},
			renew0:   {err: lost, then: done, rule: 3},
			complete: {err: lost, then: done, rule: 3},
			release:  {err: lost, then: done, rule: 3},
		},
	},
}

// is is errors.Is, except that only nil is nil.
func is(got, want error) bool {
	if want == nil {
		return got == nil
	}
	return errors.Is(got, want)
}

// show names an error as the contract does.
func show(err error) string {
	if err == nil {
		return "nil"
	}
	for name, known := range map[string]error{
		"ErrClaimLost":    oncehttp.ErrClaimLost,
		"ErrFull":         oncehttp.ErrFull,
		"ErrNotFound":     oncehttp.ErrNotFound,
		"ErrNotOrphaned":  oncehttp.ErrNotOrphaned,
		"ErrNotPurgeable": oncehttp.ErrNotPurgeable,
	} {
		if errors.Is(err, known) {
			return name
		}
	}
	return fmt.Sprintf("%q", err)
}
