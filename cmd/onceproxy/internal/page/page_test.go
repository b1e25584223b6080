package page

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/operate"
)

const token = "a-token-of-the-tests-0123456789"

// An office is a page before a store, and a client that it knows.
type office struct {
	t      *testing.T
	store  *oncehttp.MemoryStore
	server *httptest.Server
	cookie *http.Cookie
	log    *bytes.Buffer
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{t: t, store: new(oncehttp.MemoryStore), log: new(bytes.Buffer)}
	o.server = httptest.NewServer(New(&operate.State{
		Version: "v1", Started: time.Now().Add(-90 * time.Minute), Listen: "http://127.0.0.1:8080", Store: "memory",
		Keys: o.store, Log: slog.New(slog.NewTextHandler(o.log, nil)),
		Routes: func() []operate.Route {
			return []operate.Route{
				{Name: "a", Match: "/a", Upstream: "https://a.example", Counts: operate.Counts{Executed: 5, Replayed: 3, Prevented: 4}, Breakers: []oncehttp.BreakerStatus{{Host: "https://a.example", State: oncehttp.BreakerOpen, Until: time.Now().Add(time.Minute)}}},
				{Name: "b", Match: "/b", Upstream: "https://b.example", Counts: operate.Counts{Executed: 2, Prevented: 1}},
			}
		},
	}, token))
	t.Cleanup(o.server.Close)
	a := o.do("POST", "/sign-in", form("token", token))
	for _, c := range a.cookies {
		o.cookie = c
	}
	if o.cookie == nil {
		t.Fatalf("signing in set no cookie: %d", a.status)
	}
	return o
}

// put leaves a key in a state.
func (o *office) put(key string, status oncehttp.ClaimStatus, body string) {
	o.t.Helper()
	ctx := context.Background()
	op := oncehttp.Op{Key: key, Token: oncehttp.NewToken(), Fingerprint: [32]byte{0xab}}
	_, err := o.store.Claim(ctx, op, time.Hour, 2*time.Hour)
	switch status {
	case oncehttp.ClaimOrphaned:
		err = errors.Join(err, o.store.Renew(ctx, op, 0))
	case oncehttp.ClaimDone:
		h := http.Header{"Content-Type": {"text/plain"}, "X-Secret-Value": {"hush"}}
		err = errors.Join(err, o.store.Complete(ctx, op, oncehttp.EncodeResponse(201, h, []byte(body)), []byte(body), time.Hour))
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *office) status(key string) oncehttp.ClaimStatus {
	o.t.Helper()
	r, err := o.store.Show(context.Background(), key)
	if errors.Is(err, oncehttp.ErrNotFound) {
		return 0
	}
	if err != nil {
		o.t.Fatal(err)
	}
	return r.Status
}

type answer struct {
	status  int
	header  http.Header
	body    string
	cookies []*http.Cookie
}

type change func(*http.Request)

func form(pairs ...string) change {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Add(pairs[i], pairs[i+1])
	}
	return func(r *http.Request) {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		b := v.Encode()
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(b)), int64(len(b))
	}
}

func header(name, value string) change {
	return func(r *http.Request) {
		if name == "Host" {
			r.Host = value
			return
		}
		r.Header.Set(name, value)
	}
}

// do sends a request as an operator's browser would, but for the changes.
func (o *office) do(method, target string, changes ...change) answer {
	o.t.Helper()
	r, err := http.NewRequest(method, o.server.URL+"/", nil)
	if err != nil {
		o.t.Fatal(err)
	}
	if r.URL, err = url.Parse(o.server.URL + target); err != nil {
		o.t.Fatal(err)
	}
	if o.cookie != nil {
		r.AddCookie(o.cookie)
	}
	for _, c := range changes {
		c(r)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		o.t.Fatalf("%s %.60s: %v", method, target, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		o.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b), resp.Cookies()}
}

var hidden = regexp.MustCompile(`<input type="hidden" name="(form|seen)" value="([^"]*)">`)

// fields are the hidden ones of the forms on a key's page.
func (o *office) fields(key string) (form, seen string) {
	o.t.Helper()
	for _, m := range hidden.FindAllStringSubmatch(o.do("GET", linkTo(key)).body, -1) {
		if m[1] == "form" {
			form = m[2]
		} else {
			seen = strings.ReplaceAll(m[2], "&#43;", "+")
		}
	}
	if form == "" || seen == "" {
		o.t.Fatalf("the page of %q has no forms", key)
	}
	return form, seen
}

func TestTheOverviewShowsCountsBreakersAndWhatWaits(t *testing.T) {
	o := newOffice(t)
	o.put("or1_a", oncehttp.ClaimOrphaned, "")
	a := o.do("GET", "/")
	for _, want := range []string{
		"<dt>Executed</dt><dd>7</dd>", "<dt>Replayed</dt><dd>3</dd>", "<dt>Duplicate effects prevented</dt><dd>5</dd>",
		"1 key has an unknown outcome.", "https://a.example</th>", `<span class="badge open">open</span> for`, "1 h 30 min",
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the overview lacks %q", want)
		}
	}
	if strings.Contains(a.body, "http-equiv") {
		t.Error("the page loads itself again, and nobody asked for it")
	}
	if a = o.do("GET", "/?every=1"); !strings.Contains(a.body, `http-equiv="refresh" content="10"`) {
		t.Error("the page does not load itself again, though that was asked for")
	}
}

