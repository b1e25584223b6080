package services

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// A Clock is a wall clock that a test sets, of servers that were started with it:
// the one thing of theirs that is not real. It stands still until it is set again.
// Timeouts and sleeps of the servers go on by the machine's clocks.
//
// Its methods are safe for concurrent use.
type Clock struct {
	now *atomic.Int64 // nanoseconds since 1970, which the servers see too
	env []string
}

//go:embed shim/clock.c
var clockSource []byte

// NewClock makes a clock that shows at. It needs a C compiler, as the race detector
// does, and lasts as long as the test binary.
func NewClock(t testing.TB, at time.Time) *Clock {
	t.Helper()
	c, err := newClock()
	need(t, err)
	c.Set(at)
	return c
}

func newClock() (*Clock, error) {
	dir, err := folder("clock")
	if err != nil {
		return nil, err
	}
	source, library, file := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so"), filepath.Join(dir, "now")
	if err := os.WriteFile(source, clockSource, 0o644); err != nil {
		return nil, err
	}
	if _, err := run(-1, -1, dir, "cc", "-shared", "-fPIC", "-O1", "-o", library, source); err != nil {
		return nil, fmt.Errorf("a server's clock is set by a library in C, which needs a compiler: %w", err)
	}
	if err := os.WriteFile(file, make([]byte, binary.Size(int64(0))), 0o644); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := syscall.Mmap(int(f.Fd()), 0, binary.Size(int64(0)), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", file, err)
	}
	return &Clock{
		now: (*atomic.Int64)(unsafe.Pointer(&b[0])),
		env: []string{"LD_PRELOAD=" + library, "CLOCK_FILE=" + file},
	}, nil
}

// Set sets the clock, for all servers that have it.
func (c *Clock) Set(at time.Time) { c.now.Store(at.UnixNano()) }

// On asks for a server of the test's own whose wall clock is c.
func On(c *Clock) PGOption {
	return func(o *pgOptions) { o.private, o.env = true, c.env }
}

// RedisOn asks for a server of the test's own whose wall clock is c.
func RedisOn(c *Clock) RedisOption {
	return func(o *redisOptions) { o.private, o.env = true, c.env }
}
