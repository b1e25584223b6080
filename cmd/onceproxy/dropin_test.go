package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp/internal/dropin"
)

// What a client of net/http relies on holds through onceproxy as it does through a standard
// ReverseProxy: every row of the table that can be seen on the wire. See hidden for the others.
func TestDropIn(t *testing.T) {
	hides := func(r *dropin.Row, h2 bool) bool { return whyHidden(r, h2) != "" }
	if os.Getenv("ONCEHTTP_SOAK") == "1" { // of net/http, so it changes with Go's version only
		t.Run("bare", dropin.Setup{Front: bareFront{}, Hides: hides}.Run)
	}
	t.Run("onceproxy", dropin.Setup{Front: newBinaryFront(t), Hides: hides}.Run)
}

// Why a row cannot be seen through any proxy, a standard one neither.
const (
	nothingSent = "net/http refuses the request, or finds nobody to send it to, before anything is on the wire"
	ownClock    = "the client's own clock ends it after seconds; all that is on the wire is that it has left, which other rows show"
	tooLong     = "it takes hours of real time; TestWhatTakesLongIsNotCut shows it with shorter limits"
	hop         = "it is about one connection, and a proxy has others to its upstream (RFC 9110, section 7.6.1)"
	duplex      = "a ReverseProxy answers an HTTP/1 request once it has read its body, or a part"
	forward     = "it is about a proxy of the client's choice; one in front of a server is not asked for absolute URLs"
)

// hidden are those rows. Whoever adds a row to the table either finds that it holds through
// both proxies, or writes down here why it cannot.
var hidden = []struct {
	does string
	on   dropin.Protocols
	why  string
}{
	{"a nil URL is refused", dropin.Both, nothingSent},
	{"a nil header is refused", dropin.Both, nothingSent},
	{"an unknown scheme is refused", dropin.Both, nothingSent},
	{"an empty scheme is refused", dropin.Both, nothingSent},
	{"a URL without a host is refused", dropin.Both, nothingSent},
	{"a method with a space is refused", dropin.Both, nothingSent},
	{"a header name with a space is refused", dropin.Both, nothingSent},
	{"a header value with a line break is refused", dropin.Both, nothingSent},
	{"a trailer name with a space is refused", dropin.Both, nothingSent},
	{"a length without a body is refused", dropin.Both, nothingSent},
	{"the error of a call names method and URL once", dropin.Both, nothingSent},
	{"a refused connection is ECONNREFUSED", dropin.Both, nothingSent},
	{"a name that does not exist is a DNSError", dropin.Both, nothingSent},
	{"Client.Timeout ends the wait for headers with a timeout", dropin.Both, ownClock},
	{"Client.Timeout ends the body with a timeout", dropin.Both, ownClock},
	{"a deadline in the context ends the call with a timeout", dropin.Both, ownClock},
	{"ResponseHeaderTimeout of Base is a timeout", dropin.Both, ownClock},
	{"a stream of an hour is not cut", dropin.Both, tooLong},
	{"a slow upload of an hour is not cut", dropin.Both, tooLong},
	{"a connection that was handed over lives on", dropin.Both, tooLong},
	{"a body read long after the answer came is whole", dropin.Both, "a client that does not read is given up after a minute: TestAClientThatDoesNotReadIsGivenUp"},
	{"a malformed answer is an error", dropin.Both, "a proxy has an answer for its client, 502: TestARequestThatWasSentAndNotAnsweredIsUnknown"},
	{"a body cut short is an error, not an end", dropin.Both, "a ReverseProxy may hold back the first bytes of what it then breaks off: TestAStreamThatIsCutIsUnknown"},
	{"with Expect: 100-continue unanswered the body goes after ExpectContinueTimeout", dropin.Both, "that is the proxy's own, of 1 s"},
	{"with Expect: 100-continue the body waits for the 100", dropin.HTTP2, "Go's HTTP/2 server answers the Expect itself and hides it from its handler"},
	{"with Expect: 100-continue refused the body is never read", dropin.HTTP2, "likewise"},
	{"trailers of the request may be set while the body is read", dropin.Both, "a ReverseProxy copies a request's trailers before they have come"},
	{"a header name that is not canonical is sent as it stands", dropin.Both, "Go's server has made it canonical before a handler sees it"},
	{"CloseIdleConnections closes them", dropin.Both, hop},
	{"Request.Close closes the connection", dropin.Both, hop},
	{"an answer with Connection: close closes it", dropin.Both, hop},
	{"DisableKeepAlives opens one for each call", dropin.Both, hop},
	{"an HTTP/1.0 answer ends with its connection", dropin.Both, hop},
	{"a body is not read ahead of what is sent", dropin.HTTP1, duplex},
	{"an answer may come before the body is sent", dropin.HTTP1, duplex},
	{"an http proxy gets the absolute URL and its credentials", dropin.Both, forward},
}