func TestTheListIsSearchedByPrefixStateAndAgeAndTurnsPages(t *testing.T) {
	o := newOffice(t)
	for i := range 120 {
		o.put(fmt.Sprintf("or1_%03d", i), oncehttp.ClaimDone, "")
	}
	o.put("or1_007x", oncehttp.ClaimOrphaned, "")
	o.put("zz", oncehttp.ClaimRunning, "")
	rows := func(a answer) int { return strings.Count(a.body, `<th scope="row">`) }
	for _, c := range []struct {
		query string
		rows  int
	}{
		{"q=or1_007", 2}, {"q=or1_007&state=done", 1}, {"q=or1_007&state=unknown", 1}, {"state=running", 1}, {"state=unknown", 1},
		{"q=or1_11", 10}, {"q=or1_", perPage}, {"age=1h", 0}, {"q=zz", 1}, {"q=zzz", 0}, {"q=OR1_007", 0},
	} {
		if a := o.do("GET", "/keys?"+c.query); a.status != 200 || rows(a) != c.rows {
			t.Errorf("%s: got %d and %d keys, want %d", c.query, a.status, rows(a), c.rows)
		}
	}
	next := regexp.MustCompile(`href="(/keys\?[^"]*)">Next page`)
	seen, target := 0, "/keys?q=or1_"
	for target != "" {
		a := o.do("GET", target)
		seen += rows(a)
		m := next.FindStringSubmatch(a.body)
		if target = ""; m != nil {
			target = strings.ReplaceAll(m[1], "&amp;", "&")
		}
	}
	if seen != 121 {
		t.Errorf("over all pages: got %d keys, want 121", seen)
	}
}

func TestAKeysPageTellsItsStoryAndNoBody(t *testing.T) {
	o := newOffice(t)
	o.put("or1_done", oncehttp.ClaimDone, "the card number")
	a := o.do("GET", "/key?key=or1_done")
	for _, want := range []string{"answered with 201", "text/plain", "15 bytes", "X-Secret-Value", "ab00000000000000", "SHA-256"} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, secret := range []string{"the card number", "hush"} {
		if strings.Contains(a.body, secret) {
			t.Errorf("the page shows %q", secret)
		}
	}
	if a := o.do("GET", "/key?key=or1_nothing"); a.status != 404 || !strings.Contains(a.body, "There is no such key") {
		t.Errorf("an unknown key: got %d", a.status)
	}
}

func TestAKeyIsFoundByWhatTheClientSent(t *testing.T) {
	o := newOffice(t)
	key := oncehttp.RecordKey("basic:alice", "PUT", "/v1/x%2Fy", "k-1")
	o.put(key, oncehttp.ClaimDone, "")
	token, _ := o.fields(key)
	for _, sent := range []string{"k-1", `"k-1"`, " k-1 "} {
		a := o.do("POST", "/find", form("form", token, "method", "put", "path", "/v1/x%2Fy?q=1", "key", sent, "scope", "basic:alice"))
		if a.status != 303 || a.header.Get("Location") != linkTo(key) {
			t.Errorf("%q: got %d to %s", sent, a.status, a.header.Get("Location"))
		}
	}
	if a := o.do("POST", "/find", form("form", token, "path", "v1", "key", "k")); a.status != 400 || !strings.Contains(a.body, "path: write it") {
		t.Errorf("a wrong path: got %d", a.status)
	}
}

func TestResolvingAndPurgingTakeAConfirmation(t *testing.T) {
	o := newOffice(t)
	for _, key := range []string{"or1_yes", "or1_no", "or1_gone", "not plain \xff\r\n"} {
		o.put(key, oncehttp.ClaimOrphaned, "")
	}
	id := func(key string) []string {
		if isPlain(key) {
			return []string{"key", key}
		}
		return []string{"hex", hexOf(key)}
	}
	for _, c := range []struct {
		key, path string
		fields    []string
		then      oncehttp.ClaimStatus
	}{
		{"or1_yes", "/resolve", []string{"happened", "yes", "status", "202", "type", "text/plain", "body", "two\r\nlines"}, oncehttp.ClaimDone},
		{"or1_no", "/resolve", []string{"happened", "no", "status", "200"}, 0},
		{"or1_gone", "/purge", nil, 0},
		{"not plain \xff\r\n", "/purge", nil, 0},
	} {
		token, seen := o.fields(c.key)
		fields := append(append([]string{"form", token, "seen", seen}, id(c.key)...), c.fields...)
		if a := o.do("POST", c.path, form(fields...)); a.status != 200 || !strings.Contains(a.body, `name="confirm"`) {
			t.Errorf("%s %q: got %d, want to be asked", c.path, c.key, a.status)
		}
		if s := o.status(c.key); s != oncehttp.ClaimOrphaned {
			t.Errorf("%s %q: before it was confirmed the key is %v", c.path, c.key, s)
		}
		if a := o.do("POST", c.path, form(append(fields, "confirm", "yes")...)); a.status != 303 {
			t.Errorf("%s %q: got %d %s", c.path, c.key, a.status, a.body)
		}
		if s := o.status(c.key); s != c.then {
			t.Errorf("%s %q: the key is %v, want %v", c.path, c.key, s, c.then)
		}
	}
	r, err := o.store.Show(context.Background(), "or1_yes")
	if err != nil || string(r.Body) != "two\nlines" {
		t.Errorf("recorded: got %q, %v", r.Body, err)
	}
	if n := strings.Count(o.log.String(), "an operator"); n != 4 || strings.Contains(o.log.String(), "two") {
		t.Errorf("the log has %d of 4 deeds:\n%s", n, o.log)
	}
}

