package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/redisstore"
)

func TestLeftOfADoneRecordIsWithinItsRetentionWhateverTheServersClockIsTakenToBe(t *testing.T) {
	t.Parallel()
	r := services.Redis(t)
	name := redisstore.WithPrefix(prefix())
	s := redisstore.New(connect(t, r), quiet, name)
	defer s.Close()
	reader := redisstore.New(connect(t, r), quiet, name)
	defer reader.Close()
	if err := s.Check(ctx); err != nil {
		t.Fatal(err)
	}
	if err := reader.Check(ctx); err != nil {
		t.Fatal(err)
	}
	op := newOp()
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	if err := s.Complete(ctx, op, nil, nil, time.Hour); err != nil {
		t.Fatal(err)
	}
	left := func() time.Duration { return mustClaim(t, reader, newTwin(op), oncehttp.ClaimDone).Left }
	// A minute is more than this test takes, and what two looks at a clock differ by.
	if got := left(); got < 59*time.Minute || got > time.Hour {
		t.Errorf("to another store: got %v left, want an hour", got)
	}
	redisstore.MoveClock(reader, 10*time.Minute)
	if got := left(); got < 49*time.Minute || got > 51*time.Minute {
		t.Errorf("ten minutes ahead: got %v left, want 50m", got)
	}
	redisstore.MoveClock(reader, 10*time.Hour)
	if got := left(); got != time.Millisecond {
		t.Errorf("hours ahead: got %v left, want 1ms", got)
	}
	redisstore.MoveClock(reader, -20*time.Hour)
	if got := left(); got != time.Hour {
		t.Errorf("hours behind: got %v left, want an hour", got)
	}
	if got := s.Complete(ctx, op, nil, nil, time.Hour); got != nil {
		t.Errorf("a repeated Complete: got error %v", got)
	}
}

func TestADoneRecordThatDoesNotTellItsExpiryIsAskedAbout(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	s := open(t, connect(t, r))
	redisstore.MoveClock(s, 0) // not known
	op := newOp()
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	if err := s.Complete(ctx, op, nil, nil, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(ctx); err != nil { // and now it is
		t.Fatal(err)
	}
	r.Do(t, "config", "resetstat")
	if c := mustClaim(t, s, newTwin(op), oncehttp.ClaimDone); c.Left < 59*time.Minute || c.Left > time.Hour {
		t.Errorf("got %v left, want an hour", c.Left)
	}
	stats := r.Do(t, "info", "commandstats")
	for _, want := range []string{"cmdstat_set:calls=1,", "cmdstat_evalsha:calls=1,", "cmdstat_pttl:calls=1,"} {
		if !strings.Contains(stats, want) {
			t.Errorf("want %s in\n%s", want, stats)
		}
	}
}
