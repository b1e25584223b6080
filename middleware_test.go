package oncehttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A refunds is a handler that counts its runs and answers with their number.
type refunds struct {
	runs   atomic.Int32
	enter  func(n int32) // if not nil, called while it runs
	status int
}

func (h *refunds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := h.runs.Add(1)
	if h.enter != nil {
		h.enter(n)
	}
	w.Header().Set("Content-Type", "application/json")
	if h.status != 0 {
		w.WriteHeader(h.status)
	} else {
		w.WriteHeader(http.StatusCreated)
	}
	fmt.Fprintf(w, `{"refund":%d}`, n)
}

func (h *refunds) want(t *testing.T, runs int32) {
	t.Helper()
	if got := h.runs.Load(); got != runs {
		t.Errorf("the handler ran %d times, want %d", got, runs)
	}
}

// Every row of what a request can meet, in the order of the documentation.

func TestMiddlewarePassesSafeMethodsUntouched(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		h := &refunds{}
		m := &Middleware{Store: &MemoryStore{}, Logger: quiet, Required: func(*http.Request) bool { return true }}
		s := serve(m.Handler(h))
		for i, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE", "QUERY"} {
			for _, key := range []string{"k", "", "not a key"} {
				r := s.request(t, method, "/refunds", key, "")
				if method == "TRACE" {
					r.Body = nil
				}
				got := s.send(r)
				if got.err != nil || got.status != 201 {
					t.Fatalf("%s: %d, %v", method, got.status, got.err)
				}
				wantUnmarked(t, got)
			}
			h.want(t, int32(3*(i+1)))
		}
	})
}

func TestMiddlewarePassesARequestWithoutAKeyUnlessOneIsRequired(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		h := &refunds{}
		m := &Middleware{Store: &MemoryStore{}, Logger: quiet, Required: func(r *http.Request) bool { return r.URL.Path == "/payments" }}
		s := serve(m.Handler(h))
		for range 2 {
			got := s.post(t, "/refunds", "")
			if got.status != 201 {
				t.Errorf("%+v", got)
			}
			wantUnmarked(t, got)
		}
		h.want(t, 2)
		wantProblem(t, s.post(t, "/payments", ""), "missing-key", 400, false, true, "none")
		h.want(t, 2)
	})
}

func TestMiddlewareRefusesAMalformedKey(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		h := &refunds{}
		m := &Middleware{Store: &MemoryStore{}, Logger: quiet}
		s := serve(m.Handler(h))
		for _, key := range []string{"", "a b", "a,b", `"open`, strings.Repeat("k", 256), "clé", "a;b"} {
			r := s.request(t, "POST", "/refunds", "", "{}")
			r.Header[Header] = []string{key}
			wantProblem(t, s.send(r), "malformed-key", 400, false, true, "none")
		}
		wantProblem(t, s.post(t, "/refunds", "k", Header, "k"), "malformed-key", 400, false, true, "none")
		h.want(t, 0)
	})
}

func TestMiddlewareRefusesABodyThatIsTooLarge(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		h := &refunds{}
		mem := &MemoryStore{}
		m := &Middleware{Store: mem, MaxBody: 100, Logger: quiet}
		s := serve(m.Handler(h))
		declared := s.request(t, "POST", "/refunds", "k", strings.Repeat("x", 101))
		chunked := s.request(t, "POST", "/refunds", "k", "")
		chunked.Body, chunked.ContentLength, chunked.GetBody = io.NopCloser(strings.NewReader(strings.Repeat("x", 101))), -1, nil
		for _, r := range []*http.Request{declared, chunked} {
			got := s.send(r)
			wantProblem(t, got, "body-too-large", 413, false, true, "none")
			if !strings.Contains(got.body, "100 bytes") {
				t.Errorf("%s does not tell the limit", got.body)
			}
		}
		if recs, _ := mem.List(t.Context(), RecordQuery{}); len(recs) != 0 {
			t.Errorf("something was claimed: %+v", recs)
		}
		if got := s.send(s.request(t, "POST", "/refunds", "k", strings.Repeat("x", 100))); got.status != 201 {
			t.Errorf("a body of just the limit: %+v", got)
		}
	})
}

func TestMiddlewareRefusesAnotherCallersKey(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		h := &refunds{}
		m := &Middleware{Store: &MemoryStore{}, Logger: quiet}
		s := serve(m.Handler(h))
		wantFirst(t, s.post(t, "/refunds", "order-1", "Authorization", "Bearer alice"))
		for _, fields := range [][]string{
			{"Authorization", "Bearer bob"},
			{},
			{"Cookie", "session=alice"},
			{"X-Api-Key", "Bearer alice"},
			{"Authorization", "Bearer alice", "Authorization", "Bearer bob"},
		} {
			got := s.post(t, "/refunds", "order-1", fields...)
			wantProblem(t, got, "principal-changed", 409, false, false, "unknown")
		}
		// Who asks is looked at before what is asked.
		got := s.send(s.request(t, "POST", "/refunds", "order-1", `{"amount":1}`, "Authorization", "Bearer bob"))
		wantProblem(t, got, "principal-changed", 409, false, false, "unknown")
		wantReplay(t, s.post(t, "/refunds", "order-1", "Authorization", "Bearer alice"))
		h.want(t, 1)
	})
}

