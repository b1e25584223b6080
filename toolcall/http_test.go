package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/oncetest"
)

func TestAStatusTellsWhatIsKnown(t *testing.T) {
	problem := func(kind string, retry bool, outcome string) string {
		return fmt.Sprintf(`{"type":"urn:oncehttp:%s","retry_same_key":%v,"outcome":%q}`, kind, retry, outcome)
	}
	for _, row := range []struct {
		status int
		header string // name, colon, value
		body   string
		want   string // type and outcome
	}{
		{200, "", `{"a":1}`, " applied"},
		{204, "", "", " applied"},
		{101, "", "", "permanent unknown"},
		{301, "", "", "permanent unknown"},
		{302, "", "", "permanent unknown"},
		{303, "", "", "permanent unknown"},
		{307, "", "", "permanent none"},
		{308, "", "", "permanent none"},
		{400, "", "", "bad_arguments none"},
		{422, "", "", "bad_arguments none"},
		{401, "", "", "permanent none"},
		{404, "", "", "permanent none"},
		{408, "", "", "transient unknown"},
		{409, "", "", "permanent none"},
		{409, "Retry-After: 1", "", "transient unknown"},
		{425, "", "", "transient none"},
		{429, "Retry-After: 7", "", "transient none"},
		{500, "", "", "transient unknown"},
		{500, "Idempotent-Replayed: true", "", "permanent unknown"},
		{500, "Idempotency-Status: executed", "", "permanent unknown"},
		{501, "", "", "permanent unknown"},
		{503, "Retry-After: 7", "", "transient unknown"},
		{422, "Content-Type: application/problem+json", problem("key-reused", false, "unknown"), "permanent unknown"},
		{409, "Content-Type: application/problem+json", problem("in-progress", true, "unknown"), "transient unknown"},
		{409, "Content-Type: application/problem+json", problem("response-gone", false, "applied"), "degraded applied"},
		{400, "Content-Type: application/problem+json", problem("malformed-key", false, "none"), "bad_arguments none"},
		{400, "Content-Type: application/problem+json", problem("odd", false, "SECRET"), "permanent unknown"},
		{400, "Content-Type: application/problem+json", `{"type":"about:blank","outcome":"applied"}`, "bad_arguments none"},
	} {
		resp := &http.Response{StatusCode: row.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(row.body))}
		if name, value, ok := strings.Cut(row.header, ": "); ok {
			resp.Header.Set(name, value)
		}
		value, err := HTTP(resp, nil)
		v := classify(Unsafe, value, err, false)
		if got := string(v.typ) + " " + string(v.outcome); got != row.want {
			t.Errorf("%d %s %s: got %s, want %s", row.status, row.header, row.body, got, row.want)
		}
		if row.header == "Retry-After: 7" && v.wait != 7*time.Second {
			t.Errorf("%d: wait %v", row.status, v.wait)
		}
		if err != nil && strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%d: the error quotes the server: %v", row.status, err)
		}
	}
}

func TestAnAdapterRefinesTheTable(t *testing.T) {
	own := Statuses{404: TypeBadArguments, 409: TypeTransient, 500: TypeBadArguments, 403: "odd"}
	for status, want := range map[int]string{404: "bad_arguments none", 409: "transient none", 500: "transient unknown", 403: "permanent none"} {
		_, err := own.HTTP(&http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody}, nil)
		v := classify(Keyed, nil, err, false)
		if got := string(v.typ) + " " + string(v.outcome); got != want {
			t.Errorf("%d: got %s, want %s", status, got, want)
		}
	}
}

// refundOver is a tool that sends its refund through client.
func refundOver(client *http.Client, url string, effect Effect) Tool {
	return Tool{Name: "refund_order", Effect: effect, Timeout: 2 * time.Minute, Note: "test", Call: func(ctx context.Context, args json.RawMessage) (any, error) {
		req, err := http.NewRequestWithContext(ctx, "POST", url+"/refunds", strings.NewReader(string(args)))
		if err != nil {
			return nil, Permanent(err)
		}
		req.Header.Set("Content-Type", "application/json")
		return HTTP(client.Do(req))
	}}
}

