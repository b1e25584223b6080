package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// manifold is an upstream whose answers have all that an answer can have. It tells in
// its own header what it got.
func manifold(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	h := w.Header()
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		h["X-Got-"+name] = r.Header[name]
	}
	h.Set("X-Saw", fmt.Sprintf("%s %s %s %d %v", r.Method, r.RequestURI, r.Proto, r.ContentLength, r.TransferEncoding))
	h.Set("X-Sum", fmt.Sprintf("%x", sha256.Sum256(b)))
	h["Set-Cookie"] = []string{"a=1; Path=/", "b=2", "a=3"}
	h["X-Many"] = []string{"one", "", "two, three", "one"}
	h.Set("Connection", "X-Hop")
	h.Set("X-Hop", "of this connection")
	switch what := r.URL.Query().Get("give"); what {
	case "":
		h.Set("Content-Type", "text/plain; charset=utf-8")
		io.WriteString(w, "plain")
	case "nothing":
	case "hints":
		h.Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(200)
	case "trailers":
		h.Set("Trailer", "X-End")
		io.WriteString(w, "body")
		h.Set("X-End", "announced")
		h.Set(http.TrailerPrefix+"X-Late", "not announced")
	case "gzip":
		h.Set("Content-Encoding", "gzip")
		w.Write([]byte("\x1f\x8b not really"))
	case "large":
		w.Write(bytes.Repeat([]byte("0123456789abcdef"), 512<<10)) // 8 MiB
	case "untyped":
		h["Content-Type"] = nil
		io.WriteString(w, "<html>")
	default:
		status, _ := strconv.Atoi(what)
		if status/100 == 3 {
			h.Set("Location", "http://elsewhere.example/x")
		}
		w.WriteHeader(status)
		if status != 204 && status != 304 {
			io.WriteString(w, "answer "+what)
		}
	}
}

// bare is a standard ReverseProxy that forwards as onceproxy does.
func bare(t testing.TB, upstream string) *httptest.Server {
	u, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(u); p.SetXForwarded() },
		Transport: &http.Transport{DisableCompression: true, ExpectContinueTimeout: time.Second, MaxIdleConnsPerHost: 512},
	})
	t.Cleanup(s.Close)
	return s
}

// A seen is all of an answer that its client can see.
type seen struct {
	status        int
	proto         string
	length        int64
	header        http.Header
	trailer       http.Header
	interim       []string
	sum           string
	transferCoded []string
}

func look(t testing.TB, c *http.Client, method, url, body string, h http.Header) seen {
	t.Helper()
	var s seen
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		s.interim = append(s.interim, fmt.Sprint(code, h["Link"]))
		return nil
	}})
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if h.Get("X-Chunked") != "" {
		req.Body, req.ContentLength = io.NopCloser(struct{ io.Reader }{strings.NewReader(body)}), -1
	}
	maps.Copy(req.Header, h)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: body: %v", method, url, err)
	}
	s.status, s.proto, s.length, s.header, s.trailer = resp.StatusCode, resp.Proto, resp.ContentLength, resp.Header, resp.Trailer
	s.sum = fmt.Sprintf("%d bytes, %x", len(b), sha256.Sum256(b))
	s.transferCoded = resp.TransferEncoding
	s.header.Del("Date")
	// Where the proxy listens.
	s.header.Del("X-Got-X-Forwarded-Host")
	return s
}

// difference says in what two answers differ, by name and list of values.
func difference(a, b seen) string {
	var d []string
	add := func(name string, a, b any) {
		if x, y := fmt.Sprintf("%q", a), fmt.Sprintf("%q", b); x != y {
			d = append(d, fmt.Sprintf("%s: %s, bare %s", name, x, y))
		}
	}
	add("status", strconv.Itoa(a.status), strconv.Itoa(b.status))
	add("length", fmt.Sprint(a.length), fmt.Sprint(b.length))
	add("coding", a.transferCoded, b.transferCoded)
	add("interim", a.interim, b.interim)
	add("body", a.sum, b.sum)
	for name := range allNames(a.header, b.header) {
		add(name, a.header[name], b.header[name])
	}
	for name := range allNames(a.trailer, b.trailer) {
		add("trailer "+name, a.trailer[name], b.trailer[name])
	}
	return strings.Join(d, "\n")
}

func allNames(a, b http.Header) map[string]bool {
	m := map[string]bool{}
	for n := range a {
		m[n] = true
	}
	for n := range b {
		m[n] = true
	}
	return m
}

