package oncehttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
)

// oneShot is a body that cannot be rewound and notes how it is treated.
type oneShot struct {
	r       io.Reader
	reading atomic.Int32
	overlap atomic.Bool
	closed  atomic.Int32
}

func (b *oneShot) Read(p []byte) (int, error) {
	if b.reading.Add(1) > 1 {
		b.overlap.Store(true)
	}
	defer b.reading.Add(-1)
	return b.r.Read(p)
}

func (b *oneShot) Close() error {
	b.closed.Add(1)
	if c, ok := b.r.(io.Closer); ok {
		c.Close()
	}
	return nil
}

func oneShotRequest(t *testing.T, ctx context.Context, method string, r io.Reader) (*http.Request, *oneShot) {
	b := &oneShot{r: r}
	req := newRequest(t, ctx, method, "http://files.example/f", "")
	req.Body, req.ContentLength = b, -1
	return req, b
}

func TestABodyThatCannotBeRewoundIsRememberedAsItIsSent(t *testing.T) {
	const mib = 1 << 20
	for _, r := range []struct {
		name  string
		size  int
		honor bool
		steps []any
		sends int
		stop  error
	}{
		{"a small one is sent again whole", 1000, true, []any{503, 503, 200}, 3, nil},
		{"one of 1 MiB is sent again whole", mib, true, []any{503, 200}, 2, nil},
		{"a larger one is sent once", mib + 1, true, []any{503, 200}, 1, oncehttp.ErrBody},
		{"one that is not to be repeated is sent once", 1000, false, []any{503, 200}, 1, oncehttp.ErrUnsafe},
	} {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				content := strings.Repeat("0123456789", r.size/10+1)[:r.size]
				req, body := oneShotRequest(t, t.Context(), "POST", strings.NewReader(content))
				b := script(r.steps...)
				resp, err := (&oncehttp.Transport{Base: b, Logger: quiet(), Honors: func(*http.Request) bool { return r.honor }}).RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if len(b.seen) != r.sends {
					t.Errorf("%d sends, want %d", len(b.seen), r.sends)
				}
				for i, s := range b.seen {
					if s.body != content {
						t.Errorf("send %d carried %d bytes, want the %d of the body", i+1, len(s.body), len(content))
					}
				}
				if got := oncehttp.Attempts(resp).Stop; !errors.Is(got, r.stop) {
					t.Errorf("stop = %v, want %v", got, r.stop)
				}
				if got := body.closed.Load(); got != 1 {
					t.Errorf("the body was closed %d times, want once", got)
				}
			})
		})
	}
}

func TestAnUntouchedBodyIsSentThoughItCannotBeRewound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		req, body := oneShotRequest(t, t.Context(), "POST", strings.NewReader("content"))
		n := 0
		tr := &oncehttp.Transport{Honors: func(*http.Request) bool { return false }, Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			if n++; n == 1 {
				r.Body.Close() // as net/http does when it cannot dial
				return nil, errRefused
			}
			got, _ := io.ReadAll(r.Body)
			r.Body.Close()
			return answer(r, 200, string(got))
		})}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, _ := io.ReadAll(resp.Body); string(got) != "content" {
			t.Errorf("the second attempt carried %q", got)
		}
		if got := body.closed.Load(); got != 1 {
			t.Errorf("the body was closed %d times, want once", got)
		}
	})
}

// net/http can sit in a Read for an attempt that it has given up.
func TestANewAttemptAwaitsTheReadOfAnAbandonedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pr, pw := io.Pipe()
		req, body := oneShotRequest(t, t.Context(), "POST", pr)
		n := 0
		var second []byte
		tr := &oncehttp.Transport{Logger: quiet(), Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			if n++; n == 1 {
				go io.Copy(io.Discard, r.Body) // goes on after the answer
				time.Sleep(time.Second)
				return answer(r, 503, "")
			}
			second, _ = io.ReadAll(r.Body)
			r.Body.Close()
			return answer(r, 200, "")
		})}
		go func() {
			for i := range 20 {
				fmt.Fprintf(pw, "part %d ", i)
				time.Sleep(300 * time.Millisecond)
			}
			pw.Close()
		}()
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		var want bytes.Buffer
		for i := range 20 {
			fmt.Fprintf(&want, "part %d ", i)
		}
		if string(second) != want.String() {
			t.Errorf("the second attempt carried\n%q, want\n%q", second, want.String())
		}
		if body.overlap.Load() {
			t.Error("two reads of the body at once")
		}
	})
}

