package oncemcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/oncehttp/oncehttp"
	oncemcp "github.com/oncehttp/oncehttp/adapters/mcp"
	"github.com/oncehttp/oncehttp/toolcall"
)

func TestHintsOfAServerThatNobodyTrustsLoosenNothing(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		what               string
		hints              *sdk.ToolAnnotations
		untrusted, trusted toolcall.Effect
	}{
		{"no annotations", nil, toolcall.Unsafe, toolcall.Unsafe},
		{"nothing said", &sdk.ToolAnnotations{}, toolcall.Unsafe, toolcall.Unsafe},
		{"read-only", &sdk.ToolAnnotations{ReadOnlyHint: true}, toolcall.Unsafe, toolcall.Read},
		{"idempotent", &sdk.ToolAnnotations{IdempotentHint: true}, toolcall.Unsafe, toolcall.Idempotent},
		{"read-only, where the other hints mean nothing", &sdk.ToolAnnotations{ReadOnlyHint: true, DestructiveHint: &yes}, toolcall.Unsafe, toolcall.Read},
		{"additive is not repeatable", &sdk.ToolAnnotations{DestructiveHint: &no}, toolcall.Unsafe, toolcall.Unsafe},
		{"destructive and idempotent", &sdk.ToolAnnotations{DestructiveHint: &yes, IdempotentHint: true}, toolcall.Unsafe, toolcall.Idempotent},
		{"a closed world", &sdk.ToolAnnotations{OpenWorldHint: &no}, toolcall.Unsafe, toolcall.Unsafe},
	} {
		for _, trusted := range []bool{false, true} {
			want := map[bool]toolcall.Effect{false: c.untrusted, true: c.trusted}[trusted]
			if got := (&oncemcp.Client{Trusted: trusted}).Tool(&sdk.Tool{Name: "t", Annotations: c.hints}).Effect; got != want {
				t.Errorf("%s, trusted %v: got %v, want %v", c.what, trusted, got, want)
			}
			for _, declared := range []toolcall.Effect{toolcall.Unsafe, toolcall.Keyed, toolcall.Idempotent, toolcall.Read} {
				m := &oncemcp.Client{Trusted: trusted, Effects: map[string]toolcall.Effect{"t": declared}}
				if got := m.Tool(&sdk.Tool{Name: "t", Annotations: c.hints}).Effect; got != declared {
					t.Errorf("%s, trusted %v, declared %v: got %v", c.what, trusted, declared, got)
				}
			}
		}
	}
}

// runner has the shop's tools, all Keyed.
func runner(t *testing.T, store oncehttp.Store, session func(context.Context) (*sdk.ClientSession, error)) *toolcall.Runner {
	t.Helper()
	c := &oncemcp.Client{Session: session, Timeout: 20 * time.Second, Effects: make(map[string]toolcall.Effect)}
	r := &toolcall.Runner{Scope: "acme/agent", Store: store, Logger: quiet, BackoffBase: time.Millisecond}
	for t, err := range open(t, session).Tools(t.Context(), nil) {
		if err != nil {
			panic(err)
		}
		c.Effects[t.Name] = toolcall.Keyed
		if err := r.Register(c.Tool(t)); err != nil {
			panic(err)
		}
	}
	return r
}

func one(t *testing.T, turn *toolcall.Turn, tool, args string) toolcall.Result {
	t.Helper()
	return turn.Do(t.Context(), toolcall.Call{Tool: tool, Args: json.RawMessage(args)})[0]
}

func told(r toolcall.Result) string {
	return strings.Join([]string{string(r.Status), string(r.ErrorType), string(r.Outcome)}, " ")
}

