package sqlitestore

import (
	"testing"
	"time"

	"github.com/oncehttp/oncehttp/internal/badlog"
)

// What a log handler does in the writer's goroutine is not how a process ends.
func TestALogThatPanicsIsNoEnding(t *testing.T) {
	t.Parallel()
	panics := make(chan bool, 1)
	log := badlog.New(func() {
		select {
		case panics <- true:
		default:
		}
		panic("a handler's secret")
	})
	s := tempStore(t, WithLogger(log))
	mustExec(t, s.db, "CREATE TRIGGER kept BEFORE DELETE ON oncehttp_records BEGIN SELECT raise(ABORT, 'records are kept'); END")
	if _, err := s.Claim(t.Context(), newOp("k"), time.Millisecond, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	<-panics
	if _, err := s.Claim(t.Context(), newOp("another"), time.Hour, time.Hour); err != nil {
		t.Errorf("after a sweep failed and the log handler panicked: %v", err)
	}
}
