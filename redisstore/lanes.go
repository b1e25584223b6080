package redisstore

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// lanes send the calls of many goroutines together, because what a call costs is
// mostly the system calls of sending and receiving it. What arrives while all lanes
// are under way goes with the next one; nothing waits for company.
//
// A lane is a goroutine, which stays for a while when it has nothing to do: a new one
// would have to grow its stack each time, at a fifth of the cost of a call.
type lanes struct {
	client *redis.Client // nil: there are none

	mu      sync.Mutex
	waiting queue
	under   int       // lanes that are under way
	parked  int       // lanes that wait for a word
	word    chan bool // to a parked lane: whether to go on, or to end
	uses    int
	idle    *time.Timer // nil: not set
	closed  bool
}

const (
	maxLanes = 4

	// laneIdle is how long lanes stay when nobody needs them, or up to twice that.
	laneIdle = 10 * time.Second
)

// send has a call sent, unless too many wait.
func (l *lanes) send(c *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.waiting.add(c); err != nil {
		return err
	}
	l.uses++
	switch {
	case l.parked > 0:
		l.parked--
		l.under++
		l.word <- true
	case l.under < maxLanes:
		l.under++
		go l.run()
	}
	if l.idle == nil && !l.closed {
		l.endIdle(l.uses)
	}
	return nil
}

// leave reports whether the call was not sent yet. Then it never will be.
func (l *lanes) leave(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.remove(c)
}

// endIdle ends parked lanes when there was no use since the given one.
func (l *lanes) endIdle(use int) {
	l.idle = time.AfterFunc(laneIdle, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case l.closed:
		case l.uses != use || l.under > 0:
			l.endIdle(l.uses)
		default:
			l.idle = nil
			l.end()
		}
	})
}

// close ends parked lanes. Those that are under way, and any that a call starts later,
// end once they have nothing to do.
func (l *lanes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.idle != nil {
		l.idle.Stop()
	}
	l.end()
}

func (l *lanes) end() {
	for ; l.parked > 0; l.parked-- {
		l.word <- false
	}
}

// run is one lane.
func (l *lanes) run() {
	batch := make([]*call, 0, 16)
	for {
		// Callers that can run now have calls that can go along.
		if l.company() {
			runtime.Gosched()
		}
		if batch = l.next(batch[:0]); len(batch) > 0 {
			l.exec(batch)
			clear(batch)
		} else if !<-l.word {
			return
		}
	}
}

// company reports whether there seems to be more than one caller. For a single one
// to yield would only wake a thread in vain.
func (l *lanes) company() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.under > 1 || l.waiting.calls.Len() > 1
}

// next takes some of the calls that wait, in their order. If there are none the lane
// is parked.
func (l *lanes) next(batch []*call) []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch = l.waiting.take(batch)
	if len(batch) == 0 {
		l.under--
		l.parked++
		if l.closed {
			l.end()
		}
	}
	return batch
}

// exec sends calls and tells their callers.
func (l *lanes) exec(batch []*call) {
	defer func() {
		p := recover()
		for _, c := range batch {
			select {
			case <-c.done:
			default:
				c.err = fmt.Errorf("the client panicked: %v", p)
				close(c.done)
			}
		}
	}()
	if c := batch[0]; len(batch) == 1 && c.script != nil {
		c.alone(l.client)
		close(c.done)
		return
	}
	pipe := l.client.Pipeline()
	for _, c := range batch {
		if c.script == nil {
			c.claim(pipe)
			continue
		}
		c.cmd = c.bySHA()
		pipe.Process(background, c.cmd)
	}
	pipe.Exec(background) // each command has its error
	for _, c := range batch {
		if c.script == nil {
			c.claimed()
		} else {
			c.took(l.client, c.cmd)
		}
		close(c.done)
	}
}
