package services

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestAServersClockCanBeSet(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	c := NewClock(t, at)
	pg, r := Postgres(t, On(c)), Redis(t, RedisOn(c))
	for range 3 {
		if got := pg.SQL(t, "postgres", "select extract(epoch from statement_timestamp())::int8"); got != fmt.Sprint(at.Unix()) {
			t.Errorf("Postgres' time is %s, want %d", got, at.Unix())
		}
		if got, _, _ := strings.Cut(r.Do(t, "time"), "\n"); got != fmt.Sprint(at.Unix()) {
			t.Errorf("Redis' time is %s, want %d", got, at.Unix())
		}
		at = at.Add(36 * time.Hour)
		c.Set(at)
	}
	r.Do(t, "set", "a", "1", "px", "60000")
	c.Set(at.Add(59 * time.Second))
	if got := r.Do(t, "exists", "a"); got != "1" {
		t.Error("a key of Redis has expired before its time")
	}
	c.Set(at.Add(61 * time.Second))
	if got := r.Do(t, "exists", "a"); got != "0" {
		t.Error("a key of Redis has not expired after its time")
	}
}
