// Package pgstore keeps the records of oncehttp in PostgreSQL, 14 or later, by
// way of pgx or of database/sql.
//
//	store := pgstore.New(pool)
//	if err := store.Migrate(ctx); err != nil { … }
//	mux.Handle("POST /refunds", (&oncehttp.Middleware{Store: store}).Handler(h))
//
// A handler whose effects are writes to the same database can have them committed
// together with its record: see [Store.Transactional].
//
// It works behind a PgBouncer that pools by transaction, from version 1.18 on, if
// the connection string says default_query_exec_mode=exec.
package pgstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/calmlog"
)

// A Store keeps records in one table of a PostgreSQL database. Any number of
// stores, in any number of processes, may share the table. Make one with [New] or
// [NewSQL]. It is an [oncehttp.Waiter] and an [oncehttp.Inspector] too.
//
// Each call is one statement in a transaction of its own: one round trip for a
// claim, for a completion and for a replay. (Two are needed to claim a key whose
// record has expired but was not swept yet, to take an orphan over, and to learn
// that a claim was lost.) A call whose connection breaks is repeated on another
// one: at most twice, and before that as often as the pool has idle connections, for
// those that it had to a server that was started anew are all dead.
//
// A Store is safe for concurrent use. It keeps what expired until a claim, or
// Sweep, comes across it.
type Store struct {
	db    database
	sql   *statements
	table string // quoted
	bad   error  // an option that makes no sense
	opts  options

	ready  atomic.Bool // the table was looked at
	warned atomic.Bool

	waits waits
	broom broom
}

// maxKey is the longest key, in bytes.
const maxKey = 2048

// closing is how long the end of a connection or a rollback may take, and how much
// longer than its context what is done to a held claim.
const closing = 5 * time.Second

// An Option changes what New and NewSQL make.
type Option func(*options)

type options struct {
	table    string
	noListen bool
	noSweep  bool
	logger   *slog.Logger
}

// WithTable names the table: a name, or a schema, a dot and a name. Without it
// the table is oncehttp_records, in the first schema of the search path. The name
// is taken as it is: upper case stays upper case.
func WithTable(name string) Option { return func(o *options) { o.table = name } }

// WithoutListen keeps the store from listening for notifications; those who wait
// for a key then look for themselves, 5 to 50 times a second. Without it the store
// takes one connection from the pool while somebody waits and for a minute after,
// if the pool has at least two and there is no PgBouncer in between.
func WithoutListen() Option { return func(o *options) { o.noListen = true } }

// WithoutSweep keeps claims from forgetting expired records in the background.
// Somebody must call Sweep then. Without it every 256th new claim of a process
// reads some pages of the table and deletes up to 1000 records that have expired.
func WithoutSweep() Option { return func(o *options) { o.noSweep = true } }

// WithLogger sets who is told what an operator should know. Without it that is
// slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// New returns a store that takes its connections from p. It does not use them
// yet: an option that makes no sense, and a table that is not there, are errors of
// every later call.
func New(p *pgxpool.Pool, opts ...Option) *Store {
	var bad error
	db := pool{p: p}
	if p == nil {
		bad = errors.New("pgstore: New: the pool is nil")
	} else {
		db.direct = newDirect(p)
	}
	return newStore(db, bad, opts)
}

// NewSQL is New for database/sql. It is made for the driver of pgx,
// github.com/jackc/pgx/v5/stdlib; with another one there are no notifications.
func NewSQL(db *sql.DB, opts ...Option) *Store {
	var bad error
	if db == nil {
		bad = errors.New("pgstore: NewSQL: the database is nil")
	}
	return newStore(sqlDB{db}, bad, opts)
}

func newStore(db database, bad error, opts []Option) *Store {
	s := &Store{db: db, bad: bad}
	s.opts.table = defaultTable
	for _, opt := range opts {
		opt(&s.opts)
	}
	var err error
	if s.table, err = quoteTable(s.opts.table); err != nil && s.bad == nil {
		s.bad = err
	}
	s.sql = newStatements(s.table)
	return s
}

// Close ends what the store does in the background and waits for it. It leaves
// the pool alone. A store that is not closed ends it by itself, a minute after its
// last use.
func (s *Store) Close() {
	s.waits.close()
	s.broom.close()
}

func (s *Store) log() *slog.Logger { return calmlog.Logger(s.opts.logger) }

// Claim implements [oncehttp.Store].
func (s *Store) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return s.take(ctx, "claim", op, lease, keep, false)
}

// TakeOver implements [oncehttp.Store].
func (s *Store) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return s.take(ctx, "take over", op, lease, keep, true)
}

