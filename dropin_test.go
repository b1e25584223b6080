package oncehttp_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// TestDropIn holds that a client that puts &oncehttp.Transport{} in front of its
// transport loses nothing that net/http gave it. Every row runs against the bare
// transport too, which proves the row.
func TestDropIn(t *testing.T) {
	for _, who := range []string{"bare", "oncehttp"} {
		t.Run(who, func(t *testing.T) {
			for _, proto := range []string{"http1", "http2"} {
				t.Run(proto, func(t *testing.T) {
					for _, row := range plainHTTP {
						h2 := proto == "http2"
						if h2 && row.on == http1 || !h2 && row.on == http2 {
							continue
						}
						t.Run(row.does, func(t *testing.T) {
							t.Parallel()
							w := &wire{h2: h2, once: who == "oncehttp"}
							if row.when == virtual {
								synctest.Test(t, func(t *testing.T) { w.run(t, true, row.run) })
							} else {
								w.run(t, false, row.run)
							}
						})
					}
				})
			}
		})
	}
}

func TestDropInCoversFortyBehaviours(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range plainHTTP {
		if seen[row.does] {
			t.Errorf("two rows are called %q", row.does)
		}
		seen[row.does] = true
	}
	if len(seen) < 40 {
		t.Errorf("got %d rows, want 40 or more", len(seen))
	}
}

func TestTheZeroValueIsReady(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(report))
	defer srv.Close()
	client := &http.Client{Transport: &oncehttp.Transport{}}
	resp, err := client.Post(srv.URL, "text/plain", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	var got told
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || got.Body != "hello" {
		t.Errorf("got %q, %v, want hello", got.Body, err)
	}
	resp.Body.Close()
	client.CloseIdleConnections() // of http.DefaultTransport
	(&oncehttp.Transport{Base: noBase{}}).CloseIdleConnections()
}

type protocols int

const (
	both protocols = iota
	http1
	http2
)

type clock int

const (
	// real: over TCP, or TLS for HTTP/2.
	real clock = iota
	// virtual: over a memNet in a bubble, for what takes time or would be retried.
	virtual
)

// A wire is a client, a network and the servers of one row.
type wire struct {
	*testing.T
	h2, once bool
	net      *memNet         // nil: TCP
	base     *http.Transport // may be configured until the first call
	client   *http.Client

	opened, closed atomic.Int32 // server-side connections
	servers        int
	stop           func(context.Context) error // the latest server's graceful shutdown
}

func (w *wire) run(t *testing.T, bubble bool, row func(*wire)) {
	w.T = t
	if bubble {
		w.net = newMemNet()
		w.base = w.net.Transport(t, w.h2)
	} else {
		w.base = http.DefaultTransport.(*http.Transport).Clone()
		w.base.Proxy = nil
		w.base.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
		t.Cleanup(w.base.CloseIdleConnections)
	}
	w.client = &http.Client{Transport: w.over(w.base)}
	row(w)
}

// over is the transport under test over base.
func (w *wire) over(base http.RoundTripper) http.RoundTripper {
	if w.once {
		return &oncehttp.Transport{Base: base, Logger: quiet()}
	}
	return base
}

// serve runs h on a fresh server and returns its URL.
func (w *wire) serve(h http.HandlerFunc) string {
	w.Helper()
	w.servers++
	if w.net != nil {
		host := fmt.Sprintf("server%d.example", w.servers)
		_, srv := w.net.serve(w, host, h)
		w.stop = srv.Shutdown
		return "http://" + host
	}
	srv := httptest.NewUnstartedServer(h)
	w.watch(srv)
	if w.h2 {
		srv.EnableHTTP2 = true
		w.startTLS(srv)
	} else {
		srv.Start()
	}
	return srv.URL
}

// serveTLS is serve over TLS whatever the protocol.
func (w *wire) serveTLS(h http.HandlerFunc) string {
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = w.h2
	w.watch(srv)
	w.startTLS(srv)
	return srv.URL
}

func (w *wire) startTLS(srv *httptest.Server) {
	srv.StartTLS()
	w.base.TLSClientConfig.RootCAs.AddCert(srv.Certificate())
}

func (w *wire) watch(srv *httptest.Server) {
	srv.Config.ErrorLog = quietLog
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			w.opened.Add(1)
		case http.StateClosed, http.StateHijacked:
			w.closed.Add(1)
		}
	}
	w.stop = srv.Config.Shutdown
	w.Cleanup(func() {
		w.base.CloseIdleConnections()
		srv.CloseClientConnections()
		srv.Close()
	})
}

// serveRaw answers each connection with answer, after it has read a request.
func (w *wire) serveRaw(answer func(conn net.Conn, r *http.Request, head string)) string {
	var l net.Listener
	var err error
	w.servers++
	addr := fmt.Sprintf("raw%d.example:80", w.servers)
	if w.net != nil {
		l, err = w.net.Listen(addr)
	} else if l, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
		addr = l.Addr().String()
	}
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				var head bytes.Buffer
				r, err := http.ReadRequest(bufio.NewReader(io.TeeReader(conn, &head)))
				if err == nil {
					answer(conn, r, head.String())
				}
			}()
		}
	}()
	return "http://" + addr
}

func (w *wire) request(method, url string, body io.Reader) *http.Request {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, url, body)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *wire) do(r *http.Request) *http.Response {
	w.Helper()
	resp, err := w.client.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (w *wire) get(url string) *http.Response {
	w.Helper()
	return w.do(w.request("GET", url, nil))
}

// fails sends r and returns the error that must come of it.
func (w *wire) fails(r *http.Request) error {
	w.Helper()
	resp, err := w.client.Do(r)
	if err == nil {
		resp.Body.Close()
		w.Fatalf("got %s, want an error", resp.Status)
	}
	if resp != nil {
		w.Errorf("got a response (%s) and an error (%v), want one of them", resp.Status, err)
	}
	return err
}

// tells sends r to a server of report and returns what it saw.
func (w *wire) tells(r *http.Request) told {
	w.Helper()
	resp := w.do(r)
	var s told
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		w.Fatal(err)
	}
	return s
}

// A told is a request as its handler saw it.
type told struct {
	Method, Proto, Host, URI string
	Length                   int64
	Coding                   []string
	Header, Trailer          http.Header
	Body                     string
	BodyError                string
}

func report(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	s := told{
		Method: r.Method, Proto: r.Proto, Host: r.Host, URI: r.RequestURI, Length: r.ContentLength,
		Coding: r.TransferEncoding, Header: r.Header, Trailer: r.Trailer, Body: string(b),
	}
	if err != nil {
		s.BodyError = err.Error()
	}
	json.NewEncoder(w).Encode(s)
}

// text answers with s.
func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, s) }
}

