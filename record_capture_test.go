package oncehttp

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// squeeze is an outer or inner layer as most programs have one: it compresses
// what is written through it.
func squeeze(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Add("Vary", "Accept-Encoding")
		z := gzip.NewWriter(w)
		defer z.Close()
		next.ServeHTTP(&squeezed{w, z}, r)
	})
}

type squeezed struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (s *squeezed) Write(p []byte) (int, error) { return s.z.Write(p) }

func (s *squeezed) Flush() {
	s.z.Flush()
	http.NewResponseController(s.ResponseWriter).Flush()
}

// dress is an outer layer that sets headers before and looks at none after.
func dress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Request-Id", r.Header.Get("X-Request-Id"))
		h.Set("X-Frame-Options", "DENY")
		h.Set("Vary", "Origin")
		h.Set("X-Powered-By", "outer")
		next.ServeHTTP(w, r)
	})
}

func flush(w http.ResponseWriter) { http.NewResponseController(w).Flush() }

type onlyReader struct{ io.Reader }

func upstream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", "X-Sum")
	w.Header().Set("Link", "</style.css>")
	w.WriteHeader(http.StatusEarlyHints)
	w.Header().Set("X-Upstream", "yes")
	w.WriteHeader(http.StatusAccepted)
	io.WriteString(w, "from ")
	w.(http.Flusher).Flush()
	io.WriteString(w, "upstream")
	w.Header().Set("X-Sum", "42")
}

