package oncehttp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/oncehttp/oncehttp"
)

func TestWhichKeyIsSent(t *testing.T) {
	const given, inHeader = "given-key", "header-key"
	withKey := func(ctx context.Context) context.Context { return oncehttp.WithKey(ctx, given) }
	set := func(values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[oncehttp.Header] = values }
	}
	isUUID := func(s string) bool { return len(s) == 36 && strings.Count(s, "-") == 4 }
	is := func(want string) func(string) bool { return func(s string) bool { return s == want } }
	for _, r := range []struct {
		name   string
		ctx    func(context.Context) context.Context
		method string
		edit   func(*http.Request)
		tr     *oncehttp.Transport
		want   func(string) bool
	}{
		{"a POST gets a fresh key", nil, "POST", nil, &oncehttp.Transport{}, isUUID},
		{"a PUT gets a fresh key", nil, "PUT", nil, &oncehttp.Transport{}, isUUID},
		{"a DELETE gets a fresh key, so that a repeat gets its first 204 back", nil, "DELETE", nil, &oncehttp.Transport{}, isUUID},
		{"a GET gets none", nil, "GET", nil, &oncehttp.Transport{}, is("")},
		{"a GET gets none from the context either", withKey, "GET", nil, &oncehttp.Transport{}, is("")},
		{"a GET keeps what its caller set", nil, "GET", set(inHeader), &oncehttp.Transport{}, is(inHeader)},
		{"the header's key is kept", nil, "POST", set(inHeader), &oncehttp.Transport{}, is(inHeader)},
		{"the header stays as its caller wrote it", nil, "POST", set(`"` + inHeader + `";a=1`), &oncehttp.Transport{}, is(`"` + inHeader + `";a=1`)},
		{"the header's key is kept, however its name is spelled", nil, "POST", func(r *http.Request) { r.Header["idempotency-key"] = []string{inHeader} }, &oncehttp.Transport{}, is(inHeader)},
		{"the context replaces it, however its name is spelled", withKey, "POST", func(r *http.Request) { r.Header["IDEMPOTENCY-KEY"] = []string{inHeader} }, &oncehttp.Transport{}, is(given)},
		{"the context wins over the header", withKey, "POST", set(inHeader), &oncehttp.Transport{}, is(given)},
		{"a nil entry means: idempotent, send nothing", withKey, "POST", set(), &oncehttp.Transport{}, is("")},
		{"a host that honours no keys gets none", withKey, "POST", set(inHeader), &oncehttp.Transport{Honors: func(*http.Request) bool { return false }}, is("")},
		{"keys can be quoted", withKey, "POST", nil, &oncehttp.Transport{QuoteKeys: true}, is(`"` + given + `"`)},
		{"a key that only the quoted form can carry is quoted", func(ctx context.Context) context.Context { return oncehttp.WithKey(ctx, "a,b") }, "POST", nil, &oncehttp.Transport{}, is(`"a,b"`)},
		{"an action's key is derived", func(ctx context.Context) context.Context { return oncehttp.WithAction(ctx, "refund A-17") }, "POST", set(inHeader), &oncehttp.Transport{},
			func(s string) bool { return strings.HasPrefix(s, "oa1_") }},
	} {
		t.Run(r.name, func(t *testing.T) {
			ctx := t.Context()
			if r.ctx != nil {
				ctx = r.ctx(ctx)
			}
			b := script(200)
			r.tr.Base, r.tr.Logger = b, quiet()
			req := newRequest(t, ctx, r.method, "http://refund.example/refunds", "b")
			if r.edit != nil {
				r.edit(req)
			}
			resp, err := r.tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			var got []string
			for name, values := range b.seen[0].header {
				if strings.EqualFold(name, oncehttp.Header) {
					got = append(got, values...)
				}
			}
			if len(got) > 1 || !r.want(strings.Join(got, "")) {
				t.Errorf("keys on the wire: %q", got)
			}
		})
	}
}

func TestANilEntryMakesAPOSTRepeatable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := script(errReset, 200)
		req := newRequest(t, t.Context(), "POST", "http://refund.example/refunds", "b")
		req.Header[oncehttp.Header] = nil
		resp, err := (&oncehttp.Transport{Base: b, Logger: quiet()}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := len(b.seen); got != 2 {
			t.Errorf("%d sends, want 2", got)
		}
	})
}

