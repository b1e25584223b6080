package oncetest_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp/oncetest"
)

// What a client sees of a handler must not depend on whether this package stands
// in between.
func TestRepliesPassUnchanged(t *testing.T) {
	type seen struct {
		Status   int
		Header   http.Header
		Length   int64
		Encoding []string
		Body     string
		Trailer  http.Header
		Early    []int
		Err      bool
	}
	look := func(c *http.Client, method, url string) (s seen) {
		ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { s.Early = append(s.Early, code); return nil },
		})
		req, _ := http.NewRequestWithContext(ctx, method, url, strings.NewReader("question"))
		resp, err := c.Do(req)
		if err != nil {
			return seen{Err: true}
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		resp.Header.Del("Date")
		return seen{resp.StatusCode, resp.Header, resp.ContentLength, resp.TransferEncoding, string(body), resp.Trailer, s.Early, err != nil}
	}
	for _, row := range []struct {
		name    string
		method  string
		handler http.HandlerFunc
	}{
		{"nothing at all", "POST", func(w http.ResponseWriter, r *http.Request) {}},
		{"headers only", "POST", func(w http.ResponseWriter, r *http.Request) { w.Header().Add("X-A", "1"); w.Header().Add("X-A", "2") }},
		{"an echo", "POST", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }},
		{"HTML by its looks", "GET", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") }},
		{"a long body", "POST", func(w http.ResponseWriter, r *http.Request) { w.Write(bytes.Repeat([]byte("x"), 100_000)) }},
		{"a declared length", "POST", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello")
		}},
		{"no content", "DELETE", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204); io.WriteString(w, "ignored") }},
		{"not modified", "GET", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Etag", `"1"`); w.WriteHeader(304) }},
		{"HEAD", "HEAD", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }},
		{"early hints", "POST", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</a>")
			w.WriteHeader(103)
			w.Header().Del("Link")
			w.WriteHeader(201)
		}},
		{"trailers", "POST", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			io.WriteString(w, "hello")
			w.(http.Flusher).Flush()
			w.Header().Set("X-Sum", "5")
			w.Header().Set(http.TrailerPrefix+"X-Late", "6")
		}},
		{"a second WriteHeader", "POST", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(201)
			http.NewResponseController(w).Flush()
			w.Header().Set("X-Too-Late", "1")
		}},
		{"a panic", "POST", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }},
		{"a panic in the middle", "POST", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "hello")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}},
		{"an end of its goroutine", "GET", func(w http.ResponseWriter, r *http.Request) { runtime.Goexit() }},
	} {
		for _, h2 := range []bool{false, true} {
			if h2 && row.name == "an end of its goroutine" {
				continue // the client of plain net/http would wait for ever
			}
			t.Run(fmt.Sprint(row.name, ", HTTP/2 ", h2), func(t *testing.T) {
				plain := httptest.NewUnstartedServer(row.handler)
				plain.EnableHTTP2 = h2
				plain.StartTLS()
				defer plain.Close()
				want := look(plain.Client(), row.method, plain.URL)
				opts := []oncetest.Option{oncetest.TLS()}
				if h2 {
					opts = append(opts, oncetest.HTTP2())
				}
				for name, f := range map[string][]oncetest.Option{
					"without a fault":    opts,
					"with a short delay": with(opts, oncetest.DelayHeaders(time.Microsecond)),
				} {
					srv := oncetest.NewServer(t, row.handler, f...)
					if got := look(srv.Client(), row.method, srv.URL); !reflect.DeepEqual(got, want) {
						if len(got.Body)+len(want.Body) > 1000 {
							got.Body, want.Body = "", ""
						}
						t.Errorf("%s:\n got %+v\nwant %+v\n%s", name, got, want, srv.Timeline())
					}
				}
			})
		}
	}
}