// A server that honours keys, behind a network that loses replies. The Transport repeats
// the request, the Runner does not repeat that, and the model does.
func TestAKeyedToolOverATransportMakesOneRefund(t *testing.T) {
	for _, row := range []struct {
		what   string
		faults []oncetest.Option
		calls  []string // what each call of the model comes to
		sends  int
	}{
		{"all is well", nil, []string{"ok  applied use_result", "ok  applied use_result replayed"}, 1},
		{"the reply is lost twice", []oncetest.Option{oncetest.LoseReply().On(1, 2)}, []string{"ok  applied use_result"}, 3},
		{"every reply is lost, until the model tries again", []oncetest.Option{oncetest.LoseReply().On(1, 2, 3)}, []string{"failed transient unknown verify", "ok  applied use_result"}, 4},
		{"no connection at all", []oncetest.Option{oncetest.RefuseConn().On(1, 2, 3)}, []string{"failed transient none inform_user", "ok  applied use_result"}, 4},
		{"lost, then no connection", []oncetest.Option{oncetest.LoseReply().On(1), oncetest.RefuseConn().On(2, 3)}, []string{"failed transient unknown verify", "ok  applied use_result"}, 4},
	} {
		t.Run(row.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				once := &oncehttp.Middleware{Store: new(oncehttp.MemoryStore), Logger: quiet()}
				srv := oncetest.NewServer(t, once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					oncetest.Effect(r)
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(http.StatusCreated)
					io.WriteString(w, `{"refund":9007199254740993}`)
				})), row.faults...)
				client := srv.Client()
				client.Transport = &oncehttp.Transport{Base: client.Transport, Logger: quiet()}
				r := newRunner(t, new(oncehttp.MemoryStore), refundOver(client, srv.URL, Keyed))
				turn := r.Turn("u", Budget{})
				attempts := 0
				for i, want := range row.calls {
					got := turn.Do(t.Context(), call("refund_order", refundArgs))[0]
					if told(got) != want {
						t.Errorf("call %d: got %s, %v, want %s\n%s", i+1, told(got), got.Err, want, srv.Timeline())
					}
					if got.Status == StatusOK && string(got.Result) != `{"refund":9007199254740993}` {
						t.Errorf("call %d: got %s", i+1, got.Result)
					}
					if !got.Replayed {
						attempts += got.Attempts
					}
				}
				if attempts != row.sends || srv.Effects() != 1 {
					t.Errorf("%d attempts, %d effects, want %d and 1\n%s", attempts, srv.Effects(), row.sends, srv.Timeline())
				}
				oncetest.Once(t, srv)
				r.Audit().Check(t) // the key was seen on its way
			})
		})
	}
}

// A turn that is resumed is resumed by another request, or by none.
func TestTheKeyOnTheWireDoesNotDependOnWhereTheTurnRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := oncetest.NewServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), oncetest.LoseReply().Always())
		client := srv.Client()
		client.Transport = &oncehttp.Transport{Base: client.Transport, Attempts: 1, Logger: quiet()}
		store := new(oncehttp.MemoryStore)
		tool := refundOver(client, srv.URL, Keyed)
		do := func(ctx context.Context) {
			newRunner(t, store, tool).Turn("u", Budget{}).Do(ctx, call("refund_order", refundArgs))
		}
		do(t.Context())
		do(oncehttp.WithAction(t.Context(), "a workflow"))
		do(oncehttp.WithKey(t.Context(), "another-key"))
		once := &oncehttp.Middleware{Store: new(oncehttp.MemoryStore), Logger: quiet()}
		inbound := httptest.NewRequest("POST", "/chat", strings.NewReader("hello"))
		inbound.Header.Set(oncehttp.Header, "message-3")
		once.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { do(r.Context()) })).ServeHTTP(httptest.NewRecorder(), inbound)
		keys := map[string]int{}
		for _, r := range srv.Requests() {
			keys[r.Key]++
		}
		if srv.Sends() != 4 || len(keys) != 1 || keys[""] > 0 {
			t.Errorf("%d sends under %d keys, want 4 under one\n%s", srv.Sends(), len(keys), srv.Timeline())
		}
	})
}

// The second attempt finds nothing: that does not say what the first one did.
func TestANotFoundAfterALostReplyIsNotNothing(t *testing.T) {
	for status, want := range map[int]string{404: "failed permanent unknown verify", 422: "failed bad_arguments unknown verify", 201: "ok  applied use_result"} {
		synctest.Test(t, func(t *testing.T) {
			srv := oncetest.NewServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), oncetest.LoseReply().On(1), oncetest.Status(status).On(2))
			client := srv.Client()
			client.Transport = &oncehttp.Transport{Base: client.Transport, Logger: quiet()}
			got := newRunner(t, new(oncehttp.MemoryStore), refundOver(client, srv.URL, Keyed)).Turn("u", Budget{}).Do(t.Context(), call("refund_order", refundArgs))[0]
			if told(got) != want || got.Attempts != 2 {
				t.Errorf("%d: got %s, %d attempts, want %s, 2\n%s", status, told(got), got.Attempts, want, srv.Timeline())
			}
		})
	}
}

