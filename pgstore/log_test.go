package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/badlog"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

// The warning of a server without fsync is no reason to end.
func TestALogThatPanicsIsNoEnding(t *testing.T) {
	pg := services.Postgres(t)
	panics := 0
	log := badlog.New(func() { panics++; panic("a handler's secret") })
	s := pgstore.New(openPool(t, pg.DSN(pg.Database(t)), 4), pgstore.WithLogger(log))
	t.Cleanup(s.Close)
	if c, err := migrated(t, s).Claim(context.Background(), newOp("k"), time.Minute, time.Minute); err != nil || c.Status != oncehttp.ClaimAcquired {
		t.Errorf("got %v, %v", c.Status, err)
	}
	if panics == 0 {
		t.Error("nothing was logged")
	}
}
