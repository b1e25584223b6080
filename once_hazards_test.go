package oncehttp

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// The claim may still be on its way, and arrive when the record that answered
// for it is gone: then nobody would know of it.
func TestOnceUndoesAnUnansweredClaimAlsoWhenItIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := &MemoryStore{Logger: quiet}
		done := Op{Key: "k", Token: "first"}
		mem.Claim(t.Context(), done, time.Minute, time.Hour)
		mem.Complete(t.Context(), done, []byte("head"), nil, time.Hour)
		store := &faulty{Store: mem, before: func(_ context.Context, c storeCall) error {
			if c.method == "Claim" && c.n == 1 {
				return errStore
			}
			return nil
		}}
		o := &Once{Store: store, Logger: quiet}
		a, err := o.Do(t.Context(), Op{Key: "k"}, func(context.Context) ([]byte, []byte, error) {
			t.Error("the work ran")
			return nil, nil, nil
		})
		if err != nil || a.Kind != OutcomeReplayed {
			t.Fatalf("Do = %v, %v, want the record", a.Kind, err)
		}
		time.Sleep(time.Minute)
		released := store.made("Release")
		if len(released) == 0 || released[0].op.Token != store.made("Claim")[0].op.Token {
			t.Errorf("releases: %+v, want some by the token that was not answered", released)
		}
	})
}

// Between the look at an orphan and the takeover the key may have become another's.
func TestOnceJudgesTheOrphanThatItTookOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := &MemoryStore{Logger: quiet}
		orphan := func(op Op) {
			if c, err := mem.Claim(t.Context(), op, time.Minute, time.Hour); err != nil || c.Status != ClaimAcquired {
				t.Fatal(c, err)
			}
			if err := mem.Renew(t.Context(), op, 0); err != nil {
				t.Fatal(err)
			}
		}
		asked := Op{Key: "k", Fingerprint: [32]byte{1}}
		first := asked
		first.Token = "first"
		orphan(first)
		store := &faulty{Store: mem, before: func(_ context.Context, c storeCall) error {
			if c.method == "TakeOver" {
				if err := mem.Purge(t.Context(), "k"); err != nil {
					t.Fatal(err)
				}
				orphan(Op{Key: "k", Token: "other", Fingerprint: [32]byte{2}})
			}
			return nil
		}}
		o := &Once{Store: store, Orphan: OrphanRerun, Logger: quiet}
		_, err := o.Do(t.Context(), asked, func(context.Context) ([]byte, []byte, error) {
			t.Error("the work ran under a key that stands for something else")
			return nil, nil, nil
		})
		if !errors.Is(err, ErrKeyReused) {
			t.Errorf("error = %v, want ErrKeyReused", err)
		}
		if c, _ := mem.Claim(t.Context(), Op{Key: "k", Token: "third"}, time.Minute, time.Hour); c.Status != ClaimOrphaned {
			t.Errorf("the key is %v, want it orphaned as it was", c.Status)
		}
	})
}

// The last release decides: if it fails, nobody frees a claim that landed after the
// ones before.
func TestOnceFreesAClaimThatLandsLateThoughTheStoreFailsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := &MemoryStore{Logger: quiet}
		began := time.Now()
		var late Op
		store := &faulty{Store: mem, before: func(_ context.Context, c storeCall) error {
			since := time.Since(began)
			switch {
			case c.method == "Claim":
				late = c.op
				return errStore
			case since >= 29*time.Second && since < 40*time.Second:
				return errStore // the end of the lease is at 30s
			}
			return nil
		}}
		o := &Once{Store: store, Logger: quiet}
		o.Do(t.Context(), Op{Key: "k"}, func(context.Context) ([]byte, []byte, error) { return nil, nil, nil })
		time.Sleep(28 * time.Second)
		if c, err := mem.Claim(t.Context(), late, 30*time.Second, time.Hour); err != nil || c.Status != ClaimAcquired {
			t.Fatal(c.Status, err)
		}
		time.Sleep(time.Minute)
		c, err := mem.Claim(t.Context(), Op{Key: "k", Token: "next"}, time.Minute, time.Hour)
		if err != nil || c.Status != ClaimAcquired {
			t.Errorf("the key is %v, %v, want it free", c.Status, err)
		}
	})
}

// By then a repeat may be running, so the key cannot be freed; but what work that
// says "nothing happened" returns is no answer either.
func TestOnceDoesNotRecordAReleaseThatCameTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := &MemoryStore{Logger: quiet}
		o := &Once{Store: mem, Timeout: time.Second, Logger: quiet}
		a, err := o.Do(t.Context(), Op{Key: "k"}, func(ctx context.Context) ([]byte, []byte, error) {
			<-ctx.Done()
			Release(ctx)
			return nil, nil, nil
		})
		if a.Kind != OutcomeUnknown {
			t.Errorf("Do = %v, %v, want unknown", a.Kind, err)
		}
		if c, _ := mem.Claim(t.Context(), Op{Key: "k", Token: "next"}, time.Minute, time.Hour); c.Status != ClaimOrphaned {
			t.Errorf("the key is %v, want it orphaned", c.Status)
		}
	})
}