// hang answers when the client has gone.
func hang(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func (w *wire) equal(what string, got, want any) {
	w.Helper()
	if !reflect.DeepEqual(got, want) {
		w.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// eventually waits for what another goroutine does soon.
func (w *wire) eventually(what string, ok func() bool) {
	w.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	w.Errorf("not within 5s: %s", what)
}

// A tracked body counts how it is used.
type tracked struct {
	r      io.Reader
	reads  atomic.Int32
	closes atomic.Int32
}

func (b *tracked) Read(p []byte) (int, error) { b.reads.Add(1); return b.r.Read(p) }
func (b *tracked) Close() error               { b.closes.Add(1); return nil }

var errBroken = errors.New("the disk is broken")

// brokenAfter reads s and then fails with errBroken.
func brokenAfter(s string) io.Reader {
	return io.MultiReader(strings.NewReader(s), readerFunc(func([]byte) (int, error) { return 0, errBroken }))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// noise is n bytes that do not compress, and their digest.
func noise(n int) ([]byte, string) {
	b := make([]byte, n)
	x := uint64(n)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	sum := sha256.Sum256(b)
	return b, hex.EncodeToString(sum[:])
}

type ctxKey struct{}

// plainHTTP is what a user of net/http relies on.
var plainHTTP = slices.Concat(methodRows, bodyRows, answerRows, codingRows, redirectRows, expectRows,
	traceRows, endRows, poolRows, addressRows, proxyRows, refusalRows, streamRows)

type dropInRow struct {
	does string
	on   protocols
	when clock
	run  func(*wire)
}

var methodRows = []dropInRow{
	{"every method arrives as it was sent", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set("Got", r.Method) })
		for _, m := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY", "PROPFIND"} {
			w.equal("method", w.do(w.request(m, url, nil)).Header.Get("Got"), m)
		}
	}},
	{"an empty method is GET", both, real, func(w *wire) {
		r := w.request("GET", w.serve(report), nil)
		r.Method = ""
		w.equal("method", w.tells(r).Method, "GET")
	}},
	{"Client.Get, Head, Post and PostForm work", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Got", r.Method+"|"+r.Header.Get("Content-Type")+"|"+r.FormValue("a"))
		})
		resp, err := w.client.Get(url)
		if err != nil {
			w.Fatal(err)
		}
		resp.Body.Close()
		w.equal("Get", resp.Header.Get("Got"), "GET||")
		if resp, err = w.client.Head(url); err != nil {
			w.Fatal(err)
		}
		resp.Body.Close()
		w.equal("Head", resp.Header.Get("Got"), "HEAD||")
		if resp, err = w.client.Post(url, "text/plain", strings.NewReader("x")); err != nil {
			w.Fatal(err)
		}
		resp.Body.Close()
		w.equal("Post", resp.Header.Get("Got"), "POST|text/plain|")
		if resp, err = w.client.PostForm(url, map[string][]string{"a": {"1"}}); err != nil {
			w.Fatal(err)
		}
		resp.Body.Close()
		w.equal("PostForm", resp.Header.Get("Got"), "POST|application/x-www-form-urlencoded|1")
	}},
}

var bodyRows = []dropInRow{
	{"a nil body has length 0 and no coding", both, real, func(w *wire) {
		for _, m := range []string{"POST", "PUT", "DELETE", "GET"} {
			got := w.tells(w.request(m, w.serve(report), nil))
			w.equal(m+" length", got.Length, int64(0))
			w.equal(m+" coding", got.Coding, []string(nil))
		}
	}},
	{"NoBody has length 0 and no coding", both, real, func(w *wire) {
		got := w.tells(w.request("POST", w.serve(report), http.NoBody))
		w.equal("length", got.Length, int64(0))
		w.equal("coding", got.Coding, []string(nil))
	}},
	{"a body with GetBody is sent with its length", both, real, func(w *wire) {
		for _, body := range []io.Reader{bytes.NewReader([]byte("hello")), strings.NewReader("hello"), bytes.NewBufferString("hello")} {
			got := w.tells(w.request("POST", w.serve(report), body))
			w.equal("body", got.Body, "hello")
			w.equal("length", got.Length, int64(5))
			w.equal("coding", got.Coding, []string(nil))
		}
	}},
	{"a body without GetBody is sent with the length it was given", both, real, func(w *wire) {
		r := w.request("PUT", w.serve(report), onlyReader("hello"))
		r.ContentLength = 5
		got := w.tells(r)
		w.equal("body", got.Body, "hello")
		w.equal("length", got.Length, int64(5))
	}},
	{"a body of unknown length is sent without one", both, real, func(w *wire) {
		for _, length := range []int64{0, -1} {
			r := w.request("POST", w.serve(report), onlyReader("hello"))
			r.ContentLength = length
			got := w.tells(r)
			w.equal("body", got.Body, "hello")
			w.equal("length", got.Length, int64(-1))
			if !w.h2 {
				w.equal("coding", got.Coding, []string{"chunked"})
			}
		}
	}},
	{"an empty reader with length 0 sends an empty body", both, real, func(w *wire) {
		for _, m := range []string{"POST", "GET"} {
			got := w.tells(w.request(m, w.serve(report), onlyReader("")))
			w.equal(m+" body", got.Body, "")
			w.equal(m+" error", got.BodyError, "")
		}
	}},
	{"an empty reader of length -1 sends an empty body", both, real, func(w *wire) {
		r := w.request("POST", w.serve(report), onlyReader(""))
		r.ContentLength = -1
		got := w.tells(r)
		w.equal("body", got.Body, "")
		w.equal("error", got.BodyError, "")
	}},
	{"a GET may carry a body", both, real, func(w *wire) {
		w.equal("body", w.tells(w.request("GET", w.serve(report), strings.NewReader("query"))).Body, "query")
	}},
	{"a chunked body asked for by TransferEncoding is chunked", http1, real, func(w *wire) {
		r := w.request("POST", w.serve(report), strings.NewReader("hello"))
		r.TransferEncoding = []string{"chunked"}
		got := w.tells(r)
		w.equal("body", got.Body, "hello")
		w.equal("coding", got.Coding, []string{"chunked"})
		w.equal("length", got.Length, int64(-1))
	}},
	{"a body is not read ahead of what is sent", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(rw)
			rc.EnableFullDuplex()
			rw.WriteHeader(200)
			rc.Flush()
			in := bufio.NewReader(r.Body)
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				io.WriteString(rw, "got "+line)
				rc.Flush()
			}
		})
		pr, pw := io.Pipe()
		resp := w.do(w.request("POST", url, pr))
		out := bufio.NewReader(resp.Body)
		for _, line := range []string{"one\n", "two\n", "three\n"} {
			io.WriteString(pw, line) // the next line is not written before this one is answered
			got, err := out.ReadString('\n')
			if err != nil {
				w.Fatal(err)
			}
			w.equal("line", got, "got "+line)
		}
		pw.Close()
		if _, err := out.ReadByte(); err != io.EOF {
			w.Errorf("end: got %v, want EOF", err)
		}
	}},
	{"a body longer than its length is an error, at once", both, virtual, func(w *wire) {
		body := &tracked{r: strings.NewReader("hello")}
		r := w.request("POST", w.serve(hang), body)
		r.ContentLength = 3
		start := time.Now()
		err := w.fails(r)
		want := "http: ContentLength=3 with Body length 5"
		if w.h2 {
			want = "http2: request body larger than specified content length"
		}
		if !strings.Contains(err.Error(), want) {
			w.Errorf("error: got %q, want %q in it", err, want)
		}
		w.equal("after", time.Since(start), time.Duration(0))
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
	}},
	{"a body shorter than its length is an error, at once", http1, virtual, func(w *wire) {
		var whole atomic.Int32
		body := &tracked{r: strings.NewReader("hello")}
		r := w.request("POST", w.serve(func(_ http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err == nil {
				whole.Add(1)
			}
		}), body)
		r.ContentLength = 10
		start := time.Now()
		w.fails(r) // which error it is depends on a race in net/http
		w.equal("after", time.Since(start), time.Duration(0))
		w.equal("whole requests", whole.Load(), int32(0))
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
	}},
	{"an error of the body comes back and cuts the request short", both, real, func(w *wire) {
		var whole, calls atomic.Int32
		body := &tracked{r: brokenAfter("hello")}
		r := w.request("POST", w.serve(func(_ http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			if _, err := io.Copy(io.Discard, r.Body); err == nil {
				whole.Add(1)
			}
		}), body)
		if err := w.fails(r); !errors.Is(err, errBroken) {
			w.Errorf("error: got %v, want %v in it", err, errBroken)
		}
		w.equal("whole requests", whole.Load(), int32(0))
		if calls.Load() > 1 {
			w.Errorf("calls: got %d, want at most 1", calls.Load())
		}
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
	}},
	{"the body is closed once it is sent", both, real, func(w *wire) {
		body := &tracked{r: strings.NewReader("hello")}
		w.equal("body", w.tells(w.request("POST", w.serve(report), body)).Body, "hello")
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
	}},
	{"ten MiB go up and down intact", both, real, func(w *wire) {
		b, sum := noise(10 << 20)
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			h := sha256.New()
			io.Copy(h, r.Body)
			rw.Header().Set("Got", hex.EncodeToString(h.Sum(nil)))
			rw.Write(b)
		})
		for _, body := range []io.Reader{bytes.NewReader(b), struct{ io.Reader }{bytes.NewReader(b)}} {
			resp := w.do(w.request("POST", url, body))
			w.equal("sent", resp.Header.Get("Got"), sum)
			h := sha256.New()
			if _, err := io.Copy(h, resp.Body); err != nil {
				w.Fatal(err)
			}
			w.equal("received", hex.EncodeToString(h.Sum(nil)), sum)
		}
	}},
	{"an answer may come before the body is sent", http1, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(413) })
		pr, pw := io.Pipe()
		body := &tracked{r: pr}
		go pw.Write([]byte("hello"))
		r := w.request("POST", url, body)
		r.ContentLength = 10 << 20
		resp := w.do(r)
		w.equal("status", resp.StatusCode, 413)
		resp.Body.Close()
		pw.Close() // net/http closes the body once its last Read has returned
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
	}},
	{"trailers of the request may be set while the body is read", both, real, func(w *wire) {
		r := w.request("POST", w.serve(report), nil)
		r.Trailer = http.Header{"X-Sum": nil}
		r.ContentLength = -1
		r.Body = io.NopCloser(io.MultiReader(strings.NewReader("hello"), readerFunc(func([]byte) (int, error) {
			r.Trailer.Set("X-Sum", "42")
			return 0, io.EOF
		})))
		got := w.tells(r)
		w.equal("body", got.Body, "hello")
		w.equal("trailer", got.Trailer.Get("X-Sum"), "42")
	}},
}

