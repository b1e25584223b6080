package toolcall

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/oncehttp/oncehttp"
)

// A model, or whoever speaks in its name, chooses the size of what it sends.
func TestArgumentsHaveALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, effect := range []Effect{Unsafe, Keyed, Idempotent, Read} {
			runs := 0
			r := newRunner(t, new(oncehttp.MemoryStore), Tool{Name: "x", Effect: effect, Call: func(context.Context, json.RawMessage) (any, error) { runs++; return nil, nil }})
			turn := r.Turn("u", Budget{})
			most := `{"a":"` + strings.Repeat("x", maxArgs-8) + `"}`
			if got := turn.Do(t.Context(), call("x", most))[0]; got.Status != StatusOK || runs != 1 {
				t.Errorf("%v, %d bytes: got %s, %d runs", effect, len(most), told(got), runs)
			}
			got := turn.Do(t.Context(), call("x", most+" "))[0]
			if want := "the arguments have 1048577 bytes, at most 1048576 are allowed; send less"; told(got) != "failed bad_arguments none fix_arguments" || got.Details != want || runs != 1 {
				t.Errorf("%v, one byte more: got %s, %q, %d runs", effect, told(got), got.Details, runs)
			}
		}
	})
}

func TestTraceHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec Record
		var started Started
		r := newRunner(t, nil, Tool{Name: "x", Effect: Read, Call: func(context.Context, json.RawMessage) (any, error) { return nil, nil }})
		r.OnRecord = func(_ context.Context, r Record) { rec = r }
		r.OnCall = func(ctx context.Context, s Started) context.Context { started = s; return ctx }
		r.Reveal = map[string][]string{"x": {"/a"}}
		id := strings.Repeat("i", 1<<20)
		got := r.Turn("u", Budget{}).Do(t.Context(), Call{Tool: "x", ID: id, Args: []byte(`{"a":"` + strings.Repeat("x", maxArgs) + `"}`)})[0]
		if got.ID != id {
			t.Error("the result has another id than its call")
		}
		if len(rec.CallID) > 128 || len(rec.Args) > 128 || len(started.CallID) > 128 {
			t.Errorf("the record has %d bytes of id and %d of arguments, and OnCall %d of id", len(rec.CallID), len(rec.Args), len(started.CallID))
		}
	})
}
