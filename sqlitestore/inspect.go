package sqlitestore

import (
	"context"
	"errors"
	"time"

	"github.com/oncehttp/oncehttp"
)

const (
	// In key order there is nothing to sort, so a page is read and no more.
	sqlListAll = `SELECT ` + columns + ` FROM oncehttp_records INDEXED BY oncehttp_key
WHERE key > ?1 AND born <= ?2 AND expires > ?3 AND state >= ?4 ORDER BY key LIMIT ?5`

	// Those that are claimed are few: find them by their state, and sort.
	sqlListClaimed = `SELECT ` + columns + ` FROM oncehttp_records INDEXED BY oncehttp_due
WHERE state = 0 AND expires > ?3 AND key > ?1 AND born <= ?2 ORDER BY key`
)

// List implements [oncehttp.Inspector]. It looks at a snapshot, and holds nobody
// up. Whether a transactional claim of another process is running cannot be seen
// from a record: it is listed as orphaned when its lease has lapsed.
func (s *Store) List(ctx context.Context, q oncehttp.RecordQuery) ([]oncehttp.Record, error) {
	switch {
	case q.Status < 0, q.Status == oncehttp.ClaimAcquired, q.Status > oncehttp.ClaimOrphaned:
		return nil, errors.New("sqlitestore: RecordQuery.Status is not a state of a record: running, done or orphaned")
	case q.MinAge < 0:
		return nil, errors.New("sqlitestore: RecordQuery.MinAge is negative")
	case q.Limit < 0, q.Limit > 1000:
		return nil, errors.New("sqlitestore: RecordQuery.Limit is not between 0 and 1000")
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.users.Done()
	limit := q.Limit
	if limit == 0 {
		limit = 100
	}
	now := s.clock.now()
	query := sqlListClaimed
	args := []any{[]byte(q.After), now - micros(q.MinAge), now}
	if q.Status == 0 || q.Status == oncehttp.ClaimDone {
		least := stateClaimed
		if q.Status == oncehttp.ClaimDone {
			least = stateDone
		}
		query, args = sqlListAll, append(args, least, limit)
	}
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, s.readFailed(ctx, "list", err)
	}
	defer rows.Close()
	var list []oncehttp.Record
	for len(list) < limit && rows.Next() {
		var r row
		if err := r.scan(rows); err != nil {
			return nil, s.readFailed(ctx, "list", err)
		}
		// What is read now may have been written after the query began.
		if rec := s.record(&r, max(now, s.clock.now())); q.Status == 0 || q.Status == rec.Status {
			list = append(list, rec)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, s.readFailed(ctx, "list", err)
	}
	return list, nil
}

// record is what an operator sees of a row.
func (s *Store) record(r *row, now int64) oncehttp.Record {
	c := r.claim(now, s.status(r, now))
	return oncehttp.Record{
		Key:         string(r.key),
		Status:      c.Status,
		Fingerprint: c.Fingerprint,
		Binding:     c.Binding,
		Age:         max(0, time.Duration(now-r.born)*time.Microsecond),
		Left:        c.Left,
		Holder:      c.Holder,
		BodyDropped: c.BodyDropped,
		Head:        c.Head,
		Body:        c.Body,
	}
}

// Show implements [oncehttp.Inspector].
func (s *Store) Show(ctx context.Context, key string) (oncehttp.Record, error) {
	if err := ctx.Err(); err != nil {
		return oncehttp.Record{}, err
	}
	if err := s.enter(); err != nil {
		return oncehttp.Record{}, err
	}
	defer s.users.Done()
	r, found, err := s.read(ctx, key)
	now := s.clock.now()
	switch {
	case err != nil:
		return oncehttp.Record{}, s.readFailed(ctx, "show", err)
	case !found || now >= r.expires:
		return oncehttp.Record{}, oncehttp.ErrNotFound
	}
	return s.record(&r, now), nil
}

// Resolve implements [oncehttp.Inspector].
func (s *Store) Resolve(ctx context.Context, key string, res oncehttp.Resolution) error {
	if res.Keep < 0 {
		return errors.New("sqlitestore: Resolution.Keep is negative")
	}
	return s.write(ctx, &call{what: "resolve", do: doResolve, op: oncehttp.Op{Key: key}, resolution: res, head: res.Head, body: res.Body})
}

// Purge implements [oncehttp.Inspector].
func (s *Store) Purge(ctx context.Context, key string) error {
	return s.write(ctx, &call{what: "purge", do: doPurge, op: oncehttp.Op{Key: key}})
}

var (
	_ oncehttp.Waiter    = (*Store)(nil)
	_ oncehttp.Inspector = (*Store)(nil)
)
