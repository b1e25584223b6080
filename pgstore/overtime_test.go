package pgstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A call goes on for so long after its context, and no longer: its server may hang.
func TestOvertimeEnds(t *testing.T) {
	for _, by := range []time.Duration{overtime, closing} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			late, done := lateContext(ctx, by)
			defer done()
			<-late.Done()
			if got, want := time.Since(began), time.Second+by; got != want {
				t.Errorf("ended after %v, want %v", got, want)
			}
		})
	}
}

// What is over in time leaves nothing behind, whether its context has ended or not.
func TestOvertimeIsNotWaitedFor(t *testing.T) {
	for _, ends := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			late, done := lateContext(ctx, closing)
			if ends {
				cancel()
				synctest.Wait()
			}
			if err := late.Err(); err != nil {
				t.Errorf("before it is done: %v", err)
			}
			done()
			synctest.Wait()
			if late.Err() == nil {
				t.Error("it goes on when the call is over")
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("took %v", took)
			}
		})
	}
}
