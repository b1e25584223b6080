package proxy

import (
	"context"
	"net/http"

	"github.com/oncehttp/oncehttp"
)

// An exchange is one request on its way to the upstream and back.
type exchange struct {
	keyed  bool            // a Middleware runs it
	work   context.Context // the Middleware's, for Release and Unknown: a response's own hides them
	status int             // of the answer

	notSent bool // the latest attempt did not reach the upstream
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// release and unknown tell the Middleware what the status alone cannot.
func (x *exchange) release() {
	if x.keyed {
		oncehttp.Release(x.work)
	}
}

func (x *exchange) unknown() {
	if x.keyed {
		oncehttp.Unknown(x.work)
	}
}

// isSafe reports whether a request of the method passes without protection, as it does
// in oncehttp.Middleware.
func isSafe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "QUERY":
		return true
	}
	return false
}
