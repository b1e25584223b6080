package dropin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
)

var poolRows = []Row{
	{"ten calls share a connection", Both, Real, func(w *Wire) {
		url := w.serve(report)
		for range 10 {
			w.equal("body", w.tells(w.request("POST", url, strings.NewReader("x"))).Body, "x")
		}
		w.equal("connections", w.opened.Load(), int32(1))
	}},
	{"GotConn tells of reuse", Both, Real, func(w *Wire) {
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
	{"CloseIdleConnections closes them", Both, Real, func(w *Wire) {
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
	{"Request.Close closes the connection", HTTP1, Real, func(w *Wire) {
		url := w.serve(report)
		for range 2 {
			r := w.request("GET", url, nil)
			r.Close = true
			w.equal("header", w.tells(r).Header.Get("Connection"), "close")
		}
		w.equal("opened", w.opened.Load(), int32(2))
	}},
	{"an answer with Connection: close closes it", HTTP1, Real, func(w *Wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set("Connection", "close") })
		for range 2 {
			w.equal("resp.Close", w.get(url).Close, true)
		}
		w.equal("opened", w.opened.Load(), int32(2))
	}},
	{"DisableKeepAlives opens one for each call", HTTP1, Real, func(w *Wire) {
		w.Base.DisableKeepAlives = true
		url := w.serve(text("x"))
		for range 3 {
			bodyOf(w, w.get(url))
		}
		w.equal("opened", w.opened.Load(), int32(3))
	}},
	{"MaxConnsPerHost makes a call wait for the body before it", HTTP1, Real, func(w *Wire) {
		w.Base.MaxConnsPerHost = 1
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
	{"many calls share an HTTP/2 connection at once", HTTP2, Real, func(w *Wire) {
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
	{"a body closed early frees the call at the server", Both, Real, func(w *Wire) {
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
	{"a call in flight outlives the server's graceful shutdown", Both, Real, func(w *Wire) {
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
		w.Base.CloseIdleConnections()
		if err := <-stopped; err != nil {
			w.Error(err)
		}
	}},
	{"Close twice, and reading after it, do no harm", Both, Real, func(w *Wire) {
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
	{"the end of the body stays the end", Both, Real, func(w *Wire) {
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
	{"sixty-four goroutines share a zero value", Both, Real, func(w *Wire) {
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
	{"a request may be sent again by its owner", Both, Real, func(w *Wire) {
		r := w.request("GET", w.serve(report), nil)
		r.Header.Set("X-A", "b")
		before := r.Header.Clone()
		for range 3 {
			w.equal("header", w.tells(r).Header.Get("X-A"), "b")
			w.equal("the caller's headers", r.Header, before)
		}
	}},
}
