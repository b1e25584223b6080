package pgstore

import (
	"context"
	"errors"

	"github.com/oncehttp/oncehttp"
)

// List implements [oncehttp.Inspector]. It reads the whole table for every page: the
// keys themselves have no index.
func (s *Store) List(ctx context.Context, q oncehttp.RecordQuery) ([]oncehttp.Record, error) {
	switch {
	case q.Status < 0, q.Status == oncehttp.ClaimAcquired, q.Status > oncehttp.ClaimOrphaned:
		return nil, errors.New("pgstore: RecordQuery.Status is not a state of a record: running, done or orphaned")
	case q.MinAge < 0:
		return nil, errors.New("pgstore: RecordQuery.MinAge is negative")
	case q.Limit < 0, q.Limit > 1000:
		return nil, errors.New("pgstore: RecordQuery.Limit is not between 0 and 1000")
	}
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	limit := q.Limit
	if limit == 0 {
		limit = 100
	}
	var all []oncehttp.Record
	after := []byte(q.After)
	for {
		want := limit - len(all)
		var found []row
		args := []any{after, micros(q.MinAge), int64(q.Status), int64(want)}
		err := s.each(ctx, s.sql.list, args, func() { found = nil }, func(scan func(...any) error) error {
			var r row
			err := r.scan(scan)
			found = append(found, r)
			return err
		})
		if err != nil {
			return nil, s.failed(ctx, "list", err)
		}
		for i := range found {
			gone, err := s.gone(ctx, s.db, found[i].id, &found[i])
			if err != nil {
				return nil, s.failed(ctx, "list", err)
			}
			if rec := found[i].record(); !gone && (q.Status == 0 || q.Status == rec.Status) {
				all = append(all, rec)
			}
		}
		if len(found) < want || len(all) >= limit {
			return all, nil
		}
		after = found[len(found)-1].key
	}
}

func (r *row) scan(scan func(...any) error) error {
	return scan(&r.now, &r.id, &r.key, &r.ident, &r.born, &r.expires, &r.lapses, &r.begins, &r.holder, &r.head, &r.body)
}

// gone reports whether the transaction of a transactional claim has ended without
// a record, so that its key is free. If the key was taken over, it makes r the orphan
// that it is again.
func (s *Store) gone(ctx context.Context, q querier, id any, r *row) (bool, error) {
	if !r.left() {
		return false, nil
	}
	var yes bool
	switch ended, err := s.row(ctx, q, s.sql.ask, []any{id}, &yes); {
	case !ended || err != nil:
		return false, err
	case r.holder == 1:
		return true, nil
	}
	r.begins, r.lapses = nil, &r.now
	return false, nil
}

// record is what an operator sees.
func (r *row) record() oncehttp.Record {
	c := r.claim()
	return oncehttp.Record{
		Key:         string(r.key),
		Status:      c.Status,
		Fingerprint: c.Fingerprint,
		Binding:     c.Binding,
		Age:         r.now.Sub(r.born),
		Left:        c.Left,
		Holder:      c.Holder,
		Head:        c.Head,
		Body:        c.Body,
	}
}

// Show implements [oncehttp.Inspector].
func (s *Store) Show(ctx context.Context, key string) (oncehttp.Record, error) {
	if err := s.prepare(ctx); err != nil {
		return oncehttp.Record{}, err
	}
	r, err := s.lookUp(ctx, "show", key)
	if err != nil {
		return oncehttp.Record{}, err
	}
	return r.record(), nil
}

// lookUp returns the row of a key that is not free, or ErrNotFound.
func (s *Store) lookUp(ctx context.Context, what, key string) (*row, error) {
	var r row
	var found bool
	err := s.each(ctx, s.sql.show, []any{rowID(key)}, func() { found = false }, func(scan func(...any) error) error {
		found = true
		return r.scan(scan)
	})
	if err == nil && found {
		var gone bool
		gone, err = s.gone(ctx, s.db, r.id, &r)
		found = !gone && !r.expired()
	}
	switch {
	case err != nil:
		return nil, s.failed(ctx, what, err)
	case !found:
		return nil, oncehttp.ErrNotFound
	}
	return &r, nil
}

// Resolve implements [oncehttp.Inspector].
func (s *Store) Resolve(ctx context.Context, key string, res oncehttp.Resolution) error {
	if res.Keep < 0 {
		return errors.New("pgstore: Resolution.Keep is negative")
	}
	if !res.Applied {
		return s.settleByHand(ctx, "resolve", key, oncehttp.ErrNotOrphaned, s.sql.drop)
	}
	var keep any // NULL: as the last holder asked for
	if res.Keep > 0 {
		keep = micros(res.Keep)
	}
	return s.settleByHand(ctx, "resolve", key, oncehttp.ErrNotOrphaned, s.sql.resolve, res.Head, res.Body, keep)
}

// Purge implements [oncehttp.Inspector].
func (s *Store) Purge(ctx context.Context, key string) error {
	return s.settleByHand(ctx, "purge", key, oncehttp.ErrNotPurgeable, s.sql.purge)
}

// settleByHand runs a statement that changes a row in some states, and returns
// refused if the row is in another one.
func (s *Store) settleByHand(ctx context.Context, what, key string, refused error, sql string, rest ...any) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	var notified bool
	changed, err := s.row(ctx, s.db, sql, append([]any{rowID(key)}, rest...), &notified)
	switch {
	case err != nil:
		return s.failed(ctx, what, err)
	case changed:
		s.waits.wake(key)
		return nil
	}
	if _, err := s.lookUp(ctx, what, key); err != nil {
		return err
	}
	return refused
}

var _ interface {
	oncehttp.Store
	oncehttp.Waiter
	oncehttp.Inspector
} = (*Store)(nil)
