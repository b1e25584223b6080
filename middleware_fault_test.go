package oncehttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp/internal/badlog"
)

// ask serves one request without a network, as tests in bubbles need it.
func ask(h http.Handler, key string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/refunds", strings.NewReader(`{"amount":100}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(Header, key)
	for _, e := range edit {
		e(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func wantRefusal(t *testing.T, w *httptest.ResponseRecorder, kind string) {
	t.Helper()
	if !strings.Contains(w.Body.String(), `"urn:oncehttp:`+kind+`"`) {
		t.Errorf("got %d %s, want %s", w.Code, w.Body, kind)
	}
}

func TestMiddlewareGivesAThousandTwinsOneAnswer(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		all := make(chan bool)
		h := &refunds{enter: func(int32) { <-all }}
		m := &Middleware{Store: &MemoryStore{}, Wait: time.Minute, Logger: quiet}
		var waiting atomic.Int32
		protected := m.Handler(h)
		s := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if waiting.Add(1) == 1000 {
				close(all)
			}
			protected.ServeHTTP(w, r)
		}))
		tr := s.client.Transport.(*http.Transport)
		tr.MaxIdleConnsPerHost = 1000
		// A listener's backlog is short; what overflows it may hang for ever.
		dialing, dialer := make(chan bool, 8), &net.Dialer{}
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dialing <- true
			defer func() { <-dialing }()
			return dialer.DialContext(ctx, network, addr)
		}
		var first atomic.Int32
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				got := s.send(s.request(t, "POST", "/refunds", "k", `{"amount":100}`))
				if got.err != nil || got.status != 201 || got.body != `{"refund":1}` {
					t.Errorf("%+v", got)
				}
				if got.header.Get(headerStatus) == "executed" {
					first.Add(1)
				} else {
					wantReplay(t, got)
				}
			})
		}
		wg.Wait()
		h.want(t, 1)
		if first.Load() != 1 {
			t.Errorf("%d answers are marked as the first", first.Load())
		}
	})
}

// The commonest cause of double effects: the client hangs up, and comes back.
func TestMiddlewareFinishesWhenItsClientIsGone(t *testing.T) {
	for _, how := range []string{"buffered", "streaming", "larger than a record"} {
		t.Run(how, func(t *testing.T) {
			eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
				entered, left := make(chan bool), make(chan bool)
				var runs atomic.Int32
				var outcomes recorder
				m := &Middleware{Store: &MemoryStore{}, Wait: 10 * time.Second, MaxResponse: 1 << 20, Logger: quiet, OnOutcome: outcomes.add}
				s := serve(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					runs.Add(1)
					outer := r.Context().Value(http.ServerContextKey)
					w.WriteHeader(201)
					switch how {
					case "streaming":
						io.WriteString(w, "hel")
						w.(http.Flusher).Flush()
					case "larger than a record":
						io.WriteString(w, strings.Repeat("x", 1<<20+1))
						w.(http.Flusher).Flush()
					}
					entered <- true
					<-left
					// Time enough for the server to notice.
					for range 50 {
						if r.Context().Err() != nil {
							t.Errorf("the handler's context has ended: %v", context.Cause(r.Context()))
						}
						if n, err := io.WriteString(w, "."); n != 1 || err != nil {
							t.Errorf("Write: %d, %v", n, err)
						}
						if how == "streaming" {
							if err := http.NewResponseController(w).Flush(); err != nil {
								t.Errorf("Flush: %v", err)
							}
						}
						time.Sleep(time.Millisecond)
					}
					if outer == nil {
						t.Error("the values of the request's context are lost")
					}
				})))
				ctx, cancel := context.WithCancel(t.Context())
				go func() { <-entered; cancel(); time.Sleep(10 * time.Millisecond); close(left) }()
				if got := s.send(s.request(t, "POST", "/", "k", "{}").WithContext(ctx)); got.err == nil {
					t.Fatalf("%+v, want the request cancelled", got)
				}
				again := s.send(s.request(t, "POST", "/", "k", "{}"))
				if how == "larger than a record" {
					wantProblem(t, again, "response-gone", 409, false, false, "applied")
				} else {
					wantReplay(t, again)
					if again.status != 201 || !strings.HasSuffix(again.body, strings.Repeat(".", 50)) {
						t.Errorf("%+v", again)
					}
				}
				if runs.Load() != 1 {
					t.Errorf("%d runs, want 1", runs.Load())
				}
			})
		})
	}
}

func TestMiddlewareFinishesBehindATimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &refunds{enter: func(int32) { time.Sleep(3 * time.Second) }}
		m := &Middleware{Store: &MemoryStore{}, Logger: quiet}
		limited := http.TimeoutHandler(m.Handler(h), time.Second, "too late")
		if w := ask(limited, "k"); w.Code != 503 || w.Body.String() != "too late" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		time.Sleep(5 * time.Second)
		if w := ask(limited, "k"); w.Code != 201 || w.Body.String() != `{"refund":1}` || w.Header().Get(headerReplayed) != "true" {
			t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
		}
		h.want(t, 1)
	})
}

func TestMiddlewareEndsAHandlerThatTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var outcomes recorder
		m := &Middleware{Store: &MemoryStore{}, Timeout: time.Minute, Logger: quiet, OnOutcome: outcomes.add}
		h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			if !errors.Is(r.Context().Err(), context.DeadlineExceeded) || !strings.Contains(context.Cause(r.Context()).Error(), "Timeout") {
				t.Errorf("%v because of %v", r.Context().Err(), context.Cause(r.Context()))
			}
			// It would free the key, but a repeat may not rely on it any more.
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(503)
		}))
		began := time.Now()
		if w := ask(h, "k"); w.Code != 503 || w.Header().Get(headerStatus) != "executed" {
			t.Errorf("%d %v, want a recorded 503", w.Code, w.Header())
		}
		if d := time.Since(began); d != time.Minute {
			t.Errorf("took %v, want 1 min", d)
		}
		if w := ask(h, "k"); w.Code != 503 || w.Header().Get(headerReplayed) != "true" {
			t.Errorf("%d %v, want it replayed", w.Code, w.Header())
		}
		outcomes.want(t, OutcomeRan, OutcomeReplayed)
	})
}

// What a client is told when the store fails, by phase and by kind of failure.
func TestMiddlewareStoreFaultsByPhase(t *testing.T) {
	kinds := []struct {
		name          string
		before, after func(context.Context, storeCall) error
	}{
		{"an error before the effect", fails, nil},
		{"an error after the effect", nil, fails},
		{"a hanging call before the effect", hangs, nil},
		{"a hanging call after the effect", nil, hangs},
		{"a panic before the effect", panics, nil},
		{"a panic after the effect", nil, panics},
		{"a slow answer", slow(2 * time.Second), nil},
	}
	for _, kind := range kinds {
		for _, method := range []string{"Claim", "Renew", "Complete", "Release"} {
			for _, outage := range []time.Duration{0, time.Minute} { // 0: the first call only
				t.Run(fmt.Sprintf("%s of %s for %v", kind.name, method, outage), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						began := time.Now()
						only := func(act func(context.Context, storeCall) error) func(context.Context, storeCall) error {
							return during(method, func(ctx context.Context, c storeCall) error {
								if act == nil || c.n > 1 && time.Since(began) >= outage {
									return nil
								}
								return act(ctx, c)
							})
						}
						s := &faulty{Store: &MemoryStore{}, before: only(kind.before), after: only(kind.after)}
						h := &refunds{enter: func(int32) { time.Sleep(15 * time.Second) }}
						if method == "Release" {
							h.status = 429
						}
						m := &Middleware{Store: s, Logger: quiet}
						p := m.Handler(h)
						first := ask(p, "k")
						took := time.Since(began)

						refused := method == "Claim" && outage > 0 && kind.name != "a slow answer"
						switch {
						case refused:
							wantRefusal(t, first, "store-unavailable")
							h.want(t, 0)
							if took > 10*time.Second {
								t.Errorf("refused after %v", took)
							}
						default:
							want := 201
							if method == "Release" {
								want = 429
							}
							if first.Code != want || first.Body.String() != `{"refund":1}` {
								t.Errorf("%d %s, want our own answer", first.Code, first.Body)
							}
							h.want(t, 1)
							if took > 30*time.Second {
								t.Errorf("answered after %v", took)
							}
							// A call that hangs takes all of Wait.
							unconfirmed := method == "Complete" && (outage > 0 && kind.name != "a slow answer" || strings.HasPrefix(kind.name, "a hanging"))
							marked := first.Header().Get(headerStatus) == "executed"
							if marked == unconfirmed && method != "Release" {
								t.Errorf("marked as recorded: %v, want %v", marked, !unconfirmed)
							}
						}
						if err := m.Drain(t.Context()); err != nil {
							t.Error(err)
						}
						time.Sleep(2 * time.Minute)

						again := ask(p, "k")
						switch {
						case method == "Release":
							if again.Code != 429 || again.Header().Get(headerReplayed) != "" {
								t.Errorf("the retry: %d %s %v, want another run", again.Code, again.Body, again.Header())
							}
							h.want(t, 2)
						case refused:
							if again.Code != 201 || again.Header().Get(headerStatus) != "executed" {
								t.Errorf("the retry: %d %s %v, want its first run", again.Code, again.Body, again.Header())
							}
							h.want(t, 1)
						default:
							if again.Code != 201 || again.Header().Get(headerReplayed) != "true" || again.Body.String() != first.Body.String() {
								t.Errorf("the retry: %d %s %v, want a replay", again.Code, again.Body, again.Header())
							}
							h.want(t, 1)
						}
						if err := m.Drain(t.Context()); err != nil {
							t.Error(err)
						}
					})
				})
			}
		}
	}
}

