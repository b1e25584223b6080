package sqlitestore

import (
	"context"
	"database/sql"
	"time"
)

// Readers look keys up, each on a connection of its own, and wait neither for the
// writer nor, as long as there are enough of them, for each other. They are opened
// when they are needed.
type readers struct {
	free  chan *reader
	spare chan struct{} // one for each that was not opened yet
}

type reader struct {
	conn *sql.Conn
	load *sql.Stmt
}

func newReaders(n int) readers {
	r := readers{free: make(chan *reader, n), spare: make(chan struct{}, n)}
	for range n {
		r.spare <- struct{}{}
	}
	return r
}

// read looks a key up.
func (s *Store) read(ctx context.Context, key string) (row, bool, error) {
	rd, err := s.readers.take(ctx, s)
	if err != nil {
		return row{}, false, err
	}
	defer s.readers.put(rd)
	until := time.Time{}
	for {
		// Not with ctx: this takes some microseconds, and so does a context that
		// can end.
		r, found, err := load(context.Background(), rd.load, key)
		if err == nil || !isBusy(err) {
			return r, found, err
		}
		// Readers of a write-ahead log wait for nobody, except while another
		// process opens or closes the file for the first or last time.
		if until.IsZero() {
			until = time.Now().Add(s.busy())
		}
		if ctx.Err() != nil {
			return row{}, false, ctx.Err()
		}
		if time.Now().After(until) {
			return row{}, false, err
		}
		time.Sleep(time.Millisecond)
	}
}

func (r *readers) take(ctx context.Context, s *Store) (*reader, error) {
	select {
	case rd := <-r.free:
		return rd, nil
	default:
	}
	select {
	case rd := <-r.free:
		return rd, nil
	case <-r.spare:
		rd, err := s.openReader(ctx)
		if err != nil {
			r.spare <- struct{}{}
		}
		return rd, err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.closed:
		return nil, ErrClosed
	}
}

func (r *readers) put(rd *reader) { r.free <- rd }

func (s *Store) openReader(ctx context.Context) (*reader, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	stmt, err := conn.PrepareContext(ctx, sqlLoad)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &reader{conn, stmt}, nil
}

// close ends all readers, when they have been put back.
func (r *readers) close() {
	for range cap(r.free) {
		select {
		case rd := <-r.free:
			rd.load.Close()
			rd.conn.Close()
		case <-r.spare:
		}
	}
}