var answerRows = []dropInRow{
	{"HEAD has headers, the length, and no body", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Length", "1234")
			rw.Header().Set("Etag", `"v1"`)
		})
		resp := w.do(w.request("HEAD", url, nil))
		w.equal("length", resp.ContentLength, int64(1234))
		w.equal("etag", resp.Header.Get("Etag"), `"v1"`)
		w.equal("body", bodyOf(w, resp), "")
	}},
	{"204 has no body", both, real, func(w *wire) {
		resp := w.do(w.request("DELETE", w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(204) }), nil))
		w.equal("status", resp.StatusCode, 204)
		w.equal("length", resp.ContentLength, int64(0))
		w.equal("body", bodyOf(w, resp), "")
	}},
	{"304 has its headers and no body", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Etag", r.Header.Get("If-None-Match"))
			rw.WriteHeader(304)
		})
		r := w.request("GET", url, nil)
		r.Header.Set("If-None-Match", `"v1"`)
		resp := w.do(r)
		w.equal("status", resp.StatusCode, 304)
		w.equal("etag", resp.Header.Get("Etag"), `"v1"`)
		w.equal("body", bodyOf(w, resp), "")
	}},
	{"4xx and 5xx are answers, not errors", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			var code int
			fmt.Sscan(r.URL.Query().Get("code"), &code)
			rw.Header().Set("Retry-After", "3600") // so that nobody waits for it here
			rw.WriteHeader(code)
			io.WriteString(rw, "why")
		})
		for _, code := range []int{400, 401, 403, 404, 405, 410, 412, 422, 451, 501, 503} {
			resp := w.get(fmt.Sprint(url, "?code=", code))
			w.equal("status", resp.StatusCode, code)
			w.equal("body", bodyOf(w, resp), "why")
		}
	}},
	{"101 hands over a body that can be written", http1, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			conn, buf, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				w.Error(err)
				return
			}
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			io.Copy(conn, buf)
		})
		r := w.request("GET", url, nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "echo")
		resp := w.do(r)
		w.equal("status", resp.StatusCode, 101)
		rwc, ok := resp.Body.(io.ReadWriteCloser)
		if !ok {
			w.Fatalf("body: got a %T, want an io.ReadWriteCloser", resp.Body)
		}
		for _, s := range []string{"ping", "pong"} {
			io.WriteString(rwc, s)
			b := make([]byte, len(s))
			if _, err := io.ReadFull(rwc, b); err != nil {
				w.Fatal(err)
			}
			w.equal("echo", string(b), s)
		}
		rwc.Close()
		if _, err := rwc.Write([]byte("x")); err == nil {
			w.Error("write after Close: got no error")
		}
	}},
	{"a connection that was handed over lives on", http1, virtual, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			conn, buf, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				w.Error(err)
				return
			}
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			io.Copy(conn, buf)
		})
		r := w.request("GET", url, nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "echo")
		rwc := w.do(r).Body.(io.ReadWriteCloser)
		defer rwc.Close()
		for range 3 {
			time.Sleep(time.Hour)
			io.WriteString(rwc, "ping")
			b := make([]byte, 4)
			if _, err := io.ReadFull(rwc, b); err != nil {
				w.Fatal(err)
			}
		}
	}},
	{"103 early hints reach Got1xxResponse", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			for _, l := range []string{"</a.css>", "</b.js>"} {
				rw.Header().Set("Link", l)
				rw.WriteHeader(103)
			}
			rw.Header().Del("Link")
			io.WriteString(rw, "done")
		})
		var hints []string
		r := w.request("GET", url, nil)
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				hints = append(hints, fmt.Sprint(code, " ", http.Header(h).Get("Link")))
				return nil
			},
		}))
		resp := w.do(r)
		w.equal("hints", hints, []string{"103 </a.css>", "103 </b.js>"})
		w.equal("status", resp.StatusCode, 200)
		w.equal("body", bodyOf(w, resp), "done")
	}},
	{"trailers of the answer arrive, announced or not", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Trailer", "X-Sum")
			io.WriteString(rw, "hello")
			rw.Header().Set("X-Sum", "42")
			rw.Header().Set(http.TrailerPrefix+"X-Late", "yes")
		})
		resp := w.get(url)
		if _, ok := resp.Trailer["X-Sum"]; !ok {
			w.Error("the trailer is not announced before the body is read")
		}
		w.equal("body", bodyOf(w, resp), "hello")
		w.equal("announced", resp.Trailer.Get("X-Sum"), "42")
		w.equal("unannounced", resp.Trailer.Get("X-Late"), "yes")
	}},
	{"a header with many values keeps them apart, in order", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			for _, v := range r.Header["X-Many"] {
				rw.Header().Add("X-Back", v)
			}
		})
		r := w.request("GET", url, nil)
		r.Header["X-Many"] = []string{"a, b", "", "c"}
		w.equal("values", w.do(r).Header["X-Back"], []string{"a, b", "", "c"})
	}},
	{"a header name that is not canonical is sent as it stands", http1, real, func(w *wire) {
		heads := make(chan string, 1)
		url := w.serveRaw(func(conn net.Conn, _ *http.Request, head string) {
			heads <- head
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		})
		r := w.request("GET", url, nil)
		r.Header["x-lower-CASE"] = []string{"v"}
		w.do(r)
		if head := <-heads; !strings.Contains(head, "\r\nx-lower-CASE: v\r\n") {
			w.Errorf("head: got %q, want x-lower-CASE in it", head)
		}
	}},
	{"User-Agent has a default and can be left out", both, real, func(w *wire) {
		url := w.serve(report)
		if got := w.tells(w.request("GET", url, nil)).Header.Get("User-Agent"); !strings.HasPrefix(got, "Go-http-client/") {
			w.Errorf("default: got %q, want Go-http-client/…", got)
		}
		r := w.request("GET", url, nil)
		r.Header["User-Agent"] = []string{""}
		w.equal("left out", w.tells(r).Header["User-Agent"], []string(nil))
	}},
	{"half a MiB of response headers is accepted", both, real, func(w *wire) {
		big := strings.Repeat("x", 512<<10)
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set("X-Big", big) })
		w.equal("length", len(w.get(url).Header.Get("X-Big")), len(big))
	}},
	{"response headers over MaxResponseHeaderBytes are an error", both, virtual, func(w *wire) {
		w.base.MaxResponseHeaderBytes = 64 << 10
		big := strings.Repeat("x", 512<<10)
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set("X-Big", big) })
		if err := w.fails(w.request("GET", url, nil)); !w.h2 && !strings.Contains(err.Error(), "headers exceeded") {
			w.Errorf("error: got %q, want one that speaks of headers", err)
		}
	}},
	{"a body cut short is an error, not an end", both, real, func(w *wire) {
		resp := w.get(w.serve(func(rw http.ResponseWriter, r *http.Request) { cut(rw, 200) }))
		b, err := io.ReadAll(resp.Body)
		w.equal("what came", string(b), "the first bytes")
		if err == nil || !w.h2 && !errors.Is(err, io.ErrUnexpectedEOF) {
			w.Errorf("error: got %v, want an unexpected EOF", err)
		}
	}},
	{"an HTTP/1.0 answer ends with its connection", http1, real, func(w *wire) {
		url := w.serveRaw(func(conn net.Conn, _ *http.Request, _ string) {
			io.WriteString(conn, "HTTP/1.0 200 Fine\r\nX-A: b\r\n\r\nhello")
		})
		resp := w.get(url)
		w.equal("status", resp.Status, "200 Fine")
		w.equal("proto", resp.Proto, "HTTP/1.0")
		w.equal("length", resp.ContentLength, int64(-1))
		w.equal("close", resp.Close, true)
		w.equal("body", bodyOf(w, resp), "hello")
	}},
	{"a malformed answer is an error", http1, virtual, func(w *wire) {
		url := w.serveRaw(func(conn net.Conn, _ *http.Request, _ string) { io.WriteString(conn, "banana\r\n\r\n") })
		if err := w.fails(w.request("GET", url, nil)); !strings.Contains(err.Error(), "malformed HTTP") {
			w.Errorf("error: got %q, want malformed HTTP", err)
		}
	}},
	{"resp.Request is the request that was sent", both, real, func(w *wire) {
		r := w.request("POST", w.serve(report), strings.NewReader("hello"))
		r.Header.Set("X-A", "b")
		r = r.WithContext(context.WithValue(r.Context(), ctxKey{}, "v"))
		resp, err := w.client.Transport.RoundTrip(r)
		if err != nil {
			w.Fatal(err)
		}
		resp.Body.Close()
		got := resp.Request
		w.equal("method", got.Method, "POST")
		w.equal("URL", got.URL, r.URL)
		w.equal("header", got.Header, r.Header)
		w.equal("length", got.ContentLength, int64(5))
		w.equal("context value", got.Context().Value(ctxKey{}), any("v"))
		if got.Body != r.Body || got.GetBody == nil {
			w.Error("the body is not the caller's")
		}
	}},
	{"resp tells length, coding, protocol and TLS", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/known" {
				rw.Header().Set("Content-Length", "5")
			} else {
				http.NewResponseController(rw).Flush()
			}
			io.WriteString(rw, "hello")
		})
		known, unknown := w.get(url+"/known"), w.get(url+"/unknown")
		w.equal("known length", known.ContentLength, int64(5))
		w.equal("unknown length", unknown.ContentLength, int64(-1))
		if w.h2 {
			w.equal("protocol", known.Proto, "HTTP/2.0")
			if known.TLS == nil || known.TLS.NegotiatedProtocol != "h2" {
				w.Errorf("TLS: got %v, want a state with h2", known.TLS)
			}
			return
		}
		w.equal("protocol", known.Proto, "HTTP/1.1")
		w.equal("coding", unknown.TransferEncoding, []string{"chunked"})
		if known.TLS != nil {
			w.Error("TLS: got a state, want none")
		}
		if resp := w.get(w.serveTLS(text("x"))); resp.TLS == nil {
			w.Error("TLS: got none over https")
		}
	}},
}

