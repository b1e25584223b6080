package proxy

import (
	"cmp"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/operate"
)

// A Router finds the route of a request. It is an http.Handler.
type Router struct {
	routes []*Route // those with a host first, and the longest paths first
}

// NewRouter makes a Router of routes, no two of which have the same host and path.
func NewRouter(routes []*Route) *Router {
	sorted := slices.Clone(routes)
	slices.SortStableFunc(sorted, func(a, b *Route) int {
		return cmp.Or(
			cmp.Compare(min(1, len(b.conf.Host)), min(1, len(a.conf.Host))),
			cmp.Compare(len(b.conf.Prefix()), len(a.conf.Prefix())))
	})
	return &Router{sorted}
}

// ServeHTTP implements http.Handler.
func (t *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rt := t.find(r.Host, r.URL.Path)
	if rt != nil && len(t.routes) > 1 {
		// An upstream may read /a/../b, /a//b or /a\b as another path than this proxy
		// does, and so as one that another route protects.
		if clean := cleaned(r.URL.Path); clean != r.URL.Path && t.find(r.Host, clean) != rt {
			refuseAmbiguous().ServeHTTP(w, r)
			return
		}
	}
	if rt == nil {
		refuseNoRoute().ServeHTTP(w, r)
		return
	}
	rt.ServeHTTP(w, r)
}

func (t *Router) find(host, p string) *Route {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	for _, rt := range t.routes {
		if rt.conf.Host != "" && !strings.EqualFold(rt.conf.Host, name) {
			continue
		}
		if rest, ok := strings.CutPrefix(p, rt.conf.Prefix()); ok && (rest == "" || rest[0] == '/') || rt.conf.Prefix() == "" {
			return rt
		}
	}
	return nil
}

func cleaned(p string) string {
	p = strings.ReplaceAll(p, `\`, "/")
	if strings.Contains(p, "%") { // escaped twice
		p = strings.NewReplacer("%2e", ".", "%2E", ".", "%2f", "/", "%2F", "/", "%5c", "/", "%5C", "/").Replace(p)
	}
	// Parameters of a segment: /a;x=1/../b
	if strings.Contains(p, ";") {
		segments := strings.Split(p, "/")
		for i, s := range segments {
			segments[i], _, _ = strings.Cut(s, ";")
		}
		p = strings.Join(segments, "/")
	}
	return path.Clean("/" + p)
}

func refuseAmbiguous() *oncehttp.Refusal {
	return &oncehttp.Refusal{
		Type: problem("ambiguous-path"), Status: http.StatusBadRequest,
		Title:      "The path can be read in two ways",
		Detail:     "Servers differ in how they read dots, backslashes and doubled slashes, and this path would be protected in one way or another. Nothing was done. Send the path in its plain form.",
		SafeNewKey: true, Outcome: "none",
	}
}

func refuseNoRoute() *oncehttp.Refusal {
	return &oncehttp.Refusal{
		Type: problem("no-route"), Status: http.StatusNotFound,
		Title:      "This proxy has no route for the request",
		Detail:     "Nothing was done.",
		SafeNewKey: true, Outcome: "none",
	}
}

// States is what an operator sees of the routes.
func (t *Router) States() []operate.Route {
	states := make([]operate.Route, len(t.routes))
	for i, rt := range t.routes {
		states[i] = rt.State()
	}
	return states
}

// Routes returns the routes.
func (t *Router) Routes() []*Route { return slices.Clone(t.routes) }
