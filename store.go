package oncehttp

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"
)

// A Store remembers, for every key, who runs the work behind it and how that
// work ended. It is what keeps an effect from happening twice, so its contract
// is strict; docs/store-contract.md prints it sentence by sentence and package
// storetest checks it.
//
//  1. Of any number of concurrent Claims on a free key exactly one acquires.
//  2. Every method may be called again with the same Op: a lost reply does no
//     harm. A repeated Claim finds its own token and is acquired; a repeated
//     Complete by the same token is nil and keeps the first bytes; Release on
//     a free key is nil and on a Done record changes nothing; Renew and
//     Complete on a free key are [ErrClaimLost].
//  3. Renew, Complete and Release compare the token: once another holds the key
//     they return [ErrClaimLost] and change nothing.
//  4. After Complete every Claim is [ClaimDone] with the same head until keep is
//     over; after Release the key is free.
//  5. A lapsed lease makes the key orphaned, not free. Its holder may still
//     Renew, Complete or Release, which heals it. TakeOver, and only TakeOver,
//     gives it to someone else: exactly one of several wins, rotates the token
//     and raises Holder, and its repeat is idempotent.
//  6. A running or orphaned record lasts at least keep after its latest Claim,
//     TakeOver or Renew (the store remembers keep), never vanishes before its
//     lease lapses, and then does vanish: nothing is stuck for ever.
//  7. Only the store's clock counts; only durations cross the interface.
//  8. A cancelled context leaves all or nothing. Keys, heads and bodies are
//     opaque bytes.
//  9. A store never says Done before it is durable.
//
// An empty key or token, a lease or keep that is not positive (for Renew: a
// negative lease) is an error that changes nothing.
//
// All methods are safe for concurrent use. A store keeps no reference to the
// byte slices it is given and callers do not change the ones it returns.
type Store interface {
	// Claim takes a free key for op.Token, or learns the state of a taken one.
	// The claim runs for lease unless renewed; the record is kept for keep.
	// Repeated by the token that holds the key, lapsed or not, it is acquired
	// and both begin anew. It returns [ErrFull] when the store cannot protect
	// one more key.
	Claim(ctx context.Context, op Op, lease, keep time.Duration) (Claim, error)

	// TakeOver takes an orphaned (or free) key for op.Token. On any other
	// state it reports that state like Claim does.
	TakeOver(ctx context.Context, op Op, lease, keep time.Duration) (Claim, error)

	// Renew extends the claim that op.Token holds by lease from now. A lease
	// of zero makes the key an orphan at once. On a record that op.Token
	// completed it is nil and changes nothing. It returns [ErrClaimLost] when
	// op.Token does not hold the key.
	Renew(ctx context.Context, op Op, lease time.Duration) error

	// Complete records how the work ended. From then on Claim is [ClaimDone]
	// with this head and body until keep is over. It returns [ErrClaimLost]
	// when op.Token does not hold the key.
	Complete(ctx context.Context, op Op, head, body []byte, keep time.Duration) error

	// Release frees the key, because nothing happened under it. It returns
	// [ErrClaimLost] when another token holds the key.
	Release(ctx context.Context, op Op) error
}

// An Op names a key and who acts on it.
type Op struct {
	// Key is the record's key: already scoped, opaque to the store.
	Key string

	// Token is minted by the caller for one claim: 128 random bits, never
	// reused. [NewToken] makes one.
	Token string

	// Fingerprint and Binding are kept by the first Claim (or TakeOver of a
	// free key) and returned by every later one; the caller judges them.
	Fingerprint, Binding [32]byte
}

// A ClaimStatus is the state of a key as Claim and TakeOver report it. The zero
// value is none of the states, so that a forgotten one is noticed.
type ClaimStatus int

const (
	// ClaimAcquired: the caller's token holds the key and must run the work.
	ClaimAcquired ClaimStatus = iota + 1
	// ClaimRunning: another token holds the key and its lease has not lapsed.
	ClaimRunning
	// ClaimDone: the work has ended; Head and Body tell how.
	ClaimDone
	// ClaimOrphaned: another token holds the key and its lease has lapsed, so
	// nobody knows whether the work took effect.
	ClaimOrphaned
)

// String returns the status in lower case.
func (s ClaimStatus) String() string {
	switch s {
	case ClaimAcquired:
		return "acquired"
	case ClaimRunning:
		return "running"
	case ClaimDone:
		return "done"
	case ClaimOrphaned:
		return "orphaned"
	}
	return "invalid claim status"
}

// A Claim is what a Store knows of a key.
type Claim struct {
	Status ClaimStatus

	// Fingerprint and Binding are those of the first claim on the key.
	Fingerprint, Binding [32]byte

	// Head and Body are set when Status is ClaimDone: how the work ended. A
	// store under pressure may drop a body, never a head: BodyDropped is then
	// true and Body nil.
	Head, Body  []byte
	BodyDropped bool

	// Left is how long the record still lasts in its present state: the rest
	// of the lease of an acquired or running claim, the rest of the retention
	// of a done or orphaned one.
	Left time.Duration

	// Holder counts the tokens that have held the key, this one included: 1,
	// or more when earlier holders vanished.
	Holder int
}

var (
	// ErrClaimLost is returned by a Store when the token does not hold the key.
	ErrClaimLost = errors.New("oncehttp: claim lost: another holder has the key, or the key is free")

	// ErrFull is returned by a Store that has no room to protect a new key.
	ErrFull = errors.New("oncehttp: store is full of records that must be kept")

	// ErrNotFound is returned by an [Inspector] for a key it has no record of.
	ErrNotFound = errors.New("oncehttp: no record of this key")
)

