package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp/internal/services"
)

// binary is onceproxy as it is released: built once for all tests, without cgo.
var binary string

func TestMain(m *testing.M) {
	if upstream := os.Getenv(bareEnv); upstream != "" {
		serveBare(upstream)
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "onceproxy")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "onceproxy")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build onceproxy: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// A process is a running onceproxy.
type process struct {
	URL, Admin string
	cmd        *exec.Cmd
	log        *lockedBuffer
	ended      chan error
}

// lockedBuffer collects what a process writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs onceproxy with free ports, and with a store in memory unless args or the
// configuration file name another. It ends with the test.
func start(t testing.TB, args ...string) *process {
	t.Helper()
	if !strings.Contains(strings.Join(args, " "), "-config") && !strings.Contains(strings.Join(args, " "), "-store") {
		args = append(args, "-store", "memory:")
	}
	p, err := launch(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			log := p.log.String()
			t.Logf("the end of onceproxy's log:\n%s", log[max(0, len(log)-2000):])
		}
	})
	return p
}

var listening = regexp.MustCompile(`(?:listening|health and metrics) at (\S+)`)

func launch(args ...string) (*process, error) {
	args = append([]string{"-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0"}, args...)
	p := &process{cmd: exec.Command(binary, args...), log: new(lockedBuffer), ended: make(chan error, 1)}
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(stdout)
	for p.Admin == "" && lines.Scan() {
		fmt.Fprintln(p.log, lines.Text())
		if m := listening.FindStringSubmatch(lines.Text()); m != nil && p.URL == "" {
			p.URL = m[1]
		} else if m != nil {
			p.Admin = m[1]
		}
	}
	go func() {
		io.Copy(p.log, stdout)
		p.ended <- p.cmd.Wait()
	}()
	if p.Admin == "" {
		<-p.ended
		return nil, fmt.Errorf("onceproxy %v did not start:\n%s", args, p.log)
	}
	return p, nil
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.wait()
}

func (p *process) wait() error {
	err := <-p.ended
	p.ended <- err
	return err
}

func (p *process) signal(s os.Signal) { p.cmd.Process.Signal(s) }

// An answer is a response that was read whole.
type answer struct {
	status int
	header http.Header
	body   string
}

// problem is the name of the problem that the answer is, or "".
func (a answer) problem() string {
	if a.header.Get("Content-Type") != "application/problem+json" {
		return ""
	}
	m := regexp.MustCompile(`"type":"urn:oncehttp:([a-z-]+)"`).FindStringSubmatch(a.body)
	if m == nil {
		return ""
	}
	return m[1]
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// client neither repeats by itself nor reuses connections, so that what a test sends
// is what arrives.
var client = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       time.Minute,
}

// try sends a request with header lines of the form "Name: value".
func try(method, url, body string, lines ...string) (answer, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		req.Header.Add(name, value)
		if name == "Host" {
			req.Host = value
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b)}, err
}

// send is try for requests that must be answered.
func send(t testing.TB, method, url, body string, lines ...string) answer {
	t.Helper()
	a, err := try(method, url, body, lines...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return a
}

func key(k string) string { return "Idempotency-Key: " + k }

// freeAddr is an address on which nobody listens.
func freeAddr(t testing.TB) string {
	t.Helper()
	port, err := services.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