func TestWaitingForAnAbandonedReadEndsWithTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		pr, pw := io.Pipe()
		req, body := oneShotRequest(t, ctx, "POST", pr)
		n := 0
		tr := &oncehttp.Transport{Logger: quiet(), Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			if n++; n == 1 {
				go io.Copy(io.Discard, r.Body)
				time.Sleep(time.Second)
				return answer(r, 503, "")
			}
			_, err := io.ReadAll(r.Body)
			r.Body.Close()
			return nil, fmt.Errorf("write: %w", errors.Join(err, r.Context().Err()))
		})}
		start := time.Now()
		_, err := tr.RoundTrip(req)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error = %v, want the deadline's", err)
		}
		if got := time.Since(start); got != 10*time.Second {
			t.Errorf("took %v, want the 10s of the deadline", got)
		}
		if body.closed.Load() != 1 {
			t.Error("the body was left open")
		}
		pw.Close()
	})
}

func TestAPipeIsNeverReadAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pr, pw := io.Pipe()
		req, _ := oneShotRequest(t, t.Context(), "POST", pr)
		// An echo: each line is answered before the next is written.
		tr := &oncehttp.Transport{AttemptTimeout: -1, Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			answers, w := io.Pipe()
			go func() {
				io.Copy(w, r.Body)
				r.Body.Close()
				w.Close()
			}()
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: answers, ContentLength: -1, Request: r}, nil
		})}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			line := fmt.Sprintf("line %d", i)
			fmt.Fprint(pw, line)
			got := make([]byte, len(line))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != line {
				t.Fatalf("echo = %q, %v, want %q", got, err, line)
			}
		}
		pw.Close()
		resp.Body.Close()
	})
}

func TestTheAttemptTimeoutWaitsWhileBytesMove(t *testing.T) {
	for _, r := range []struct {
		name   string
		pauses []time.Duration // between the parts of the body
		answer time.Duration   // from the body's end to the headers
		late   bool
	}{
		{"a long upload whose bytes move", []time.Duration{50 * time.Second, 50 * time.Second, 50 * time.Second}, 50 * time.Second, false},
		{"an upload that stalls", []time.Duration{50 * time.Second, 61 * time.Second}, 0, true},
		{"headers that do not come", []time.Duration{time.Second}, 61 * time.Second, true},
	} {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pr, pw := io.Pipe()
				req, _ := oneShotRequest(t, t.Context(), "POST", pr)
				go func() {
					for _, d := range r.pauses {
						pw.Write([]byte("part"))
						time.Sleep(d)
					}
					pw.Close()
				}()
				tr := &oncehttp.Transport{Attempts: 1, Logger: quiet(), Base: roundTrip(func(r2 *http.Request) (*http.Response, error) {
					done := make(chan struct{})
					go func() {
						io.Copy(io.Discard, r2.Body)
						time.Sleep(r.answer)
						close(done)
					}()
					defer r2.Body.Close()
					select {
					case <-done:
						return answer(r2, 200, "")
					case <-r2.Context().Done():
						return nil, r2.Context().Err()
					}
				})}
				resp, err := tr.RoundTrip(req)
				if err == nil {
					resp.Body.Close()
				}
				e, _ := err.(*oncehttp.Error)
				if late := e != nil && e.Timeout(); late != r.late {
					t.Errorf("error = %v, timed out is %v, want %v", err, late, r.late)
				}
				if errors.Is(err, context.Canceled) {
					t.Errorf("error = %v claims that the caller cancelled", err)
				}
				time.Sleep(5 * time.Minute) // for the goroutines above
			})
		})
	}
}