// Whatever a handler does to its ResponseWriter, the client gets the same with a
// Middleware as without, and a repeat gets it again.
func TestCaptureIsFaithful(t *testing.T) {
	over := make(chan bool)
	t.Cleanup(func() { close(over) })
	server := httptest.NewServer(http.HandlerFunc(upstream))
	t.Cleanup(server.Close)
	up, _ := url.Parse(server.URL)
	big := strings.Repeat("0123456789abcdef", 8<<10) // 128 KiB

	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		// better says that the bare server loses trailers here and we do not.
		better bool
	}{
		{"does nothing", func(http.ResponseWriter, *http.Request) {}, false},
		{"writes a status only", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) }, false},
		{"answers 204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, false},
		{"answers 204 and writes all the same", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			io.WriteString(w, "x")
		}, false},
		{"answers 304", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Etag", `"1"`); w.WriteHeader(304) }, false},
		{"writes a body only", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }, false},
		{"writes nothing, on purpose", func(w http.ResponseWriter, _ *http.Request) { w.Write(nil) }, false},
		{"writes in pieces", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 100 {
				fmt.Fprintln(w, i)
			}
		}, false},
		{"writes much", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, big) }, false},
		{"copies with ReadFrom", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			n, err := io.Copy(w, onlyReader{strings.NewReader(big)})
			if n != int64(len(big)) || err != nil {
				panic(err)
			}
		}, false},
		{"copies with WriteTo", func(w http.ResponseWriter, _ *http.Request) { io.Copy(w, strings.NewReader(big)) }, false},
		{"calls ReadFrom itself", func(w http.ResponseWriter, _ *http.Request) {
			if rf, ok := w.(io.ReaderFrom); !ok {
				io.WriteString(w, "hello")
			} else if n, err := rf.ReadFrom(strings.NewReader("hello")); n != 5 || err != nil {
				panic(err)
			}
		}, false},
		{"serves content", func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "a.csv", time.Unix(1e9, 0), strings.NewReader(big))
		}, false},
		{"calls http.Error", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such order", 404) }, false},
		{"redirects", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", 303) }, false},
		{"writes its status twice", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			w.Header().Set("X-Late", "1")
			w.WriteHeader(500)
			io.WriteString(w, "x")
		}, false},
		{"changes its header after the status", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-A", "before")
			w.WriteHeader(201)
			w.Header()["X-A"][0] = "changed"
			w.Header().Set("X-A", "after")
			w.Header().Set("X-B", "after")
			io.WriteString(w, "x")
		}, false},
		{"changes its header after the first Write", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "x")
			w.Header().Set("X-B", "after")
		}, false},
		{"keeps the header map", func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Add("X-A", "1")
			w.Header().Add("X-A", "2")
			h.Add("X-A", "3")
			io.WriteString(w, "x")
		}, false},
		{"sends many values of a field", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["X-A"] = []string{"1", "2, 3", "", "4"}
			w.Header()["Www-Authenticate"] = []string{`Basic realm="a, b"`, "Bearer"}
			w.Header()["Set-Cookie"] = []string{"a=1; Expires=Mon, 30 Nov 2026 00:00:00 GMT", "b=2"}
			w.WriteHeader(403)
		}, false},
		{"declares its length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello")
		}, false},
		{"declares its length and writes much", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(big)))
			io.WriteString(w, big)
		}, false},
		{"declares its length and streams", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			io.WriteString(w, "hello")
			flush(w)
			io.WriteString(w, "world")
		}, false},
		{"flushes before it writes", func(w http.ResponseWriter, _ *http.Request) {
			flush(w)
			io.WriteString(w, "<html>")
		}, false},
		{"flushes between its writes", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 5 {
				fmt.Fprintln(w, i)
				flush(w)
			}
		}, false},
		{"streams html of which the first piece does not look like it", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "<h")
			flush(w)
			io.WriteString(w, "tml><body>")
		}, false},
		{"writes html of which the first piece does not look like it", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "<h")
			io.WriteString(w, "tml><body>")
		}, false},
		{"wants no content type", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "<html>")
		}, false},
		{"sends server-sent events with a ResponseController", func(w http.ResponseWriter, _ *http.Request) {
			c := http.NewResponseController(w)
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				deadline := c.SetWriteDeadline(time.Now().Add(time.Minute))
				fmt.Fprintf(w, "data: %d\n\n", i)
				flushed := c.Flush()
				read := c.SetReadDeadline(time.Time{})
				fmt.Fprintln(w, deadline, flushed != nil, read)
			}
			c.EnableFullDuplex()
		}, false},
		{"gives early hints", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</a.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Add("Link", "</b.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			w.Header().Set("X-Final", "1")
			w.WriteHeader(201)
			io.WriteString(w, "x")
		}, false},
		{"gives early hints and streams", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusProcessing)
			w.Header().Set("X-Final", "1")
			io.WriteString(w, "x")
			flush(w)
		}, false},
		{"declares trailers", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum, x-count")
			w.Header().Add("Trailer", "X-Never")
			io.WriteString(w, "hello")
			w.Header().Set("X-Sum", "1")
			w.Header()["X-Count"] = []string{"2", "3"}
			w.Header().Set("X-Undeclared", "4")
		}, false},
		{"declares trailers and streams", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			io.WriteString(w, "hello")
			flush(w)
			io.WriteString(w, "world")
			w.Header().Set("X-Sum", "1")
		}, false},
		{"thinks of trailers late", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "hello")
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
		}, true},
		{"thinks of trailers late and streams", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "hello")
			flush(w)
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
		}, false},
		{"thinks of trailers early", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
			io.WriteString(w, "hello")
		}, false},
		{"changes values in place when the header is written", func(w http.ResponseWriter, _ *http.Request) {
			kept := []string{"1", "2"}
			w.Header()["X-A"] = kept
			w.WriteHeader(201)
			kept[1] = "late"
			io.WriteString(w, "x")
		}, false},
		{"changes values in place while it streams", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["X-A"] = []string{"1", "2"}
			io.WriteString(w, "hello")
			flush(w)
			w.Header()["X-A"][1] = "late"
			for i := range w.Header()["Content-Type"] { // if it is there, who streams has guessed it
				w.Header()["Content-Type"][i] = "text/late"
			}
		}, false},
		{"changes values in place while it streams, and trailers", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			w.Header()["X-A"] = []string{"1", "2"}
			w.Header()["X-Sum"] = []string{"0"}
			io.WriteString(w, "hello")
			flush(w)
			w.Header()["X-A"][1] = "late"
			w.Header()["X-Sum"][0] = "1"
		}, false},
		{"removes and changes what an outer layer has set", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Del("X-Powered-By")
			w.Header().Add("Vary", "Accept")
			w.Header().Set("X-Frame-Options", "SAMEORIGIN")
			io.WriteString(w, "x")
		}, false},
		{"compresses", squeeze(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, big)
		})).ServeHTTP, false},
		{"compresses a stream", squeeze(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "hello")
			flush(w)
			io.WriteString(w, "world")
		})).ServeHTTP, false},
		{"has a time limit and keeps it", http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-A", "1")
			w.WriteHeader(201)
			io.WriteString(w, "in time")
		}), time.Hour, "").ServeHTTP, false},
		{"has a time limit and exceeds it", http.TimeoutHandler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			<-over // one that returned at the end of its context could still be in time
		}), time.Millisecond, "too late").ServeHTTP, false},
		{"is a reverse proxy", httputil.NewSingleHostReverseProxy(up).ServeHTTP, false},
		{"pushes", func(w http.ResponseWriter, _ *http.Request) {
			if p, ok := w.(http.Pusher); ok {
				p.Push("/a.css", nil)
			}
			io.WriteString(w, "x")
		}, false},
		{"echoes its request", func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %q %v %d %v", r.Method, r.URL, b, err, r.ContentLength, r.Header.Get("Content-Type"))
			n, err := r.Body.Read(make([]byte, 1))
			fmt.Fprint(w, n, err, r.Body.Close())
		}, false},
	} {
		for _, layer := range []struct {
			name string
			wrap func(http.Handler) http.Handler
		}{
			{"", func(h http.Handler) http.Handler { return h }},
			{" behind a layer that sets headers", dress},
			{" behind a layer that compresses", squeeze},
			{" behind a layer with a time limit", func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Hour, "") }},
		} {
			t.Run(tt.name+layer.name, func(t *testing.T) {
				eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
					alone := serve(tt.handler)
					plain := alone.send(alone.request(t, "POST", "/", "", "{}"))
					bare := serve(layer.wrap(tt.handler))
					var runs atomic.Int32
					m := &Middleware{Store: &MemoryStore{}, Logger: quiet}
					once := serve(layer.wrap(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						runs.Add(1)
						tt.handler(w, r)
					}))))
					want := bare.send(bare.request(t, "POST", "/refunds?a=b", "k", `{"amount":100}`, "X-Request-Id", "1"))
					if _, err := plainBody(want); want.err != nil || err != nil || want.status != plain.status {
						return // it does not work there without a Middleware either
					}
					first := once.post(t, "/refunds?a=b", "k", "X-Request-Id", "1")
					again := once.post(t, "/refunds?a=b", "k", "X-Request-Id", "2")
					third := once.post(t, "/refunds?a=b", "k", "X-Request-Id", "2")
					if runs.Load() != 1 {
						t.Errorf("%d runs, want 1", runs.Load())
					}
					wantReplay(t, again)
					if want.status < 500 {
						wantFirst(t, first)
					}

					var gone []string
					if tt.better && len(want.trailer) == 0 {
						want.trailer = first.trailer
						if len(first.trailer) == 0 && !strings.Contains(layer.name, "time limit") {
							t.Error("the trailers are lost")
						}
						gone = append(gone, "Content-Length") // chunked instead
					}
					if strings.Contains(layer.name, "time limit") {
						// http.TimeoutHandler takes header changes that come too late.
						gone = append(gone, "X-Late", "X-A", "X-B", "X-Undeclared")
					}
					compare(t, "first", first, want, append(gone, "Date", headerStatus)...)
					if len(first.early) != len(want.early) {
						t.Errorf("1xx: %v, want %v", first.early, want.early)
					}
					if first.header["X-Request-Id"] != nil { // a reverse proxy clears it
						if again.header.Get("X-Request-Id") != "2" {
							t.Errorf("X-Request-Id of the replay is %q, want its own", again.header.Get("X-Request-Id"))
						}
					}
					// A stream's length is not known in advance; a replay's is.
					compare(t, "replay", again, first, "Date", headerStatus, headerReplayed, "Set-Cookie", "X-Request-Id", "Content-Length", "Trailer")
					compare(t, "second replay", third, again, "Date")
					if again.header["Set-Cookie"] != nil {
						t.Errorf("a cookie was replayed: %v", again.header)
					}
					if len(again.early) != 0 {
						t.Errorf("1xx responses were replayed: %v", again.early)
					}
				})
			})
		}
	}
}

