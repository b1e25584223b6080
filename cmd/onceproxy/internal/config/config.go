// Package config is what an operator tells onceproxy: its settings, where they come
// from (flags, the environment, a YAML file), whether they make sense, and what they
// amount to in words.
package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// A Config is all that onceproxy needs to know.
type Config struct {
	// Listen is where clients connect. "" means 127.0.0.1:8080.
	Listen string `yaml:"listen"`

	// Admin is where the operator's page, health and metrics are served. It must be
	// a loopback address. "" means 127.0.0.1:8081, "off" none.
	Admin string `yaml:"admin"`

	// AdminTokenFile names a file with the token that the operator's page asks for.
	// "" means that one is made at start and printed.
	AdminTokenFile string `yaml:"admin_token_file"`

	// Metrics is where /healthz, /readyz and /metrics are served to the network, for
	// probes that cannot reach a loopback address. "" means nowhere but on Admin.
	Metrics string `yaml:"metrics"`

	// Store says where keys are kept: memory:, the path of an SQLite file, a postgres://
	// or a redis:// URL. "" means the file once.db.
	Store string `yaml:"store"`

	TLS      TLS      `yaml:"tls"`
	Limits   Limits   `yaml:"limits"`
	Timeouts Timeouts `yaml:"timeouts"`
	Log      Log      `yaml:"log"`

	// Routes are tried from the longest path to the shortest.
	Routes []Route `yaml:"routes"`

	file *file // that it was read from; nil if from none
}

// TLS is how clients connect in secret.
type TLS struct {
	Cert string `yaml:"cert"` // PEM file; "": no TLS
	Key  string `yaml:"key"`  // PEM file
	// ClientCA is a PEM file with the authorities whose client certificates are
	// believed. "" means that none is asked for.
	ClientCA string `yaml:"client_ca"`
	// RequireClient refuses connections without a client certificate.
	RequireClient bool `yaml:"require_client"`
}

// Limits bound what clients may ask of the whole proxy.
type Limits struct {
	Connections int  `yaml:"connections"`  // at the same time; 0: 10000
	HeaderBytes Size `yaml:"header_bytes"` // of one request; 0: 64KiB
}

// Timeouts bound what a slow client can hold up.
type Timeouts struct {
	Header Duration `yaml:"header"` // until a request's header has come; 0: 10s
	Body   Duration `yaml:"body"`   // without a byte of the request's body; 0: 60s
	Write  Duration `yaml:"write"`  // without taking a byte of the response; 0: 60s
	Idle   Duration `yaml:"idle"`   // between two requests of a connection; 0: 120s
	Drain  Duration `yaml:"drain"`  // for running requests when the proxy stops; 0: 30s
}

// Log is what is written to standard error, as JSON.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn or error; "": info
	Access bool   `yaml:"access"` // a line for each request
}

// A Route is a set of requests, where they go, and what protects them.
type Route struct {
	Name string `yaml:"name"` // in logs and metrics; "": made from Host and Path
	Host string `yaml:"host"` // only requests to this host; "": any
	Path string `yaml:"path"` // only this path and those below it; "": any

	// Upstream is the URL that requests go to: http, https, or h2c for HTTP/2 in
	// clear. A path in it is put before that of the request.
	Upstream string `yaml:"upstream"`
	// PreserveHost sends the Host that the client sent, rather than the upstream's own.
	PreserveHost bool `yaml:"preserve_host"`
	// TrustForwarded adds to the X-Forwarded fields of the client rather than begin
	// new ones.
	TrustForwarded bool `yaml:"trust_forwarded"`
	// UpstreamCA is a PEM file with the authorities that sign the upstream's
	// certificate. "" means the system's.
	UpstreamCA string `yaml:"upstream_ca"`

	Key Key `yaml:"key"`

	// HonorsKeys says that the upstream itself honours idempotency keys. Then each
	// protected request carries one there, and is repeated when no answer came. By
	// default nothing is repeated that may have been sent.
	HonorsKeys bool `yaml:"honors_keys"`

	// Orphan says what becomes of a key whose work vanished: "refuse", which "" means,
	// or "rerun", for upstreams that honour keys.
	Orphan string `yaml:"orphan"`

	// Breaker refuses requests for a while when an upstream keeps failing: five
	// failures in a row, 5xx answers among them.
	Breaker bool `yaml:"breaker"`

	Scope  Scope       `yaml:"scope"`
	Record Record      `yaml:"record"`
	Limits RouteLimits `yaml:"limits"`

	Keep    Duration `yaml:"keep"`    // how long an answer is replayed; 0: 24h
	Lease   Duration `yaml:"lease"`   // how long a silent holder counts as alive; 0: 30s
	Wait    Duration `yaml:"wait"`    // how long a repeat waits for the first; 0: 5s
	Timeout Duration `yaml:"timeout"` // how long the upstream may take to answer; 0: 5m
}