func whyHidden(r *dropin.Row, h2 bool) string {
	for _, h := range hidden {
		if h.does == r.Does && (h.on == dropin.Both || (h.on == dropin.HTTP2) == h2) {
			return h.why
		}
	}
	return ""
}

func TestHiddenRowsAreRows(t *testing.T) {
	runs, hides := 0, 0
	named := map[string]bool{}
	for _, r := range dropin.Rows {
		named[r.Does] = true
		for _, h2 := range []bool{false, true} {
			switch {
			case h2 && r.On == dropin.HTTP1 || !h2 && r.On == dropin.HTTP2:
			case whyHidden(&r, h2) != "":
				hides++
			default:
				runs++
			}
		}
	}
	for _, h := range hidden {
		if !named[h.does] {
			t.Errorf("the table has no row %q", h.does)
		}
	}
	t.Logf("of %d behaviours %d are run through onceproxy, and %d cannot be seen there", runs+hides, runs, hides)
	if runs < 2*hides {
		t.Error("too little of the table is left to be seen")
	}
}

// A stream, an upload and an upgraded connection last longer than every limit on clients
// and upstreams that do nothing.
func TestWhatTakesLongIsNotCut(t *testing.T) {
	t.Parallel()
	const limit, step = 3 * time.Second, 900 * time.Millisecond // a late machine is no failure
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			io.WriteString(w, "a")
			http.NewResponseController(w).Flush()
			time.Sleep(limit + time.Second)
			io.WriteString(w, "b")
		case "/upload":
			io.Copy(w, r.Body)
		case "/upgrade":
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			io.Copy(conn, rw)
		}
	}))
	defer up.Close()
	p := start(t, "-config", write(t, "store: \"memory:\"\ntimeouts: {header: 3s, body: 3s, write: 3s, idle: 3s}\nroutes:\n- {upstream: \""+up.URL+"\", timeout: 3s}\n"))
	var all sync.WaitGroup
	defer all.Wait()
	is := func(what, method, path string, body io.Reader, want string) {
		all.Go(func() {
			req, _ := http.NewRequest(method, p.URL+path, body)
			resp, err := client.Do(req)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				return
			}
			defer resp.Body.Close()
			if b, err := io.ReadAll(resp.Body); string(b) != want || err != nil {
				t.Errorf("%s: got %d %q, %v, want %q", what, resp.StatusCode, b, err, want)
			}
		})
	}
	slowly, w := io.Pipe()
	all.Go(func() {
		defer w.Close()
		for range limit/step + 1 {
			io.WriteString(w, "x")
			time.Sleep(step)
		}
	})
	is("a stream", "GET", "/stream", nil, "ab")
	is("an upload", "POST", "/upload", slowly, "xxxx")
	all.Go(func() {
		conn := dial(t, p.URL)
		io.WriteString(conn, "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		r := bufio.NewReader(conn)
		if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != 101 {
			t.Errorf("an upgrade: got %+v, %v", resp, err)
			return
		}
		for i := range 2 {
			fmt.Fprintln(conn, "ping")
			if line, err := r.ReadString('\n'); line != "ping\n" || err != nil {
				t.Errorf("an upgraded connection, message %d: got %q, %v", i+1, line, err)
				return
			}
			time.Sleep((limit + time.Second) * time.Duration(1-i))
		}
	})
}

var quietLog = log.New(io.Discard, "", 0)

// A bareFront puts a standard ReverseProxy in front of each server.
type bareFront struct{}

// Listen implements dropin.Front.
func (bareFront) Listen(w *dropin.Wire) net.Listener { return listenFree(w) }

