package config

import (
	"encoding"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// A Line is what stands on the command line and in the environment.
type Line struct {
	Config    string // a YAML file
	CheckOnly bool
	Version   bool
	set       []setting
	fs        *flag.FlagSet
}

// A setting is a flag that was given, or its twin in the environment.
type setting struct {
	flag  *option
	value string
	from  string // how errors name it
}

// An option is a flag, and what it sets.
type option struct {
	name, value, usage string
	route              bool // of the one route that flags can describe
	set                func(c *Config, value string) error
}

func (o *option) env() string {
	return "ONCEPROXY_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

// text, yes, scalar and number make what sets a field.
func text(f func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error { *f(c) = v; return nil }
}

func yes(f func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("%.40q is neither true nor false", v)
		}
		*f(c) = b
		return nil
	}
}

func scalar[T encoding.TextUnmarshaler](f func(*Config) T) func(*Config, string) error {
	return func(c *Config, v string) error { return f(c).UnmarshalText([]byte(v)) }
}

func number(f func(*Config) *int) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil {
			return fmt.Errorf("%.40q is not a whole number", v)
		}
		*f(c) = n
		return nil
	}
}

// one is the route that flags describe.
func one(c *Config) *Route {
	if len(c.Routes) == 0 {
		c.Routes = []Route{{}}
	}
	return &c.Routes[0]
}

var options = []*option{
	{"listen", "ADDR", "where clients connect (default " + DefaultListen + ")", false, text(func(c *Config) *string { return &c.Listen })},
	{"store", "URL", "where keys are kept: memory:, a file, postgres://… or redis://… (default the SQLite file " + DefaultStore + ")", false, text(func(c *Config) *string { return &c.Store })},
	{"admin", "ADDR", "where the operator's page, health and metrics are, a loopback address, or off (default " + DefaultAdmin + ")", false, text(func(c *Config) *string { return &c.Admin })},
	{"admin-token-file", "FILE", "a file with the token for the operator's page (default: one is made and printed)", false, text(func(c *Config) *string { return &c.AdminTokenFile })},
	{"metrics", "ADDR", "where /healthz, /readyz and /metrics are served to the network (default: only at -admin)", false, text(func(c *Config) *string { return &c.Metrics })},
	{"tls-cert", "FILE", "certificate to serve TLS with, PEM", false, text(func(c *Config) *string { return &c.TLS.Cert })},
	{"tls-key", "FILE", "its key, PEM", false, text(func(c *Config) *string { return &c.TLS.Key })},
	{"tls-client-ca", "FILE", "authorities whose client certificates are believed, PEM", false, text(func(c *Config) *string { return &c.TLS.ClientCA })},
	{"tls-require-client", "", "refuse connections without a client certificate", false, yes(func(c *Config) *bool { return &c.TLS.RequireClient })},
	{"max-connections", "N", "connections at the same time (default 10000)", false, number(func(c *Config) *int { return &c.Limits.Connections })},
	{"max-header", "SIZE", "largest header of a request (default 64KiB)", false, scalar(func(c *Config) *Size { return &c.Limits.HeaderBytes })},
	{"drain", "TIME", "how long running requests get when the proxy stops (default 30s)", false, scalar(func(c *Config) *Duration { return &c.Timeouts.Drain })},
	{"log-level", "LEVEL", "debug, info, warn or error (default info)", false, text(func(c *Config) *string { return &c.Log.Level })},
	{"access-log", "", "write a line for each request", false, yes(func(c *Config) *bool { return &c.Log.Access })},

	{"upstream", "URL", "where requests go: http://…, https://… or h2c://…", true, text(func(c *Config) *string { return &one(c).Upstream })},
	{"upstream-ca", "FILE", "authorities that sign the upstream's certificate, PEM (default: the system's)", true, text(func(c *Config) *string { return &one(c).UpstreamCA })},
	{"preserve-host", "", "send the Host that the client sent", true, yes(func(c *Config) *bool { return &one(c).PreserveHost })},
	{"trust-forwarded", "", "keep the client's X-Forwarded fields and add to them", true, yes(func(c *Config) *bool { return &one(c).TrustForwarded })},
	{"honors-keys", "", "the upstream honours idempotency keys: send them on, and repeat under them", true, yes(func(c *Config) *bool { return &one(c).HonorsKeys })},
	{"orphan", "WHAT", "what becomes of work that vanished: refuse, or rerun with -honors-keys (default refuse)", true, text(func(c *Config) *string { return &one(c).Orphan })},
	{"breaker", "", "refuse requests for a while when the upstream keeps failing", true, yes(func(c *Config) *bool { return &one(c).Breaker })},
	{"key-header", "NAME", "the field with the key (default Idempotency-Key)", true, text(func(c *Config) *string { return &one(c).Key.Header })},
	{"require-key", "", "refuse requests that change something and have no key", true, yes(func(c *Config) *bool { return &one(c).Key.Required })},
	{"derive-key", "TIME", "take equal requests without a key within this time for one (default off)", true, scalar(func(c *Config) *Duration { return &one(c).Key.Derive })},
	{"derive-anonymous", "", "do so for clients without credentials too, as if they were one", true, yes(func(c *Config) *bool { return &one(c).Key.DeriveAnonymous })},
	{"scope-mtls", "", "tell clients apart by the subject of their certificate", true, yes(func(c *Config) *bool { return &one(c).Scope.MTLS })},
	{"keep", "TIME", "how long an answer is replayed (default 24h)", true, scalar(func(c *Config) *Duration { return &one(c).Keep })},
	{"lease", "TIME", "how long a silent holder of a key counts as alive (default 30s)", true, scalar(func(c *Config) *Duration { return &one(c).Lease })},
	{"wait", "TIME", "how long a repeat waits for the first request (default 5s)", true, scalar(func(c *Config) *Duration { return &one(c).Wait })},
	{"timeout", "TIME", "how long the upstream may take to answer (default 5m)", true, scalar(func(c *Config) *Duration { return &one(c).Timeout })},
	{"max-body", "SIZE", "largest body of a request with a key (default 1MiB)", true, scalar(func(c *Config) *Size { return &one(c).Limits.Body })},
	{"max-response", "SIZE", "largest response that is recorded with its body (default 1MiB)", true, scalar(func(c *Config) *Size { return &one(c).Limits.Response })},
	{"keys-per-principal", "N", "new keys that one client may use within -keep (default: no limit)", true, number(func(c *Config) *int { return &one(c).Limits.Keys })},
}

