package config

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func nothing(string) (string, bool) { return "", false }

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "once.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func load(t *testing.T, args ...string) (*Config, error) {
	t.Helper()
	l, err := ParseLine(args, nothing, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return l.Load()
}

func TestAnUpstreamIsAllThatHasToBeSaid(t *testing.T) {
	c, err := load(t, "-upstream", "http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if c.ListenAddr() != DefaultListen || c.StoreURL() != DefaultStore || c.AdminAddr() != DefaultAdmin || len(c.Routes) != 1 {
		t.Errorf("got %+v", c)
	}
}

func TestAFlagCountsMoreThanItsTwinAndThatMoreThanTheFile(t *testing.T) {
	file := write(t, "store: file.db\nlisten: :1\nadmin: 127.0.0.1:1\nroutes:\n- upstream: http://a\n")
	env := map[string]string{"ONCEPROXY_STORE": "env.db", "ONCEPROXY_LISTEN": ":2"}
	l, err := ParseLine([]string{"-config", file, "-listen", ":3"}, func(n string) (string, bool) { v, ok := env[n]; return v, ok }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.Load()
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != ":3" || c.Store != "env.db" || c.Admin != "127.0.0.1:1" {
		t.Errorf("got listen %s, store %s, admin %s", c.Listen, c.Store, c.Admin)
	}
}

func TestWhatIsWrongOnTheCommandLineIsNamed(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		env  map[string]string
		want string
	}{
		{"a duration without a unit", []string{"-keep", "5"}, nil, "-keep"},
		{"a duration without a unit in the environment", nil, map[string]string{"ONCEPROXY_KEEP": "5"}, "ONCEPROXY_KEEP"},
		{"an unknown flag", []string{"-nope"}, nil, "-nope"},
		{"something that is no flag", []string{"http://x"}, nil, `"http://x"`},
		{"a size that is none", []string{"-max-body", "1MB"}, nil, "-max-body"},
		{"a number that is none", []string{"-max-connections", "many"}, nil, "-max-connections"},
	} {
		_, err := ParseLine(c.args, func(n string) (string, bool) { v, ok := c.env[n]; return v, ok }, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want something with %s", c.name, err, c.want)
		}
	}
	if _, err := load(t, "-config", write(t, "routes:\n- upstream: http://a\n"), "-keep", "1h"); err == nil || !strings.Contains(err.Error(), "-keep") {
		t.Errorf("a flag of a route with a file: got %v", err)
	}
}

// Each row is a file and where its mistake stands.
func TestAMistakeInAFileIsNamedWithItsLine(t *testing.T) {
	const route = "routes:\n- upstream: http://a\n"
	for _, c := range []struct{ name, text, field, line string }{
		{"an unknown field", route + "  upstrem: x\n", "routes[0].upstrem", ":3"},
		{"an unknown field at the top", "lissten: :1\n" + route, "lissten", ":1"},
		{"a wrong type", route + "  honors_keys: maybe\n", "routes[0].honors_keys", ":3"},
		{"a list where text belongs", route + "  name: [a]\n", "routes[0].name", ":3"},
		{"a duration without a unit", route + "  keep: 90\n", "routes[0].keep", ":3"},
		{"a negative duration", route + "  keep: -5m\n", "routes[0].keep", ":3"},
		{"a size that is none", route + "  limits:\n    body: 1XB\n", "routes[0].limits.body", ":4"},
		{"a field twice", route + "  keep: 1h\n  keep: 2h\n", "", ":4"},
		{"no YAML", "routes: [\n", "", ":1"},
		{"two documents", route + "---\n" + route, "", ":4"},
		{"an upstream that is no URL", "routes:\n- name: a\n  upstream: example.com\n", "routes[0].upstream", ":3"},
		{"an upstream with a password", "routes:\n- upstream: http://u:sesame@a\n", "routes[0].upstream", ":2"},
		{"no upstream", "routes:\n- name: a\n", "routes[0].upstream", ":2"},
		{"no routes", "listen: :1\n", "routes", ""},
		{"two routes with one name", "routes:\n- {name: a, path: /a, upstream: http://a}\n- {name: a, path: /b, upstream: http://a}\n", "routes[1].name", ":3"},
		{"two routes with one path", "routes:\n- {name: a, path: /x, upstream: http://a}\n- {name: b, path: /x/, upstream: http://a}\n", "routes[1].path", ":3"},
		{"a path with dots", "routes:\n- {path: /a/../b, upstream: http://a}\n", "routes[0].path", ":2"},
		{"rerun without keys at the upstream", route + "  orphan: rerun\n", "routes[0].orphan", ":3"},
		{"an orphan that is neither", route + "  orphan: maybe\n", "routes[0].orphan", ":3"},
		{"a key header that means something", route + "  key: {header: Authorization}\n", "routes[0].key.header", ":3"},
		{"a key header that is none", route + "  key:\n    header: 'a b'\n", "routes[0].key.header", ":4"},
		{"a window of days", route + "  key:\n    derive: 48h\n", "routes[0].key.derive", ":4"},
		{"a token without issuers", route + "  scope:\n    jwt:\n      jwks: /dev/null\n", "routes[0].scope.jwt.issuers", ""},
		{"a token signed by a secret", route + "  scope:\n    jwt:\n      jwks: /dev/null\n      issuers: [a]\n      algorithms: [HS256]\n", "routes[0].scope.jwt.algorithms[0]", ":7"},
		{"a token signed by nobody", route + "  scope:\n    jwt:\n      jwks: /dev/null\n      issuers: [a]\n      algorithms: [none]\n", "routes[0].scope.jwt.algorithms[0]", ":7"},
		{"a file of keys that is not there", route + "  scope:\n    jwt:\n      jwks: /nope\n      issuers: [a]\n", "routes[0].scope.jwt.jwks", ":5"},
		{"a header from anybody", route + "  scope:\n    header:\n      name: X-User\n", "routes[0].scope.header.from", ""},
		{"a header from no range", route + "  scope:\n    header:\n      name: X-User\n      from: [localhost]\n", "routes[0].scope.header.from[0]", ":6"},
		{"two scopes", route + "  scope:\n    mtls: true\n    header: {name: X-User, from: [10.0.0.0/8]}\n", "routes[0].scope", ""},
		{"certificates without authorities", route + "  scope:\n    mtls: true\n", "routes[0].scope.mtls", ":4"},
		{"a success that frees the key", route + "  record:\n    free: [201]\n", "routes[0].record.free[0]", ":4"},
		{"a page for the world", "admin: 0.0.0.0:8081\n" + route, "admin", ":1"},
		{"an address without a port", "listen: localhost\n" + route, "listen", ":1"},
		{"a certificate without its key", "tls:\n  cert: /dev/null\n" + route, "tls", ""},
		{"a store of an unknown kind", "store: mysql://a\n" + route, "store", ":1"},
		{"a header limit of nothing", "limits:\n  header_bytes: 1KiB\n" + route, "limits.header_bytes", ":2"},
		{"a body limit that memory does not allow", route + "  limits:\n    body: 1GiB\n", "routes[0].limits.body", ":4"},
		{"a lease that is too short", route + "  lease: 10ms\n", "routes[0].lease", ":3"},
	} {
		_, err := load(t, "-config", write(t, c.text))
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		text := err.Error()
		if !strings.Contains(text, c.field) || !strings.Contains(text, "once.yaml"+c.line) {
			t.Errorf("%s: got %q, want %s on line %s", c.name, text, c.field, c.line)
		}
		var e *Error
		if !errors.As(err, &e) || e.Msg == "" || strings.Contains(text, "sesame") || strings.Contains(text, "Go struct") {
			t.Errorf("%s: got %q", c.name, text)
		}
	}
}

