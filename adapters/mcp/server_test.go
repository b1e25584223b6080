package oncemcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/oncehttp/oncehttp"
	oncemcp "github.com/oncehttp/oncehttp/adapters/mcp"
)

func TestACallTakesEffectOnceForItsKey(t *testing.T) {
	for name, way := range transports {
		t.Run(name, func(t *testing.T) {
			leaves(t)
			s := newShop(nil)
			connect := way(t, s)
			cs := open(t, connect)
			type step struct {
				what, tool string
				key        any
				args       string
				refused    string
				effects    int // of the tool, from then on
			}
			for _, st := range []step{
				{"the first call runs", "raw", "k1", `{"order":"A-17","amount":100}`, "", 1},
				{"a repeat does not", "raw", "k1", `{"order":"A-17","amount":100}`, "", 1},
				{"equal arguments are a repeat", "raw", "k1", `{"amount":1.00e2, "order":"A-17"}`, "", 1},
				{"a quoted key is the same key", "raw", `"k1"`, `{"order":"A-17","amount":100}`, "", 1},
				{"other arguments are refused", "raw", "k1", `{"order":"A-17","amount":90}`, "key-reused", 1},
				{"an integer that a float64 cannot tell apart is another argument", "raw", "k2", `{"n":9007199254740993}`, "", 2},
				{"", "raw", "k2", `{"n":9007199254740992}`, "key-reused", 2},
				{"another tool is refused", "fails", "k1", `{"order":"A-17","amount":100}`, "key-reused", 0},
				{"another key is another call", "raw", "k3", `{"order":"A-17","amount":100}`, "", 3},
				{"without a key each call runs", "raw", nil, `{}`, "", 4},
				{"", "raw", nil, `{}`, "", 5},
				{"an empty key", "raw", "", `{}`, "malformed-key", 5},
				{"a key that is a number", "raw", 7, `{}`, "malformed-key", 5},
				{"a key with a space", "raw", "a b", `{}`, "malformed-key", 5},
				{"a key of 256 bytes", "raw", strings.Repeat("k", 256), `{}`, "malformed-key", 5},
				{"a key that is null", "raw", json.RawMessage("null"), `{}`, "malformed-key", 5},
				{"a typed tool", "refund", "k4", `{"order":"A-17","amount":100}`, "", 1},
				{"", "refund", "k4", `{"order":"A-17","amount":100}`, "", 1},
			} {
				_, err := call(cs, st.tool, st.key, st.args)
				if kind(err) != st.refused || (err != nil) != (st.refused != "") {
					t.Errorf("%s: got error %v (%q), want %q", st.what, err, kind(err), st.refused)
				}
				if got := s.total(st.tool); got != st.effects {
					t.Errorf("%s: got %d effects, want %d", st.what, got, st.effects)
				}
			}
			// Another session is another connection of the same caller.
			if _, err := call(open(t, connect), "raw", "k1", `{"order":"A-17","amount":100}`); err != nil || s.total("raw") != 5 {
				t.Errorf("in another session: got error %v and %d effects, want 5", err, s.total("raw"))
			}
			if _, err := call(cs, "raw", "k9", `{"a":1,"a":2}`); err == nil || s.total("raw") != 5 {
				t.Errorf("duplicate members: got error %v and %d effects, want an error and 5", err, s.total("raw"))
			}
		})
	}
}

func TestARepeatGetsTheFirstResult(t *testing.T) {
	for name, way := range transports {
		t.Run(name, func(t *testing.T) {
			s := newShop(nil)
			cs := open(t, way(t, s))
			const args = `{"id":9007199254740993}`
			for _, tool := range []string{"raw", "fails", "breaks", "none", "panics"} {
				first, err1 := call(cs, tool, tool, args)
				again, err2 := call(cs, tool, tool, args)
				if s.total(tool) != 1 {
					t.Errorf("%s: got %d effects, want 1", tool, s.total(tool))
				}
				if (err1 == nil) != (err2 == nil) || err1 != nil && err1.Error() != err2.Error() {
					t.Errorf("%s: got error %v, want that of the first call: %v", tool, err2, err1)
				}
				if err1 != nil {
					continue
				}
				if first.Meta[oncemcp.Replayed] != nil || again.Meta[oncemcp.Replayed] != true {
					t.Errorf("%s: got _meta %v and %v, want the second one replayed", tool, first.Meta, again.Meta)
				}
				delete(again.Meta, oncemcp.Replayed)
				if len(again.Meta) == 0 {
					again.Meta = first.Meta
				}
				if !reflect.DeepEqual(first, again) {
					t.Errorf("%s: got %+v, want the first result %+v", tool, again, first)
				}
			}
			var wire *jsonrpc.Error
			if _, err := call(cs, "breaks", "breaks", args); !errors.As(err, &wire) || wire.Code != 77 {
				t.Errorf("got %v, want the tool's own code", err)
			}
		})
	}
}