func TestAStreamArrivesAsItIsWritten(t *testing.T) {
	for _, mode := range modes[:3] {
		for name, f := range map[string][]oncetest.Option{"straight": nil, "late": {oncetest.DelayHeaders(time.Minute)}} {
			t.Run(mode.name+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						for range 3 {
							io.WriteString(w, "tick\n")
							w.(http.Flusher).Flush()
							time.Sleep(time.Hour)
						}
					}), with(mode.opts, f...)...)
					start := time.Now()
					resp, err := srv.Client().Get(srv.URL)
					if err != nil {
						t.Fatal(err)
					}
					defer resp.Body.Close()
					for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
					}
					if got := time.Since(start).Round(time.Hour); got != 3*time.Hour {
						t.Errorf("took %v, want 3h", got)
					}
					if got := srv.Requests()[0]; !got.Sent || !got.Read {
						t.Errorf("got Sent %v, Read %v; want both", got.Sent, got.Read)
					}
				})
			})
		}
	}
}

func TestFullDuplexPassesWhereThereIsNoFault(t *testing.T) {
	for _, mode := range modes[:3] {
		t.Run(mode.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					rc := http.NewResponseController(w)
					rc.EnableFullDuplex()
					w.WriteHeader(200)
					rc.Flush()
					io.Copy(w, r.Body)
				}), mode.opts...)
				pr, pw := io.Pipe()
				resp, err := srv.Client().Post(srv.URL, "", pr)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				io.WriteString(pw, "hello") // only now that the head is here
				pw.Close()
				if got, err := io.ReadAll(resp.Body); string(got) != "hello" || err != nil {
					t.Errorf("got %q, %v; want an echo", got, err)
				}
				if got := srv.Requests()[0]; string(got.Body) != "hello" {
					t.Errorf("noted the body %q", got.Body)
				}
			})
		})
	}
}

// The handlers here do not read, so the server must, to know the action.
func TestABodyIsKnownEvenIfTheHandlerDoesNotReadIt(t *testing.T) {
	for _, mode := range modes[:3] {
		for name, body := range map[string]func() io.Reader{
			"of known length": func() io.Reader { return strings.NewReader("A-17") },
			"that streams":    func() io.Reader { return struct{ io.Reader }{strings.NewReader("A-17")} },
		} {
			t.Run(mode.name+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { oncetest.Effect(r) }), mode.opts...)
					for range 2 {
						if resp, err := srv.Client().Post(srv.URL, "", body()); err == nil {
							resp.Body.Close()
						}
					}
					for _, r := range srv.Requests() {
						if string(r.Body) != "A-17" {
							t.Errorf("request %d has body %q, want A-17", r.N, r.Body)
						}
					}
					fails(t, srv, "took effect 2 times")
				})
			})
		}
	}
}

func TestAnEndlessBodyIsNotWaitedFor(t *testing.T) {
	for _, mode := range modes[1:3] { // on HTTP/1 net/http itself waits for it
		t.Run(mode.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}), mode.opts...)
				pr, pw := io.Pipe()
				defer pw.Close()
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				req, _ := http.NewRequestWithContext(ctx, "POST", srv.URL, pr)
				go io.WriteString(pw, "a beginning")
				resp, err := srv.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if got := time.Since(start); got > time.Second {
					t.Errorf("waited %v for the body", got)
				}
			})
		})
	}
}

func TestAHandlerThatBreaksOffDoesNotWaitForTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }))
		host := strings.TrimPrefix(srv.URL, "http://")
		c, err := srv.DialContext(t.Context(), "tcp", host+":80")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		start := time.Now()
		c.SetDeadline(start.Add(time.Hour))
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", host)
		if got, err := io.ReadAll(c); len(got) > 0 || err != nil {
			t.Errorf("got %q, %v; want an end", got, err)
		}
		if got := time.Since(start); got > time.Second {
			t.Errorf("waited %v for the body", got)
		}
		if got := srv.Requests()[0]; string(got.Body) != "hello" {
			t.Errorf("noted the body %q, want what came of it", got.Body)
		}
	})
}

