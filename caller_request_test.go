package oncehttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A snapshot is a request as it was, twice: shallow, for the identity of what it
// points to, and deep, for what is there.
type snapshot struct {
	r             *http.Request
	shallow, deep http.Request
}

func snap(r *http.Request) snapshot {
	return snapshot{r, *r, *r.Clone(r.Context())}
}

// compare reports how the request differs from what it was.
func (s snapshot) compare(t *testing.T) {
	t.Helper()
	now, then, deep := reflect.ValueOf(*s.r), reflect.ValueOf(s.shallow), reflect.ValueOf(s.deep)
	for i := range now.NumField() {
		name := now.Type().Field(i).Name
		if !now.Type().Field(i).IsExported() {
			continue
		}
		got, want := now.Field(i), then.Field(i)
		switch got.Kind() {
		case reflect.Func, reflect.Map, reflect.Pointer, reflect.Chan, reflect.Slice:
			if got.Pointer() != want.Pointer() {
				t.Errorf("Request.%s is another one", name)
			}
			if got.Kind() != reflect.Func && !reflect.DeepEqual(got.Interface(), deep.Field(i).Interface()) {
				t.Errorf("Request.%s: got %v, want %v", name, got, deep.Field(i))
			}
		default:
			if got.Interface() != want.Interface() {
				t.Errorf("Request.%s: got %v, want %v", name, got, want)
			}
		}
	}
	if s.r.Context() != s.shallow.Context() {
		t.Error("Request.Context() is another one")
	}
}

func TestTheCallersRequestIsNeverChanged(t *testing.T) {
	twice503 := func() http.HandlerFunc {
		var n atomic.Int32
		return func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if n.Add(1) < 3 {
				w.WriteHeader(503)
			}
		}
	}
	twiceLost := func() http.HandlerFunc {
		var n atomic.Int32
		return func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if n.Add(1) < 3 {
				reset(w)
			}
		}
	}
	rows := []struct {
		name   string
		method string
		body   func() io.Reader
		set    func(*oncehttp.Transport)
		spoil  func(*http.Request) *http.Request
		h      func() http.HandlerFunc
		sends  int
	}{
		{name: "one GET", method: "GET", h: ok200, sends: 1},
		{name: "one POST under a fresh key", method: "POST", body: textBody, h: ok200, sends: 1},
		{name: "a POST that is answered 503 twice", method: "POST", body: textBody, h: twice503, sends: 3},
		{name: "a POST that is lost twice", method: "POST", body: textBody, h: twiceLost, sends: 3},
		{name: "a POST without GetBody that is answered 503 twice", method: "POST", body: streamBody, h: twice503, sends: 3},
		{name: "a POST without GetBody that is lost twice", method: "POST", body: streamBody, h: twiceLost, sends: 3},
		{name: "a GET that is lost twice", method: "GET", h: twiceLost, sends: 3},
		{name: "a key of the context over one of the header", method: "POST", body: textBody, h: twice503, sends: 3,
			spoil: func(r *http.Request) *http.Request {
				r.Header.Set(oncehttp.Header, "from-the-sdk")
				return r.WithContext(oncehttp.WithKey(r.Context(), "order-1"))
			}},
		{name: "an action, with a body that has to be read first", method: "POST", body: streamBody, h: twice503, sends: 3,
			spoil: func(r *http.Request) *http.Request {
				return r.WithContext(oncehttp.WithAction(r.Context(), "refund A-17"))
			}},
		{name: "a nil entry in place of a key", method: "POST", body: textBody, h: twice503, sends: 3,
			spoil: func(r *http.Request) *http.Request { r.Header[oncehttp.Header] = nil; return r }},
		{name: "a key for a host that honours none", method: "POST", body: textBody, h: ok200, sends: 1,
			set:   func(tr *oncehttp.Transport) { tr.Honors = noKeys },
			spoil: func(r *http.Request) *http.Request { r.Header.Set(oncehttp.Header, "k"); return r }},
		{name: "a quoted key in another field", method: "POST", body: textBody, h: twice503, sends: 3,
			set: func(tr *oncehttp.Transport) { tr.QuoteKeys, tr.KeyHeader = true, "X-Request-Key" }},
		{name: "Prepare that changes all it can", method: "POST", body: textBody, h: twice503, sends: 3,
			set: func(tr *oncehttp.Transport) {
				tr.Prepare = func(r *http.Request) error {
					r.Header.Set("Authorization", "signed")
					r.Header.Del("X-A")
					r.Header["X-Many"][0] = "changed"
					r.URL.RawQuery = "signature=1"
					r.URL.Path = "/signed"
					r.Host = "signed.example"
					r.Method = "PUT"
					return nil
				}
			}},
		{name: "Prepare on a GET", method: "GET", h: twice503, sends: 3,
			set: func(tr *oncehttp.Transport) {
				tr.Prepare = func(r *http.Request) error {
					r.Header.Set("Date", "now")
					r.URL.RawQuery += "&again"
					return nil
				}
			}},
		{name: "replies that are read inside the attempt", method: "POST", body: textBody, h: twice503, sends: 3,
			set: func(tr *oncehttp.Transport) { tr.ReplayReply = 1 << 20 }},
		{name: "trailers", method: "POST", body: streamBody, h: twice503, sends: 3,
			spoil: func(r *http.Request) *http.Request { r.Trailer = http.Header{"X-Sum": {"1"}}; return r }},
		{name: "no attempt timeout", method: "POST", body: textBody, h: twice503, sends: 3,
			set: func(tr *oncehttp.Transport) { tr.AttemptTimeout = -1 }},
	}
	for _, row := range rows {
		for _, proto := range []string{"http1", "http2"} {
			t.Run(row.name+"/"+proto, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newMemNet()
					var sends atomic.Int32
					h := row.h()
					n.Serve(t, "a.example", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						sends.Add(1)
						h(w, r)
					}))
					var body io.Reader
					if row.body != nil {
						body = row.body()
					}
					r, err := http.NewRequestWithContext(t.Context(), row.method, "http://ann:pass@a.example/path?q=1#f", body)
					if err != nil {
						t.Fatal(err)
					}
					r.Header = http.Header{"X-A": {"b"}, "X-Many": {"1", "2"}}
					if row.spoil != nil {
						r = row.spoil(r)
					}
					before := snap(r)
					tr := &oncehttp.Transport{Base: n.Transport(t, proto == "http2"), Logger: quiet()}
					if row.set != nil {
						row.set(tr)
					}
					resp, err := tr.RoundTrip(r)
					if err != nil {
						t.Fatal(err)
					}
					before.compare(t)
					resp.Body.Close()
					before.compare(t)
					if got := int(sends.Load()); got != row.sends {
						t.Errorf("sends: got %d, want %d", got, row.sends)
					}
				})
			})
		}
	}
}