var codingRows = []dropInRow{
	{"gzip is asked for and undone", both, real, func(w *wire) {
		resp := w.get(w.serve(gzipped))
		w.equal("Uncompressed", resp.Uncompressed, true)
		w.equal("length", resp.ContentLength, int64(-1))
		w.equal("coding", resp.Header.Get("Content-Encoding"), "")
		w.equal("body", bodyOf(w, resp), "hello, gzip")
	}},
	{"gzip that the caller asked for is left alone", both, real, func(w *wire) {
		r := w.request("GET", w.serve(gzipped), nil)
		r.Header.Set("Accept-Encoding", "gzip")
		resp := w.do(r)
		w.equal("Uncompressed", resp.Uncompressed, false)
		w.equal("coding", resp.Header.Get("Content-Encoding"), "gzip")
		zr, err := gzip.NewReader(resp.Body)
		if err != nil {
			w.Fatal(err)
		}
		b, _ := io.ReadAll(zr)
		w.equal("body", string(b), "hello, gzip")
	}},
	{"DisableCompression asks for nothing", both, real, func(w *wire) {
		w.base.DisableCompression = true
		w.equal("header", w.tells(w.request("GET", w.serve(report), nil)).Header["Accept-Encoding"], []string(nil))
	}},
}

func gzipped(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		http.Error(w, "no gzip", 400)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	zw := gzip.NewWriter(w)
	io.WriteString(zw, "hello, gzip")
	zw.Close()
}

// redirector sets a cookie and sends /from on to /to with the status in ?code.
func redirector(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/from" {
		report(w, r)
		return
	}
	var code int
	fmt.Sscan(r.URL.Query().Get("code"), &code)
	io.Copy(io.Discard, r.Body)
	http.SetCookie(w, &http.Cookie{Name: "hop", Value: "1", Path: "/"})
	w.Header().Set("Location", "/to")
	w.WriteHeader(code)
}

func redirectRow(code int, method, wantMethod, wantBody string) dropInRow {
	does := fmt.Sprintf("a %d answer to %s is followed by %s", code, method, wantMethod)
	return dropInRow{does, both, real, func(w *wire) {
		jar, _ := cookiejar.New(nil)
		w.client.Jar = jar
		url := fmt.Sprint(w.serve(redirector), "/from?code=", code)
		var body io.Reader
		if method != "GET" && method != "HEAD" {
			body = strings.NewReader("hello")
		}
		r := w.request(method, url, body)
		r.Header.Set("X-Kept", "yes")
		if wantMethod == "HEAD" {
			resp := w.do(r)
			w.equal("method", resp.Request.Method, "HEAD")
			w.equal("path", resp.Request.URL.Path, "/to")
			return
		}
		got := w.tells(r)
		w.equal("path", got.URI, "/to")
		w.equal("method", got.Method, wantMethod)
		w.equal("body", got.Body, wantBody)
		w.equal("cookie", got.Header.Get("Cookie"), "hop=1")
		w.equal("header", got.Header.Get("X-Kept"), "yes")
		w.equal("referer", got.Header.Get("Referer"), url)
	}}
}