func TestAForeignClientThatHasGivenUpWasNotTold(t *testing.T) {
	for _, mode := range modes[:3] {
		t.Run(mode.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { time.Sleep(time.Hour) }), mode.opts...)
				tr := foreign(srv, mode.http2)
				defer tr.CloseIdleConnections()
				got := post(&http.Client{Transport: tr, Timeout: time.Minute}, srv.URL, "100")
				if got.err == nil {
					t.Fatalf("got %+v, want a timeout", got)
				}
				fails(t, srv, "")
				if got := srv.Requests()[0]; got.Sent {
					t.Errorf("the reply counts as sent\n%s", srv.Timeline())
				}
			})
		})
	}
}

func TestAHandlerMayTakeTheConnectionOver(t *testing.T) {
	for name, f := range map[string][]oncetest.Option{"straight": nil, "with a fault": {oncetest.DelayHeaders(time.Second)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					c, _, err := w.(http.Hijacker).Hijack()
					if err != nil {
						http.Error(w, err.Error(), http.StatusNotImplemented)
						return
					}
					defer c.Close()
					io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\nhello")
					time.Sleep(time.Hour)
					oncetest.Effect(r)
				}), f...)
				want := outcome{status: 201, body: "hello"}
				if f != nil {
					want = outcome{status: 501, body: "oncetest: a send with a fault cannot be hijacked: feature not supported\n", took: time.Second}
				}
				if got := post(srv.Client(), srv.URL, "100"); got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
				fails(t, srv, "")
				if got := srv.Effects(); got != 1 && f == nil {
					t.Errorf("%d effects, want 1: Once waits for the handler", got)
				}
			})
		})
	}
}

// fails reports whether Once fails with one failure that contains want, which is
// returned; want == "" means that it must not.
func fails(t *testing.T, srv *oncetest.Server, want string) string {
	t.Helper()
	r := new(recorder)
	oncetest.Once(r, srv)
	switch {
	case want == "" && len(r.failures) > 0:
		t.Errorf("got %q, want no failure", r.failures)
	case want != "" && (len(r.failures) != 1 || !strings.Contains(r.failures[0], want)):
		t.Errorf("got %q, want one failure with %q in\n%s", r.failures, want, srv.Timeline())
	case want != "":
		return r.failures[0]
	}
	return ""
}

