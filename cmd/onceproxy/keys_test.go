package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
)

// A ran is what a command did.
type ran struct {
	code     int
	out, err string
}

// keys runs `onceproxy keys`.
func keys(t *testing.T, in string, args ...string) ran {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"keys"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errs
	cmd.Dir = t.TempDir()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return ran{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// lossy is an upstream that answers requests to /lost with the end of the connection.
func lossy(t *testing.T, effects *atomic.Int64) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		if r.URL.Path == "/lost" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, "the secret answer")
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// Beside a running proxy, over the same file.
func TestKeysAreListedShownAndSettledFromTheCommandLine(t *testing.T) {
	var effects atomic.Int64
	store := filepath.Join(t.TempDir(), "once.db")
	p := start(t, "-upstream", lossy(t, &effects), "-store", store)
	for i := range 3 {
		send(t, "POST", p.URL+"/pay", "x", key(fmt.Sprint("paid-", i)))
	}
	for _, k := range []string{"lost-1", "lost-2", "lost-3"} {
		send(t, "POST", p.URL+"/lost", "x", key(k))
	}
	at := []string{"-store", store}

	var all struct {
		Keys []struct {
			Key, State string
			Holders    int
		}
		Next string
	}
	r := keys(t, "", append(at, "-json")...)
	if r.code != 2 { // a flag is no command
		t.Errorf("without a command: got %+v", r)
	}
	r = keys(t, "", append([]string{"list", "-json"}, at...)...)
	if err := json.Unmarshal([]byte(r.out), &all); err != nil || r.code != 0 || len(all.Keys) != 6 {
		t.Fatalf("list -json: got %+v, %v", r, err)
	}
	r = keys(t, "", append([]string{"list", "-state", "unknown"}, at...)...)
	if r.code != 0 || strings.Count(r.out, "\n") != 4 || !strings.HasPrefix(r.out, "KEY ") {
		t.Errorf("list: got %+v, want a header and 3 lines", r)
	}
	r = keys(t, "", append([]string{"list", "-limit", "2"}, at...)...)
	if strings.Count(r.out, "\n") != 3 || !strings.Contains(r.err, "there are more: -after or1_") {
		t.Errorf("list -limit 2: got %+v", r)
	}

	paid := oncehttp.RecordKey("", "POST", "/pay", "paid-1")
	r = keys(t, "", append([]string{"show", paid}, at...)...)
	for _, want := range []string{paid, "done", "200", "text/plain", "17 bytes", "A repeat gets that answer"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("show lacks %q:\n%s", want, r.out)
		}
	}
	if strings.Contains(r.out, "secret") {
		t.Errorf("show shows the body:\n%s", r.out)
	}
	if r2 := keys(t, "", append([]string{"show", "-path", "/pay?x=1", "-key", "paid-1"}, at...)...); r2.code != 0 || !strings.Contains(r2.out, paid) {
		t.Errorf("by what the client sent: got %+v", r2)
	}

	body := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(body, []byte("{}\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lost := func(k string) []string { return append([]string{"-path", "/lost", "-key", k}, at...) }
	answer := []string{"-happened", "-status", "201", "-content-type", "application/json", "-body", body}
	before := effects.Load()
	if r := keys(t, "no\n", append(append([]string{"resolve"}, lost("lost-1")...), answer...)...); r.code != 5 || !strings.Contains(r.err, "Type yes") {
		t.Errorf("resolve, not confirmed: got %+v", r)
	}
	if a := send(t, "POST", p.URL+"/lost", "x", key("lost-1")); a.problem() != "outcome-unknown" {
		t.Errorf("after that: got %d %s", a.status, a.body)
	}
	if r := keys(t, "yes\n", append(append([]string{"resolve"}, lost("lost-1")...), answer...)...); r.code != 0 || !strings.HasPrefix(r.out, "recorded or1_") {
		t.Errorf("resolve: got %+v", r)
	}
	if a := send(t, "POST", p.URL+"/lost", "x", key("lost-1")); a.status != 201 || a.body != "{}\r\n" || !a.replayed() || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("a repeat: got %d %q", a.status, a.body)
	}
	if r := keys(t, "", append(append([]string{"resolve"}, lost("lost-1")...), answer...)...); r.code != 4 {
		t.Errorf("resolve once more: got %+v", r)
	}
	if n := effects.Load(); n != before {
		t.Errorf("the upstream got %d more requests, want none", n-before)
	}
	if r := keys(t, "", append([]string{"resolve", "-did-not-happen", "-yes", "-json"}, lost("lost-2")...)...); r.code != 0 || !strings.Contains(r.out, `"done": "freed"`) {
		t.Errorf("resolve -did-not-happen: got %+v", r)
	}
	if r := keys(t, "", append([]string{"purge", "-yes"}, lost("lost-3")...)...); r.code != 0 || !strings.HasPrefix(r.out, "purged or1_") {
		t.Errorf("purge: got %+v", r)
	}
	for _, k := range []string{"lost-2", "lost-3"} {
		if r := keys(t, "", append([]string{"show"}, lost(k)...)...); r.code != 3 {
			t.Errorf("show %s after it: got %+v", k, r)
		}
		send(t, "POST", p.URL+"/lost", "x", key(k))
	}
	if n := effects.Load(); n != before+2 {
		t.Errorf("repeats of what did not happen reached the upstream %d times, want 2", n-before)
	}
}

func TestKeysSaysWhatIsWrongAndExitsAccordingly(t *testing.T) {
	var effects atomic.Int64
	store := filepath.Join(t.TempDir(), "once.db")
	p := start(t, "-upstream", lossy(t, &effects), "-store", store)
	send(t, "POST", p.URL+"/lost", "x", key("k"))
	lost := oncehttp.RecordKey("", "POST", "/lost", "k")
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", 2, "say what to do"},
		{"lsit", 2, `"lsit" is none of`},
		{"list -state broken", 2, "none of running, done and unknown"},
		{"list -limit 501", 2, "-limit: 501"},
		{"list -min-age soon", 2, "min-age"},
		{"list or1_", 2, "-prefix"},
		{"list -nothing", 2, "-nothing"},
		{"list -prefix zz", 0, "no key is like that"},
		{"show", 2, "name one key"},
		{"show a b", 2, "name one key"},
		{"show or1_nothing", 3, "no record"},
		{"show or1_x -key k -path /", 2, "not by both"},
		{"show -key k", 2, "-path:"},
		{"show -path /x", 2, "-key:"},
		{"resolve " + lost, 2, "either -happened"},
		{"resolve " + lost + " -happened -did-not-happen", 2, "either -happened"},
		{"resolve " + lost + " -happened -yes", 2, "status"},
		{"resolve " + lost + " -happened -status 99 -yes", 2, "status"},
		{"resolve " + lost + " -did-not-happen -status 200 -yes", 2, "leave one of them out"},
		{"resolve " + lost + " -happened -status 200 -body /nothing -yes", 1, "/nothing"},
		{"resolve " + lost + " -happened -status 200 -body -", 2, "add -yes"},
		{"resolve " + lost + " -did-not-happen", 5, "nothing was changed"},
		{"purge " + lost, 5, "nothing was changed"},
		{"purge or1_nothing -yes", 3, "no record"},
		{"show " + lost, 0, ""},
	} {
		args := strings.Fields(c.args)
		if len(args) > 0 {
			args = append(args, "-store", store)
		}
		if r := keys(t, "", args...); r.code != c.code || !strings.Contains(r.err, c.want) {
			t.Errorf("keys %s: got %d %s\nwant %d with %q", c.args, r.code, r.err, c.code, c.want)
		}
	}
	dir := t.TempDir()
	for _, c := range []struct {
		store string
		code  int
		want  string
	}{
		{filepath.Join(dir, "typo.db"), 1, "there is no file"},
		{"memory:", 2, "use the operator's page"},
		{"redis://:hush@127.0.0.1:1", 1, "Redis"},
		{"postgres://u:hush@127.0.0.1:1/d", 1, "store"},
	} {
		r := keys(t, "", "list", "-store", c.store)
		if r.code != c.code || !strings.Contains(r.err, c.want) || strings.Contains(r.err, "hush") {
			t.Errorf("-store %s: got %+v", c.store, r)
		}
	}
	if names, _ := os.ReadDir(dir); len(names) > 0 {
		t.Errorf("looking for keys made %v", names)
	}
	if r := keys(t, "", "-help"); r.code != 0 || !strings.Contains(r.out, "Exit status") {
		t.Errorf("-help: got %+v", r)
	}
}

