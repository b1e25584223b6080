package modeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/history"
	"github.com/oncehttp/oncehttp/internal/memnet"
	"github.com/oncehttp/oncehttp/toolcall"
)

// An Agent is a loop with the adapter and the SDK under test. It keeps its conversation.
type Agent interface {
	// Say adds what the user says, and calls the model and its tools until the turn is over. Answers are
	// streamed if stream says so.
	Say(ctx context.Context, turn *toolcall.Turn, text string, stream bool) error
}

// URL is where the model of a story listens.
const URL = "http://model.test"

// A Story is what happened in one.
type Story struct {
	Requests, Closings, Calls, Effects, Cancelled int
}

// Tell plays one story: two turns of a user in one conversation, with a model that makes every mistake that there
// is, tools that end in every way, a network that loses replies, budgets that run out and users that leave. It
// reports a broken rule of package history, an effect too many or too few, and a secret
// in what the model reads. The same seed gives the same script.
func Tell(t *testing.T, seed uint64, api history.API, agent func(*oncehttp.Transport) Agent) (story Story) {
	synctest.Test(t, func(t *testing.T) {
		dice := rand.New(rand.NewPCG(seed, 5))
		bank := &Bank{}
		model := &script{dice: rand.New(rand.NewPCG(seed, 6)), api: api}
		server := &Server{API: api, Next: model.next}
		quiet := slog.New(slog.DiscardHandler)

		var network memnet.Network
		listener, err := network.Listen("model.test:80")
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		loss := rand.New(rand.NewPCG(seed, 7))
		lossy := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			lost := loss.IntN(8) == 0
			mu.Unlock()
			time.Sleep(time.Second) // it thinks
			if lost {
				server.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			server.ServeHTTP(w, r)
		})
		srv := &http.Server{Handler: lossy, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
		go srv.Serve(listener)
		base := &http.Transport{DialContext: network.DialContext}

		records := map[string][]toolcall.Record{} // by key
		runner := &toolcall.Runner{Scope: "acme/test", Store: new(oncehttp.MemoryStore), Logger: quiet, MaxResult: 512,
			OnRecord: func(_ context.Context, rec toolcall.Record) {
				mu.Lock()
				defer mu.Unlock()
				story.Calls++
				records[rec.Key] = append(records[rec.Key], rec)
			}}
		if err := runner.Register(bank.Tools()...); err != nil {
			t.Fatal(err)
		}
		// A model's replies are read inside the attempt, so that a cut one is asked for again.
		a := agent(&oncehttp.Transport{Base: base, ReplayReply: 1 << 20, Logger: quiet})
		for i := range 2 {
			ctx, cancel := t.Context(), func() {}
			if dice.IntN(3) == 0 {
				ctx, cancel = context.WithTimeout(ctx, time.Duration(dice.Int64N(int64(20*time.Second))))
			}
			turn := runner.Turn(fmt.Sprint("conversation ", seed, ", message ", i), budget(dice))
			err := a.Say(ctx, turn, "refund A-17", dice.IntN(2) == 0)
			var lost *oncehttp.Error
			switch {
			case ctx.Err() != nil:
				story.Cancelled++
			case errors.As(err, &lost): // the network lost each reply of the model
			case err != nil:
				t.Errorf("seed %d: %v", seed, err)
			}
			cancel()
		}
		time.Sleep(2 * time.Hour) // for what ignores its context
		if err := runner.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		base.CloseIdleConnections()
		srv.Close()
		synctest.Wait()

		for _, err := range server.Errs() {
			t.Errorf("seed %d: %v", seed, err)
		}
		for _, b := range server.Bodies() {
			if bytes.Contains(b, []byte(Secret)) {
				t.Errorf("seed %d: a secret reached the model", seed)
			}
		}
		for key, recs := range records {
			checkEffects(t, seed, bank, key, recs)
		}
		story.Requests, story.Closings = server.Requests()
		story.Effects = bank.Total()
	})
	return story
}