// The SDK's client decodes numbers as float64, so the bytes are read off the wire.
func TestIntegersKeepTheirDigitsInARepeat(t *testing.T) {
	s := newShop(nil)
	connect := func(key string) (replies []string) {
		c, far := sdk.NewInMemoryTransports()
		ss, err := s.server.Connect(t.Context(), far, nil)
		if err != nil {
			t.Fatal(err)
		}
		cs, err := client.Connect(t.Context(), tapped{c, func(m jsonrpc.Message) {
			if r, ok := m.(*jsonrpc.Response); ok {
				replies = append(replies, string(r.Result))
			}
		}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		replies = nil
		for range 2 {
			if _, err := call(cs, "raw", key, `{"id":9007199254740993}`); err != nil {
				t.Fatal(err)
			}
		}
		cs.Close()
		ss.Wait()
		return replies
	}
	got := connect("k")
	for _, r := range got {
		for _, part := range []string{`"structuredContent":{"big":9007199254740993}`, `"io.example/big":9007199254740993`, `{\"id\":9007199254740993}`} {
			if !strings.Contains(r, part) {
				t.Errorf("got %s without %s", r, part)
			}
		}
	}
	if len(got) != 2 {
		t.Errorf("got %d replies, want 2", len(got))
	}
}

// A tapped transport shows what comes in.
type tapped struct {
	sdk.Transport
	see func(jsonrpc.Message)
}

func (t tapped) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	return tappedConn{c, t.see}, err
}

type tappedConn struct {
	sdk.Connection
	see func(jsonrpc.Message)
}

func (c tappedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	c.see(m)
	return m, err
}

func TestTwinsAttach(t *testing.T) {
	for name, way := range transports {
		t.Run(name, func(t *testing.T) {
			leaves(t)
			s := newShop(nil)
			s.once.Wait = time.Minute
			connect := way(t, s)
			twins := 100
			if name != "in memory" {
				twins = 20
			}
			var wg sync.WaitGroup
			sessions := []*sdk.ClientSession{open(t, connect), open(t, connect)}
			texts := make([]string, twins)
			for i := range twins {
				wg.Go(func() {
					res, err := call(sessions[i%2], "slow", "k", `{"a":1}`)
					if err != nil {
						t.Error(err)
						return
					}
					texts[i] = res.Content[0].(*sdk.TextContent).Text
				})
			}
			<-s.started
			close(s.hold)
			wg.Wait()
			for _, text := range texts {
				if text != "slow and done" {
					t.Errorf("got %q", text)
				}
			}
			if s.total("slow") != 1 {
				t.Errorf("got %d effects, want 1", s.total("slow"))
			}
		})
	}
}

func TestATwinThatWaitsTooLongIsToldThatTheCallRuns(t *testing.T) {
	s := newShop(nil)
	s.once.Wait = time.Millisecond
	cs := open(t, inMemory(t, s))
	var wg sync.WaitGroup
	wg.Go(func() { call(cs, "slow", "k", `{}`) })
	<-s.started
	if _, err := call(cs, "slow", "k", `{}`); kind(err) != "in-progress" {
		t.Errorf("got %v, want in-progress", err)
	}
	close(s.hold)
	wg.Wait()
}

func TestACallerThatLeavesDoesNotStopTheTool(t *testing.T) {
	for name, way := range transports {
		t.Run(name, func(t *testing.T) {
			leaves(t)
			s := newShop(nil)
			cs := open(t, way(t, s))
			ctx, leave := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				cs.CallTool(ctx, &sdk.CallToolParams{Meta: sdk.Meta{oncemcp.Key: "k"}, Name: "slow", Arguments: json.RawMessage(`{}`)})
			})
			<-s.started
			leave()
			wg.Wait()
			wg.Go(func() {
				res, err := call(cs, "slow", "k", `{}`)
				if err != nil || res.Meta[oncemcp.Replayed] != true {
					t.Errorf("got %+v, %v, want the result of the first call", res, err)
				}
			})
			close(s.hold)
			wg.Wait()
			if s.total("slow") != 1 {
				t.Errorf("got %d effects, want 1", s.total("slow"))
			}
		})
	}
}