func TestMiddlewareRefusesAKeyThatWasUsedForSomethingElse(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		entered, leave := make(chan bool), make(chan bool)
		h := &refunds{enter: func(int32) { entered <- true; <-leave }}
		m := &Middleware{Store: &MemoryStore{}, Logger: quiet}
		s := serve(m.Handler(h))
		refuse := func() {
			t.Helper()
			for _, r := range []*http.Request{
				s.request(t, "POST", "/refunds", "k", `{"amount":90}`),
				s.request(t, "POST", "/refunds", "k", ``),
				s.request(t, "POST", "/refunds?dry=1", "k", `{"amount":100}`),
				s.request(t, "POST", "/refunds", "k", `{"amount":100}`, "If-Match", `"v2"`),
				s.request(t, "POST", "/refunds", "k", `{"amount":100.0000000000000000001}`),
			} {
				wantProblem(t, s.send(r), "key-reused", 422, false, false, "unknown")
			}
			r := s.request(t, "POST", "/refunds", "k", `{"amount":100}`)
			r.Host = "other.example"
			wantProblem(t, s.send(r), "key-reused", 422, false, false, "unknown")
			r = s.request(t, "POST", "/refunds", "k", `{"amount":100}`)
			r.Header.Set("Content-Type", "text/plain")
			wantProblem(t, s.send(r), "key-reused", 422, false, false, "unknown")
		}
		done := make(chan reply)
		go func() { done <- s.post(t, "/refunds", "k") }()
		<-entered
		refuse() // while it runs: no use in waiting for what can never match
		leave <- true
		wantFirst(t, <-done)
		refuse()
		same := s.send(s.request(t, "POST", "/refunds", "k", " { \"amount\" : 1.00e2 } "))
		wantReplay(t, same)
		h.want(t, 1)
	})
}

func TestMiddlewareRunsOnceAndReplays(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		h := &refunds{}
		m := &Middleware{Store: &MemoryStore{}, Logger: quiet}
		s := serve(m.Handler(h))
		first := s.post(t, "/refunds", "k")
		wantFirst(t, first)
		for range 3 {
			again := s.post(t, "/refunds", "k")
			wantReplay(t, again)
			if again.status != 201 || again.body != `{"refund":1}` || again.header.Get("Content-Type") != "application/json" {
				t.Errorf("replay: %+v; first: %+v", again, first)
			}
		}
		quoted := s.post(t, "/refunds", `"k"`)
		wantReplay(t, quoted)
		h.want(t, 1)
	})
}

func TestMiddlewareKeepsKeysOfRoutesAndMethodsApart(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		h := &refunds{}
		m := &Middleware{Store: &MemoryStore{}, Logger: quiet}
		s := serve(m.Handler(h))
		n := int32(0)
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "REFUND"} {
			for _, path := range []string{"/refunds", "/refunds/", "/Refunds", "/refunds/1", "/a%2Fb", "/a/b"} {
				wantFirst(t, s.send(s.request(t, method, path, "k", "{}")))
				n++
				h.want(t, n)
				wantReplay(t, s.send(s.request(t, method, path, "k", "{}")))
			}
		}
		h.want(t, n)
	})
}

func TestMiddlewareSaysWhenAResponseIsGone(t *testing.T) {
	for _, tt := range []struct {
		status  int
		outcome string
	}{{201, "applied"}, {409, "unknown"}, {500, "unknown"}, {303, "unknown"}} {
		t.Run(fmt.Sprint(tt.status), func(t *testing.T) {
			eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
				h := &refunds{status: tt.status}
				m := &Middleware{Store: &MemoryStore{MaxBytes: 5, Logger: quiet}, Logger: quiet}
				s := serve(m.Handler(h))
				first := s.post(t, "/refunds", "k")
				wantFirst(t, first)
				if first.body != `{"refund":1}` {
					t.Errorf("first: %+v", first)
				}
				wantProblem(t, s.post(t, "/refunds", "k"), "response-gone", 409, false, false, tt.outcome)
				h.want(t, 1)
			})
		})
	}
}

func TestMiddlewareNeverRunsOnAnUnreadableRecord(t *testing.T) {
	for _, head := range []string{"", "\x00", "\x02\x00", "\x01", "\x01\x00", "\x01\x00\xff\xff\xff", "\x01\x00\xc9\x01\x05\x00\x00", "garbage"} {
		h := &refunds{}
		mem := &MemoryStore{}
		m := &Middleware{Store: mem, Logger: quiet}
		s := serve(t, "HTTP/1.1", m.Handler(h))
		// Corrupt it by way of an operator: what it says is opaque to the store.
		r := s.request(t, "POST", "/refunds", "k", `{"amount":100}`)
		op := Op{Key: RecordKey("", "POST", "/refunds", "k"), Token: "x", Fingerprint: fingerprint(r.URL.Host, "", "application/json", "", "", []byte(`{"amount":100}`))}
		mem.Claim(t.Context(), op, time.Hour, time.Hour)
		mem.Complete(t.Context(), op, []byte(head), []byte("body"), time.Hour)
		got := s.send(r)
		outcome := "unknown"
		if strings.HasPrefix(head, "\x01\x00\xc9") {
			outcome = "applied" // of a body of another length the status is known
		}
		wantProblem(t, got, "response-gone", 409, false, false, outcome)
		h.want(t, 0)
	}
}