func TestAllMistakesAreToldAtOnce(t *testing.T) {
	_, err := load(t, "-config", write(t, "admin: nowhere\nroutes:\n- upstream: ftp://a\n  orphan: x\n- {}\n"))
	for _, field := range []string{"admin", "routes[0].upstream", "routes[0].orphan", "routes[1].upstream"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not in %v", field, err)
		}
	}
}

func TestSettingsAreExplainedInWords(t *testing.T) {
	c, err := load(t, "-upstream", "https://api.example.com", "-derive-key", "5m", "-require-key", "-keep", "48h", "-store", "postgres://u:sesame@db/x")
	if err != nil {
		t.Fatal(err)
	}
	text := c.Explain()
	for _, want := range []string{
		"all requests go to https://api.example.com", "replayed for 48h", "PostgreSQL",
		"one is made of what is asked and by whom, for 5m; where that cannot be done the request is refused",
		"nothing is repeated that may have been sent", "their exact credentials",
		"Warning: route default: equal requests without a key that come within 5m count as one",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "sesame") {
		t.Errorf("a password is in:\n%s", text)
	}
}

func TestDurationsAndSizesPrintAsTheyAreWritten(t *testing.T) {
	for _, s := range []string{"90s", "5m", "24h", "1h30m"} {
		var d Duration
		if err := d.UnmarshalText([]byte(s)); err != nil {
			t.Fatal(err)
		}
		if s == "90s" {
			s = "1m30s"
		}
		if d.String() != s {
			t.Errorf("%s: got %v", s, d)
		}
	}
	for _, s := range []string{"1KiB", "3MiB", "2GiB", "1000 bytes"} {
		var n Size
		if err := n.UnmarshalText([]byte(strings.TrimSuffix(s, " bytes"))); err != nil {
			t.Fatal(err)
		}
		if n.String() != s {
			t.Errorf("%s: got %v", s, n)
		}
	}
	if d := Duration(0).Or(time.Second); d != time.Second {
		t.Errorf("got %v", d)
	}
}

// Whatever a file holds, it is settings or an error of ours.
func FuzzFile(f *testing.F) {
	for _, s := range []string{"routes:\n- upstream: http://a\n  keep: 5m\n", "a: &x\n  b: *x\n", "routes: [", "---\n---\n", "? a\n: b\n", "listen: !!int x\n", "routes:\n- limits: {body: 1MiB}\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := new(Config)
		if err := c.parse("once.yaml", []byte(text)); err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("got %T: %v", err, err)
			}
			return
		}
		if c.Check() == nil {
			c.Explain()
		}
	})
}