func TestMiddlewareDrainWaitsForWhatIsOwedToTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		s := &faulty{Store: &MemoryStore{}, before: func(ctx context.Context, c storeCall) error {
			if down.Load() {
				return errStore
			}
			return nil
		}}
		m := &Middleware{Store: s, Logger: quiet}
		if err := m.Drain(t.Context()); err != nil {
			t.Errorf("before its first use: %v", err)
		}
		p := m.Handler(&refunds{enter: func(int32) { down.Store(true) }})
		ask(p, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := m.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain: %v, want DeadlineExceeded", err)
		}
		down.Store(false)
		if err := m.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if w := ask(p, "k"); w.Header().Get(headerReplayed) != "true" {
			t.Errorf("%d %s, want a replay", w.Code, w.Body)
		}
	})
}

// A rolling restart: the claim of a process that is gone must neither run again
// on a guess nor block its key for ever.
func TestMiddlewareAfterAnotherProcessCrashed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := &MemoryStore{}
		crashed := make(chan bool)
		go func() {
			p := (&Middleware{Store: &faulty{Store: mem, before: func(_ context.Context, c storeCall) error {
				if c.method != "Claim" {
					<-crashed // nothing is heard of it any more
					return errStore
				}
				return nil
			}}, Timeout: time.Second, Logger: quiet}).Handler(&refunds{})
			ask(p, "k")
		}()
		time.Sleep(time.Second)
		h := &refunds{}
		p := (&Middleware{Store: mem, Logger: quiet}).Handler(h)
		wantRefusal(t, ask(p, "k"), "in-progress")
		time.Sleep(30 * time.Second)
		wantRefusal(t, ask(p, "k"), "outcome-unknown")
		h.want(t, 0)
		// Somebody looks it up and says that it happened.
		key := RecordKey("", "POST", "/refunds", "k")
		body := []byte(`{"refund":"found by hand"}`)
		if err := mem.Resolve(t.Context(), key, Resolution{Applied: true, Head: EncodeResponse(201, http.Header{"Content-Type": {"application/json"}}, body), Body: body}); err != nil {
			t.Fatal(err)
		}
		if w := ask(p, "k"); w.Code != 201 || w.Body.String() != string(body) || w.Header().Get(headerReplayed) != "true" {
			t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
		}
		close(crashed)
		time.Sleep(2 * time.Hour)
		h.want(t, 0)
	})
}

// A handler may do what it likes with its request: the record is made of what
// the client sent.
func TestMiddlewareRecordsTheRequestAsItCame(t *testing.T) {
	var runs atomic.Int32
	p := (&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		b, _ := io.ReadAll(r.Body)
		for i := range b {
			b[i] = 'x'
		}
		r.Method, r.URL.Path, r.URL.RawQuery, r.RequestURI, r.Host = "GET", "/x", "x=x", "/x", "x"
		clear(r.Header)
		w.WriteHeader(201)
	}))
	same := func(r *http.Request) { r.Header = r.Header.Clone() }
	ask(p, "k", same)
	if w := ask(p, "k", same); w.Code != 201 || w.Header().Get(headerReplayed) != "true" || runs.Load() != 1 {
		t.Errorf("%d %v after %d runs", w.Code, w.Header(), runs.Load())
	}
}