var redirectRows = []dropInRow{
	redirectRow(301, "GET", "GET", ""),
	redirectRow(301, "POST", "GET", ""),
	redirectRow(302, "POST", "GET", ""),
	redirectRow(302, "HEAD", "HEAD", ""),
	redirectRow(303, "PUT", "GET", ""),
	redirectRow(307, "POST", "POST", "hello"),
	redirectRow(307, "PATCH", "PATCH", "hello"),
	redirectRow(308, "PUT", "PUT", "hello"),
	redirectRow(308, "DELETE", "DELETE", "hello"),
	{"307 without GetBody is handed back", both, real, func(w *wire) {
		resp := w.do(w.request("POST", w.serve(redirector)+"/from?code=307", onlyReader("hello")))
		w.equal("status", resp.StatusCode, 307)
		w.equal("location", resp.Header.Get("Location"), "/to")
	}},
	{"RoundTrip itself follows nothing", both, real, func(w *wire) {
		for _, code := range []int{301, 302, 303, 307, 308} {
			resp, err := w.client.Transport.RoundTrip(w.request("GET", fmt.Sprint(w.serve(redirector), "/from?code=", code), nil))
			if err != nil {
				w.Fatal(err)
			}
			resp.Body.Close()
			w.equal("status", resp.StatusCode, code)
			loc, err := resp.Location()
			if err != nil || loc.Path != "/to" || !loc.IsAbs() {
				w.Errorf("location: got %v, %v, want an absolute …/to", loc, err)
			}
		}
	}},
	{"a malformed Location is an answer to RoundTrip and an error to the client", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Location", "http://[::1")
			rw.WriteHeader(302)
		})
		resp, err := w.client.Transport.RoundTrip(w.request("GET", url, nil))
		if err != nil {
			w.Fatal(err)
		}
		resp.Body.Close()
		w.equal("status", resp.StatusCode, 302)
		resp, err = w.client.Do(w.request("GET", url, nil))
		if err == nil || !strings.Contains(err.Error(), "failed to parse Location header") {
			w.Errorf("client: got %v, want a complaint about Location", err)
		}
		if resp != nil {
			resp.Body.Close()
		}
	}},
	{"a redirect without Location is an answer", both, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(302) })
		w.equal("status", w.get(url).StatusCode, 302)
	}},
	{"the tenth redirect is the last", both, real, func(w *wire) {
		var calls atomic.Int32
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, fmt.Sprint("/", calls.Add(1)), 302)
		})
		resp, err := w.client.Get(url)
		if err == nil || !strings.Contains(err.Error(), "stopped after 10 redirects") {
			w.Errorf("error: got %v, want stopped after 10 redirects", err)
		}
		if resp == nil {
			w.Error("the last answer is missing")
		}
		w.equal("calls", calls.Load(), int32(10))
	}},
	{"ErrUseLastResponse hands back the redirect, its body open", both, real, func(w *wire) {
		w.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		resp := w.get(w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Location", "/to")
			rw.WriteHeader(302)
			io.WriteString(rw, "moved")
		}))
		w.equal("status", resp.StatusCode, 302)
		w.equal("body", bodyOf(w, resp), "moved")
	}},
	{"the request of a redirect knows the answer that caused it", both, real, func(w *wire) {
		resp := w.get(w.serve(redirector) + "/from?code=302")
		if resp.Request.Response == nil || resp.Request.Response.StatusCode != 302 {
			w.Errorf("resp.Request.Response: got %v, want the 302", resp.Request.Response)
		}
	}},
	{"Authorization stays with its host", both, real, func(w *wire) {
		other := w.serve(report)
		u, _ := url.Parse(other)
		target := strings.Replace(other, u.Hostname(), "elsewhere.example", 1)
		if w.net == nil {
			w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				_, port, _ := net.SplitHostPort(addr)
				var d net.Dialer
				return d.DialContext(ctx, network, "127.0.0.1:"+port)
			}
			w.base.TLSClientConfig.InsecureSkipVerify = true // the name is not in the certificate
		}
		from := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, target, 307)
		})
		r := w.request("GET", from, nil)
		r.Header.Set("Authorization", "Bearer secret")
		got := w.tells(r)
		w.equal("Authorization", got.Header.Get("Authorization"), "")
		if !strings.HasPrefix(got.Host, "elsewhere.example") {
			w.Errorf("host: got %q, want elsewhere.example", got.Host)
		}
	}},
	{"cookies are sent and come back", both, real, func(w *wire) {
		jar, _ := cookiejar.New(nil)
		w.client.Jar = jar
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Add("Set-Cookie", "a=1")
			rw.Header().Add("Set-Cookie", "b=2; HttpOnly")
			rw.Header().Set("Got", r.Header.Get("Cookie"))
		})
		r := w.request("GET", url, nil)
		r.AddCookie(&http.Cookie{Name: "mine", Value: "0"})
		resp := w.do(r)
		w.equal("sent", resp.Header.Get("Got"), "mine=0")
		w.equal("received", len(resp.Cookies()), 2)
		w.equal("sent back", w.get(url).Header.Get("Got"), "a=1; b=2")
	}},
}

var expectRows = []dropInRow{
	{"with Expect: 100-continue the body waits for the 100", both, real, func(w *wire) {
		w.base.ExpectContinueTimeout = time.Minute
		var waited, got atomic.Int32
		body := &tracked{r: strings.NewReader("hello")}
		r := w.request("POST", w.serve(func(rw http.ResponseWriter, r *http.Request) {
			if n := body.reads.Load(); n != 0 {
				w.Errorf("reads before the 100: got %d, want 0", n)
			}
			report(rw, r)
		}), body)
		r.ContentLength = 5
		r.Header.Set("Expect", "100-continue")
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Wait100Continue: func() { waited.Add(1) },
			Got100Continue:  func() { got.Add(1) },
		}))
		w.equal("body", w.tells(r).Body, "hello")
		w.equal("waited for the 100", waited.Load(), int32(1))
		w.equal("got the 100", got.Load(), int32(1))
	}},
	{"with Expect: 100-continue refused the body is never read", both, real, func(w *wire) {
		w.base.ExpectContinueTimeout = time.Minute
		body := &tracked{r: strings.NewReader("hello")}
		r := w.request("POST", w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(417) }), body)
		r.ContentLength = 5
		r.Header.Set("Expect", "100-continue")
		w.equal("status", w.do(r).StatusCode, 417)
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
		w.equal("reads", body.reads.Load(), int32(0))
	}},
	{"with Expect: 100-continue unanswered the body goes after ExpectContinueTimeout", http1, virtual, func(w *wire) {
		w.base.ExpectContinueTimeout = 3 * time.Second
		start := time.Now()
		url := w.serveRaw(func(conn net.Conn, r *http.Request, _ string) {
			b, _ := io.ReadAll(r.Body)
			w.equal("wait", time.Since(start), 3*time.Second)
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
		})
		r := w.request("POST", url, strings.NewReader("hello"))
		r.Header.Set("Expect", "100-continue")
		w.equal("body", bodyOf(w, w.do(r)), "hello")
	}},
}

var traceRows = []dropInRow{
	{"context values reach Base, the dialer and the hooks", both, real, func(w *wire) {
		var inBase, inDial, hooked atomic.Bool
		dial := w.base.DialContext
		w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			inDial.Store(ctx.Value(ctxKey{}) == "v")
			return dial(ctx, network, addr)
		}
		w.client.Transport = w.over(roundTrip(func(r *http.Request) (*http.Response, error) {
			inBase.Store(r.Context().Value(ctxKey{}) == "v")
			return w.base.RoundTrip(r)
		}))
		r := w.request("GET", w.serve(text("x")), nil)
		ctx := context.WithValue(r.Context(), ctxKey{}, "v")
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { hooked.Store(true) }})
		w.do(r.WithContext(ctx))
		w.equal("Base", inBase.Load(), true)
		w.equal("dialer", inDial.Load(), true)
		w.equal("hook", hooked.Load(), true)
	}},
	{"httptrace hooks run once each, in order", both, real, func(w *wire) {
		var mu sync.Mutex
		var order []string
		saw := func(s string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, s)
		}
		r := w.request("POST", w.serve(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }), strings.NewReader("x"))
		trace := &httptrace.ClientTrace{
			GetConn:              func(string) { saw("GetConn") },
			ConnectStart:         func(string, string) { saw("ConnectStart") },
			ConnectDone:          func(string, string, error) { saw("ConnectDone") },
			GotConn:              func(httptrace.GotConnInfo) { saw("GotConn") },
			WroteHeaders:         func() { saw("WroteHeaders") },
			GotFirstResponseByte: func() { saw("GotFirstResponseByte") },
		}
		want := []string{"GetConn", "ConnectStart", "ConnectDone", "GotConn", "WroteHeaders", "GotFirstResponseByte"}
		if w.h2 {
			trace.TLSHandshakeStart = func() { saw("TLSHandshakeStart") }
			trace.TLSHandshakeDone = func(tls.ConnectionState, error) { saw("TLSHandshakeDone") }
			want = slices.Insert(want, 3, "TLSHandshakeStart", "TLSHandshakeDone")
		}
		w.do(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
		mu.Lock()
		defer mu.Unlock()
		w.equal("order", order, want)
	}},
	{"two traces in one context both run", both, real, func(w *wire) {
		var first, second atomic.Int32
		r := w.request("GET", w.serve(text("x")), nil)
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { first.Add(1) }})
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { second.Add(1) }})
		w.do(r.WithContext(ctx))
		w.equal("first", first.Load(), int32(1))
		w.equal("second", second.Load(), int32(1))
	}},
	{"WroteRequest carries the error of the body", http1, real, func(w *wire) {
		errs := make(chan error, 1)
		r := w.request("POST", w.serve(report), brokenAfter("hello"))
		w.fails(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			WroteRequest: func(i httptrace.WroteRequestInfo) { errs <- i.Err },
		})))
		if err := <-errs; err == nil || !strings.Contains(err.Error(), errBroken.Error()) { // no Unwrap there
			w.Errorf("error: got %v, want %v", err, errBroken)
		}
	}},
}

