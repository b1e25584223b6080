// Package redisstore keeps the records of oncehttp in Redis, 6.0 or later, or in
// Valkey: one server, one that a Sentinel watches, or a cluster.
//
//	store := redisstore.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
//	defer store.Close()
//	if err := store.Check(ctx); err != nil { … }
//	mux.Handle("POST /refunds", (&oncehttp.Middleware{Store: store}).Handler(h))
//
// # What Redis promises
//
// A record is as durable as Redis is told to make it, and no more. To this
// package "recorded" means that the server said so. With appendonly yes and
// appendfsync always that is on disk. With appendfsync everysec the crash of the
// machine loses up to two seconds. Without persistence a restart loses everything.
// A failover loses what the new master had not been sent yet; [WithReplicas] makes
// that unlikely, not impossible. A lost record means that its work can run a second
// time.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/calmlog"
)

// A Store keeps each record under one key of a Redis server or cluster. Any number
// of stores, in any number of processes, may share them. Make one with [New]. It is
// an [oncehttp.Waiter] and an [oncehttp.Inspector] too.
//
// Each call is one run of one script on one key: one round trip. On Redis 7 a claim
// of a *redis.Client is a SET instead, and a script only if the key is neither free
// nor done: then it takes a second round trip. Calls that
// several goroutines make at the same time travel together where the client is a
// *redis.Client; up to three connections of its pool, if that has six, are kept for it. The scripts go by the server's clock, and every record expires by
// itself.
//
// A server whose maxmemory-policy evicts keys is refused, because an evicted record
// is work that runs a second time; so is a replica. Both are looked at before the
// first call and then once a minute while there are claims. A server that turns
// into one of these gets no new claims, but what runs can still be recorded.
//
// A call returns at most a quarter of a second after its context has ended. If the
// server has not answered by then, whether it has done what it was asked is not
// known; the error says so, and the call may be repeated. What was not sent by then
// never is. While the server hangs, at most 10000 calls and 64 MB of what they carry
// wait to be sent, 4096 calls on a cluster or with [WithReplicas]; more are refused
// with an error.
//
// A Store is safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	opts   options
	bad    error // an option that makes no sense
	server serverState
	apart  apart
	lanes  lanes
	waits  waits
}

// An Option changes what New makes.
type Option func(*options)

type options struct {
	prefix   string
	replicas int
	patience time.Duration
	logger   *slog.Logger
}

// WithPrefix sets what every key, and every channel, of the store begins with.
// Without it that is "oncehttp:". Stores with different prefixes know nothing of
// each other, if no prefix is the beginning of another.
func WithPrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// WithReplicas makes a claim, a completion and a replay wait until n replicas have
// acknowledged what it says, for at most timeout (WAIT). If they have not by then
// the call fails though the master has it; repeated, it waits again. Without it a
// failover can lose what the master has just acknowledged. With it that takes a
// failover to a replica that is not one of the n, so n should be all but those that
// may be down.
//
// It costs a second round trip and the use of one connection for each call. The
// timeout must be at least 1ms.
func WithReplicas(n int, timeout time.Duration) Option {
	return func(o *options) { o.replicas, o.patience = n, timeout }
}

// WithLogger sets who is told what an operator should know. Without it that is
// slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

const defaultPrefix = "oncehttp:"

// New returns a store that works through client: a *redis.Client, also one made by
// redis.NewFailoverClient, or a *redis.ClusterClient. It does not use it yet: what
// is wrong with the options or the server is an error of every later call, and of
// Check.
//
// A *redis.Client gets a hook that only the store's own calls make use of. Hooks that
// it has already see these calls; hooks that are added later may not.
//
// A *redis.Ring is refused. It gives the keys of a server that is down to another
// one, which does not know what ran.
func New(client redis.UniversalClient, opts ...Option) *Store {
	s := &Store{client: client, opts: options{prefix: defaultPrefix}}
	for _, opt := range opts {
		opt(&s.opts)
	}
	s.bad = s.judge()
	s.server.checking = make(chan struct{}, 1)
	s.lanes.client, _ = client.(*redis.Client)
	s.lanes.waiting.max, s.lanes.waiting.maxBytes = maxQueued, maxQueuedBytes
	s.apart.max = maxApart
	s.lanes.word = make(chan bool, maxLanes)
	return s
}

// judge says what is wrong with what New was given.
func (s *Store) judge() error {
	switch c := s.client.(type) {
	case nil:
		return errors.New("redisstore: New: the client is nil")
	case *redis.Ring:
		return errors.New("redisstore: New: a redis.Ring moves keys between servers that do not know each other's records: " +
			"use a Redis Cluster and redis.NewClusterClient")
	case *redis.Client, *redis.ClusterClient:
	default:
		if s.opts.replicas != 0 {
			return fmt.Errorf("redisstore: WithReplicas needs a *redis.Client or a *redis.ClusterClient, not a %T", c)
		}
	}
	switch {
	case s.opts.prefix == "":
		return errors.New("redisstore: WithPrefix: the prefix is empty")
	case s.opts.replicas < 0:
		return errors.New("redisstore: WithReplicas: the number is negative")
	case s.opts.replicas > 0 && s.opts.patience < time.Millisecond:
		return errors.New("redisstore: WithReplicas: the timeout is shorter than 1ms")
	}
	return nil
}

