package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// Those who wait without a notification look this often.
	minPoll = 20 * time.Millisecond
	maxPoll = 200 * time.Millisecond
	// Those who wait for one look too, in case it is lost.
	safety = 2 * time.Second

	// listenIdle is how long the store listens when nobody waits.
	listenIdle = time.Minute
	// listenAgain is how long it polls after it could not listen.
	listenAgain = 10 * time.Second
)

// waits knows who in this process waits for which key, and listens for the
// others' sake.
type waits struct {
	n atomic.Int64 // rooms: so that a completion need not id its key for nobody

	mu      sync.Mutex
	rooms   map[string]*room // by the key's id, as notifications name it
	live    bool             // a connection listens
	starts  bool             // or is about to
	never   bool             // or never will
	retry   time.Time        // not before this
	last    time.Time        // when a room was last left
	changed chan struct{}    // closed when live changes
	closed  bool
	stop    context.CancelFunc // ends listening
	wg      sync.WaitGroup
}

// A room is where those wait who wait for one key. One goroutine looks at the key
// for all of them.
type room struct {
	n     int
	woken chan struct{} // closed when the key may have changed
	leave context.CancelFunc
}

// Wait implements [oncehttp.Waiter]. It returns nil at once for a key that is not
// running. Else it returns when the key is completed, released, or made or left an
// orphan: as soon as the notification comes if the store can listen for one (see
// [WithoutListen]), and otherwise, and for a key that a transaction holds, some 50
// to 200 ms later. What happens in the same process is known at once.
func (s *Store) Wait(ctx context.Context, key string) error {
	if key == "" {
		return errNoKey
	}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	w := &s.waits
	id := rowID(key)
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return errClosed
	}
	r := w.rooms[id]
	if r == nil {
		rctx, cancel := context.WithCancel(context.Background())
		r = &room{woken: make(chan struct{}), leave: cancel}
		if w.rooms == nil {
			w.rooms = make(map[string]*room)
		}
		w.rooms[id] = r
		w.n.Add(1)
		w.wg.Add(1)
		go func() {
			defer w.wg.Done()
			defer w.empty(id, r)
			s.watch(rctx, key, r)
		}()
	}
	r.n++
	w.mu.Unlock()

	select {
	case <-r.woken:
		return nil
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.n--; r.n == 0 {
		w.remove(id, r)
	}
	return ctx.Err()
}

var errClosed = errors.New("pgstore: the store is closed")

// empty ends a room: all who wait there go.
func (w *waits) empty(id string, r *room) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(id, r)
	select {
	case <-r.woken:
	default:
		close(r.woken)
	}
}

// remove takes a room away, so that the next who waits opens a new one.
func (w *waits) remove(id string, r *room) {
	r.leave()
	if w.rooms[id] == r {
		delete(w.rooms, id)
		w.n.Add(-1)
		w.last = time.Now()
	}
}

// wake ends every Wait for a key in this process.
func (w *waits) wake(key string) {
	if w.n.Load() > 0 {
		w.notified(rowID(key))
	}
}

func (w *waits) notified(id string) {
	w.mu.Lock()
	r := w.rooms[id]
	w.mu.Unlock()
	if r != nil {
		w.empty(id, r)
	}
}