var endRows = []dropInRow{
	{"Client.Timeout ends the wait for headers with a timeout", both, virtual, func(w *wire) {
		w.client.Timeout = 5 * time.Second
		start := time.Now()
		err := w.fails(w.request("GET", w.serve(hang), nil))
		w.equal("after", time.Since(start), 5*time.Second)
		w.isTimeout(err)
	}},
	{"Client.Timeout ends the body with a timeout", both, virtual, func(w *wire) {
		w.client.Timeout = 5 * time.Second
		start := time.Now()
		resp := w.get(w.serve(func(rw http.ResponseWriter, r *http.Request) {
			io.WriteString(rw, "hello")
			http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		}))
		b, err := io.ReadAll(resp.Body)
		w.equal("what came", string(b), "hello")
		w.equal("after", time.Since(start), 5*time.Second)
		w.isTimeout(err)
	}},
	{"a deadline in the context ends the call with a timeout", both, virtual, func(w *wire) {
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		err := w.fails(w.request("POST", w.serve(hang), strings.NewReader("x")).WithContext(ctx))
		w.equal("after", time.Since(start), 5*time.Second)
		w.isTimeout(err)
	}},
	{"a context that is already cancelled sends nothing", both, real, func(w *wire) {
		var calls atomic.Int32
		body := &tracked{r: strings.NewReader("x")}
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		url := w.serve(func(http.ResponseWriter, *http.Request) { calls.Add(1) })
		if err := w.fails(w.request("POST", url, body).WithContext(ctx)); !errors.Is(err, context.Canceled) {
			w.Errorf("error: got %v, want context.Canceled", err)
		}
		w.equal("calls", calls.Load(), int32(0))
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
	}},
	{"cancelling ends the wait for headers, here and at the server", both, real, func(w *wire) {
		arrived, gone := make(chan bool), make(chan bool)
		url := w.serve(func(_ http.ResponseWriter, r *http.Request) {
			arrived <- true
			<-r.Context().Done()
			close(gone)
		})
		ctx, cancel := context.WithCancel(w.Context())
		go func() {
			<-arrived
			cancel()
		}()
		if err := w.fails(w.request("GET", url, nil).WithContext(ctx)); !errors.Is(err, context.Canceled) {
			w.Errorf("error: got %v, want context.Canceled", err)
		}
		<-gone
	}},
	{"cancelling ends the body", both, real, func(w *wire) {
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		resp := w.do(w.request("GET", w.serve(func(rw http.ResponseWriter, r *http.Request) {
			io.WriteString(rw, "hello")
			http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		}), nil).WithContext(ctx))
		b := make([]byte, 5)
		if _, err := io.ReadFull(resp.Body, b); err != nil {
			w.Fatal(err)
		}
		cancel()
		if _, err := resp.Body.Read(b); !errors.Is(err, context.Canceled) {
			w.Errorf("error: got %v, want context.Canceled", err)
		}
	}},
	{"the cause of a cancellation comes back", http1, real, func(w *wire) {
		cause := errors.New("the user closed the tab")
		arrived := make(chan bool)
		ctx, cancel := context.WithCancelCause(w.Context())
		go func() {
			<-arrived
			cancel(cause)
		}()
		url := w.serve(func(_ http.ResponseWriter, r *http.Request) {
			arrived <- true
			<-r.Context().Done()
		})
		if err := w.fails(w.request("GET", url, nil).WithContext(ctx)); !errors.Is(err, cause) {
			w.Errorf("error: got %v, want the cause", err)
		}
	}},
	{"Request.Cancel ends the call", both, real, func(w *wire) {
		cancel := make(chan struct{})
		r := w.request("GET", w.serve(func(_ http.ResponseWriter, r *http.Request) {
			close(cancel)
			<-r.Context().Done()
		}), nil)
		r.Cancel = cancel //lint:ignore SA1019 deprecated, and still honoured
		w.fails(r)
	}},
	{"ResponseHeaderTimeout of Base is a timeout", both, virtual, func(w *wire) {
		w.base.ResponseHeaderTimeout = 5 * time.Second
		err := w.fails(w.request("GET", w.serve(hang), nil))
		var t interface{ Timeout() bool }
		if !errors.As(err, &t) || !t.Timeout() {
			w.Errorf("error: got %v, want a timeout", err)
		}
		if !strings.Contains(err.Error(), "timeout awaiting response headers") {
			w.Errorf("error: got %q, want what the transport said in it", err)
		}
	}},
	{"the error of a call names method and URL once", both, virtual, func(w *wire) {
		w.serve(text("x"))
		err := w.fails(w.request("GET", "http://nobody.example/path", nil))
		var ue *url.Error
		if !errors.As(err, &ue) || ue.Op != "Get" || ue.URL != "http://nobody.example/path" {
			w.Errorf("error: got %#v, want a *url.Error of Get and the URL", err)
		}
		if n := strings.Count(err.Error(), `Get "`); n != 1 {
			w.Errorf(`error: got %q, want Get "…" once in it`, err)
		}
	}},
	{"a refused connection is ECONNREFUSED", both, virtual, func(w *wire) {
		err := w.fails(w.request("GET", "http://nobody.example/", nil))
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" || !errors.Is(err, syscall.ECONNREFUSED) {
			w.Errorf("error: got %v, want a dial error of ECONNREFUSED", err)
		}
	}},
	{"a name that does not exist is a DNSError", both, virtual, func(w *wire) {
		w.base.DialContext = func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "nobody.example", IsNotFound: true}}
		}
		var dns *net.DNSError
		if err := w.fails(w.request("GET", "http://nobody.example/", nil)); !errors.As(err, &dns) || !dns.IsNotFound {
			w.Errorf("error: got %v, want a DNSError", err)
		}
	}},
	{"an unknown certificate authority is an error of its type", both, real, func(w *wire) {
		url := w.serveTLS(text("x"))
		w.base.TLSClientConfig.RootCAs = x509.NewCertPool()
		var unknown x509.UnknownAuthorityError
		if err := w.fails(w.request("GET", url, nil)); !errors.As(err, &unknown) {
			w.Errorf("error: got %v, want an x509.UnknownAuthorityError", err)
		}
	}},
}

// isTimeout holds err to all the ways in which programs ask for a timeout.
func (w *wire) isTimeout(err error) {
	w.Helper()
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		w.Errorf("error: got %v, want a net.Error with Timeout", err)
	}
	if !os.IsTimeout(err) {
		w.Errorf("error: got %v, want os.IsTimeout", err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		w.Errorf("error: got %v, want context.DeadlineExceeded", err)
	}
}