func TestMiddlewareHasARepeatWaitForTheRun(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		entered, leave := make(chan bool), make(chan bool)
		h := &refunds{enter: func(int32) { entered <- true; <-leave }}
		var outcomes recorder
		m := &Middleware{Store: &MemoryStore{}, Wait: 50 * time.Millisecond, Logger: quiet, OnOutcome: outcomes.add}
		s := serve(m.Handler(h))
		done := make(chan reply)
		go func() { done <- s.post(t, "/refunds", "k") }()
		<-entered
		got := s.post(t, "/refunds", "k")
		wantProblem(t, got, "in-progress", 409, true, false, "unknown")
		if got.header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After: %q, want 1", got.header.Get("Retry-After"))
		}
		leave <- true
		wantFirst(t, <-done)
		wantReplay(t, s.post(t, "/refunds", "k"))
		h.want(t, 1)
		outcomes.want(t, OutcomeRefused, OutcomeRan, OutcomeReplayed)
	})
}

func TestMiddlewareRefusesAnOrphanOrRunsItAgain(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		for _, orphan := range []Orphan{OrphanRefuse, OrphanRerun} {
			h := &refunds{}
			mem := &MemoryStore{}
			m := &Middleware{Store: mem, Orphan: orphan, Logger: quiet}
			s := serve(m.Handler(h))
			r := s.request(t, "POST", "/refunds", "k", `{"amount":100}`)
			op := Op{Key: RecordKey("", "POST", "/refunds", "k"), Token: "x", Fingerprint: fingerprint(r.URL.Host, "", "application/json", "", "", []byte(`{"amount":100}`))}
			mem.Claim(t.Context(), op, time.Hour, time.Hour)
			mem.Renew(t.Context(), op, 0)
			if orphan == OrphanRefuse {
				wantProblem(t, s.send(r), "outcome-unknown", 409, false, false, "unknown")
				h.want(t, 0)
			} else {
				wantFirst(t, s.send(r))
				wantReplay(t, s.post(t, "/refunds", "k"))
				h.want(t, 1)
			}
		}
	})
}

func TestMiddlewareRunsNothingWithoutItsStore(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		h := &refunds{}
		m := &Middleware{Store: &faulty{Store: &MemoryStore{}, before: during("Claim", fails)}, Lease: 10 * time.Millisecond, Logger: quiet}
		s := serve(m.Handler(h))
		wantProblem(t, s.post(t, "/refunds", "k"), "store-unavailable", 503, true, false, "unknown")
		m.Drain(t.Context())

		m = &Middleware{Store: &MemoryStore{MaxRecords: 1, Logger: quiet}, Logger: quiet}
		s = serve(m.Handler(h))
		wantFirst(t, s.post(t, "/refunds", "k"))
		wantProblem(t, s.post(t, "/refunds", "k2"), "store-full", 503, true, false, "unknown")
		wantReplay(t, s.post(t, "/refunds", "k"))
		h.want(t, 1)
	})
}

func TestMiddlewareRefusesToUpgrade(t *testing.T) {
	h := &refunds{}
	m := &Middleware{Store: &MemoryStore{}, Logger: quiet}
	s := serve(t, "HTTP/1.1", m.Handler(h))
	for _, fields := range [][]string{
		{"Connection", "Upgrade", "Upgrade", "websocket"},
		{"Connection", "keep-alive, upgrade", "Upgrade", "h2c, websocket"},
	} {
		wantProblem(t, s.post(t, "/refunds", "k", fields...), "upgrade-refused", 400, false, true, "none")
	}
	h.want(t, 0)
	// Java's HttpClient offers this with every request.
	wantFirst(t, s.post(t, "/refunds", "k", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "Http2-Settings", "AAMAAABk"))
	h.want(t, 1)

	r := httptest.NewRequest("CONNECT", "example.com:443", nil)
	r.Header.Set(Header, "k")
	w := httptest.NewRecorder()
	m.Handler(h).ServeHTTP(w, r)
	if w.Code != 400 || !strings.Contains(w.Body.String(), "upgrade-refused") {
		t.Errorf("CONNECT: %d %s", w.Code, w.Body)
	}
}