func TestWhatChangedSinceItWasLookedAtIsNotTouched(t *testing.T) {
	o := newOffice(t)
	ctx := context.Background()
	o.put("or1_k", oncehttp.ClaimOrphaned, "")
	token, seen := o.fields("or1_k")
	if err := o.store.Resolve(ctx, "or1_k", oncehttp.Resolution{Applied: true, Head: oncehttp.EncodeResponse(200, nil, nil)}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/purge", "/resolve"} {
		a := o.do("POST", path, form("form", token, "seen", seen, "key", "or1_k", "happened", "no", "confirm", "yes"))
		if a.status != 409 || !strings.Contains(a.body, "has changed since you looked") {
			t.Errorf("%s: got %d, want 409", path, a.status)
		}
	}
	if s := o.status("or1_k"); s != oncehttp.ClaimDone {
		t.Errorf("the key is %v", s)
	}
}

func TestWrongAnswersAreRefusedWithTheNameOfTheField(t *testing.T) {
	o := newOffice(t)
	o.put("or1_k", oncehttp.ClaimOrphaned, "")
	token, seen := o.fields("or1_k")
	for _, c := range []struct{ happened, status, kind, body, want string }{
		{"", "", "", "", "Say whether"}, {"maybe", "", "", "", "Say whether"},
		{"yes", "soon", "", "", "status:"}, {"yes", "99", "", "", "status:"}, {"yes", "600", "", "", "status:"},
		{"yes", "204", "text/plain", "x", "body:"}, {"yes", "200", "", "x", "content type:"},
		{"yes", "200", "text/plain\r\nX-Evil: 1", "x", "content type:"}, {"yes", "200", "plain", "x", "content type:"},
		{"yes", "200", "text/plain", strings.Repeat("x", 1<<20+1), "body:"},
	} {
		a := o.do("POST", "/resolve", form("form", token, "seen", seen, "key", "or1_k", "happened", c.happened, "status", c.status, "type", c.kind, "body", c.body, "confirm", "yes"))
		if a.status != 400 || !strings.Contains(a.body, c.want) || !strings.Contains(a.body, "Nothing was changed") {
			t.Errorf("%s %s %s %.10s: got %d, want 400 with %q", c.happened, c.status, c.kind, c.body, a.status, c.want)
		}
	}
	if s := o.status("or1_k"); s != oncehttp.ClaimOrphaned {
		t.Errorf("the key is %v", s)
	}
}

// A brokenStore does not answer.
type brokenStore struct{ *oncehttp.MemoryStore }

var errBroken = errors.New("dial tcp: secret-host refused")

func (brokenStore) List(context.Context, oncehttp.RecordQuery) ([]oncehttp.Record, error) {
	return nil, errBroken
}
func (brokenStore) Show(context.Context, string) (oncehttp.Record, error) {
	return oncehttp.Record{}, errBroken
}

func TestAStoreThatDoesNotAnswerIsSaidSo(t *testing.T) {
	h := New(&operate.State{Keys: brokenStore{}, Routes: func() []operate.Route { return nil }}, token)
	for target, want := range map[string]int{"/": 200, "/keys": 502, "/key?key=k": 502} {
		r := httptest.NewRequest("GET", target, nil)
		r.Host = "127.0.0.1"
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want || !strings.Contains(w.Body.String(), "The store did not answer") || strings.Contains(w.Body.String(), "secret-host") {
			t.Errorf("%s: got %d %s", target, w.Code, w.Body)
		}
	}
}

func TestSessionsEndAndAreFew(t *testing.T) {
	s := newSessions()
	now := time.Now()
	first := s.begin(now)
	if !s.has(first, now.Add(sessionLife-1)) || s.has(first, now.Add(sessionLife)) {
		t.Error("a session does not last as long as it should")
	}
	first = s.begin(now)
	for i := range maxSessions {
		s.begin(now.Add(time.Duration(i+1) * time.Second))
	}
	if s.has(first, now) || len(s.ends) != maxSessions {
		t.Errorf("there are %d sessions, the oldest too", len(s.ends))
	}
}
