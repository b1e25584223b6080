package pgstore_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

// The warning of a server without fsync is no reason to end.
func TestALogThatPanicsIsNoEnding(t *testing.T) {
	pg := services.Postgres(t)
	var log panickyLog
	s := pgstore.New(openPool(t, pg.DSN(pg.Database(t)), 4), pgstore.WithLogger(slog.New(&log)))
	t.Cleanup(s.Close)
	if c, err := migrated(t, s).Claim(context.Background(), newOp("k"), time.Minute, time.Minute); err != nil || c.Status != oncehttp.ClaimAcquired {
		t.Errorf("got %v, %v", c.Status, err)
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