func TestMiddlewareScopeTellsCallersApart(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		h := &refunds{}
		m := &Middleware{Store: &MemoryStore{}, Logger: quiet, Scope: func(r *http.Request) (string, error) {
			if r.Header.Get("Tenant") == "broken" {
				return "", errors.New("no such tenant: broken")
			}
			return r.Header.Get("Tenant"), nil
		}}
		s := serve(m.Handler(h))
		wantFirst(t, s.post(t, "/refunds", "order-1", "Tenant", "a", "Authorization", "Bearer 1"))
		wantFirst(t, s.post(t, "/refunds", "order-1", "Tenant", "b", "Authorization", "Bearer 1"))
		// A renewed token is the same caller.
		wantReplay(t, s.post(t, "/refunds", "order-1", "Tenant", "a", "Authorization", "Bearer 2"))
		h.want(t, 2)
		got := s.post(t, "/refunds", "order-1", "Tenant", "broken")
		wantProblem(t, got, "scope-failed", 500, true, false, "unknown")
		if strings.Contains(got.body, "tenant") {
			t.Errorf("the answer tells the error: %s", got.body)
		}
		// Callers without a scope do not share one.
		wantFirst(t, s.post(t, "/refunds", "order-1", "Authorization", "Bearer 1"))
		wantProblem(t, s.post(t, "/refunds", "order-1", "Authorization", "Bearer 2"), "principal-changed", 409, false, false, "unknown")
		h.want(t, 3)
	})
}

// A recorder collects outcomes.
type recorder struct {
	mu  sync.Mutex
	all []Outcome
}

func (o *recorder) add(_ *http.Request, out Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, out)
}

// want waits a little, because OnOutcome comes after the answer.
func (o *recorder) want(t *testing.T, kinds ...OutcomeKind) []Outcome {
	t.Helper()
	var got []OutcomeKind
	for range 1000 {
		o.mu.Lock()
		all := append([]Outcome(nil), o.all...)
		o.mu.Unlock()
		got = nil
		for _, out := range all {
			got = append(got, out.Kind)
		}
		if len(got) >= len(kinds) {
			if fmt.Sprint(got) != fmt.Sprint(kinds) {
				t.Errorf("outcomes %v, want %v", got, kinds)
			}
			return all
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("outcomes %v, want %v", got, kinds)
	return nil
}

// What becomes of a key, by what its handler answered.
func TestMiddlewareRecordsEveryAnswerButRefusalsToAct(t *testing.T) {
	type then int
	const (
		replays then = iota
		runsAgain
		isUnknown
	)
	retryAfter := func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Retry-After", "1") }
	release := func(w http.ResponseWriter, r *http.Request) { Release(r.Context()) }
	unknown := func(w http.ResponseWriter, r *http.Request) { Unknown(r.Context()) }
	both := func(w http.ResponseWriter, r *http.Request) { Unknown(r.Context()); Release(r.Context()) }
	flush := func(w http.ResponseWriter, r *http.Request) { w.(http.Flusher).Flush() }
	rows := []struct {
		name   string
		status int
		before func(http.ResponseWriter, *http.Request)
		after  func(http.ResponseWriter, *http.Request)
		then   then
	}{
		{"a 503 that says when to come back", 503, retryAfter, nil, runsAgain},
		{"a 200 after Release", 200, release, nil, runsAgain},
		{"a 500 after Release", 500, release, nil, runsAgain},
		{"a 200 before Release", 200, nil, release, runsAgain},
		{"a 200 after Unknown", 200, unknown, nil, replays},
		{"a 302 after Unknown", 302, unknown, nil, replays},
		{"a 404 after Unknown", 404, unknown, nil, replays},
		{"a 429 after Unknown", 429, unknown, nil, isUnknown},
		{"a 500 after Unknown", 500, unknown, nil, isUnknown},
		{"a 502 before Unknown", 502, nil, unknown, isUnknown},
		{"a 503 that says when to come back, after Unknown", 503, func(w http.ResponseWriter, r *http.Request) { retryAfter(w, r); unknown(w, r) }, nil, isUnknown},
		{"a 200 after Unknown and Release", 200, both, nil, isUnknown},
		{"a stream of a 429", 429, nil, flush, runsAgain},
		{"a stream of a 200 that was announced, and then Release", 200, nil, func(w http.ResponseWriter, r *http.Request) { flush(w, r); release(w, r) }, replays},
		{"a stream of a 500, and then Release", 500, nil, func(w http.ResponseWriter, r *http.Request) { flush(w, r); release(w, r) }, runsAgain},
		{"a stream of a 502, and then Unknown", 502, nil, func(w http.ResponseWriter, r *http.Request) { flush(w, r); unknown(w, r) }, isUnknown},
	}
	for _, status := range []int{200, 201, 202, 204, 206, 301, 303, 304, 308, 400, 402, 403, 404, 405, 408, 409, 410, 412, 418, 422, 423, 451, 500, 501, 502, 503, 504, 508, 511, 599} {
		rows = append(rows, struct {
			name   string
			status int
			before func(http.ResponseWriter, *http.Request)
			after  func(http.ResponseWriter, *http.Request)
			then   then
		}{fmt.Sprint("a bare ", status), status, nil, nil, replays})
	}
	for _, status := range []int{401, 407, 421, 425, 429} {
		rows = append(rows, struct {
			name   string
			status int
			before func(http.ResponseWriter, *http.Request)
			after  func(http.ResponseWriter, *http.Request)
			then   then
		}{fmt.Sprint("a bare ", status), status, nil, nil, runsAgain})
	}
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		for _, tt := range rows {
			t.Run(tt.name, func(t *testing.T) {
				var runs atomic.Int32
				var outcomes recorder
				mem := &MemoryStore{}
				m := &Middleware{Store: mem, Logger: quiet, OnOutcome: outcomes.add}
				s := serve(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					n := runs.Add(1)
					if tt.before != nil {
						tt.before(w, r)
					}
					w.WriteHeader(tt.status)
					fmt.Fprintf(w, "run %d", n)
					if tt.after != nil {
						tt.after(w, r)
					}
				})))
				first := s.post(t, "/refunds", "k")
				if first.status != tt.status {
					t.Errorf("first: %d, want %d", first.status, tt.status)
				}
				again := s.post(t, "/refunds", "k")
				switch tt.then {
				case replays:
					wantFirst(t, first)
					wantReplay(t, again)
					if again.status != first.status || again.body != first.body || runs.Load() != 1 {
						t.Errorf("first %+v, then %+v, %d runs", first, again, runs.Load())
					}
					outcomes.want(t, OutcomeRan, OutcomeReplayed)
				case runsAgain:
					wantUnmarked(t, first)
					wantUnmarked(t, again)
					if again.status != first.status || runs.Load() != 2 {
						t.Errorf("first %+v, then %+v, %d runs", first, again, runs.Load())
					}
					outcomes.want(t, OutcomeReleased, OutcomeReleased)
				case isUnknown:
					wantUnmarked(t, first)
					wantProblem(t, again, "outcome-unknown", 409, false, false, "unknown")
					if runs.Load() != 1 {
						t.Errorf("%d runs", runs.Load())
					}
					outcomes.want(t, OutcomeUnknown, OutcomeUnknown)
				}
			})
		}
	})
}