var poolRows = []dropInRow{
	{"ten calls share a connection", both, real, func(w *wire) {
		url := w.serve(report)
		for range 10 {
			w.equal("body", w.tells(w.request("POST", url, strings.NewReader("x"))).Body, "x")
		}
		w.equal("connections", w.opened.Load(), int32(1))
	}},
	{"GotConn tells of reuse", both, real, func(w *wire) {
		var reused []bool
		url := w.serve(text("x"))
		for range 2 {
			r := w.request("GET", url, nil)
			bodyOf(w, w.do(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
				GotConn: func(i httptrace.GotConnInfo) { reused = append(reused, i.Reused) },
			}))))
		}
		w.equal("reused", reused, []bool{false, true})
	}},
	{"CloseIdleConnections closes them", both, real, func(w *wire) {
		url := w.serve(text("x"))
		bodyOf(w, w.get(url))
		w.equal("opened", w.opened.Load(), int32(1))
		w.eventually("the connection is closed", func() bool {
			w.client.CloseIdleConnections()
			return w.closed.Load() == 1
		})
		bodyOf(w, w.get(url))
		w.equal("opened", w.opened.Load(), int32(2))
	}},
	{"Request.Close closes the connection", http1, real, func(w *wire) {
		url := w.serve(report)
		for range 2 {
			r := w.request("GET", url, nil)
			r.Close = true
			w.equal("header", w.tells(r).Header.Get("Connection"), "close")
		}
		w.equal("opened", w.opened.Load(), int32(2))
	}},
	{"an answer with Connection: close closes it", http1, real, func(w *wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set("Connection", "close") })
		for range 2 {
			w.equal("resp.Close", w.get(url).Close, true)
		}
		w.equal("opened", w.opened.Load(), int32(2))
	}},
	{"DisableKeepAlives opens one for each call", http1, real, func(w *wire) {
		w.base.DisableKeepAlives = true
		url := w.serve(text("x"))
		for range 3 {
			bodyOf(w, w.get(url))
		}
		w.equal("opened", w.opened.Load(), int32(3))
	}},
	{"MaxConnsPerHost makes a call wait for the body before it", http1, real, func(w *wire) {
		w.base.MaxConnsPerHost = 1
		url := w.serve(text("hello"))
		first := w.get(url)
		second := make(chan error, 1)
		go func() {
			resp, err := w.client.Get(url)
			if err == nil {
				resp.Body.Close()
			}
			second <- err
		}()
		bodyOf(w, first)
		if err := <-second; err != nil {
			w.Errorf("second call: got %v", err)
		}
		w.equal("opened", w.opened.Load(), int32(1))
	}},
	{"many calls share an HTTP/2 connection at once", http2, real, func(w *wire) {
		const n = 20
		var waiting sync.WaitGroup
		waiting.Add(n)
		url := w.serve(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				waiting.Done()
				waiting.Wait()
			}
		})
		bodyOf(w, w.get(url))
		var calls sync.WaitGroup
		for range n {
			calls.Go(func() {
				resp, err := w.client.Get(url + "/wait")
				if err != nil {
					w.Error(err)
					return
				}
				resp.Body.Close()
			})
		}
		calls.Wait()
		w.equal("opened", w.opened.Load(), int32(1))
	}},
	{"a body closed early frees the call at the server", both, real, func(w *wire) {
		gone := make(chan bool)
		resp := w.get(w.serve(func(rw http.ResponseWriter, r *http.Request) {
			defer close(gone)
			for r.Context().Err() == nil {
				if _, err := rw.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}))
		io.ReadFull(resp.Body, make([]byte, 1<<10))
		resp.Body.Close()
		<-gone
	}},
	{"a call in flight outlives the server's graceful shutdown", both, real, func(w *wire) {
		arrived, release := make(chan bool, 2), make(chan bool)
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			arrived <- true
			if r.URL.Path == "/slow" {
				<-release
			}
			io.WriteString(rw, "done")
		})
		bodyOf(w, w.get(url))
		<-arrived
		stop, stopped := w.stop, make(chan error, 1)
		go func() {
			<-arrived
			go func() { stopped <- stop(context.Background()) }()
			close(release)
		}()
		w.equal("body", bodyOf(w, w.get(url+"/slow")), "done")
		w.base.CloseIdleConnections()
		if err := <-stopped; err != nil {
			w.Error(err)
		}
	}},
	{"Close twice, and reading after it, do no harm", both, real, func(w *wire) {
		resp := w.get(w.serve(text("hello")))
		for range 2 {
			if err := resp.Body.Close(); err != nil {
				w.Errorf("Close: got %v, want nil", err)
			}
		}
		if n, err := resp.Body.Read(make([]byte, 1)); n != 0 || err == nil || err == io.EOF {
			w.Errorf("Read after Close: got %d, %v, want 0 and an error", n, err)
		}
	}},
	{"the end of the body stays the end", both, real, func(w *wire) {
		resp := w.get(w.serve(text("hello")))
		b, err := io.ReadAll(resp.Body)
		if err != nil || string(b) != "hello" {
			w.Errorf("body: got %q, %v, want hello", b, err)
		}
		for range 2 {
			if n, err := resp.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				w.Errorf("Read: got %d, %v, want 0, EOF", n, err)
			}
		}
	}},
	{"sixty-four goroutines share a zero value", both, real, func(w *wire) {
		url := w.serve(report)
		var calls sync.WaitGroup
		for i := range 64 {
			calls.Go(func() {
				for j := range 4 {
					want := fmt.Sprint(i, ".", j)
					resp, err := w.client.Post(url, "text/plain", strings.NewReader(want))
					if err != nil {
						w.Error(err)
						return
					}
					var got told
					if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || got.Body != want {
						w.Errorf("got %q, %v, want %q", got.Body, err, want)
					}
					resp.Body.Close()
				}
			})
		}
		calls.Wait()
	}},
	{"a request may be sent again by its owner", both, real, func(w *wire) {
		r := w.request("GET", w.serve(report), nil)
		r.Header.Set("X-A", "b")
		before := r.Header.Clone()
		for range 3 {
			w.equal("header", w.tells(r).Header.Get("X-A"), "b")
			w.equal("the caller's headers", r.Header, before)
		}
	}},
}

var addressRows = []dropInRow{
	{"userinfo in the URL becomes basic auth", both, real, func(w *wire) {
		url := strings.Replace(w.serve(func(rw http.ResponseWriter, r *http.Request) {
			user, pass, _ := r.BasicAuth()
			io.WriteString(rw, user+" "+pass)
		}), "://", "://ann:s3cret@", 1)
		w.equal("user", bodyOf(w, w.get(url)), "ann s3cret")
	}},
	{"Request.Host overrides the URL's", both, real, func(w *wire) {
		r := w.request("GET", w.serve(report), nil)
		r.Host = "other.example"
		w.equal("host", w.tells(r).Host, "other.example")
	}},
	{"an encoded path and a raw query arrive as they were", both, real, func(w *wire) {
		w.equal("URI", w.tells(w.request("GET", w.serve(report)+"/a%2Fb/c%20d?x=1&x=%20&y", nil)).URI, "/a%2Fb/c%20d?x=1&x=%20&y")
	}},
	{"an opaque URL arrives as it was", http1, real, func(w *wire) {
		r := w.request("GET", w.serve(report), nil)
		r.URL.Opaque = "/weird//%7Epath"
		w.equal("URI", w.tells(r).URI, "/weird//%7Epath")
	}},
	{"an http proxy gets the absolute URL and its credentials", http1, real, func(w *wire) {
		proxy := w.serve(report)
		w.base.Proxy = func(*http.Request) (*url.URL, error) {
			return url.Parse(strings.Replace(proxy, "://", "://ann:s3cret@", 1))
		}
		got := w.tells(w.request("GET", "http://upstream.example/x?y=1", nil))
		w.equal("URI", got.URI, "http://upstream.example/x?y=1")
		w.equal("credentials", got.Header.Get("Proxy-Authorization"), "Basic YW5uOnMzY3JldA==")
	}},
	{"a proxy is asked to CONNECT for https", both, real, func(w *wire) {
		var connects atomic.Int32
		target := w.serveTLS(report)
		proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method != "CONNECT" || r.Header.Get("X-Proxy") != "yes" {
				rw.WriteHeader(400)
				return
			}
			connects.Add(1)
			up, err := net.Dial("tcp", r.Host)
			if err != nil {
				w.Error(err)
				return
			}
			down, buf, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				w.Error(err)
				return
			}
			io.WriteString(down, "HTTP/1.1 200 Connection established\r\n\r\n")
			go func() {
				io.Copy(up, buf)
				up.Close()
			}()
			io.Copy(down, up)
			down.Close()
		}))
		w.Cleanup(proxy.Close)
		w.base.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(proxy.URL) }
		w.base.ProxyConnectHeader = http.Header{"X-Proxy": {"yes"}}
		w.equal("body", w.tells(w.request("POST", target, strings.NewReader("hello"))).Body, "hello")
		w.equal("CONNECTs", connects.Load(), int32(1))
		w.base.CloseIdleConnections()
	}},
	{"a protocol registered with Base is used", http1, real, func(w *wire) {
		w.base.RegisterProtocol("mem", roundTrip(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(r.URL.Path)), Request: r}, nil
		}))
		w.equal("body", bodyOf(w, w.get("mem://host/path")), "/path")
		w.equal("body without a host", bodyOf(w, w.get("mem:///path")), "/path")
	}},
}

