package conformance

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/anthropics/anthropic-sdk-go/v2"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"
	"github.com/stripe/stripe-go/v84"

	"github.com/oncehttp/oncehttp"
)

// A lossy server runs its handler, and loses the first replies.
type lossy struct {
	*httptest.Server
	effects, sends atomic.Int32
}

func newLossy(t *testing.T, lose int32, reply string, protected bool) *lossy {
	s := &lossy{}
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.effects.Add(1)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, reply)
	})
	if protected {
		h = (&oncehttp.Middleware{Store: &oncehttp.MemoryStore{}, Logger: slog.New(slog.DiscardHandler)}).Handler(h)
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.sends.Add(1) > lose {
			h.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	t.Cleanup(s.Close)
	return s
}

// sdks are the callers. Each makes one call with its own retries as they come.
var sdks = []struct {
	name  string
	reply string
	call  func(ctx context.Context, url string, hc *http.Client) error
}{
	{"openai-go", `{"id":"c1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"done"}}]}`,
		func(ctx context.Context, url string, hc *http.Client) error {
			client := openai.NewClient(openaioption.WithBaseURL(url), openaioption.WithAPIKey("test"), openaioption.WithHTTPClient(hc))
			reply, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
				Model:    "m",
				Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("refund A-17")},
			})
			if err == nil && reply.Choices[0].Message.Content != "done" {
				err = fmt.Errorf("reply: %+v", reply)
			}
			return err
		}},
	{"anthropic-sdk-go", `{"id":"m1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"done"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}`,
		func(ctx context.Context, url string, hc *http.Client) error {
			client := anthropic.NewClient(anthropicoption.WithBaseURL(url), anthropicoption.WithAPIKey("test"), anthropicoption.WithHTTPClient(hc))
			reply, err := client.Messages.New(ctx, anthropic.MessageNewParams{
				Model:     "m",
				MaxTokens: 10,
				Messages:  []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("refund A-17"))},
			})
			if err == nil && reply.Content[0].Text != "done" {
				err = fmt.Errorf("reply: %+v", reply)
			}
			return err
		}},
	{"stripe-go", `{"id":"re_1","object":"refund","amount":100,"status":"succeeded"}`,
		func(ctx context.Context, url string, hc *http.Client) error {
			quiet := &stripe.LeveledLogger{Level: stripe.LevelNull}
			backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{URL: stripe.String(url), HTTPClient: hc, LeveledLogger: quiet})
			client := stripe.NewClient("sk_test_1", stripe.WithBackends(&stripe.Backends{API: backend, Connect: backend, Uploads: backend, MeterEvents: backend}))
			reply, err := client.V1Refunds.Create(ctx, &stripe.RefundCreateParams{Charge: stripe.String("ch_1"), Amount: stripe.Int64(100)})
			if err == nil && reply.ID != "re_1" {
				err = fmt.Errorf("reply: %+v", reply)
			}
			return err
		}},
}

// Whoever repeats, the SDK or the Transport below it, and also when the whole
// call is made again, as a model does: one effect.
func TestSDKsThatRetryOnTheirOwnHaveOneEffect(t *testing.T) {
	for _, sdk := range sdks {
		for _, below := range []struct {
			name     string
			attempts int
		}{{"the SDK alone repeats", 1}, {"the Transport repeats first", 3}} {
			t.Run(sdk.name+", "+below.name, func(t *testing.T) {
				t.Parallel()
				srv := newLossy(t, 1, sdk.reply, true)
				hc := &http.Client{Transport: &oncehttp.Transport{Attempts: below.attempts, Logger: slog.New(slog.DiscardHandler)}}
				for call := range 3 { // the runtime, and then the model twice
					ctx := oncehttp.WithAction(t.Context(), "turn 1, refund A-17")
					if err := sdk.call(ctx, srv.URL, hc); err != nil {
						t.Fatalf("call %d: %v", call+1, err)
					}
				}
				if got := srv.effects.Load(); got != 1 {
					t.Errorf("%d effects after %d sends, want 1", got, srv.sends.Load())
				}
				if got := srv.sends.Load(); got != 4 {
					t.Errorf("%d sends, want 4: one lost, its repeat, and the model's two", got)
				}
			})
		}
	}
}

// The test above could pass because these SDKs do not repeat, or send keys that
// survive by themselves. They do repeat, and they do not.
func TestTheSameSDKsHaveSeveralEffectsWithoutUs(t *testing.T) {
	for _, sdk := range sdks {
		t.Run(sdk.name, func(t *testing.T) {
			t.Parallel()
			srv := newLossy(t, 1, sdk.reply, true)
			for call := range 3 {
				if err := sdk.call(t.Context(), srv.URL, &http.Client{}); err != nil {
					t.Fatalf("call %d: %v", call+1, err)
				}
			}
			if got := srv.effects.Load(); got < 3 {
				t.Errorf("%d effects, want one for each of the three calls at least", got)
			}
			if got := srv.sends.Load(); got != 4 {
				t.Errorf("%d sends, want 4: the SDK repeats the one that is lost", got)
			}
		})
	}
}

// A key that an SDK mints for itself is another one for every call; the action's
// replaces it.
func TestTheActionsKeyReplacesTheSDKs(t *testing.T) {
	var keys []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, sdks[2].reply)
	}))
	defer srv.Close()
	var log strings.Builder
	hc := &http.Client{Transport: &oncehttp.Transport{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	for range 2 {
		if err := sdks[2].call(oncehttp.WithAction(t.Context(), "refund A-17"), srv.URL, hc); err != nil {
			t.Fatal(err)
		}
	}
	if len(keys) != 2 || keys[0] != keys[1] || !strings.HasPrefix(keys[0], "oa1_") {
		t.Errorf("keys = %v, want the action's twice", keys)
	}
	if !strings.Contains(log.String(), "replaces") {
		t.Errorf("nothing is logged of the SDK's own key:\n%s", &log)
	}
}