func TestWhatIsOneAction(t *testing.T) {
	type req struct{ method, path, key, body string }
	post := func(key, body string) req { return req{"POST", "/refunds", key, body} }
	for _, row := range []struct {
		name   string
		faults []oncetest.Option
		reqs   []req
		want   string
	}{
		{"equal requests without a key are one", nil, []req{post("", "a"), post("", "a")}, "took effect 2 times"},
		{"another body is another action", nil, []req{post("", "a"), post("", "b")}, ""},
		{"another method is another action", nil, []req{post("", "a"), {"PUT", "/refunds", "", "a"}}, ""},
		{"another path is another action", nil, []req{post("", "a"), {"POST", "/refunds/2", "", "a"}}, ""},
		{"another query is another action", nil, []req{{"POST", "/r?a=1", "", ""}, {"POST", "/r?a=2", "", ""}}, ""},
		{"one key is one action", nil, []req{post("k", "a"), post("k", "a")}, "took effect 2 times"},
		{"a quoted key and the bare one are the same", nil, []req{post("k", "a"), post(`"k"`, "a")}, "took effect 2 times"},
		{"what is no key by the rules still is itself", nil, []req{post("no key", "a"), post("no key", "a")}, "took effect 2 times"},
		{"one key for two requests", nil, []req{post("k", "a"), post("k", "b")}, "one key was used for different requests"},
		{"two keys after an answer are two actions", nil, []req{post("k1", "a"), post("k2", "a")}, ""},
		{"a second key after a lost answer is the same action", []oncetest.Option{oncetest.LoseReply()}, []req{post("k1", "a"), post("k2", "a")}, "its repeats brought new keys"},
		{"and so is a third", []oncetest.Option{oncetest.LoseReply().On(1, 2)}, []req{post("k1", "a"), post("k2", "a"), post("k3", "a")}, "took effect 3 times"},
		{"and one without a key", []oncetest.Option{oncetest.LoseReply()}, []req{post("k1", "a"), post("", "a")}, "took effect 2 times"},
		{"and a key after none", []oncetest.Option{oncetest.LoseReply()}, []req{post("", "a"), post("k1", "a")}, "took effect 2 times"},
		{"a second key after a 5xx", []oncetest.Option{oncetest.StatusAfter(504)}, []req{post("k1", "a"), post("k2", "a")}, "took effect 2 times"},
		{"a second key after a 429", []oncetest.Option{oncetest.StatusAfter(429)}, []req{post("k1", "a"), post("k2", "a")}, "took effect 2 times"},
		{"a second key after a 404 is another action", []oncetest.Option{oncetest.StatusAfter(404)}, []req{post("k1", "a"), post("k2", "a")}, ""},
		{"a second key with another body is another action", []oncetest.Option{oncetest.LoseReply()}, []req{post("k1", "a"), post("k2", "b")}, ""},
		{"a key that comes back had not been given up", []oncetest.Option{oncetest.LoseReply()}, []req{post("k1", "a"), post("k1", "a"), post("k2", "a")}, "A)\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := oncetest.NewServer(t, http.HandlerFunc(refund), row.faults...)
				for _, q := range row.reqs {
					r, _ := http.NewRequest(q.method, srv.URL+q.path, strings.NewReader(q.body))
					r.GetBody = nil
					if q.key != "" {
						r.Header.Set("Idempotency-Key", q.key)
					}
					if resp, err := srv.Client().Do(r); err == nil {
						io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}
				fails(t, srv, row.want)
			})
		})
	}
}

// Two clients want the same at the same time, under keys of their own; the one
// whose reply is lost repeats it under its key.
func TestTwoClientsAtOnceAreTwoActions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := oncetest.NewServer(t, new(keyed), oncetest.LoseReply(), oncetest.DelayHeaders(time.Second))
		var wg sync.WaitGroup
		for i, wait := range []time.Duration{0, 500 * time.Millisecond} {
			wg.Go(func() {
				time.Sleep(wait)
				loop(srv.Client(), srv.URL, func(int) string { return fmt.Sprint("client-", i) })
			})
		}
		wg.Wait()
		fails(t, srv, "")
		if got := srv.Effects(); got != 2 {
			t.Errorf("%d effects, want 2", got)
		}
	})
}

// The first client gives up. The second did not know of it when it began.
func TestAClientThatBeganBeforeIsNotRepeating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := oncetest.NewServer(t, new(keyed), oncetest.LoseReply(), oncetest.DelayHeaders(time.Hour))
		var wg sync.WaitGroup
		wg.Go(func() { send(srv.Client(), srv.URL, "client-1", "A-17") })
		time.Sleep(time.Minute)
		wg.Go(func() { send(srv.Client(), srv.URL, "client-2", "A-17") })
		wg.Wait()
		fails(t, srv, "")
	})
}

