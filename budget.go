package oncehttp

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// A Budget is the allowance of retries that one or more Transports have for
// each host. A retry costs one token. So however many calls fail, an outage of
// s seconds adds at most Tokens + Rate·s retries for a host, and healthy traffic
// at most a share of Earn: a server that is down is not kept down by its
// clients.
//
// Nor is a retry paid for once two retries of other calls to the host have failed
// in a row, the latest within a minute, and no attempt has succeeded since: what
// did not help them would not help now. First attempts still go, and the first
// healthy answer to one of them brings retries back. Where a server says itself
// when to come back, a retry is paid for all the same.
//
// The zero value is ready to use with the defaults below. A Budget may be
// shared by Transports, which then spend from the same tokens; it is safe for
// concurrent use, but its fields must not change once it is in use, and it must
// not be copied. It remembers hosts that are short of tokens: up to 8192 of
// them, the least recently used of which starts afresh if there are more.
type Budget struct {
	// Disabled lets every retry go that is otherwise allowed.
	Disabled bool

	// Tokens is what a host starts with and the most it can have. Zero means
	// 10. Anything else below 1 is an error: it would never allow a retry, and
	// Transport.Attempts of 1 says that better.
	Tokens float64

	// Earn is the part of a token that a healthy answer brings. Zero means
	// 0.1: one retry for ten healthy answers. Negative means none.
	Earn float64

	// Rate is how many tokens come back each second by themselves, so that a
	// client with little traffic recovers too. Zero means 0.2: one in five
	// seconds. Negative means none.
	Rate float64

	used  atomic.Bool // some host has a bucket
	hosts hostMap[bucket, *bucket]
}

// When other calls' retries to a host have failed vain times in a row, the last
// one within memory, the next call's would, too.
const (
	vain   = 2
	memory = time.Minute
)

// Tokens are counted in billionths, so that ten tenths make a whole one.
const wholeToken = 1_000_000_000

// check returns an error that names the first field that makes no sense.
func (b *Budget) check() error {
	if b.Tokens != 0 && !(b.Tokens >= 1 && b.Tokens <= 1e9) {
		return fmt.Errorf("oncehttp: Budget.Tokens is %v: set it from 1 to 1e9, or Disabled for no limit", b.Tokens)
	}
	if math.IsNaN(b.Earn) || b.Earn > 1e9 {
		return fmt.Errorf("oncehttp: Budget.Earn is %v: set it from 0 to 1e9, or below 0 for none", b.Earn)
	}
	if math.IsNaN(b.Rate) || b.Rate > 1e9 {
		return fmt.Errorf("oncehttp: Budget.Rate is %v: set it from 0 to 1e9 a second, or below 0 for none", b.Rate)
	}
	return nil
}

// pay takes one token for a retry to k, and reports whether there was one.
func (b *Budget) pay(k hostKey, now time.Time) bool {
	if b.Disabled {
		return true
	}
	b.used.Store(true)
	for {
		if paid, here := b.hosts.get(k, now).pay(b, now); here {
			return paid
		}
	}
}

// refund returns the token of a retry that was never sent.
func (b *Budget) refund(k hostKey, now time.Time) { b.add(k, wholeToken, now) }

// earn credits a healthy answer.
func (b *Budget) earn(k hostKey, now time.Time) {
	if !b.used.Load() {
		return // no host has a bucket
	}
	if t := b.hosts.find(k); t != nil {
		t.revive()
	}
	b.add(k, int64(math.Round(orDefault(b.Earn, 0.1)*wholeToken)), now)
}

// lost notes a retry that failed.
func (b *Budget) lost(k hostKey, now time.Time) {
	if t := b.hosts.find(k); t != nil && !b.Disabled {
		t.lose(now)
	}
}

// inVain reports whether enough retries to k have failed, with no healthy answer
// since, for another one to be a waste. own of them were the caller's.
func (b *Budget) inVain(k hostKey, own int, now time.Time) bool {
	t := b.hosts.find(k)
	return t != nil && !b.Disabled && t.failing(now)-own >= vain
}

func (b *Budget) add(k hostKey, n int64, now time.Time) {
	if b.Disabled || n <= 0 || !b.used.Load() {
		return
	}
	// A host without a bucket has a full one.
	if t := b.hosts.find(k); t != nil {
		t.add(n, now)
	}
}

// orDefault returns v, or def when v is zero, or zero when v is negative.
func orDefault(v, def float64) float64 {
	if v == 0 {
		return def
	}
	return max(v, 0)
}

// A bucket holds one host's tokens. It comes into being full, at the first
// retry; until then, and again once it is full, there is nothing to remember.
type bucket struct {
	mu     sync.Mutex
	gone   bool
	tokens int64 // in billionths of a token
	limit  int64 // the most it can hold; 0: not yet in use

	failed   int       // retries in a row, over all calls
	failedAt time.Time // the latest of them

	trickle *rate.Limiter // makes the tokens that come with time; empty after each settle
}

func (t *bucket) pay(b *Budget, now time.Time) (paid, here bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return false, false
	}
	if t.limit == 0 {
		t.start(b)
	}
	t.settle(now)
	if t.tokens < wholeToken {
		return false, true
	}
	t.tokens -= wholeToken
	return true, true
}

func (t *bucket) start(b *Budget) {
	size := orDefault(b.Tokens, 10)
	t.limit = int64(size * wholeToken)
	t.tokens = t.limit
	t.trickle = rate.NewLimiter(rate.Limit(orDefault(b.Rate, 0.2)), int(math.Ceil(size)))
}

func (t *bucket) lose(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.failedAt) > memory {
		t.failed = 0
	}
	t.failed++
	t.failedAt = now
}

func (t *bucket) failing(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.failedAt) > memory {
		return 0
	}
	return t.failed
}

func (t *bucket) revive() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = 0
}

// settle moves what has trickled in into the bucket, fraction and all: half a
// token there would be of no use to a half here, and what waited beside a full
// bucket would be too much later. So the limiter, which hands out whole tokens
// only, is emptied by closing it for a moment. t.mu is held.
func (t *bucket) settle(now time.Time) {
	made := int64(t.trickle.TokensAt(now) * wholeToken)
	t.tokens = min(t.tokens+made, t.limit)
	if made > 0 { // only then: a now from before the last time would turn its clock back
		burst := t.trickle.Burst()
		t.trickle.SetBurstAt(now, 0)
		t.trickle.SetBurstAt(now, burst)
	}
}

func (t *bucket) add(n int64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limit == 0 || t.tokens == t.limit {
		return
	}
	t.tokens += n
	t.settle(now)
}

// leave lets go of a bucket that is full: a fresh one is no different.
func (t *bucket) leave(now time.Time, must bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limit != 0 {
		t.settle(now)
	}
	t.gone = must || t.tokens == t.limit
	return t.gone
}
