package dropin

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

var addressRows = []Row{
	{"userinfo in the URL becomes basic auth", Both, Real, func(w *Wire) {
		url := strings.Replace(w.serve(func(rw http.ResponseWriter, r *http.Request) {
			user, pass, _ := r.BasicAuth()
			io.WriteString(rw, user+" "+pass)
		}), "://", "://ann:s3cret@", 1)
		w.equal("user", bodyOf(w, w.get(url)), "ann s3cret")
	}},
	{"Request.Host overrides the URL's", Both, Real, func(w *Wire) {
		r := w.request("GET", w.serve(report), nil)
		r.Host = "other.example"
		w.equal("host", w.tells(r).Host, "other.example")
	}},
	{"an encoded path and a raw query arrive as they were", Both, Real, func(w *Wire) {
		w.equal("URI", w.tells(w.request("GET", w.serve(report)+"/a%2Fb/c%20d?x=1&x=%20&y", nil)).URI, "/a%2Fb/c%20d?x=1&x=%20&y")
	}},
	{"an opaque URL arrives as it was", HTTP1, Real, func(w *Wire) {
		r := w.request("GET", w.serve(report), nil)
		r.URL.Opaque = "/weird//%7Epath"
		w.equal("URI", w.tells(r).URI, "/weird//%7Epath")
	}},
	{"an http proxy gets the absolute URL and its credentials", HTTP1, Real, func(w *Wire) {
		proxy := w.serve(report)
		w.Base.Proxy = func(*http.Request) (*url.URL, error) {
			return url.Parse(strings.Replace(proxy, "://", "://ann:s3cret@", 1))
		}
		got := w.tells(w.request("GET", "http://upstream.example/x?y=1", nil))
		w.equal("URI", got.URI, "http://upstream.example/x?y=1")
		w.equal("credentials", got.Header.Get("Proxy-Authorization"), "Basic YW5uOnMzY3JldA==")
	}},
	{"a proxy is asked to CONNECT for https", Both, Real, func(w *Wire) {
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
		w.Base.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(proxy.URL) }
		w.Base.ProxyConnectHeader = http.Header{"X-Proxy": {"yes"}}
		w.equal("body", w.tells(w.request("POST", target, strings.NewReader("hello"))).Body, "hello")
		w.equal("CONNECTs", connects.Load(), int32(1))
		w.Base.CloseIdleConnections()
	}},
	{"a protocol registered with Base is used", HTTP1, Real, func(w *Wire) {
		w.Base.RegisterProtocol("mem", roundTrip(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(r.URL.Path)), Request: r}, nil
		}))
		w.equal("body", bodyOf(w, w.get("mem://host/path")), "/path")
		w.equal("body without a host", bodyOf(w, w.get("mem:///path")), "/path")
	}},
}

var proxyRows = []Row{
	{"a ReverseProxy passes bodies, hints and trailers on", Both, Real, func(w *Wire) {
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
	{"a ReverseProxy passes an upgrade on", HTTP1, Real, func(w *Wire) {
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
	{"a ReverseProxy whose client leaves cancels the call", Both, Real, func(w *Wire) {
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
func (w *Wire) proxy(upstream string) string {
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
func refusal(does, want string, spoil func(*http.Request)) Row {
	return Row{does, Both, Virtual, func(w *Wire) {
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
		w.atOnce(start)
		w.equal("calls", calls.Load(), int32(0))
		if body.closes.Load() == 0 && r.Body != nil {
			w.Error("the body is not closed")
		}
	}}
}

var refusalRows = []Row{
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
	{"a length without a body is refused", HTTP1, Virtual, func(w *Wire) {
		r := w.request("POST", w.serve(report), nil)
		r.ContentLength = 5
		if err := w.fails(r); !strings.Contains(err.Error(), "ContentLength=5 with nil Body") {
			w.Errorf("error: got %q, want what net/http says", err)
		}
	}},
}

var streamRows = []Row{
	{"events arrive one by one as they are flushed", Both, Real, func(w *Wire) {
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
	{"a stream of an hour is not cut", Both, Virtual, func(w *Wire) {
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
	{"a slow upload of an hour is not cut", Both, Virtual, func(w *Wire) {
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
	{"a body read long after the answer came is whole", Both, Virtual, func(w *Wire) {
		b, sum := noise(3 << 20)
		resp := w.get(w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.Write(b) }))
		time.Sleep(time.Hour)
		got := sha256.Sum256([]byte(bodyOf(w, resp)))
		w.equal("digest", hex.EncodeToString(got[:]), sum)
	}},
}
