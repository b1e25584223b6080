package page

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/operate"
)

func noCookie(r *http.Request) { r.Header.Del("Cookie") }

// Each row is what somebody does who is not the operator. None may learn of a key or
// change one.
func TestWhoIsNotTheOperatorLearnsAndChangesNothing(t *testing.T) {
	o := newOffice(t)
	const key = "or1_precious"
	o.put(key, oncehttp.ClaimOrphaned, "")
	formToken, seen := o.fields(key)
	purge := form("form", formToken, "seen", seen, "key", key, "confirm", "yes")
	purgeWith := func(f string) change { return form("form", f, "seen", seen, "key", key, "confirm", "yes") }
	own := strings.TrimPrefix(o.server.URL, "http://")

	for _, c := range []struct {
		what, method, target string
		changes              []change
		want                 int
	}{
		{"no token", "GET", "/keys", []change{noCookie}, 401},
		{"no token, overview", "GET", "/", []change{noCookie}, 401},
		{"no token, one key", "GET", linkTo(key), []change{noCookie}, 401},
		{"no token, purge", "POST", "/purge", []change{noCookie, purge}, 401},
		{"no token, a page that is not there", "GET", "/nothing", []change{noCookie}, 401},
		{"a wrong token in the form", "POST", "/sign-in", []change{noCookie, form("token", token+"x")}, 401},
		{"an empty token", "POST", "/sign-in", []change{noCookie, form("token", "")}, 401},
		{"a wrong token in the link", "GET", "/sign-in?token=guess", []change{noCookie}, 401},
		{"a wrong token in the header", "GET", "/keys", []change{noCookie, header("Authorization", "Bearer guess")}, 401},
		{"an empty token in the header", "GET", "/keys", []change{noCookie, header("Authorization", "Bearer ")}, 401},
		{"the token as another scheme", "GET", "/keys", []change{noCookie, header("Authorization", "Basic "+token)}, 401},
		{"the token as the cookie", "GET", "/keys", []change{header("Cookie", o.cookie.Name+"="+token)}, 401},
		{"a made-up session", "GET", "/keys", []change{header("Cookie", o.cookie.Name+"=AAAA")}, 401},
		{"the token in the query of a page", "GET", "/keys?token=" + token, []change{noCookie}, 401},

		{"another site's form", "POST", "/purge", []change{purge, header("Origin", "https://evil.example"), header("Sec-Fetch-Site", "cross-site")}, 403},
		{"another site's form, by an old browser", "POST", "/purge", []change{purge, header("Origin", "https://evil.example")}, 403},
		{"another port's form", "POST", "/purge", []change{purge, header("Origin", "http://127.0.0.1:1"), header("Sec-Fetch-Site", "same-site")}, 403},
		{"a sandboxed frame's form", "POST", "/purge", []change{purge, header("Origin", "null")}, 403},
		{"the same host, but https", "POST", "/purge", []change{purge, header("Origin", "https://"+own)}, 403},
		{"another site's form, by a browser that hides where from", "POST", "/purge", []change{purge, header("Sec-Fetch-Site", "cross-site")}, 403},
		{"another site's fetch", "GET", "/keys", []change{header("Origin", "https://evil.example")}, 403},
		{"another site's image", "GET", "/keys", []change{header("Sec-Fetch-Site", "cross-site")}, 403},
		{"another site signs in", "POST", "/sign-in", []change{noCookie, form("token", token), header("Origin", "https://evil.example")}, 403},
		{"another site signs out", "POST", "/sign-out", []change{form("form", formToken), header("Origin", "https://evil.example")}, 403},

		{"no form token", "POST", "/purge", []change{purgeWith("")}, 403},
		{"a wrong form token", "POST", "/purge", []change{purgeWith(strings.Repeat("0", 64))}, 403},
		{"the form token in the query", "POST", "/purge?form=" + formToken + "&key=" + key + "&confirm=yes&seen=" + seen, []change{form()}, 403},
		{"a form as text", "POST", "/purge", []change{purge, header("Content-Type", "text/plain")}, 415},
		{"a form as JSON", "POST", "/purge", []change{purge, header("Content-Type", "application/json")}, 415},
		{"a form in parts", "POST", "/purge", []change{purge, header("Content-Type", "multipart/form-data; boundary=x")}, 415},

		{"a name that was pointed here", "GET", "/keys", []change{header("Host", "evil.example")}, 421},
		{"a name that was pointed here, with the port", "POST", "/purge", []change{purge, header("Host", "evil.example:8081")}, 421},
		{"a name that begins like the address", "GET", "/keys", []change{header("Host", "127.0.0.1.evil.example")}, 421},
		{"a name that ends like localhost", "GET", "/keys", []change{header("Host", "evil.localhost")}, 421},
		{"an address that is not loopback", "GET", "/keys", []change{header("Host", "192.168.1.1:8081")}, 421},
		{"the address of any interface", "GET", "/keys", []change{header("Host", "0.0.0.0:8081")}, 421},
		{"a port that is none", "GET", "/keys", []change{header("Host", "127.0.0.1:8081@evil.example")}, 421},

		{"purge by GET", "GET", "/purge?key=" + key + "&confirm=yes&form=" + formToken + "&seen=" + seen, nil, 404},
		{"resolve by GET", "GET", "/resolve?key=" + key + "&happened=no&confirm=yes&form=" + formToken + "&seen=" + seen, nil, 404},
		{"sign out by GET", "GET", "/sign-out", nil, 404},
		{"purge by DELETE", "DELETE", linkTo(key), nil, 405},
		{"purge by PUT", "PUT", "/purge", []change{purge}, 405},
		{"a method of their own", "PURGE", linkTo(key), nil, 405},
		{"another method in a header", "GET", linkTo(key), []change{header("X-HTTP-Method-Override", "POST")}, 200},

		{"a huge search", "GET", "/keys?q=" + strings.Repeat("a", 5000), nil, 414},
		{"a large search", "GET", "/keys?q=" + strings.Repeat("a", 300), nil, 400},
		{"a state that is none", "GET", "/keys?state=%3Cscript%3E", nil, 400},
		{"an age that is none", "GET", "/keys?age=-1h", nil, 400},
		{"an age without end", "GET", "/keys?age=9999999999h", nil, 400},
		{"a huge form", "POST", "/purge", []change{form("form", formToken, "key", strings.Repeat("k", 5<<20))}, 413},
		{"a key that is not hexadecimal", "GET", "/key?hex=zz", nil, 400},
		{"no key", "GET", "/key", nil, 400},
		{"a broken query", "GET", "/key?key=%zz", nil, 400},

		{"a way up", "GET", "/assets/../../page.go", nil, 307},
		{"an escaped way up", "GET", "/%2e%2e/%2e%2e/etc/passwd", nil, 404},
		{"the templates", "GET", "/assets/key.html", nil, 404},
		{"the style under another path", "GET", "/style.css/..%2fkeys", nil, 404},
		{"a NUL", "GET", "/keys%00", nil, 404},
	} {
		a := o.do(c.method, c.target, c.changes...)
		if a.status != c.want {
			t.Errorf("%s: got %d, want %d", c.what, a.status, c.want)
		}
		if a.status != 200 && strings.Contains(a.body, "precious") {
			t.Errorf("%s: the answer names the key:\n%s", c.what, a.body)
		}
		if strings.Contains(a.body, token) {
			t.Errorf("%s: the answer holds the token", c.what)
		}
		if s := o.status(key); s != oncehttp.ClaimOrphaned {
			t.Fatalf("%s: the key is %v now", c.what, s)
		}
	}
	if a := o.do("GET", "/keys"); a.status != 200 {
		t.Errorf("the operator was signed out: %d", a.status)
	}
	if strings.Contains(o.log.String(), token) || strings.Contains(o.log.String(), o.cookie.Value) {
		t.Error("the log holds a secret")
	}
}

