package crash

import (
	"sync"
	"time"
)

// epochs knows when the victim died, and so which moments belong to one life. Times
// are compared as the wall clock of one machine shows them, because other processes
// have noted some of them.
type epochs struct {
	mu     sync.Mutex
	deaths []death
	births []time.Time // when it served, after each start
}

// A death happened somewhere between from and to.
type death struct{ from, to time.Time }

func (e *epochs) died(from, to time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deaths = append(e.deaths, death{from.Round(0), to.Round(0)})
}

func (e *epochs) lived(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.births = append(e.births, at.Round(0))
}

// same tells whether the victim surely lived without a break from a to b.
func (e *epochs) same(a, b time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.deaths {
		if !d.to.Before(a) && !d.from.After(b) {
			return false
		}
	}
	return true
}

// since returns how often the victim has served, and when it last began to.
func (e *epochs) since() (int, time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.births) == 0 {
		return 0, time.Time{}
	}
	return len(e.births), e.births[len(e.births)-1]
}