func TestAnInvalidKeyFailsTheRequest(t *testing.T) {
	for name, r := range map[string]struct {
		ctx    func(context.Context) context.Context
		header []string
	}{
		"from WithKey":         {func(ctx context.Context) context.Context { return oncehttp.WithKey(ctx, "secret key") }, nil},
		"empty, from WithKey":  {func(ctx context.Context) context.Context { return oncehttp.WithKey(ctx, "") }, nil},
		"in the header":        {nil, []string{"secret key"}},
		"empty, in the header": {nil, []string{""}},
		"two in the header":    {nil, []string{"secret1", "secret2"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if r.ctx != nil {
				ctx = r.ctx(ctx)
			}
			b := script(200)
			req := newRequest(t, ctx, "POST", "http://refund.example/refunds", "b")
			if r.header != nil {
				req.Header[oncehttp.Header] = r.header
			}
			_, err := (&oncehttp.Transport{Base: b}).RoundTrip(req)
			if !errors.Is(err, oncehttp.ErrBadKey) {
				t.Errorf("error = %v, want ErrBadKey", err)
			} else if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error quotes the key: %v", err)
			}
			if len(b.seen) != 0 {
				t.Errorf("%d sends, want none", len(b.seen))
			}
		})
	}
}

func TestAnActionSurvivesAReRunAndTellsStepsApart(t *testing.T) {
	send := func(ctx context.Context, b *base, url, body string) error {
		req := newRequest(t, ctx, "POST", url, body)
		req.Header.Set("Content-Type", "application/json")
		resp, err := (&oncehttp.Transport{Base: b}).RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	run := func() []string {
		b := script(200)
		ctx := oncehttp.WithAction(t.Context(), "order A-17")
		for _, err := range []error{
			send(ctx, b, "http://shop.example/charges", `{"amount":100}`),
			send(ctx, b, "http://shop.example/charges", `{ "amount" : 1e2 }`), // the same request, as an SDK might repeat it
			send(ctx, b, "http://shop.example/mails", `{"to":"x"}`),
			send(oncehttp.WithAction(ctx, "line 2"), b, "http://shop.example/charges", `{"amount":7}`),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return b.keys()
	}
	first, second := run(), run()
	if !slices.Equal(first, second) {
		t.Errorf("a re-run sent other keys:\n%v\n%v", first, second)
	}
	if first[0] != first[1] {
		t.Error("the same request got two keys")
	}
	if first[0] == first[2] || first[0] == first[3] || first[2] == first[3] {
		t.Errorf("different requests share a key: %v", first)
	}

	b := script(200)
	ctx := oncehttp.WithAction(t.Context(), "order A-17")
	if err := send(ctx, b, "http://shop.example/charges", `{"amount":100}`); err != nil {
		t.Fatal(err)
	}
	err := send(ctx, b, "http://shop.example/charges", `{"amount":90}`)
	if !errors.Is(err, oncehttp.ErrActionReused) || !strings.Contains(err.Error(), "name the step") {
		t.Errorf("a different request under the same key: %v, want ErrActionReused that says what to do", err)
	}
	if len(b.seen) != 1 {
		t.Errorf("%d sends, want 1", len(b.seen))
	}
}

func TestABodyWithoutGetBodyUnderAnAction(t *testing.T) {
	ctx := oncehttp.WithAction(t.Context(), "upload")
	oneShot := func(n int) *http.Request {
		req := newRequest(t, ctx, "POST", "http://shop.example/files", "x")
		req.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", n)))
		req.GetBody, req.ContentLength = nil, int64(n)
		return req
	}
	b := script(503, 200)
	resp, err := (&oncehttp.Transport{Base: b, BackoffBase: 1, Logger: quiet()}).RoundTrip(oneShot(1 << 20))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	for i, s := range b.seen {
		if len(s.body) != 1<<20 {
			t.Errorf("send %d carried %d bytes, want %d", i+1, len(s.body), 1<<20)
		}
	}
	if _, err := (&oncehttp.Transport{Base: b}).RoundTrip(oneShot(1<<20 + 1)); !errors.Is(err, oncehttp.ErrBody) {
		t.Errorf("a body too large to compare: %v, want ErrBody", err)
	}
}

// hops serves two origins; the first redirects to where the path says.
func TestKeysAcrossRedirects(t *testing.T) {
	type arrival struct{ host, method, key string }
	var mu sync.Mutex
	var got []arrival
	note := func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, arrival{r.Host, r.Method, r.Header.Get(oncehttp.Header)})
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { note(r) }))
	defer other.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note(r)
		switch r.URL.Path {
		case "/same307":
			http.Redirect(w, r, "/end", 307)
		case "/same308":
			http.Redirect(w, r, "/end", 308)
		case "/same303":
			http.Redirect(w, r, "/end", 303)
		case "/same302":
			http.Redirect(w, r, "/end", 302)
		case "/away307":
			http.Redirect(w, r, other.URL+"/end", 307)
		case "/away303":
			http.Redirect(w, r, other.URL+"/end", 303)
		}
	}))
	defer srv.Close()
	for _, source := range []string{"fresh", "header", "WithKey", "WithAction"} {
		for path, check := range map[string]func(a, b arrival) string{
			"/same307": func(a, b arrival) string { return want(b.key == a.key, "the key is kept") },
			"/same308": func(a, b arrival) string { return want(b.key == a.key, "the key is kept") },
			"/same303": func(a, b arrival) string { return want(b.method == "GET" && b.key == "", "a GET without a key") },
			"/same302": func(a, b arrival) string { return want(b.method == "GET" && b.key == "", "a GET without a key") },
			"/away303": func(a, b arrival) string { return want(b.method == "GET" && b.key == "", "a GET without a key") },
			"/away307": func(a, b arrival) string {
				return want(b.key == oncehttp.DeriveKey(a.key, other.URL), "a key derived for the other origin")
			},
		} {
			t.Run(source+path, func(t *testing.T) {
				got = nil
				ctx := t.Context()
				switch source {
				case "WithKey":
					ctx = oncehttp.WithKey(ctx, "k1")
				case "WithAction":
					ctx = oncehttp.WithAction(ctx, "a1")
				}
				req := newRequest(t, ctx, "POST", srv.URL+path, "b")
				if source == "header" {
					req.Header.Set(oncehttp.Header, "h1")
				}
				resp, err := (&http.Client{Transport: &oncehttp.Transport{}}).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if len(got) != 2 || got[0].key == "" {
					t.Fatalf("arrivals: %+v, want two, the first with a key", got)
				}
				if problem := check(got[0], got[1]); problem != "" {
					t.Errorf("%s, got %+v", problem, got)
				}
			})
		}
	}
}