func TestMiddlewareLeavesNoTemporaryFiles(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s := serve(t, "HTTP/1.1", (&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		if files, _ := os.ReadDir(os.TempDir()); len(files) == 0 {
			t.Error("no file was written; this test tests nothing")
		}
	})))
	var body strings.Builder
	form := multipart.NewWriter(&body)
	part, _ := form.CreateFormFile("file", "a.txt")
	io.WriteString(part, strings.Repeat("x", 100<<10))
	form.Close()
	r := s.request(t, "POST", "/", "k", body.String())
	r.Header.Set("Content-Type", form.FormDataContentType())
	wantFirst(t, s.send(r))
	if files, _ := os.ReadDir(os.TempDir()); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

func TestMiddlewareTellsOuterLayersThePattern(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("POST /refunds", &refunds{})
	p := (&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(mux)
	r := httptest.NewRequest("POST", "/refunds", nil)
	r.Header.Set(Header, "k")
	p.ServeHTTP(httptest.NewRecorder(), r)
	if r.Pattern != "POST /refunds" {
		t.Errorf("Pattern = %q", r.Pattern)
	}
}

// Bodies that arrive oddly, or not at all. wire is what a client writes behind
// the request's first lines; it then hangs up, if it is not complete.
func TestMiddlewareMeetsOddBodies(t *testing.T) {
	for _, tt := range []struct {
		name   string
		wire   string
		status int
		runs   int32
		body   string // what the handler reads
	}{
		{"none", "\r\n", 201, 1, ""},
		{"of length 0", "Content-Length: 0\r\n\r\n", 201, 1, ""},
		{"of one byte", "Content-Length: 1\r\n\r\nx", 201, 1, "x"},
		{"of the limit", "Content-Length: 100\r\n\r\n" + strings.Repeat("x", 100), 201, 1, strings.Repeat("x", 100)},
		{"of more than the limit", "Content-Length: 101\r\n\r\n" + strings.Repeat("x", 101), 413, 0, ""},
		{"of far more than the limit", "Content-Length: 9000000000000000000\r\n\r\n", 413, 0, ""},
		{"of more than it says", "Content-Length: 2\r\n\r\nxyz", 201, 1, "xy"},
		{"of less than it says", "Content-Length: 9\r\n\r\nxyz", 0, 0, ""},
		{"that is not there", "Content-Length: 9\r\n\r\n", 0, 0, ""},
		{"with two lengths", "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy", 400, 0, ""},
		{"of negative length", "Content-Length: -1\r\n\r\n", 400, 0, ""},
		{"in chunks", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n2\r\nyz\r\n0\r\n\r\n", 201, 1, "xyz"},
		{"in no chunks", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 201, 1, ""},
		{"in chunks beyond the limit", "Transfer-Encoding: chunked\r\n\r\n65\r\n" + strings.Repeat("x", 101) + "\r\n0\r\n\r\n", 413, 0, ""},
		{"in a chunk that is cut", "Transfer-Encoding: chunked\r\n\r\n9\r\nxyz", 0, 0, ""},
		{"in chunks without an end", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", 0, 0, ""},
		{"in a chunk of no size", "Transfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n", 400, 0, ""},
		{"in a chunk of a huge size", "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx\r\n", 400, 0, ""},
		{"with a trailer", "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n", 201, 1, "x"},
		{"that waits to be asked for", "Expect: 100-continue\r\nContent-Length: 3\r\n\r\nxyz", 201, 1, "xyz"},
		{"that is too large and waits to be asked for", "Expect: 100-continue\r\nContent-Length: 101\r\n\r\n", 413, 0, ""},
		{"that is not the JSON it says it is", "Content-Type: application/json\r\nContent-Length: 3\r\n\r\n{x}", 201, 1, "{x}"},
		{"with a member twice", "Content-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"a\":1,\"a\":2}", 201, 1, `{"a":1,"a":2}`},
		{"that is not UTF-8", "Content-Type: application/json\r\nContent-Length: 3\r\n\r\n\"\xff\"", 201, 1, "\"\xff\""},
		{"nested too deeply", "Content-Type: application/json\r\nContent-Length: 90\r\n\r\n" + strings.Repeat("[", 90), 201, 1, strings.Repeat("[", 90)},
		{"multipart without a boundary", "Content-Type: multipart/form-data\r\nContent-Length: 3\r\n\r\nxyz", 201, 1, "xyz"},
		{"multipart that is cut", "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 8\r\n\r\n--b\r\nA: ", 201, 1, "--b\r\nA: "},
		{"of a media type that is none", "Content-Type: ;;;=\r\nContent-Length: 1\r\n\r\nx", 201, 1, "x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &refunds{}
			body := "unread"
			mem := &MemoryStore{}
			m := &Middleware{Store: mem, MaxBody: 100, Logger: quiet}
			s := serve(t, "HTTP/1.1", m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				if body = string(b); r.Header.Get("Trailer") != "" && r.Trailer.Get("X-Sum") != "1" {
					t.Errorf("trailer: %v", r.Trailer)
				}
				h.ServeHTTP(w, r)
			})))
			try := func() int {
				c, err := net.Dial("tcp", s.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n"+tt.wire)
				c.(*net.TCPConn).CloseWrite()
				b := bufio.NewReader(c)
				resp, err := http.ReadResponse(b, nil)
				for err == nil && resp.StatusCode == 100 {
					resp, err = http.ReadResponse(b, nil)
				}
				if err != nil {
					return 0
				}
				return resp.StatusCode
			}
			// A body that never arrives whole is answered with 400, if anybody is
			// still there to see it.
			got := try()
			if got != tt.status && !(tt.status == 0 && got == 400) {
				t.Errorf("status %d, want %d", got, tt.status)
			}
			if again := try(); again != got {
				t.Errorf("then %d", again)
			}
			h.want(t, tt.runs)
			if tt.runs > 0 && body != tt.body {
				t.Errorf("the handler read %q, want %q", body, tt.body)
			}
			if recs, _ := mem.List(t.Context(), RecordQuery{}); len(recs) != int(tt.runs) {
				t.Errorf("%d records, want %d", len(recs), tt.runs)
			}
		})
	}
}

