package toolcall

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Budget bounds what a turn may do, its sub-agents included. A zero limit is none.
type Budget struct {
	Calls    int            // tool calls, replayed ones included
	Attempts int            // runs of tools, with the attempts of Transports below them
	Wall     time.Duration  // from the call of Runner.Turn on
	Tokens   int64          // what Turn.Spend counts
	PerTool  map[string]int // calls of single tools; a tool that is not listed has no limit, 0 forbids one
}

func (b *Budget) check() error {
	switch {
	case b.Calls < 0:
		return errors.New("toolcall: Budget.Calls is negative")
	case b.Attempts < 0:
		return errors.New("toolcall: Budget.Attempts is negative")
	case b.Wall < 0:
		return errors.New("toolcall: Budget.Wall is negative")
	case b.Tokens < 0:
		return errors.New("toolcall: Budget.Tokens is negative")
	}
	for tool, n := range b.PerTool {
		if n < 0 {
			return fmt.Errorf("toolcall: Budget.PerTool[%q] is negative", tool)
		}
	}
	return nil
}

// A pool is what is left of a Budget. Turn and sub-turns draw from one.
type pool struct {
	limit Budget
	end   time.Time // zero: none

	mu       sync.Mutex
	calls    int
	attempts int
	tokens   int64
	perTool  map[string]int
	over     bool // something was refused
}

func newPool(b Budget, now time.Time) *pool {
	p := &pool{limit: b}
	if len(b.PerTool) > 0 {
		p.perTool = make(map[string]int, len(b.PerTool))
		own := make(map[string]int, len(b.PerTool)) // the caller may change theirs
		for tool, n := range b.PerTool {
			own[tool] = n
		}
		p.limit.PerTool = own
	}
	if b.Wall > 0 {
		p.end = now.Add(b.Wall)
	}
	return p
}

// admit decides on the calls of one message, in order, before any of them starts.
func (p *pool) admit(calls []Call, errs []error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range calls {
		tool := calls[i].Tool
		if most, limited := p.limit.PerTool[tool]; limited && p.perTool[tool] >= most && !p.exhausted(now) {
			errs[i] = ErrToolBudget
			continue
		}
		if p.exhausted(now) {
			p.over = true
			errs[i] = ErrBudget
			continue
		}
		p.calls++
		if p.perTool != nil {
			p.perTool[tool]++
		}
	}
}

func (p *pool) exhausted(now time.Time) bool {
	l := &p.limit
	return p.over || l.Calls > 0 && p.calls >= l.Calls || l.Attempts > 0 && p.attempts >= l.Attempts ||
		l.Tokens > 0 && p.tokens >= l.Tokens || !p.end.IsZero() && !now.Before(p.end)
}

// attempt pays for one attempt.
func (p *pool) attempt() bool {
	if p.limit.Attempts == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attempts >= p.limit.Attempts {
		p.over = true
		return false
	}
	p.attempts++
	return true
}

// made counts attempts that a Transport made on its own.
func (p *pool) made(n int) {
	p.mu.Lock()
	p.attempts += n
	p.mu.Unlock()
}
