package oncehttp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var budgetHost = hostKey{"https", "api.example.com"}

// spend pays until the budget says no.
func spend(b *Budget, k hostKey, now time.Time) (n int) {
	for b.pay(k, now) {
		n++
	}
	return n
}

func TestABudgetStartsWithTenTokensForEachHost(t *testing.T) {
	var b Budget
	now := time.Now()
	for _, host := range []string{"a", "b", "c"} {
		if got := spend(&b, hostKey{"https", host}, now); got != 10 {
			t.Errorf("host %s: got %d retries, want 10", host, got)
		}
	}
}

func TestABudgetRefills(t *testing.T) {
	now := time.Now()
	after := func(d time.Duration) time.Time { return now.Add(d) }
	for _, tt := range []struct {
		how  string
		b    *Budget
		do   func(b *Budget)
		at   time.Duration
		want int
	}{
		{"not at all at once", &Budget{}, func(*Budget) {}, 0, 0},
		{"not before five seconds", &Budget{}, func(*Budget) {}, 5*time.Second - 1, 0},
		{"by one token in five seconds", &Budget{}, func(*Budget) {}, 5 * time.Second, 1},
		{"up to ten", &Budget{}, func(*Budget) {}, time.Hour, 10},
		{"by one token for ten healthy answers", &Budget{}, times(10, func(b *Budget) { b.earn(budgetHost, now) }), 0, 1},
		{"not for nine", &Budget{}, times(9, func(b *Budget) { b.earn(budgetHost, now) }), 0, 0},
		{"up to ten for any number", &Budget{}, times(1000, func(b *Budget) { b.earn(budgetHost, now) }), 0, 10},
		{"from both sources together", &Budget{}, times(5, func(b *Budget) { b.earn(budgetHost, now) }), 2500 * time.Millisecond, 1},
		{"up to ten together", &Budget{}, times(1000, func(b *Budget) { b.earn(budgetHost, now) }), time.Hour, 10},
		{"by a token that is returned", &Budget{}, func(b *Budget) { b.refund(budgetHost, now) }, 0, 1},
		{"up to ten by those", &Budget{}, times(99, func(b *Budget) { b.refund(budgetHost, now) }), 0, 10},
		{"not with time if Rate is negative", &Budget{Rate: -1}, func(*Budget) {}, 24 * time.Hour, 0},
		{"not with answers if Earn is negative", &Budget{Earn: -1}, times(1000, func(b *Budget) { b.earn(budgetHost, now) }), 0, 0},
		{"as fast as Rate says", &Budget{Rate: 3}, func(*Budget) {}, time.Second, 3},
		{"as well as Earn says", &Budget{Earn: 0.5}, times(6, func(b *Budget) { b.earn(budgetHost, now) }), 0, 3},
		{"up to what Tokens says", &Budget{Tokens: 2.5}, func(*Budget) {}, time.Hour, 2},
	} {
		spend(tt.b, budgetHost, now)
		tt.do(tt.b)
		if got := spend(tt.b, budgetHost, after(tt.at)); got != tt.want {
			t.Errorf("%s: got %d retries, want %d", tt.how, got, tt.want)
		}
	}
}

func times(n int, f func(*Budget)) func(*Budget) {
	return func(b *Budget) {
		for range n {
			f(b)
		}
	}
}

func TestAFullBudgetSavesNothingUp(t *testing.T) {
	// A fraction that waits beside ten whole tokens would be an eleventh soon.
	var b Budget
	now := time.Now()
	b.pay(budgetHost, now)
	now = now.Add(time.Hour)
	for range 100 {
		b.earn(budgetHost, now)
	}
	if got := spend(&b, budgetHost, now); got != 10 {
		t.Fatalf("got %d retries, want 10", got)
	}
	if got := spend(&b, budgetHost, now.Add(5*time.Second-1)); got != 0 {
		t.Errorf("got an eleventh retry too early")
	}
}

func TestAStaleClockNeverFillsABudget(t *testing.T) {
	var b Budget
	now := time.Now()
	b.pay(budgetHost, now)
	b.refund(budgetHost, now)
	paid := 0
	if b.pay(budgetHost, now.Add(-time.Hour)) {
		paid++
	}
	if paid += spend(&b, budgetHost, now); paid != 10 {
		t.Errorf("got %d retries, want 10", paid)
	}
}

