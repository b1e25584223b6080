package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// With an upstream and nothing else it runs, and says what there is to know.
func TestAnUpstreamIsAllItNeeds(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }))
	defer up.Close()
	dir := t.TempDir()
	cmd := exec.Command(binary, "-upstream", up.URL)
	cmd.Dir = dir
	// The defaults are ports that may be taken here; where they are is all that differs.
	cmd.Env = append(os.Environ(), "ONCEPROXY_LISTEN=127.0.0.1:0", "ONCEPROXY_ADMIN=127.0.0.1:0")
	out := new(lockedBuffer)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	waitFor(t, "it says where it listens", func() bool { return strings.Contains(out.String(), "goes to "+up.URL) })
	for _, want := range []string{"listening at http://127.0.0.1:", "keys are kept in: SQLite file once.db", "operator's page, health and metrics at http://127.0.0.1:"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, out)
		}
	}
	url := listening.FindStringSubmatch(out.String())[1]
	for range 2 {
		if a := send(t, "POST", url, "x", key("k")); a.status != 200 || a.body != "hello" {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "once.db")); err != nil {
		t.Error(err)
	}
}

func waitFor(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come to this: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestSettingsAreCheckedBeforeAnythingStarts(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"good ones":      {[]string{"-check", "-upstream", "http://a", "-derive-key", "1m"}, 0, "Warning: route default: equal requests"},
		"a bad file":     {[]string{"-check", "-config", write(t, "routes:\n- upstream: x\n")}, 2, "once.yaml:2: routes[0].upstream"},
		"no upstream":    {nil, 2, "name an upstream with -upstream"},
		"a bad flag":     {[]string{"-upstream", "http://a", "-keep", "5"}, 2, "-keep"},
		"help":           {[]string{"-help"}, 0, "ONCEPROXY_KEY_HEADER"},
		"a store's fall": {[]string{"-upstream", "http://a", "-store", "/nope/once.db", "-listen", "127.0.0.1:0", "-admin", "off"}, 1, "/nope/once.db"},
		"no database":    {[]string{"-upstream", "http://a", "-store", "postgres://u:sesame@127.0.0.1:1/x", "-listen", "127.0.0.1:0", "-admin", "off"}, 1, "PostgreSQL at 127.0.0.1:1"},
		"no Redis":       {[]string{"-upstream", "http://a", "-store", "redis://:sesame@127.0.0.1:1/0", "-listen", "127.0.0.1:0", "-admin", "off"}, 1, "Redis at 127.0.0.1:1"},
	} {
		out, err := exec.Command(binary, c.args...).CombinedOutput()
		code := 0
		if e, ok := err.(*exec.ExitError); ok {
			code = e.ExitCode()
		}
		if code != c.code || !strings.Contains(string(out), c.want) || strings.Contains(string(out), "sesame") {
			t.Errorf("%s: got %d, %s", name, code, out)
		}
	}
}

