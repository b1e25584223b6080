package oncehttp_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// send sends one GET and returns how often it was tried, and why no more often.
func send(t *testing.T, tr *oncehttp.Transport, host string) (tries int, stop error) {
	t.Helper()
	resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://"+host+"/", ""))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	r := oncehttp.Attempts(resp)
	return len(r.Tries), r.Stop
}

func TestWhatDidNotHelpOneCallIsNotTriedForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := script(503, 503, 503, 500, 500, 200, 500, 200)
		tr := &oncehttp.Transport{Base: b, Logger: quiet(), Breaker: &oncehttp.Breaker{Disabled: true}}
		for i, want := range []struct {
			tries int
			stop  error
			why   string
		}{
			{3, oncehttp.ErrAttempts, "the first call has all its attempts"},
			{1, oncehttp.ErrBudget, "the next has one, as retries have only failed"},
			{1, oncehttp.ErrBudget, "and so has the one after it"},
			{1, nil, "a first attempt still goes, and succeeds"},
			{2, nil, "which brings retries back"},
		} {
			tries, stop := send(t, tr, "refund.example")
			if tries != want.tries || !errors.Is(stop, want.stop) {
				t.Errorf("call %d: %d tries, stopped by %v; want %d and %v: %s", i+1, tries, stop, want.tries, want.stop, want.why)
			}
		}
	})
}

func TestFailedRetriesAreForgotten(t *testing.T) {
	for _, row := range []struct {
		name   string
		wait   time.Duration
		host   string
		budget *oncehttp.Budget
		tries  int
	}{
		{"not within a minute", time.Minute, "refund.example", &oncehttp.Budget{}, 1},
		{"after a minute", time.Minute + time.Nanosecond, "refund.example", &oncehttp.Budget{}, 2},
		{"by other hosts", 0, "other.example", &oncehttp.Budget{}, 2},
		{"by a disabled budget", 0, "refund.example", &oncehttp.Budget{Disabled: true}, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := script(503, 503, 503, 503, 200)
				tr := &oncehttp.Transport{Base: b, Logger: quiet(), Breaker: &oncehttp.Breaker{Disabled: true}, Budget: row.budget}
				send(t, tr, "refund.example")
				time.Sleep(row.wait)
				if tries, stop := send(t, tr, row.host); tries != row.tries {
					t.Errorf("the next call: %d tries, stopped by %v; want %d", tries, stop, row.tries)
				}
			})
		})
	}
}

// A server that names the moment knows better than the failures before it.
func TestAServersWaitIsFollowedWhateverFailedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := script(503, 503, 503, with(503, "Retry-After", "5"), 200)
		tr := &oncehttp.Transport{Base: b, Logger: quiet(), Breaker: &oncehttp.Breaker{Disabled: true}}
		send(t, tr, "refund.example")
		if tries, stop := send(t, tr, "refund.example"); tries != 2 {
			t.Errorf("the next call: %d tries, stopped by %v; want 2", tries, stop)
		}
	})
}

// Calls that fail at the same moment, as when their connection breaks, know of no
// retry that has failed.
func TestCallsThatFailTogetherAreAllRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 4
		b := script(500, 500, 500, 500, 200, 200, 200, 200)
		tr := &oncehttp.Transport{Base: b, Logger: quiet()}
		done := make(chan int, calls)
		for range calls {
			go func() {
				tries, _ := send(t, tr, "refund.example")
				done <- tries
			}()
		}
		for range calls {
			if tries := <-done; tries != 2 {
				t.Errorf("%d tries, want 2", tries)
			}
		}
	})
}