// empty forgets what an earlier round left in a Redis database.
func empty(t *testing.T, addr string, db int) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "SELECT %d\r\nFLUSHDB\r\nQUIT\r\n", db)
	if said, err := io.ReadAll(conn); err != nil || strings.Count(string(said), "+OK") < 2 {
		t.Fatalf("emptying the database: %q, %v", said, err)
	}
}

func TestKeysSettlesThemInPostgresAndRedisToo(t *testing.T) {
	pg, r := services.Postgres(t), services.Redis(t)
	empty(t, r.Addr(), 3)
	for _, store := range []string{pg.DSN(pg.Database(t)), "redis://" + r.Addr() + "/3"} {
		var effects atomic.Int64
		p := start(t, "-upstream", lossy(t, &effects), "-store", store)
		send(t, "POST", p.URL+"/lost", "x", key("k"))
		r := keys(t, "", "resolve", "-store", store, "-path", "/lost", "-key", "k", "-happened", "-status", "204", "-yes")
		if r.code != 0 {
			t.Errorf("%.8s: resolve: got %+v", store, r)
		}
		if a := send(t, "POST", p.URL+"/lost", "x", key("k")); a.status != 204 || effects.Load() != 1 {
			t.Errorf("%.8s: a repeat got %d, and there are %d effects", store, a.status, effects.Load())
		}
		if r := keys(t, "", "list", "-store", store, "-state", "done"); strings.Count(r.out, "or1_") != 1 {
			t.Errorf("%.8s: list: got %+v", store, r)
		}
	}
}