func plainBody(r reply) (string, error) {
	z, err := gzip.NewReader(strings.NewReader(r.body))
	if err != nil {
		return r.body, nil
	}
	b, err := io.ReadAll(z)
	return string(b), err
}

// compare compares replies but for the fields named.
func compare(t *testing.T, what string, got, want reply, but ...string) {
	t.Helper()
	for _, r := range []*reply{&got, &want} { // how it is cut into blocks does not matter
		var err error
		if r.body, err = plainBody(*r); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got.status != want.status || got.body != want.body {
		t.Errorf("%s: %d %.100q, want %d %.100q", what, got.status, got.body, want.status, want.body)
	}
	g, w := got.header.Clone(), want.header.Clone()
	for _, name := range but {
		g.Del(name)
		w.Del(name)
	}
	if !maps.EqualFunc(g, w, slices.Equal) {
		t.Errorf("%s: header\n%v, want\n%v", what, g, w)
	}
	// A trailer that was announced and never came is there without values.
	given := func(h http.Header) http.Header {
		h = h.Clone()
		maps.DeleteFunc(h, func(_ string, v []string) bool { return len(v) == 0 })
		return h
	}
	if !maps.EqualFunc(given(got.trailer), given(want.trailer), slices.Equal) {
		t.Errorf("%s: trailer %v, want %v", what, got.trailer, want.trailer)
	}
}

func TestCaptureRecordsNothingThatIsNotTheAnswers(t *testing.T) {
	s := serve(t, "HTTP/1.1", (&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Set-Cookie": "session=1", "Date": "Mon, 30 Nov 2026 00:00:00 GMT", "Authorization": "Bearer x", "X-Auth-Token": "x",
			"Connection": "X-Hop", "X-Hop": "1", "Keep-Alive": "timeout=5", "Proxy-Authenticate": "Basic", "Authentication-Info": "x",
			"Location": "/refunds/1", "Etag": `"1"`, "Cache-Control": "no-store", "X-Balance": "1",
		} {
			w.Header().Set(name, value)
		}
		w.WriteHeader(201)
	})))
	first := s.post(t, "/", "k")
	if first.header.Get("Set-Cookie") == "" || first.header.Get("Authorization") == "" {
		t.Errorf("first: %v; want all of it", first.header)
	}
	again := s.post(t, "/", "k")
	for _, name := range []string{"Set-Cookie", "Authorization", "X-Auth-Token", "Connection", "X-Hop", "Keep-Alive", "Proxy-Authenticate", "Authentication-Info"} {
		if v, ok := again.header[name]; ok {
			t.Errorf("%s was replayed: %q", name, v)
		}
	}
	if again.header.Get("Date") == "Mon, 30 Nov 2026 00:00:00 GMT" {
		t.Error("Date was replayed")
	}
	for _, name := range []string{"Location", "Etag", "Cache-Control", "X-Balance"} {
		if again.header.Get(name) != first.header.Get(name) {
			t.Errorf("%s was not replayed", name)
		}
	}
}