// Whoever stops it, what runs is finished: the answer is recorded, and its client gets it.
func TestStoppingLetsWhatRunsFinish(t *testing.T) {
	began, hold := make(chan struct{}, 2), make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-hold
		io.WriteString(w, "done")
	}))
	defer up.Close()
	db := filepath.Join(t.TempDir(), "once.db")
	p := start(t, "-upstream", up.URL, "-store", db)
	first := make(chan answer, 2)
	for _, lines := range [][]string{{key("k")}, nil} {
		go func() { a, _ := try("POST", p.URL+"/x", "x", lines...); first <- a }()
	}
	<-began
	<-began
	p.signal(syscall.SIGTERM)
	waitFor(t, "it takes no more requests", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.URL, "http://"))
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if a := send(t, "GET", p.Admin+"/readyz", ""); a.status != 503 {
		t.Errorf("a proxy that stops says that it is ready: %d %s", a.status, a.body)
	}
	close(hold)
	for range 2 {
		if a := <-first; a.status != 200 || a.body != "done" {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	if err := p.wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	p = start(t, "-upstream", up.URL, "-store", db)
	if a := send(t, "POST", p.URL+"/x", "x", key("k")); a.body != "done" || !a.replayed() {
		t.Errorf("after a restart: got %d %s", a.status, a.body)
	}
}

// What cannot finish in time is marked: a repeat learns at once that its outcome is
// unknown, rather than wait for a lease to lapse.
func TestStoppingMarksWhatDoesNotFinish(t *testing.T) {
	began := make(chan struct{}, 1)
	over := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		began <- struct{}{}
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	defer up.Close()
	defer close(over)
	db := filepath.Join(t.TempDir(), "once.db")
	p := start(t, "-upstream", up.URL, "-store", db, "-drain", "200ms", "-lease", "10m")
	first := make(chan answer, 1)
	go func() { a, _ := try("POST", p.URL+"/x", "x", key("k")); first <- a }()
	<-began
	p.signal(syscall.SIGTERM)
	if a := <-first; a.status != 502 || a.problem() != "outcome-unknown" {
		t.Errorf("the one that was cut off got %d %s", a.status, a.body)
	}
	p.wait()
	p = start(t, "-upstream", up.URL, "-store", db, "-wait", "10ms")
	if a := send(t, "POST", p.URL+"/x", "x", key("k")); a.status != 409 || a.problem() != "outcome-unknown" {
		t.Errorf("after a restart: got %d %s", a.status, a.body)
	}
}

// SIGHUP loads the file anew; a bad one changes nothing and is complained about.
func TestSettingsAreLoadedAnew(t *testing.T) {
	var hits [2]atomic.Int64
	ups := make([]*httptest.Server, 2)
	for i := range ups {
		ups[i] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			hits[i].Add(1)
			fmt.Fprint(w, i)
		}))
		defer ups[i].Close()
	}
	const head = "store: \"memory:\"\nroutes:\n- upstream: "
	file := write(t, head+ups[0].URL+"\n")
	p := start(t, "-config", file)
	change := func(text, says string) {
		t.Helper()
		before := strings.Count(p.log.String(), says)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p.signal(syscall.SIGHUP)
		waitFor(t, says, func() bool { return strings.Count(p.log.String(), says) > before })
	}
	if a := send(t, "POST", p.URL+"/x", "", key("k")); a.body != "0" {
		t.Fatalf("got %s", a.body)
	}
	change(head+ups[1].URL+"\n  nonsense: true\n", "routes[0].nonsense")
	if a := send(t, "GET", p.URL+"/x", ""); a.body != "0" {
		t.Errorf("after a bad file: got %s", a.body)
	}
	change("listen: 127.0.0.1:1\n"+head+ups[1].URL+"\n  lease: 1ms\n", "lease")
	change("limits: {connections: 7}\n"+head+ups[1].URL+"\n", "limits cannot change while the proxy runs")
	if a := send(t, "GET", p.URL+"/x", ""); a.body != "0" {
		t.Errorf("after a file that cannot be used: got %s", a.body)
	}
	change(head+ups[1].URL+"\n", "the settings were loaded anew")
	if a := send(t, "GET", p.URL+"/x", ""); a.body != "1" {
		t.Errorf("after a good file: got %s", a.body)
	}
	m := send(t, "GET", p.Admin+"/metrics", "").body
	for _, want := range []string{`onceproxy_reloads_total{result="ok"} 1`, `onceproxy_reloads_total{result="refused"} 3`, `onceproxy_requests_total{outcome="executed",route="default"} 1`} {
		if !strings.Contains(m, want) {
			t.Errorf("%q is not in the metrics", want)
		}
	}
}

