package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// listenIdle is how long the store stays subscribed when nobody waits.
	listenIdle = time.Minute
	// listenPing is how long a subscription may be silent before it is asked
	// whether it still exists.
	listenPing = 10 * time.Second
	// listenAgain is how long there is no other subscription after one failed.
	listenAgain = time.Second
)

// waits knows who in this process waits for which record. All of them share one
// connection that subscribes to the channels of these records.
type waits struct {
	n atomic.Int64 // rooms: so that a completion need not look for nobody

	mu     sync.Mutex
	rooms  map[string]*room // by the name of the channel, which is that of the key
	ear    *ear             // nil: nobody listens
	failed error            // why nobody did, at
	at     time.Time
	left   time.Time // when a room was last left
	closed bool
	wg     sync.WaitGroup
}

// An ear is one subscription.
type ear struct {
	sub  *redis.PubSub
	wire sync.Mutex // orders what is subscribed to
}

// A room is where those wait who wait for one record.
type room struct {
	n     int
	ear   *ear
	ready chan struct{} // closed when its channel is subscribed to
	woken chan struct{} // closed when the record may have changed, or with err set
	err   error
	leave context.CancelFunc
}

// Wait implements [oncehttp.Waiter]. It returns nil at once for a key that is not
// running. Else it returns when the key is completed, released, or made or left an
// orphan. It needs the right to subscribe to the channel that is named as the key
// is; without it, and while the server cannot be reached, it returns an error.
func (s *Store) Wait(ctx context.Context, key string) error {
	if key == "" {
		return errNoKey
	}
	if err := s.prepare(ctx, false); err != nil {
		return err
	}
	channel := s.opts.prefix + key
	r, err := s.enter(channel)
	if err != nil {
		return err
	}
	w := &s.waits
	select {
	case <-r.woken:
		return r.err
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.n--; r.n == 0 {
		w.remove(channel, r)
	}
	return ctx.Err()
}

var errClosed = errors.New("redisstore: the store is closed")

// enter returns the room of a channel, with one more in it.
func (s *Store) enter(channel string) (*room, error) {
	w := &s.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return nil, errClosed
	case w.ear == nil && w.failed != nil && time.Since(w.at) < listenAgain:
		return nil, w.failed
	}
	if w.ear == nil {
		w.ear = &ear{sub: s.client.Subscribe(context.Background())}
		w.left = time.Now()
		w.wg.Add(1)
		go s.listen(w.ear)
	}
	r := w.rooms[channel]
	if r == nil {
		ctx, cancel := context.WithCancel(context.Background())
		r = &room{ear: w.ear, ready: make(chan struct{}), woken: make(chan struct{}), leave: cancel}
		if w.rooms == nil {
			w.rooms = make(map[string]*room)
		}
		w.rooms[channel] = r
		w.n.Add(1)
		w.wg.Add(1)
		go s.watch(ctx, channel, r)
	}
	r.n++
	return r, nil
}

// remove takes a room away, so that the next who waits opens a new one.
func (w *waits) remove(channel string, r *room) {
	r.leave()
	if w.rooms[channel] == r {
		delete(w.rooms, channel)
		w.n.Add(-1)
		w.left = time.Now()
	}
}

// empty ends a room: all who wait there go.
func (w *waits) empty(channel string, r *room, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(channel, r)
	select {
	case <-r.woken:
	default:
		r.err = err
		close(r.woken)
	}
}

// wake ends every Wait for a record in this process.
func (w *waits) wake(channel string) {
	if w.n.Load() == 0 {
		return
	}
	if r := w.room(channel); r != nil {
		w.empty(channel, r, nil)
	}
}

func (w *waits) room(channel string) *room {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rooms[channel]
}

// close ends every Wait, and listening.
func (w *waits) close() {
	w.mu.Lock()
	w.closed = true
	rooms := make(map[string]*room, len(w.rooms))
	for channel, r := range w.rooms {
		rooms[channel] = r
	}
	ear := w.ear
	w.mu.Unlock()
	for channel, r := range rooms {
		w.empty(channel, r, errClosed)
	}
	if ear != nil {
		ear.sub.Close()
	}
	w.wg.Wait()
}