func TestMiddlewareTellsWhyABodyDidNotArrive(t *testing.T) {
	for _, tt := range []struct {
		name   string
		err    error
		kind   string
		status int
	}{
		{"a connection that breaks", io.ErrUnexpectedEOF, "body-unreadable", 400},
		{"a client that is too slow", fmt.Errorf("read: %w", os.ErrDeadlineExceeded), "body-unreadable", 408},
		{"an outer layer's limit", &http.MaxBytesError{Limit: 5}, "body-too-large", 413},
	} {
		h := &refunds{}
		w := ask((&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(h), "k", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(iotest.ErrReader(tt.err)), -1
		})
		wantRefusal(t, w, tt.kind)
		if w.Code != tt.status {
			t.Errorf("%s: %d, want %d", tt.name, w.Code, tt.status)
		}
		h.want(t, 0)
	}
	// The limit that counts is the one that was met.
	w := ask(http.MaxBytesHandler((&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(&refunds{}), 5), "k")
	wantRefusal(t, w, "body-too-large")
	if !strings.Contains(w.Body.String(), "up to 5 bytes") {
		t.Errorf("%s", w.Body)
	}
}

// A digest of a body that somebody else has read would be that of nothing.
func TestMiddlewareNoticesThatItsBodyWasReadBefore(t *testing.T) {
	form := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.PostFormValue("amount")) }
	for _, tt := range []struct {
		name  string
		outer func(*http.Request)
		kind  string // "" means that the handler runs
	}{
		{"and lost", func(r *http.Request) { io.Copy(io.Discard, r.Body) }, "body-consumed"},
		{"and parsed", func(r *http.Request) { r.ParseForm() }, ""},
		{"and had files in it", func(r *http.Request) {
			r.ParseForm()
			r.MultipartForm = &multipart.Form{File: map[string][]*multipart.FileHeader{"a": nil}}
		}, "body-consumed"},
		{"and put back", func(r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(b)))
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := (&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(http.HandlerFunc(form))
			s := serve(t, "HTTP/1.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tt.outer(r)
				p.ServeHTTP(w, r)
			}))
			send := func(body string) reply {
				r := s.request(t, "POST", "/", "k", body)
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				return s.send(r)
			}
			first := send("amount=100&to=a")
			if tt.kind != "" {
				wantProblem(t, first, tt.kind, 500, false, false, "unknown")
				return
			}
			wantFirst(t, first)
			if first.body != "100" {
				t.Errorf("the handler read %q", first.body)
			}
			wantReplay(t, send("amount=100&to=a"))
			wantProblem(t, send("amount=90&to=a"), "key-reused", 422, false, false, "unknown")
		})
	}
}

