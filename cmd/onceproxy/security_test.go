package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A vault is an upstream that answers each caller with the caller's own secret, and
// notes what reached it.
type vault struct {
	mu   sync.Mutex
	seen []string // "METHOD path", one for each request
}

func (v *vault) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	v.mu.Lock()
	v.seen = append(v.seen, r.Method+" "+r.URL.Path)
	v.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain")
	for _, name := range []string{"Idempotent-Replayed", "Idempotency-Status", "Idempotency-Replayed", "Idempotency-Key", "X-Hop"} {
		if r.Header.Get(name) != "" {
			w.Header().Set("X-Leaked-"+name, "yes")
		}
	}
	fmt.Fprintf(w, "secret of %s%s, %d bytes", r.Header.Get("Authorization"), r.Header.Get("X-User"), len(b))
}

func (v *vault) requests(prefix string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.seen {
		if strings.Contains(s, prefix) {
			n++
		}
	}
	return n
}

// Each row is a hostile request as it goes over the wire, and what may come of it. The
// first answer's status is one of want; more than one request may never reach the
// upstream (most), and what is written behind the first is never answered as if it had
// been a request of its own, unless by refusing it.
func TestHostileBytes(t *testing.T) {
	v := new(vault)
	up := httptest.NewServer(v)
	defer up.Close()
	p := start(t, "-config", write(t, "store: \"memory:\"\nlimits: {header_bytes: 8KiB}\ntimeouts: {header: 1s, body: 500ms}\nroutes:\n- upstream: "+up.URL+"\n  limits: {body: 1KiB}\n"))
	post := func(path string, lines ...string) string {
		return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
	}
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	big := strings.Repeat("a", 70<<10)
	var rows sync.WaitGroup
	for i, c := range []struct {
		name, bytes string
		want        string // statuses, or "" for a connection that is closed
		most        int    // requests that may reach the upstream
	}{
		{"two lengths", post("/h", "Content-Length: 4", "Content-Length: 40") + "body" + smuggled, "400", 0},
		{"two equal lengths in one field", post("/h", "Content-Length: 4, 5") + "body", "400", 0},
		{"a signed length", post("/h", "Content-Length: +4") + "body", "400", 0},
		{"a negative length", post("/h", "Content-Length: -4") + "body", "400", 0},
		{"a hexadecimal length", post("/h", "Content-Length: 0x4") + "body", "400", 0},
		{"an endless length", post("/h", "Content-Length: 99999999999999999999") + "body", "400", 0},
		{"a length and chunks (CL.TE)", post("/h", "Content-Length: 6", "Transfer-Encoding: chunked") + "0\r\n\r\n" + "X", "200 400", 1},
		{"chunks and a length (TE.CL)", post("/h", "Transfer-Encoding: chunked", "Content-Length: 4") + "5c\r\n" + smuggled, "400 408 502", 1},
		{"chunks in a spelling of their own", post("/h", "Transfer-Encoding: xchunked") + smuggled, "501 400", 0},
		{"chunks twice", post("/h", "Transfer-Encoding: chunked", "Transfer-Encoding: identity") + "0\r\n\r\n", "501 400", 0},
		{"chunks with a space before the colon", post("/h", "Transfer-Encoding : chunked") + "0\r\n\r\n" + smuggled, "400", 0},
		{"chunks behind a tab", post("/h", "Transfer-Encoding:\tchunked\x0b") + "0\r\n\r\n" + smuggled, "400 501", 0},
		{"chunks in a folded line", post("/h", "Transfer-Encoding:", " chunked") + "0\r\n\r\n", "400 501 200", 1},
		{"a chunk of an endless size", post("/h", "Transfer-Encoding: chunked", "Idempotency-Key: e") + "fffffffffffffffff\r\nbody", "400", 0},
		{"a chunk of a negative size", post("/h", "Transfer-Encoding: chunked", "Idempotency-Key: n") + "-1\r\nbody", "400", 0},
		{"a chunk with an endless extension", post("/h", "Transfer-Encoding: chunked", "Idempotency-Key: x") + "1;" + big + "\r\na\r\n0\r\n\r\n", "400", 0},
		{"a chunk without its end", post("/h", "Transfer-Encoding: chunked", "Idempotency-Key: w") + "1\r\naXX0\r\n\r\n" + smuggled, "400", 0},
		{"HTTP/1.0 with chunks", "POST /h HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, "200 400 501", 1},
		{"no host", "POST /h HTTP/1.1\r\n\r\n", "400", 0},
		{"two hosts", "POST /h HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "400", 0},
		{"a host with a line break", "POST /h HTTP/1.1\r\nHost: x\rX-Evil: 1\r\n\r\n", "400", 0},
		{"a field name with a space", post("/h", "X Evil: 1"), "400", 0},
		{"a field name with a line break", post("/h", "X\nEvil : 1"), "400", 0},
		{"a field value with a zero byte", post("/h", "X-Evil: a\x00b"), "400", 0},
		{"a field without a name", post("/h", ": a"), "400", 0},
		{"a bare carriage return in a value", post("/h", "X-Evil: a\rIdempotency-Key: k"), "400", 0},
		{"a path with a line break", "POST /h\r\nX HTTP/1.1\r\nHost: x\r\n\r\n", "400", 0},
		{"a path with a raw control byte", "POST /h\x01 HTTP/1.1\r\nHost: x\r\n\r\n", "400", 0},
		{"a broken escape in the path", "POST /h%zz HTTP/1.1\r\nHost: x\r\n\r\n", "400", 0},
		{"a method that is none", "PO ST /h HTTP/1.1\r\nHost: x\r\n\r\n", "400", 0},
		{"a version that is none", "POST /h HTTP/9.9\r\nHost: x\r\n\r\n", "505 400", 0},
		{"no HTTP at all", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400", 0},
		{"half of HTTP/2's first words", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", "400 405 505", 0},
		{"a tunnel", "CONNECT evil.example:25 HTTP/1.1\r\nHost: evil.example:25\r\n\r\n", "405", 0},
		{"another server in the request line", "POST http://evil.example/h HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "200", 1},
		{"a header that is too large", post("/h", "X-Big: "+big), "431", 0},
		{"very many fields", post("/h", strings.TrimSuffix(strings.Repeat("A: b\r\n", 5000), "\r\n")), "431", 0},
		{"a request line that is too long", "POST /h" + big + " HTTP/1.1\r\nHost: x\r\n\r\n", "431 414", 0},
		{"a body with a key that is too large", post("/h", "Idempotency-Key: b", "Content-Length: 5000") + strings.Repeat("b", 5000), "413", 0},
		{"chunks with a key that are too large", post("/h", "Idempotency-Key: b", "Transfer-Encoding: chunked") + "1388\r\n" + strings.Repeat("b", 5000) + "\r\n0\r\n\r\n", "413", 0},
		{"a key that is too long", post("/h", "Idempotency-Key: "+strings.Repeat("k", 256), "Content-Length: 0"), "400", 0},
		{"a key with bytes beyond ASCII", post("/h", "Idempotency-Key: sch\xc3\xb6n", "Content-Length: 0"), "400", 0},
		{"a key in an open quote", post("/h", `Idempotency-Key: "k`, "Content-Length: 0"), "400", 0},
		{"two keys in two spellings", post("/h", "Idempotency-Key: a", "idempotency-key: b", "Content-Length: 0"), "400", 0},
		{"a key that wants to hop", post("/h", "Idempotency-Key: hop", "Connection: Idempotency-Key", "Content-Length: 0"), "200", 1},
		{"an upgrade with a key", post("/h", "Idempotency-Key: u", "Connection: upgrade", "Upgrade: websocket", "Content-Length: 0"), "400", 0},
		{"an upgrade to something unprintable", post("/h", "Connection: upgrade", "Upgrade: \x80\x81", "Content-Length: 0"), "502 400", 0},
	} {
		rows.Go(func() {
			path := fmt.Sprintf("/h%d-", i)
			conn := dial(t, p.URL)
			go io.WriteString(conn, strings.Replace(c.bytes, "/h", path, 1))
			r := bufio.NewReader(conn)
			var statuses []string
			for n := 0; n < 3; n++ {
				if n > 0 {
					conn.SetReadDeadline(time.Now().Add(150 * time.Millisecond)) // nothing more need come
				}
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					break
				}
				b, _ := io.ReadAll(resp.Body)
				statuses = append(statuses, fmt.Sprint(resp.StatusCode))
				for name := range resp.Header {
					if strings.HasPrefix(name, "X-Leaked") || name == "X-Evil" {
						t.Errorf("%s: the answer has %s", c.name, name)
					}
				}
				if strings.Contains(string(b), "secret") && c.most == 0 {
					t.Errorf("%s: got %d %q", c.name, resp.StatusCode, b)
				}
			}
			conn.Close()
			if len(statuses) == 0 || !strings.Contains(c.want, statuses[0]) {
				t.Errorf("%s: got %v, want %s", c.name, statuses, c.want)
			}
			for _, s := range statuses[min(1, len(statuses)):] {
				if s == "200" {
					t.Errorf("%s: what stood behind it was answered too: %v", c.name, statuses)
				}
			}
			if n := v.requests(path); n > c.most {
				t.Errorf("%s: %d requests reached the upstream, want at most %d", c.name, n, c.most)
			}
		})
	}
	rows.Wait()
	if n := v.requests("smuggled"); n > 0 {
		t.Errorf("%d smuggled requests reached the upstream", n)
	}
	if a := send(t, "POST", p.URL+"/after", "", key("after")); a.status != 200 {
		t.Errorf("afterwards: got %d %s", a.status, a.body)
	}
}

// What a client writes into the fields by which the proxy speaks is neither believed
// nor passed on.
func TestForgedMarkersAreNotPassedOn(t *testing.T) {
	v := new(vault)
	up := httptest.NewServer(v)
	defer up.Close()
	p := start(t, "-upstream", up.URL)
	for _, method := range []string{"GET", "POST"} {
		for _, k := range [][]string{nil, {key("forged-" + method)}} {
			lines := append(k, "Idempotent-Replayed: true", "idempotency-status: executed", "Idempotency-Replayed: true", "Connection: X-Hop", "X-Hop: 1")
			a := send(t, method, p.URL+"/x", "", lines...)
			for name := range a.header {
				if strings.HasPrefix(name, "X-Leaked-Idempot") && name != "X-Leaked-Idempotency-Key" || name == "X-Leaked-X-Hop" {
					t.Errorf("%s %v: the upstream got %s", method, k, name)
				}
			}
			if a.replayed() {
				t.Errorf("%s %v: an answer that is no replay says that it is one", method, k)
			}
		}
	}
}

// A client that sends a header, or a body, byte by byte is not waited for for ever, and
// holds up nobody else.
func TestSlowClientsAreGivenUp(t *testing.T) {
	v := new(vault)
	up := httptest.NewServer(v)
	defer up.Close()
	p := start(t, "-config", write(t, "store: \"memory:\"\ntimeouts: {header: 300ms, body: 300ms, write: 1s, idle: 1s}\nroutes:\n- upstream: "+up.URL+"\n"))
	for name, head := range map[string]string{
		"a header":                 "POST /slow HTTP/1.1\r\nHost: x\r\nX-A: ",
		"a body with a key":        "POST /slow HTTP/1.1\r\nHost: x\r\nIdempotency-Key: s\r\nContent-Length: 1000\r\n\r\n",
		"a body without a key":     "POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
		"chunks with a key":        "POST /slow HTTP/1.1\r\nHost: x\r\nIdempotency-Key: c\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
		"a body that is too large": "POST /slow HTTP/1.1\r\nHost: x\r\nIdempotency-Key: l\r\nContent-Length: 100000000\r\n\r\n",
		"nothing":                  "",
	} {
		conn := dial(t, p.URL)
		io.WriteString(conn, head)
		began := time.Now()
		b, err := io.ReadAll(conn) // until the proxy closes
		if err != nil {
			t.Errorf("%s: the connection was still open after %v: %v", name, time.Since(began), err)
		}
		if strings.Contains(string(b), "200 OK") {
			t.Errorf("%s: got %q", name, b)
		}
	}
	// Fifty at once, and somebody with a right to be served.
	for range 50 {
		io.WriteString(dial(t, p.URL), "POST /slow HTTP/1.1\r\nHost: x\r\n")
	}
	if a := send(t, "POST", p.URL+"/quick", "x", key("quick")); a.status != 200 {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

// One that does not read its answer is given up too, and its request was done.
func TestAClientThatDoesNotReadIsGivenUp(t *testing.T) {
	left := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(left)
		b := make([]byte, 64<<10)
		for r.Context().Err() == nil {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}))
	defer up.Close()
	p := start(t, "-config", write(t, "store: \"memory:\"\ntimeouts: {write: 500ms}\nroutes:\n- upstream: "+up.URL+"\n"))
	conn := dial(t, p.URL)
	io.WriteString(conn, "GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Error("the upstream still writes to a client that does not read")
	}
}

func write(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "once.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Nobody gets an answer, or learns of a key, that is somebody else's.
func TestNothingLeaksBetweenPrincipals(t *testing.T) {
	v := new(vault)
	up := httptest.NewServer(v)
	defer up.Close()
	p := start(t, "-upstream", up.URL)
	mine := send(t, "POST", p.URL+"/x", "body", key("k"), "Authorization: Bearer alice")
	if mine.status != 200 || !strings.Contains(mine.body, "alice") {
		t.Fatalf("got %d %s", mine.status, mine.body)
	}
	for name, lines := range map[string][]string{
		"another token":               {"Authorization: Bearer bob"},
		"no token":                    nil,
		"the token in another case":   {"Authorization: bearer alice"},
		"two tokens":                  {"Authorization: Bearer alice", "Authorization: Bearer bob"},
		"another field":               {"X-Api-Key: Bearer alice"},
		"a cookie":                    {"Cookie: Bearer alice"},
		"a token with a space":        {"Authorization: Bearer  alice"},
		"a forwarded client":          {"X-Forwarded-For: 127.0.0.1", "Authorization: Bearer bob"},
		"the key in quotes":           {"Authorization: Bearer bob", `Idempotency-Key: "k"`},
		"a user that nobody verified": {"X-User: alice"},
	} {
		k := key("k")
		if strings.HasPrefix(lines0(lines, 1), "Idempotency") {
			k = lines[1]
			lines = lines[:1]
		}
		a := send(t, "POST", p.URL+"/x", "body", append(lines, k)...)
		if a.status != 409 || a.problem() != "principal-changed" || strings.Contains(a.body, "alice") || strings.Contains(a.body, "secret") {
			t.Errorf("%s: got %d %s", name, a.status, a.body)
		}
		// A different body does not tell whether the key exists.
		if b := send(t, "POST", p.URL+"/x", "other", append(lines, k)...); b.status != a.status || b.problem() != a.problem() {
			t.Errorf("%s, other body: got %d %s", name, b.status, b.body)
		}
	}
	if n := v.requests("/x"); n != 1 {
		t.Errorf("the upstream got %d requests", n)
	}
	log := p.log.String()
	for _, secret := range []string{"alice", "bob", `"k"`, "secret of"} {
		if strings.Contains(log, secret) {
			t.Errorf("%q is in the log:\n%s", secret, log)
		}
	}
}

func lines0(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// A path that servers read in different ways does not choose its protection.
func TestAnAmbiguousPathChoosesNoRoute(t *testing.T) {
	v := new(vault)
	up := httptest.NewServer(v)
	defer up.Close()
	p := start(t, "-config", write(t, "store: \"memory:\"\nroutes:\n- upstream: "+up.URL+"\n- {path: /refunds, key: {required: true}, upstream: "+up.URL+"}\n"))
	for _, path := range []string{"/x/../refunds", "//refunds", "/./refunds", "/x/%2e%2e/refunds", `/x\..\refunds`, "/refunds%2f..%2fx", "/x;/../refunds", "/x/%252e%252e/refunds", "/refunds/../x"} {
		conn := dial(t, p.URL)
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", path)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != 400 {
			t.Errorf("%s: got %+v, %v", path, resp, err)
		}
	}
	if n := v.requests(""); n != 0 {
		t.Errorf("%d of them reached the upstream: %v", n, v.seen)
	}
	for path, status := range map[string]int{"/refunds": 400, "/refunds/7": 400, "/refundsx": 200, "/a/../b": 200, "/a%2Fb": 200} {
		if a := send(t, "POST", p.URL+path, ""); a.status != status {
			t.Errorf("%s: got %d, want %d", path, a.status, status)
		}
	}
}

// A client may use so many new keys and no more; its repeats are answered all the same,
// and others are not concerned.
func TestKeysOfOnePrincipalAreLimited(t *testing.T) {
	var effects atomic.Int64
	up := httptest.NewServer(pay2(&effects))
	defer up.Close()
	p := start(t, "-upstream", up.URL, "-keys-per-principal", "3")
	for i := range 5 {
		a := send(t, "POST", p.URL+"/x", "", key(fmt.Sprint(i)), "Authorization: a")
		if want := map[bool]int{true: 200, false: 429}[i < 3]; a.status != want {
			t.Errorf("key %d: got %d %s", i, a.status, a.body)
		}
		if i >= 3 && (a.problem() != "too-many-keys" || a.header.Get("Retry-After") == "") {
			t.Errorf("key %d: got %s %v", i, a.body, a.header)
		}
	}
	if a := send(t, "POST", p.URL+"/x", "", key("1"), "Authorization: a"); !a.replayed() {
		t.Errorf("a repeat: got %d %s", a.status, a.body)
	}
	if a := send(t, "POST", p.URL+"/x", "", key("4"), "Authorization: b"); a.status != 200 {
		t.Errorf("another client: got %d %s", a.status, a.body)
	}
	if n := effects.Load(); n != 4 {
		t.Errorf("got %d effects, want 4", n)
	}
}

func pay2(effects *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "run %d", effects.Add(1)) })
}