// watch subscribes to a record's channel, has the record flagged, and wakes the
// room when there is nothing to wait for.
func (s *Store) watch(ctx context.Context, channel string, r *room) {
	w := &s.waits
	defer w.wg.Done()
	var err error
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redisstore: wait: the client panicked: %v", p)
		}
		w.empty(channel, r, err)
		r.ear.unsubscribe(w, channel)
	}()
	if err = r.ear.subscribe(channel); err != nil {
		err = explain("wait", err)
		return
	}
	// Flagged only once messages arrive: the one that ends the wait may be sent
	// the moment after.
	select {
	case <-r.ready:
	case <-ctx.Done():
		return
	}
	for {
		var reply any
		reply, err = s.eval(ctx, "wait", flagScript, channel[len(s.opts.prefix):])
		left, _ := reply.(int64)
		if err != nil || left <= 0 {
			return
		}
		t := time.NewTimer(duration(left))
		select {
		case <-t.C: // the lease has lapsed, or was renewed
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

func (e *ear) subscribe(channel string) error {
	e.wire.Lock()
	defer e.wire.Unlock()
	return e.sub.Subscribe(context.Background(), channel)
}

// unsubscribe ends the subscription to a channel, unless somebody waits for it
// again.
func (e *ear) unsubscribe(w *waits, channel string) {
	e.wire.Lock()
	defer e.wire.Unlock()
	if r := w.room(channel); r == nil || r.ear != e {
		e.sub.Unsubscribe(context.Background(), channel)
	}
}

// listen wakes those who wait, until nobody has for a while or the connection
// breaks.
func (s *Store) listen(e *ear) {
	w := &s.waits
	defer w.wg.Done()
	err := s.hear(e)
	w.mu.Lock()
	if w.ear == e { // and no other has taken its place
		w.ear, w.failed, w.at = nil, err, time.Now()
	}
	rooms := make(map[string]*room)
	for channel, r := range w.rooms {
		if r.ear == e {
			rooms[channel] = r
		}
	}
	closed := w.closed
	w.mu.Unlock()
	for channel, r := range rooms {
		w.empty(channel, r, err)
	}
	e.sub.Close()
	if err != nil && !closed {
		s.log().Info("redisstore: nothing to be told by; those who wait for a key look for themselves", "err", err)
	}
}

func (s *Store) hear(e *ear) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redisstore: wait: the client panicked: %v", p)
		}
	}()
	w := &s.waits
	silent := 0
	for {
		m, err := e.sub.ReceiveTimeout(context.Background(), listenPing)
		var n net.Error
		switch {
		case err == nil:
			silent = 0
		case errors.As(err, &n) && n.Timeout() && silent == 0:
			silent++
			if err := e.sub.Ping(context.Background()); err != nil {
				return explain("wait", err)
			}
		default:
			return explain("wait", err)
		}
		switch m := m.(type) {
		case *redis.Subscription:
			if r := w.room(m.Channel); m.Kind == "subscribe" && r != nil {
				s.subscribed(m.Channel, r)
			}
		case *redis.Message:
			w.wake(m.Channel)
		}
		if w.idle(e) {
			return nil
		}
	}
}

// subscribed notes that a room's channel is subscribed to. The second time means
// that the client has connected again, and that a message may be lost.
func (s *Store) subscribed(channel string, r *room) {
	select {
	case <-r.ready:
		s.waits.empty(channel, r, nil)
	default:
		close(r.ready)
	}
}

// idle reports whether nobody has waited for a while, and then takes the ear away.
func (w *waits) idle(e *ear) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rooms) > 0 || time.Since(w.left) < listenIdle {
		return false
	}
	if w.ear == e {
		w.ear = nil
	}
	return true
}
