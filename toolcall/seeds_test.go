package toolcall

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// seeded runs a story for each of a thousand seeds.
func seeded(t *testing.T, story func(t *testing.T, rnd *rand.Rand)) {
	for seed := range uint64(1000) {
		synctest.Test(t, func(t *testing.T) { story(t, rand.New(rand.NewPCG(seed, 11))) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestAHundredGoroutinesWithOneKeyMakeOneEffectWheneverTheyCome(t *testing.T) {
	seeded(t, func(t *testing.T, rnd *rand.Rand) {
		var b bank
		tool := payTool(&b, []Effect{Unsafe, Keyed, Idempotent}[rnd.IntN(3)])
		pay, takes := tool.Call, time.Duration(rnd.IntN(100))*time.Millisecond
		tool.Call = func(ctx context.Context, args json.RawMessage) (any, error) {
			time.Sleep(takes)
			return pay(ctx, args)
		}
		store := new(oncehttp.MemoryStore)
		turns := []*Turn{newRunner(t, store, tool).Turn("u", Budget{}), newRunner(t, store, tool).Turn("u", Budget{})} // of two processes
		var wg sync.WaitGroup
		for i := range 100 {
			after, args := time.Duration(rnd.IntN(200))*time.Millisecond, []string{refundArgs, " " + refundArgs}[rnd.IntN(2)]
			wg.Go(func() {
				time.Sleep(after)
				if got := turns[i%2].Do(t.Context(), call("refund_order", args))[0]; got.Status != StatusOK {
					t.Errorf("got %s, %v", told(got), got.Err)
				}
			})
		}
		wg.Wait()
		if b.total() != 1 {
			t.Errorf("%d effects, want 1", b.total())
		}
	})
}

// What makes two calls one are their arguments. Ids that repeat, are missing or change
// make no difference.
func TestProviderIDsThatRepeatOrAreMissingReplayNothing(t *testing.T) {
	seeded(t, func(t *testing.T, rnd *rand.Rand) {
		var b bank
		turn := newRunner(t, new(oncehttp.MemoryStore), payTool(&b, Unsafe)).Turn("u", Budget{})
		seen := make(map[string]bool)
		for range 1 + rnd.IntN(4) {
			var calls []Call
			for range 1 + rnd.IntN(8) {
				calls = append(calls, Call{Tool: "refund_order", ID: []string{"", "null", "call_1", "call_2"}[rnd.IntN(4)], Args: fmt.Appendf(nil, `{"n":%d}`, rnd.IntN(12))})
			}
			ran := make(map[string]int)
			for i, got := range turn.Do(t.Context(), calls...) {
				if got.ID != calls[i].ID || got.Status != StatusOK {
					t.Errorf("got %s for id %q, want that of id %q", told(got), got.ID, calls[i].ID)
				}
				if !got.Replayed {
					ran[string(calls[i].Args)]++
				}
			}
			for _, c := range calls {
				want := 1
				if seen[string(c.Args)] {
					want = 0
				}
				if got := ran[string(c.Args)]; got != want {
					t.Errorf("%s: %d results say that they ran, want %d", c.Args, got, want)
				}
			}
			for _, c := range calls {
				seen[string(c.Args)] = true
			}
		}
		if b.total() != len(seen) {
			t.Errorf("%d effects of %d calls", b.total(), len(seen))
		}
	})
}

// waits writes a wait of so many seconds in a form that servers use.
var waits = []func(h http.Header, seconds int){
	func(h http.Header, s int) { h.Set("Retry-After", fmt.Sprint(s)) },
	func(h http.Header, s int) { h.Set("Retry-After", fmt.Sprintf("  %d ", s)) },
	func(h http.Header, s int) { h.Set("Retry-After", at(s).Format(http.TimeFormat)) },
	func(h http.Header, s int) { h.Set("Retry-After", at(s).Format("Monday, 02-Jan-06 15:04:05 GMT")) },
	func(h http.Header, s int) { h.Set("Retry-After", at(s).Format(time.ANSIC)) },
	func(h http.Header, s int) { h.Set("retry-after-ms", fmt.Sprint(1000*s)) },
	func(h http.Header, s int) { h.Set("x-ms-retry-after-ms", fmt.Sprint(1000*s)) },
}

func at(seconds int) time.Time { return time.Now().UTC().Add(time.Duration(seconds) * time.Second) }

// A server asks for waits in every form, a reply is lost, a tool ignores its context, and
// the caller's time ends somewhere in between.
func TestATurnEndsInTimeAndNeverAsksEarlierThanToldTo(t *testing.T) {
	var oks, unknowns, lates int
	seeded(t, func(t *testing.T, rnd *rand.Rand) {
		var b bank
		var mu sync.Mutex
		var notBefore time.Time
		chance := func(n int) int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) }
		server := roundTrip(func(req *http.Request) (*http.Response, error) {
			if req.Context().Err() != nil {
				return nil, req.Context().Err()
			}
			mu.Lock()
			if time.Now().Before(notBefore) {
				t.Errorf("asked %v earlier than told to", time.Until(notBefore))
			}
			mu.Unlock()
			resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Request: req, ProtoMajor: 1, ProtoMinor: 1}
			resp.Body = io.NopCloser(strings.NewReader(`{"refund":1}`))
			key := req.Header.Get("Idempotency-Key")
			if key == "" {
				t.Error("a request without a key")
			}
			switch chance(5) {
			case 0, 1:
				resp.StatusCode, resp.Body = []int{429, 503}[chance(2)], http.NoBody
				form, s := waits[chance(len(waits))], 1+chance(40)
				form(resp.Header, s)
				mu.Lock()
				notBefore = time.Now().Add(time.Duration(s) * time.Second).Truncate(time.Second) // dates have no fractions
				mu.Unlock()
				return resp, nil
			case 2: // the reply is lost
				b.pay(key, "refund")
				return nil, io.ErrUnexpectedEOF
			case 3: // it takes its time, whoever waits
				time.Sleep(time.Duration(chance(20)) * time.Second)
			}
			b.pay(key, "refund")
			return resp, nil
		})
		tr := &oncehttp.Transport{Base: server, Logger: quiet(), Attempts: 1 + rnd.IntN(3), Breaker: &oncehttp.Breaker{Disabled: true}, Budget: &oncehttp.Budget{Disabled: true}}
		client := &http.Client{Transport: tr}
		if rnd.IntN(2) == 0 {
			client.Transport = server // then the waits are the Runner's
		}
		r := newRunner(t, new(oncehttp.MemoryStore), Tool{Name: "refund_order", Effect: Keyed, Timeout: 15 * time.Second, Call: func(ctx context.Context, args json.RawMessage) (any, error) {
			req, err := http.NewRequestWithContext(ctx, "POST", "http://pay.example/refunds", strings.NewReader(string(args)))
			if err != nil {
				return nil, err
			}
			if client.Transport != tr {
				key, _ := KeyFromContext(ctx)
				req.Header.Set("Idempotency-Key", key)
			}
			return HTTP(client.Do(req))
		}})
		turn := r.Turn("u", Budget{})
		told := false
		for range 1 + rnd.IntN(3) {
			limit := time.Duration(1+chance(60)) * time.Second
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			begin := time.Now()
			got := turn.Do(ctx, call("refund_order", refundArgs))[0]
			cancel()
			if d := time.Since(begin); d > limit+grace {
				t.Errorf("it took %v of %v", d, limit)
			}
			switch got.Outcome {
			case OutcomeApplied:
				told = true
				oks++
			case OutcomeUnknown:
				unknowns++
			}
			if chance(2) == 0 {
				mu.Lock()
				notBefore = time.Time{} // what the model does next is not the Runner's to delay
				mu.Unlock()
			} else {
				time.Sleep(time.Minute)
			}
		}
		if err := r.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if b.total() > 1 || told && b.total() != 1 {
			t.Errorf("%d refunds; told that it is done: %v", b.total(), told)
		}
		if !told && b.total() == 1 {
			lates++
		}
	})
	t.Logf("%d told done, %d unknown, %d done and not told", oks, unknowns, lates)
	if oks < 200 || unknowns < 200 || lates < 50 {
		t.Error("the seeds do not reach what they should")
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