func TestAnSDKThatRetriesBelowTheToolSendsOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		once := &oncehttp.Middleware{Store: new(oncehttp.MemoryStore), Logger: quiet()}
		srv := oncetest.NewServer(t, once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			oncetest.Effect(r)
			w.WriteHeader(http.StatusCreated)
		})), oncetest.LoseReply().On(1, 2))
		client := srv.Client()
		client.Transport = &oncehttp.Transport{Base: client.Transport, Attempts: 1, Logger: quiet()}
		tool := refundOver(client, srv.URL, Keyed)
		send := tool.Call
		tool.Call = func(ctx context.Context, args json.RawMessage) (v any, err error) {
			for range 3 { // with requests that are new each time
				if v, err = send(ctx, args); err == nil {
					break
				}
			}
			return v, err
		}
		got := newRunner(t, new(oncehttp.MemoryStore), tool).Turn("u", Budget{}).Do(t.Context(), call("refund_order", refundArgs))[0]
		if got.Status != StatusOK || srv.Effects() != 1 {
			t.Errorf("got %s, %d effects\n%s", told(got), srv.Effects(), srv.Timeline())
		}
	})
}

func TestAPlainClientIsRetriedByTheRunnerOnlyWhereThatIsSafe(t *testing.T) {
	for effect, want := range map[Effect]int{Unsafe: 1, Idempotent: 2, Read: 2} {
		synctest.Test(t, func(t *testing.T) {
			srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
			}), oncetest.StatusAfter(503, "Retry-After: 2"))
			got := newRunner(t, new(oncehttp.MemoryStore), refundOver(srv.Client(), srv.URL, effect)).Turn("u", Budget{}).Do(t.Context(), call("refund_order", refundArgs))[0]
			if srv.Sends() != want || (got.Status == StatusOK) != (want == 2) {
				t.Errorf("%v: %d sends, %s, want %d", effect, srv.Sends(), told(got), want)
			}
			if effect == Unsafe && (got.Outcome != OutcomeUnknown || got.RetryAfter != 2*time.Second) {
				t.Errorf("%v: got %s, retry after %v", effect, told(got), got.RetryAfter)
			}
		})
	}
}

func TestALateAnswerThatIsCutIsNoSuccess(t *testing.T) {
	body := io.MultiReader(strings.NewReader(`{"a":`), errReader{})
	v, err := HTTP(&http.Response{StatusCode: 201, Header: http.Header{}, Body: io.NopCloser(body)}, nil)
	if got := classify(Unsafe, v, err, false); got.typ != TypeTransient || got.outcome != OutcomeUnknown {
		t.Errorf("got %s %s", got.typ, got.outcome)
	}
	v, err = HTTP(nil, &oncehttp.Error{Result: oncehttp.Result{Certainty: oncehttp.CertaintyNotSent, Stop: oncehttp.ErrOpen}})
	if got := classify(Unsafe, v, err, false); got.typ != TypeTransient || got.outcome != OutcomeNone || got.repeats(Unsafe, OutcomeNone) {
		t.Errorf("an open breaker: got %s %s", got.typ, got.outcome)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("cut") }

func TestARefusalOverAnotherProtocolIsTakenAtItsWord(t *testing.T) {
	for _, c := range []struct {
		cause error
		want  string
	}{
		{oncehttp.ErrBadKey, "permanent none"},
		{oncehttp.ErrKeyReused, "permanent unknown"},
		{oncehttp.ErrOutcomeUnknown, "permanent unknown"},
		{oncehttp.ErrInProgress, "transient unknown"},
		{oncehttp.ErrStoreUnavailable, "transient unknown"},
	} {
		b, err := json.Marshal(oncehttp.RefusalOf(c.cause))
		if err != nil {
			t.Fatal(err)
		}
		v := classify(Keyed, nil, Refused(b, io.EOF), false)
		if got := fmt.Sprintf("%s %s", v.typ, v.outcome); got != c.want {
			t.Errorf("%v: got %s, want %s", c.cause, got, c.want)
		}
		if !errors.Is(v.err, io.EOF) {
			t.Errorf("%v: got %v, which has lost its cause", c.cause, v.err)
		}
	}
	for _, problem := range []string{"", "{}", "null", "[]", `{"type":"about:blank"}`, `{"type":7}`} {
		if err := Refused([]byte(problem), io.EOF); err != nil {
			t.Errorf("%q: got %v, want nil", problem, err)
		}
	}
}