func (s *Store) take(ctx context.Context, what string, op oncehttp.Op, lease, keep time.Duration, orphans bool) (oncehttp.Claim, error) {
	if err := checkTake(&op, lease, keep); err != nil {
		return oncehttp.Claim{}, err
	}
	if err := s.prepare(ctx); err != nil {
		return oncehttp.Claim{}, err
	}
	c, err := s.claim(ctx, s.db, wanted{op: &op, lease: lease, keep: keep, orphans: orphans})
	if err != nil {
		return oncehttp.Claim{}, s.failed(ctx, what, err)
	}
	if c.Status == oncehttp.ClaimAcquired {
		s.sweepSometimes()
	}
	return c, nil
}

// A wanted is what a claim asks for.
type wanted struct {
	op          *oncehttp.Op
	lease, keep time.Duration
	orphans     bool // may be taken over
	begins      any  // microseconds that a transactional claim has to lock its row, or nil
}

// claim takes a key, or learns the state of a taken one.
func (s *Store) claim(ctx context.Context, q querier, w wanted) (oncehttp.Claim, error) {
	token := packToken(w.op.Token)
	args := []any{rowID(w.op.Key), token, identity(w.op), micros(w.lease), micros(w.keep), w.begins, []byte(w.op.Key)}
	r := claimedPool.Get().(*claimed)
	defer claimedPool.Put(r)
	for try := 0; ; try++ {
		r.row = row{}
		found, err := s.row(ctx, q, s.sql.claim, args, r.dest[:]...)
		switch {
		case err != nil:
			return oncehttp.Claim{}, err
		case found && r.fresh:
			return oncehttp.Claim{
				Status:      oncehttp.ClaimAcquired,
				Fingerprint: w.op.Fingerprint,
				Binding:     w.op.Binding,
				Left:        max(min(r.lapses.Sub(r.now), w.lease), 1), // it may have waited for an insertion that failed
				Holder:      1,
			}, nil
		case found && !r.same:
			return oncehttp.Claim{}, errDigest
		case found:
			own := bytes.Equal(r.token, token)
			if !own && r.holder > 1 && !r.expired() {
				if _, err := s.gone(ctx, q, args[0], &r.row); err != nil {
					return oncehttp.Claim{}, err
				}
			}
			c := r.claim()
			free := r.expired() || r.left() && r.holder == 1
			if !free && (r.done() || !own && !(w.orphans && c.Status == oncehttp.ClaimOrphaned)) {
				return c, nil
			}
			var holder int64
			found, err = s.row(ctx, q, s.sql.take, append(args[:6:6], w.orphans), &r.ident, &holder)
			if err != nil {
				return oncehttp.Claim{}, err
			}
			if found {
				c = oncehttp.Claim{Status: oncehttp.ClaimAcquired, Left: w.lease, Holder: int(holder)}
				setIdentity(&c, r.ident)
				return c, nil
			}
			if r.begins != nil && !own {
				// Its transaction holds it, or somebody has just taken it.
				c.Status, c.Left, c.Head, c.Body = oncehttp.ClaimRunning, max(c.Left, leastLeft), nil, nil
				return c, nil
			}
		}
		// Somebody else was faster, so the key is not what it was.
		if err := s.breathe(ctx, try); err != nil {
			return oncehttp.Claim{}, err
		}
	}
}

// A claimed is what the statement of a claim returns, and where to. They are used
// again: a replay costs little else that is as large.
type claimed struct {
	row
	same bool // it is the same key
	dest [11]any
}

var claimedPool = sync.Pool{New: func() any {
	r := new(claimed)
	r.dest = [...]any{&r.fresh, &r.same, &r.now, &r.token, &r.ident, &r.expires, &r.lapses, &r.begins, &r.holder, &r.head, &r.body}
	return r
}}

// leastLeft is what is left to a claim that has no lease any more but a
// transaction that holds it.
const leastLeft = 100 * time.Millisecond

// Renew implements [oncehttp.Store]. On a record that op.Token completed it is
// nil and changes nothing.
func (s *Store) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	if err := checkRenew(&op, lease); err != nil {
		return err
	}
	return s.change(ctx, "renew", s.sql.renew, &op, lease == 0, micros(lease))
}

// Complete implements [oncehttp.Store]. On a record that op.Token completed it is
// nil and changes nothing.
func (s *Store) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	if err := checkComplete(&op, keep); err != nil {
		return err
	}
	return s.change(ctx, "complete", s.sql.complete, &op, true, head, body, micros(keep))
}

// Release implements [oncehttp.Store]. On a record that op.Token completed it is
// nil and changes nothing.
func (s *Store) Release(ctx context.Context, op oncehttp.Op) error {
	if err := checkOp(&op); err != nil {
		return err
	}
	return orFree(s.change(ctx, "release", s.sql.release, &op, true))
}

// orFree is for a change that a free key has already undergone.
func orFree(err error) error {
	if err == errFree {
		return nil
	}
	return err
}

