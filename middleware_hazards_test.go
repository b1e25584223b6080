package oncehttp_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncehttp/oncehttp"
)

func postTo(h http.Handler, path, key, body string, hdr ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	for i := 0; i < len(hdr); i += 2 {
		r.Header.Set(hdr[i], hdr[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestNonCanonicalSetCookieIsNotReplayed(t *testing.T) {
	m := &oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["set-cookie"] = []string{"session=victim"}
		w.Header()["SET-COOKIE"] = []string{"session=victim"}
		w.Header()["X-CSRF-Token"] = []string{"victim"}
		w.Header().Set("Trailer", "Set-Cookie")
		w.Write([]byte("ok"))
		w.Header()["Set-Cookie"] = []string{"session=victim"}
	}))
	postTo(h, "/", "k", "x")
	w := postTo(h, "/", "k", "x")
	t.Log(w.Result().Header, w.Result().Trailer, w.Header())
	if s := fmt.Sprint(w.Header(), w.Result().Trailer); strings.Contains(s, "victim") {
		t.Errorf("replay: %v", s)
	}
}

func TestPartlyReadBodyIsNoticed(t *testing.T) {
	m := &oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}
	var runs atomic.Int32
	inner := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		io.WriteString(w, "paid")
	}))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.CopyN(io.Discard, r.Body, 16) // peeks, and does not put it back
		inner.ServeHTTP(w, r)
	})
	a := postTo(h, "/", "k", `{"cents":   12000}`, "Content-Type", "text/plain")
	b := postTo(h, "/", "k", `{"cents":   99900}`, "Content-Type", "text/plain")
	t.Log(a.Code, b.Code, b.Body, runs.Load())
	if b.Code == 200 {
		t.Errorf("a different request got the first one's answer")
	}
}

func TestConsumedJSONWithFormValueIsNoticed(t *testing.T) {
	m := &oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}
	inner := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "paid") }))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.FormValue("_method") // method override: PostForm is now empty, not nil
		io.ReadAll(r.Body)     // and a layer that decodes JSON
		inner.ServeHTTP(w, r)
	})
	a := postTo(h, "/", "k", `{"cents":1}`, "Content-Type", "application/json")
	b := postTo(h, "/", "k", `{"cents":2}`, "Content-Type", "application/json")
	t.Log(a.Code, b.Code, b.Header())
	if b.Code == 200 {
		t.Errorf("a different request got the first one's answer")
	}
}

// Anybody can present a certificate; only a verified one says who is there.
func TestAnUnverifiedCertificateBindsNothing(t *testing.T) {
	h := (&oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	ask := func(state *tls.ConnectionState) int {
		r := httptest.NewRequest("POST", "/refunds", strings.NewReader("b"))
		r.Header.Set(oncehttp.Header, "k")
		r.TLS = state
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	one, two := &x509.Certificate{Raw: []byte("one")}, &x509.Certificate{Raw: []byte("two")}
	ask(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{one}})
	if got := ask(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{two}}); got != 200 {
		t.Errorf("with another unverified certificate: %d, want 200", got)
	}
	verified := func(c *x509.Certificate) *tls.ConnectionState {
		return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
	}
	if got := ask(verified(one)); got != 409 {
		t.Errorf("with a verified one: %d, want 409, since it is another caller", got)
	}
}

