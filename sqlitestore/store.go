// Package sqlitestore keeps the records of oncehttp in a file, by way of SQLite,
// without cgo.
//
//	store, err := sqlitestore.Open("once.db")
//	if err != nil { … }
//	defer store.Close()
//	mux.Handle("POST /refunds", (&oncehttp.Middleware{Store: store}).Handler(h))
//
// A handler whose effects are writes to the same file can have them committed
// together with its record: see [Store.Transactional].
package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/calmlog"
)

// A Store keeps records in an SQLite file. What it has answered is on the disk.
// Make one with [Open] or [New]. It is safe for concurrent use, and any number of
// processes on one machine may have the same file open, each with one Store. It is
// an [oncehttp.Waiter] and an [oncehttp.Inspector] too.
//
// All that is asked of it at about the same time is written in one transaction and
// shares one wait for the disk. Replays, and other looks at a key that is taken,
// are only read and do not wait for that.
//
// Its clock is the wall clock, corrected for what is done to that: when it is set,
// forwards or backwards, leases and retention go on as if it had not been, provided
// that a process has the file open. A clock that was set ahead while none had makes
// records expire earlier by as much.
type Store struct {
	db   *sql.DB
	ours bool // to be closed
	path string
	opts options
	file string // the path as SQLite has it, which puts its own files beside it
	id   int64  // tells this store's transactional claims from those of others on the file

	clock   clock
	readers readers
	queue   queue
	turn    turn
	writer  *writer
	waits   waits

	presence presence

	stopped chan struct{} // the writer has
	closed  chan struct{}
	closing sync.Once
	users   sync.WaitGroup // calls that read, and transactions

	mu          sync.Mutex
	over        bool           // Close was called
	transacting map[string]int // by token
	tx          *sql.Conn      // for transactions; guarded by turn
}

// An Option changes what Open and New make.
type Option func(*options)

type options struct {
	busy    time.Duration
	noSweep bool
	logger  *slog.Logger
}

// WithBusyTimeout sets how long a call may wait for the file's write lock while
// another process or a transactional handler has it, and how long Open waits. After
// that it fails with [ErrLocked] and nothing was done. Without it that is 5 s. A
// call's context may end it earlier.
func WithBusyTimeout(d time.Duration) Option { return func(o *options) { o.busy = d } }

// WithoutSweep keeps the store from forgetting expired records by itself. Somebody
// must call Sweep then.
func WithoutSweep() Option { return func(o *options) { o.noSweep = true } }

// WithLogger sets who is told what an operator should know. Without it that is
// slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

const (
	defaultBusy = 5 * time.Second
	mostReaders = 4
)

// Open opens a file, and makes it if there is none, for its owner's eyes only.
// Beside it SQLite keeps two more, with -wal and -shm after its name, which belong
// to it: whoever copies one copies all, with no process running, or uses SQLite's
// backup. The file must be on a local disk. A store that has transactional claims
// keeps a third, see [TxStore], whose copy is of no use.
//
// It may hold tables of others, too. The store's own begin with oncehttp_.
//
// Errors say what is wrong with the file: see [ErrLocked], [ErrReadOnly],
// [ErrNoSpace], [ErrCorrupt], [ErrNewer] and [ErrCannotOpen].
func Open(path string, opts ...Option) (*Store, error) {
	switch {
	case path == "":
		return nil, errors.New("sqlitestore: Open: the path is empty")
	case path == ":memory:" || strings.HasPrefix(path, "file:"):
		return nil, errors.New("sqlitestore: Open wants the path of a file: use New for a database that is opened in another way, and oncehttp.MemoryStore for one in memory")
	}
	// Connections are opened later, too, when the working directory may be another.
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, explain("open", path, err)
	}
	s := newStore(opts)
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := create(abs); err != nil {
		return nil, explain("open", abs, err)
	}
	s.path, s.ours = abs, true
	if s.db, err = sql.Open("sqlite", dsn(abs, s.busy())); err != nil {
		return nil, explain("open", abs, err)
	}
	if err := s.start(mostReaders); err != nil {
		s.db.Close()
		return nil, explain("open", abs, err)
	}
	return s, nil
}

// New makes a store of a database that the caller has opened with the driver
// "sqlite" of modernc.org/sqlite, and closes after the store. The store makes its
// tables, switches the journal to WAL, and takes up to six connections for itself.
// A limit on open connections must be at least 4, and leave some for the caller.
func New(db *sql.DB, opts ...Option) (*Store, error) {
	if db == nil {
		return nil, errors.New("sqlitestore: New: the database is nil")
	}
	s := newStore(opts)
	if err := s.check(); err != nil {
		return nil, err
	}
	n := mostReaders
	if most := db.Stats().MaxOpenConnections; most > 0 {
		if most < 4 {
			return nil, errors.New("sqlitestore: New: SetMaxOpenConns allows fewer than 4 connections: the store takes one to write with, " +
				"one for transactions and one or more to read with")
		}
		n = min(n, most-3)
	}
	s.db = db
	if err := s.start(n); err != nil {
		return nil, explain("new", cmp.Or(s.path, "the database"), err)
	}
	return s, nil
}

