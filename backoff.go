package oncehttp

import (
	"math"
	"math/rand/v2"
	"net/http"
	"time"
)

// FullJitter is the pause a [Transport] makes when its Backoff field is nil: a
// duration drawn uniformly from zero up to, but not including, the smaller of
// limit and base·2ⁿ, where n is attemptNum. Spreading over the whole range is
// what keeps clients that failed together from coming back together.
//
// It has the signature of retryablehttp.Backoff, so that a Backoff of your own
// can start from it. It ignores resp: what a server asks for in Retry-After is
// the Transport's business and goes before any Backoff. It never panics and
// never overflows; a negative attemptNum counts as zero, and a base or limit
// that is not positive gives no pause. It is safe for concurrent use.
func FullJitter(base, limit time.Duration, attemptNum int, resp *http.Response) time.Duration {
	return fullJitter(base, limit, attemptNum, rand.Int64N)
}

// fullJitter draws from [0, min(limit, base·2ⁿ)) with r, which is like
// rand.Int64N.
func fullJitter(base, limit time.Duration, n int, r func(int64) int64) time.Duration {
	if base <= 0 || limit <= 0 {
		return 0
	}
	n = max(n, 0)
	top := limit
	// Shift the limit right, not base left, which would overflow.
	if base <= limit>>n {
		top = base << n
	}
	return time.Duration(r(int64(top)))
}

// serverPause is the pause for a server that asked for wait: never shorter, and
// longer by up to a tenth or a second, whichever is less, because it may have
// told a thousand others the same.
func serverPause(wait time.Duration, r func(int64) int64) time.Duration {
	if wait <= 0 {
		return 0
	}
	spread := min(wait/10, time.Second, math.MaxInt64-wait)
	if spread == 0 {
		return wait
	}
	return wait + time.Duration(r(int64(spread)+1))
}