// Without a key, an answer is the same, by name and list of values, as through a
// standard ReverseProxy; and so is what the upstream gets.
func TestWithoutAKeyItIsAStandardReverseProxy(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(manifold))
	defer up.Close()
	std := bare(t, up.URL)
	p := start(t, "-upstream", up.URL)
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY", "MKCOL"} {
		for _, give := range []string{"", "nothing", "hints", "trailers", "gzip", "large", "untyped", "200", "201", "202", "204", "206", "301", "302", "303", "304", "307", "308", "400", "401", "403", "404", "409", "412", "418", "422", "425", "429", "500", "501", "502", "503", "504", "599"} {
			if give == "large" && method != "GET" && method != "POST" {
				continue
			}
			for _, h := range []http.Header{
				{},
				{"Te": {"trailers"}, "X-Many": {"a", "", "b, c"}, "Cookie": {"a=1", "b=2"}, "Connection": {"X-Mine"}, "X-Mine": {"x"}, "Keep-Alive": {"5"}, "Proxy-Authorization": {"x"},
					"X-Forwarded-For": {"6.6.6.6"}, "Forwarded": {"for=6.6.6.6"}, "Accept-Encoding": {"br, gzip"}, "User-Agent": {""}, "X-Chunked": {"1"}},
			} {
				path := "/a/b%2Fc/../d//e;v=1?x=%20y&z&give=" + give
				got := look(t, client, method, p.URL+path, "the body", h)
				want := look(t, client, method, std.URL+path, "the body", h)
				if d := difference(got, want); d != "" {
					t.Errorf("%s that gives %q, with header %v:\n%s", method, give, h, d)
				}
			}
		}
	}
}

// With a key, the upstream's own statuses and header fields are the same too; only what
// belongs to a connection or tells of the key differs, and the first answer's length
// may be known.
func TestWithAKeyTheAnswerIsTheUpstreamsOwn(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(manifold))
	defer up.Close()
	std := bare(t, up.URL)
	p := start(t, "-upstream", up.URL)
	for i, give := range []string{"", "nothing", "trailers", "gzip", "large", "200", "201", "202", "204", "303", "307", "400", "403", "404", "409", "412", "418", "422", "500", "501", "502", "503", "504"} {
		path := "/x?give=" + give
		k := http.Header{"Idempotency-Key": {"k" + strconv.Itoa(i)}}
		want := look(t, client, "POST", std.URL+path, "the body", nil)
		for n := range 2 {
			if n == 1 && give == "large" {
				continue // too large to be recorded: see TestTheRowsOfTheMiddleware
			}
			got := look(t, client, "POST", p.URL+path, "the body", k)
			if n == 0 && got.header.Get("Idempotency-Status") != "executed" || n == 1 && got.header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("%q, try %d: the answer does not say what it is: %v", give, n+1, got.header)
			}
			got.header.Del("Idempotency-Status")
			got.header.Del("Idempotent-Replayed")
			got.length, got.transferCoded = want.length, want.transferCoded
			if n == 1 { // cookies are for whoever got the first answer
				want.header.Del("Set-Cookie")
			}
			if got.header.Get("Content-Type") == "" {
				want.header.Del("Content-Type") // nothing was sniffed
			}
			if d := difference(got, want); d != "" {
				t.Errorf("%q, try %d:\n%s", give, n+1, d)
			}
		}
	}
}