var proxyRows = []dropInRow{
	{"a ReverseProxy passes bodies, hints and trailers on", both, real, func(w *wire) {
		upstream := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Link", "</a.css>")
			rw.WriteHeader(103)
			rw.Header().Del("Link")
			rw.Header().Set("Trailer", "X-Sum")
			b, _ := io.ReadAll(r.Body)
			rw.Write(b)
			rw.Header().Set("X-Sum", fmt.Sprint(len(b)))
		})
		front := w.proxy(upstream)
		var hints []string
		body := onlyReader(strings.Repeat("hello ", 50_000))
		r := w.request("POST", front, body)
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				hints = append(hints, h.Get("Link"))
				return nil
			},
		}))
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			w.Fatal(err)
		}
		w.equal("length", len(bodyOf(w, resp)), 300_000)
		w.equal("trailer", resp.Trailer.Get("X-Sum"), "300000")
		w.equal("hints", hints, []string{"</a.css>"})
	}},
	{"a ReverseProxy passes an upgrade on", http1, real, func(w *wire) {
		upstream := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			conn, buf, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				w.Error(err)
				return
			}
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			io.Copy(conn, buf)
		})
		r := w.request("GET", w.proxy(upstream), nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "echo")
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			w.Fatal(err)
		}
		rwc := resp.Body.(io.ReadWriteCloser)
		defer rwc.Close()
		io.WriteString(rwc, "ping")
		b := make([]byte, 4)
		if _, err := io.ReadFull(rwc, b); err != nil || string(b) != "ping" {
			w.Errorf("echo: got %q, %v, want ping", b, err)
		}
	}},
	{"a ReverseProxy whose client leaves cancels the call", both, real, func(w *wire) {
		arrived, gone := make(chan bool, 1), make(chan bool)
		front := w.proxy(w.serve(func(rw http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			arrived <- true
			<-r.Context().Done()
			close(gone)
		}))
		ctx, cancel := context.WithCancel(w.Context())
		go func() {
			<-arrived
			cancel()
		}()
		if _, err := http.DefaultTransport.RoundTrip(w.request("POST", front, onlyReader("x")).WithContext(ctx)); !errors.Is(err, context.Canceled) {
			w.Errorf("got %v, want context.Canceled", err)
		}
		<-gone
	}},
}

// proxy runs a ReverseProxy in front of upstream, which it calls through the
// transport under test.
func (w *wire) proxy(upstream string) string {
	u, err := url.Parse(upstream)
	if err != nil {
		w.Fatal(err)
	}
	srv := httptest.NewServer(&httputil.ReverseProxy{
		Transport: w.client.Transport,
		ErrorLog:  quietLog,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(u) },
	})
	w.Cleanup(srv.Close)
	return srv.URL
}

// refusal is a row about a request that net/http itself refuses: at once, with the
// body closed and with want in the text of the error.
func refusal(does, want string, spoil func(*http.Request)) dropInRow {
	return dropInRow{does, both, virtual, func(w *wire) {
		var calls atomic.Int32
		body := &tracked{r: strings.NewReader("hello")}
		r := w.request("POST", w.serve(func(http.ResponseWriter, *http.Request) { calls.Add(1) }), body)
		spoil(r)
		start := time.Now()
		resp, err := w.client.Transport.RoundTrip(r)
		if resp != nil {
			w.Errorf("got an answer: %s", resp.Status)
			resp.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			w.Errorf("error: got %v, want %q in it", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			w.Errorf("error: got %q, want no secret in it", err)
		}
		w.equal("after", time.Since(start), time.Duration(0))
		w.equal("calls", calls.Load(), int32(0))
		if body.closes.Load() == 0 && r.Body != nil {
			w.Error("the body is not closed")
		}
	}}
}

var refusalRows = []dropInRow{
	refusal("an unknown scheme is refused", `unsupported protocol scheme "foo"`, func(r *http.Request) { r.URL.Scheme = "foo" }),
	refusal("an empty scheme is refused", `unsupported protocol scheme ""`, func(r *http.Request) { r.URL.Scheme = "" }),
	refusal("a nil URL is refused", "nil Request.URL", func(r *http.Request) { r.URL = nil }),
	refusal("a nil header is refused", "nil Request.Header", func(r *http.Request) { r.Header = nil }),
	refusal("a URL without a host is refused", "no Host in request URL", func(r *http.Request) { r.URL.Host = "" }),
	refusal("a method with a space is refused", "invalid method", func(r *http.Request) { r.Method = "PO ST" }),
	refusal("a header name with a space is refused", `invalid header field name "X A"`, func(r *http.Request) { r.Header["X A"] = []string{"v"} }),
	refusal("a header value with a line break is refused", `invalid header field value for "X-Token"`, func(r *http.Request) {
		r.Header["X-Token"] = []string{"s3cret\r\nX-Evil: 1"}
	}),
	refusal("a trailer name with a space is refused", `invalid trailer field name "X A"`, func(r *http.Request) {
		r.Trailer = http.Header{"X A": nil}
	}),
	{"a length without a body is refused", http1, virtual, func(w *wire) {
		r := w.request("POST", w.serve(report), nil)
		r.ContentLength = 5
		if err := w.fails(r); !strings.Contains(err.Error(), "ContentLength=5 with nil Body") {
			w.Errorf("error: got %q, want what net/http says", err)
		}
	}},
}

var streamRows = []dropInRow{
	{"events arrive one by one as they are flushed", both, real, func(w *wire) {
		next := make(chan bool)
		resp := w.get(w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			for i := range 5 {
				fmt.Fprintf(rw, "data: %d\n\n", i)
				http.NewResponseController(rw).Flush()
				select {
				case <-next:
				case <-r.Context().Done():
					return
				}
			}
		}))
		in := bufio.NewReader(resp.Body)
		for i := range 5 {
			line, err := in.ReadString('\n')
			if err != nil {
				w.Fatal(err)
			}
			in.ReadString('\n')
			w.equal("event", line, fmt.Sprintf("data: %d\n", i))
			next <- true
		}
		if _, err := in.ReadByte(); err != io.EOF {
			w.Errorf("end: got %v, want EOF", err)
		}
	}},
	{"a stream of an hour is not cut", both, virtual, func(w *wire) {
		resp := w.get(w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			for i := range 12 {
				fmt.Fprintf(rw, "data: %d\n\n", i)
				http.NewResponseController(rw).Flush()
				time.Sleep(5 * time.Minute)
			}
		}))
		w.equal("events", strings.Count(bodyOf(w, resp), "data:"), 12)
	}},
	{"a slow upload of an hour is not cut", both, virtual, func(w *wire) {
		n := 0
		got := w.tells(w.request("POST", w.serve(report), readerFunc(func(p []byte) (int, error) {
			if n++; n > 120 {
				return 0, io.EOF
			}
			time.Sleep(30 * time.Second)
			return copy(p, "x"), nil
		})))
		w.equal("bytes", len(got.Body), 120)
	}},
	{"a body read long after the answer came is whole", both, virtual, func(w *wire) {
		b, sum := noise(3 << 20)
		resp := w.get(w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.Write(b) }))
		time.Sleep(time.Hour)
		got := sha256.Sum256([]byte(bodyOf(w, resp)))
		w.equal("digest", hex.EncodeToString(got[:]), sum)
	}},
}
