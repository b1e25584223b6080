package sqlitestore

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"
)

// What a log handler does in the writer's goroutine is not how a process ends.
func TestALogThatPanicsIsNoEnding(t *testing.T) {
	t.Parallel()
	log := panickyLog{slog.DiscardHandler, make(chan struct{}), new(sync.Once)}
	s := tempStore(t, WithLogger(slog.New(log)))
	mustExec(t, s.db, "CREATE TRIGGER kept BEFORE DELETE ON oncehttp_records BEGIN SELECT raise(ABORT, 'records are kept'); END")
	if _, err := s.Claim(t.Context(), newOp("k"), time.Millisecond, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	<-log.panics
	if _, err := s.Claim(t.Context(), newOp("another"), time.Hour, time.Hour); err != nil {
		t.Errorf("after a sweep failed and the log handler panicked: %v", err)
	}
}

type panickyLog struct {
	slog.Handler
	panics chan struct{}
	once   *sync.Once
}

func (panickyLog) Enabled(context.Context, slog.Level) bool { return true }

func (l panickyLog) Handle(context.Context, slog.Record) error {
	l.once.Do(func() { close(l.panics) })
	panic("a handler's secret")
}