// A 401 must not use the key up: the retry comes with a token that was renewed.
func TestMiddlewareLetsATokenBeRenewedAfterA401(t *testing.T) {
	h := &refunds{}
	p := (&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer new" {
			w.WriteHeader(401)
			return
		}
		h.ServeHTTP(w, r)
	}))
	for _, tt := range []struct {
		token string
		want  int
	}{{"Bearer old", 401}, {"Bearer new", 201}, {"Bearer new", 201}, {"Bearer old", 409}} {
		if w := ask(p, "k", func(r *http.Request) { r.Header.Set("Authorization", tt.token) }); w.Code != tt.want {
			t.Errorf("%s: %d, want %d", tt.token, w.Code, tt.want)
		}
	}
	h.want(t, 1)
}

func TestMiddlewareReadsABodyHoweverItComes(t *testing.T) {
	const text = `{"order":"A-17","amount":100}`
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"at once":              func(r io.Reader) io.Reader { return r },
		"by the byte":          iotest.OneByteReader,
		"in halves":            iotest.HalfReader,
		"with its end":         iotest.DataErrReader,
		"with empty reads too": func(r io.Reader) io.Reader { return &hesitant{r: r} },
	} {
		for _, length := range []int64{-1, int64(len(text))} {
			read := ""
			w := ask((&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var b strings.Builder
				if length > 0 {
					io.Copy(&b, r.Body)
				} else {
					io.Copy(&b, onlyReader{r.Body})
				}
				read = b.String()
			})), "k", func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(wrap(strings.NewReader(text))), length })
			if w.Code != 200 || read != text {
				t.Errorf("%s: %d, %q", name, w.Code, read)
			}
		}
	}
}

type hesitant struct {
	r io.Reader
	n int
}

func (h *hesitant) Read(p []byte) (int, error) {
	if h.n++; h.n%2 == 1 {
		return 0, nil
	}
	return h.r.Read(p[:min(len(p), 3)])
}

// Two tenants with one key must be two callers to the next server as well.
func TestMiddlewareGivesTheHandlersRequestsAnActionOfTheirOwn(t *testing.T) {
	seen := make(map[[32]byte]string)
	for _, scope := range []string{"a", "b"} {
		for _, path := range []string{"/refunds", "/payments"} {
			for _, key := range []string{"order-1", "order-2"} {
				for _, auth := range []string{"", "Bearer 1"} {
					m := &Middleware{Store: &MemoryStore{}, Logger: quiet}
					if auth == "" {
						m.Scope = func(*http.Request) (string, error) { return scope, nil }
					} else if scope == "b" {
						auth = "Bearer 2"
					}
					ask(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						src := keySourceFrom(r.Context())
						if got, _ := KeyFromContext(r.Context()); src == nil || src.kind != keyImplicit || got != key {
							t.Fatalf("%+v, %q", src, got)
						}
						who := fmt.Sprint(scope, path, key, auth)
						if other, ok := seen[src.identity()]; ok {
							t.Errorf("%s and %s would call on under the same keys", who, other)
						}
						seen[src.identity()] = who
					})), key, func(r *http.Request) {
						r.RequestURI = path
						if auth != "" {
							r.Header.Set("Authorization", auth)
						}
					})
				}
			}
		}
	}
	if len(seen) != 16 {
		t.Errorf("%d actions, want 16", len(seen))
	}
}

