package oncetest_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp/oncetest"
)

// modes are the ways in which a server can be reached. In a bubble time is free,
// so durations of hours are used there only.
var modes = []struct {
	name   string
	bubble bool
	http2  bool
	opts   []oncetest.Option
}{
	{"memory, HTTP/1", true, false, nil},
	{"memory, HTTP/2", true, true, []oncetest.Option{oncetest.HTTP2()}},
	{"memory, HTTP/2 over TLS", true, true, []oncetest.Option{oncetest.HTTP2(), oncetest.TLS()}},
	{"TCP, HTTP/1", false, false, nil},
	{"TCP, HTTP/1 over TLS", false, false, []oncetest.Option{oncetest.TLS()}},
	{"TCP, HTTP/2", false, true, []oncetest.Option{oncetest.HTTP2()}},
	{"TCP, HTTP/2 over TLS", false, true, []oncetest.Option{oncetest.HTTP2(), oncetest.TLS()}},
}

func inMode(t *testing.T, bubble bool, f func(t *testing.T)) {
	if bubble {
		synctest.Test(t, f)
	} else {
		f(t)
	}
}

func with(opts []oncetest.Option, faults ...oncetest.Option) []oncetest.Option {
	return append(append([]oncetest.Option{}, opts...), faults...)
}

// refund is a handler that does its work each time that it is called.
func refund(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	oncetest.Effect(r)
	w.Header().Set("X-Refund", "7")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "refunded %s", body)
}

type outcome struct {
	status int
	body   string
	err    error // of the call, or of reading the body
	cut    bool  // the error came from the body
	took   time.Duration
}

func post(client *http.Client, url, body string) (o outcome) {
	start := time.Now()
	defer func() { o.took = time.Since(start) }()
	// A reader of no known type: net/http must not be able to send again by itself.
	resp, err := client.Post(url+"/refunds", "text/plain", struct{ io.Reader }{strings.NewReader(body)})
	if err != nil {
		return outcome{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return outcome{status: resp.StatusCode, body: string(b), err: err, cut: err != nil}
}

func TestWhatEachFaultDoes(t *testing.T) {
	reset := func(h2 bool, err error) bool { return errors.Is(err, syscall.ECONNRESET) || h2 && err != nil }
	const long = 20 * time.Millisecond
	for _, row := range []struct {
		fault   oncetest.Fault
		runs    int
		status  int // what the client sees; 0: an error
		body    string
		cut     bool
		err     func(h2 bool, err error) bool
		least   time.Duration
		noAfter bool // the connection is still good
	}{
		{fault: oncetest.LoseReply(), runs: 1, err: func(h2 bool, err error) bool { return h2 || errors.Is(err, io.EOF) }},
		{fault: oncetest.CutBody(4), runs: 1, status: 201, body: "refu", cut: true, err: func(h2 bool, err error) bool { return h2 || errors.Is(err, io.ErrUnexpectedEOF) }},
		{fault: oncetest.CutBody(0), runs: 1, status: 201, cut: true},
		{fault: oncetest.CutBody(12), runs: 1, status: 201, body: "refunded 100", cut: true},
		{fault: oncetest.CutBody(900), runs: 1, status: 201, body: "refunded 100", cut: true},
		{fault: oncetest.ResetBefore(), runs: 0, err: reset},
		{fault: oncetest.ResetAfter(), runs: 1, err: reset},
		{fault: oncetest.Status(503, "Retry-After: 2"), runs: 0, status: 503, body: "503 Service Unavailable\n"},
		{fault: oncetest.StatusAfter(504), runs: 1, status: 504, body: "504 Gateway Timeout\n"},
		{fault: oncetest.DelayHeaders(long), runs: 1, status: 201, body: "refunded 100", least: long},
		{fault: oncetest.DripBody(4, long), runs: 1, status: 201, body: "refunded 100", least: 2 * long},
		{fault: oncetest.RefuseConn(), runs: 0, err: func(_ bool, err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }},
		{fault: oncetest.GoAwayBefore(), runs: 0, err: func(h2 bool, err error) bool { return !h2 || strings.Contains(err.Error(), "graceful shutdown GOAWAY") }},
		{fault: oncetest.GoAwayAfter(), runs: 1, err: func(h2 bool, err error) bool {
			return !h2 || strings.Contains(err.Error(), "server sent GOAWAY and closed the connection")
		}},
		{fault: oncetest.DeliverTwice(0), runs: 2, status: 201, body: "refunded 100"},
		{fault: oncetest.DeliverTwice(long), runs: 2, status: 201, body: "refunded 100"},
	} {
		for _, mode := range modes {
			t.Run(row.fault.String()+", "+mode.name, func(t *testing.T) {
				inMode(t, mode.bubble, func(t *testing.T) {
					srv := oncetest.NewServer(t, http.HandlerFunc(refund), with(mode.opts, row.fault.On(2))...)
					client := srv.Client()
					if got := post(client, srv.URL, "1"); got.status != 201 || got.body != "refunded 1" || got.err != nil {
						t.Fatalf("send 1: got %+v, want it untouched", got)
					}
					got := post(client, srv.URL, "100")
					if got.status != row.status || got.body != row.body || got.cut != row.cut || (got.err != nil) != (row.status == 0 || row.cut) {
						t.Errorf("send 2: got %+v", got)
					}
					if row.err != nil && !row.err(mode.http2, got.err) {
						t.Errorf("send 2: error is %v", got.err)
					}
					if got.took < row.least {
						t.Errorf("send 2 took %v, want %v at least", got.took, row.least)
					}
					if got := post(client, srv.URL, "3"); got.status != 201 || got.err != nil {
						t.Errorf("send 3: got %+v, want it untouched", got)
					}
					if got := srv.Sends(); got != 3 {
						t.Errorf("%d sends, want 3", got)
					}
					r := &recorder{}
					oncetest.Once(r, srv) // waits for copies
					if got := srv.Effects(); got != row.runs+2 {
						t.Errorf("%d effects, want %d", got, row.runs+2)
					}
					if strings.Contains(srv.Timeline(), "did not happen") {
						t.Errorf("the fault did not happen:\n%s", srv.Timeline())
					}
					if t.Failed() {
						t.Log("\n" + srv.Timeline())
					}
				})
			})
		}
	}
}

func TestFaultsCompose(t *testing.T) {
	for _, row := range []struct {
		name   string
		faults []oncetest.Option
		sends  []outcome
		runs   []int
	}{
		{"the first of several that end a send does", []oncetest.Option{oncetest.StatusAfter(502).On(1), oncetest.Status(503).Always()},
			[]outcome{{status: 502}, {status: 503}, {status: 503}}, []int{1, 0, 0}},
		{"a fault with several numbers happens to each", []oncetest.Option{oncetest.Status(503).On(1, 3)},
			[]outcome{{status: 503}, {status: 201}, {status: 503}}, []int{0, 1, 0}},
		{"delays of headers add up and precede what ends the send", []oncetest.Option{oncetest.DelayHeaders(time.Second), oncetest.Status(503), oncetest.DelayHeaders(2 * time.Second)},
			[]outcome{{status: 503, took: 3 * time.Second}, {status: 201}}, []int{0, 1}},
		{"a reply can be late, dripped and cut, and its request doubled", []oncetest.Option{oncetest.DeliverTwice(time.Hour), oncetest.CutBody(7), oncetest.DripBody(3, time.Minute), oncetest.DelayHeaders(time.Second)},
			[]outcome{{status: 201, cut: true, took: time.Second + 2*time.Minute}}, []int{2}},
		{"a lost reply can be late", []oncetest.Option{oncetest.LoseReply(), oncetest.DelayHeaders(time.Hour)},
			[]outcome{{took: time.Hour}}, []int{1}},
		{"a refused connection is a send like others", []oncetest.Option{oncetest.RefuseConn(), oncetest.Status(503).On(2), oncetest.RefuseConn().On(3)},
			[]outcome{{}, {status: 503}, {}, {status: 201}}, []int{0, 0, 0, 1}},
	} {
		for _, mode := range modes[:3] {
			t.Run(row.name+", "+mode.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					srv := oncetest.NewServer(t, http.HandlerFunc(refund), with(mode.opts, row.faults...)...)
					client := srv.Client()
					for i, want := range row.sends {
						got := post(client, srv.URL, "100")
						if got.status != want.status || got.cut != want.cut || got.took != want.took {
							t.Errorf("send %d: got %+v, want %+v", i+1, got, want)
						}
					}
					oncetest.Once(&recorder{}, srv)
					want := 0
					for _, n := range row.runs {
						want += n
					}
					if got := srv.Effects(); got != want {
						t.Errorf("%d effects, want %d\n%s", got, want, srv.Timeline())
					}
				})
			})
		}
	}
}

func TestWhereCountsWhatItMatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		posts := func(r *http.Request) bool { return r.Method == "POST" }
		srv := oncetest.NewServer(t, http.NotFoundHandler(), oncetest.Status(503).Where(posts).On(2), oncetest.Status(429).Where(posts))
		var got []int
		for _, method := range []string{"GET", "POST", "GET", "GET", "POST", "POST"} {
			resp, err := srv.Client().Do(request(t, method, srv.URL, ""))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			got = append(got, resp.StatusCode)
		}
		if want := []int{404, 429, 404, 404, 503, 404}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestACutBodyNeverArrivesWhole(t *testing.T) {
	for _, declared := range []bool{false, true} {
		for n := range 8 {
			for _, mode := range modes {
				t.Run(fmt.Sprint(n, " of 5 bytes, declared ", declared, ", ", mode.name), func(t *testing.T) {
					inMode(t, mode.bubble, func(t *testing.T) {
						srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							if declared {
								w.Header().Set("Content-Length", "5")
							}
							io.WriteString(w, "hel")
							io.WriteString(w, "lo")
						}), with(mode.opts, oncetest.CutBody(n))...)
						got := post(srv.Client(), srv.URL, "")
						want := min(n, 5)
						if declared {
							want = min(n, 4)
						}
						if got.status != 200 || !got.cut || got.body != "hello"[:want] {
							t.Errorf("got %+v, want %d bytes and an error", got, want)
						}
					})
				})
			}
		}
	}
}

func TestABodyThatIsNotThereCannotBeCut(t *testing.T) {
	for _, mode := range modes[:3] {
		for _, method := range []string{"DELETE", "HEAD"} {
			t.Run(method+", "+mode.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.Method == "DELETE" {
							w.WriteHeader(http.StatusNoContent)
						} else {
							io.WriteString(w, "hello")
						}
					}), with(mode.opts, oncetest.CutBody(0))...)
					resp, err := srv.Client().Do(request(t, method, srv.URL, ""))
					if err != nil {
						t.Fatal(err)
					}
					resp.Body.Close()
					if got := srv.Timeline(); !strings.Contains(got, "CutBody(0) did not happen") {
						t.Errorf("got\n%s\nwant it to say that the fault did not happen", got)
					}
				})
			})
		}
	}
}