// Key is how requests are named.
type Key struct {
	Header   string `yaml:"header"`   // "": Idempotency-Key
	Required bool   `yaml:"required"` // refuse requests that change something and have none

	// Derive makes a key, for requests that have none, of method, host, path, query,
	// principal and body. Equal requests within this time are then one. 0: off.
	Derive Duration `yaml:"derive"`
	// DeriveAnonymous does so for clients without credentials too, as if all of them
	// were one.
	DeriveAnonymous bool `yaml:"derive_anonymous"`
}

// Scope is how a client is told apart from others. At most one may be set; none means
// the client's exact credentials.
type Scope struct {
	JWT    *JWT    `yaml:"jwt"`
	MTLS   bool    `yaml:"mtls"`
	Basic  *Basic  `yaml:"basic"`
	Header *Header `yaml:"header"`
}

// JWT takes issuer and subject of a bearer token whose signature is verified.
type JWT struct {
	JWKS       string   `yaml:"jwks"`       // file with the issuers' public keys
	Issuers    []string `yaml:"issuers"`    // the ones that are believed; at least one
	Audience   []string `yaml:"audience"`   // one of them must be in the token; none: any
	Algorithms []string `yaml:"algorithms"` // none: RS256, PS256, ES256, EdDSA
	Leeway     Duration `yaml:"leeway"`     // for clocks that differ; 0: 30s
}

// Basic takes the user of a verified user and password.
type Basic struct {
	Htpasswd string `yaml:"htpasswd"` // file with lines of user:bcrypt
}

// Header takes a field that a trusted proxy in front has set.
type Header struct {
	Name string   `yaml:"name"`
	From []string `yaml:"from"` // addresses (CIDR) of those proxies; others are refused
}

// Record says which answers are kept.
type Record struct {
	// Free lists the statuses by which the upstream says that it did nothing, so that
	// a repeat is sent again. None means 401, 407, 421, 425, 429, and 503 with
	// Retry-After.
	Free []int `yaml:"free"`
}

// RouteLimits bound what one request, or one client, may ask of a route.
type RouteLimits struct {
	Body     Size `yaml:"body"`     // of a request with a key; 0: 1MiB
	AnyBody  Size `yaml:"any_body"` // of any request; 0: no limit
	Response Size `yaml:"response"` // that is recorded with its body; 0: 1MiB
	// Keys is how many new keys one principal may use within Keep. 0: no limit.
	Keys int `yaml:"keys_per_principal"`
}

// A Duration is written with its unit: 90s, 5m, 24h.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%.40q is not a duration; write it with its unit, such as 90s, 5m or 24h", b)
	}
	if v < 0 {
		return fmt.Errorf("%.40q is negative", b)
	}
	*d = Duration(v)
	return nil
}

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (d *Duration) UnmarshalYAML(n ast.Node) error { return unmarshalText(n, d.UnmarshalText) }

// String writes the duration without parts that are zero.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// Or returns d, or other if d is zero.
func (d Duration) Or(other time.Duration) time.Duration {
	if d == 0 {
		return other
	}
	return time.Duration(d)
}

// A Size is a number of bytes, written as 65536, 64KiB, 1MiB or 2GiB.
type Size int64

var units = []struct {
	name string
	size int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(b []byte) error {
	text, unit := string(b), int64(1)
	for _, u := range units {
		if digits, ok := strings.CutSuffix(text, u.name); ok {
			text, unit = strings.TrimSpace(digits), u.size
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return fmt.Errorf("%.40q is not a size; write a number of bytes, or one with KiB, MiB or GiB", b)
	}
	*s = Size(n * unit)
	return nil
}

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (s *Size) UnmarshalYAML(n ast.Node) error { return unmarshalText(n, s.UnmarshalText) }

// String writes the size in the largest unit that leaves no rest.
func (s Size) String() string {
	for i := len(units) - 1; i >= 0; i-- {
		if u := units[i]; s != 0 && int64(s)%u.size == 0 {
			return strconv.FormatInt(int64(s)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + " bytes"
}

// Or returns s, or other if s is zero.
func (s Size) Or(other int64) int64 {
	if s == 0 {
		return other
	}
	return int64(s)
}
