package redisstore_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/redisstore"
)

// The warning of a server without a disk is no reason to end.
func TestALogThatPanicsIsNoEnding(t *testing.T) {
	var log panickyLog
	s := redisstore.New(connect(t, services.Redis(t)), redisstore.WithPrefix(prefix()), redisstore.WithLogger(slog.New(&log)))
	t.Cleanup(s.Close)
	if err := s.Check(context.Background()); err != nil {
		t.Error(err)
	}
	if log.panics == 0 {
		t.Error("nothing was logged")
	}
}

type panickyLog struct {
	slog.Handler
	panics int
}

func (*panickyLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *panickyLog) Handle(context.Context, slog.Record) error {
	l.panics++
	panic("a handler's secret")
}
