package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/redisstore"
)

func TestAClaimOfAFreeOrDoneKeyNeedsNoScript(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"of Redis 7", "of Redis 6"} {
		r := services.Redis(t, services.RedisPrivate())
		s := open(t, connect(t, r))
		if err := s.Check(ctx); err != nil {
			t.Fatal(err)
		}
		needed := ""
		if form == "of Redis 6" {
			redisstore.AsOnRedis6(s)
			needed = "evalsha"
		}
		runs := func(what, want string, claim func()) {
			r.Do(t, "config", "resetstat")
			claim()
			got := ""
			if strings.Contains(r.Do(t, "info", "commandstats"), "cmdstat_evalsha:calls=1,") {
				got = "evalsha"
			}
			if got != want {
				t.Errorf("%s: a claim of a key that %s: ran %q, want %q", form, what, got, want)
			}
		}
		op := newOp()
		runs("is free", needed, func() { mustClaim(t, s, op, oncehttp.ClaimAcquired) })
		runs("runs", "evalsha", func() { mustClaim(t, s, newTwin(op), oncehttp.ClaimRunning) })
		runs("is the caller's own", "evalsha", func() {
			if c := mustClaim(t, s, op, oncehttp.ClaimAcquired); c.Holder != 1 {
				t.Errorf("got holder %d, want 1", c.Holder)
			}
		})
		if err := s.Complete(ctx, op, []byte("head"), []byte("body"), time.Hour); err != nil {
			t.Fatal(err)
		}
		runs("is done", needed, func() {
			c := mustClaim(t, s, newTwin(op), oncehttp.ClaimDone)
			if string(c.Head)+string(c.Body) != "headbody" || c.Left <= 59*time.Minute || c.Left > time.Hour {
				t.Errorf("got %q, %q and %v left", c.Head, c.Body, c.Left)
			}
		})
	}
}

func TestARecordGrowsOlderWhateverHappensToIt(t *testing.T) {
	t.Parallel()
	s := open(t, connect(t, services.Redis(t)))
	op := newOp()
	shown := func() oncehttp.Record {
		r, err := s.Show(ctx, op.Key)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	least := 30 * time.Millisecond
	soon(t, "the record is not new any more", func() bool { return shown().Age >= least })
	for _, v := range []struct {
		what string
		do   func() error
	}{
		{"a repeated claim", func() error { return claimErr(s, op) }},
		{"Renew", func() error { return s.Renew(ctx, op, time.Minute) }},
		{"Renew that ends the lease", func() error { return s.Renew(ctx, op, 0) }},
		{"TakeOver", func() error {
			op = newTwin(op)
			_, err := s.TakeOver(ctx, op, time.Minute, 2*time.Hour)
			return err
		}},
		{"Complete", func() error { return s.Complete(ctx, op, nil, nil, time.Minute) }},
	} {
		if err := v.do(); err != nil {
			t.Fatalf("%s: %v", v.what, err)
		}
		// A minute is more than this test takes, and less than an hour.
		if r := shown(); r.Age < least || r.Age > time.Minute {
			t.Errorf("after %s: got age %v, want at least %v and less than a minute", v.what, r.Age, least)
		} else {
			least = r.Age
		}
	}
}

func TestARunningRecordWhoseExpiryWasTakenAwayIsAnOrphan(t *testing.T) {
	t.Parallel()
	c := connect(t, services.Redis(t))
	name := prefix()
	s := redisstore.New(c, quiet, redisstore.WithPrefix(name))
	defer s.Close()
	op := newOp()
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	c.Persist(ctx, name+op.Key)
	if c := mustClaim(t, s, newTwin(op), oncehttp.ClaimOrphaned); c.Left <= 0 {
		t.Errorf("got %v left", c.Left)
	}
	if err := s.Renew(ctx, op, time.Minute); err != nil {
		t.Errorf("its holder cannot heal it: %v", err)
	}
	mustClaim(t, s, newTwin(op), oncehttp.ClaimRunning)
}
