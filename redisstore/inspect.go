package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
)

// List implements [oncehttp.Inspector]. Redis keeps keys in no order, so every page
// is a walk through all keys of the server, or of every master of the cluster, by
// SCAN: it blocks nobody, and takes seconds when there are millions. A record that
// comes or goes during the walk may be in the page or not.
func (s *Store) List(ctx context.Context, q oncehttp.RecordQuery) ([]oncehttp.Record, error) {
	switch {
	case q.Status < 0, q.Status == oncehttp.ClaimAcquired, q.Status > oncehttp.ClaimOrphaned:
		return nil, errors.New("redisstore: RecordQuery.Status is not a state of a record: running, done or orphaned")
	case q.MinAge < 0:
		return nil, errors.New("redisstore: RecordQuery.MinAge is negative")
	case q.Limit < 0, q.Limit > 1000:
		return nil, errors.New("redisstore: RecordQuery.Limit is not between 0 and 1000")
	}
	if err := s.prepare(ctx, false); err != nil {
		return nil, err
	}
	p := page{query: q, limit: q.Limit, prefix: s.opts.prefix}
	if p.limit == 0 {
		p.limit = 100
	}
	err := s.masters(ctx, func(ctx context.Context, node redis.Cmdable) error {
		var cursor uint64
		for {
			var keys []string
			var err error
			keys, cursor, err = node.Scan(ctx, cursor, globQuote(s.opts.prefix)+"*", 1000).Result()
			if err != nil {
				return err
			}
			if err := s.collect(ctx, node, p.wanted(keys), &p); err != nil {
				return err
			}
			if cursor == 0 {
				return nil
			}
		}
	})
	if err != nil {
		if cause := ctx.Err(); cause != nil {
			return nil, fmt.Errorf("redisstore: list: %w", cause)
		}
		return nil, explain("list", err)
	}
	return p.records, nil
}

