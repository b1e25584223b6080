package crash_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/crash"
)

// Deliberate mistakes.
const (
	noStore         = "no store"
	memory          = "a store in memory"
	rerunsOrphans   = "work that is not safe to run again, declared to be"
	releasesOrphans = "a store that frees what its holder left behind"
	forgetsAnswers  = "a store that frees a key when its work has ended"
	answersEarly    = "a store that says done before it is"
	neverLapses     = "a store whose leases do not lapse"
	effectOutside   = "an effect outside of the transaction"
)

// A test that finds nothing proves nothing, so it is fed servers that are wrong.
func TestWrongServersAreFound(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		wrong string
		tx    bool
		says  string
	}{
		{noStore, false, "took effect 2 times"},
		{memory, false, "took effect 2 times"},
		{rerunsOrphans, false, "took effect 2 times"},
		{releasesOrphans, false, "took effect 2 times"},
		{forgetsAnswers, false, "and then \"did"},
		{answersEarly, false, "was answered, and unknown after that"},
		{neverLapses, false, "is stuck"},
		{effectOutside, true, "took effect 2 times"},
	} {
		t.Run(v.wrong, func(t *testing.T) {
			t.Parallel()
			s := onSQLite(t, v.tx)
			s.Wrong = v.wrong
			c := config(t, s)
			c.Name, c.Kills = v.wrong, 10
			if v.wrong == neverLapses {
				c.Kills, c.Bound = 3, 3*time.Second
			}
			r, err := crash.Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(r)
			if text := strings.Join(r.Faults, "\n"); !strings.Contains(text, v.says) {
				t.Errorf("it was not found in %d kills: no fault says %q", r.Kills, v.says)
			}
		})
	}
}

// wrong makes the mistake.
func (s setup) wrong(once *oncehttp.Middleware, store oncehttp.Store, p *crash.Progress) *oncehttp.Middleware {
	switch s.Wrong {
	case memory:
		once.Store = crash.Watch(&oncehttp.MemoryStore{}, p)
	case rerunsOrphans:
		once.Orphan = oncehttp.OrphanRerun
	case releasesOrphans:
		once.Store = crash.Watch(releases{store}, p)
	case forgetsAnswers:
		once.Store = crash.Watch(forgets{store}, p)
	case answersEarly:
		once.Store = crash.Watch(early{store}, p)
	case neverLapses:
		once.Store = crash.Watch(eternal{store}, p)
	}
	return once
}

type releases struct{ oncehttp.Store }

func (s releases) Claim(ctx context.Context, op oncehttp.Op, lease, keep time.Duration) (oncehttp.Claim, error) {
	return s.TakeOver(ctx, op, lease, keep)
}

type forgets struct{ oncehttp.Store }

func (s forgets) Complete(ctx context.Context, op oncehttp.Op, _, _ []byte, _ time.Duration) error {
	return s.Release(ctx, op)
}

type early struct{ oncehttp.Store }

func (s early) Complete(_ context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	time.AfterFunc(20*time.Millisecond, func() { s.Store.Complete(context.Background(), op, head, body, keep) })
	return nil
}

type eternal struct{ oncehttp.Store }

func (s eternal) Claim(ctx context.Context, op oncehttp.Op, _, keep time.Duration) (oncehttp.Claim, error) {
	return s.Store.Claim(ctx, op, time.Hour, keep)
}

func (s eternal) Renew(ctx context.Context, op oncehttp.Op, lease time.Duration) error {
	if lease > 0 {
		lease = time.Hour
	}
	return s.Store.Renew(ctx, op, lease)
}