func TestBindingIsOfTheBestCredentials(t *testing.T) {
	bound := func(key string, fields ...string) [32]byte {
		r := httptest.NewRequest("POST", "/", nil)
		for i := 0; i < len(fields); i += 2 {
			r.Header.Add(fields[i], fields[i+1])
		}
		var h requestHeader
		h.read(r.Header, Header)
		return h.binding(r, key)
	}
	none := [32]byte{}
	if bound("k") != none || bound("k", "Authorization", "") != none || bound("k", "X-Tenant", "a") != none {
		t.Error("a request without credentials is bound")
	}
	all := [][]string{
		{"Authorization", "a"}, {"Authorization", "b"}, {"Authorization", "a", "Authorization", "b"}, {"Authorization", "ab"},
		{"X-Api-Key", "a"}, {"Api-Key", "a"}, {"X-Auth-Token", "a"}, {"Cookie", "a"}, {"Cookie", "b"},
	}
	seen := map[[32]byte]int{none: -1}
	for i, fields := range all {
		for _, key := range []string{"k", "l"} {
			b := bound(key, fields...)
			if j, ok := seen[b]; ok {
				t.Errorf("%v is bound like %d", fields, j)
			}
			seen[b] = i
		}
	}
	// A cookie changes with every answer; it does not count beside a token.
	if bound("k", "Authorization", "a", "Cookie", "1") != bound("k", "Cookie", "2", "Authorization", "a") {
		t.Error("a cookie counts beside Authorization")
	}
	if bound("k", "X-Api-Key", "a", "Cookie", "1") != bound("k", "X-Api-Key", "a") {
		t.Error("a cookie counts beside X-Api-Key")
	}
}

// An answer that is definite makes good that the handler could not tell. When it is
// rolled back, nobody can tell again.
func TestAnAnswerThatIsRolledBackMakesNothingGoodOfUnknown(t *testing.T) {
	for _, tt := range []struct {
		name  string
		again bool
		log   *slog.Logger
	}{
		{"the commit is refused", false, quiet},
		{"the store runs it again", true, quiet},
		{"the commit is refused, and the log ends the goroutine", false, badlog.New(runtime.Goexit)},
		{"the store runs it again, and the log ends the goroutine", true, badlog.New(runtime.Goexit)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &transacting{MemoryStore: &MemoryStore{}}
				store.commit, store.again = ErrRolledBack, tt.again
				ran := 0
				m := &Middleware{Store: store, Logger: tt.log}
				h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ran++
					Unknown(r.Context())
					w.WriteHeader(http.StatusCreated)
				}))
				for range 2 {
					r := httptest.NewRequest("POST", "/pay", strings.NewReader("{}"))
					r.Header.Set(Header, "k")
					rec := httptest.NewRecorder()
					apart(func() { h.ServeHTTP(rec, r) })
					synctest.Wait() // for what is said to the store in the background
					if tt.log == quiet && !strings.Contains(rec.Body.String(), "outcome-unknown") && !strings.Contains(rec.Body.String(), "handler-failed") {
						t.Errorf("got %d %s, want an outcome that is unknown", rec.Code, rec.Body)
					}
				}
				if ran != 1 {
					t.Errorf("the handler ran %d times, and could not tell what it did the first time", ran)
				}
			})
		})
	}
}

// A keepingStore keeps the very heads and bodies that it is given.
type keepingStore struct {
	*MemoryStore
	copies []string
	mine   [][]byte
}

func (s *keepingStore) Complete(ctx context.Context, op Op, head, body []byte, keep time.Duration) error {
	s.mine = append(s.mine, head, body)
	s.copies = append(s.copies, string(head), string(body))
	return s.MemoryStore.Complete(ctx, op, head, body, keep)
}

func TestAStoreMayKeepWhatItIsGiven(t *testing.T) {
	s := &keepingStore{MemoryStore: &MemoryStore{}}
	m := &Middleware{Store: s, Logger: quiet}
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Refund", r.Header.Get(Header))
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, r.Header.Get(Header))
	}))
	for i := range 100 {
		ask(h, fmt.Sprint("key-", i))
	}
	for i, want := range s.copies {
		if got := string(s.mine[i]); got != want {
			t.Fatalf("what the store was given was overwritten: got %q, want %q", got, want)
		}
	}
}
