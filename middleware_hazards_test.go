package oncehttp_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
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
