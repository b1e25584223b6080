package dropin

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// redirector sets a cookie and sends /from on to /to with the status in ?code.
func redirector(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/from" {
		report(w, r)
		return
	}
	var code int
	fmt.Sscan(r.URL.Query().Get("code"), &code)
	io.Copy(io.Discard, r.Body)
	http.SetCookie(w, &http.Cookie{Name: "hop", Value: "1", Path: "/"})
	w.Header().Set("Location", "/to")
	w.WriteHeader(code)
}

func redirectRow(code int, method, wantMethod, wantBody string) Row {
	does := fmt.Sprintf("a %d answer to %s is followed by %s", code, method, wantMethod)
	return Row{does, Both, Real, func(w *Wire) {
		jar, _ := cookiejar.New(nil)
		w.client.Jar = jar
		url := fmt.Sprint(w.serve(redirector), "/from?code=", code)
		var body io.Reader
		if method != "GET" && method != "HEAD" {
			body = strings.NewReader("hello")
		}
		r := w.request(method, url, body)
		r.Header.Set("X-Kept", "yes")
		if wantMethod == "HEAD" {
			resp := w.do(r)
			w.equal("method", resp.Request.Method, "HEAD")
			w.equal("path", resp.Request.URL.Path, "/to")
			return
		}
		got := w.tells(r)
		w.equal("path", got.URI, "/to")
		w.equal("method", got.Method, wantMethod)
		w.equal("body", got.Body, wantBody)
		w.equal("cookie", got.Header.Get("Cookie"), "hop=1")
		w.equal("header", got.Header.Get("X-Kept"), "yes")
		w.equal("referer", got.Header.Get("Referer"), url)
	}}
}

var redirectRows = []Row{
	redirectRow(301, "GET", "GET", ""),
	redirectRow(301, "POST", "GET", ""),
	redirectRow(302, "POST", "GET", ""),
	redirectRow(302, "HEAD", "HEAD", ""),
	redirectRow(303, "PUT", "GET", ""),
	redirectRow(307, "POST", "POST", "hello"),
	redirectRow(307, "PATCH", "PATCH", "hello"),
	redirectRow(308, "PUT", "PUT", "hello"),
	redirectRow(308, "DELETE", "DELETE", "hello"),
	{"307 without GetBody is handed back", Both, Real, func(w *Wire) {
		resp := w.do(w.request("POST", w.serve(redirector)+"/from?code=307", onlyReader("hello")))
		w.equal("status", resp.StatusCode, 307)
		w.equal("location", resp.Header.Get("Location"), "/to")
	}},
	{"RoundTrip itself follows nothing", Both, Real, func(w *Wire) {
		for _, code := range []int{301, 302, 303, 307, 308} {
			resp, err := w.client.Transport.RoundTrip(w.request("GET", fmt.Sprint(w.serve(redirector), "/from?code=", code), nil))
			if err != nil {
				w.Fatal(err)
			}
			resp.Body.Close()
			w.equal("status", resp.StatusCode, code)
			loc, err := resp.Location()
			if err != nil || loc.Path != "/to" || !loc.IsAbs() {
				w.Errorf("location: got %v, %v, want an absolute …/to", loc, err)
			}
		}
	}},
	{"a malformed Location is an answer to RoundTrip and an error to the client", Both, Real, func(w *Wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Location", "http://[::1")
			rw.WriteHeader(302)
		})
		resp, err := w.client.Transport.RoundTrip(w.request("GET", url, nil))
		if err != nil {
			w.Fatal(err)
		}
		resp.Body.Close()
		w.equal("status", resp.StatusCode, 302)
		resp, err = w.client.Do(w.request("GET", url, nil))
		if err == nil || !strings.Contains(err.Error(), "failed to parse Location header") {
			w.Errorf("client: got %v, want a complaint about Location", err)
		}
		if resp != nil {
			resp.Body.Close()
		}
	}},
	{"a redirect without Location is an answer", Both, Real, func(w *Wire) {
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(302) })
		w.equal("status", w.get(url).StatusCode, 302)
	}},
	{"the tenth redirect is the last", Both, Real, func(w *Wire) {
		var calls atomic.Int32
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, fmt.Sprint("/", calls.Add(1)), 302)
		})
		resp, err := w.client.Get(url)
		if err == nil || !strings.Contains(err.Error(), "stopped after 10 redirects") {
			w.Errorf("error: got %v, want stopped after 10 redirects", err)
		}
		if resp == nil {
			w.Error("the last answer is missing")
		}
		w.equal("calls", calls.Load(), int32(10))
	}},
	{"ErrUseLastResponse hands back the redirect, its body open", Both, Real, func(w *Wire) {
		w.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		resp := w.get(w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Location", "/to")
			rw.WriteHeader(302)
			io.WriteString(rw, "moved")
		}))
		w.equal("status", resp.StatusCode, 302)
		w.equal("body", bodyOf(w, resp), "moved")
	}},
	{"the request of a redirect knows the answer that caused it", Both, Real, func(w *Wire) {
		resp := w.get(w.serve(redirector) + "/from?code=302")
		if resp.Request.Response == nil || resp.Request.Response.StatusCode != 302 {
			w.Errorf("resp.Request.Response: got %v, want the 302", resp.Request.Response)
		}
	}},
	{"Authorization stays with its host", Both, Real, func(w *Wire) {
		other := w.serve(report)
		u, _ := url.Parse(other)
		target := strings.Replace(other, u.Hostname(), "elsewhere.example", 1)
		if w.net == nil {
			w.Base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				_, port, _ := net.SplitHostPort(addr)
				var d net.Dialer
				return d.DialContext(ctx, network, "127.0.0.1:"+port)
			}
			w.Base.TLSClientConfig.InsecureSkipVerify = true // the name is not in the certificate
		}
		from := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, target, 307)
		})
		r := w.request("GET", from, nil)
		r.Header.Set("Authorization", "Bearer secret")
		got := w.tells(r)
		w.equal("Authorization", got.Header.Get("Authorization"), "")
		if !strings.HasPrefix(got.Host, "elsewhere.example") {
			w.Errorf("host: got %q, want elsewhere.example", got.Host)
		}
	}},
	{"cookies are sent and come back", Both, Real, func(w *Wire) {
		jar, _ := cookiejar.New(nil)
		w.client.Jar = jar
		url := w.serve(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Add("Set-Cookie", "a=1")
			rw.Header().Add("Set-Cookie", "b=2; HttpOnly")
			rw.Header().Set("Got", r.Header.Get("Cookie"))
		})
		r := w.request("GET", url, nil)
		r.AddCookie(&http.Cookie{Name: "mine", Value: "0"})
		resp := w.do(r)
		w.equal("sent", resp.Header.Get("Got"), "mine=0")
		w.equal("received", len(resp.Cookies()), 2)
		w.equal("sent back", w.get(url).Header.Get("Got"), "a=1; b=2")
	}},
}

