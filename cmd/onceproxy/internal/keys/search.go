package keys

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp"
)

// MaxPrefix is the longest beginning of a key that is searched for.
const MaxPrefix = 256

// MaxLimit is the largest number of keys on one page.
const MaxLimit = 500

// A Search selects keys. The zero value finds the first 100 of all.
type Search struct {
	Status oncehttp.ClaimStatus // 0: any
	MinAge time.Duration        // only keys at least this old
	Prefix string               // only keys that begin like this
	After  string               // only keys that sort after this one
	Limit  int                  // 0: 100; at most MaxLimit
}

// A Found is one page of what was found, in key order.
type Found struct {
	Keys []Story
	Next string // Search.After for the next page; "" if this is the last
}

// Check says what is wrong with the search.
func (s Search) Check() error {
	switch {
	case len(s.Prefix) > MaxPrefix:
		return fmt.Errorf("prefix: it is longer than %d bytes; some characters of the record's key are enough", MaxPrefix)
	case s.MinAge < 0:
		return errors.New("min-age: it is negative; write one such as 10m, or 2h")
	case s.Limit < 0 || s.Limit > MaxLimit:
		return fmt.Errorf("limit: %d is not between 1 and %d", s.Limit, MaxLimit)
	}
	return nil
}

// Run looks in a store.
func (s Search) Run(ctx context.Context, store oncehttp.Inspector) (Found, error) {
	if err := s.Check(); err != nil {
		return Found{}, err
	}
	if s.Limit == 0 {
		s.Limit = 100
	}
	records, err := s.list(ctx, store)
	if err != nil {
		return Found{}, err
	}
	var f Found
	if len(records) > s.Limit {
		records = records[:s.Limit]
		f.Next = records[s.Limit-1].Key
	}
	for _, r := range records {
		f.Keys = append(f.Keys, Tell(r))
	}
	return f, nil
}

// list returns one record more than the limit, if there are so many.
func (s Search) list(ctx context.Context, store oncehttp.Inspector) ([]oncehttp.Record, error) {
	var found []oncehttp.Record
	after := s.After
	if s.Prefix > after {
		// The key that equals the prefix does not sort after it.
		switch r, err := store.Show(ctx, s.Prefix); {
		case errors.Is(err, oncehttp.ErrNotFound):
		case err != nil:
			return nil, err
		case (s.Status == 0 || r.Status == s.Status) && r.Age >= s.MinAge:
			r.Head, r.Body = nil, nil
			found = append(found, r)
		}
		after = s.Prefix
	}
	records, err := store.List(ctx, oncehttp.RecordQuery{Status: s.Status, MinAge: s.MinAge, After: after, Limit: s.Limit + 1})
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if !strings.HasPrefix(r.Key, s.Prefix) {
			break // they are in key order
		}
		found = append(found, r)
	}
	return found, nil
}