func TestMiddlewareRecordDecides(t *testing.T) {
	h := &refunds{status: 500}
	m := &Middleware{Store: &MemoryStore{}, Logger: quiet, Record: func(status int, h http.Header) bool {
		return status != 500 || h.Get("Content-Type") != "application/json"
	}}
	s := serve(t, "HTTP/1.1", m.Handler(h))
	wantUnmarked(t, s.post(t, "/refunds", "k"))
	wantUnmarked(t, s.post(t, "/refunds", "k"))
	h.want(t, 2)
	h.status = 429
	wantFirst(t, s.post(t, "/refunds", "k"))
	wantReplay(t, s.post(t, "/refunds", "k"))
	h.want(t, 3)
}

func TestMiddlewareRecordsAPanicAndLetsItGoOn(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		for _, tt := range []struct {
			name    string
			handler http.HandlerFunc
			unknown bool
		}{
			{"at once", func(http.ResponseWriter, *http.Request) { panic("boom") }, false},
			{"with http.ErrAbortHandler", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false},
			{"after it has answered", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/refunds/1")
				w.WriteHeader(201)
				io.WriteString(w, "done")
				panic("boom")
			}, false},
			{"in the middle of a stream", func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "done")
				w.(http.Flusher).Flush()
				panic("boom")
			}, false},
			{"after Release", func(w http.ResponseWriter, r *http.Request) {
				Release(r.Context())
				panic("boom")
			}, false},
			{"after Unknown", func(w http.ResponseWriter, r *http.Request) {
				Unknown(r.Context())
				panic("boom")
			}, true},
			{"by a status that is none", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(0) }, false},
		} {
			t.Run(tt.name, func(t *testing.T) {
				var runs atomic.Int32
				var outcomes recorder
				m := &Middleware{Store: &MemoryStore{}, Logger: quiet, OnOutcome: outcomes.add}
				panicked := make(chan any, 2)
				p := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					runs.Add(1)
					tt.handler(w, r)
				}))
				s := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer func() {
						if v := recover(); v != nil {
							panicked <- v
							panic(http.ErrAbortHandler)
						}
					}()
					p.ServeHTTP(w, r)
				}))
				if got := s.send(s.request(t, "POST", "/", "k", "{}")); got.err == nil {
					t.Errorf("the client got %+v, want a broken connection", got)
				}
				if v := <-panicked; v == nil {
					t.Error("the panic was swallowed")
				}
				again := s.send(s.request(t, "POST", "/", "k", "{}"))
				if tt.unknown {
					wantProblem(t, again, "outcome-unknown", 409, false, false, "unknown")
					outcomes.want(t, OutcomeUnknown, OutcomeUnknown)
				} else {
					if again.header.Get(headerReplayed) != "true" || again.header.Get("Location") != "" {
						t.Errorf("the repeat: %+v", again)
					}
					again.header.Del(headerReplayed)
					again.header.Set("Cache-Control", "no-store")
					wantProblem(t, again, "handler-failed", 500, false, false, "unknown")
					all := outcomes.want(t, OutcomeRan, OutcomeReplayed)
					if len(all) > 0 && (all[0].Status != 500 || !all[0].Recorded) {
						t.Errorf("outcome: %+v, want a recorded 500", all[0])
					}
				}
				if runs.Load() != 1 {
					t.Errorf("%d runs, want 1", runs.Load())
				}
			})
		}
	})
}