func TestAPanicEndsNothingAndTellsNothing(t *testing.T) {
	for name, way := range transports {
		t.Run(name, func(t *testing.T) {
			s := newShop(nil)
			s.server.AddPrompt(&sdk.Prompt{Name: "p"}, func(context.Context, *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
				panic("the password is hunter2")
			})
			cs := open(t, way(t, s))
			_, unkeyed := call(cs, "panics", nil, `{}`)
			_, keyed := call(cs, "panics", "k", `{}`)
			_, prompt := cs.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "p"})
			for what, err := range map[string]error{"without a key": unkeyed, "with one": keyed, "another method": prompt} {
				if err == nil || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("%s: got error %v", what, err)
				}
			}
			if _, err := call(cs, "raw", nil, `{}`); err != nil {
				t.Errorf("after it: %v", err)
			}
		})
	}
}

type panicky struct{}

func (panicky) MarshalJSON() ([]byte, error) { panic("the password is hunter2") }

// What the tool returns and who is asking are found out by the server's code too.
func TestAPanicBesideTheToolEndsNothingEither(t *testing.T) {
	s := newShop(func(r *sdk.CallToolRequest) string {
		if r.Params.Name == "raw" {
			panic("the password is hunter2")
		}
		return "acme"
	})
	s.server.AddTool(&sdk.Tool{Name: "marshals", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		s.did("marshals", nil)
		return &sdk.CallToolResult{StructuredContent: panicky{}}, nil
	})
	cs := open(t, inMemory(t, s))
	if _, err := call(cs, "raw", "k", `{}`); err == nil || strings.Contains(err.Error(), "hunter2") || s.total("raw") != 0 {
		t.Errorf("who is asking: got %v, %d effects, want an error and none", err, s.total("raw"))
	}
	for range 2 {
		if _, err := call(cs, "marshals", "k", `{}`); err == nil || strings.Contains(err.Error(), "hunter2") || s.total("marshals") != 1 {
			t.Errorf("what it returns: got %v, %d effects, want an error and one", err, s.total("marshals"))
		}
	}
}

// heads are those of the records.
type heads struct {
	oncehttp.MemoryStore
	all []string
}

func (h *heads) Complete(ctx context.Context, op oncehttp.Op, head, body []byte, keep time.Duration) error {
	h.all = append(h.all, string(head))
	return h.MemoryStore.Complete(ctx, op, head, body, keep)
}

// A caller may ask for a tool by any name.
func TestANameThatACallerMadeUpIsBounded(t *testing.T) {
	store := new(heads)
	cs := open(t, inMemory(t, newShopOn(store, nil)))
	if _, err := call(cs, "raw", "k1", `{}`); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{strings.Repeat("x", 1<<20), "\x1b[2Jgone"} {
		if _, err := call(cs, name, fmt.Sprint("made-up-", i), `{}`); err == nil {
			t.Error("a tool that there is not answered")
		}
	}
	if len(store.all) != 3 || !strings.Contains(store.all[0], `"tool":"raw"`) || len(store.all[1]) > 300 || !strings.Contains(store.all[2], `"tool":"_[2Jgone"`) {
		t.Errorf("the heads are %.400q", store.all)
	}
}

func TestAToolMaySayThatNothingHappened(t *testing.T) {
	s := newShop(nil)
	cs := open(t, inMemory(t, s))
	for range 3 {
		if _, err := call(cs, "frees", "k", `{}`); err != nil {
			t.Error(err)
		}
	}
	if s.total("frees") != 3 {
		t.Errorf("got %d runs, want 3", s.total("frees"))
	}
}

// With the protocol's multi round-trip requests a call comes again, under its key.
func TestAToolThatAsksForInputTakesEffectOnce(t *testing.T) {
	for name, way := range transports {
		if strings.Contains(name, "plain JSON") {
			continue // a server that answers without a stream cannot ask a client of this SDK
		}
		t.Run(name, func(t *testing.T) {
			s := newShop(nil)
			cs := open(t, way(t, s))
			for range 2 {
				res, err := call(cs, "asks", "k", `{}`)
				if err != nil || res.Content[0].(*sdk.TextContent).Text != "1" {
					t.Errorf("got %+v, %v", res, err)
				}
			}
			if s.total("asks") != 1 {
				t.Errorf("got %d effects, want 1", s.total("asks"))
			}
		})
	}
}