func TestWhoWasToldOfSuccess(t *testing.T) {
	nothing := func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "all is well") }
	for _, row := range []struct {
		name    string
		method  string
		handler http.HandlerFunc
		faults  []oncetest.Option
		foreign bool
		read    int // bytes; -1: to the end
		want    bool
	}{
		{"a client that has read a 200 to its end", "POST", nothing, nil, false, -1, true},
		{"a client that has closed it unread", "POST", nothing, nil, false, 0, true},
		{"not one that got the half of it", "POST", nothing, []oncetest.Option{oncetest.CutBody(4)}, false, -1, false},
		{"not one that closed the half of it", "POST", nothing, []oncetest.Option{oncetest.CutBody(4)}, false, 2, false},
		{"not one that got nothing", "POST", nothing, []oncetest.Option{oncetest.LoseReply()}, false, -1, false},
		{"a client of which nothing is known, by a whole reply", "POST", nothing, nil, true, -1, true},
		{"not by the half of one", "POST", nothing, []oncetest.Option{oncetest.CutBody(4)}, true, -1, false},
		{"an empty body is read at once", "DELETE", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }, nil, false, 0, true},
		{"a safe method needs no effect", "GET", nothing, nil, false, -1, false},
		{"nor does a question", "POST", func(w http.ResponseWriter, r *http.Request) { oncetest.NoEffect(r) }, nil, false, -1, false},
		{"a 4xx is no success", "POST", http.NotFound, nil, false, -1, false},
		{"an effect after the reply counts", "POST", func(w http.ResponseWriter, r *http.Request) {
			nothing(w, r)
			w.(http.Flusher).Flush()
			time.Sleep(time.Hour)
			oncetest.Effect(r)
		}, nil, false, 4, false},
	} {
		for _, mode := range modes[:3] {
			t.Run(row.name+", "+mode.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					srv := oncetest.NewServer(t, row.handler, with(mode.opts, row.faults...)...)
					c := srv.Client()
					if row.foreign {
						tr := foreign(srv, mode.http2)
						defer tr.CloseIdleConnections()
						c.Transport = tr
					}
					r, _ := http.NewRequest(row.method, srv.URL, nil)
					if resp, err := c.Do(r); err == nil {
						if row.read < 0 {
							io.Copy(io.Discard, resp.Body)
						} else {
							io.ReadFull(resp.Body, make([]byte, row.read))
						}
						resp.Body.Close()
					}
					want := ""
					if row.want {
						want = "but nothing took effect"
					}
					fails(t, srv, want)
				})
			})
		}
	}
}

// foreign is a transport of which the server knows nothing.
func foreign(srv *oncetest.Server, h2 bool) *http.Transport {
	tr := &http.Transport{DialContext: srv.DialContext, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetHTTP2(h2 && srv.Certificate() != nil)
	tr.Protocols.SetUnencryptedHTTP2(h2 && srv.Certificate() == nil)
	if cert := srv.Certificate(); cert != nil {
		tr.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
		tr.TLSClientConfig.RootCAs.AddCert(cert)
	}
	return tr
}

func TestForeignClientsMeetTheSameFaults(t *testing.T) {
	for _, mode := range modes[3:] {
		t.Run(mode.name, func(t *testing.T) {
			srv := oncetest.NewServer(t, http.HandlerFunc(refund), with(mode.opts, oncetest.RefuseConn().On(1, 3), oncetest.LoseReply().On(4))...)
			tr := foreign(srv, mode.http2)
			tr.DialContext = nil // dials like any other
			defer tr.CloseIdleConnections()
			for i, ok := range []bool{false, true, false, false, true} {
				got := post(&http.Client{Transport: tr}, srv.URL, "100")
				if (got.status == 201) != ok {
					t.Errorf("send %d: got %+v\n%s", i+1, got, srv.Timeline())
				}
			}
			if got := srv.Sends(); got != 5 {
				t.Errorf("%d sends, want 5\n%s", got, srv.Timeline())
			}
			fails(t, srv, "took effect 3 times")
		})
	}
}

// A naive script in another language would look like this to the server.
func TestAForeignClientsDoubleEffectIsCaughtOverTCP(t *testing.T) {
	srv := oncetest.NewServer(t, http.HandlerFunc(refund), oncetest.ResetAfter())
	for range 2 {
		resp, err := http.Post(srv.URL+"/refunds", "text/plain", strings.NewReader("100"))
		if err == nil {
			resp.Body.Close()
		} else if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("got %v, want a reset", err)
		}
	}
	fails(t, srv, "took effect 2 times")
}

