package operate

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/oncehttp/oncehttp"
)

// The dashboard asks for metrics and labels that there are, in panels that do not
// cover each other.
func TestTheDashboardShowsWhatIsMeasured(t *testing.T) {
	b, err := os.ReadFile("../../grafana/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	type rect struct{ X, Y, W, H int }
	var d struct {
		Panels []struct {
			Title   string
			GridPos rect
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	exposed := exposition(t)
	asked := map[string]bool{}
	check := func(where, expr string) {
		expr = strings.NewReplacer("$__rate_interval", "5m", "$__range", "6h").Replace(expr)
		for _, m := range regexp.MustCompile(`[a-z]+_[a-z_]+(?:\{([^}]*)\})?`).FindAllStringSubmatch(expr, -1) {
			name, _, _ := strings.Cut(m[0], "{")
			if slices.Contains([]string{"histogram_quantile", "label_values"}, name) {
				continue
			}
			asked[name] = true
			if !strings.Contains(exposed, "\n"+name+"{") && !strings.Contains(exposed, "\n"+name+" ") {
				t.Errorf("%s asks for %s, which is not exposed", where, name)
				continue
			}
			for _, l := range regexp.MustCompile(`(\w+)=~?"`).FindAllStringSubmatch(m[1], -1) {
				if l[1] != "job" && !regexp.MustCompile(`(?m)^`+name+`\{[^}]*\b`+l[1]+`="`).MatchString(exposed) {
					t.Errorf("%s: %s has no label %s", where, name, l[1])
				}
			}
		}
		for _, m := range regexp.MustCompile(`by \(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
			for l := range strings.SplitSeq(m[1], ", ") {
				if !strings.Contains(exposed, l+`="`) {
					t.Errorf("%s: nothing has the label %s", where, l)
				}
			}
		}
	}
	var seen []rect
	for _, p := range d.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("%q shows nothing", p.Title)
		}
		for _, q := range p.Targets {
			check(p.Title, q.Expr)
		}
		g := p.GridPos
		if g.X+g.W > 24 || g.W == 0 || g.H == 0 {
			t.Errorf("%q does not fit: %+v", p.Title, g)
		}
		for _, o := range seen {
			if g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H {
				t.Errorf("%q covers another panel", p.Title)
			}
		}
		seen = append(seen, g)
	}
	for _, v := range d.Templating.List {
		if v.Name != "datasource" {
			check(v.Name, strings.ReplaceAll(v.Query, ", ", " "))
		}
	}
	for _, name := range []string{
		"onceproxy_requests_total", "onceproxy_refusals_total", "onceproxy_duplicate_effects_prevented_total", "onceproxy_upstream_failures_total",
		"onceproxy_upstream_responses_total", "onceproxy_requests_in_flight", "onceproxy_breaker_state", "onceproxy_reloads_total",
	} {
		if !asked[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// exposition is what a proxy that has seen everything exposes.
func exposition(t *testing.T) string {
	t.Helper()
	m := NewMetrics("test")
	r := m.Meter("default")
	r.refusals["key-reused"] = 1
	r.fates["unknown"] = 1
	m.Reloaded(nil)
	m.store.WithLabelValues("claim", "ok").Observe(1)
	m.Watch(func() []Route {
		return []Route{{Name: "default", Breakers: []oncehttp.BreakerStatus{{Host: "http://up.example"}}}}
	})
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatal(w.Body.String())
	}
	return "\n" + w.Body.String()
}