// Close ends what the store does in the background and waits for it. It leaves the
// client alone. A store that is not closed ends it by itself, a minute after the
// last Wait and some seconds after any other call.
func (s *Store) Close() {
	s.waits.close()
	s.lanes.close()
}

func (s *Store) log() *slog.Logger { return calmlog.Logger(s.opts.logger) }

// Claim implements [oncehttp.Store]. When Redis has reached its maxmemory, the
// error is [oncehttp.ErrFull] for a new key; keys that have a record still get it.
func (s *Store) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return s.take(ctx, "claim", op, lease, keep, "0")
}

// TakeOver implements [oncehttp.Store]. Its errors are those of Claim.
func (s *Store) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return s.take(ctx, "take over", op, lease, keep, "1")
}

func (s *Store) take(ctx context.Context, what string, op oncehttp.Op, lease, keep time.Duration, orphans string) (oncehttp.Claim, error) {
	switch err := checkOp(&op); {
	case err != nil:
		return oncehttp.Claim{}, err
	case lease <= 0:
		return oncehttp.Claim{}, errLease
	case keep <= 0:
		return oncehttp.Claim{}, errKeep
	}
	if err := s.prepare(ctx, true); err != nil {
		return oncehttp.Claim{}, err
	}
	l, k := millis(lease), millis(keep)
	fresh, ttl := newRecord(&op, l, k), max(l, k)+1
	var reply any
	var err error
	if orphans == "0" && s.plain() {
		reply, err = s.run(ctx, what, &call{key: s.opts.prefix + op.Key, args: []any{fresh, ttl}, clock: clock(s.server.clock.Load())})
	}
	if reply == nil && err == nil {
		reply, err = s.eval(ctx, what, takeScript, op.Key, fresh, ttl, orphans, s.touch())
	}
	if err != nil {
		return oncehttp.Claim{}, err
	}
	c, err := readClaim(reply)
	switch {
	case err != nil:
		return oncehttp.Claim{}, fmt.Errorf("redisstore: %s: %w", what, err)
	case c.Status != oncehttp.ClaimAcquired:
		return c, nil
	case c.Holder == 0: // of a free key: nothing to tell that is not known
		c.Fingerprint, c.Binding, c.Holder = op.Fingerprint, op.Binding, 1
	}
	c.Left = lease
	return c, nil
}

// Renew implements [oncehttp.Store]. On a record that op.Token completed it is nil
// and changes nothing.
func (s *Store) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	if lease < 0 {
		return errNegative
	}
	return s.change(ctx, "renew", renewScript, &op, lease == 0, millis(lease))
}

// Complete implements [oncehttp.Store]. On a record that op.Token completed it is
// nil and changes nothing.
func (s *Store) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	if keep <= 0 {
		return errKeep
	}
	return s.change(ctx, "complete", completeScript, &op, true, millis(keep)+1, join(head, body), s.touch(), s.expires(millis(keep)))
}

// Release implements [oncehttp.Store]. On a record that op.Token completed it is
// nil and changes nothing.
func (s *Store) Release(ctx context.Context, op oncehttp.Op) error {
	return s.change(ctx, "release", releaseScript, &op, true)
}

// change runs a script that changes the record that op.Token holds.
func (s *Store) change(ctx context.Context, what string, sc *script, op *oncehttp.Op, wakes bool, args ...any) error {
	if err := checkOp(op); err != nil {
		return err
	}
	if err := s.prepare(ctx, false); err != nil {
		return err
	}
	reply, err := s.eval(ctx, what, sc, op.Key, append([]any{packToken(op.Token)}, args...)...)
	if err != nil {
		return err
	}
	switch reply {
	case replyOK:
		if wakes {
			s.waits.wake(s.opts.prefix + op.Key)
		}
		return nil
	case replyFree, replyLost:
		return oncehttp.ErrClaimLost
	}
	return fmt.Errorf("redisstore: %s: %w", what, errUnreadable)
}

// expires is when what lasts so many milliseconds from now expires, on the server's
// clock, or 0 if only scripts claim keys, which need not know. It is asked for once the
// server was looked at.
func (s *Store) expires(keep int64) int64 {
	if !s.plain() {
		return 0
	}
	return clock(s.server.clock.Load()).now() + keep
}

// touch tells a script whether it must write even if it changes nothing.
func (s *Store) touch() string {
	if s.opts.replicas > 0 {
		return "1"
	}
	return "0"
}

// millis is a duration in the unit of Redis' clock. What is not zero does not
// become zero.
func millis(d time.Duration) int64 {
	ms := d.Milliseconds()
	if time.Duration(ms)*time.Millisecond < d {
		ms++
	}
	return ms
}

// duration is the time of so many milliseconds, or the longest there is.
func duration(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(ms, most)) * time.Millisecond
}

var (
	errNoKey    = errors.New("redisstore: Op.Key is empty")
	errNoToken  = errors.New("redisstore: Op.Token is empty")
	errLease    = errors.New("redisstore: lease must be positive")
	errNegative = errors.New("redisstore: lease must not be negative")
	errKeep     = errors.New("redisstore: keep must be positive")
)

func checkOp(op *oncehttp.Op) error {
	switch {
	case op.Key == "":
		return errNoKey
	case op.Token == "":
		return errNoToken
	}
	return nil
}

var _ interface {
	oncehttp.Store
	oncehttp.Waiter
	oncehttp.Inspector
} = (*Store)(nil)
