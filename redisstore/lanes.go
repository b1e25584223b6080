package redisstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// lanes send the calls of many goroutines together, because what a call costs is
// mostly the system calls of sending and receiving it. What arrives while all are
// under way goes with the next one; nothing waits for company.
//
// While all is well callers do that themselves, each with a line. Lanes do it when
// there is no line, and for calls that a line is not for: a lane is as patient as the
// client, and nobody has to wait for it longer than he wants.
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

	free    []*line   // that nobody has
	held    int       // lines that callers have
	opening int       // lines that lanes are about to open
	noLine  time.Time // none is opened before then
}

const (
	maxLanes = 4

	// laneIdle is how long lanes stay when nobody needs them, or up to twice that.
	laneIdle = 10 * time.Second
)

// run has a call sent and returns when it is over, or its caller has to leave.
func (l *lanes) run(ctx context.Context, c *call) error {
	leading, err := l.send(c)
	if err != nil {
		return err
	}
	for {
		if leading && l.lead(c) {
			return nil
		}
		leading = false
		select {
		case w := <-c.word:
			if w == ended {
				return nil
			}
			if ctx.Err() == nil {
				leading = true
				continue
			}
		case <-ctx.Done():
		}
		switch {
		case !l.leave(c):
			return c.awaitLate(ctx)
		case c.tried:
			return errNotKnown(ctx)
		}
		return fmt.Errorf("not sent: %w", ctx.Err())
	}
}

// send has a call sent, unless too many wait. If it leads it is for the caller to send
// it.
func (l *lanes) send(c *call) (leading bool, err error) {
	c.size = c.bytes()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.uses++
	if l.idle == nil && !l.closed {
		l.endIdle(l.uses)
	}
	if n := len(l.free); n > 0 && l.waiting.calls.Len() == 0 && c.fits() {
		c.line, l.free = l.free[n-1], l.free[:n-1]
		l.held++
		return true, nil
	}
	c.word = make(chan word, 1)
	if err := l.waiting.add(c); err != nil {
		return false, err
	}
	// Calls wait only while somebody has a line, or a lane is under way.
	if l.held < maxLines {
		l.wakeLane()
	}
	return false, nil
}

// wakeLane has one more lane look for work, if there is one.
func (l *lanes) wakeLane() {
	switch {
	case l.parked > 0:
		l.parked--
		l.under++
		l.word <- true
	case l.under < maxLanes:
		l.under++
		go l.work()
	}
}

// leave takes a call away that is not under way, and reports whether it was not.
func (l *lanes) leave(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.line != nil { // and was about to be
		l.pass(c.line)
		c.line = nil
		return true
	}
	return l.waiting.remove(c)
}

// endIdle ends parked lanes, and lines, when there was no use since the given one.
func (l *lanes) endIdle(use int) {
	l.idle = time.AfterFunc(laneIdle, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case l.closed:
		case l.uses != use || l.under > 0 || l.held > 0:
			l.endIdle(l.uses)
		default:
			l.idle = nil
			l.end()
		}
	})
}

// close ends parked lanes, and lines. Those that are in use, and any that a call
// starts later, end once they have nothing to do.
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
	for _, line := range l.free {
		line.conn.Close()
	}
	l.free = nil
}

// work is one lane.
func (l *lanes) work() {
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
	batch = l.waiting.take(batch, maxBatchBytes, nil)
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
	began := time.Now()
	exec(background, l.client, batch, false)
	quick := time.Since(began) < lineQuick
	for _, c := range batch {
		if c.err == nil {
			quick = quick && isAnswer(c.cmd.Err())
			c.take()
		}
		c.end()
	}
	if quick {
		l.openLine()
	}
}

// exec sends calls and waits for what comes of them. Only once means that whatever
// goes wrong is left as it is.
func exec(ctx context.Context, client *redis.Client, batch []*call, once bool) {
	defer func() {
		if p := recover(); p != nil { // in a hook of the client
			for _, c := range batch {
				c.err = errPanicked(p)
			}
		}
	}()
	wrap := func(cmd *redis.Cmd) redis.Cmder { return cmd }
	if once {
		wrap = func(cmd *redis.Cmd) redis.Cmder { return attempt{cmd} }
	}
	for _, c := range batch {
		if c.script == nil {
			c.cmd = c.claim()
		} else {
			c.cmd = c.bySHA()
		}
	}
	if len(batch) == 1 {
		client.Process(ctx, wrap(batch[0].cmd))
	} else {
		pipe := client.Pipeline()
		for _, c := range batch {
			pipe.Process(ctx, wrap(c.cmd))
		}
		pipe.Exec(ctx) // each command has its error
	}
	if once {
		return
	}
	for _, c := range batch {
		c.again(client)
	}
}

// An attempt is a command that the client does not repeat by itself.
type attempt struct{ *redis.Cmd }

func (attempt) NoRetry() bool { return true }
