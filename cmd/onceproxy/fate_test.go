package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp/oncetest"
)

// pay is an upstream where each request has an effect.
func pay(effects *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		n := effects.Add(1)
		oncetest.Effect(r)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, `{"receipt":`+strconv.FormatInt(n, 10)+`}`)
	})
}

// A request that never left the proxy is refused so that its client can send it again,
// and that then runs.
func TestARequestThatWasNotSentLeavesItsKeyFree(t *testing.T) {
	addr := freeAddr(t)
	p := start(t, "-upstream", "http://"+addr)
	a := send(t, "POST", p.URL+"/refunds", "{}", key("k1"))
	if a.status != 503 || a.problem() != "upstream-unreachable" || a.header.Get("Retry-After") == "" {
		t.Fatalf("an upstream that is not there: got %d %s, Retry-After %q", a.status, a.body, a.header.Get("Retry-After"))
	}
	if !strings.Contains(a.body, `"retry_same_key":true`) || !strings.Contains(a.body, `"outcome":"none"`) {
		t.Errorf("the problem does not say that nothing was done: %s", a.body)
	}
	a = send(t, "POST", p.URL+"/refunds", "{}")
	if a.status != 503 || a.header.Get("Retry-After") == "" {
		t.Errorf("without a key: got %d %s", a.status, a.body)
	}

	var effects atomic.Int64
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		w.WriteHeader(201)
	})}}
	s.Start()
	defer s.Close()
	for range 2 {
		if a = send(t, "POST", p.URL+"/refunds", "{}", key("k1")); a.status != 201 {
			t.Fatalf("once the upstream is there: got %d %s", a.status, a.body)
		}
	}
	if !a.replayed() || effects.Load() != 1 {
		t.Errorf("got %d effects, the repeat's header %v", effects.Load(), a.header)
	}
}

// What may have reached the upstream is never sent there again, whatever became of the
// answer, and repeats are told why.
func TestARequestThatWasSentAndNotAnsweredIsUnknown(t *testing.T) {
	for _, c := range []struct {
		name   string
		fault  oncetest.Fault
		status int // 0: the client's connection breaks
	}{
		{"the reply is lost", oncetest.LoseReply(), 502},
		{"the connection is reset after the work", oncetest.ResetAfter(), 502},
		{"the connection is reset before the work", oncetest.ResetBefore(), 502},
		{"the reply is cut in its body", oncetest.CutBody(3), 502},
		{"the reply does not come in time", oncetest.DelayHeaders(time.Minute), 504},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var effects atomic.Int64
			s := oncetest.NewServer(t, pay(&effects), c.fault)
			p := start(t, "-upstream", s.URL, "-timeout", "2s")
			a := send(t, "POST", p.URL+"/refunds", "{}", key("k1"))
			if a.status != c.status || a.problem() != "outcome-unknown" {
				t.Errorf("the first: got %d %s", a.status, a.body)
			}
			for range 2 {
				a = send(t, "POST", p.URL+"/refunds", "{}", key("k1"))
				if a.status != 409 || a.problem() != "outcome-unknown" || a.header.Get("Retry-After") != "" {
					t.Errorf("a repeat: got %d %v %s", a.status, a.header, a.body)
				}
			}
			if n := s.Sends(); n != 1 {
				t.Errorf("the upstream got %d requests", n)
			}
		})
	}
}

// A stream cannot be taken back: its client sees the cut, and its repeats learn that
// the outcome is unknown.
func TestAStreamThatIsCutIsUnknown(t *testing.T) {
	var effects atomic.Int64
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer up.Close()
	p := start(t, "-upstream", up.URL)
	if a, err := try("POST", p.URL+"/x", "", key("k1")); err == nil {
		t.Errorf("the client took a cut stream for a whole one: %+v", a)
	}
	if a := send(t, "POST", p.URL+"/x", "", key("k1")); a.status != 409 || a.problem() != "outcome-unknown" {
		t.Errorf("the repeat: got %d %s", a.status, a.body)
	}
	if n := effects.Load(); n != 1 {
		t.Errorf("got %d effects", n)
	}
}

// Without a key, and to an upstream that is not known to honour keys, nothing is
// repeated that may have been sent, of whatever method.
func TestNothingIsRepeatedThatMayHaveBeenSent(t *testing.T) {
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "POST", "PATCH", "OPTIONS"} {
		for _, c := range []struct {
			name  string
			fault oncetest.Fault
		}{
			{"a lost reply", oncetest.LoseReply().Always()},
			{"a 503 that asks to come again", oncetest.Status(503, "Retry-After: 1").Always()},
			{"a 500", oncetest.StatusAfter(500).Always()},
		} {
			t.Run(method+" and "+c.name, func(t *testing.T) {
				var effects atomic.Int64
				s := oncetest.NewServer(t, pay(&effects), c.fault)
				p := start(t, "-upstream", s.URL)
				send(t, method, p.URL+"/x", "")
				if n := s.Sends(); n != 1 {
					t.Errorf("it was sent %d times", n)
				}
			})
		}
	}
}

// An upstream that honours keys gets the request again under the same one, which is
// not the client's: another tenant may use that too.
func TestAnUpstreamThatHonoursKeysIsAskedAgain(t *testing.T) {
	var effects atomic.Int64
	s := oncetest.NewServer(t, pay(&effects), oncetest.LoseReply())
	p := start(t, "-upstream", s.URL, "-honors-keys")
	a := send(t, "POST", p.URL+"/refunds", `{"n":1}`, key("k1"), "Authorization: Bearer one")
	if a.status != 201 {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	sends := s.Requests()
	if len(sends) != 2 || sends[0].Key == "" || sends[0].Key != sends[1].Key || sends[0].Key == "k1" {
		t.Errorf("the upstream got %d requests:\n%s", len(sends), s.Timeline())
	}
}