// A Waiter is a Store that can wake those who wait for a key. Without it they
// poll.
type Waiter interface {
	// Wait returns nil when the key may have changed since the caller last
	// looked (spurious wake-ups are allowed, lost ones only as far as the
	// caller's own polling interval) and ctx's error when ctx ends first.
	Wait(ctx context.Context, key string) error
}

// A Record is a key's state as an operator sees it.
type Record struct {
	Key         string
	Status      ClaimStatus // ClaimRunning, ClaimOrphaned or ClaimDone
	Fingerprint [32]byte
	Binding     [32]byte
	Age         time.Duration // since the first claim
	Left        time.Duration // as in Claim
	Holder      int
	Head, Body  []byte
	BodyDropped bool
}

// A RecordQuery selects records. The zero value selects the first 100 of all.
// Values that are out of range are an error of List.
type RecordQuery struct {
	Status ClaimStatus   // 0: any
	MinAge time.Duration // only records at least this old
	After  string        // only keys that sort after this one (byte order), for paging
	Limit  int           // 0: 100; at most 1000
}

// A Resolution is an operator's word on a key whose outcome nobody recorded.
type Resolution struct {
	// Applied says that the effect happened: the record becomes Done with
	// Head and Body, kept for Keep. False says that it did not: the key is
	// freed.
	Applied    bool
	Head, Body []byte
	Keep       time.Duration // 0: the keep that the record's last holder asked for
}

// An Inspector is a Store whose records an operator can look at and settle.
type Inspector interface {
	// List returns the selected records in key order, without heads and bodies.
	List(ctx context.Context, q RecordQuery) ([]Record, error)

	// Show returns one record whole, or [ErrNotFound].
	Show(ctx context.Context, key string) (Record, error)

	// Resolve settles an orphaned record and rotates its token, so that a
	// holder that comes back late gets [ErrClaimLost]. It returns
	// [ErrNotFound] for a free key and [ErrNotOrphaned] for any other state.
	Resolve(ctx context.Context, key string, r Resolution) error

	// Purge forgets a key in any state but running, and returns [ErrNotFound]
	// or [ErrNotPurgeable]. A purged key can run again: this is an operator's
	// decision, never the library's.
	Purge(ctx context.Context, key string) error
}

var (
	// ErrNotOrphaned is returned by [Inspector.Resolve] for a record that is
	// running or done.
	ErrNotOrphaned = errors.New("oncehttp: record is not orphaned, so there is nothing to resolve")

	// ErrNotPurgeable is returned by [Inspector.Purge] for a running record.
	ErrNotPurgeable = errors.New("oncehttp: record is running; wait for it, or for its lease to lapse")
)

// A Transactor is a Store that can run the work inside a transaction of its own,
// so that the work's writes and the record commit together.
type Transactor interface {
	// Transact runs work inside a transaction in which op.Token's claim is
	// locked and verified. The context given to work carries the transaction.
	// When work returns [TxCommit], its head and body are recorded as by
	// Complete in the same transaction. Otherwise everything is rolled back,
	// and the key is freed, or after [TxUnknown] becomes an orphan. Transact
	// returns [ErrClaimLost] when the claim was lost before work started,
	// [ErrRolledBack] when a commit was asked for and everything was rolled
	// back, and [ErrOutcomeUnknown] when it cannot learn whether the commit
	// took effect; in all three cases the caller must not deliver work's
	// answer.
	//
	// A token that has completed its record has lost the claim in this sense:
	// work is not run twice. A panic of work rolls back, frees the key and
	// goes on. A store may run work again when its transaction was rolled back
	// for a reason that may not come back, unless work returned TxUnknown.
	Transact(ctx context.Context, op Op, keep time.Duration, work func(ctx context.Context) (head, body []byte, end TxEnd)) error
}

// A TxEnd is how work that a [Transactor] runs wants its transaction to end. A
// store takes a value that is none of these for TxRollback.
type TxEnd int

const (
	// TxRollback: everything is rolled back and the key is freed.
	TxRollback TxEnd = iota
	// TxCommit: head and body are recorded as by Complete, and committed
	// together with what work wrote.
	TxCommit
	// TxUnknown: everything is rolled back and the key becomes an orphan, as
	// by a Renew of zero, because work may have done something that no
	// rollback undoes. Nobody else gets the key in between.
	TxUnknown
)

// String returns the end in lower case.
func (e TxEnd) String() string {
	switch e {
	case TxRollback:
		return "rollback"
	case TxCommit:
		return "commit"
	case TxUnknown:
		return "unknown"
	}
	return "invalid transaction end"
}

// ErrRolledBack says that work ran inside a transaction and asked for a commit,
// but everything was rolled back: nothing that it wrote there exists, and its key
// is free, at the latest when its token releases it. The same call with the same
// key can be made again.
var ErrRolledBack = errors.New("oncehttp: the transaction was rolled back; nothing that was written in it exists, and the key is free")

// ErrOutcomeUnknown says that work was started and nobody knows how it ended.
var ErrOutcomeUnknown = errors.New("oncehttp: the outcome is unknown: work under this key started and nobody recorded how it ended")

// NewToken returns a fresh claim token: 128 random bits as 32 hexadecimal digits.
func NewToken() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: it ends the process rather than return an error
	return hex.EncodeToString(b[:])
}
