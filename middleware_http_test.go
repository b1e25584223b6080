package oncehttp

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
)

// A site is a handler served over real connections, by one version of HTTP.
type site struct {
	*httptest.Server
	client *http.Client
}

// eachProto runs a test over HTTP/1 and HTTP/2.
func eachProto(t *testing.T, test func(t *testing.T, serve func(http.Handler) *site)) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			test(t, func(h http.Handler) *site { return serve(t, proto, h) })
		})
	}
}

func serve(t *testing.T, proto string, h http.Handler) *site {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if proto == "HTTP/2.0" {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	c := s.Client()
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.Transport.(*http.Transport).DisableCompression = true
	return &site{s, c}
}

// A reply is a response, read.
type reply struct {
	status  int
	header  http.Header
	body    string
	trailer http.Header
	early   []textproto.MIMEHeader // the headers of 1xx responses
	err     error                  // of reading it
}

// request makes one with a key, if key is not "".
func (s *site) request(t *testing.T, method, path, key, body string, fields ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set(Header, key)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header[http.CanonicalHeaderKey(fields[i])] = append(r.Header[http.CanonicalHeaderKey(fields[i])], fields[i+1])
	}
	return r
}

func (s *site) send(r *http.Request) (got reply) {
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			if code != http.StatusContinue {
				got.early = append(got.early, h)
			}
			return nil
		},
	}))
	resp, err := s.client.Do(r)
	if err != nil {
		got.err = err
		return got
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	got.status, got.header, got.body, got.trailer, got.err = resp.StatusCode, resp.Header, string(b), resp.Trailer, err
	return got
}

// post sends a POST with a key and a small body.
func (s *site) post(t *testing.T, path, key string, fields ...string) reply {
	t.Helper()
	got := s.send(s.request(t, "POST", path, key, `{"amount":100}`, fields...))
	if got.err != nil {
		t.Fatal(got.err)
	}
	return got
}

// A problem is what a program sees of a refusal.
type problem struct {
	Type         string
	Title        string
	Status       int
	Detail       string
	RetrySameKey *bool `json:"retry_same_key"`
	SafeNewKey   *bool `json:"safe_new_key"`
	Outcome      string
}

// wantProblem checks a refusal whole. want is "type status retry_same_key
// safe_new_key outcome".
func wantProblem(t *testing.T, got reply, kind string, status int, sameKey, newKey bool, outcome string) {
	t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(got.body), &p); err != nil {
		t.Fatalf("status %d, and %q is no problem document: %v", got.status, got.body, err)
	}
	if got.status != status || p.Status != status || p.Type != "urn:oncehttp:"+kind {
		t.Errorf("refused as %s with %d (%d), want %s with %d", p.Type, got.status, p.Status, kind, status)
	}
	if p.RetrySameKey == nil || p.SafeNewKey == nil {
		t.Fatalf("%s does not say what to do", got.body)
	}
	if *p.RetrySameKey != sameKey || *p.SafeNewKey != newKey || p.Outcome != outcome {
		t.Errorf("%s: retry_same_key %v, safe_new_key %v, outcome %s; want %v, %v, %s",
			kind, *p.RetrySameKey, *p.SafeNewKey, p.Outcome, sameKey, newKey, outcome)
	}
	if p.Title == "" || p.Detail == "" {
		t.Errorf("%s says nothing to its reader: %s", kind, got.body)
	}
	for name, want := range map[string]string{
		"Content-Type":  "application/problem+json",
		"Cache-Control": "no-store",
	} {
		if h := got.header.Get(name); h != want {
			t.Errorf("%s: %s is %q, want %q", kind, name, h, want)
		}
	}
	for _, name := range []string{headerStatus, headerReplayed} {
		if h, ok := got.header[name]; ok {
			t.Errorf("%s: %s is %q, want none", kind, name, h)
		}
	}
	if after := got.header.Get("Retry-After") != ""; after != sameKey && kind != "body-unreadable" && kind != "scope-failed" {
		t.Errorf("%s: Retry-After is %q", kind, got.header.Get("Retry-After"))
	}
}

// wantFirst and wantReplay check how an answer is marked.
func wantFirst(t *testing.T, got reply) {
	t.Helper()
	if got.header.Get(headerStatus) != "executed" || got.header[headerReplayed] != nil {
		t.Errorf("a first answer (%d %s) is marked %v and %v", got.status, got.body, got.header[headerStatus], got.header[headerReplayed])
	}
}

func wantReplay(t *testing.T, got reply) {
	t.Helper()
	if got.header.Get(headerReplayed) != "true" || got.header[headerStatus] != nil {
		t.Errorf("a replay (%d %s) is marked %v and %v", got.status, got.body, got.header[headerReplayed], got.header[headerStatus])
	}
}

// wantUnmarked checks an answer that repeats do not get.
func wantUnmarked(t *testing.T, got reply) {
	t.Helper()
	if got.header[headerStatus] != nil || got.header[headerReplayed] != nil {
		t.Errorf("an answer that is not recorded (%d %s) is marked %v and %v", got.status, got.body, got.header[headerStatus], got.header[headerReplayed])
	}
}