// What must hold for the operator, or the rows above would pass on a page that is shut.
func TestTheOperatorIsLetIn(t *testing.T) {
	o := newOffice(t)
	port := o.server.URL[strings.LastIndexByte(o.server.URL, ':'):]
	for _, c := range []struct {
		what, target string
		changes      []change
	}{
		{"a session", "/keys", nil},
		{"a session, by a browser", "/keys", []change{header("Sec-Fetch-Site", "same-origin"), header("Origin", o.server.URL)}},
		{"an address that was typed", "/keys", []change{header("Sec-Fetch-Site", "none")}},
		{"the token in the header", "/keys", []change{noCookie, header("Authorization", "Bearer "+token)}},
		{"localhost", "/keys", []change{header("Host", "localhost"+port)}},
		{"the address of IPv6", "/keys", []change{header("Host", "[::1]"+port)}},
	} {
		if a := o.do("GET", c.target, c.changes...); a.status != 200 {
			t.Errorf("%s: got %d", c.what, a.status)
		}
	}
	o.put("or1_k", oncehttp.ClaimOrphaned, "")
	_, seen := o.fields("or1_k")
	a := o.do("POST", "/purge", noCookie, header("Authorization", "Bearer "+token), form("key", "or1_k", "seen", seen, "confirm", "yes"))
	if a.status != 303 || o.status("or1_k") != 0 {
		t.Errorf("a program with the token: got %d", a.status)
	}
}