func newStore(opts []Option) *Store {
	s := &Store{
		id:          rand.Int64N(1<<62) + 1,
		stopped:     make(chan struct{}),
		closed:      make(chan struct{}),
		transacting: make(map[string]int),
	}
	s.queue.ready = make(chan struct{}, 1)
	for _, opt := range opts {
		opt(&s.opts)
	}
	return s
}

func (s *Store) check() error {
	if s.opts.busy < 0 {
		return errors.New("sqlitestore: WithBusyTimeout: the time is negative")
	}
	return nil
}

func (s *Store) busy() time.Duration { return cmp.Or(s.opts.busy, defaultBusy) }

func (s *Store) log() *slog.Logger { return calmlog.Logger(s.opts.logger) }

// start opens the file and begins to write.
func (s *Store) start(nreaders int) error {
	w := &writer{s: s, ctx: context.Background()}
	if err := w.open(); err != nil {
		return err
	}
	if err := w.try(); err != nil {
		w.close()
		return err
	}
	s.readers = newReaders(nreaders)
	s.waits.init(s)
	s.writer = w
	go w.run()
	return nil
}

// Close waits until everything that was asked for is on the disk and every
// transactional handler has returned, and closes the file. What is asked for later
// gets [ErrClosed]. It may be called again, and the database given to New stays
// open.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		s.mu.Lock()
		s.over = true
		s.mu.Unlock()
		close(s.closed)
		s.waits.close()
		s.users.Wait() // readers and transactions, which may still have something to write
		s.queue.close()
		<-s.stopped
		s.readers.close()
		if s.tx != nil {
			discard(s.tx)
		}
		s.vanish()
		if s.ours {
			err = s.db.Close()
		}
	})
	<-s.stopped
	return err
}

// enter begins a use of the store, which Close waits for.
func (s *Store) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return ErrClosed
	}
	s.users.Add(1)
	return nil
}

var (
	errNoKey    = errors.New("sqlitestore: Op.Key is empty")
	errNoToken  = errors.New("sqlitestore: Op.Token is empty")
	errLease    = errors.New("sqlitestore: lease must be positive")
	errNegative = errors.New("sqlitestore: lease must not be negative")
	errKeep     = errors.New("sqlitestore: keep must be positive")
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

// Claim implements [oncehttp.Store].
func (s *Store) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return s.take(ctx, "claim", op, lease, keep, false, 0)
}

// TakeOver implements [oncehttp.Store].
func (s *Store) TakeOver(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return s.take(ctx, "take over", op, lease, keep, true, 0)
}

func (s *Store) take(ctx context.Context, what string, op oncehttp.Op, lease, keep time.Duration, orphans bool, owner int64) (oncehttp.Claim, error) {
	switch err := checkOp(&op); {
	case err != nil:
		return oncehttp.Claim{}, err
	case lease <= 0:
		return oncehttp.Claim{}, errLease
	case keep <= 0:
		return oncehttp.Claim{}, errKeep
	}
	if err := ctx.Err(); err != nil {
		return oncehttp.Claim{}, err
	}
	if err := s.enter(); err != nil {
		return oncehttp.Claim{}, err
	}
	defer s.users.Done()

	// Most of what is asked can be answered without writing.
	r, found, err := s.read(ctx, op.Key)
	if err != nil {
		return oncehttp.Claim{}, s.readFailed(ctx, what, err)
	}
	c := &call{what: what, do: doClaim, op: op, lease: micros(lease), keep: micros(keep), orphans: orphans, owner: owner}
	if now := s.clock.now(); found && now < r.expires {
		switch status := s.status(&r, now); {
		case status == oncehttp.ClaimDone:
			return r.claim(now, status), nil
		case string(r.token) == op.Token:
		case s.foreign(&r):
			running := r.claim(now, oncehttp.ClaimRunning)
			switch {
			case !s.lives(r.owner):
				c.gone = r.owner
			case now < s.overdue(&r):
				return running, nil
			default:
				c.running = &running
			}
		case status == oncehttp.ClaimRunning || !orphans:
			return r.claim(now, status), nil
		}
	}
	if owner != 0 {
		if err := s.appear(); err != nil {
			return oncehttp.Claim{}, full(explain(what, s.path, err))
		}
	}
	if err := s.submit(ctx, c); err != nil {
		return oncehttp.Claim{}, full(err)
	}
	return c.claim, nil
}

// readFailed is the error of a look-up that failed.
func (s *Store) readFailed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return s.waited(what, ctx)
	}
	return explain(what, s.path, err)
}

// Renew implements [oncehttp.Store].
func (s *Store) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	if err := checkOp(&op); err != nil {
		return err
	}
	if lease < 0 {
		return errNegative
	}
	return s.write(ctx, &call{what: "renew", do: doRenew, op: op, lease: micros(lease)})
}

// Complete implements [oncehttp.Store]. An answer whose body finds no space in the
// file is kept without it.
func (s *Store) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	if err := checkOp(&op); err != nil {
		return err
	}
	if keep <= 0 {
		return errKeep
	}
	return s.write(ctx, &call{what: "complete", do: doComplete, op: op, keep: micros(keep), head: head, body: body})
}

// Release implements [oncehttp.Store].
func (s *Store) Release(ctx context.Context, op oncehttp.Op) error {
	if err := checkOp(&op); err != nil {
		return err
	}
	return s.write(ctx, &call{what: "release", do: doRelease, op: op})
}
