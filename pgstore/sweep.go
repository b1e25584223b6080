package pgstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// sweepEvery is how many new claims there are between two sweeps in the
	// background. Each sweep reads sweepPages pages, some 30 records each, so
	// that a table is read through while it takes in a tenth of its size.
	sweepEvery = 256
	sweepPages = 128
	// sweepMost bounds what one statement deletes.
	sweepMost = 1000

	sweepTime = 10 * time.Second
)

// A broom sweeps a table, some pages at a time.
type broom struct {
	claims atomic.Uint64 // since the store was made
	busy   atomic.Bool

	mu     sync.Mutex
	next   int64 // the page to go on with
	pages  int64 // that the table had last; 0: not known
	closed bool
	wg     sync.WaitGroup
	cancel context.CancelFunc
}

// Sweep forgets records that have expired, at most limit of them (zero means
// 1000), and returns how many. It is not needed while keys are claimed, because
// every 256th new claim sweeps some.
//
// It reads the table from where it stopped last, in statements that take some
// milliseconds each, and ends when it has been through the whole of it. It waits
// for nobody, and nobody waits for it except who claims a key whose record is just
// being deleted.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	if limit < 0 {
		return 0, errors.New("pgstore: Sweep: limit is negative")
	}
	if limit == 0 {
		limit = sweepMost
	}
	if err := s.prepare(ctx); err != nil {
		return 0, err
	}
	swept := 0
	for read := int64(0); ; {
		n, pages, err := s.sweepPages(ctx, limit-swept)
		swept += n
		switch {
		case err != nil:
			return swept, s.failed(ctx, "sweep", err)
		case swept >= limit:
			return swept, nil
		case n < sweepMost:
			read += sweepPages
		}
		if read >= pages+2*sweepPages { // the first and the last part need not be whole
			return swept, nil
		}
	}
}

// sweepPages sweeps the next pages, and tells how many there are in all.
func (s *Store) sweepPages(ctx context.Context, limit int) (swept int, pages int64, err error) {
	limit = min(limit, sweepMost)
	b := &s.broom
	b.mu.Lock()
	from := b.next
	if b.pages == 0 || from >= b.pages {
		from = 0
	}
	b.next = from + sweepPages // for whoever sweeps meanwhile
	b.mu.Unlock()

	var n int64
	_, err = s.row(ctx, s.db, s.sql.sweep, []any{from, from + sweepPages, int64(limit)}, &n, &pages)

	b.mu.Lock()
	defer b.mu.Unlock()
	switch first := b.pages == 0; {
	case err != nil:
		return 0, 0, err
	case first && pages > sweepPages:
		// Many processes may share the table: they had better not all read the
		// same pages.
		b.next = rand.Int64N(pages)
	case int(n) == limit:
		b.next = from // there may be more
	}
	b.pages = pages
	return int(n), pages, nil
}

// sweepSometimes is called for every new claim.
func (s *Store) sweepSometimes() {
	b := &s.broom
	if b.claims.Add(1)%sweepEvery != 0 || s.opts.noSweep || !b.busy.CompareAndSwap(false, true) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), sweepTime)
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		cancel()
		return
	}
	b.cancel = cancel
	b.wg.Add(1)
	b.mu.Unlock()
	go func() {
		defer b.wg.Done()
		defer b.busy.Store(false)
		defer cancel()
		if _, _, err := s.sweepPages(ctx, sweepMost); err != nil && ctx.Err() == nil {
			s.log().Warn("pgstore: expired records cannot be swept", "err", s.explain("sweep", err))
		}
	}()
}

func (b *broom) close() {
	b.mu.Lock()
	b.closed = true
	if b.cancel != nil {
		b.cancel()
	}
	b.mu.Unlock()
	b.wg.Wait()
}
