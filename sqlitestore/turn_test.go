package sqlitestore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestTheWriterAndHandlersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn turn
		ctx := context.Background()
		order := make(chan string, 10)
		turn.lock(ctx, false)
		wait := func(name string, lent bool) {
			go func() {
				if err := turn.lock(ctx, lent); err != nil {
					t.Error(err)
				}
				order <- name
			}()
			synctest.Wait()
		}
		wait("first handler", true)
		wait("second handler", true)
		wait("writer", false)
		for _, want := range []string{"first handler", "writer", "second handler"} {
			turn.unlock()
			if got := <-order; got != want {
				t.Fatalf("got %v, want %v", got, want)
			}
			if got, want := turn.isLent(), want != "writer"; got != want {
				t.Errorf("lent to a handler: %v, want %v", got, want)
			}
		}
		turn.unlock()
		if !turn.tryLock() {
			t.Error("the turn is not free when everybody has had it")
		}
		if turn.tryLock() {
			t.Error("the turn was given twice")
		}
	})
}

func TestATurnThatIsGivenUpGoesToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn turn
		turn.lock(t.Context(), true)
		for _, lent := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error)
			go func() { gone <- turn.lock(ctx, lent) }()
			synctest.Wait()
			cancel()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Errorf("got error %v, want %v", err, context.Canceled)
			}
		}
		got := make(chan error)
		go func() { got <- turn.lock(t.Context(), true) }()
		synctest.Wait()
		turn.unlock()
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}