// Net/http sends a keyed request again by itself when a reused connection dies:
// golang/go#19943.
func TestWhatNetHTTPSendsByItselfIsASend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := oncetest.NewServer(t, http.HandlerFunc(refund), oncetest.LoseReply().On(2))
		for i := range 2 {
			r, _ := http.NewRequest("POST", srv.URL, nil)
			r.Header.Set("Idempotency-Key", fmt.Sprint("k", i))
			resp, err := srv.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if got := srv.Sends(); got != 3 {
			t.Errorf("%d sends, want 3", got)
		}
		if got := srv.Requests(); got[1].Read || !got[2].Read {
			t.Errorf("the client read its second reply from send 2, want send 3\n%s", srv.Timeline())
		}
		fails(t, srv, "took effect 2 times")
	})
}

func TestGoAwayBeforeLetsOthersFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Hour)
			refund(w, r)
		}), oncetest.HTTP2(), oncetest.GoAwayBefore().On(2, 3))
		var wg sync.WaitGroup
		got := make([]outcome, 3)
		for i := range got {
			time.Sleep(time.Second)
			wg.Go(func() { got[i] = post(srv.Client(), srv.URL, fmt.Sprint(i)) })
		}
		wg.Wait()
		if got[0].status != 201 || got[0].err != nil {
			t.Errorf("the request that was there: got %+v, want it answered", got[0])
		}
		for _, o := range got[1:] {
			if o.err == nil || !strings.Contains(o.err.Error(), "graceful shutdown GOAWAY") {
				t.Errorf("got %+v, want a GOAWAY", o)
			}
		}
		if got := srv.Effects(); got != 1 {
			t.Errorf("%d effects, want 1\n%s", got, srv.Timeline())
		}
	})
}

// The client gives up the request that was to be called unprocessed. Another on its
// connection runs on, which must not be called so in its place.
func TestGoAwayBeforeForAClientThatHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Hour)
			refund(w, r)
		}), oncetest.HTTP2(), oncetest.GoAwayBefore().On(2))
		var wg sync.WaitGroup
		for i, timeout := range []time.Duration{0, time.Minute} {
			wg.Go(func() {
				c := srv.Client()
				c.Timeout = timeout
				if resp, err := c.Do(request(t, "POST", srv.URL, fmt.Sprint(i))); err == nil { // net/http may repeat it
					resp.Body.Close()
				}
			})
			time.Sleep(time.Second)
		}
		wg.Wait()
		fails(t, srv, "")
		if got := srv.Effects(); got != 1 {
			t.Errorf("%d effects, want 1\n%s", got, srv.Timeline())
		}
	})
}

// A slowConn shows its client late what the server has sent.
type slowConn struct{ net.Conn }

func (c slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	time.Sleep(time.Second)
	return n, err
}

// A request that was sent before the client could know that the connection will
// close must not be called unprocessed, for it is.
func TestARequestThatCrossesTheGoAwayIsAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(2 * time.Second) }) // the slow connection's last read
		srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			refund(w, r)
			time.Sleep(time.Minute)
		}), oncetest.HTTP2(), oncetest.RefuseConn().On(2))
		tr := foreign(srv, true)
		dial := tr.DialContext
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			return slowConn{c}, err
		}
		defer tr.CloseIdleConnections()
		var wg sync.WaitGroup
		for i, wait := range []time.Duration{0, 500 * time.Millisecond} {
			wg.Go(func() {
				time.Sleep(wait)
				resp, err := tr.RoundTrip(request(t, "POST", srv.URL, fmt.Sprint(i))) // net/http could repeat it
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			})
		}
		wg.Wait()
		fails(t, srv, "")
		if got := srv.Effects(); got != 2 {
			t.Errorf("%d effects, want 2\n%s", got, srv.Timeline())
		}
	})
}

