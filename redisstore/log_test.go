package redisstore_test

import (
	"context"
	"testing"

	"github.com/oncehttp/oncehttp/internal/badlog"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/redisstore"
)

// The warning of a server without a disk is no reason to end.
func TestALogThatPanicsIsNoEnding(t *testing.T) {
	panics := 0
	log := badlog.New(func() { panics++; panic("a handler's secret") })
	s := redisstore.New(connect(t, services.Redis(t)), redisstore.WithPrefix(prefix()), redisstore.WithLogger(log))
	t.Cleanup(s.Close)
	if err := s.Check(context.Background()); err != nil {
		t.Error(err)
	}
	if panics == 0 {
		t.Error("nothing was logged")
	}
}