func TestMiddlewareDoesNotHijack(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handler func(w http.ResponseWriter, err error)
		status  int
	}{
		{"a handler that says nothing then", func(http.ResponseWriter, error) {}, 400},
		{"a handler that says something then", func(w http.ResponseWriter, err error) { http.Error(w, "no", 501) }, 501},
	} {
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _, err := http.NewResponseController(w).Hijack()
			if !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("Hijack: %v, want ErrNotSupported", err)
			}
			tt.handler(w, err)
		})
		s := serve(t, "HTTP/1.1", (&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(h))
		first, again := s.post(t, "/", "k"), s.post(t, "/", "k")
		wantFirst(t, first)
		wantReplay(t, again)
		if first.status != tt.status || again.status != tt.status || first.body != again.body {
			t.Errorf("%s: %+v, then %+v; want %d", tt.name, first, again, tt.status)
		}
	}
}

// Control fields say what this package knows. Nobody else may say it.
func TestMiddlewareControlFieldsCannotBeForged(t *testing.T) {
	eachProto(t, func(t *testing.T, serve func(http.Handler) *site) {
		for _, flush := range []bool{false, true} {
			var runs atomic.Int32
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				runs.Add(1)
				h := w.Header()
				h.Set("Idempotent-Replayed", "true")
				h.Set("Idempotency-Replayed", "true")
				h["idempotent-replayed"] = []string{"true"}
				h["IDEMPOTENCY-STATUS"] = []string{"forged"}
				h.Set("Idempotency-Status", "forged")
				h.Set("X-Other", "kept")
				w.WriteHeader(http.StatusTooManyRequests)
				if flush {
					w.(http.Flusher).Flush()
				}
			})
			s := serve((&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(h))
			for range 2 {
				got := s.post(t, "/", "k", "Idempotency-Status", "executed", "Idempotent-Replayed", "true")
				wantUnmarked(t, got)
				if got.header.Get("Idempotency-Replayed") != "" || got.header.Get("X-Other") != "kept" {
					t.Errorf("header: %v", got.header)
				}
			}
			if runs.Load() != 2 {
				t.Errorf("%d runs, want 2: what a request says of replays means nothing", runs.Load())
			}
		}
	})
}

func TestMiddlewareLinksItsDocumentationAndLetsRefusalsBeWorded(t *testing.T) {
	m := &Middleware{Store: &MemoryStore{}, Logger: quiet, DocsURL: "https://docs.example/keys?x=1",
		Refuse: func(w http.ResponseWriter, r *http.Request, p *Refusal) {
			if p.Status == 400 {
				w.WriteHeader(418)
				io.WriteString(w, p.Type+" "+p.Error())
				return
			}
			p.ServeHTTP(w, r)
		},
	}
	h := &refunds{}
	s := serve(t, "HTTP/1.1", m.Handler(h))
	got := s.post(t, "/", "a b")
	if got.status != 418 || !strings.HasPrefix(got.body, "urn:oncehttp:malformed-key oncehttp: The idempotency key is malformed: bad idempotency key") || strings.Contains(got.body, "a b") {
		t.Errorf("%+v", got)
	}
	want := `<https://docs.example/keys?x=1>; rel="describedby"`
	if got.header.Get("Link") != want || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("header: %v", got.header)
	}
	s.post(t, "/", "k")
	got = s.send(s.request(t, "POST", "/", "k", "{}"))
	wantProblem(t, got, "key-reused", 422, false, false, "unknown")
	if got.header.Get("Link") != want {
		t.Errorf("Link: %q, want %q", got.header.Get("Link"), want)
	}
}

func TestMiddlewareOutcomeTellsWhatALogNeeds(t *testing.T) {
	var outcomes recorder
	h := &refunds{}
	m := &Middleware{Store: &MemoryStore{}, Logger: quiet, OnOutcome: outcomes.add, MaxBody: 100,
		Required: func(*http.Request) bool { return true }}
	s := serve(t, "HTTP/1.1", m.Handler(h))
	s.post(t, "/", "k")
	s.post(t, "/", "k")
	s.send(s.request(t, "POST", "/", "k", "{}"))
	s.post(t, "/", "")
	s.post(t, "/", "a b")
	s.send(s.request(t, "POST", "/", "k", strings.Repeat("x", 101)))
	s.send(s.request(t, "GET", "/", "k", ""))
	all := outcomes.want(t, OutcomeRan, OutcomeReplayed, OutcomeRefused, OutcomeRefused, OutcomeRefused, OutcomeRefused)
	if len(all) != 6 {
		t.FailNow()
	}
	record := RecordKey("", "POST", "/", "k")
	for i, want := range []struct {
		status   int
		key      string
		recorded bool
		holder   int
		refusal  string
	}{
		{201, record[:16], true, 1, ""},
		{201, record[:16], true, 1, ""},
		{422, record[:16], false, 0, "urn:oncehttp:key-reused"},
		{400, "", false, 0, "urn:oncehttp:missing-key"},
		{400, "", false, 0, "urn:oncehttp:malformed-key"},
		{413, record[:16], false, 0, "urn:oncehttp:body-too-large"},
	} {
		got := all[i]
		refusal := ""
		if got.Refusal != nil {
			refusal = got.Refusal.Type
		}
		if got.Status != want.status || got.Key != want.key || got.Recorded != want.recorded || got.Holder != want.holder || refusal != want.refusal || got.Duration <= 0 {
			t.Errorf("outcome %d: %+v, want %+v", i, got, want)
		}
	}
}