func noKeys(*http.Request) bool { return false }

func ok200() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }
}
func textBody() io.Reader   { return strings.NewReader("hello") }
func streamBody() io.Reader { return onlyReader("hello") }

func TestTheCallersRequestIsNeverChangedByARedirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		n.Serve(t, "a.example", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if r.URL.Path == "/from" {
				http.Redirect(w, r, "/to", 307)
				return
			}
			io.WriteString(w, r.Header.Get(oncehttp.Header))
		}))
		client := &http.Client{Transport: &oncehttp.Transport{Base: n.Transport(t, false)}}
		r := newRequest(t, oncehttp.WithKey(t.Context(), "order-1"), "POST", "http://a.example/from?code=307", "hello")
		before := snap(r)
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		before.compare(t)
		if got := bodyOf(t, resp); !strings.Contains(got, "order-1") {
			t.Errorf("the second hop got %s, want the key in it", got)
		}
		before.compare(t)
	})
}

// The server answers before it has read the body, and net/http goes on reading
// it. The caller may do with its request what it likes once the response's body
// is closed, so nobody else may still look at it: the race detector judges.
func TestTheCallersRequestIsItsOwnWhileTheBodyIsStillBeingWritten(t *testing.T) {
	for _, status := range []int{413, 503} {
		for _, rewind := range []bool{true, false} {
			t.Run(fmt.Sprintf("answered %d, GetBody %v", status, rewind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newMemNet()
					n.Serve(t, "a.example", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						io.ReadFull(r.Body, make([]byte, 1))
						w.WriteHeader(status)
					}))
					var bodies bodyCount
					slow := func() io.ReadCloser {
						sent := 0
						return bodies.open(readerFunc(func(p []byte) (int, error) {
							if sent++; sent > 1 {
								time.Sleep(time.Minute)
							}
							return copy(p, "x"), nil
						}))
					}
					r := newRequest(t, t.Context(), "PUT", "http://a.example/", "")
					r.Body, r.ContentLength = slow(), 300<<10 // more than a server reads to be polite
					if rewind {
						r.GetBody = func() (io.ReadCloser, error) { return slow(), nil }
					}
					before := snap(r)
					tr := &oncehttp.Transport{Base: n.Transport(t, false), Logger: quiet()}
					resp, err := tr.RoundTrip(r)
					before.compare(t)
					if err != nil {
						t.Fatal(err)
					}
					if resp.StatusCode != status {
						t.Errorf("status: got %d, want %d", resp.StatusCode, status)
					}
					resp.Body.Close()
					r.Header.Set("X-Mine", "again")
					r.URL = &url.URL{}
					r.Method, r.Body, r.GetBody, r.ContentLength = "GET", nil, nil, 0
					time.Sleep(5 * time.Minute)
					bodies.check(t, "request")
				})
			})
		}
	}
}