// What a handler was given stays its own: it may keep the request, and a goroutine that it
// left behind may read from it, while others are served.
func TestAHandlersRequestIsNotUsedAgain(t *testing.T) {
	for _, size := range []int{1, 13, 64, 65, 1000} {
		for _, row := range []struct {
			name string
			m    *oncehttp.Middleware
			wrap func(m *oncehttp.Middleware, h http.Handler) http.Handler
		}{
			{"", &oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}, (*oncehttp.Middleware).Handler},
			{"protected twice", &oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}, func(m *oncehttp.Middleware, h http.Handler) http.Handler {
				return m.Handler(m.Handler(h))
			}},
		} {
			var kept []*http.Request
			var writers []http.ResponseWriter
			h := row.wrap(row.m, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				kept, writers = append(kept, r), append(writers, w)
			}))
			body := func(i int) string { return strings.Repeat(fmt.Sprint(i%10), size) }
			for i := range 50 {
				postTo(h, "/", fmt.Sprint("key-", i), body(i))
				postTo(h, "/", fmt.Sprint("key-", i), body(i))
			}
			if len(kept) != 50 {
				t.Fatalf("%s: the handler ran %d times, want 50", row.name, len(kept))
			}
			for i, r := range kept {
				io.WriteString(writers[i], "too late")
				got, err := io.ReadAll(r.Body)
				key, _ := oncehttp.KeyFromContext(r.Context())
				if string(got) != body(i) || err != nil || key != fmt.Sprint("key-", i) || r.Header.Get(oncehttp.Header) != key {
					t.Errorf("%s, request %d: body %q, %v, key %q, want %q", row.name, i, got, err, key, body(i))
				}
			}
		}
	}
}

// A hoarder is a body that fails, and keeps what it was to read into.
type hoarder struct{ p []byte }

func (b *hoarder) Read(p []byte) (int, error) { b.p = p; return 0, io.ErrUnexpectedEOF }
func (b *hoarder) Close() error               { return nil }

// A body that is given up by an outer layer may be read on in the background.
func TestABodyThatFailedWritesIntoNoOther(t *testing.T) {
	for range 20 {
		b := &hoarder{}
		h := (&oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(w, r.Body)
		}))
		r := httptest.NewRequest("POST", "/", b)
		r.ContentLength = 13
		r.Header.Set(oncehttp.Header, "k")
		h.ServeHTTP(httptest.NewRecorder(), r)
		late := reading(func(p []byte) (int, error) {
			n := copy(p, "the other one")
			copy(b.p, "XXXXXXXXXXXXX")
			return n, io.EOF
		})
		r = httptest.NewRequest("POST", "/", late)
		r.ContentLength = 13
		r.Header.Set(oncehttp.Header, "k2")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Body.String() != "the other one" {
			t.Fatalf("the handler read %q", w.Body)
		}
	}
}

type reading func([]byte) (int, error)

func (f reading) Read(p []byte) (int, error) { return f(p) }

// A handler may hand its request's body to a client, whose goroutine still reads when the
// handler closes it.
func TestAHandlersBodyIsClosedWhileItIsRead(t *testing.T) {
	h := (&oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var reads sync.WaitGroup
		reads.Go(func() {
			for b := make([]byte, 1); ; {
				if _, err := r.Body.Read(b); err != nil {
					return
				}
			}
		})
		r.Body.Close()
		reads.Wait()
	}))
	for i := range 100 {
		if w := postTo(h, "/", fmt.Sprint(i), strings.Repeat("x", 1000)); w.Code != 200 {
			t.Fatal(w.Code, w.Body)
		}
	}
}

// A 1xx in between must not mix up the fields of the answer, trailers or not.
func TestAnswersAfterA1xxHaveTheirOwnHeader(t *testing.T) {
	h := (&oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"A", "B", "C"} {
			w.Header().Set(name, "of "+name)
		}
		w.Header().Set(http.TrailerPrefix+"Sum", "1")
		w.WriteHeader(http.StatusEarlyHints)
		if r.URL.Path == "/bare" { // the next 1xx has no fields
			kept := maps.Clone(w.Header())
			clear(w.Header())
			defer maps.Copy(w.Header(), kept)
		}
		w.WriteHeader(http.StatusProcessing)
	}))
	for i := range 100 { // a map has no order
		for _, path := range []string{"/", "/bare"} {
			for _, way := range []string{"first", "repeat"} {
				w := postTo(h, path, fmt.Sprint(i), "x")
				for _, name := range []string{"A", "B", "C"} {
					if got := w.Header().Get(name); got != "of "+name {
						t.Fatalf("%s, %s: %s is %q", path, way, name, got)
					}
				}
			}
		}
	}
}