// globQuote makes a pattern that matches only text.
func globQuote(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if strings.IndexByte(`*?[]\^-`, c) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// A page holds the first records, in key order, of those that were seen.
type page struct {
	query  oncehttp.RecordQuery
	limit  int
	prefix string

	mu      sync.Mutex
	records []oncehttp.Record
}

// wanted returns those of some keys of the server whose records may be in the page.
func (p *page) wanted(keys []string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(keys, func(k string) bool {
		k = strings.TrimPrefix(k, p.prefix)
		return k <= p.query.After || len(p.records) == p.limit && k >= p.records[p.limit-1].Key
	})
}

// add puts a record into the page if it belongs there.
func (p *page) add(r oncehttp.Record) {
	if q := p.query; q.Status != 0 && q.Status != r.Status || r.Age < q.MinAge {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at, there := slices.BinarySearchFunc(p.records, r.Key, func(r oncehttp.Record, key string) int { return strings.Compare(r.Key, key) })
	if there { // SCAN may return a key twice
		return
	}
	p.records = slices.Insert(p.records, at, r)
	if len(p.records) > p.limit {
		p.records = p.records[:p.limit]
	}
}

// collect reads the records of some keys into a page.
func (s *Store) collect(ctx context.Context, node redis.Cmdable, keys []string, p *page) error {
	if len(keys) == 0 {
		return nil
	}
	pipe := node.Pipeline()
	cmds := make([]*redis.Cmd, len(keys))
	for i, k := range keys {
		cmds[i] = pipe.EvalSha(ctx, showScript.plainSHA, []string{k}, headerLen-1)
	}
	pipe.Exec(ctx) // each command has its error
	for i, cmd := range cmds {
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			cmd = node.Eval(ctx, showScript.plain, []string{keys[i]}, headerLen-1)
		}
		reply, err := cmd.Result()
		switch {
		case redis.HasErrorPrefix(err, "MOVED"), redis.HasErrorPrefix(err, "ASK"), redis.HasErrorPrefix(err, "TRYAGAIN"):
			continue // to a server that is asked too
		case err != nil && strings.Contains(err.Error(), "WRONGTYPE"):
			continue // not ours
		case err != nil:
			return err
		}
		r, err := readShown(reply)
		if err != nil {
			continue // gone, or not ours
		}
		r.Key = strings.TrimPrefix(keys[i], p.prefix)
		r.Head, r.Body = nil, nil
		p.add(r)
	}
	return nil
}

// readShown reads what showScript returns: of a done record perhaps only the
// beginning.
func readShown(reply any) (oncehttp.Record, error) {
	parts, ok := reply.([]any)
	if !ok || len(parts) != 2 {
		return oncehttp.Record{}, errReply
	}
	ttl, _ := parts[0].(int64)
	v, _ := parts[1].(string)
	if v == "" {
		return oncehttp.Record{}, oncehttp.ErrNotFound
	}
	if len(v) == headerLen {
		v = v[:headerLen-4] + "\x00\x00\x00\x00" // of the head, which is not here
	}
	r, err := readRecord(v)
	if err != nil {
		return oncehttp.Record{}, err
	}
	rec := oncehttp.Record{
		Status:      oncehttp.ClaimDone,
		Fingerprint: r.fingerprint,
		Binding:     r.binding,
		Age:         duration(max(int64(r.age+r.since(ttl)), 0)),
		Left:        r.left(ttl),
		Holder:      r.holder,
		Head:        r.head,
		Body:        r.body,
	}
	switch since := r.since(ttl); {
	case r.done:
	case r.lease > 0 && since <= r.lease:
		rec.Status, rec.Left = oncehttp.ClaimRunning, duration(max(int64(r.lease-since), 1))
	default:
		rec.Status = oncehttp.ClaimOrphaned
	}
	return rec, nil
}

// Show implements [oncehttp.Inspector].
func (s *Store) Show(ctx context.Context, key string) (oncehttp.Record, error) {
	if err := s.prepare(ctx, false); err != nil {
		return oncehttp.Record{}, err
	}
	reply, err := s.eval(ctx, "show", showScript, key, -1)
	if err != nil {
		return oncehttp.Record{}, err
	}
	r, err := readShown(reply)
	switch {
	case err == oncehttp.ErrNotFound:
		return oncehttp.Record{}, err
	case err != nil:
		return oncehttp.Record{}, fmt.Errorf("redisstore: show: %w", err)
	}
	r.Key = key
	return r, nil
}

// Resolve implements [oncehttp.Inspector].
func (s *Store) Resolve(ctx context.Context, key string, r oncehttp.Resolution) error {
	if r.Keep < 0 {
		return errors.New("redisstore: Resolution.Keep is negative")
	}
	args := []any{"0", 0, ""}
	if r.Applied {
		args = []any{"1", millis(r.Keep), join(r.Head, r.Body)}
	}
	return s.settle(ctx, "resolve", resolveScript, key, oncehttp.ErrNotOrphaned, args...)
}

// Purge implements [oncehttp.Inspector]. It also removes a record that this version
// of the package cannot read.
func (s *Store) Purge(ctx context.Context, key string) error {
	return s.settle(ctx, "purge", purgeScript, key, oncehttp.ErrNotPurgeable)
}

// settle runs a script for an operator.
func (s *Store) settle(ctx context.Context, what string, sc *script, key string, refused error, args ...any) error {
	if err := s.prepare(ctx, false); err != nil {
		return err
	}
	reply, err := s.eval(ctx, what, sc, key, args...)
	if err != nil {
		return err
	}
	switch reply {
	case replyOK:
		s.waits.wake(s.opts.prefix + key)
		return nil
	case replyFree:
		return oncehttp.ErrNotFound
	case replyRefused:
		return refused
	}
	return fmt.Errorf("redisstore: %s: %w", what, errUnreadable)
}
