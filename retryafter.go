package oncehttp

import (
	"net/http"
	"time"
)

// RetryAfter is a placeholder.
func RetryAfter(h http.Header, now time.Time) (wait time.Duration, ok bool) { return 0, false }