func request(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestGoAwayAmongManyNeverLies(t *testing.T) {
	// More than net/http writes at once, so that frames are under way.
	long := bytes.Repeat([]byte("x"), 50_000)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refund(w, r)
		w.Write(long)
	})
	for _, f := range []oncetest.Option{oncetest.GoAwayBefore().On(3, 17, 18, 40), oncetest.RefuseConn().On(3, 17, 40)} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			srv := oncetest.NewServer(t, handler, oncetest.HTTP2(), f)
			var wg sync.WaitGroup
			for i := range 60 {
				wg.Go(func() {
					for range 20 { // net/http repeats what was not processed
						resp, err := srv.Client().Post(srv.URL, "text/plain", strings.NewReader(fmt.Sprint(i)))
						if err == nil {
							io.Copy(io.Discard, resp.Body)
							resp.Body.Close()
							return
						}
						if !errors.Is(err, syscall.ECONNREFUSED) {
							t.Errorf("request %d: %v", i, err)
							return
						}
					}
				})
			}
			wg.Wait()
			oncetest.Once(t, srv)
			if got := srv.Effects(); got != 60 {
				t.Errorf("%d effects, want 60\n%s", got, srv.Timeline())
			}
		})
	}
}

func TestManyClientsAtOnce(t *testing.T) {
	srv := oncetest.NewServer(t, http.HandlerFunc(refund), oncetest.LoseReply().On(5), oncetest.CutBody(2).On(9), oncetest.DeliverTwice(0).On(11))
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() { post(srv.Client(), srv.URL, fmt.Sprint(i)) })
	}
	wg.Wait()
	fails(t, srv, "took effect 2 times") // the one that was delivered twice
	seen := map[int]bool{}
	for _, r := range srv.Requests() {
		seen[r.N] = true
	}
	if len(seen) != 40 || srv.Sends() != 40 {
		t.Errorf("%d requests with numbers of their own and %d sends, want 40 of each", len(seen), srv.Sends())
	}
}

func TestARedirectToAnotherServerInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := oncetest.NewServer(t, http.HandlerFunc(refund))
		from := oncetest.NewServer(t, http.RedirectHandler(to.URL+"/refunds", http.StatusTemporaryRedirect), oncetest.TLS())
		resp, err := from.Client().Post(from.URL, "text/plain", strings.NewReader("100"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := to.Effects(); resp.StatusCode != 201 || got != 1 {
			t.Errorf("got %d and %d effects, want 201 and 1", resp.StatusCode, got)
		}
	})
}

func TestTheServerClosesAndNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(recorder)
		srv := oncetest.NewServer(r, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { <-req.Context().Done() }), oncetest.DeliverTwice(0), oncetest.DeliverTwice(time.Hour))
		go srv.Client().Get(srv.URL)
		synctest.Wait()
		r.finish()
		if len(r.failures) > 0 {
			t.Errorf("got %q", r.failures)
		}
		if _, err := srv.Client().Get(srv.URL); err == nil {
			t.Error("a closed server answers")
		}
	})
}

func TestAHandlerThatHangsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan bool)
		r := new(recorder)
		srv := oncetest.NewServer(r, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { <-release }))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "POST", srv.URL+"/hang", nil)
		srv.Client().Do(req)
		oncetest.Once(r, srv)
		r.finish()
		close(release)
		if len(r.failures) != 2 || !strings.Contains(r.failures[0], "still running") || !strings.Contains(r.failures[1], "has not returned") || !strings.Contains(r.failures[1], "POST /hang") {
			t.Errorf("got %q, want Once and Close to fail", r.failures)
		}
	})
}

func TestThePanicOfAHandlerIsPartOfTheStory(t *testing.T) {
	for name, f := range map[string][]oncetest.Option{"straight": nil, "late": {oncetest.DelayHeaders(time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					oncetest.Effect(r)
					panic(http.ErrAbortHandler)
				}), f...)
				naive(srv.Client(), srv.URL)
				if got := fails(t, srv, "took effect 4 times"); !strings.Contains(got, "panicked: net/http: abort Handler") {
					t.Errorf("got %s, want the panic", got)
				}
			})
		})
	}
}