// URL implements dropin.Front.
func (bareFront) URL(w *dropin.Wire, l net.Listener, secret bool) string {
	target := &url.URL{Scheme: "http", Host: l.Addr().String()}
	base := &http.Transport{
		DisableCompression: true, ForceAttemptHTTP2: true, ExpectContinueTimeout: time.Second,
		TLSClientConfig: &tls.Config{RootCAs: w.Base.TLSClientConfig.RootCAs},
	}
	s := httptest.NewUnstartedServer(&httputil.ReverseProxy{Transport: base, ErrorLog: quietLog, Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(target)
		p.SetXForwarded()
		p.Out.Host = p.In.Host
	}})
	s.EnableHTTP2, s.Config.ErrorLog = w.H2, quietLog
	if secret {
		target.Scheme = "https"
		s.StartTLS()
	} else {
		s.Start()
	}
	w.Cleanup(func() {
		w.Base.CloseIdleConnections()
		base.CloseIdleConnections()
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}

// A binaryFront is onceproxy: one process in clear and one over TLS, with a route for each of
// many servers, which the client tells apart by a name that it resolves itself. So a row
// needs no process of its own, unless what it tries is the name.
type binaryFront struct {
	dir    string // with the certificate
	mu     sync.Mutex
	plain  *side
	secret *side // over TLS
}

// A side is one of the two processes.
type side struct {
	scheme string
	addr   string // of the process
	free   []net.Listener
	names  map[string]string // by the address of a server
}

// aside are the rows that need a process for each of their servers.
var aside = map[string]bool{
	"Request.Host overrides the URL's":                         true,
	"Authorization stays with its host":                        true,
	"a proxy is asked to CONNECT for https":                    true,
	"an unknown certificate authority is an error of its type": true,
	"resp tells length, coding, protocol and TLS":              true,
}

// routes is how many servers the rows have on one side.
const routes = 160

func newBinaryFront(t *testing.T) *binaryFront {
	f := &binaryFront{dir: t.TempDir()}
	writeCertificate(t, f.dir)
	f.plain, f.secret = f.side(t, "http"), f.side(t, "https")
	return f
}

func (f *binaryFront) side(t *testing.T, scheme string) *side {
	s := &side{scheme: scheme, names: map[string]string{}}
	var settings strings.Builder
	for i := range routes {
		l := listenFree(t)
		t.Cleanup(func() { l.Close() })
		s.free = append(s.free, l)
		name := fmt.Sprintf("server%d.example.com", i)
		s.names[l.Addr().String()] = name
		settings.WriteString(f.route(scheme, l.Addr(), "host: "+name))
	}
	s.addr = strings.TrimPrefix(start(t, "-config", write(t, f.head(scheme)+settings.String())).URL, scheme+"://")
	return s
}

// head and route are parts of a configuration file.
func (f *binaryFront) head(scheme string) string {
	tls := ""
	if scheme == "https" {
		tls = fmt.Sprintf("tls: {cert: %[1]s/cert.pem, key: %[1]s/key.pem}\n", f.dir)
	}
	return "store: \"memory:\"\n" + tls + "routes:\n"
}

func (f *binaryFront) route(scheme string, upstream net.Addr, more string) string {
	if scheme == "https" {
		more += ", upstream_ca: " + f.dir + "/cert.pem"
	}
	return fmt.Sprintf("- {upstream: \"%s://%s\", preserve_host: true, %s}\n", scheme, upstream, more)
}

// Listen implements dropin.Front.
func (f *binaryFront) Listen(w *dropin.Wire) net.Listener {
	if aside[w.Row.Does] {
		return listenFree(w)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.plain
	if w.H2 {
		s = f.secret
	}
	if len(s.free) == 0 {
		w.Fatal("the rows have more servers than onceproxy has routes here")
	}
	l := s.free[0]
	s.free = s.free[1:]
	return l
}

// URL implements dropin.Front.
func (f *binaryFront) URL(w *dropin.Wire, l net.Listener, secret bool) string {
	s := f.plain
	if secret {
		s = f.secret
	}
	if aside[w.Row.Does] {
		return start(w, "-config", write(w, f.head(s.scheme)+f.route(s.scheme, l.Addr(), "name: default"))).URL
	}
	_, port, _ := net.SplitHostPort(s.addr)
	dial := w.Base.DialContext
	w.Base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if _, p, _ := net.SplitHostPort(addr); p == port {
			addr = s.addr
		}
		return dial(ctx, network, addr)
	}
	return s.scheme + "://" + net.JoinHostPort(s.names[l.Addr().String()], port)
}

func listenFree(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// writeCertificate writes the certificate that all servers of httptest have, and its key.
func writeCertificate(t testing.TB, dir string) {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	cert := s.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