// errFree is ErrClaimLost because nobody has the key.
var errFree = fmt.Errorf("pgstore: %w", oncehttp.ErrClaimLost)

// change runs a statement that changes the row that op.Token holds.
func (s *Store) change(ctx context.Context, what, sql string, op *oncehttp.Op, wake bool, rest ...any) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	var room [5]any
	args := append(append(room[:0], rowID(op.Key), packToken(op.Token)), rest...)
	for try := 0; ; try++ {
		var notified bool
		changed, err := s.row(ctx, s.db, sql, args, &notified)
		if err != nil {
			return s.failed(ctx, what, err)
		}
		if changed {
			if wake {
				s.waits.wake(op.Key)
			}
			return nil
		}
		var own, done bool
		found, err := s.row(ctx, s.db, s.sql.state, args[:2], &own, &done)
		switch {
		case err != nil:
			return s.failed(ctx, what, err)
		case !found:
			return errFree
		case !own:
			return oncehttp.ErrClaimLost
		case done:
			return nil
		}
		// It was locked, by somebody else or by a connection of ours that the
		// server does not know to be broken; or it was healed in between.
		if err := s.breathe(ctx, try); err != nil {
			return s.failed(ctx, what, err)
		}
	}
}

// row runs a statement of ours, and again if that can help: every one of them may
// be repeated.
func (s *Store) row(ctx context.Context, q querier, sql string, args []any, dest ...any) (bool, error) {
	var lost losses
	for try := 0; ; try++ {
		found, err := q.row(ctx, sql, args, dest...)
		switch {
		case err == nil, ctx.Err() != nil:
			return found, err
		case state(err) == serializationFailure, state(err) == deadlockDetected:
			// By default no statement of ours can fail like this, but a role may
			// have default_transaction_isolation set.
			if err2 := s.breathe(ctx, try); err2 != nil || try > 100 {
				return false, err
			}
		case q == querier(s.db) && lost.another(s.db, err):
			// If the server is gone, that is known at once.
		default:
			return false, err
		}
	}
}

// each runs a statement that returns rows, and again if that can help: begin is
// called before the first row of every run.
func (s *Store) each(ctx context.Context, sql string, args []any, begin func(), one func(scan func(...any) error) error) error {
	var lost losses
	for {
		begin()
		err := s.db.rows(ctx, sql, args, one)
		if err == nil || ctx.Err() != nil || !lost.another(s.db, err) {
			return err
		}
	}
}

// breathe waits a moment between tries, longer each time.
func (s *Store) breathe(ctx context.Context, try int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if try < 2 {
		return nil
	}
	most := time.Millisecond << min(try-2, 8)
	t := time.NewTimer(most/2 + rand.N(most/2))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failed is what a caller is told of an error.
func (s *Store) failed(ctx context.Context, what string, err error) error {
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("pgstore: %s: %w: %w", what, cause, err)
	}
	return s.explain(what, err)
}

