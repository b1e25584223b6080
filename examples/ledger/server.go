package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/pgstore"
	"github.com/oncehttp/oncehttp/sqlitestore"
)

// A bank is the tool API: POST /tools/transfer moves money.
type bank struct {
	db    *sql.DB
	once  *oncehttp.Middleware
	tx    func(ctx context.Context) *sql.Tx // the store's transaction; nil in plain mode
	stops *stops
}

// newBank opens the books. In transactional mode a transfer and the record of its
// answer are one transaction, which is the store's. In plain mode the handler has a
// transaction of its own, and its answer is recorded when that has been committed.
func newBank(ctx context.Context, p place, isPlain bool, s *stops) (*bank, error) {
	db, err := p.open()
	if err != nil {
		return nil, err
	}
	b := &bank{db: db, stops: s}
	b.once = &oncehttp.Middleware{
		Required: func(*http.Request) bool { return true },
		Wait:     10 * time.Second,
		Logger:   slog.New(slog.DiscardHandler),
	}
	if isPlain {
		// What was killed is known to be an orphan when its lease is over. That of
		// production, 30 s, would make this a long story.
		b.once.Lease = time.Second
	}
	if p.postgres() {
		store := pgstore.NewSQL(db)
		if err := store.Migrate(ctx); err != nil {
			return nil, err
		}
		b.once.Store = store
		if !isPlain {
			b.once.Store, b.tx = store.Transactional(), pgstore.SQLTx
		}
		return b, nil
	}
	store, err := sqlitestore.New(db)
	if err != nil {
		return nil, err
	}
	b.once.Store = store
	if !isPlain {
		b.once.Store, b.tx = store.Transactional(), sqlitestore.Tx
	}
	return b, nil
}

// The points at which the server tells what it does, and may be killed.
const (
	arrived   = "arrived"   // a request is there
	begun     = "begun"     // its handler runs
	written   = "written"   // the rows are written, and not committed
	committed = "committed" // they are, and the answer is not sent
)

func (b *bank) handler() http.Handler {
	protected := b.once.Handler(http.HandlerFunc(b.transfer))
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tools/transfer", func(w http.ResponseWriter, r *http.Request) {
		memo := r.Header.Get(oncehttp.Header) // here a transfer's memo is its key
		b.stops.tell(arrived, memo)
		if b.tx != nil {
			// The store commits between the handler's return and this.
			w = &lastMoment{w, func() { b.stops.at(committed, memo) }}
		}
		protected.ServeHTTP(w, r)
	})
	return mux
}

func (b *bank) transfer(w http.ResponseWriter, r *http.Request) {
	var x transfer
	if err := json.NewDecoder(r.Body).Decode(&x); err != nil || x.Cents <= 0 || x.Memo == "" {
		http.Error(w, "want from, to, positive cents and a memo", http.StatusBadRequest)
		return
	}
	b.stops.at(begun, x.Memo)
	var err error
	if b.tx != nil {
		err = b.enter(r.Context(), b.tx(r.Context()), &x)
	} else {
		err = b.enterAndCommit(r.Context(), &x)
	}
	switch {
	case errors.Is(err, errFunds):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case err != nil:
		http.Error(w, "the books cannot be written", http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(x)
	}
}

func (b *bank) enter(ctx context.Context, tx *sql.Tx, x *transfer) error {
	if err := x.post(ctx, tx); err != nil {
		return err
	}
	b.stops.at(written, x.Memo)
	return nil
}

func (b *bank) enterAndCommit(ctx context.Context, x *transfer) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := b.enter(ctx, tx, x); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	b.stops.at(committed, x.Memo)
	return nil
}

// A lastMoment calls reached before the first byte of an answer is sent.
type lastMoment struct {
	http.ResponseWriter
	reached func()
}

func (l *lastMoment) WriteHeader(status int) {
	if status == http.StatusCreated && l.Header().Get("Idempotent-Replayed") == "" {
		l.reached()
	}
	l.ResponseWriter.WriteHeader(status)
}

// stops are how the server tells the client's side what it does, and is held there,
// so that it can be killed at just that point.
type stops struct {
	out io.Writer
	on  chan struct{} // a value for each time that the server may go on

	mu   sync.Mutex // for out
	held sync.Mutex // one at a time
}

// newStops reads a line from in for each time that the server may go on. When in
// ends nobody is there any more, and neither should the server be.
func newStops(in io.Reader, out io.Writer) *stops {
	s := &stops{out: out, on: make(chan struct{})}
	go func() {
		for lines := bufio.NewScanner(in); lines.Scan(); {
			s.on <- struct{}{}
		}
		os.Exit(1)
	}()
	return s
}

func (s *stops) tell(point, memo string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%s %s\n", point, memo)
}

// at goes on when it is told to.
func (s *stops) at(point, memo string) {
	s.held.Lock()
	defer s.held.Unlock()
	s.tell(point, memo)
	<-s.on
}

// serve is the server's process. Its listener is handed down, so that clients who
// come while it is started again wait, and the address stays.
func serve(handler func(*bank) http.Handler) error {
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	s := newStops(os.Stdin, os.Stdout)
	b, err := newBank(context.Background(), place{os.Getenv(envDB)}, os.Getenv(envMode) != transactional, s)
	if err != nil {
		return err
	}
	return http.Serve(l, handler(b))
}