func TestMiddlewareReportsARequestWhoseScopePanics(t *testing.T) {
	var outcomes recorder
	h := &refunds{}
	m := &Middleware{Store: &MemoryStore{}, Logger: quiet, OnOutcome: outcomes.add, Scope: func(*http.Request) (string, error) { panic("boom") }}
	s := serve(t, "HTTP/1.1", m.Handler(h))
	if got := s.send(s.request(t, "POST", "/", "k", "{}")); got.err == nil {
		t.Errorf("%+v, want a broken connection", got)
	}
	if all := outcomes.want(t, OutcomeRefused); len(all) == 1 && all[0].Status != 500 {
		t.Errorf("%+v, want a 500", all[0])
	}
	h.want(t, 0)
}

func TestMiddlewarePanicsWhenItIsWiredWrongly(t *testing.T) {
	s := &MemoryStore{}
	for _, tt := range []struct {
		m    *Middleware
		want string
	}{
		{&Middleware{}, "Middleware.Store"},
		{&Middleware{Store: s, Lease: -1}, "Middleware.Lease"},
		{&Middleware{Store: s, Keep: -1}, "Middleware.Keep"},
		{&Middleware{Store: s, Wait: -1}, "Middleware.Wait"},
		{&Middleware{Store: s, Timeout: -1}, "Middleware.Timeout"},
		{&Middleware{Store: s, Orphan: 9}, "Middleware.Orphan"},
		{&Middleware{Store: s, MaxBody: -1}, "Middleware.MaxBody"},
		{&Middleware{Store: s, MaxResponse: -1}, "Middleware.MaxResponse"},
		{&Middleware{Store: s, KeyHeader: "Idempotency Key"}, "Middleware.KeyHeader"},
		{&Middleware{Store: s, DocsURL: "https://docs.example/>; rel=\"x"}, "Middleware.DocsURL"},
		{&Middleware{Store: s, DocsURL: "::"}, "Middleware.DocsURL"},
	} {
		for range 2 { // the second call must not slip through
			func() {
				defer func() {
					if p := fmt.Sprint(recover()); !strings.Contains(p, tt.want) {
						t.Errorf("panic %q, want one that names %s", p, tt.want)
					}
				}()
				tt.m.Handler(http.NotFoundHandler())
			}()
		}
	}
	defer func() {
		if p := fmt.Sprint(recover()); !strings.Contains(p, "next") {
			t.Errorf("panic %q, want one that names next", p)
		}
	}()
	(&Middleware{Store: s}).Handler(nil)
}

func TestMiddlewareReadsKeysFromAnotherHeader(t *testing.T) {
	h := &refunds{}
	m := &Middleware{Store: &MemoryStore{}, Logger: quiet, KeyHeader: "x-request-token", Required: func(*http.Request) bool { return true }}
	s := serve(t, "HTTP/1.1", m.Handler(h))
	got := s.post(t, "/", "k")
	wantProblem(t, got, "missing-key", 400, false, true, "none")
	if !strings.Contains(got.body, "X-Request-Token") {
		t.Errorf("%s does not name the header", got.body)
	}
	wantFirst(t, s.post(t, "/", "", "X-Request-Token", "k"))
	wantReplay(t, s.post(t, "/", "", "X-Request-Token", "k"))
	h.want(t, 1)
}

