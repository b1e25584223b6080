package pagetest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// token is what the page asks for in these tests.
const token = "a-token-of-the-tests-0123456789"

// A world is onceproxy, as it is released, before an upstream.
type world struct {
	t          *testing.T
	url, admin string
	effects    atomic.Int64
}

var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "onceproxy-page")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "onceproxy")
	cmd := exec.Command("go", "build", "-C", "..", "-buildvcs=false", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build onceproxy: %v\n%s", err, out)
	}
	return path, nil
})

var built string

func TestMain(m *testing.M) {
	code := m.Run()
	endBrowser()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// begin starts an upstream that loses some answers, and the proxy.
func begin(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	held := make(chan struct{})
	arrived := make(chan struct{}, 100)
	upstream := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.effects.Add(1)
		io.Copy(io.Discard, r.Body)
		switch {
		case strings.HasSuffix(r.URL.Path, "/lost"):
			panic(http.ErrAbortHandler)
		case strings.HasSuffix(r.URL.Path, "/slow"):
			arrived <- struct{}{}
			<-held
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusCreated)
		fmt.Fprintf(rw, `{"id":"ch_%d"}`, w.effects.Load())
	}))
	t.Cleanup(upstream.Close)
	var running sync.WaitGroup
	t.Cleanup(func() { close(held); running.Wait() })

	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	w.start(write("proxy.yaml", fmt.Sprintf(`
routes:
- name: payments
  path: /v1
  upstream: %s
  breaker: true
- name: mail
  path: /mail
  upstream: %s
  breaker: true
`, upstream.URL, gone.URL)), write("token", token+"\n"), filepath.Join(dir, "once.db"))

	for i := range 23 {
		w.post("/v1/charges", fmt.Sprintf("order-%d", i))
	}
	for i := range 7 {
		w.post("/v1/charges", fmt.Sprintf("order-%d", i))
	}
	w.post("/v1/charges/lost", "order-lost-1")
	w.post("/v1/charges/lost", "order-lost-2")
	for range 6 {
		w.post("/mail", "mail")
	}
	for range 2 { // the second waits for the first
		running.Go(func() { w.post("/v1/charges/slow", "order-slow") })
	}
	<-arrived
	return w
}

var told = regexp.MustCompile(`(?:listening|health and metrics) at (\S+)`)

func (w *world) start(conf, tokenFile, store string) {
	w.t.Helper()
	path, err := binary()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(path, "-config", conf, "-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-admin-token-file", tokenFile, "-store", store)
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan error, 1)
	w.t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		if w.t.Failed() {
			w.t.Logf("the end of onceproxy's log:\n%s", log.String()[max(0, log.Len()-2000):])
		}
		if strings.Contains(log.String(), token) {
			w.t.Error("the token is in the log")
		}
	})
	lines := bufio.NewScanner(out)
	for w.admin == "" && lines.Scan() {
		if m := told.FindStringSubmatch(lines.Text()); m != nil && w.url == "" {
			w.url = m[1]
		} else if m != nil {
			w.admin = m[1]
		}
	}
	go func() {
		io.Copy(io.Discard, out)
		ended <- cmd.Wait()
	}()
	if w.admin == "" {
		w.t.Fatalf("onceproxy did not start:\n%s", log.String())
	}
}

// A reply is what a client of the proxy gets.
type reply struct {
	status   int
	body     string
	replayed bool
	problem  string
}

// post sends a request with a key through the proxy.
func (w *world) post(path, key string) reply {
	req, err := http.NewRequest("POST", w.url+path, strings.NewReader(`{"amount":100}`))
	if err != nil {
		w.t.Error(err)
		return reply{}
	}
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{} // the proxy is gone: the test is over
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	r := reply{status: resp.StatusCode, body: string(b), replayed: resp.Header.Get("Idempotent-Replayed") == "true"}
	var p struct{ Type string }
	if json.Unmarshal(b, &p) == nil {
		r.problem = p.Type
	}
	return r
}