func TestCaptureCorrectsADeclaredLength(t *testing.T) {
	for _, declared := range []string{"3", "50", "0"} {
		s := serve(t, "HTTP/1.1", (&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", declared)
			if n, err := io.WriteString(w, "hello"); n != 5 || err != nil {
				t.Errorf("Write: %d, %v", n, err)
			}
		})))
		first, again := s.post(t, "/", "k"), s.post(t, "/", "k")
		if first.body != "hello" || again.body != "hello" || first.header.Get("Content-Length") != "5" || again.header.Get("Content-Length") != "5" {
			t.Errorf("declared %s: %+v, then %+v", declared, first, again)
		}
	}
}

func TestCapturePassesOnWhatIsTooLargeToRecord(t *testing.T) {
	const limit = 1000
	piece := strings.Repeat("x", 300)
	for _, tt := range []struct {
		name   string
		write  func(w http.ResponseWriter)
		size   int
		passed bool
	}{
		{"just the limit", func(w http.ResponseWriter) { io.WriteString(w, strings.Repeat("x", limit)) }, limit, false},
		{"one byte more", func(w http.ResponseWriter) { io.WriteString(w, strings.Repeat("x", limit+1)) }, limit + 1, true},
		{"in pieces", func(w http.ResponseWriter) {
			for range 10 {
				io.WriteString(w, piece)
			}
		}, 3000, true},
		{"as a stream", func(w http.ResponseWriter) {
			for range 10 {
				io.WriteString(w, piece)
				w.(http.Flusher).Flush()
			}
		}, 3000, true},
		{"by io.Copy", func(w http.ResponseWriter) { io.Copy(w, onlyReader{strings.NewReader(strings.Repeat(piece, 10))}) }, 3000, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
				mem := &MemoryStore{}
				var runs atomic.Int32
				s := serve((&Middleware{Store: mem, MaxResponse: limit, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					runs.Add(1)
					w.WriteHeader(201)
					tt.write(w)
				})))
				first := s.post(t, "/", "k")
				wantFirst(t, first)
				if first.status != 201 || len(first.body) != tt.size {
					t.Errorf("first: %d with %d bytes, want 201 with %d", first.status, len(first.body), tt.size)
				}
				again := s.post(t, "/", "k")
				if tt.passed {
					wantProblem(t, again, "response-gone", 409, false, false, "applied")
				} else {
					wantReplay(t, again)
				}
				rec, err := mem.Show(t.Context(), RecordKey("", "POST", "/", "k"))
				if err != nil || len(rec.Body) > limit || tt.passed && len(rec.Body) != 0 {
					t.Errorf("%d bytes are stored, %v", len(rec.Body), err)
				}
				if runs.Load() != 1 {
					t.Errorf("%d runs", runs.Load())
				}
			})
		})
	}
}