// Without a body one request may be sent by many at once: nobody writes to it.
func TestOneRequestMayBeSentByManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		n.Serve(t, "a.example", status(503))
		tr := &oncehttp.Transport{Base: n.Transport(t, true), Logger: quiet(), Prepare: func(r *http.Request) error {
			r.Header.Set("X-Date", "now")
			r.URL.RawQuery = "signature=1"
			return nil
		}}
		r := newRequest(t, t.Context(), "DELETE", "http://a.example/x", "")
		r.Header.Set("X-A", "b")
		before := snap(r)
		var calls sync.WaitGroup
		for range 16 {
			calls.Go(func() {
				if resp, err := tr.RoundTrip(r); err == nil {
					resp.Body.Close()
				}
			})
		}
		calls.Wait()
		before.compare(t)
	})
}

// A bodyCount watches the bodies it opens: each must be closed, once, and have one
// reader at a time.
type bodyCount struct {
	// lax allows a Read after Close: net/http's HTTP/2 closes the body of an
	// abandoned stream while its writer may be about to read.
	lax bool

	mu     sync.Mutex
	bodies []*countedBody
}

type countedBody struct {
	r       io.Reader
	close   func() error // nil: nothing to close
	lax     bool
	reading atomic.Int32
	closes  atomic.Int32
	wrong   atomic.Pointer[string]
}

func (c *bodyCount) open(r io.Reader) io.ReadCloser {
	b := &countedBody{r: r, lax: c.lax}
	c.mu.Lock()
	c.bodies = append(c.bodies, b)
	c.mu.Unlock()
	return b
}

func (b *countedBody) Read(p []byte) (int, error) {
	if b.reading.Add(1) > 1 {
		b.is("read by two at a time")
	}
	defer b.reading.Add(-1)
	if b.closes.Load() > 0 && !b.lax {
		b.is("read after it was closed")
	}
	return b.r.Read(p)
}

func (b *countedBody) Close() error {
	b.closes.Add(1)
	if b.close != nil {
		return b.close()
	}
	return nil
}

func (b *countedBody) is(wrong string) { b.wrong.CompareAndSwap(nil, &wrong) }

func (c *bodyCount) check(t testing.TB, what string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, b := range c.bodies {
		if got := b.closes.Load(); got != 1 {
			t.Errorf("%s body %d of %d was closed %d times, want once", what, i+1, len(c.bodies), got)
		}
		if s := b.wrong.Load(); s != nil {
			t.Errorf("%s body %d of %d was %s", what, i+1, len(c.bodies), *s)
		}
	}
}