func TestMisuseFailsTheTest(t *testing.T) {
	for _, row := range []struct {
		name string
		opts []oncetest.Option
		want string
	}{
		{"a status that is none", []oncetest.Option{oncetest.Status(42)}, "oncetest: Status(42): the status is not between 200 and 999"},
		{"a header line that is none", []oncetest.Option{oncetest.Status(503, "Retry-After 2")}, `"Retry-After 2" is no header line`},
		{"a send before the first", []oncetest.Option{oncetest.LoseReply().On(0)}, "LoseReply.On(0): sends are numbered from 1"},
		{"no send", []oncetest.Option{oncetest.LoseReply().On()}, "sends are numbered from 1"},
		{"a negative length", []oncetest.Option{oncetest.CutBody(-1)}, "CutBody(-1): the number of bytes is negative"},
		{"no length", []oncetest.Option{oncetest.DripBody(0, 1)}, "DripBody(0, 1ns): the number of bytes is less than 1"},
		{"no wait", []oncetest.Option{oncetest.DelayHeaders(0)}, "DelayHeaders(0s): the duration is not positive"},
		{"a negative wait", []oncetest.Option{oncetest.DeliverTwice(-1)}, "DeliverTwice(-1ns): the duration is not positive"},
		{"a refusal by request", []oncetest.Option{oncetest.RefuseConn().Where(nil)}, "refused before there is a request"},
		{"a key header without a name", []oncetest.Option{oncetest.KeyHeader("")}, "KeyHeader: the name is empty"},
		{"a Fault from nowhere", []oncetest.Option{oncetest.Fault{}}, "must come from one of the package's functions"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := new(recorder)
			func() {
				defer func() { recover() }() // Fatalf of a *testing.T does not return
				oncetest.NewServer(r, http.NotFoundHandler(), row.opts...)
			}()
			if len(r.failures) != 1 || !strings.Contains(r.failures[0], row.want) {
				t.Errorf("got %q, want %q", r.failures, row.want)
			}
		})
	}
	t.Run("Effect for a request from nowhere", func(t *testing.T) {
		r := new(recorder)
		srv := oncetest.NewServer(r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			oncetest.Effect(r.WithContext(context.Background()))
		}))
		defer r.finish()
		if got := post(srv.Client(), srv.URL, ""); got.err == nil {
			t.Errorf("got %+v, want no answer", got)
		}
		if len(r.failures) != 1 || !strings.Contains(r.failures[0], "does not come from an oncetest.Server") {
			t.Errorf("got %q", r.failures)
		}
	})
}

func TestTheStoryKeepsSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := oncetest.NewServer(t, http.HandlerFunc(refund))
		for range 2 {
			r, _ := http.NewRequest("POST", srv.URL+"/refunds?token=secret", strings.NewReader("secret"))
			r.Header.Set("Idempotency-Key", "key-with-a-secret")
			r.Header.Set("Authorization", "Bearer secret")
			resp, err := srv.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if got := fails(t, srv, "took effect 2 times"); strings.Contains(got, "secret") {
			t.Errorf("a secret is told:\n%s", got)
		}
	})
}

func TestALongStoryIsShortened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := oncetest.NewServer(t, http.HandlerFunc(refund))
		for i := range 200 {
			post(srv.Client(), srv.URL, fmt.Sprint(i/2*7))
		}
		got := fails(t, srv, "and 95 more actions like these")
		if n := strings.Count(got, "\n"); n > 75 {
			t.Errorf("%d lines, want a screenful:\n%s", n, got)
		}
	})
}

func TestAnotherKeyHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := oncetest.NewServer(t, http.HandlerFunc(refund), oncetest.KeyHeader("x-request-key"))
		for i := range 2 {
			r, _ := http.NewRequest("POST", srv.URL, strings.NewReader(fmt.Sprint(i)))
			r.Header.Set("X-Request-Key", "k")
			resp, err := srv.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		fails(t, srv, "one key was used for different requests")
	})
}
