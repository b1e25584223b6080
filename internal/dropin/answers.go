package dropin

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"time"
)

var answerRows = []Row{
	{"HEAD has headers, the length, and no body", Both, Real, func(w *Wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Length", "1234")
			rw.Header().Set("Etag", `"v1"`)
		})
		resp := w.do(w.request("HEAD", url, nil))
		w.equal("length", resp.ContentLength, int64(1234))
		w.equal("etag", resp.Header.Get("Etag"), `"v1"`)
		w.equal("body", bodyOf(w, resp), "")
	}},
	{"204 has no body", Both, Real, func(w *Wire) {
		resp := w.do(w.request("DELETE", w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(204) }), nil))
		w.equal("status", resp.StatusCode, 204)
		w.equal("length", resp.ContentLength, int64(0))
		w.equal("body", bodyOf(w, resp), "")
	}},
	{"304 has its headers and no body", Both, Real, func(w *Wire) {
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
	{"4xx and 5xx are answers, not errors", Both, Real, func(w *Wire) {
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
	{"101 hands over a body that can be written", HTTP1, Real, func(w *Wire) {
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
	{"a connection that was handed over lives on", HTTP1, Virtual, func(w *Wire) {
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
	{"103 early hints reach Got1xxResponse", Both, Real, func(w *Wire) {
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
	{"trailers of the answer arrive, announced or not", Both, Real, func(w *Wire) {
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
	{"a header with many values keeps them apart, in order", Both, Real, func(w *Wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			for _, v := range r.Header["X-Many"] {
				rw.Header().Add("X-Back", v)
			}
		})
		r := w.request("GET", url, nil)
		r.Header["X-Many"] = []string{"a, b", "", "c"}
		w.equal("values", w.do(r).Header["X-Back"], []string{"a, b", "", "c"})
	}},
	{"a header name that is not canonical is sent as it stands", HTTP1, Real, func(w *Wire) {
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
	{"User-Agent has a default and can be left out", Both, Real, func(w *Wire) {
		url := w.serve(report)
		if got := w.tells(w.request("GET", url, nil)).Header.Get("User-Agent"); !strings.HasPrefix(got, "Go-http-client/") {
			w.Errorf("default: got %q, want Go-http-client/…", got)
		}
		r := w.request("GET", url, nil)
		r.Header["User-Agent"] = []string{""}
		w.equal("left out", w.tells(r).Header["User-Agent"], []string(nil))
	}},
	{"half a MiB of response headers is accepted", Both, Real, func(w *Wire) {
		big := strings.Repeat("x", 512<<10)
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set("X-Big", big) })
		w.equal("length", len(w.get(url).Header.Get("X-Big")), len(big))
	}},
	{"response headers over MaxResponseHeaderBytes are an error", Both, Virtual, func(w *Wire) {
		w.Base.MaxResponseHeaderBytes = 64 << 10
		big := strings.Repeat("x", 512<<10)
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set("X-Big", big) })
		if err := w.fails(w.request("GET", url, nil)); !w.H2 && !strings.Contains(err.Error(), "headers exceeded") {
			w.Errorf("error: got %q, want one that speaks of headers", err)
		}
	}},
	{"a body cut short is an error, not an end", Both, Real, func(w *Wire) {
		resp := w.get(w.serve(func(rw http.ResponseWriter, r *http.Request) { cut(rw, 200) }))
		b, err := io.ReadAll(resp.Body)
		w.equal("what came", string(b), "the first bytes")
		if err == nil || !w.H2 && !errors.Is(err, io.ErrUnexpectedEOF) {
			w.Errorf("error: got %v, want an unexpected EOF", err)
		}
	}},
	{"an HTTP/1.0 answer ends with its connection", HTTP1, Real, func(w *Wire) {
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
	{"a malformed answer is an error", HTTP1, Virtual, func(w *Wire) {
		url := w.serveRaw(func(conn net.Conn, _ *http.Request, _ string) { io.WriteString(conn, "banana\r\n\r\n") })
		if err := w.fails(w.request("GET", url, nil)); !strings.Contains(err.Error(), "malformed HTTP") {
			w.Errorf("error: got %q, want malformed HTTP", err)
		}
	}},
	{"resp.Request is the request that was sent", Both, Real, func(w *Wire) {
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
	{"resp tells length, coding, protocol and TLS", Both, Real, func(w *Wire) {
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
		if w.H2 {
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

var codingRows = []Row{
	{"gzip is asked for and undone", Both, Real, func(w *Wire) {
		resp := w.get(w.serve(gzipped))
		w.equal("Uncompressed", resp.Uncompressed, true)
		w.equal("length", resp.ContentLength, int64(-1))
		w.equal("coding", resp.Header.Get("Content-Encoding"), "")
		w.equal("body", bodyOf(w, resp), "hello, gzip")
	}},
	{"gzip that the caller asked for is left alone", Both, Real, func(w *Wire) {
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
	{"DisableCompression asks for nothing", Both, Real, func(w *Wire) {
		w.Base.DisableCompression = true
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