func TestTheBodyIsClosedOnEveryPath(t *testing.T) {
	cancelled := func(r *http.Request) *http.Request {
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		return r.WithContext(ctx)
	}
	within := func(d time.Duration) func(*http.Request) *http.Request {
		return func(r *http.Request) *http.Request {
			ctx, cancel := context.WithTimeout(r.Context(), d)
			context.AfterFunc(r.Context(), cancel)
			return r.WithContext(ctx)
		}
	}
	header := func(name string, values ...string) func(*http.Request) *http.Request {
		return func(r *http.Request) *http.Request { r.Header[name] = values; return r }
	}
	// A Base that obeys the RoundTripper contract but for one thing.
	reads := func(then func(*http.Request) (*http.Response, error)) roundTrip {
		return func(r *http.Request) (*http.Response, error) {
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
			return then(r)
		}
	}
	thenElse := func(f func()) http.RoundTripper {
		var sends atomic.Int32
		return reads(func(r *http.Request) (*http.Response, error) {
			if sends.Add(1) > 1 {
				f()
			}
			return answer(r, 503, "")
		})
	}
	type path struct {
		name   string
		set    func(*oncehttp.Transport)
		spoil  func(*http.Request) *http.Request
		h      http.HandlerFunc // nil: 200
		twice  bool             // the call before, under the same Transport, makes the path
		second int              // how often the call after it is sent
		sends  bool             // something reaches the server
	}
	paths := []path{
		{name: "a success", sends: true},
		{name: "a success without an attempt timeout", set: func(tr *oncehttp.Transport) { tr.AttemptTimeout = -1 }, sends: true},
		{name: "a success read inside the attempt", set: func(tr *oncehttp.Transport) { tr.ReplayReply = 1 << 20 }, sends: true},
		{name: "a 404", h: status(404), sends: true},
		{name: "a redirect", h: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", 307) }, sends: true},
		{name: "attempts used up", h: status(503), sends: true},
		{name: "a wait that is too long", h: status(503, "Retry-After", "3600"), sends: true},
		{name: "a pause that does not fit the deadline", h: status(503, "Retry-After", "20"), spoil: within(5 * time.Second), sends: true},
		{name: "lost replies", h: func(w http.ResponseWriter, r *http.Request) { reset(w) }, sends: true},
		{name: "cut replies", h: func(w http.ResponseWriter, r *http.Request) { cut(w, 200) }, sends: true},
		{name: "a hung host", set: func(tr *oncehttp.Transport) { tr.AttemptTimeout = time.Second }, h: hang, sends: true},
		{name: "a caller that gives up on a hung host", h: hang, spoil: within(5 * time.Second), sends: true},
		{name: "a caller that gives up in a pause", h: status(503, "Retry-After", "20"), sends: true, spoil: func(r *http.Request) *http.Request {
			ctx, cancel := context.WithCancel(r.Context())
			time.AfterFunc(5*time.Second, cancel)
			return r.WithContext(ctx)
		}},
		{name: "a caller that had given up", spoil: cancelled},
		{name: "a refused connection", spoil: func(r *http.Request) *http.Request { r.URL.Host = "nobody.example"; return r }},
		{name: "a host that honours no keys", set: func(tr *oncehttp.Transport) { tr.Honors = noKeys }, h: status(503), sends: true},
		{name: "one attempt", set: func(tr *oncehttp.Transport) { tr.Attempts = 1 }, h: status(503), sends: true},
		{name: "an invalid key in the context", spoil: func(r *http.Request) *http.Request {
			return r.WithContext(oncehttp.WithKey(r.Context(), "no\nkey"))
		}},
		{name: "an empty key in the context", spoil: func(r *http.Request) *http.Request {
			return r.WithContext(oncehttp.WithKey(r.Context(), ""))
		}},
		{name: "an invalid key in the header", spoil: header(oncehttp.Header, "a b")},
		{name: "two keys in the header", spoil: header(oncehttp.Header, "a", "b")},
		{name: "an action without a name", spoil: func(r *http.Request) *http.Request {
			return r.WithContext(oncehttp.WithAction(r.Context(), ""))
		}},
		{name: "an action", sends: true, h: status(503), spoil: func(r *http.Request) *http.Request {
			return r.WithContext(oncehttp.WithAction(r.Context(), "refund"))
		}},
		{name: "an action whose body is too large to compare", spoil: func(r *http.Request) *http.Request {
			r = r.WithContext(oncehttp.WithAction(r.Context(), "refund"))
			if r.GetBody == nil {
				r.Body.(*countedBody).r = strings.NewReader(strings.Repeat("x", 2<<20))
			} else {
				r.Header[oncehttp.Header] = []string{"a", "b"} // can be compared, so fail otherwise
			}
			return r
		}},
		{name: "a header that cannot be sent", spoil: header("X A", "v")},
		{name: "a scheme that nobody speaks", spoil: func(r *http.Request) *http.Request { r.URL.Scheme = "foo"; return r }},
		{name: "no host", spoil: func(r *http.Request) *http.Request { r.URL.Host = ""; return r }},
		{name: "no URL", spoil: func(r *http.Request) *http.Request { r.URL = nil; return r }},
		{name: "no header", spoil: func(r *http.Request) *http.Request { r.Header = nil; return r }},
		{name: "a breaker that is open", set: func(tr *oncehttp.Transport) { tr.Breaker = &oncehttp.Breaker{Failures: 1}; tr.Attempts = 1 }, h: status(500), twice: true},
		{name: "a limit that delays past the deadline", set: func(tr *oncehttp.Transport) { tr.Limit = 0.01 }, spoil: within(5 * time.Second), twice: true},
		{name: "a host that is held", set: func(tr *oncehttp.Transport) { tr.HoldHost = true }, h: status(503, "Retry-After", "3600"), twice: true},
		{name: "a budget that is empty", set: func(tr *oncehttp.Transport) { tr.Budget = &oncehttp.Budget{Tokens: 1, Rate: -1} }, h: status(503), twice: true, second: 1},
		{name: "Prepare that fails", set: func(tr *oncehttp.Transport) { tr.Prepare = func(*http.Request) error { return errBroken } }},
		{name: "Prepare that fails the second time", h: status(503), sends: true, set: func(tr *oncehttp.Transport) { tr.Prepare = failsFrom(2) }},
		{name: "Prepare that panics", set: func(tr *oncehttp.Transport) { tr.Prepare = func(*http.Request) error { panic("prepare") } }},
		{name: "OnAttempt that panics", sends: true, set: func(tr *oncehttp.Transport) { tr.OnAttempt = func(*http.Request, oncehttp.Attempt) { panic("hook") } }},
		{name: "CheckRetry that fails", h: status(503), sends: true, set: func(tr *oncehttp.Transport) {
			tr.CheckRetry = func(context.Context, *http.Response, error) (bool, error) { return false, errBroken }
		}},
		{name: "CheckRetry that panics", h: status(503), sends: true, set: func(tr *oncehttp.Transport) {
			tr.CheckRetry = func(context.Context, *http.Response, error) (bool, error) { panic("check") }
		}},
		{name: "Backoff that panics", h: status(503), sends: true, set: func(tr *oncehttp.Transport) {
			tr.Backoff = func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { panic("backoff") }
		}},
		{name: "GetBody that fails", h: status(503), sends: true, spoil: func(r *http.Request) *http.Request {
			if r.GetBody != nil {
				r.GetBody = func() (io.ReadCloser, error) { return nil, errBroken }
			}
			return r
		}},
		{name: "a Base that panics before it reads", set: func(tr *oncehttp.Transport) {
			tr.Base = roundTrip(func(*http.Request) (*http.Response, error) { panic("base") })
		}},
		{name: "a Base that panics after it has read", set: func(tr *oncehttp.Transport) {
			tr.Base = reads(func(*http.Request) (*http.Response, error) { panic("base") })
		}},
		{name: "a Base that calls Goexit", set: func(tr *oncehttp.Transport) {
			tr.Base = roundTrip(func(*http.Request) (*http.Response, error) { runtime.Goexit(); return nil, nil })
		}},
		{name: "a Base that panics the second time", set: func(tr *oncehttp.Transport) { tr.Base = thenElse(func() { panic("base") }) }},
		{name: "a Base that calls Goexit the second time", set: func(tr *oncehttp.Transport) { tr.Base = thenElse(runtime.Goexit) }},
		{name: "a Base that returns neither", set: func(tr *oncehttp.Transport) {
			tr.Base = reads(func(*http.Request) (*http.Response, error) { return nil, nil })
		}},
		{name: "a Base that returns both", set: func(tr *oncehttp.Transport) {
			tr.Base = reads(func(r *http.Request) (*http.Response, error) {
				resp, _ := answer(r, 200, "both")
				return resp, errBroken
			})
		}},
		{name: "a Base that returns an error", set: func(tr *oncehttp.Transport) {
			tr.Base = reads(func(r *http.Request) (*http.Response, error) { return nil, errBroken })
		}},
		{name: "negative attempts", set: func(tr *oncehttp.Transport) { tr.Attempts = -1 }},
		{name: "a breaker that makes no sense", set: func(tr *oncehttp.Transport) { tr.Breaker = &oncehttp.Breaker{Failures: -1} }},
		{name: "a budget that makes no sense", set: func(tr *oncehttp.Transport) { tr.Budget = &oncehttp.Budget{Tokens: -1} }},
		{name: "a key header that makes no sense", set: func(tr *oncehttp.Transport) { tr.KeyHeader = "no header" }},
	}
	for _, p := range paths {
		for _, rewind := range []bool{true, false} {
			name := p.name + ", without GetBody"
			if rewind {
				name = p.name + ", with GetBody"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var bodies bodyCount
					var sends atomic.Int32
					n := newMemNet()
					n.Serve(t, "a.example", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						sends.Add(1)
						if p.h != nil {
							p.h(w, r)
						} else {
							io.Copy(io.Discard, r.Body)
						}
					}))
					base := n.Transport(t, false)
					tr := &oncehttp.Transport{Base: base, Logger: quiet()}
					if p.set != nil {
						p.set(tr)
					}
					times := 1
					if p.twice {
						times = 2
					}
					var before int32
					for range times {
						before = sends.Load()
						r := newRequest(t, t.Context(), "POST", "http://a.example/", "")
						r.Body, r.ContentLength = bodies.open(strings.NewReader("hello")), -1
						if rewind {
							r.GetBody = func() (io.ReadCloser, error) { return bodies.open(strings.NewReader("hello")), nil }
						}
						if p.spoil != nil {
							r = p.spoil(r)
						}
						done := make(chan struct{})
						go func() { // for Goexit
							defer close(done)
							defer func() { recover() }()
							resp, err := tr.RoundTrip(r)
							switch {
							case (resp == nil) == (err == nil):
								t.Errorf("got %v and %v, want exactly one", resp, err)
							case resp != nil:
								resp.Body.Close()
							}
						}()
						<-done
					}
					time.Sleep(time.Minute)
					bodies.check(t, "request")
					if p.twice {
						// The second call is the one whose path is meant.
						if most := int32(p.second); sends.Load()-before != most {
							t.Errorf("the second call was sent %d times, want %d: the row does not take its path", sends.Load()-before, most)
						}
					} else if got := sends.Load() > 0; got != p.sends && tr.Base == base {
						t.Errorf("sent: got %v, want %v: the row does not take its path", got, p.sends)
					}
				})
			})
		}
	}
}

