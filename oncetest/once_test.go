package oncetest_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/oncetest"
)

// A recorder is the test that a broken adapter fails.
type recorder struct {
	failures []string
	cleanups []func()
}

func (r *recorder) Helper()                   {}
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(f string, a ...any) { r.failures = append(r.failures, fmt.Sprintf(f, a...)) }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...) }

// finish does what the end of a test does.
func (r *recorder) finish() {
	for i := range r.cleanups {
		r.cleanups[len(r.cleanups)-1-i]()
	}
	r.cleanups = nil
}

// A client refunds an order, once or in its own way.
type client func(c *http.Client, url string)

// send sends one POST and reports what a retry loop wants to know.
func send(c *http.Client, url, key, order string) (status int, err error) {
	req, err := http.NewRequest("POST", url+"/refunds", struct{ io.Reader }{strings.NewReader(order)})
	if err != nil {
		return 0, err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// loop sends until it is told of success, with a key of its own for each attempt
// if key says so.
func loop(c *http.Client, url string, key func(attempt int) string) {
	for n := range 4 {
		if status, err := send(c, url, key(n), "A-17"); err == nil && status < 500 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func noKey(int) string      { return "" }
func sameKey(int) string    { return "refund-A-17" }
func freshKey(n int) string { return fmt.Sprintf("refund-A-17-attempt-%d", n) }

func careful(c *http.Client, url string)     { loop(c, url, sameKey) }
func once(c *http.Client, url string)        { send(c, url, "refund-A-17", "A-17") }
func naive(c *http.Client, url string)       { loop(c, url, noKey) }
func keyPerAttempt(c *http.Client, u string) { loop(c, u, freshKey) }

func goRetryable(c *http.Client, url string) {
	r := retryablehttp.NewClient()
	r.Logger, r.HTTPClient = nil, c
	if resp, err := r.Post(url+"/refunds", "text/plain", []byte("A-17")); err == nil {
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// impatient gives an attempt ten seconds.
func impatient(c *http.Client, url string) {
	c.Timeout = 10 * time.Second
	naive(c, url)
}

// hedging sends a second request when the first has no answer after a second, or
// has failed, and takes what comes first.
func hedging(c *http.Client, url string) {
	answers := make(chan error, 3)
	try := func() { _, err := send(c, url, "", "A-17"); answers <- err }
	go try()
	select {
	case err := <-answers:
		if err == nil {
			return
		}
		go try()
		go try()
		<-answers
	case <-time.After(time.Second):
		go try()
	}
	<-answers
}

// journalling refunds two orders and, when it has lost its connection, sends all
// that it has sent before.
func journalling(c *http.Client, url string) {
	var sent []string
	for _, order := range []string{"A-17", "B-4"} {
		sent = append(sent, order)
		if _, err := send(c, url, "", order); err != nil {
			for _, again := range sent {
				send(c, url, "", again)
			}
		}
	}
}

// forgetful keeps its key, until an attempt says that nothing has happened: of all
// attempts, it believes.
func forgetful(c *http.Client, url string) {
	key := 1
	for range 5 {
		status, err := send(c, url, sameKey(0)+fmt.Sprint("-", key), "A-17")
		switch {
		case err == nil && status < 500:
			return
		case status == 503, errors.Is(err, syscall.ECONNREFUSED), err != nil && strings.Contains(err.Error(), "GOAWAY]"):
			key++
		}
	}
}

// nested is two layers of retries: the outer starts anew while the inner still
// waits for as long as the server has asked.
func nested(c *http.Client, url string) {
	var wg sync.WaitGroup
	defer wg.Wait()
	inner := func(done chan<- bool) {
		if status, err := send(c, url, "", "A-17"); err != nil || status == 503 {
			time.Sleep(5 * time.Second)
			send(c, url, "", "A-17")
		}
		done <- true
	}
	for range 2 {
		done := make(chan bool, 1)
		wg.Go(func() { inner(done) })
		select {
		case <-done:
			return
		case <-time.After(3 * time.Second):
		}
	}
}

// A keyed handler does its work once for a key. The faults are what real ones have
// been seen to do.
type keyed struct {
	mu      sync.Mutex
	answers map[string]*answered

	racy    bool          // looks and acts in two steps
	undone  bool          // forgets what it did for a client that has gone
	keep    time.Duration // forgets after; 0: never
	hasty   bool          // notes success before it works, and fails the first time
	undoing bool          // gives the key free when it answers 500
}

type answered struct {
	done chan struct{}
	at   time.Time
	rec  *httptest.ResponseRecorder
}

func (k *keyed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	k.mu.Lock()
	if k.answers == nil {
		k.answers = map[string]*answered{}
	}
	a := k.answers[key]
	if a != nil && k.keep > 0 && time.Since(a.at) > k.keep {
		a = nil
	}
	if k.racy && a == nil {
		k.mu.Unlock()
		time.Sleep(time.Millisecond)
		k.mu.Lock()
	}
	mine := a == nil
	if mine {
		a = &answered{done: make(chan struct{}), at: time.Now(), rec: httptest.NewRecorder()}
		k.answers[key] = a
	}
	k.mu.Unlock()
	if mine {
		if k.hasty {
			a.rec.WriteHeader(http.StatusCreated)
			close(a.done)
			http.Error(w, "the database is away", http.StatusInternalServerError)
			return
		}
		refund(a.rec, r)
		if k.undone {
			time.Sleep(time.Minute)
		}
		close(a.done)
		if k.undone && r.Context().Err() != nil || k.undoing {
			k.mu.Lock()
			delete(k.answers, key)
			k.mu.Unlock()
		}
		if k.undoing {
			http.Error(w, "could not send the receipt", http.StatusInternalServerError)
			return
		}
	}
	<-a.done
	for name, values := range a.rec.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(a.rec.Code)
	w.Write(a.rec.Body.Bytes())
}

func faults(f ...oncetest.Option) []oncetest.Option { return f }

var h2 = oncetest.HTTP2()

func TestOnceCatchesBrokenClientsAndHandlers(t *testing.T) {
	ignores := func() http.Handler { return http.HandlerFunc(refund) }
	honours := func() http.Handler { return new(keyed) }
	twice := "took effect 2 times, but must at most once"
	for _, row := range []struct {
		name    string
		faults  []oncetest.Option
		client  client
		handler func() http.Handler
		want    string
	}{
		{"LoseReply: a naive loop", faults(oncetest.LoseReply()), naive, ignores, twice},
		{"LoseReply: go-retryablehttp's defaults", faults(oncetest.LoseReply()), goRetryable, ignores, twice},
		{"LoseReply: a key for each attempt", faults(oncetest.LoseReply()), keyPerAttempt, honours, twice + "; its repeats brought new keys"},
		{"LoseReply: a handler that ignores keys", faults(oncetest.LoseReply()), careful, ignores, twice},

		{"CutBody: a naive loop", faults(oncetest.CutBody(3)), naive, ignores, twice},
		{"CutBody: a key for each attempt", faults(oncetest.CutBody(3)), keyPerAttempt, honours, twice},

		{"ResetBefore: a journal", faults(oncetest.ResetBefore().On(2)), journalling, ignores, twice},
		{"ResetBefore: a hedge", faults(oncetest.ResetBefore()), hedging, ignores, twice},

		{"ResetAfter: a naive loop", faults(oncetest.ResetAfter()), naive, ignores, twice},
		{"ResetAfter: go-retryablehttp's defaults", faults(oncetest.ResetAfter()), goRetryable, ignores, twice},

		{"Status: nested retries", faults(oncetest.Status(503, "Retry-After: 5")), nested, ignores, twice},
		{"Status: a later answer is taken for all", faults(oncetest.LoseReply(), oncetest.Status(503).On(2)), forgetful, honours, twice + "; its repeats brought new keys"},
		{"Status: success that was none", faults(oncetest.Status(200)), once, honours, "POST /refunds was told 200, but nothing took effect"},

		{"StatusAfter: a naive loop", faults(oncetest.StatusAfter(504)), naive, ignores, twice},
		{"StatusAfter: go-retryablehttp's defaults", faults(oncetest.StatusAfter(504)), goRetryable, ignores, twice},
		{"StatusAfter: a key for each attempt", faults(oncetest.StatusAfter(504)), keyPerAttempt, honours, twice},

		{"DelayHeaders: a timeout and a loop", faults(oncetest.DelayHeaders(time.Minute)), impatient, ignores, twice},
		{"DelayHeaders: a hedge", faults(oncetest.DelayHeaders(time.Minute)), hedging, ignores, twice},

		{"DripBody: a timeout and a loop", faults(oncetest.DripBody(1, time.Minute)), impatient, ignores, twice},
		{"DripBody: a timeout and a key for each attempt", faults(oncetest.DripBody(1, time.Minute)),
			func(c *http.Client, url string) { c.Timeout = time.Second; keyPerAttempt(c, url) }, honours, twice},

		{"RefuseConn: a journal", faults(oncetest.RefuseConn().On(2)), journalling, ignores, twice},
		{"RefuseConn: a later refusal is taken for all", faults(oncetest.LoseReply(), oncetest.RefuseConn().On(2)), forgetful, honours, twice},

		{"GoAwayBefore: a journal", faults(h2, oncetest.GoAwayBefore().On(2)), journalling, ignores, twice},
		{"GoAwayBefore: a later refusal is taken for all", faults(h2, oncetest.LoseReply(), oncetest.GoAwayBefore().On(2)), forgetful, honours, twice},

		{"GoAwayAfter: a naive loop", faults(h2, oncetest.GoAwayAfter()), naive, ignores, twice},
		{"GoAwayAfter: go-retryablehttp's defaults", faults(h2, oncetest.GoAwayAfter()), goRetryable, ignores, twice},

		{"DeliverTwice: a handler that ignores keys", faults(oncetest.DeliverTwice(0)), once, ignores, twice},
		{"DeliverTwice: a handler that looks, then acts", faults(oncetest.DeliverTwice(0)), once, func() http.Handler { return &keyed{racy: true} }, twice},
		{"DeliverTwice: a handler that forgets too soon", faults(oncetest.DeliverTwice(time.Hour)), once, func() http.Handler { return &keyed{keep: time.Minute} }, twice},

		{"no fault: a handler that notes success before it works", nil, careful, func() http.Handler { return &keyed{hasty: true} }, "POST /refunds was told 201, but nothing took effect"},
		{"no fault: a handler that frees its key for a 500", nil, careful, func() http.Handler { return &keyed{undoing: true} }, "took effect 4 times"},
		{"no fault: a handler that forgets what it did for a client that has gone", nil,
			func(c *http.Client, url string) {
				c.Timeout = time.Second
				once(c, url)
				time.Sleep(time.Hour)
				once(c, url)
			}, func() http.Handler { return &keyed{undone: true} }, twice},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := oncetest.NewServer(t, row.handler(), row.faults...)
				row.client(srv.Client(), srv.URL)
				r := new(recorder)
				oncetest.Once(r, srv)
				if len(r.failures) != 1 || !strings.Contains(r.failures[0], row.want) {
					t.Fatalf("got %q, want one failure with %q in\n%s", r.failures, row.want, srv.Timeline())
				}
				if strings.Contains(srv.Timeline(), "did not happen") {
					t.Errorf("the fault did not happen:\n%s", srv.Timeline())
				}
				t.Log("\n" + r.failures[0])
			})
		})
	}
}

// everyFault is each fault on its own, and those that are worst together.
func everyFault(http2 bool) [][]oncetest.Option {
	const moment = time.Millisecond
	all := [][]oncetest.Option{
		nil,
		faults(oncetest.LoseReply()),
		faults(oncetest.CutBody(3)),
		faults(oncetest.ResetBefore()),
		faults(oncetest.ResetAfter()),
		faults(oncetest.Status(503, "Retry-After: 0")),
		faults(oncetest.StatusAfter(504)),
		faults(oncetest.DelayHeaders(moment)),
		faults(oncetest.DripBody(1, moment)),
		faults(oncetest.RefuseConn()),
		faults(oncetest.DeliverTwice(0)),
		faults(oncetest.DeliverTwice(moment)),
		faults(oncetest.LoseReply(), oncetest.RefuseConn().On(2)),
		faults(oncetest.LoseReply(), oncetest.Status(503).On(2)),
		faults(oncetest.ResetAfter().On(1, 2), oncetest.DeliverTwice(0)),
	}
	if http2 {
		all = append(all, faults(oncetest.GoAwayBefore()), faults(oncetest.GoAwayAfter()),
			faults(oncetest.LoseReply(), oncetest.GoAwayBefore().On(2)))
	}
	return all
}

func TestOncehttpBeforeAHandlerThatHonoursKeysPasses(t *testing.T) {
	handlers := map[string]func() http.Handler{
		"a map of keys": func() http.Handler { return new(keyed) },
		"the Middleware": func() http.Handler {
			return (&oncehttp.Middleware{Store: new(oncehttp.MemoryStore)}).Handler(http.HandlerFunc(refund))
		},
	}
	for _, mode := range modes {
		for _, f := range everyFault(mode.http2) {
			for name, handler := range handlers {
				t.Run(fmt.Sprint(name, ", ", mode.name, ", ", f), func(t *testing.T) {
					inMode(t, mode.bubble, func(t *testing.T) {
						srv := oncetest.NewServer(t, handler(), with(mode.opts, f...)...)
						c := srv.Client()
						c.Transport = &oncehttp.Transport{Base: c.Transport, BackoffBase: time.Millisecond, ReplayReply: 1 << 20, Logger: slog.New(slog.DiscardHandler)}
						for i, order := range []string{"1", "2"} {
							if got := post(c, srv.URL, order); got.status != 201 || got.body != "refunded "+order || got.err != nil {
								t.Errorf("call %d: got %+v\n%s", i+1, got, srv.Timeline())
							}
						}
						oncetest.Once(t, srv)
						if got := srv.Effects(); got != 2 {
							t.Errorf("%d effects, want 2\n%s", got, srv.Timeline())
						}
					})
				})
			}
		}
	}
}

func TestAClientThatNeverRepeatsPasses(t *testing.T) {
	for _, mode := range modes[:3] {
		for _, f := range everyFault(mode.http2) {
			if strings.Contains(fmt.Sprint(f), "DeliverTwice") {
				continue
			}
			t.Run(fmt.Sprint(mode.name, ", ", f), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					srv := oncetest.NewServer(t, http.HandlerFunc(refund), with(mode.opts, f...)...)
					post(srv.Client(), srv.URL, "1")
					post(srv.Client(), srv.URL, "2")
					oncetest.Once(t, srv)
				})
			})
		}
	}
}
