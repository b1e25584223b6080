package redisstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// overtime is how much longer than its context a call may take that was sent. Most
// are answered by then, and what came of them is known.
const overtime = 250 * time.Millisecond

// eval runs a script on a key and returns its reply. It returns a moment after ctx
// has ended, at the latest.
func (s *Store) eval(ctx context.Context, what string, sc *script, key string, args ...any) (any, error) {
	return s.run(ctx, what, &call{script: sc, modern: s.server.modern.Load(), key: s.opts.prefix + key, args: args})
}

// plain reports whether claims may be made without a script.
func (s *Store) plain() bool {
	return s.lanes.client != nil && s.opts.replicas == 0 && s.server.modern.Load()
}

// run makes a call and returns its reply.
func (s *Store) run(ctx context.Context, what string, c *call) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redisstore: %s: %w", what, err)
	}
	c.ctx, c.done = ctx, make(chan struct{})
	waits := s.opts.replicas > 0 && c.script != nil && c.script.settles != nil
	switch {
	case s.lanes.client != nil && !waits:
		s.lanes.send(c)
	default:
		c.sent.Store(true)
		go func() {
			defer c.end()
			if waits {
				c.reply, c.err = s.evalReplicated(c)
				return
			}
			c.alone(s.client)
		}()
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if c.send() {
			return nil, fmt.Errorf("redisstore: %s: not sent: %w", what, ctx.Err())
		}
		late := time.NewTimer(overtime)
		defer late.Stop()
		select {
		case <-c.done:
		case <-late.C:
			return nil, fmt.Errorf("redisstore: %s: the server has not answered; whether it did what it was asked is not known: %w", what, ctx.Err())
		}
	}
	if c.err != nil {
		return nil, explain(what, c.err)
	}
	return c.reply, nil
}

// A call is one run of a script, or a claim. Whoever made it may be gone before it ends, so
// nothing in it is the caller's.
type call struct {
	ctx    context.Context
	script *script // nil: a claim, see claim.go
	modern bool
	key    string
	args   []any

	sent  atomic.Bool // or never will be
	cmd   *redis.Cmd
	left  *redis.Cmd // of a claim
	reply any
	err   error
	done  chan struct{} // closed when reply and err are set
}

// send reports whether the call is to be sent, or given up, by whoever asks first.
func (c *call) send() bool { return c.sent.CompareAndSwap(false, true) }

// command makes the command that runs the script: by its digest, or by its text.
func (c *call) command(name, script string) *redis.Cmd {
	args := make([]any, 0, 4+len(c.args))
	args = append(append(args, name, script, 1, c.key), c.args...)
	cmd := redis.NewCmd(background, args...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// Commands do not end with their callers: a connection that is torn off in the
// middle of one is lost to everybody else.
var background = context.Background()

func (c *call) bySHA() *redis.Cmd  { return c.command("evalsha", c.script.sha(c.modern)) }
func (c *call) byText() *redis.Cmd { return c.command("eval", c.script.text(c.modern)) }

// A processor is a client, or one of its connections.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// alone runs the call by itself.
func (c *call) alone(p processor) {
	cmd := c.bySHA()
	p.Process(background, cmd)
	c.took(p, cmd)
}

// took takes what became of a command that ran the script by its digest. A server
// that was restarted, or became the master, does not know the script.
func (c *call) took(p processor, cmd *redis.Cmd) {
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = c.byText()
		p.Process(background, cmd)
	}
	c.reply, c.err = cmd.Result()
}

// end tells the caller. A hook of the client may have panicked.
func (c *call) end() {
	if p := recover(); p != nil {
		c.err = fmt.Errorf("the client panicked: %v", p)
	}
	close(c.done)
}

// lanes send the calls of many goroutines together, because what a call costs is
// mostly the system calls of sending and receiving it. What arrives while all lanes
// are under way goes with the next one; nothing waits for company.
//
// A lane is a goroutine, which stays for a while when it has nothing to do: a new one
// would have to grow its stack each time, at a fifth of the cost of a call.
type lanes struct {
	client *redis.Client // nil: there are none

	mu      sync.Mutex
	waiting []*call
	under   int       // lanes that are under way
	parked  int       // lanes that wait for a word
	word    chan bool // to a parked lane: whether to go on, or to end
	uses    int
	idle    *time.Timer // nil: not set
}

const (
	maxLanes = 4
	// What one batch holds at most: with more the first of its calls would wait
	// for the last.
	maxBatch      = 128
	maxBatchBytes = 1 << 20

	// laneIdle is how long lanes stay when nobody needs them, or up to twice that.
	laneIdle = 10 * time.Second
)

func (l *lanes) send(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, c)
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
	if l.idle == nil {
		l.endIdle(l.uses)
	}
}

// endIdle ends parked lanes when there was no use since the given one.
func (l *lanes) endIdle(use int) {
	l.idle = time.AfterFunc(laneIdle, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.uses != use || l.under > 0 {
			l.endIdle(l.uses)
			return
		}
		l.idle = nil
		l.end()
	})
}

// close ends parked lanes. Those that are under way end when they are idle.
func (l *lanes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
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
	return l.under > 1 || len(l.waiting) > 1
}

// next takes some of the calls that wait, in their order. If there are none the lane
// is parked.
func (l *lanes) next(batch []*call) []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, bytes := 0, 0
	for n < len(l.waiting) && n < maxBatch && bytes < maxBatchBytes {
		for _, a := range l.waiting[n].args {
			if b, ok := a.([]byte); ok {
				bytes += len(b)
			}
		}
		n++
	}
	batch = append(batch, l.waiting[:n]...)
	rest := copy(l.waiting, l.waiting[n:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	if n == 0 {
		l.under--
		l.parked++
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
		if c.send() {
			c.alone(l.client)
		}
		close(c.done)
		return
	}
	pipe := l.client.Pipeline()
	for _, c := range batch {
		if !c.send() {
			continue // its caller is gone
		}
		if c.script == nil {
			c.claim(pipe)
			continue
		}
		c.cmd = c.bySHA()
		pipe.Process(background, c.cmd)
	}
	if pipe.Len() > 0 {
		pipe.Exec(background) // each command has its error
	}
	for _, c := range batch {
		switch {
		case c.cmd == nil:
		case c.script == nil:
			c.claimed()
		default:
			c.took(l.client, c.cmd)
		}
		close(c.done)
	}
}