// The rows of the Middleware's table that show on the wire.
func TestTheRowsOfTheMiddleware(t *testing.T) {
	var effects atomic.Int64
	hold := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := effects.Add(1)
		switch r.URL.Path {
		case "/slow":
			<-hold
		case "/busy":
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(503)
			return
		case "/large":
			w.Write(make([]byte, 2<<20))
			return
		case "/forged":
			w.Header().Set("Idempotent-Replayed", "true")
			w.Header().Set("Idempotency-Status", "executed")
		}
		fmt.Fprintf(w, "run %d", n)
	}))
	defer up.Close()
	p := start(t, "-upstream", up.URL, "-require-key", "-wait", "200ms", "-max-body", "1KiB")
	is := func(name string, a answer, status int, problem string) {
		t.Helper()
		if a.status != status || a.problem() != problem {
			t.Errorf("%s: got %d %s %s, want %d %s", name, a.status, a.problem(), a.body, status, problem)
		}
	}
	is("a safe method", send(t, "GET", p.URL+"/x", ""), 200, "")
	is("no key", send(t, "POST", p.URL+"/x", ""), 400, "missing-key")
	is("an empty key", send(t, "POST", p.URL+"/x", "", key("")), 400, "malformed-key")
	is("two keys", send(t, "POST", p.URL+"/x", "", key("a"), key("b")), 400, "malformed-key")
	is("a list", send(t, "POST", p.URL+"/x", "", key("a, b")), 400, "malformed-key")
	is("a large body", send(t, "POST", p.URL+"/x", strings.Repeat("x", 2000), key("big")), 413, "body-too-large")
	first := send(t, "POST", p.URL+"/x", `{"a":1,"b":2}`, key("k"), "Content-Type: application/json", "Authorization: one")
	is("the first", first, 200, "")
	repeat := send(t, "POST", p.URL+"/x", `{ "b":2, "a":1 }`, key(`"k"`), "Content-Type: application/json", "Authorization: one")
	is("a repeat in other words", repeat, 200, "")
	if repeat.body != first.body || !repeat.replayed() {
		t.Errorf("the repeat got %q, replayed %v", repeat.body, repeat.replayed())
	}
	is("another caller", send(t, "POST", p.URL+"/x", `{"a":1,"b":2}`, key("k"), "Content-Type: application/json", "Authorization: two"), 409, "principal-changed")
	is("another body", send(t, "POST", p.URL+"/x", `{"a":2}`, key("k"), "Content-Type: application/json", "Authorization: one"), 422, "key-reused")
	is("another path", send(t, "POST", p.URL+"/y", `{"a":2}`, key("k"), "Authorization: one"), 200, "")
	is("an upgrade", send(t, "POST", p.URL+"/x", "", key("u"), "Connection: Upgrade", "Upgrade: websocket"), 400, "upgrade-refused")

	before := effects.Load()
	is("a busy upstream", send(t, "POST", p.URL+"/busy", "", key("b")), 503, "")
	is("a busy upstream again", send(t, "POST", p.URL+"/busy", "", key("b")), 503, "")
	if n := effects.Load() - before; n != 2 {
		t.Errorf("a 503 with Retry-After left its key taken: %d runs", n)
	}
	is("a large answer", send(t, "POST", p.URL+"/large", "", key("l")), 200, "")
	is("a large answer again", send(t, "POST", p.URL+"/large", "", key("l")), 409, "response-gone")
	forged := send(t, "POST", p.URL+"/forged", "", key("f"))
	if forged.replayed() || forged.header.Get("Idempotency-Status") != "executed" {
		t.Errorf("an upstream's marker was passed on: %v", forged.header)
	}

	slow := make(chan answer, 1)
	go func() { a, _ := try("POST", p.URL+"/slow", "", key("s")); slow <- a }()
	for deadline := time.Now().Add(20 * time.Second); effects.Load() < before+5 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond) // until it runs
	}
	a := send(t, "POST", p.URL+"/slow", "", key("s"))
	is("while it runs", a, 409, "in-progress")
	if a.header.Get("Retry-After") == "" {
		t.Errorf("in progress without Retry-After: %v", a.header)
	}
	close(hold)
	is("the slow one", <-slow, 200, "")
	if a := send(t, "POST", p.URL+"/slow", "", key("s")); !a.replayed() {
		t.Errorf("after it ran: got %d %v", a.status, a.header)
	}
}

// A client that leaves does not stop the work, and finds its answer when it comes back.
func TestAClientThatLeavesFindsItsAnswerLater(t *testing.T) {
	var effects atomic.Int64
	began, hold := make(chan struct{}, 1), make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		began <- struct{}{}
		<-hold
		if r.Context().Err() != nil {
			t.Error("the upstream's request ended with its client")
		}
		io.WriteString(w, "done")
	}))
	defer up.Close()
	p := start(t, "-upstream", up.URL)
	ctx, leave := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", p.URL+"/x", strings.NewReader("x"))
	req.Header.Set("Idempotency-Key", "k")
	gone := make(chan error, 1)
	go func() { _, err := client.Do(req); gone <- err }()
	<-began
	leave()
	if err := <-gone; err == nil {
		t.Fatal("the client did not leave")
	}
	go func() { time.Sleep(50 * time.Millisecond); close(hold) }()
	a := send(t, "POST", p.URL+"/x", "x", key("k"))
	if a.body != "done" || !a.replayed() || effects.Load() != 1 {
		t.Errorf("got %d %q %v, %d effects", a.status, a.body, a.header, effects.Load())
	}
}

