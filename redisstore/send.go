package redisstore

import (
	"container/list"
	"context"
	"errors"
	"fmt"
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
	return s.lanes.client != nil && s.opts.replicas == 0 && s.server.modern.Load() && s.server.clock.Load() != 0
}

// run makes a call and returns its reply.
func (s *Store) run(ctx context.Context, what string, c *call) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redisstore: %s: %w", what, err)
	}
	var err error
	if s.lanes.client == nil || s.opts.replicas > 0 {
		err = s.runApart(ctx, c)
	} else {
		err = s.lanes.run(ctx, c)
	}
	if err == nil && c.err != nil {
		return nil, explain(what, c.err)
	}
	if err != nil {
		return nil, fmt.Errorf("redisstore: %s: %w", what, err)
	}
	return c.reply, nil
}

// A call is one run of a script, or a claim. Whoever made it may be gone before it ends, so
// nothing in it is the caller's.
type call struct {
	script *script // nil: a claim, see claim.go
	modern bool
	key    string
	args   []any
	size   int // about how many bytes the arguments are

	cmd   *redis.Cmd
	clock clock // of a claim
	reply any
	err   error
	word  chan word // to the caller, who may be gone; holds one

	// Of a call that goes by itself: ends when its caller leaves.
	ctx    context.Context
	cancel context.CancelFunc

	// Of a call that may go with others. Guarded by lanes.mu until it is over.
	place *list.Element // in the queue, or nil
	line  *line         // over which its caller is to send it, or nil
	tried bool          // over a line, in vain
}

// A word is what a caller is told who waits.
type word int

const (
	ended word = iota + 1
	leads      // send it yourself
)

// awaitLate gives a call whose caller's context has ended a moment more.
func (c *call) awaitLate(ctx context.Context) error {
	late := time.NewTimer(overtime)
	defer late.Stop()
	select {
	case <-c.word:
		return nil
	case <-late.C:
		return errNotKnown(ctx)
	}
}

func errNotKnown(ctx context.Context) error {
	return fmt.Errorf("the server has not answered; whether it did what it was asked is not known: %w", ctx.Err())
}

// bytes is about how much memory the arguments take.
func (c *call) bytes() int {
	n := 0
	for _, a := range c.args {
		if b, ok := a.([]byte); ok {
			n += len(b)
		}
	}
	return n
}

// command makes the command that runs the script: by its digest, or by its text.
func (c *call) command(name, script string) *redis.Cmd {
	args := make([]any, 0, 4+len(c.args))
	args = append(append(args, name, script, 1, c.key), c.args...)
	cmd := redis.NewCmd(background, args...)
	cmd.SetFirstKeyPos(3)
	cmd.SetStepCount(1) // or a cluster is asked for it, in every call
	return cmd
}

// Commands do not end with their callers: a connection that is torn off in the
// middle of one is lost to everybody else.
var background = context.Background()

// context is that of the call's commands. The client looks at its end only while
// nothing is sent: when it waits for a connection, or to try again.
func (c *call) context() context.Context {
	if c.ctx == nil {
		return background
	}
	return c.ctx
}

func (c *call) bySHA() *redis.Cmd  { return c.command("evalsha", c.script.sha(c.modern)) }
func (c *call) byText() *redis.Cmd { return c.command("eval", c.script.text(c.modern)) }

// A processor is a client, or one of its connections.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// alone runs the call by itself.
func (c *call) alone(p processor) {
	c.cmd = c.bySHA()
	p.Process(c.context(), c.cmd)
	c.again(p)
	c.take()
}

// again runs the script by its text if the server does not know its digest: it was
// restarted, or became the master.
func (c *call) again(p processor) {
	if c.script != nil && redis.HasErrorPrefix(c.cmd.Err(), "NOSCRIPT") {
		c.cmd = c.byText()
		p.Process(c.context(), c.cmd)
	}
}

// take takes what became of the call's command.
func (c *call) take() {
	if c.script == nil {
		c.claimed()
	} else {
		c.reply, c.err = c.cmd.Result()
	}
}

// end tells the caller that reply and err are set.
func (c *call) end() { c.word <- ended }

func errPanicked(p any) error { return fmt.Errorf("the client panicked: %v", p) }

// apart counts the calls that go by themselves.
type apart struct {
	n   atomic.Int64
	max int64
}

// maxApart is how many of them may be under way. Most wait for a connection then.
const maxApart = 4096

// runApart sends a call by itself, with a goroutine of its own, so that its caller
// can leave.
func (s *Store) runApart(ctx context.Context, c *call) error {
	if s.apart.n.Add(1) > s.apart.max {
		s.apart.n.Add(-1)
		return errCrowded(s.apart.max)
	}
	c.word = make(chan word, 1)
	c.ctx, c.cancel = context.WithCancel(background)
	go s.sendApart(c)
	select {
	case <-c.word:
		return nil
	case <-ctx.Done():
	}
	c.cancel()
	if err := c.awaitLate(ctx); err != nil {
		return err
	}
	if errors.Is(c.err, context.Canceled) {
		return errNotKnown(ctx)
	}
	return nil
}

func (s *Store) sendApart(c *call) {
	defer s.apart.n.Add(-1)
	defer c.cancel()
	defer c.end()
	defer func() {
		if p := recover(); p != nil { // in a hook of the client
			c.err = errPanicked(p)
		}
	}()
	if s.opts.replicas > 0 && c.script.settles != nil {
		c.reply, c.err = s.evalReplicated(c)
		return
	}
	c.alone(s.client)
}
