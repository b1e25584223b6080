package conformance

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/memnet"
	"github.com/oncehttp/oncehttp/toolcall"
)

// A tool that calls an SDK has retries in four places: the SDK, the Transport below it, the Runner
// above, and the model. Replies are lost after the work was done, and the process may crash.
func TestAToolOverAnSDKHasOneEffect(t *testing.T) {
	for i, sdk := range sdks {
		t.Run(sdk.name, func(t *testing.T) {
			t.Parallel()
			repeats := 0
			for seed := range uint64(340) {
				dice := rand.New(rand.NewPCG(seed, uint64(i)))
				lose, sends := int32(dice.IntN(12)), 0
				synctest.Test(t, func(t *testing.T) { sends = sdkStory(t, dice, lose, sdk.reply, sdk.call) })
				if t.Failed() {
					t.Fatalf("seed %d, %d replies lost", seed, lose)
				}
				repeats += sends - 1
			}
			if repeats < 1000 {
				t.Errorf("%d repeats in 340 stories: too few to show anything", repeats)
			}
		})
	}
}

func sdkStory(t *testing.T, dice *rand.Rand, lose int32, reply string, call func(context.Context, string, *http.Client) error) (sends int) {
	var effects, sent atomic.Int32
	quiet := slog.New(slog.DiscardHandler)
	once := &oncehttp.Middleware{Store: &oncehttp.MemoryStore{}, Logger: quiet}
	act := once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, reply)
	}))
	var network memnet.Network
	listener, err := network.Listen("api.test:80")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sent.Add(1) > lose {
			act.ServeHTTP(w, r)
			return
		}
		act.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	})}
	go srv.Serve(listener)
	base := &http.Transport{DialContext: network.DialContext}

	store := &oncehttp.MemoryStore{}
	attempts, below, asks := 1+dice.IntN(3), 1+dice.IntN(3), 1+dice.IntN(4)
	resume := dice.IntN(2) == 0
	turn := func() *toolcall.Turn {
		hc := &http.Client{Transport: &oncehttp.Transport{Base: base, Attempts: below, Logger: quiet}}
		r := &toolcall.Runner{Scope: "acme/support-agent", Store: store, Attempts: attempts, Logger: quiet}
		if err := r.Register(toolcall.Tool{Name: "refund", Effect: toolcall.Keyed, Timeout: time.Minute, Call: func(ctx context.Context, _ json.RawMessage) (any, error) {
			if err := call(ctx, "http://api.test", hc); err != nil {
				return nil, toolcall.Transient(err)
			}
			return "refunded", nil
		}}); err != nil {
			t.Fatal(err)
		}
		return r.Turn("turn_01", toolcall.Budget{})
	}
	at := turn()
	for range asks {
		got := at.Do(t.Context(), toolcall.Call{Tool: "refund", Args: json.RawMessage(`{"order":"A-17"}`)})[0]
		if got.Status != toolcall.StatusOK && got.Outcome != toolcall.OutcomeUnknown {
			t.Errorf("after a lost reply the model was told %s, outcome %s", got.Status, got.Outcome)
		}
		if resume {
			at = turn() // another process
		}
	}
	base.CloseIdleConnections()
	srv.Close()
	synctest.Wait()
	if n := effects.Load(); n != 1 {
		t.Errorf("%d effects after %d sends, want 1", n, sent.Load())
	}
	return int(sent.Load())
}