// checkEffects compares what the model was told of a call with what happened.
func checkEffects(t *testing.T, seed uint64, bank *Bank, key string, recs []toolcall.Record) {
	n, tool := bank.Effects(key), recs[0].Tool
	none, applied := true, false
	for _, r := range recs {
		none = none && r.Outcome == toolcall.OutcomeNone
		applied = applied || r.Outcome == toolcall.OutcomeApplied
	}
	switch {
	case tool == "close_all":
		if n != 0 {
			t.Errorf("seed %d: a call that was cut off was run", seed)
		}
	case n > 1, none && n > 0, applied && n != 1:
		t.Errorf("seed %d: %s took effect %d times, and the model was told %+v", seed, tool, n, recs)
	}
}

func budget(dice *rand.Rand) toolcall.Budget {
	n := 1 + dice.IntN(6)
	return []toolcall.Budget{{}, {}, {Calls: n}, {Attempts: n}, {Wall: time.Duration(n) * 3 * time.Second}, {Tokens: int64(n) * 100}, {PerTool: map[string]int{"pay": n - 1}}, {Calls: n, PerTool: map[string]int{"wipe": 0}}}[dice.IntN(8)]
}

// A script is a model that makes mistakes.
type script struct {
	dice *rand.Rand
	api  history.API
	said []Call
}

func (s *script) next(n int, closing bool) Answer {
	d := s.dice
	a := Answer{Text: either(d.IntN(2) == 0, "Let me see.", "")}
	if n%6 == 0 || closing && d.IntN(3) > 0 || d.IntN(5) == 0 {
		return Answer{Text: either(d.IntN(8) > 0, "Done.", "")} // or it says nothing
	}
	for range 1 + d.IntN(4) {
		a.Calls = append(a.Calls, s.call(n))
	}
	if d.IntN(6) == 0 { // the token limit comes within the last call
		a.Cut = true
		a.Calls = append(a.Calls, Call{ID: fmt.Sprint("cut_", n), Name: "close_all", Args: either(d.IntN(2) == 0, "", `{`)})
	}
	s.said = append(s.said, a.Calls...)
	return a
}

func (s *script) call(n int) Call {
	d := s.dice
	end := Ends[d.IntN(len(Ends))]
	if d.IntN(2) == 0 {
		end = "ok"
	}
	c := Call{
		ID:   fmt.Sprintf("call_%d_%d", n, d.IntN(1000)),
		Name: []string{"pay", "wipe", "status"}[d.IntN(3)],
		Args: fmt.Sprintf(`{"n":%d,"end":%q}`, 9007199254740992+d.IntN(3), end),
	}
	if len(s.said) > 0 && d.IntN(4) == 0 { // the same call again, in other words
		old := s.said[d.IntN(len(s.said))]
		if old.Name != "close_all" {
			c.Name, c.Args = old.Name, strings.ReplaceAll(old.Args, ":", " : ")
		}
	}
	switch d.IntN(12) {
	case 0:
		c.ID = ""
	case 1:
		c.ID = "call_1"
	case 2:
		c.ID = strings.Repeat("functions.pay:", 1+d.IntN(6))
	case 3:
		c.Name = []string{"refund order!", "", "none_such", strings.Repeat("x", 200)}[d.IntN(4)]
	case 4:
		c.Args = []string{`{"n":1`, `{"n":1,"n":2,"end":"ok"}`, ``, `[]`, `null`, `{"m":1}`}[d.IntN(6)]
		if s.api == history.Messages && !strings.HasPrefix(c.Args, "{") {
			c.Args = "{}" // an input is an object
		}
	}
	return c
}

// Seeds is how many stories a test tells for one API: 340, or 4000 with ONCEHTTP_SOAK=1.
func Seeds() uint64 {
	if os.Getenv("ONCEHTTP_SOAK") == "1" {
		return 4000
	}
	return 340
}

// TellAll tells as many stories as there are [Seeds], and fails the test if too little
// happens in them for that to show anything.
func TellAll(t *testing.T, api history.API, agent func(*oncehttp.Transport) Agent) {
	var sum Story
	for seed := range Seeds() {
		s := Tell(t, seed, api, agent)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		sum.Requests += s.Requests
		sum.Closings += s.Closings
		sum.Calls += s.Calls
		sum.Effects += s.Effects
		sum.Cancelled += s.Cancelled
	}
	t.Logf("%+v in %d conversations", sum, Seeds())
	n := int(Seeds())
	if sum.Requests < 4*n || sum.Closings < n/10 || sum.Calls < 4*n || sum.Effects < n || sum.Cancelled < n/10 {
		t.Error("too little happens in these stories")
	}
}