// close ends every Wait, and listening.
func (w *waits) close() {
	w.mu.Lock()
	w.closed = true
	for id, r := range w.rooms {
		w.remove(id, r)
	}
	if w.stop != nil {
		w.stop()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

// watch returns when a key may have changed, or ctx has ended.
func (s *Store) watch(ctx context.Context, key string, r *room) {
	args := []any{rowID(key), false}
	for poll := minPoll; ; poll = min(poll*3/2, maxPoll) {
		live, changed := s.listening()
		args[1] = live
		var now time.Time
		var lapses, begins *time.Time
		var flagged bool
		found, err := s.row(ctx, s.db, s.sql.flag, args, &now, &lapses, &begins, &flagged)
		nap := poll
		switch {
		case ctx.Err() != nil:
			return
		case err != nil: // those who wait have an end of their own
			nap = maxPoll
		case !found || lapses == nil:
			return
		case begins != nil:
			if !begins.After(now) && s.abandoned(ctx, key) {
				return
			}
		case !lapses.After(now):
			return
		case live && flagged:
			nap = min(lapses.Sub(now)+time.Millisecond, safety)
		default:
			nap = min(lapses.Sub(now)+time.Millisecond, poll)
		}
		t := time.NewTimer(nap)
		select {
		case <-t.C:
		case <-changed:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// abandoned reports whether a transactional claim holds its row no more.
func (s *Store) abandoned(ctx context.Context, key string) bool {
	var yes bool
	found, err := s.row(ctx, s.db, s.sql.ask, []any{rowID(key)}, &yes)
	return found && err == nil
}

// listening reports whether a connection listens, starts one if it can, and
// returns what is closed when that changes.
func (s *Store) listening() (live bool, changed <-chan struct{}) {
	w := &s.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	if !w.live && !w.starts && !w.never && !w.closed && !s.opts.noListen && !time.Now().Before(w.retry) {
		w.starts = true
		ctx, cancel := context.WithCancel(context.Background())
		w.stop = cancel
		w.wg.Add(1)
		go func() {
			defer w.wg.Done()
			defer cancel()
			err := s.listen(ctx)
			w.mu.Lock()
			w.starts = false
			if w.live {
				w.set(false)
			}
			switch {
			case errors.Is(err, errNoListen):
				w.never = true
			case err != nil:
				w.retry = time.Now().Add(listenAgain)
			}
			closed := w.closed
			w.mu.Unlock()
			if err != nil && !closed {
				s.log().Info("pgstore: nothing to be notified by; those who wait for a key look for themselves", "err", err)
			}
		}()
	}
	return w.live, w.changed
}

// set is called with w.mu locked.
func (w *waits) set(live bool) {
	w.live = live
	if w.changed != nil {
		close(w.changed)
	}
	w.changed = make(chan struct{})
}

// listen wakes those who wait, until nobody does or the connection breaks.
func (s *Store) listen(ctx context.Context) error {
	w := &s.waits
	starting, cancel := context.WithTimeout(ctx, closing)
	defer cancel()
	oid, err := s.look(starting)
	if err != nil {
		return err
	}
	conn, done, err := s.db.dedicated(starting)
	if err != nil {
		return err
	}
	defer done()
	var pid int64
	if err := conn.QueryRow(starting, "SELECT pg_backend_pid()::int8").Scan(&pid); err != nil {
		return s.failed(starting, "listen", err)
	}
	if uint32(pid) != conn.PgConn().PID() {
		// What pools by transaction would let us listen on a connection that
		// is somebody else's the moment after.
		return fmt.Errorf("%w: there is a pooler between us and the server", errNoListen)
	}
	if _, err := conn.Exec(starting, fmt.Sprintf("LISTEN oncehttp_%d", oid)); err != nil {
		return s.failed(starting, "listen", err)
	}
	w.mu.Lock()
	w.set(true)
	w.mu.Unlock()
	for {
		id, err := notification(ctx, conn)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("pgstore: listen: %w", err)
		case id != "":
			w.notified(id)
		}
		w.mu.Lock()
		if len(w.rooms) == 0 && time.Since(w.last) > listenIdle {
			w.set(false) // with w.mu locked: whoever comes now starts another
			w.mu.Unlock()
			return nil
		}
		w.mu.Unlock()
	}
}

// notification returns the next one's payload, or "" if none has come for a
// while.
func notification(ctx context.Context, conn *pgx.Conn) (string, error) {
	wctx, cancel := context.WithTimeout(ctx, listenIdle/4)
	defer cancel()
	n, err := conn.WaitForNotification(wctx)
	switch {
	case err == nil:
		return n.Payload, nil
	case wctx.Err() != nil && ctx.Err() == nil && !conn.IsClosed():
		return "", nil
	}
	return "", err
}
