package config

import (
	"fmt"
	"strings"
)

// Warnings says what is allowed and may surprise.
func (c *Config) Warnings() []string {
	var list []string
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if c.StoreURL() == "memory:" {
		add("the store is this process's memory: after a restart a repeat runs again")
	}
	for i := range c.Routes {
		r := &c.Routes[i]
		if r.Key.Derive != 0 {
			add("route %s: equal requests without a key that come within %v count as one, also where two were meant: the second of two equal orders is answered with the first one's receipt", r.Label(), r.Key.Derive)
		}
		if r.Key.DeriveAnonymous {
			add("route %s: clients without credentials count as one client, so one of them can get another's answer to an equal request", r.Label())
		}
		for _, s := range r.Record.Free {
			if s >= 500 && s != 503 {
				add("route %s: a %d frees the key, though a server that fails may have acted before it did; repeats are sent again", r.Label(), s)
			}
		}
		if r.HonorsKeys {
			add("route %s: requests are repeated under keys that the upstream is said to honour; if it does not, their effects happen twice", r.Label())
		}
	}
	return list
}

// Explain says in words what the settings amount to.
func (c *Config) Explain() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	scheme := "HTTP"
	if c.TLS.Cert != "" {
		scheme = "HTTPS"
	}
	say("Clients connect to %s by %s, HTTP/1 or HTTP/2.", c.ListenAddr(), scheme)
	say("Keys are kept in %s.", storeInWords(c.StoreURL()))
	if c.AdminAddr() == Off {
		say("There is no operator's page.")
	} else {
		say("The operator's page, health and metrics are at %s.", c.AdminAddr())
	}
	if c.Metrics != "" {
		say("Health and metrics are at %s too.", c.Metrics)
	}
	for i := range c.Routes {
		c.Routes[i].explain(say)
	}
	for _, w := range c.Warnings() {
		say("\nWarning: %s.", w)
	}
	return b.String()
}

func storeInWords(url string) string {
	scheme, _, _ := strings.Cut(url, "://")
	switch {
	case url == "memory:":
		return "this process's memory"
	case scheme == "postgres", scheme == "postgresql":
		return "PostgreSQL"
	case scheme == "redis", scheme == "rediss":
		return "Redis"
	}
	return "the SQLite file " + strings.TrimPrefix(url, "sqlite://")
}

func (r *Route) explain(say func(string, ...any)) {
	what := "all requests"
	switch {
	case r.Host != "" && r.Prefix() != "":
		what = fmt.Sprintf("requests to %s for %s and below", r.Host, r.Prefix())
	case r.Host != "":
		what = "requests to " + r.Host
	case r.Prefix() != "":
		what = fmt.Sprintf("requests for %s and below", r.Prefix())
	}
	say("\nRoute %s: %s go to %s.", r.Label(), what, r.Upstream)
	header := or(r.Key.Header, "Idempotency-Key")
	say("  A request that may change something and carries %s takes effect once; its answer is replayed for %v.", header, Duration(r.Keep.Or(24*3600*1e9)))
	switch {
	case r.Key.Derive != 0 && r.Key.Required:
		say("  Without a key, one is made of what is asked and by whom, for %v; where that cannot be done the request is refused.", r.Key.Derive)
	case r.Key.Derive != 0:
		say("  Without a key, one is made of what is asked and by whom, for %v; where that cannot be done the request passes unprotected.", r.Key.Derive)
	case r.Key.Required:
		say("  Without a key it is refused.")
	default:
		say("  Without a key it passes unprotected.")
	}
	if r.HonorsKeys {
		say("  The upstream honours keys: protected requests carry one there and are repeated when no answer comes.")
	} else {
		say("  The upstream does not honour keys: nothing is repeated that may have been sent.")
	}
	if r.Orphan == "rerun" {
		say("  A request whose outcome is unknown is sent again when its client repeats it.")
	} else {
		say("  A request whose outcome is unknown is not sent again; repeats are told so.")
	}
	say("  Clients are told apart by %s.", r.Scope.explain())
	if n := r.Limits.Keys; n > 0 {
		say("  Each may use %d new keys within %v.", n, Duration(r.Keep.Or(24*3600*1e9)))
	}
}

func (s *Scope) explain() string {
	switch {
	case s.JWT != nil:
		return "issuer and subject of a verified token of " + strings.Join(s.JWT.Issuers, ", ")
	case s.MTLS:
		return "the subject of their verified certificate"
	case s.Basic != nil:
		return "the user whose password was verified with " + s.Basic.Htpasswd
	case s.Header != nil:
		return fmt.Sprintf("the field %s, which is believed only from %s", s.Header.Name, strings.Join(s.Header.From, ", "))
	}
	return "their exact credentials"
}