func TestACallerGetsNobodyElsesResult(t *testing.T) {
	header := func(name string) func(*http.Request, string) {
		return func(r *http.Request, v string) { r.Header.Set(name, v) }
	}
	verified := auth.RequireBearerToken(func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		user, _, _ := strings.Cut(token, "-")
		return &auth.TokenInfo{UserID: user, Expiration: time.Now().Add(time.Hour)}, nil
	}, nil)
	for _, c := range []struct {
		what            string
		scope           func(*sdk.CallToolRequest) string
		wrap            func(http.Handler) http.Handler
		set             func(*http.Request, string)
		first, again    string // credentials
		effects         int
		refused, absent string
	}{
		{what: "two users of verified tokens have a key each", wrap: verified, set: header("Authorization"), first: "Bearer ann-1", again: "Bearer bob-1", effects: 2},
		{what: "a token that was renewed is its user's", wrap: verified, set: header("Authorization"), first: "Bearer ann-1", again: "Bearer ann-2", effects: 1},
		{what: "an unverified credential binds the record", set: header("Authorization"), first: "Bearer a", again: "Bearer b", effects: 1, refused: "principal-changed"},
		{what: "the same credential does not", set: header("Authorization"), first: "Bearer a", again: "Bearer a", effects: 1},
		{what: "an API key binds it", set: header("X-Api-Key"), first: "a", again: "b", effects: 1, refused: "principal-changed"},
		{what: "a cookie binds it", set: header("Cookie"), first: "a=1", again: "a=2", effects: 1, refused: "principal-changed"},
		{what: "a scope of the server's own", scope: func(r *sdk.CallToolRequest) string { return r.Extra.Header.Get("Tenant") }, set: header("Tenant"), first: "a", again: "b", effects: 2},
		{what: "an empty scope is refused", scope: func(r *sdk.CallToolRequest) string { return r.Extra.Header.Get("Tenant") }, set: header("Tenant"), first: "a", again: "", effects: 1, refused: "-"},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newShop(c.scope)
			var h http.Handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.server }, nil)
			if c.wrap != nil {
				h = c.wrap(h)
			}
			srv := httptest.NewServer(h)
			defer srv.Close()
			var errs []error
			for _, credential := range []string{c.first, c.again} {
				hc := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
					r = r.Clone(r.Context())
					c.set(r, credential)
					return http.DefaultTransport.RoundTrip(r)
				})}
				cs, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: srv.URL, HTTPClient: hc, DisableStandaloneSSE: true}, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer cs.Close()
				_, err = call(cs, "raw", "k", `{}`)
				errs = append(errs, err)
			}
			if errs[0] != nil || (errs[1] != nil) != (c.refused != "") || c.refused != "-" && kind(errs[1]) != c.refused {
				t.Errorf("got errors %v, want %q", errs, c.refused)
			}
			if got := s.total("raw"); got != c.effects {
				t.Errorf("got %d effects, want %d", got, c.effects)
			}
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

var _ oncehttp.Transactor = (*ledger)(nil)

// A ledger is a store with transactions that notes how they end.
type ledger struct {
	oncehttp.MemoryStore
	ends []string
}

func (l *ledger) Transact(ctx context.Context, op oncehttp.Op, keep time.Duration, work func(context.Context) ([]byte, []byte, oncehttp.TxEnd)) error {
	head, body, end := work(ctx)
	l.ends = append(l.ends, fmt.Sprint("commit ", end == oncehttp.TxCommit))
	if end != oncehttp.TxCommit {
		return l.Release(ctx, op)
	}
	return l.Complete(ctx, op, head, body, keep)
}

func TestInATransactionAFailureRollsBack(t *testing.T) {
	store := new(ledger)
	s := newShopOn(store, nil)
	cs := open(t, inMemory(t, s))
	for _, tool := range []string{"raw", "fails", "breaks", "panics"} {
		res, err := call(cs, tool, tool, `{}`)
		if tool == "raw" && err != nil || tool == "fails" && (err != nil || !res.IsError) || tool == "breaks" && err == nil {
			t.Errorf("%s: got %+v, %v", tool, res, err)
		}
	}
	if got, want := strings.Join(store.ends, ", "), "commit true, commit false, commit false, commit false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