// The first bytes of a stream must not wait for its end.
func TestCaptureStreamsAsItIsWritten(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		next := make(chan bool)
		s := serve((&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := range 3 {
				fmt.Fprintln(w, i)
				w.(http.Flusher).Flush()
				<-next
			}
		})))
		resp, err := s.client.Do(s.request(t, "POST", "/", "k", "{}"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for i := range 3 {
			if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
				t.Fatalf("line %d: %q, %v", i, lines.Text(), lines.Err())
			}
			next <- true
		}
		if lines.Scan() || lines.Err() != nil {
			t.Errorf("then %q, %v", lines.Text(), lines.Err())
		}
		again := s.send(s.request(t, "POST", "/", "k", "{}"))
		wantReplay(t, again)
		if again.body != "0\n1\n2\n" {
			t.Errorf("replay: %q", again.body)
		}
	})
}

// A repeat must not meet a stream's key before its record is there.
func TestCaptureEndsAStreamAfterItIsRecorded(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		recorded := make(chan bool)
		store := &faulty{Store: &MemoryStore{}, before: during("Complete", func(context.Context, storeCall) error {
			<-recorded
			return nil
		})}
		s := serve((&Middleware{Store: store, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "hello")
			w.(http.Flusher).Flush()
		})))
		resp, err := s.client.Do(s.request(t, "POST", "/", "k", "{}"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		ended := make(chan error)
		go func() {
			_, err := io.Copy(io.Discard, resp.Body)
			ended <- err
		}()
		select {
		case <-ended:
			t.Error("the stream ended before it was recorded")
		case <-time.After(20 * time.Millisecond):
		}
		recorded <- true
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A stream that is no longer the answer must not look complete.
func TestCaptureAbortsAStreamWhoseClaimWasLost(t *testing.T) {
	for _, when := range []string{"while it runs", "at its end"} {
		t.Run(when, func(t *testing.T) {
			eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
				mem := &MemoryStore{}
				m := &Middleware{Store: mem, Lease: 30 * time.Millisecond, Logger: quiet}
				s := serve(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					io.WriteString(w, "hello")
					w.(http.Flusher).Flush()
					run := r.Context().Value(runKey{}).(*run)
					mem.Renew(r.Context(), run.op, 0)
					thief := run.op
					thief.Token = "thief"
					mem.TakeOver(r.Context(), thief, time.Hour, time.Hour)
					mem.Complete(r.Context(), thief, EncodeResponse(201, nil, []byte("the thief's")), []byte("the thief's"), time.Hour)
					if when == "while it runs" {
						<-r.Context().Done()
						if _, err := io.WriteString(w, "world"); !errors.Is(err, ErrClaimLost) {
							t.Errorf("Write: %v, want ErrClaimLost", err)
						}
						if err := http.NewResponseController(w).Flush(); !errors.Is(err, ErrClaimLost) {
							t.Errorf("Flush: %v, want ErrClaimLost", err)
						}
					}
				})))
				got := s.send(s.request(t, "POST", "/", "k", "{}"))
				if got.err == nil || strings.Contains(got.body, "world") {
					t.Errorf("the client got %q, %v; want a stream cut short", got.body, got.err)
				}
				again := s.send(s.request(t, "POST", "/", "k", "{}"))
				wantReplay(t, again)
				if again.body != "the thief's" {
					t.Errorf("replay: %q", again.body)
				}
			})
		})
	}
}

