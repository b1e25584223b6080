//go:build !linux

package services

import (
	"testing"
	"time"
)

// A Clock is a wall clock that a test sets, of servers that were started with it.
type Clock struct{}

// NewClock fails: only on Linux a server can be given another clock.
func NewClock(t testing.TB, _ time.Time) *Clock {
	t.Helper()
	t.Fatal("services: only on Linux a server can be given a clock that a test sets")
	return nil
}

func (c *Clock) Set(time.Time) {}

func On(*Clock) PGOption { return func(*pgOptions) {} }

func RedisOn(*Clock) RedisOption { return func(*redisOptions) {} }
