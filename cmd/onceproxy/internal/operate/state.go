package operate

import (
	"log/slog"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A State is a running proxy as its operator sees it. Its functions may be called at
// any time, by any number of goroutines.
type State struct {
	Version string
	Started time.Time
	Listen  string // the address that clients connect to
	Store   string // which store, in words, without a password

	Log *slog.Logger // is told what an operator does to keys; nil: nobody is

	// Keys are the records of all routes.
	Keys oncehttp.Inspector

	// Routes returns the routes as they are at the moment: a reload can change them.
	Routes func() []Route
}

// A Route is what there is to know of one route.
type Route struct {
	Name     string
	Match    string // host and path
	Upstream string // without a user and password
	Counts   Counts
	Breakers []oncehttp.BreakerStatus // empty where the route has none
}
