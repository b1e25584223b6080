package sqlitestore

import (
	"context"
	"database/sql"
	"maps"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp"
)

// waits are those who wait for keys. What this store changes wakes them at once.
// What other processes change is looked for, 40 times a second and only while
// somebody waits.
type waits struct {
	s *Store

	mu      sync.Mutex
	rooms   map[string]*room
	looking bool
	closed  bool
	enter   chan struct{} // holds a token when there may be a room to look after
	looks   sync.WaitGroup
}

// A room holds those who wait for one key.
type room struct {
	changed chan struct{} // closed: look again
	n       int
	token   string // of the holder when the first of them looked
	owner   int64  // of its claim, if that is another store's; else 0
	lapses  int64
	looked  bool // since then
}

const (
	lookEvery = 25 * time.Millisecond
	// askEvery is how often the owners of transactional claims are asked for.
	askEvery = 4 * lookEvery
	// linger is for how long the looking goes on when nobody waits any more: who
	// waits often does so again at once.
	linger = time.Second
)

func (w *waits) init(s *Store) {
	w.s = s
	w.rooms = make(map[string]*room)
	w.enter = make(chan struct{}, 1)
}

// Wait implements [oncehttp.Waiter]. It returns nil at once for a key that is not
// running, and otherwise when the key is completed, released or taken from its
// holder, or when its lease lapses.
func (s *Store) Wait(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	// Join first and look then: what changes in between wakes us.
	room := s.waits.join(key)
	r, found, err := s.read(ctx, key)
	s.users.Done() // Close need not wait for who only waits
	now := s.clock.now()
	switch {
	case err != nil:
		s.waits.leave(key, room)
		return s.readFailed(ctx, "wait", err)
	case !found || now >= r.expires || s.status(&r, now) != oncehttp.ClaimRunning && !s.foreign(&r):
		s.waits.leave(key, room)
		return nil
	}
	s.waits.watch(room, &r)
	defer s.waits.leave(key, room)
	select {
	case <-room.changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closed:
		return ErrClosed
	}
}

func (w *waits) join(key string) *room {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.rooms[key]
	if r == nil {
		r = &room{changed: make(chan struct{})}
		w.rooms[key] = r
	}
	r.n++
	return r
}

func (w *waits) leave(key string, r *room) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.n--; r.n == 0 && w.rooms[key] == r {
		delete(w.rooms, key)
	}
}

// wake ends every Wait for a key.
func (w *waits) wake(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.rooms[key]; r != nil {
		delete(w.rooms, key)
		close(r.changed)
	}
}

// watch has a room's key looked at, whose row was just read.
func (w *waits) watch(r *room, row *row) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.token == "" {
		r.token, r.lapses = string(row.token), row.lapses
		if w.s.foreign(row) {
			r.owner = row.owner
		}
	}
	if !w.looking && !w.closed {
		w.looking = true
		w.looks.Add(1)
		go w.look()
	}
}

// look looks for what others change, until nobody has waited for a while.
func (w *waits) look() {
	defer w.looks.Done()
	var l looker
	defer l.close()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	busy := time.Now()
	asked := busy
	for {
		select {
		case <-tick.C:
		case <-w.s.closed:
		}
		w.mu.Lock()
		if len(w.rooms) > 0 {
			busy = time.Now()
		}
		if w.closed || time.Since(busy) > linger {
			w.looking = false
			w.mu.Unlock()
			return
		}
		now := w.s.clock.now()
		w.mu.Unlock()
		began := time.Now()
		changed := l.changed(w.s) // what changes from here on is seen the next time
		for key, r := range w.due(changed, now) {
			if l.hasChanged(w.s, key, r, now) {
				w.wake(key)
			}
		}
		if time.Since(asked) >= askEvery {
			w.askForOwners()
			asked = time.Now()
		}
		// With very many keys to look at, look less often.
		tick.Reset(max(lookEvery, 10*time.Since(began)))
	}
}

// due are the rooms to look after: all if something has changed, else those whose
// lease has lapsed, and those that are new. What they wait for may have happened
// before the change that was last seen, and after they looked.
func (w *waits) due(all bool, now int64) map[string]*room {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := make(map[string]*room)
	for key, r := range w.rooms {
		if r.token != "" && (all || !r.looked || now >= r.lapses) {
			r.looked = true
			due[key] = r
		}
	}
	return due
}

// askForOwners wakes those who wait for a claim whose store has ended: it changes
// nothing in the file when its process dies.
func (w *waits) askForOwners() {
	w.mu.Lock()
	owners := make(map[int64]bool)
	for _, r := range w.rooms {
		if r.owner != 0 {
			owners[r.owner] = true
		}
	}
	w.mu.Unlock()
	maps.DeleteFunc(owners, func(owner int64, _ bool) bool { return w.s.lives(owner) })
	if len(owners) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, r := range w.rooms {
		if owners[r.owner] {
			delete(w.rooms, key)
			close(r.changed)
		}
	}
}

// A looker is the connection that looks.
type looker struct {
	conn          *sql.Conn
	version, load *sql.Stmt
	last          int64
}

// changed reports whether anything in the file has changed since it was last asked.
func (l *looker) changed(s *Store) bool {
	ctx := context.Background()
	if l.conn == nil {
		// The pool is the caller's and may have nothing to spare.
		enough, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, err := s.db.Conn(enough)
		if err != nil {
			return false
		}
		l.conn, l.last = conn, -1
		if l.version, err = conn.PrepareContext(ctx, "PRAGMA data_version"); err == nil {
			l.load, err = conn.PrepareContext(ctx, sqlLoadState)
		}
		if err != nil {
			l.close()
			return false
		}
	}
	var v int64
	if err := l.version.QueryRowContext(ctx).Scan(&v); err != nil {
		l.close()
		return false
	}
	changed := v != l.last
	l.last = v
	return changed
}

// hasChanged reports whether a key is no longer as it was when its room was made.
func (l *looker) hasChanged(s *Store, key string, r *room, now int64) bool {
	if l.conn == nil {
		return now >= r.lapses
	}
	var row row
	err := l.load.QueryRowContext(context.Background(), []byte(key)).Scan(&row.token, &row.lapses, &row.expires, &row.state)
	switch {
	case err == sql.ErrNoRows:
		return true
	case err != nil:
		l.close()
		return false
	}
	if row.state != stateClaimed || string(row.token) != r.token || now >= row.expires {
		return true
	}
	return s.status(&row, now) != oncehttp.ClaimRunning
}

func (l *looker) close() {
	for _, stmt := range []*sql.Stmt{l.version, l.load} {
		if stmt != nil {
			stmt.Close()
		}
	}
	if l.conn != nil {
		l.conn.Close()
	}
	*l = looker{}
}

// close ends the looking.
func (w *waits) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.looks.Wait()
}