// prepare looks at the table before it is used. Calls that come at the same time
// all do: one that waited for another would not end with its own context.
func (s *Store) prepare(ctx context.Context) error {
	if s.bad != nil {
		return s.bad
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.ready.Load() {
		return nil
	}
	_, err := s.look(ctx)
	return err
}

var errNoTable = errors.New("the table is not there")

// look checks the server's settings and the table, and returns the table's oid.
func (s *Store) look(ctx context.Context) (oid int64, err error) {
	var comment, synchronous, fsync string
	var server int64
	// A table that was made while the statement began has no comment yet in what the
	// statement sees, though its name is known: then another look shows it.
	for try := 0; try == 0 || try == 1 && comment == "" && oid != 0; try++ {
		_, err = s.row(ctx, s.db, s.sql.look, nil, &comment, &server, &synchronous, &fsync, &oid)
		if err != nil {
			return 0, s.failed(ctx, "look at the table", err)
		}
	}
	var v int
	_, err = fmt.Sscanf(comment, "oncehttp records, version %d", &v)
	switch {
	case server < 140000:
		return 0, fmt.Errorf("pgstore: the server is PostgreSQL %d; the oldest that works is 14", server/10000)
	case oid == 0:
		return 0, fmt.Errorf("pgstore: %w: call Migrate, or run what Schema returns, to make %s", errNoTable, s.table)
	case err != nil:
		return 0, fmt.Errorf("pgstore: the table %s is not one of this package: its comment does not say so; name another with WithTable", s.table)
	case v > version:
		return 0, fmt.Errorf("pgstore: the table %s is of version %d, this package knows no later one than %d: upgrade the program", s.table, v, version)
	case synchronous == "off":
		// A crash of the server would forget claims whose work has begun.
		return 0, errors.New("pgstore: synchronous_commit is off, so a crash of the server could forget a claim and its work be done twice: " +
			"set it to on for this role, or add options=-csynchronous_commit=on to the connection string")
	}
	if fsync == "off" && s.warned.CompareAndSwap(false, true) {
		s.log().Warn("pgstore: fsync is off on the server: if its machine crashes, records are lost and their work may be done twice")
	}
	s.ready.Store(true)
	return oid, nil
}

// A row is a record as the server has it.
type row struct {
	fresh          bool
	now            time.Time
	id             string
	key            []byte
	token, ident   []byte
	born, expires  time.Time
	lapses, begins *time.Time
	holder         int64
	head, body     []byte
}

func (r *row) expired() bool { return !r.expires.After(r.now) }
func (r *row) done() bool    { return r.lapses == nil }

// left reports whether a transactional claim may have been left behind; whether
// it was, its lock tells.
func (r *row) left() bool { return !r.done() && r.begins != nil && !r.begins.After(r.now) }

// claim is what others are told of the record.
func (r *row) claim() oncehttp.Claim {
	c := oncehttp.Claim{Left: r.expires.Sub(r.now), Holder: int(r.holder)}
	setIdentity(&c, r.ident)
	switch {
	case r.done():
		c.Status, c.Head, c.Body = oncehttp.ClaimDone, r.head, r.body
	case r.begins != nil:
		c.Status, c.Left = oncehttp.ClaimRunning, max(r.lapses.Sub(r.now), leastLeft)
	case r.lapses.After(r.now):
		c.Status, c.Left = oncehttp.ClaimRunning, r.lapses.Sub(r.now)
	default:
		c.Status = oncehttp.ClaimOrphaned
	}
	return c
}

// rowID is what a key's row is found by: half of its SHA-256, as a uuid is written.
func rowID(key string) string {
	sum := sha256.Sum256([]byte(key))
	var b [36]byte
	at := 0
	for i, part := range [...]int{4, 2, 2, 2, 6} {
		if i > 0 {
			b[at] = '-'
			at++
		}
		hex.Encode(b[at:], sum[:part])
		at += 2 * part
		copy(sum[:], sum[part:])
	}
	return string(b[:])
}

// identity puts fingerprint and binding into one column.
func identity(op *oncehttp.Op) []byte {
	b := make([]byte, 0, len(op.Fingerprint)+len(op.Binding))
	return append(append(b, op.Fingerprint[:]...), op.Binding[:]...)
}

func setIdentity(c *oncehttp.Claim, ident []byte) {
	n := copy(c.Fingerprint[:], ident)
	copy(c.Binding[:], ident[n:])
}

// packToken makes 17 bytes of a token such as [oncehttp.NewToken] returns, and is
// one to one.
func packToken(token string) []byte {
	const packed, plain = 1, 0
	b := make([]byte, 0, 1+max(len(token), 16))
	if len(token) == 32 && strings.Trim(token, "0123456789abcdef") == "" {
		if b, err := hex.AppendDecode(append(b, packed), []byte(token)); err == nil {
			return b
		}
	}
	return append(append(b, plain), token...)
}

// micros is a duration in the unit of the server's clock. What is not zero does
// not become zero.
func micros(d time.Duration) int64 {
	us := d.Microseconds()
	if time.Duration(us)*time.Microsecond < d {
		us++
	}
	return us
}

var (
	errDigest   = errors.New("pgstore: another key with the same 128 bits of SHA-256 has a record")
	errNoKey    = errors.New("pgstore: Op.Key is empty")
	errLongKey  = fmt.Errorf("pgstore: Op.Key is longer than %d bytes", maxKey)
	errNoToken  = errors.New("pgstore: Op.Token is empty")
	errLease    = errors.New("pgstore: lease must be positive")
	errNegative = errors.New("pgstore: lease must not be negative")
	errKeep     = errors.New("pgstore: keep must be positive")
)

func checkOp(op *oncehttp.Op) error {
	switch {
	case op.Key == "":
		return errNoKey
	case len(op.Key) > maxKey:
		return errLongKey
	case op.Token == "":
		return errNoToken
	}
	return nil
}

func checkTake(op *oncehttp.Op, lease, keep time.Duration) error {
	if err := checkOp(op); err != nil {
		return err
	}
	switch {
	case lease <= 0:
		return errLease
	case keep <= 0:
		return errKeep
	}
	return nil
}

func checkRenew(op *oncehttp.Op, lease time.Duration) error {
	if err := checkOp(op); err != nil {
		return err
	}
	if lease < 0 {
		return errNegative
	}
	return nil
}

func checkComplete(op *oncehttp.Op, keep time.Duration) error {
	if err := checkOp(op); err != nil {
		return err
	}
	if keep <= 0 {
		return errKeep
	}
	return nil
}