// A tracing id, or any other header, is no key.
func TestMiddlewareInfersNoKey(t *testing.T) {
	h := &refunds{}
	s := serve(t, "HTTP/1.1", (&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(h))
	for range 2 {
		wantUnmarked(t, s.post(t, "/", "", "X-Request-Id", "1", "Traceparent", "00-1-1-00", "X-Idempotency-Key", "k"))
	}
	h.want(t, 2)
}

// The path is the one that the client asked for, however the server is put
// together.
func TestMiddlewareRecordsUnderThePathOnTheWire(t *testing.T) {
	h := &refunds{}
	mem := &MemoryStore{}
	m := &Middleware{Store: mem, Logger: quiet}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/", http.StripPrefix("/v1", m.Handler(h)))
	mux.Handle("POST /v2/", http.StripPrefix("/v2", m.Handler(h)))
	mux.Handle("POST /orders/{id}/refunds", m.Handler(h))
	s := serve(t, "HTTP/1.1", mux)
	for _, path := range []string{"/v1/refunds", "/v2/refunds", "/orders/1/refunds", "/orders/2/refunds"} {
		wantFirst(t, s.post(t, path, "k"))
		if _, err := mem.Show(t.Context(), RecordKey("", "POST", path, "k")); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	h.want(t, 4)

	for _, tt := range []struct{ target, path string }{
		{"/a/b?c=/d", "/a/b"},
		{"http://host.example/a/b?c=/d", "/a/b"},
		{"http://host.example?c=/d", "/"},
		{"http://host.example", "/"},
		{"*", "*"},
		{"//a//b", "//a//b"},
		{"/a%2fb", "/a%2fb"},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r.RequestURI = tt.target
		if got := wirePath(r); got != tt.path {
			t.Errorf("wirePath(%q) = %q, want %q", tt.target, got, tt.path)
		}
	}
	r, _ := http.NewRequest("POST", "http://host.example/a%2Fb?c", nil)
	if got := wirePath(r); got != "/a%2Fb" {
		t.Errorf("wirePath of a request without a RequestURI = %q", got)
	}
}

func TestRecordKeyKnowsTheEscapesOfAPath(t *testing.T) {
	same := func(a, b string) {
		t.Helper()
		if RecordKey("", "POST", a, "k") != RecordKey("", "POST", b, "k") {
			t.Errorf("%q and %q are one path", a, b)
		}
	}
	differ := func(a, b string) {
		t.Helper()
		if RecordKey("", "POST", a, "k") == RecordKey("", "POST", b, "k") {
			t.Errorf("%q and %q are two paths", a, b)
		}
	}
	same("/%61bc", "/abc")
	same("/%7e", "/~")
	same("/a%2fb", "/a%2Fb")
	differ("/a%2Fb", "/a/b")
	differ("/a%25b", "/a%b")
	same("/a%", "/a%")
	differ("/a%zz", "/a%ZZ")
	for _, other := range [][4]string{
		{"s", "POST", "/a", "k"}, {"", "PUT", "/a", "k"}, {"", "POST", "/b", "k"}, {"", "POST", "/a", "K"},
		{"", "POST", "/ak", ""}, {"P", "OST", "/a", "k"},
	} {
		if RecordKey(other[0], other[1], other[2], other[3]) == RecordKey("", "POST", "/a", "k") {
			t.Errorf("%q shares a record with the first", other)
		}
	}
	// Stores keep these; they must not change.
	if got, want := RecordKey("acme", "POST", "/refunds", "order-1"), "or1_d80a56c3a012ff2487dae238687ba2e89d510ccc"; got != want {
		t.Errorf("RecordKey = %s, want %s", got, want)
	}
}

func TestMiddlewareTellsTheHandlerTheCallersKeyOnly(t *testing.T) {
	s := serve(t, "HTTP/1.1", (&Middleware{Store: &MemoryStore{}, Logger: quiet}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, ok := KeyFromContext(r.Context())
		fmt.Fprint(w, key, ok)
	})))
	if got := s.post(t, "/", `"order-1"`); got.body != "order-1true" && got.body != "order-1 true" {
		t.Errorf("%q", got.body)
	}
}

// A Middleware within another one would wait for itself.
func TestMiddlewareWithinAMiddlewareStandsDown(t *testing.T) {
	h := &refunds{}
	var outcomes recorder
	m := &Middleware{Store: &MemoryStore{}, Logger: quiet, OnOutcome: outcomes.add}
	other := &Middleware{Store: m.Store, Logger: quiet}
	body := ""
	s := serve(t, "HTTP/1.1", m.Handler(m.Handler(other.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		body = string(b)
		h.ServeHTTP(w, r)
	})))))
	wantFirst(t, s.post(t, "/", "k"))
	wantReplay(t, s.post(t, "/", "k"))
	h.want(t, 1)
	outcomes.want(t, OutcomeRan, OutcomeReplayed)
	if body != `{"amount":100}` {
		t.Errorf("the handler read %q", body)
	}
}

func TestMiddlewareLogsNoSecrets(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	var up atomic.Bool
	s := &faulty{Store: &MemoryStore{}, before: func(_ context.Context, c storeCall) error {
		if c.method == "Claim" && c.n == 1 || up.Load() {
			return nil
		}
		return errStore
	}}
	m := &Middleware{Store: s, Wait: 1, Lease: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&lockedWriter{w: &log, mu: &mu}, nil))}
	site := serve(t, "HTTP/1.1", m.Handler(&refunds{}))
	for range 2 {
		site.send(site.request(t, "POST", "/refunds?token=secret-query", "secret-key", `{"secret":"body"}`, "Authorization", "secret-token"))
	}
	mu.Lock()
	defer mu.Unlock()
	if got := log.String(); strings.Contains(got, "secret") || !strings.Contains(got, "path=/refunds") || !strings.Contains(got, "key=or1_") || !strings.Contains(got, "on fire") {
		t.Errorf("log: %s", got)
	}
	up.Store(true)
}