// A stream arrives as it is written, not at its end.
func TestEventsArriveAsTheyAreSent(t *testing.T) {
	next := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	}))
	defer up.Close()
	p := start(t, "-upstream", up.URL)
	for _, lines := range [][]string{nil, {"k"}} {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", p.URL, nil)
		if lines != nil {
			req.Header["Idempotency-Key"] = lines
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(resp.Body)
		for i := range 3 {
			line, err := r.ReadString('\n')
			if want := fmt.Sprintf("data: %d\n", i); line != want || err != nil {
				t.Fatalf("got %q, %v, want %q", line, err, want)
			}
			r.ReadString('\n')
			next <- struct{}{} // only now the next one is written
		}
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
		resp.Body.Close()
	}
}

// An upgraded connection carries bytes both ways, also when the request has a key: its
// method is a safe one.
func TestAnUpgradedConnectionCarriesBytes(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		io.Copy(conn, rw)
	}))
	defer up.Close()
	p := start(t, "-upstream", up.URL)
	for _, more := range []string{"", "Idempotency-Key: k\r\n"} {
		conn := dial(t, p.URL)
		fmt.Fprintf(conn, "GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n%s\r\n", more)
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "websocket" {
			t.Fatalf("got %+v, %v", resp, err)
		}
		for i := range 5 {
			fmt.Fprintf(conn, "message %d\n", i)
			if line, err := r.ReadString('\n'); err != nil || line != fmt.Sprintf("message %d\n", i) {
				t.Fatalf("got %q, %v", line, err)
			}
		}
	}
}

// dial connects to a proxy without a client in between.
func dial(t testing.TB, url string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(time.Minute))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// The upstream decides whether a body is sent.
func TestExpectContinueIsTheUpstreamsToAnswer(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		io.Copy(w, r.Body)
	}))
	defer up.Close()
	p := start(t, "-upstream", up.URL)
	conn := dial(t, p.URL)
	fmt.Fprintf(conn, "POST /yes HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatalf("got %q, %v", line, err)
	}
	r.ReadString('\n')
	io.WriteString(conn, "body")
	resp, err := http.ReadResponse(r, nil)
	// The server says it when the body is read, and a ReverseProxy when the upstream does: a
	// client takes any number (RFC 9110, section 15.2).
	for err == nil && resp.StatusCode == http.StatusContinue {
		resp, err = http.ReadResponse(r, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(b) != "body" || err != nil {
		t.Errorf("got %s %q, %v", resp.Status, b, err)
	}
	conn = dial(t, p.URL)
	fmt.Fprintf(conn, "POST /no HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 417") {
		t.Fatalf("got %q, %v", line, err)
	}
}

// HTTP/2 without TLS, on either side, and on both.
func TestHTTP2InClear(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(manifold))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Config.Protocols.SetHTTP1(true)
	up.Start()
	defer up.Close()
	tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	h2 := &http.Client{Transport: tr, Timeout: time.Minute}
	p := start(t, "-upstream", "h2c://"+strings.TrimPrefix(up.URL, "http://"))
	for name, c := range map[string]*http.Client{"HTTP/1.1": client, "HTTP/2.0": h2} {
		for _, k := range []http.Header{nil, {"Idempotency-Key": {"k-" + name[5:6]}}} {
			for range 2 {
				s := look(t, c, "POST", p.URL+"/x?give=trailers", "body", k)
				if s.status != 200 || s.proto != name || !strings.Contains(s.header.Get("X-Saw"), "HTTP/2.0") {
					t.Errorf("%s with %v: got %d %s, the upstream saw %q", name, k, s.status, s.proto, s.header.Get("X-Saw"))
				}
				// To HTTP/1, a ReverseProxy passes trailers on only if no length is known.
				if c == h2 && s.trailer.Get("X-End") != "announced" {
					t.Errorf("%s with %v: trailers %v", name, k, s.trailer)
				}
			}
		}
	}
}

// A huge body passes without being held, and arrives whole.
func TestHugeBodiesPass(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, _ := io.Copy(h, r.Body)
		fmt.Fprintf(w, "%d %x", n, h.Sum(nil))
	}))
	defer up.Close()
	p := start(t, "-upstream", up.URL)
	const size = 64 << 20
	h := sha256.New()
	body := io.TeeReader(io.LimitReader(zeros{}, size), h)
	resp, err := client.Post(p.URL, "application/octet-stream", body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if want := fmt.Sprintf("%d %x", size, h.Sum(nil)); string(b) != want {
		t.Errorf("got %s, want %s", b, want)
	}
	if rss := residentKiB(t, p.cmd.Process.Pid); rss > 200<<10 {
		t.Errorf("the proxy holds %d KiB after a body of 64 MiB passed", rss)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
