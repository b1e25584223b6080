package toolcall

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oncehttp/oncehttp"
)

// A sub-agent runs inside a tool that has a key. That names the tool's own request, and no
// request of the tools that the sub-agent calls: the second row would be taken for the first one, and a
// poll would see old news.
func TestToolsOfASubAgentDoNotSendItsKey(t *testing.T) {
	var effects atomic.Int32
	server := &oncehttp.Middleware{Store: new(oncehttp.MemoryStore), Logger: quiet()}
	srv := httptest.NewServer(server.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, effects.Add(1))
	})))
	defer srv.Close()
	client := &http.Client{Transport: &oncehttp.Transport{Logger: quiet()}}
	defer client.CloseIdleConnections()
	post := func(ctx context.Context, args json.RawMessage) (any, error) {
		req, err := http.NewRequestWithContext(ctx, "POST", srv.URL, strings.NewReader(string(args)))
		if err != nil {
			return nil, err
		}
		return HTTP(client.Do(req))
	}
	for _, row := range []struct {
		what        string
		inner       Tool
		args        [2]string
		first, last string
	}{
		{"two rows are meant", Tool{Name: "append", Repeat: PerOccurrence, Call: post}, [2]string{`{"a":1}`, `{"a":1}`}, "1", "2"},
		{"two different rows", Tool{Name: "append", Effect: Idempotent, Call: post}, [2]string{`{"a":1}`, `{"a":2}`}, "1", "2"},
		{"a poll", Tool{Name: "poll", Effect: Read, Call: post}, [2]string{`{}`, `{}`}, "1", "2"},
		{"the same call again", Tool{Name: "pay", Effect: Keyed, Call: post}, [2]string{`{}`, `{}`}, "1", "1"},
	} {
		effects.Store(0)
		var got []Result
		var r *Runner
		r = newRunner(t, new(oncehttp.MemoryStore), row.inner, Tool{Name: "delegate", Effect: Keyed, Call: func(ctx context.Context, args json.RawMessage) (any, error) {
			sub, err := r.Turn(row.what, Budget{}).Sub(Call{Tool: "delegate", Args: args})
			if err != nil {
				return nil, err
			}
			for _, args := range row.args {
				got = append(got, sub.Do(ctx, call(row.inner.Name, args))...)
			}
			return nil, nil
		}})
		if res := r.Turn(row.what, Budget{}).Do(t.Context(), call("delegate", `{}`))[0]; res.Status != StatusOK || len(got) != 2 {
			t.Fatalf("%s: got %s, %d results", row.what, told(res), len(got))
		}
		if string(got[0].Result) != row.first || string(got[1].Result) != row.last {
			t.Errorf("%s: got %s %s (%v) and %s %s (%v), want %s and %s", row.what,
				told(got[0]), got[0].Result, got[0].Err, told(got[1]), got[1].Result, got[1].Err, row.first, row.last)
		}
	}
}