// What was held back is dropped for the winner's answer, headers and all.
func TestCaptureIsDroppedWhenItsClaimWasLost(t *testing.T) {
	mem := &MemoryStore{}
	s := serve(t, "HTTP/1.1", dress((&Middleware{Store: mem, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		run := r.Context().Value(runKey{}).(*run)
		mem.Renew(r.Context(), run.op, 0)
		thief := run.op
		thief.Token = "thief"
		mem.TakeOver(r.Context(), thief, time.Hour, time.Hour)
		mem.Complete(r.Context(), thief, EncodeResponse(201, http.Header{"X-Thief": {"1"}}, []byte("the thief's")), []byte("the thief's"), time.Hour)
		w.Header().Set("X-Own", "1")
		w.Header().Set("Set-Cookie", "own=1")
		w.Header().Del("X-Powered-By")
		io.WriteString(w, "our own")
	}))))
	got := s.post(t, "/", "k")
	wantReplay(t, got)
	if got.status != 201 || got.body != "the thief's" || got.header.Get("X-Thief") != "1" || got.header.Get("X-Own") != "" ||
		got.header.Get("Set-Cookie") != "" || got.header.Get("X-Powered-By") != "outer" {
		t.Errorf("%+v", got)
	}
}

// A client that stops reading holds up nobody's work for ever.
func TestCaptureGivesUpAClientThatStopsReading(t *testing.T) {
	for _, serverTimeout := range []time.Duration{0, time.Minute} {
		t.Run(serverTimeout.String(), func(t *testing.T) {
			var outcomes recorder
			m := &Middleware{Store: &MemoryStore{}, Wait: 50 * time.Millisecond, MaxResponse: 1 << 30, Logger: quiet, OnOutcome: outcomes.add}
			chunk := bytes.Repeat([]byte("x"), 1<<20)
			wrote := make(chan bool, 1)
			ts := httptest.NewUnstartedServer(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for range 32 { // more than socket buffers hold
					if n, err := w.Write(chunk); n != len(chunk) || err != nil {
						t.Errorf("Write: %d, %v; want its error hidden", n, err)
					}
					w.(http.Flusher).Flush()
				}
				wrote <- true
			})))
			ts.Config.WriteTimeout = serverTimeout
			ts.Start()
			defer ts.Close()
			c, err := net.Dial("tcp", ts.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
			select {
			case <-wrote:
			case <-time.After(30 * time.Second):
				t.Fatal("the handler is held up")
			}
			if all := outcomes.want(t, OutcomeRan); len(all) == 1 && !all[0].Recorded {
				t.Errorf("%+v, want it recorded", all[0])
			}
		})
	}
}

// A deadline for the client must not end a stream that merely pauses.
func TestCaptureLetsAStreamPause(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		m := &Middleware{Store: &MemoryStore{}, Wait: 1, Logger: quiet}
		s := serve(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for range 2 {
				io.WriteString(w, "tick\n")
				w.(http.Flusher).Flush()
				time.Sleep(minReading + 100*time.Millisecond)
			}
		})))
		got := s.send(s.request(t, "POST", "/", "k", "{}"))
		if got.err != nil || got.body != "tick\ntick\n" {
			t.Errorf("%q, %v", got.body, got.err)
		}
	})
}

