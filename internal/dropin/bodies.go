package dropin

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

var methodRows = []Row{
	{"every method arrives as it was sent", Both, Real, func(w *Wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set("Got", r.Method) })
		for _, m := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY", "PROPFIND"} {
			w.equal("method", w.do(w.request(m, url, nil)).Header.Get("Got"), m)
		}
	}},
	{"an empty method is GET", Both, Real, func(w *Wire) {
		r := w.request("GET", w.serve(report), nil)
		r.Method = ""
		w.equal("method", w.tells(r).Method, "GET")
	}},
	{"Client.Get, Head, Post and PostForm work", Both, Real, func(w *Wire) {
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

var bodyRows = []Row{
	{"a nil body has length 0 and no coding", Both, Real, func(w *Wire) {
		for _, m := range []string{"POST", "PUT", "DELETE", "GET"} {
			got := w.tells(w.request(m, w.serve(report), nil))
			w.equal(m+" length", got.Length, int64(0))
			w.equal(m+" coding", got.Coding, []string(nil))
		}
	}},
	{"NoBody has length 0 and no coding", Both, Real, func(w *Wire) {
		got := w.tells(w.request("POST", w.serve(report), http.NoBody))
		w.equal("length", got.Length, int64(0))
		w.equal("coding", got.Coding, []string(nil))
	}},
	{"a body with GetBody is sent with its length", Both, Real, func(w *Wire) {
		for _, body := range []io.Reader{bytes.NewReader([]byte("hello")), strings.NewReader("hello"), bytes.NewBufferString("hello")} {
			got := w.tells(w.request("POST", w.serve(report), body))
			w.equal("body", got.Body, "hello")
			w.equal("length", got.Length, int64(5))
			w.equal("coding", got.Coding, []string(nil))
		}
	}},
	{"a body without GetBody is sent with the length it was given", Both, Real, func(w *Wire) {
		r := w.request("PUT", w.serve(report), onlyReader("hello"))
		r.ContentLength = 5
		got := w.tells(r)
		w.equal("body", got.Body, "hello")
		w.equal("length", got.Length, int64(5))
	}},
	{"a body of unknown length is sent without one", Both, Real, func(w *Wire) {
		for _, length := range []int64{0, -1} {
			r := w.request("POST", w.serve(report), onlyReader("hello"))
			r.ContentLength = length
			got := w.tells(r)
			w.equal("body", got.Body, "hello")
			w.equal("length", got.Length, int64(-1))
			if !w.H2 {
				w.equal("coding", got.Coding, []string{"chunked"})
			}
		}
	}},
	{"an empty reader with length 0 sends an empty body", Both, Real, func(w *Wire) {
		for _, m := range []string{"POST", "GET"} {
			got := w.tells(w.request(m, w.serve(report), onlyReader("")))
			w.equal(m+" body", got.Body, "")
			w.equal(m+" error", got.BodyError, "")
		}
	}},
	{"an empty reader of length -1 sends an empty body", Both, Real, func(w *Wire) {
		r := w.request("POST", w.serve(report), onlyReader(""))
		r.ContentLength = -1
		got := w.tells(r)
		w.equal("body", got.Body, "")
		w.equal("error", got.BodyError, "")
	}},
	{"a GET may carry a body", Both, Real, func(w *Wire) {
		w.equal("body", w.tells(w.request("GET", w.serve(report), strings.NewReader("query"))).Body, "query")
	}},
	{"a chunked body asked for by TransferEncoding is chunked", HTTP1, Real, func(w *Wire) {
		r := w.request("POST", w.serve(report), strings.NewReader("hello"))
		r.TransferEncoding = []string{"chunked"}
		got := w.tells(r)
		w.equal("body", got.Body, "hello")
		w.equal("coding", got.Coding, []string{"chunked"})
		w.equal("length", got.Length, int64(-1))
	}},
	{"a body is not read ahead of what is sent", Both, Real, func(w *Wire) {
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
	{"a body longer than its length is an error, at once", Both, Virtual, func(w *Wire) {
		body := &tracked{r: strings.NewReader("hello")}
		r := w.request("POST", w.serve(hang), body)
		r.ContentLength = 3
		start := time.Now()
		err := w.fails(r)
		want := "http: ContentLength=3 with Body length 5"
		if w.H2 {
			want = "http2: request body larger than specified content length"
		}
		if !strings.Contains(err.Error(), want) {
			w.Errorf("error: got %q, want %q in it", err, want)
		}
		w.atOnce(start)
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
	}},
	{"a body shorter than its length is an error, at once", HTTP1, Virtual, func(w *Wire) {
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
		w.atOnce(start)
		w.equal("whole requests", whole.Load(), int32(0))
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
	}},
	{"an error of the body comes back and cuts the request short", Both, Real, func(w *Wire) {
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
	{"the body is closed once it is sent", Both, Real, func(w *Wire) {
		body := &tracked{r: strings.NewReader("hello")}
		w.equal("body", w.tells(w.request("POST", w.serve(report), body)).Body, "hello")
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
	}},
	{"ten MiB go up and down intact", Both, Real, func(w *Wire) {
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
	{"an answer may come before the body is sent", HTTP1, Real, func(w *Wire) {
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
	{"trailers of the request may be set while the body is read", Both, Real, func(w *Wire) {
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

// A tracked body counts how it is used.
type tracked struct {
	r      io.Reader
	reads  atomic.Int32
	closes atomic.Int32
}

func (b *tracked) Read(p []byte) (int, error) { b.reads.Add(1); return b.r.Read(p) }

func (b *tracked) Close() error { b.closes.Add(1); return nil }

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