func TestAPageWithoutATokenLetsNobodyIn(t *testing.T) {
	h := New(&operate.State{Keys: new(oncehttp.MemoryStore), Routes: func() []operate.Route { return nil }}, "")
	r := httptest.NewRequest("GET", "/", nil)
	r.Host = "127.0.0.1"
	r.Header.Set("Authorization", "Bearer ")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 401 {
		t.Errorf("got %d", w.Code)
	}
}

func TestEveryAnswerForbidsScriptsFramesAndCaches(t *testing.T) {
	o := newOffice(t)
	o.put("or1_k", oncehttp.ClaimOrphaned, "")
	for _, target := range []string{"/", "/keys", "/key?key=or1_k", "/nothing", "/style.css", "/icon.svg", "/sign-in", "/key", "/keys?q=" + strings.Repeat("a", 5000)} {
		a := o.do("GET", target)
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'", "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
			"Cache-Control": "no-store", "Referrer-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := a.header.Get(name); !strings.HasPrefix(got, want) {
				t.Errorf("%.30s: %s is %q", target, name, got)
			}
		}
		csp := a.header.Get("Content-Security-Policy")
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "script-src") || !strings.Contains(csp, "frame-ancestors 'none'") || !strings.Contains(csp, "form-action 'self'") || !strings.Contains(csp, "base-uri 'none'") {
			t.Errorf("%.30s: the policy is %s", target, csp)
		}
		if a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%.30s: others may read it", target)
		}
		if strings.Contains(a.body, "<script") || strings.Contains(a.body, "style=") || strings.Contains(a.body, " onclick") {
			t.Errorf("%.30s: there is a script or a style in the page", target)
		}
	}
	c := o.do("POST", "/sign-in", form("token", token)).header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} {
		if !strings.Contains(c, want) {
			t.Errorf("the cookie is without %s: %s", want, c)
		}
	}
	if strings.Contains(c, token) {
		t.Error("the cookie holds the token")
	}
}

func TestKeysAndSearchesCannotBecomeMarkup(t *testing.T) {
	o := newOffice(t)
	const evil = `"><script>alert(1)</script><b x='`
	o.put(evil, oncehttp.ClaimOrphaned, "")
	o.put("\x1b[2Jescape\xff", oncehttp.ClaimDone, "<script>")
	formToken, seen := o.fields(evil)
	for _, a := range []answer{
		o.do("GET", "/keys"), o.do("GET", linkTo(evil)), o.do("GET", linkTo("\x1b[2Jescape\xff")),
		o.do("GET", "/keys?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E"), o.do("GET", "/key?key=%3Cscript%3E"),
		o.do("GET", "/keys?state=%22%3E%3Cscript%3E"), o.do("GET", "/keys?age=%22%3E%3Cscript%3E"), o.do("GET", "/%3Cscript%3E"),
		o.do("GET", "/keys?done=%3Cscript%3E"),
		o.do("POST", "/find", form("form", formToken, "path", `"><script>`, "key", `"><script>`, "scope", `"><script>`)),
		o.do("POST", "/resolve", form("form", formToken, "seen", seen, "key", evil, "happened", "yes", "status", "200", "type", "text/html", "body", "</textarea><script>")),
		o.do("POST", "/resolve", form("form", formToken, "seen", seen, "key", evil, "happened", "yes", "status", `"><script>`, "type", `"><script>`, "body", "</textarea><script>")),
	} {
		if strings.Contains(a.body, "<script") || strings.Contains(a.body, "<b x") || strings.Contains(a.body, "</textarea><s") || strings.Contains(a.body, "\x1b") {
			t.Errorf("markup got through:\n%s", a.body)
		}
	}
}

func TestSigningOutEndsTheSession(t *testing.T) {
	o := newOffice(t)
	o.put("or1_k", oncehttp.ClaimDone, "")
	formToken, _ := o.fields("or1_k")
	if a := o.do("POST", "/sign-out", form("form", formToken)); a.status != 303 {
		t.Errorf("got %d", a.status)
	}
	if a := o.do("GET", "/keys"); a.status != 401 {
		t.Errorf("the old cookie still gets %d", a.status)
	}
}
