package modeltest

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/oncehttp/oncehttp/toolcall"
)

// Secret is in what goes wrong inside the tools. A model must never read it.
const Secret = "s3cr3t-of-the-upstream"

// Ends are the ways in which a tool of [Bank.Tools] can end, as its argument "end" says.
var Ends = []string{"ok", "lost", "plain", "no", "bad", "panic", "exit", "hang", "ignore", "huge", "nojson", "half"}

// A Bank counts what really happens, by the key of the call.
type Bank struct {
	mu      sync.Mutex
	effects map[string]int
}

// Effects returns how often the call with that key took effect.
func (b *Bank) Effects(key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.effects[key]
}

// Total returns how many effects there were.
func (b *Bank) Total() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.effects {
		n += k
	}
	return n
}

// act makes the effect of a call. A bank that honours keys makes it once for a key.
func (b *Bank) act(ctx context.Context, honours bool) (first bool) {
	key, _ := toolcall.KeyFromContext(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.effects == nil {
		b.effects = map[string]int{}
	}
	first = b.effects[key] == 0
	if first || !honours {
		b.effects[key]++
	}
	return first
}

// Tools are pay (Keyed), wipe (Unsafe) and status (Read), which all take the argument end, and
// close_all (Unsafe), which takes nothing.
func (b *Bank) Tools() []toolcall.Tool {
	return []toolcall.Tool{
		{Name: "pay", Effect: toolcall.Keyed, Timeout: 5 * time.Second, Call: b.tool(toolcall.Keyed)},
		{Name: "wipe", Effect: toolcall.Unsafe, Note: "a test's", Timeout: 5 * time.Second, Call: b.tool(toolcall.Unsafe)},
		{Name: "status", Effect: toolcall.Read, Timeout: 5 * time.Second, Call: b.tool(toolcall.Read)},
		{Name: "close_all", Effect: toolcall.Unsafe, Note: "a test's", Timeout: 5 * time.Second, Call: func(ctx context.Context, _ json.RawMessage) (any, error) {
			b.act(ctx, false)
			return "closed", nil
		}},
	}
}

func (b *Bank) tool(effect toolcall.Effect) func(context.Context, json.RawMessage) (any, error) {
	type in struct {
		N   json.Number `json:"n"`
		End string      `json:"end"`
	}
	return toolcall.Func(func(ctx context.Context, a in) (any, error) {
		switch a.End {
		case "no":
			return nil, toolcall.Permanent(errors.New(Secret))
		case "bad":
			return nil, toolcall.BadArguments("n is not to be had\n\xff")
		}
		if effect != toolcall.Read && !b.act(ctx, effect == toolcall.Keyed) {
			return "receipt " + a.N.String(), nil // the bank's answer to a key that it knows
		}
		switch a.End {
		case "lost":
			return nil, toolcall.Transient(errors.New(Secret))
		case "plain":
			return nil, errors.New(Secret)
		case "panic":
			panic(Secret)
		case "exit":
			runtime.Goexit()
		case "hang":
			<-ctx.Done()
			return nil, ctx.Err()
		case "ignore":
			time.Sleep(time.Hour)
		case "huge":
			return strings.Repeat("\"", 100<<10), nil
		case "nojson":
			return json.RawMessage("{"), nil
		case "half":
			return nil, toolcall.Degraded([]int{1}, errors.New(Secret))
		}
		return "receipt " + a.N.String(), nil
	})
}