func want(ok bool, what string) string {
	if ok {
		return ""
	}
	return "want " + what
}

func TestLogsNeverCarrySecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		for _, honors := range []bool{true, false} {
			tr := &oncehttp.Transport{Base: script(errReset, 503, 200), RetryUnhonored: true,
				Honors: func(*http.Request) bool { return honors },
				Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
			req := newRequest(t, oncehttp.WithKey(t.Context(), "canary-key"), "POST", "http://user:canary-pass@refund.example/refunds?canary=query", "canary-body")
			req.Header.Set(oncehttp.Header, "canary-header")
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		if s := log.String(); strings.Contains(s, "canary") {
			t.Errorf("the log carries a secret:\n%s", s)
		} else if !strings.Contains(s, "refund.example") || !strings.Contains(s, "no key protects") {
			t.Errorf("the log does not warn:\n%s", s)
		}
	})
}

func TestAHostThatNeverShowedThatItHonoursKeysIsWarnedAboutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, row := range []struct {
			name  string
			steps []any
			key   string
			want  int
		}{
			{"a minted key", []any{503, 200, 503, 200}, "", 1},
			{"a host that has shown it", []any{with(200, "Idempotency-Status", "executed"), 503, 200}, "", 0},
			{"a key of the caller's", []any{503, 200}, "mine", 0},
		} {
			var log bytes.Buffer
			tr := &oncehttp.Transport{Base: script(row.steps...), Logger: slog.New(slog.NewTextHandler(&log, nil))}
			for range 2 {
				ctx := t.Context()
				if row.key != "" {
					ctx = oncehttp.WithKey(ctx, row.key)
				}
				resp, err := tr.RoundTrip(newRequest(t, ctx, "POST", "http://refund.example/refunds", "b"))
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
			}
			if got := strings.Count(log.String(), "never shown"); got != row.want {
				t.Errorf("%s: %d warnings, want %d:\n%s", row.name, got, row.want, &log)
			}
		}
	})
}