var expectRows = []Row{
	{"with Expect: 100-continue the body waits for the 100", Both, Real, func(w *Wire) {
		w.Base.ExpectContinueTimeout = time.Minute
		var waited, got atomic.Int32
		body := &tracked{r: strings.NewReader("hello")}
		r := w.request("POST", w.serve(func(rw http.ResponseWriter, r *http.Request) {
			if n := body.reads.Load(); n != 0 {
				w.Errorf("reads before the 100: got %d, want 0", n)
			}
			report(rw, r)
		}), body)
		r.ContentLength = 5
		r.Header.Set("Expect", "100-continue")
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Wait100Continue: func() { waited.Add(1) },
			Got100Continue:  func() { got.Add(1) },
		}))
		w.equal("body", w.tells(r).Body, "hello")
		w.equal("waited for the 100", waited.Load(), int32(1))
		w.equal("got the 100", got.Load(), int32(1))
	}},
	{"with Expect: 100-continue refused the body is never read", Both, Real, func(w *Wire) {
		w.Base.ExpectContinueTimeout = time.Minute
		body := &tracked{r: strings.NewReader("hello")}
		r := w.request("POST", w.serve(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(417) }), body)
		r.ContentLength = 5
		r.Header.Set("Expect", "100-continue")
		w.equal("status", w.do(r).StatusCode, 417)
		w.eventually("the body is closed", func() bool { return body.closes.Load() > 0 })
		w.equal("reads", body.reads.Load(), int32(0))
	}},
	{"with Expect: 100-continue unanswered the body goes after ExpectContinueTimeout", HTTP1, Virtual, func(w *Wire) {
		w.Base.ExpectContinueTimeout = 3 * time.Second
		start := time.Now()
		url := w.serveRaw(func(conn net.Conn, r *http.Request, _ string) {
			b, _ := io.ReadAll(r.Body)
			w.equal("wait", time.Since(start), 3*time.Second)
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
		})
		r := w.request("POST", url, strings.NewReader("hello"))
		r.Header.Set("Expect", "100-continue")
		w.equal("body", bodyOf(w, w.do(r)), "hello")
	}},
}