// Metrics count what happened, and hold nothing of a request.
func TestMetricsHoldNothingOfARequest(t *testing.T) {
	var effects atomic.Int64
	up := httptest.NewServer(pay2(&effects))
	defer up.Close()
	p := start(t, "-upstream", up.URL, "-access-log", "-require-key")
	for _, k := range []string{"opensesame", "opensesame", ""} {
		send(t, "POST", p.URL+"/secretpath?query=hidden", "hush", key(k), "Authorization: Bearer shibboleth", "X-Api-Key: apikey")
	}
	send(t, "BREW"+strings.Repeat("X", 100), p.URL+"/", "")
	send(t, "GET", p.URL+"/", "")
	m := send(t, "GET", p.Admin+"/metrics", "").body
	for _, want := range []string{
		`onceproxy_requests_total{outcome="passed",route="default"} 1`,
		`onceproxy_requests_total{outcome="executed",route="default"} 1`,
		`onceproxy_requests_total{outcome="replayed",route="default"} 1`,
		`onceproxy_requests_total{outcome="refused",route="default"} 2`,
		`onceproxy_duplicate_effects_prevented_total{route="default"} 1`,
		`onceproxy_refusals_total{problem="malformed-key",route="default"} 1`,
		`onceproxy_refusals_total{problem="missing-key",route="default"} 1`,
		`onceproxy_upstream_responses_total{class="2xx",route="default"} 2`,
		`onceproxy_store_call_duration_seconds_count{call="claim",result="ok"} 2`,
	} {
		if !strings.Contains(m, want+"\n") {
			t.Errorf("%q is not in the metrics", want)
		}
	}
	for _, secret := range []string{"opensesame", "secretpath", "hidden", "hush", "shibboleth", "apikey", "BREW"} {
		if strings.Contains(m, secret) {
			t.Errorf("%q is in the metrics", secret)
		}
		if log := p.log.String(); secret != "secretpath" && secret != "BREW" && strings.Contains(log, secret) {
			t.Errorf("%q is in the log:\n%s", secret, log)
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(p.log.String()), "\n") {
		if !strings.HasPrefix(line, "onceproxy:") && !json.Valid([]byte(line)) {
			t.Errorf("a line of the log is no JSON: %s", line)
		}
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n"} {
		if a := send(t, "GET", p.Admin+path, ""); a.status != 200 || a.body != want {
			t.Errorf("%s: got %d %q", path, a.status, a.body)
		}
		if a := send(t, "GET", p.URL+path, ""); !strings.HasPrefix(a.body, "run ") {
			t.Errorf("%s of the upstream is hidden behind the proxy's own: %q", path, a.body)
		}
	}
}

// Clients that send no key are protected, within a time, by what they ask and who they
// are.
func TestKeysAreDerivedForClientsThatSendNone(t *testing.T) {
	t.Parallel()
	var effects atomic.Int64
	up := httptest.NewServer(pay2(&effects))
	defer up.Close()
	p := start(t, "-upstream", up.URL, "-derive-key", "1h", "-max-body", "1KiB")
	post := func(path, body string, lines ...string) string {
		t.Helper()
		return send(t, "POST", p.URL+path, body, lines...).body
	}
	first := post("/x", "body", "Authorization: a")
	for name, c := range map[string]struct {
		got  string
		same bool
	}{
		"the same":               {post("/x", "body", "Authorization: a"), true},
		"another client":         {post("/x", "body", "Authorization: b"), false},
		"another body":           {post("/x", "bodY", "Authorization: a"), false},
		"another path":           {post("/y", "body", "Authorization: a"), false},
		"another query":          {post("/x?a", "body", "Authorization: a"), false},
		"a key of its own":       {post("/x", "body", "Authorization: a", key("k")), false},
		"nobody":                 {post("/x", "body"), false},
		"a body that is too big": {post("/x", strings.Repeat("b", 2000), "Authorization: a"), false},
	} {
		if (c.got == first) != c.same {
			t.Errorf("%s: got %q, the first %q", name, c.got, first)
		}
	}
	if one, two := post("/x", "body"), post("/x", "body"); one == two {
		t.Error("two clients without credentials got one answer")
	}
	big := strings.Repeat("b", 2000)
	if one, two := post("/x", big, "Authorization: a"), post("/x", big, "Authorization: a"); one == two {
		t.Error("a body that is too large to compare was taken for an earlier one")
	}

	p = start(t, "-upstream", up.URL, "-derive-key", "1s")
	first = post("/x", "body", "Authorization: a")
	waitFor(t, "after the time an equal request is another one", func() bool { return post("/x", "body", "Authorization: a") != first })

	p = start(t, "-upstream", up.URL, "-derive-key", "1m", "-derive-anonymous")
	if one, two := post("/x", "body"), post("/x", "body"); one != two {
		t.Error("clients without credentials do not count as one, as was asked for")
	}
	waitFor(t, "a warning", func() bool {
		return strings.Contains(p.log.String(), "clients without credentials count as one client")
	})
}

// A token's subject is the client: a new token of the same one finds the old answers,
// and whoever cannot show one is refused.
func TestAScopeIsAsked(t *testing.T) {
	var effects atomic.Int64
	up := httptest.NewServer(pay2(&effects))
	defer up.Close()
	p := start(t, "-config", write(t, "store: \"memory:\"\nroutes:\n- upstream: "+up.URL+"\n  scope: {header: {name: X-User, from: [127.0.0.1/32]}}\n"))
	a := send(t, "POST", p.URL+"/x", "", key("k"), "X-User: alice", "Authorization: one")
	b := send(t, "POST", p.URL+"/x", "", key("k"), "X-User: alice", "Authorization: two")
	if a.status != 200 || b.body != a.body || !b.replayed() {
		t.Errorf("the same client with another token: got %d %q, first %q", b.status, b.body, a.body)
	}
	if c := send(t, "POST", p.URL+"/x", "", key("k"), "X-User: bob"); c.status != 200 || c.body == a.body {
		t.Errorf("another client with the same key: got %d %q", c.status, c.body)
	}
	if d := send(t, "POST", p.URL+"/x", "", key("k")); d.status != 403 || d.problem() != "unidentified" {
		t.Errorf("nobody: got %d %s", d.status, d.body)
	}
	if e := send(t, "POST", p.URL+"/x", ""); e.status != 200 {
		t.Errorf("without a key: got %d %s", e.status, e.body)
	}
}
