package oncehttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A base is a RoundTripper made of a function, which gets the number of the
// attempt, counted from 1, and a request whose body has been read.
type base struct {
	mu    sync.Mutex
	seen  []seen
	reply func(n int, r *http.Request) (*http.Response, error)
}

type seen struct {
	method, url, body string
	header            http.Header
	at                time.Time
}

func (b *base) RoundTrip(r *http.Request) (*http.Response, error) {
	s := seen{method: r.Method, url: r.URL.String(), header: r.Header.Clone(), at: time.Now()}
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			return nil, err
		}
		s.body = string(body)
	}
	b.mu.Lock()
	b.seen = append(b.seen, s)
	n := len(b.seen)
	b.mu.Unlock()
	return b.reply(n, r)
}

func (b *base) keys() (keys []string) {
	for _, s := range b.seen {
		keys = append(keys, s.header.Get(oncehttp.Header))
	}
	return keys
}

func answer(r *http.Request, status int, body string, header ...string) (*http.Response, error) {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: r}, nil
}

// script answers attempt n with the n-th step, and the last step from then on.
// A step is a status, an error, or a func.
func script(steps ...any) *base {
	return &base{reply: func(n int, r *http.Request) (*http.Response, error) {
		switch step := steps[min(n, len(steps))-1].(type) {
		case int:
			return answer(r, step, http.StatusText(step))
		case error:
			return nil, step
		case func(*http.Request) (*http.Response, error):
			return step(r)
		}
		panic("no such step")
	}}
}

func with(status int, header ...string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		return answer(r, status, http.StatusText(status), header...)
	}
}

var (
	errReset   error = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
	errRefused error = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
)