func TestCaptureCannotFlushWhatCannotBeFlushed(t *testing.T) {
	// http.TimeoutHandler's ResponseWriter has no Flush.
	s := serve(t, "HTTP/1.1", http.TimeoutHandler((&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello")
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Flush: %v, want ErrNotSupported", err)
		}
	})), time.Hour, ""))
	got := s.post(t, "/", "k")
	wantFirst(t, got)
	if got.body != "hello" {
		t.Errorf("%+v", got)
	}
}

// Within a transaction nothing may go out before the commit.
func TestCaptureHoldsEverythingWithinATransaction(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		faults txFaults
		say    func(context.Context)
		want   string // of the first answer; "" means the handler's own
		again  string // of the repeat; "" means a replay; "ran" means a second run
	}{
		{"a 201 is committed", 201, txFaults{}, nil, "", ""},
		{"a 404 is committed", 404, txFaults{}, nil, "", ""},
		{"a 500 is rolled back", 500, txFaults{}, nil, "", "ran"},
		{"a 429 is rolled back", 429, txFaults{}, nil, "", "ran"},
		{"Release rolls back", 201, txFaults{}, Release, "", "ran"},
		{"Unknown and a 500 leave an orphan", 500, txFaults{}, Unknown, "", "outcome-unknown"},
		{"a commit that nobody knows of is unknown", 201, txFaults{lose: ErrOutcomeUnknown}, nil, "outcome-unknown", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := &transacting{MemoryStore: &MemoryStore{}, txFaults: tt.faults}
			var runs atomic.Int32
			s := serve(t, "HTTP/1.1", (&Middleware{Store: store, MaxResponse: 20, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				write(r.Context(), fmt.Sprint("run ", runs.Add(1)))
				w.Header().Set("X-Own", "1")
				w.WriteHeader(tt.status)
				io.WriteString(w, "hello")
				if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
					t.Errorf("Flush: %v, want ErrNotSupported", err)
				}
				w.(http.Flusher).Flush()
				if tt.say != nil {
					tt.say(r.Context())
				}
			})))
			first, again := s.post(t, "/", "k"), s.post(t, "/", "k")
			if tt.want != "" {
				wantProblem(t, first, tt.want, 409, false, false, "unknown")
				if first.header.Get("X-Own") != "" {
					t.Error("the handler's header went out")
				}
			} else if first.status != tt.status || first.body != "hello" {
				t.Errorf("first: %+v", first)
			}
			switch tt.again {
			case "":
				wantReplay(t, again)
				if tt.want == "" {
					wantFirst(t, first)
				}
			case "ran":
				wantUnmarked(t, first)
				wantUnmarked(t, again)
				if runs.Load() != 2 || len(store.writes) != 0 {
					t.Errorf("%d runs, writes %v", runs.Load(), store.writes)
				}
			default:
				wantUnmarked(t, first)
				wantProblem(t, again, tt.again, 409, false, false, "unknown")
			}
		})
	}
	// What is too large to record is still sent, after the commit.
	store := &transacting{MemoryStore: &MemoryStore{}}
	s := serve(t, "HTTP/1.1", (&Middleware{Store: store, MaxResponse: 20, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		write(r.Context(), "refund")
		io.WriteString(w, strings.Repeat("x", 21))
	})))
	first := s.post(t, "/", "k")
	wantFirst(t, first)
	if len(first.body) != 21 || len(store.writes) != 1 {
		t.Errorf("%+v, writes %v", first, store.writes)
	}
	wantProblem(t, s.post(t, "/", "k"), "response-gone", 409, false, false, "applied")
	// A commit that was refused for certain is asked for again.
	store.commit = ErrRolledBack
	refused := s.post(t, "/", "k1")
	wantProblem(t, refused, "rolled-back", 503, true, false, "unknown")
	if refused.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After is %q", refused.header.Get("Retry-After"))
	}
	store.commit = nil
	wantFirst(t, s.post(t, "/", "k1"))
	// And not before it.
	store.commit = ErrOutcomeUnknown
	wantProblem(t, s.post(t, "/", "k2"), "outcome-unknown", 409, false, false, "unknown")
}