// status answers with code and header fields, given in pairs, after it has read
// the request.
func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		io.WriteString(w, "the body of the answer")
	}
}

// failsFrom returns a Prepare that fails from the n-th call on.
func failsFrom(n int32) func(*http.Request) error {
	var calls atomic.Int32
	return func(*http.Request) error {
		if calls.Add(1) >= n {
			return errBroken
		}
		return nil
	}
}

func TestAFieldThatMakesNoSenseIsNamed(t *testing.T) {
	for _, row := range []struct {
		field string
		tr    *oncehttp.Transport
	}{
		{"Attempts", &oncehttp.Transport{Attempts: -1}},
		{"BackoffBase", &oncehttp.Transport{BackoffBase: -1}},
		{"BackoffCap", &oncehttp.Transport{BackoffCap: -1}},
		{"MaxRetryAfter", &oncehttp.Transport{MaxRetryAfter: -1}},
		{"ReplayReply", &oncehttp.Transport{ReplayReply: -1}},
		{"KeyHeader", &oncehttp.Transport{KeyHeader: "a b"}},
		{"Limit", &oncehttp.Transport{Limit: -1}},
		{"Burst", &oncehttp.Transport{Limit: 1, Burst: -1}},
		{"Breaker.Failures", &oncehttp.Transport{Breaker: &oncehttp.Breaker{Failures: -1}}},
		{"Budget.Tokens", &oncehttp.Transport{Budget: &oncehttp.Budget{Tokens: -1}}},
	} {
		t.Run(row.field, func(t *testing.T) {
			base := script(200)
			row.tr.Base = base
			for range 2 {
				resp, err := row.tr.RoundTrip(newRequest(t, t.Context(), "POST", "http://a.example/", "b"))
				if resp != nil {
					t.Errorf("got an answer: %s", resp.Status)
				}
				var e *oncehttp.Error
				if !errors.As(err, &e) || !strings.Contains(err.Error(), row.field) {
					t.Fatalf("error: got %v, want an *Error that names %s", err, row.field)
				}
				if len(base.seen) != 0 || len(e.Tries) != 0 || e.Certainty != oncehttp.CertaintyNotSent {
					t.Errorf("got %d sends, %d tries, %v, want none", len(base.seen), len(e.Tries), e.Certainty)
				}
			}
		})
	}
}
