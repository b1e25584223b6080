package toolcall

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

func noop(t testing.TB) *Turn {
	r := newRunner(t, new(oncehttp.MemoryStore), Tool{Name: "read", Effect: Read, Call: func(context.Context, json.RawMessage) (any, error) { return nil, nil }})
	return r.Turn("u", Budget{})
}

func TestAllocsOfOneDo(t *testing.T) {
	turn := noop(t)
	c := call("read", refundArgs)
	got := testing.AllocsPerRun(1000, func() { turn.Do(t.Context(), c)[0].JSON() })
	t.Logf("%v allocations", got)
	if got > 60 {
		t.Errorf("got %v allocations for one Do, want at most 60", got)
	}
	if got < 2 {
		t.Errorf("got %v allocations for one Do, so nothing was measured", got)
	}
}

// One Do of a read tool that does nothing: at most 12 µs and 60 allocations.
func BenchmarkDo(b *testing.B) {
	turn := noop(b)
	c := call("read", refundArgs)
	b.ReportAllocs()
	best, begin, n := time.Hour, time.Now(), 0
	for b.Loop() {
		res := turn.Do(b.Context(), c)
		res[0].JSON()
		if n++; n%1000 == 0 { // the fastest thousand: noise only adds
			now := time.Now()
			best, begin = min(best, now.Sub(begin)/1000), now
		}
	}
	if n >= 1000 && best > 12*time.Microsecond {
		b.Errorf("got %v for one Do, want at most 12µs", best)
	}
}

// One Do of a call that is recorded, each time another one.
func BenchmarkDoRecorded(b *testing.B) {
	r := newRunner(b, new(oncehttp.MemoryStore), Tool{Name: "write", Call: func(context.Context, json.RawMessage) (any, error) { return nil, nil }, Repeat: PerOccurrence})
	turn := r.Turn("u", Budget{})
	c := call("write", refundArgs)
	b.ReportAllocs()
	for b.Loop() {
		turn.Do(b.Context(), c)
	}
}