// What the page promises, as the program serves it. The hostile cases are those of
// internal/page.
func TestTheOperatorsPageIsServedOnLoopbackBehindItsToken(t *testing.T) {
	var effects atomic.Int64
	upstream := lossy(t, &effects)
	p := start(t, "-upstream", upstream)
	waitFor(t, "the link to the page", func() bool { return strings.Contains(p.log.String(), "/sign-in?token=") })
	link := regexp.MustCompile(`open it with (http://127\.0\.0\.1:\d+/sign-in\?token=(\S+))`).FindStringSubmatch(p.log.String())
	if link == nil || strings.Count(p.log.String(), link[2]) != 1 || len(link[2]) < 26 {
		t.Fatalf("the link is not told once:\n%s", p.log)
	}

	file := filepath.Join(t.TempDir(), "token")
	const token = "token-of-a-file-0123"
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = start(t, "-upstream", upstream, "-admin-token-file", file)
	send(t, "POST", p.URL+"/pay", "x", key("k"))
	if a := send(t, "GET", p.Admin+"/keys", ""); a.status != 401 || strings.Contains(a.body, "or1_") {
		t.Errorf("without the token: got %d", a.status)
	}
	if a := send(t, "GET", p.Admin+"/keys", "", "Authorization: Bearer "+token); a.status != 200 || !strings.Contains(a.body, "or1_") {
		t.Errorf("with the token: got %d", a.status)
	}
	if a := send(t, "GET", p.Admin+"/keys", "", "Authorization: Bearer "+token, "Host: evil.example"); a.status != 421 {
		t.Errorf("under another name: got %d", a.status)
	}
	if a := send(t, "GET", p.Admin+"/sign-in?token="+token, ""); a.status != 303 || a.header.Get("Location") != "/" {
		t.Errorf("the link: got %d to %s", a.status, a.header.Get("Location"))
	}
	if a := send(t, "GET", p.URL+"/keys", ""); a.body != "the secret answer" {
		t.Errorf("clients get the page: %s", a.body)
	}
	if strings.Contains(p.log.String(), token) {
		t.Error("a token that was given is printed")
	}

	for _, c := range []struct {
		args []string
		env  string
		want string
	}{
		{[]string{"-admin", "0.0.0.0:0"}, "", "loopback"},
		{[]string{"-admin", ":0"}, "", "loopback"},
		{[]string{"-admin", "192.0.2.1:0"}, "", "loopback"},
		{nil, "ONCEPROXY_ADMIN_TOKEN=short", "at least 16"},
		{nil, "ONCEPROXY_ADMIN_TOKEN=with spaces in it, and long", "without spaces"},
		{[]string{"-admin-token-file", os.DevNull}, "", "the file is empty"},
	} {
		cmd := exec.Command(binary, append([]string{"-upstream", upstream, "-store", "memory:", "-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0"}, c.args...)...)
		cmd.Env = append(os.Environ(), c.env)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%v %s: got %v %s", c.args, c.env, err, out)
		}
	}
}