func TestABucketThatIsForgottenPaysNothing(t *testing.T) {
	var b Budget
	old := b.hosts.get(budgetHost, time.Now())
	if !old.leave(time.Now(), false) {
		t.Error("a bucket that was never used stays")
	}
	if paid, here := old.pay(&b, time.Now()); paid || here {
		t.Errorf("got %v, %v; want to be sent to the next bucket", paid, here)
	}
}

func TestADisabledBudgetNeverSaysNo(t *testing.T) {
	b := Budget{Disabled: true}
	for range 1000 {
		if !b.pay(budgetHost, time.Now()) {
			t.Fatal("got no")
		}
	}
}

func TestABudgetNamesTheFieldThatMakesNoSense(t *testing.T) {
	for _, tt := range []struct {
		b     *Budget
		field string // "": none
	}{
		{&Budget{}, ""},
		{&Budget{Tokens: 1}, ""},
		{&Budget{Earn: -1, Rate: -1}, ""},
		{&Budget{Tokens: 0.5}, "Tokens"},
		{&Budget{Tokens: -1}, "Tokens"},
		{&Budget{Tokens: math.NaN()}, "Tokens"},
		{&Budget{Tokens: math.Inf(1)}, "Tokens"},
		{&Budget{Earn: math.NaN()}, "Earn"},
		{&Budget{Earn: math.Inf(1)}, "Earn"},
		{&Budget{Rate: math.NaN()}, "Rate"},
		{&Budget{Rate: math.Inf(1)}, "Rate"},
	} {
		err := tt.b.check()
		if tt.field == "" && err != nil || tt.field != "" && (err == nil || !strings.Contains(err.Error(), "Budget."+tt.field+" ")) {
			t.Errorf("Tokens %v, Earn %v, Rate %v: got %v, want %q named", tt.b.Tokens, tt.b.Earn, tt.b.Rate, err, tt.field)
		}
	}
}

// A budgetEvent is something that happened to a budget: a retry sent, or a
// healthy answer.
type budgetEvent struct {
	at             time.Duration
	retry, healthy int64
}

// mostRetries is the bound, in units of 1e-10 retries so that it is exact:
// 10 + 0.2 × seconds + 0.1 × healthy answers.
func mostRetries(d time.Duration, healthy int64) int64 { return 10*1e10 + 2*int64(d) + healthy*1e9 }

func TestRetriesStayWithinTheBoundInEveryWindow(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 3
	}
	for _, perSecond := range []float64{0.1, 1, 100} {
		for seed := range seeds {
			r := rand.New(rand.NewPCG(uint64(seed), math.Float64bits(perSecond)))
			var b Budget
			var events []budgetEvent
			start := time.Now()
			at := time.Duration(0)
			for len(events) < 3000 {
				// Half of the time the host is down. A call to it fails, is
				// repeated as long as the budget pays, and now and then the
				// repeat is never sent.
				down := r.IntN(2) == 0
				for range 1 + r.IntN(200) {
					at += time.Duration(r.ExpFloat64() / perSecond * float64(time.Second))
					// Clocks are read before locks are taken.
					if r.IntN(20) == 0 && b.pay(budgetHost, start.Add(at-time.Duration(r.Int64N(int64(time.Second))))) {
						b.refund(budgetHost, start.Add(at))
					}
					if !down {
						b.earn(budgetHost, start.Add(at))
						events = append(events, budgetEvent{at: at, healthy: 1})
						continue
					}
					for range 1 + r.IntN(3) {
						if !b.pay(budgetHost, start.Add(at)) {
							break
						}
						if r.IntN(10) == 0 {
							b.refund(budgetHost, start.Add(at))
							continue
						}
						events = append(events, budgetEvent{at: at, retry: 1})
					}
				}
			}
			checkWindows(t, fmt.Sprintf("%v calls a second, seed %d", perSecond, seed), events)
		}
	}
}

