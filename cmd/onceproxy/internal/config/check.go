package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
)

// What the process uses where nothing is said.
const (
	DefaultListen = "127.0.0.1:8080"
	DefaultAdmin  = "127.0.0.1:8081"
	DefaultStore  = "once.db"
	Off           = "off"
)

// Check says everything that is wrong with the settings, joined. It reads no file that
// they name except to see that it is there.
func (c *Config) Check() error {
	var errs []error
	add := func(field, format string, args ...any) {
		errs = append(errs, c.wrong(field, format, args...))
	}
	c.checkProcess(add)
	if len(c.Routes) == 0 {
		add("routes", "there is no route; name an upstream with -upstream, or routes in the file")
	}
	names, places := map[string]int{}, map[string]int{}
	for i := range c.Routes {
		r := &c.Routes[i]
		at := fmt.Sprintf("routes[%d].", i)
		r.check(func(field, format string, args ...any) { add(at+field, format, args...) })
		if r.Scope.MTLS && c.TLS.ClientCA == "" {
			add(at+"scope.mtls", "client certificates are verified only if tls.client_ca names their authorities")
		}
		if j, ok := names[r.Label()]; ok {
			add(at+"name", "%q is the name of routes[%d] already", r.Label(), j)
		}
		place := strings.ToLower(r.Host) + r.Prefix()
		if j, ok := places[place]; ok {
			add(at+"path", "routes[%d] has the same host and path, so this one would never be used", j)
		}
		names[r.Label()], places[place] = i, i
	}
	return errors.Join(errs...)
}

type addError func(field, format string, args ...any)

func (c *Config) checkProcess(add addError) {
	for field, addr := range map[string]string{"listen": c.ListenAddr(), "metrics": c.Metrics} {
		if addr == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			add(field, "%q is not an address; write host:port, or :port for all interfaces", addr)
		}
	}
	if admin := c.AdminAddr(); admin != Off {
		host, _, err := net.SplitHostPort(admin)
		if err != nil {
			add("admin", "%q is not an address; write one such as 127.0.0.1:8081, or off", admin)
		} else if !isLoopback(host) {
			add("admin", "the operator's page is for this machine only: use a loopback address such as 127.0.0.1:8081, and metrics for probes from elsewhere")
		}
	}
	exists(add, "admin_token_file", c.AdminTokenFile)
	exists(add, "tls.cert", c.TLS.Cert)
	exists(add, "tls.key", c.TLS.Key)
	exists(add, "tls.client_ca", c.TLS.ClientCA)
	switch {
	case (c.TLS.Cert == "") != (c.TLS.Key == ""):
		add("tls", "cert and key belong together; set both or neither")
	case c.TLS.Cert == "" && c.TLS.ClientCA != "":
		add("tls.client_ca", "client certificates need TLS; set tls.cert and tls.key")
	}
	if c.TLS.RequireClient && c.TLS.ClientCA == "" {
		add("tls.require_client", "set tls.client_ca, which says whose certificates are believed")
	}
	if c.Limits.Connections < 0 {
		add("limits.connections", "%d is negative; 0 means 10000", c.Limits.Connections)
	}
	if n := c.Limits.HeaderBytes; n != 0 && (n < 4<<10 || n > 16<<20) {
		add("limits.header_bytes", "%v is not between 4KiB and 16MiB", n)
	}
	if !slices.Contains([]string{"", "debug", "info", "warn", "error"}, c.Log.Level) {
		add("log.level", "%q is none of debug, info, warn and error", c.Log.Level)
	}
	c.checkStore(add)
}

func (c *Config) checkStore(add addError) {
	store := c.StoreURL()
	if scheme, _, ok := strings.Cut(store, "://"); ok && !slices.Contains([]string{"postgres", "postgresql", "redis", "rediss", "sqlite"}, scheme) {
		add("store", "there is no store of the kind %q; use memory:, the path of an SQLite file, postgres://… or redis://…", scheme)
	}
}

func (r *Route) check(add addError) {
	r.checkPlace(add)
	r.checkUpstream(add)
	r.checkKey(add)
	r.checkScope(add)
	for i, s := range r.Record.Free {
		switch field := fmt.Sprintf("record.free[%d]", i); {
		case s >= 200 && s <= 399:
			add(field, "a %d says that the work was done; it has to be recorded", s)
		case s < 400 || s > 599:
			add(field, "%d is not the status of an error", s)
		}
	}
	if r.Limits.Keys < 0 {
		add("limits.keys_per_principal", "%d is negative; 0 means no limit", r.Limits.Keys)
	}
	const mostBody = 64 << 20 // it is held in memory, and kept by the store
	if r.Limits.Body > mostBody {
		add("limits.body", "%v is more than %v, and such a body is held in memory", r.Limits.Body, Size(mostBody))
	}
	if r.Limits.Response > mostBody {
		add("limits.response", "%v is more than %v, and such a response is kept by the store", r.Limits.Response, Size(mostBody))
	}
	if l := r.Lease; l != 0 && l < Duration(minLease) {
		add("lease", "%v is too short for a store to be told in time that the work goes on; use at least %v", l, Duration(minLease))
	}
}

const minLease = 1e9 // a second

var routeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$`)

func (r *Route) checkPlace(add addError) {
	if r.Name != "" && !routeName.MatchString(r.Name) {
		add("name", "a name has up to 64 letters, digits, dots, dashes, underscores and slashes")
	}
	if r.Path != "" && (!strings.HasPrefix(r.Path, "/") || strings.ContainsAny(r.Path, "?#%\\ ") || strings.Contains(r.Path, "//") || strings.Contains(r.Path+"/", "/../") || strings.Contains(r.Path+"/", "/./")) {
		add("path", "%q is not a path; write one that begins with a slash, without escapes, dots and query", r.Path)
	}
	if strings.ContainsAny(r.Host, "/:*") {
		add("host", "%q is not the name of a host; leave port and path out", r.Host)
	}
}

func (r *Route) checkUpstream(add addError) {
	u, err := url.Parse(r.Upstream)
	switch {
	case r.Upstream == "":
		add("upstream", "say where requests go, such as https://api.example.com")
	case err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "h2c"}, u.Scheme):
		add("upstream", "this is not the URL of a server; write one such as https://api.example.com, or h2c:// for HTTP/2 in clear")
	case u.User != nil:
		add("upstream", "a user and password do not belong into the URL; clients send their own credentials")
	case u.Fragment != "":
		add("upstream", "a URL of a server has no fragment")
	}
	exists(add, "upstream_ca", r.UpstreamCA)
	if r.UpstreamCA != "" && u != nil && u.Scheme != "https" {
		add("upstream_ca", "it is of use only with https")
	}
	switch r.Orphan {
	case "", "refuse":
	case "rerun":
		if !r.HonorsKeys {
			add("orphan", "rerun sends again what may have been done; that is safe only if the upstream honours keys, so set honors_keys if it does")
		}
	default:
		add("orphan", "%q is neither refuse nor rerun", r.Orphan)
	}
}

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

func (r *Route) checkKey(add addError) {
	switch h := strings.ToLower(r.Key.Header); {
	case h == "":
	case !headerName.MatchString(h):
		add("key.header", "%q is not the name of a header field", r.Key.Header)
	case slices.Contains([]string{"authorization", "cookie", "host", "content-length", "content-type", "connection", "transfer-encoding", "te", "trailer", "upgrade", "idempotency-status", "idempotent-replayed", "idempotency-replayed"}, h):
		add("key.header", "%q has a meaning of its own", r.Key.Header)
	}
	if r.Key.DeriveAnonymous && r.Key.Derive == 0 {
		add("key.derive_anonymous", "it is of use only with key.derive")
	}
	if d := r.Key.Derive; d != 0 && (d < 1e9 || d > 24*3600*1e9) {
		add("key.derive", "%v is not between 1s and 24h", d)
	}
}

// algorithms are those by which only the holder of a private key can sign. Neither
// "none" nor the symmetric ones are among them: a JWKS file of public keys must never
// be taken for a secret.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

func (r *Route) checkScope(add addError) {
	s, n := &r.Scope, 0
	if s.MTLS {
		n++
	}
	if j := s.JWT; j != nil {
		n++
		if j.JWKS == "" {
			add("scope.jwt.jwks", "name the file with the public keys of those who issue the tokens")
		}
		exists(add, "scope.jwt.jwks", j.JWKS)
		if len(j.Issuers) == 0 || slices.Contains(j.Issuers, "") {
			add("scope.jwt.issuers", "name the issuers whose tokens are believed")
		}
		for i, a := range j.Algorithms {
			if !slices.Contains(algorithms, a) {
				add(fmt.Sprintf("scope.jwt.algorithms[%d]", i), "%q is none of %s", a, strings.Join(algorithms, ", "))
			}
		}
	}
	if b := s.Basic; b != nil {
		n++
		if b.Htpasswd == "" {
			add("scope.basic.htpasswd", "name the file with users and bcrypt hashes; a name without a verified password is nobody")
		}
		exists(add, "scope.basic.htpasswd", b.Htpasswd)
	}
	if h := s.Header; h != nil {
		n++
		if !headerName.MatchString(h.Name) {
			add("scope.header.name", "%q is not the name of a header field", h.Name)
		}
		if len(h.From) == 0 {
			add("scope.header.from", "name the addresses of the proxies that set the field; anybody else could write what he likes into it")
		}
		for i, from := range h.From {
			if _, err := netip.ParsePrefix(from); err != nil {
				add(fmt.Sprintf("scope.header.from[%d]", i), "%q is not a range of addresses; write one such as 10.0.0.0/8, or 127.0.0.1/32", from)
			}
		}
	}
	if n > 1 {
		add("scope", "a client can be told apart in one way only; leave one of jwt, mtls, basic and header")
	}
}

func exists(add addError, field, name string) {
	if name == "" {
		return
	}
	f, err := os.Open(name)
	if err != nil {
		add(field, "%v", err)
		return
	}
	f.Close()
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// ListenAddr, AdminAddr and StoreURL return what is set, or else the default.
func (c *Config) ListenAddr() string { return or(c.Listen, DefaultListen) }

// AdminAddr is described at ListenAddr.
func (c *Config) AdminAddr() string { return or(c.Admin, DefaultAdmin) }

// StoreURL is described at ListenAddr.
func (c *Config) StoreURL() string { return or(c.Store, DefaultStore) }

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// Prefix is the route's path without a slash at its end, "" for all.
func (r *Route) Prefix() string { return strings.TrimRight(r.Path, "/") }

// Label is what the route is called in logs and metrics.
func (r *Route) Label() string {
	switch {
	case r.Name != "":
		return r.Name
	case r.Host == "" && r.Prefix() == "":
		return "default"
	}
	return r.Host + r.Prefix()
}