func TestARunnerCallsToolsUnderItsKeys(t *testing.T) {
	for name, way := range transports {
		t.Run(name, func(t *testing.T) {
			leaves(t)
			s := newShop(nil)
			session := way(t, s)
			cs := open(t, session)
			r := runner(t, new(oncehttp.MemoryStore), func(context.Context) (*sdk.ClientSession, error) { return cs, nil })
			turn := r.Turn("turn_01", toolcall.Budget{})
			res := one(t, turn, "raw", `{"id":9007199254740993}`)
			if got, want := string(res.Result), `{"n":1,"args":{"id":9007199254740993}}`; got != want || told(res) != "ok  applied" {
				t.Errorf("got %s %s, want ok and %s", told(res), got, want)
			}
			if res := one(t, turn, "raw", `{"id":9007199254740993.0}`); !res.Replayed || s.total("raw") != 1 {
				t.Errorf("the model's repeat: got %s, replayed %v, %d effects", told(res), res.Replayed, s.total("raw"))
			}
			if one(t, turn, "raw", `{"id":9007199254740992}`); s.total("raw") != 2 {
				t.Errorf("another integer: got %d effects, want 2", s.total("raw"))
			}
			if one(t, r.Turn("turn_02", toolcall.Budget{}), "raw", `{"id":9007199254740993}`); s.total("raw") != 3 {
				t.Errorf("the next turn: got %d effects, want 3", s.total("raw"))
			}
			// What the agent's own store has lost, the server still knows.
			lost := runner(t, new(oncehttp.MemoryStore), func(context.Context) (*sdk.ClientSession, error) { return cs, nil })
			if res := one(t, lost.Turn("turn_01", toolcall.Budget{}), "raw", `{"id":9007199254740993}`); told(res) != "ok  applied" || s.total("raw") != 3 {
				t.Errorf("resumed without its store: got %s, %d effects, want 3", told(res), s.total("raw"))
			}
			if res := one(t, turn, "refund", `{"order":"A-17","amount":100}`); string(res.Result) != `{"amount":100,"order":"A-17"}` {
				t.Errorf("a typed tool: got %s", res.JSON())
			}
			for i := range r.Audit() {
				if p := r.Audit()[i].Problem; p != "" {
					t.Errorf("audit of %s: %s", r.Audit()[i].Tool, p)
				}
			}
		})
	}
}

func TestHowACallEndedIsTold(t *testing.T) {
	s := newShop(nil)
	cs := open(t, inMemory(t, s))
	r := runner(t, new(oncehttp.MemoryStore), func(context.Context) (*sdk.ClientSession, error) { return cs, nil })
	for _, c := range []struct{ what, tool, args, want string }{
		{"a success", "raw", `{}`, "ok  applied"},
		{"a tool that says it failed", "fails", `{}`, "failed permanent unknown"},
		{"a tool that panicked", "panics", `{}`, "failed permanent unknown"},
		{"a tool's own protocol error", "breaks", `{}`, "failed permanent unknown"},
		{"arguments that its schema does not take", "refund", `{"amount":"x"}`, "failed permanent unknown"},
	} {
		res := one(t, r.Turn(c.what, toolcall.Budget{}), c.tool, c.args)
		if told(res) != c.want {
			t.Errorf("%s: got %s (%v), want %s", c.what, told(res), res.Err, c.want)
		}
		if strings.Contains(string(res.JSON()), "hunter2") {
			t.Errorf("%s: the model is given the server's words: %s", c.what, res.JSON())
		}
	}
	ctx := t.Context()
	for _, c := range []struct {
		what string
		tool toolcall.Tool
		args string
		want string
	}{
		{"a tool that the server does not have", (&oncemcp.Client{Session: func(context.Context) (*sdk.ClientSession, error) { return cs, nil }}).Tool(&sdk.Tool{Name: "gone"}), `{}`, "failed bad_arguments none"},
		{"no session", (&oncemcp.Client{Session: func(context.Context) (*sdk.ClientSession, error) { return nil, io.EOF }}).Tool(&sdk.Tool{Name: "raw"}), `{}`, "failed transient none"},
		{"a failure that the caller knows", (&oncemcp.Client{Session: func(context.Context) (*sdk.ClientSession, error) { return cs, nil },
			Failed: func(*sdk.CallToolResult) error { return toolcall.Permanent(errors.New("declined")) }}).Tool(&sdk.Tool{Name: "fails"}), `{}`, "failed permanent none"},
	} {
		r := &toolcall.Runner{Scope: "s", Store: new(oncehttp.MemoryStore), Logger: quiet, Attempts: 1}
		if err := r.Register(c.tool); err != nil {
			t.Fatal(err)
		}
		if res := r.Turn("t", toolcall.Budget{}).Do(ctx, toolcall.Call{Tool: c.tool.Name, Args: json.RawMessage(c.args)})[0]; told(res) != c.want {
			t.Errorf("%s: got %s (%v), want %s", c.what, told(res), res.Err, c.want)
		}
	}
	fine := (&oncemcp.Client{Session: func(context.Context) (*sdk.ClientSession, error) { return cs, nil },
		Failed: func(*sdk.CallToolResult) error { return nil }}).Tool(&sdk.Tool{Name: "fails"})
	if value, err := fine.Call(ctx, json.RawMessage(`{}`)); value == nil || err != nil {
		t.Errorf("a failure that is none to the caller: got %v, %v, want what the tool said", value, err)
	}
}