func newRequest(t testing.TB, ctx context.Context, method, url, body string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestARefundWhoseReplyIsLostIsMadeOnce(t *testing.T) {
	var refunds atomic.Int32
	mux := http.NewServeMux()
	mux.Handle("POST /refunds", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "refund %d", refunds.Add(1))
	}))
	var sends atomic.Int32
	results := map[string]string{} // what a server that honours keys keeps
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get(oncehttp.Header)
		if _, ok := results[key]; !ok {
			rec := httptest.NewRecorder()
			mux.ServeHTTP(rec, r)
			results[key] = rec.Body.String()
		}
		if sends.Add(1) == 1 {
			panic(http.ErrAbortHandler) // the reply is lost
		}
		io.WriteString(w, results[key])
	}))
	defer srv.Close()
	client := &http.Client{Transport: &oncehttp.Transport{BackoffBase: time.Millisecond, Logger: quiet()}}
	resp, err := client.Post(srv.URL+"/refunds", "application/json", strings.NewReader(`{"order":"A-17"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if got, want := string(body), "refund 1"; got != want {
		t.Errorf("body = %q, want %q", got, want)
	}
	if got := refunds.Load(); got != 1 {
		t.Errorf("%d refunds, want 1", got)
	}
	if got := sends.Load(); got != 2 {
		t.Errorf("%d sends, want 2", got)
	}
	if got := oncehttp.Attempts(resp); len(got.Tries) != 2 || got.Certainty != oncehttp.CertaintyUnknown || got.Stop != nil {
		t.Errorf("Attempts = %+v, want two tries, the worst of them unknown, and no stop", got)
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestWhatMayBeRepeated(t *testing.T) {
	type row struct {
		name   string
		method string
		keyed  bool
		body   string
		steps  []any
		sends  int
		stop   error
	}
	var rows []row
	for _, m := range []string{"GET", "HEAD", "OPTIONS", "TRACE", "QUERY", "PUT", "DELETE"} {
		rows = append(rows,
			row{m + " is repeated when it was not sent", m, false, "", []any{errRefused, 200}, 2, nil},
			row{m + " is repeated on a retryable status", m, false, "", []any{503, 200}, 2, nil},
			row{m + " is repeated when its outcome is unknown", m, false, "", []any{errReset, 200}, 2, nil})
	}
	for _, m := range []string{"POST", "PATCH", "LOCK", "get"} {
		rows = append(rows,
			row{m + " with a key is repeated when it was not sent", m, true, "b", []any{errRefused, 200}, 2, nil},
			row{m + " with a key is repeated on a retryable status", m, true, "b", []any{503, 200}, 2, nil},
			row{m + " with a key is repeated when its outcome is unknown", m, true, "b", []any{errReset, 200}, 2, nil},
			row{m + " without a key is repeated when it was not sent", m, false, "b", []any{errRefused, 200}, 2, nil},
			row{m + " without a key is sent once when answered", m, false, "b", []any{503, 200}, 1, oncehttp.ErrUnsafe},
			row{m + " without a key is sent once when its outcome is unknown", m, false, "b", []any{errReset, 200}, 1, oncehttp.ErrUnsafe},
			row{m + " without a key is not repeated once it may have been sent", m, false, "b", []any{errRefused, errReset, 200}, 2, oncehttp.ErrUnsafe})
	}
	for _, s := range []int{408, 425, 429, 500, 502, 503, 504, 529} {
		rows = append(rows, row{fmt.Sprintf("%d is retryable", s), "POST", true, "b", []any{s, 200}, 2, nil})
	}
	for _, s := range []int{400, 401, 403, 404, 409, 410, 412, 421, 422, 423, 501, 505, 507} {
		rows = append(rows, row{fmt.Sprintf("%d is final", s), "POST", true, "b", []any{s, 200}, 1, oncehttp.ErrFinal})
	}
	for _, s := range []int{200, 201, 202, 204, 304, 302} {
		rows = append(rows, row{fmt.Sprintf("%d needs no repeat", s), "POST", true, "b", []any{s, 500}, 1, nil})
	}
	rows = append(rows,
		row{"a 409 that is in progress is asked again under a key", "POST", true, "b", []any{with(409, "Retry-After", "1"), 200}, 2, nil},
		row{"a 409 that is in progress means nothing without a key", "GET", false, "", []any{with(409, "Retry-After", "1"), 200}, 1, oncehttp.ErrFinal},
		row{"a replayed 500 is final", "POST", true, "b", []any{with(500, "Idempotent-Replayed", "true"), 200}, 1, oncehttp.ErrFinal},
		row{"a 500 replayed in the other spelling is final", "POST", true, "b", []any{with(500, "Idempotency-Replayed", "true"), 200}, 1, oncehttp.ErrFinal},
		row{"a 500 that was recorded is final", "POST", true, "b", []any{with(500, "Idempotency-Status", "executed"), 200}, 1, oncehttp.ErrFinal},
		row{"x-should-retry: false is a veto", "GET", false, "", []any{with(503, "X-Should-Retry", "false"), 200}, 1, oncehttp.ErrFinal},
		row{"Stripe-Should-Retry: false is a veto", "GET", false, "", []any{with(503, "Stripe-Should-Retry", "false"), 200}, 1, oncehttp.ErrFinal},
		row{"x-should-retry: true does not make a POST safe", "POST", false, "b", []any{with(503, "X-Should-Retry", "true"), 200}, 1, oncehttp.ErrUnsafe},
		row{"x-should-retry: true does not make a 404 retryable", "GET", false, "", []any{with(404, "X-Should-Retry", "true"), 200}, 1, oncehttp.ErrFinal},
		row{"a name that does not exist is final", "GET", false, "", []any{&net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}, 200}, 1, oncehttp.ErrFinal},
		row{"a name that cannot be looked up now is not", "GET", false, "", []any{&net.DNSError{Err: "server misbehaving", Name: "x", IsTemporary: true}, 200}, 2, nil},
		row{"three attempts are the default", "GET", false, "", []any{503}, 3, oncehttp.ErrAttempts},
	)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := script(r.steps...)
				tr := &oncehttp.Transport{Base: b, Logger: quiet(), Honors: func(*http.Request) bool { return r.keyed }}
				resp, err := tr.RoundTrip(newRequest(t, t.Context(), r.method, "http://refund.example/refunds", r.body))
				stop := error(nil)
				if err != nil {
					e, ok := err.(*oncehttp.Error)
					if !ok {
						t.Fatalf("error is a %T, want *oncehttp.Error", err)
					}
					stop = e.Stop
				} else {
					stop = oncehttp.Attempts(resp).Stop
					resp.Body.Close()
				}
				if got := len(b.seen); got != r.sends {
					t.Errorf("%d sends, want %d", got, r.sends)
				}
				if !errors.Is(stop, r.stop) {
					t.Errorf("stop = %v, want %v", stop, r.stop)
				}
				for i, s := range b.seen {
					if s.body != r.body {
						t.Errorf("send %d has body %q, want %q", i+1, s.body, r.body)
					}
					if key := s.header.Get(oncehttp.Header); r.keyed != (key != "") {
						t.Errorf("send %d has key %q, keyed is %v", i+1, key, r.keyed)
					} else if key != b.seen[0].header.Get(oncehttp.Header) {
						t.Errorf("send %d has another key", i+1)
					}
				}
			})
		})
	}
}

func TestTextsNameMethodHostAndPathAndWhatIsKnown(t *testing.T) {
	for _, r := range []struct {
		name     string
		deadline time.Duration
		method   string
		steps    []any
		want     string
	}{
		{"the next attempt would be too late", 1500 * time.Millisecond, "POST", []any{errReset, errRefused},
			"POST refund.example/refunds: gave up after 2 attempts: the next one would start after the deadline: dial tcp: connection refused; the first may have taken effect"},
		{"a lost reply, then a host that refuses", time.Hour, "POST", []any{errReset, errRefused, errRefused},
			"POST refund.example/refunds: gave up after 3 attempts: no attempts are left: dial tcp: connection refused; the first may have taken effect"},
		{"a host that refuses", time.Hour, "POST", []any{errRefused},
			"POST refund.example/refunds: gave up after 3 attempts: no attempts are left: dial tcp: connection refused; this request was not sent"},
		{"three lost replies", time.Hour, "POST", []any{errReset},
			"POST refund.example/refunds: gave up after 3 attempts: no attempts are left: read tcp: connection reset by peer; the first, second and third may have taken effect"},
		{"a GET has no effect to speak of", time.Hour, "GET", []any{errReset},
			"GET refund.example/refunds: gave up after 3 attempts: no attempts are left: read tcp: connection reset by peer"},
		{"an answer that was discarded", time.Hour, "POST", []any{503, errRefused},
			"POST refund.example/refunds: gave up after 3 attempts: no attempts are left: dial tcp: connection refused"},
	} {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), r.deadline)
				defer cancel()
				tr := &oncehttp.Transport{Base: script(r.steps...), Logger: quiet(),
					Backoff: func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return time.Second }}
				_, err := tr.RoundTrip(newRequest(t, ctx, r.method, "http://user:secret@refund.example/refunds?token=secret", "b"))
				if err == nil {
					t.Fatal("no error")
				}
				if got := err.Error(); got != r.want {
					t.Errorf("text\n got %s\nwant %s", got, r.want)
				}
			})
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// When an attempt began is told on its wall clock only when somebody asks.
func TestAnAttemptBeganWhenItBeganWheneverSomebodyAsks(t *testing.T) {
	for _, tt := range []struct {
		status int
		took   time.Duration
	}{{200, time.Second}, {404, time.Second}, {399, 1<<32 - 1}, {200, 1 << 32}} { // the last is not packed
		synctest.Test(t, func(t *testing.T) {
			var hook oncehttp.Attempt
			tr := &oncehttp.Transport{
				Base: roundTrip(func(r *http.Request) (*http.Response, error) {
					time.Sleep(tt.took)
					return answer(r, tt.status, "")
				}),
				OnAttempt: func(_ *http.Request, a oncehttp.Attempt) { hook = a },
			}
			time.Sleep(time.Minute)
			want := time.Now()
			resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", ""))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				tries := oncehttp.Attempts(resp).Tries
				if len(tries) != 1 || tries[0] != hook {
					t.Fatalf("got %+v, want %+v as OnAttempt was told", tries, hook)
				}
				if got := tries[0]; got.N != 1 || got.Start != want || got.Duration != tt.took || got.Status != tt.status || got.Certainty != oncehttp.CertaintyAnswered {
					t.Errorf("got %+v, want a start at %v and %+v", got, want, tt)
				}
				time.Sleep(time.Hour)
			}
		})
	}
}

// What a panic leaves behind is cleaned up at the second attempt as at the first.
func TestAPanicAtTheSecondAttemptLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bodies bodyCount
		sends := 0
		tr := &oncehttp.Transport{
			Logger: quiet(),
			Budget: &oncehttp.Budget{Tokens: 1, Rate: -1, Earn: -1},
			Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				sends++
				resp, err := answer(r, 503, "")
				resp.Body = bodies.open(strings.NewReader("later"))
				return resp, err
			}),
		}
		call := func() {
			defer func() { recover() }()
			tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://a.example/", ""))
			t.Error("there was no panic")
		}
		prepared := 0
		tr.Prepare = func(*http.Request) error {
			if prepared++; prepared == 2 {
				panic("Prepare") // so the token was not spent
			}
			return nil
		}
		tr.OnAttempt = func(_ *http.Request, a oncehttp.Attempt) {
			if a.N == 2 {
				panic("OnAttempt") // which has a response
			}
		}
		call()
		call()
		if sends != 3 {
			t.Errorf("got %d sends, want 3: the second call's retry has the first one's token", sends)
		}
		bodies.check(t, "response")
	})
}