// ParseLine reads the command line and the environment. Errors and help go to out.
func ParseLine(args []string, getenv func(string) (string, bool), out io.Writer) (*Line, error) {
	l := new(Line)
	l.fs = flag.NewFlagSet("onceproxy", flag.ContinueOnError)
	l.fs.SetOutput(io.Discard)
	l.fs.StringVar(&l.Config, "config", "", "")
	l.fs.BoolVar(&l.CheckOnly, "check", false, "")
	l.fs.BoolVar(&l.Version, "version", false, "")
	given := map[string]bool{}
	for _, o := range options {
		record := func(v string) error {
			if err := o.set(new(Config), v); err != nil {
				return err
			}
			given[o.name] = true
			l.set = append(l.set, setting{o, v, "-" + o.name})
			return nil
		}
		if o.value == "" {
			l.fs.BoolFunc(o.name, "", record)
		} else {
			l.fs.Func(o.name, "", record)
		}
	}
	l.fs.Usage = func() {}
	if err := l.fs.Parse(args); err != nil {
		if err == flag.ErrHelp {
			usage(out)
		}
		return nil, err
	}
	if l.fs.NArg() > 0 {
		return nil, fmt.Errorf("%q is not understood; settings are flags, such as -upstream URL", l.fs.Arg(0))
	}
	var env []setting
	for _, o := range options {
		v, ok := getenv(o.env())
		if !ok || given[o.name] {
			continue
		}
		if err := o.set(new(Config), v); err != nil {
			return nil, fmt.Errorf("%s: %w", o.env(), err)
		}
		env = append(env, setting{o, v, o.env()})
	}
	l.set = append(env, l.set...)
	if v, ok := getenv("ONCEPROXY_CONFIG"); ok && l.Config == "" {
		l.Config = v
	}
	return l, nil
}

// Load makes the settings: first the file's, then what the environment and the command
// line say, each of which overrides what is before it. It may be called again, to read
// the file anew.
func (l *Line) Load() (*Config, error) {
	c := new(Config)
	if l.Config != "" {
		if err := c.Load(l.Config); err != nil {
			return nil, err
		}
	}
	for _, s := range l.set {
		if s.flag.route && l.Config != "" {
			return nil, fmt.Errorf("%s describes a route, and with -config the routes are those of the file; set it there", s.from)
		}
		if err := s.flag.set(c, s.value); err != nil {
			return nil, fmt.Errorf("%s: %w", s.from, err)
		}
	}
	return c, c.Check()
}

// Environ is the getenv for ParseLine that asks the process's own environment.
func Environ(name string) (string, bool) { return os.LookupEnv(name) }

func usage(out io.Writer) {
	fmt.Fprint(out, `onceproxy stands in front of an HTTP API and has each request with an
Idempotency-Key take effect once.

	onceproxy -upstream URL [flags]
	onceproxy -config FILE [flags]
	onceproxy keys -help         looks at keys, and settles them

Each flag has a twin in the environment: -key-header is ONCEPROXY_KEY_HEADER. A flag
counts more than its twin, and that more than the file.

`)
	show := func(name, value, use string) {
		if value != "" {
			name += " " + value
		}
		fmt.Fprintf(out, "  -%s\n    \t%s\n", name, use)
	}
	show("config", "FILE", "read settings, and any number of routes, from a YAML file")
	show("check", "", "say whether the settings are right and what they amount to, and end")
	show("version", "", "print the version, and end")
	for _, o := range options {
		show(o.name, o.value, o.usage)
	}
}
