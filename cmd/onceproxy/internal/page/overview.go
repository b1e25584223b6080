package page

import (
	"context"
	"net/http"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/operate"
)

// most is where counting records ends: operators want to know whether there are some,
// and few.
const most = 1000

// every is after how many seconds the overview is loaded again, for those who ask.
const every = 10

type overview struct {
	*operate.State
	Up       time.Duration
	Total    operate.Counts
	Routes   []operate.Route
	Breakers []breaker
	HasAny   bool // a route has a breaker

	// Waiting counts the keys whose outcome is unknown; More says that there are more.
	// NoAnswer says that the store did not tell.
	Waiting        int
	More, NoAnswer bool
}

type breaker struct {
	Route string
	oncehttp.BreakerStatus
}

func (p *page) overview(w http.ResponseWriter, r *http.Request, v visitor) {
	o := overview{State: p.state, Up: time.Since(p.state.Started), Routes: p.state.Routes()}
	for _, rt := range o.Routes {
		add(&o.Total, rt.Counts)
		for _, b := range rt.Breakers {
			o.Breakers = append(o.Breakers, breaker{rt.Name, b})
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	records, err := p.state.Keys.List(ctx, oncehttp.RecordQuery{Status: oncehttp.ClaimOrphaned, Limit: most})
	if err != nil {
		p.log.WarnContext(ctx, "the store did not answer the operator's page", "err", err.Error())
		o.NoAnswer = true
	}
	o.Waiting, o.More = len(records), len(records) == most
	made := view{Title: "Overview", Here: "/", Data: o}
	if r.URL.Query().Get("every") != "" {
		made.Every = every
	}
	p.show(w, r, v, http.StatusOK, "overview", made)
}

func add(sum *operate.Counts, c operate.Counts) {
	sum.Passed += c.Passed
	sum.Executed += c.Executed
	sum.Released += c.Released
	sum.Attached += c.Attached
	sum.Replayed += c.Replayed
	sum.Refused += c.Refused
	sum.Unknown += c.Unknown
	sum.Prevented += c.Prevented
}