// checkWindows holds every window of events that starts at a retry against the
// bound.
func checkWindows(t *testing.T, when string, events []budgetEvent) {
	t.Helper()
	for i, first := range events {
		if first.retry == 0 {
			continue
		}
		var retries, healthy int64
		for _, e := range events[i:] {
			retries += e.retry
			healthy += e.healthy
			if got, most := retries*1e10, mostRetries(e.at-first.at, healthy); got > most {
				t.Fatalf("%s: %d retries in %v with %d healthy answers, want at most %v",
					when, retries, e.at-first.at, healthy, float64(most)/1e10)
			}
		}
	}
}

func TestTheBoundIsReached(t *testing.T) {
	// A budget that never paid would stay within any bound.
	for _, perSecond := range []int{1, 100} {
		var b Budget
		start := time.Now()
		const seconds = 1000
		retries := 0
		for i := range perSecond*seconds + 1 {
			if b.pay(budgetHost, start.Add(time.Duration(i)*time.Second/time.Duration(perSecond))) {
				retries++
			}
		}
		if want := 10 + seconds/5; retries < want-1 || retries > want {
			t.Errorf("%d calls a second, all failing for %ds: %d retries, want %d", perSecond, seconds, retries, want)
		}
	}
	// At one call in ten seconds the trickle pays for all of them.
	var b Budget
	start := time.Now()
	for i := range 1000 {
		if !b.pay(budgetHost, start.Add(time.Duration(i)*10*time.Second)) {
			t.Fatalf("retry %d of a caller that makes one in ten seconds is refused", i+1)
		}
	}
}

func TestConcurrentRetriesShareTheTokens(t *testing.T) {
	var b Budget
	var paid atomic.Int32
	now := time.Now()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if b.pay(budgetHost, now) {
				paid.Add(1)
			}
		})
	}
	wg.Wait()
	if n := paid.Load(); n != 10 {
		t.Errorf("got %d retries, want 10", n)
	}
}

func TestABudgetRemembersOnlyHostsThatAreShortOfTokens(t *testing.T) {
	var b Budget
	now := time.Now()
	for i := range 10_000 {
		b.earn(nth(i), now)
	}
	if n := len(b.hosts.m); n != 0 {
		t.Errorf("%d healthy hosts are remembered, want none", n)
	}
	spend(&b, budgetHost, now)
	for i := range 5000 { // as in a crawl, with a retry now and then
		now = now.Add(time.Millisecond)
		b.pay(nth(i), now)
	}
	if b.pay(budgetHost, now) != true { // 5s have passed
		t.Error("the trickle of a host is forgotten while others come and go")
	}
	if b.pay(budgetHost, now) {
		t.Error("a host without tokens has got new ones by being forgotten")
	}
	for i := range 5000 {
		now = now.Add(50 * time.Millisecond)
		b.pay(nth(-1-i), now)
	}
	if n := len(b.hosts.m); n > 2*hostsKept {
		t.Errorf("%d hosts are remembered, want about the %d that are short of tokens at a time", n, hostsKept)
	}
}

func TestABudgetAllocatesNothing(t *testing.T) {
	var b Budget
	now := time.Now()
	b.pay(budgetHost, now)
	healthy := hostKey{"https", "healthy.example.com"}
	if n := testing.AllocsPerRun(100, func() {
		now = now.Add(time.Second)
		b.pay(budgetHost, now)
		b.refund(budgetHost, now)
		b.earn(budgetHost, now)
		b.earn(healthy, now)
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

func BenchmarkBudget(b *testing.B) {
	for _, hosts := range []int{1, 1000, 10_000} {
		keys := make([]hostKey, hosts)
		for i := range keys {
			keys[i] = nth(i)
		}
		run := func(name string, f func(*Budget, hostKey, time.Time)) {
			b.Run(fmt.Sprintf("%s/%d", name, hosts), func(b *testing.B) {
				b.ReportAllocs()
				var budget Budget
				var next atomic.Int64
				b.RunParallel(func(pb *testing.PB) {
					i := int(next.Add(7919))
					for ; pb.Next(); i++ {
						f(&budget, keys[i%hosts], time.Now())
					}
				})
			})
		}
		run("healthy", func(b *Budget, k hostKey, now time.Time) { b.earn(k, now) })
		run("failing", func(b *Budget, k hostKey, now time.Time) { b.pay(k, now) })
	}
}