func TestAReplyThatIsCutIsAskedForAgain(t *testing.T) {
	cutReply := func(r *http.Request) (*http.Response, error) {
		resp, err := answer(r, 200, "")
		resp.Body, resp.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("hel"), iotestErr{io.ErrUnexpectedEOF})), 5
		return resp, err
	}
	events := func(r *http.Request) (*http.Response, error) {
		resp, err := cutReply(r)
		resp.Header.Set("Content-Type", "text/event-stream; charset=utf-8")
		return resp, err
	}
	whole := func(r *http.Request) (*http.Response, error) { return answer(r, 200, "hello") }
	for _, r := range []struct {
		name   string
		limit  int64
		method string
		keyed  bool
		steps  []any
		body   string
		err    error
		sends  int
	}{
		{"a GET", 100, "GET", false, []any{cutReply, whole}, "hello", nil, 2},
		{"a keyed POST", 100, "POST", true, []any{cutReply, whole}, "hello", nil, 2},
		{"not a POST without a key, whose caller gets what came", 100, "POST", false, []any{cutReply, whole}, "hel", io.ErrUnexpectedEOF, 1},
		{"not without ReplayReply", 0, "GET", false, []any{cutReply, whole}, "hel", io.ErrUnexpectedEOF, 1},
		{"not a larger one", 4, "GET", false, []any{cutReply, whole}, "hel", io.ErrUnexpectedEOF, 1},
		{"not an event stream", 100, "GET", false, []any{events, whole}, "hel", io.ErrUnexpectedEOF, 1},
		{"and handed on after the last attempt", 100, "GET", false, []any{cutReply}, "hel", io.ErrUnexpectedEOF, 3},
		{"one that is whole stays as it is", 100, "GET", false, []any{whole}, "hello", nil, 1},
		{"one of just the limit", 5, "GET", false, []any{whole}, "hello", nil, 1},
	} {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := script(r.steps...)
				tr := &oncehttp.Transport{Base: b, ReplayReply: r.limit, Logger: quiet(), Honors: func(*http.Request) bool { return r.keyed }}
				resp, err := tr.RoundTrip(newRequest(t, t.Context(), r.method, "http://refund.example/refunds", ""))
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if string(got) != r.body || err != r.err {
					t.Errorf("body = %q, %v, want %q, %v", got, err, r.body, r.err)
				}
				if len(b.seen) != r.sends {
					t.Errorf("%d sends, want %d", len(b.seen), r.sends)
				}
				if a := oncehttp.Attempts(resp); r.limit == 100 && r.sends > 1 && a.Tries[0].Certainty != oncehttp.CertaintyUnknown {
					t.Errorf("the cut reply counts as %v, want unknown", a.Tries[0].Certainty)
				}
			})
		})
	}
}

type iotestErr struct{ err error }

func (e iotestErr) Read([]byte) (int, error) { return 0, e.err }

func TestAReplyThatDripsIsBoundedByTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		tr := &oncehttp.Transport{ReplayReply: 100, AttemptTimeout: time.Second, Logger: quiet(), Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			if n++; n > 1 {
				return answer(r, 200, "hello")
			}
			resp, err := answer(r, 200, "")
			resp.Body, resp.ContentLength = io.NopCloser(stalls{r.Context()}), 5
			return resp, err
		})}
		resp, err := tr.RoundTrip(newRequest(t, t.Context(), "GET", "http://refund.example/refunds", ""))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, _ := io.ReadAll(resp.Body); string(got) != "hello" {
			t.Errorf("body = %q", got)
		}
	})
}

type stalls struct{ ctx context.Context }

func (s stalls) Read([]byte) (int, error) { <-s.ctx.Done(); return 0, s.ctx.Err() }