// A refusal of the server's Middleware is judged by what it says.
func TestARefusalIsTakenAtItsWord(t *testing.T) {
	s := newShop(nil)
	s.once.Wait = time.Millisecond
	cs := open(t, inMemory(t, s))
	session := func(context.Context) (*sdk.ClientSession, error) { return cs, nil }
	key, err := toolcall.Key(nil, "acme/agent", "slow", "turn_01", json.RawMessage(`{}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { call(cs, "slow", key, `{}`) })
	<-s.started
	r := runner(t, new(oncehttp.MemoryStore), session)
	if res := one(t, r.Turn("turn_01", toolcall.Budget{}), "slow", `{}`); told(res) != "failed transient unknown" || res.Attempts != 3 {
		t.Errorf("in progress: got %s after %d attempts, want transient, unknown, 3", told(res), res.Attempts)
	}
	close(s.hold)
	wg.Wait()
	call(cs, "raw", "tc1_x", `{}`)
	used, _ := toolcall.Key(nil, "acme/agent", "raw", "turn_01", json.RawMessage(`{"a":1}`), 0)
	call(cs, "raw", used, `{"a":2}`)
	if res := one(t, r.Turn("turn_01", toolcall.Budget{}), "raw", `{"a":1}`); told(res) != "failed permanent unknown" || res.Attempts != 1 {
		t.Errorf("key reused: got %s after %d attempts (%v)", told(res), res.Attempts, res.Err)
	}
}

func TestALostReplyOverHTTPIsOneEffect(t *testing.T) {
	type way struct {
		what string
		lose func(*http.Response) (*http.Response, error)
		over func(http.RoundTripper) http.RoundTripper
		opts *sdk.StreamableHTTPOptions
	}
	gone := func(resp *http.Response) (*http.Response, error) {
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return nil, errors.New("connection reset by peer")
	}
	bad := func(resp *http.Response) (*http.Response, error) {
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return &http.Response{StatusCode: 504, Header: http.Header{}, Body: http.NoBody, Request: resp.Request, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}, nil
	}
	cut := func(resp *http.Response) (*http.Response, error) {
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		resp.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), errReader{}))
		return resp, nil
	}
	plain := func(rt http.RoundTripper) http.RoundTripper { return rt }
	once := func(rt http.RoundTripper) http.RoundTripper {
		return &oncehttp.Transport{Base: rt, BackoffBase: time.Millisecond, Logger: quiet}
	}
	jsonOnly := &sdk.StreamableHTTPOptions{JSONResponse: true}
	for _, c := range []way{
		{"the connection breaks", gone, plain, nil},
		{"the connection breaks, under a Transport that sends tools/call again", gone, once, nil},
		{"a gateway gives up", bad, plain, nil},
		{"a gateway gives up, under a Transport", bad, once, nil},
		{"the reply is cut", cut, plain, jsonOnly},
	} {
		t.Run(c.what, func(t *testing.T) {
			leaves(t)
			s := newShop(nil)
			var calls, lost atomic.Int64
			base := roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Body == nil {
					return http.DefaultTransport.RoundTrip(r)
				}
				b, err := io.ReadAll(r.Body)
				r.Body.Close()
				if err != nil {
					return nil, err
				}
				r = r.Clone(r.Context())
				r.Body = io.NopCloser(strings.NewReader(string(b)))
				resp, err := http.DefaultTransport.RoundTrip(r)
				if err != nil || !strings.Contains(string(b), `"tools/call"`) {
					return resp, err
				}
				if calls.Add(1); calls.Load() <= 2 {
					lost.Add(1)
					return c.lose(resp)
				}
				return resp, nil
			})
			connect := overHTTP(t, s, &http.Client{Transport: c.over(base)}, c.opts)
			// A session that broke is replaced.
			var mu sync.Mutex
			var cs *sdk.ClientSession
			session := func(ctx context.Context) (_ *sdk.ClientSession, err error) {
				mu.Lock()
				defer mu.Unlock()
				if cs == nil || cs.Ping(ctx, nil) != nil {
					cs, err = connect(ctx)
				}
				return cs, err
			}
			r := runner(t, new(oncehttp.MemoryStore), session)
			res := one(t, r.Turn("turn_01", toolcall.Budget{}), "raw", `{"id":9007199254740993}`)
			if told(res) != "ok  applied" || !strings.Contains(string(res.Result), "9007199254740993") {
				t.Errorf("got %s %s (%v)", told(res), res.Result, res.Err)
			}
			if s.total("raw") != 1 || lost.Load() != 2 || calls.Load() != 3 {
				t.Errorf("got %d effects of %d calls, %d of them lost, want 1 of 3, 2", s.total("raw"), calls.Load(), lost.Load())
			}
		})
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
