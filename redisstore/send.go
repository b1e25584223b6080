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
	return s.lanes.client != nil && s.opts.replicas == 0 && s.server.modern.Load()
}

// run makes a call and returns its reply.
func (s *Store) run(ctx context.Context, what string, c *call) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redisstore: %s: %w", what, err)
	}
	c.done = make(chan struct{})
	send, leave := s.lanes.send, s.lanes.leave
	if s.lanes.client == nil || s.opts.replicas > 0 {
		send, leave = s.sendApart, (*call).leaveApart
	}
	if err := send(c); err != nil {
		return nil, fmt.Errorf("redisstore: %s: %w", what, err)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if leave(c) {
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
	switch {
	case c.err == nil:
		return c.reply, nil
	case c.ctx != nil && ctx.Err() != nil && errors.Is(c.err, context.Canceled): // by leaveApart
		return nil, fmt.Errorf("redisstore: %s: given up; whether the server did what it was asked is not known: %w", what, ctx.Err())
	}
	return nil, explain(what, c.err)
}

// A call is one run of a script, or a claim. Whoever made it may be gone before it ends, so
// nothing in it is the caller's.
type call struct {
	script *script // nil: a claim, see claim.go
	modern bool
	key    string
	args   []any

	ctx    context.Context // of a call that goes by itself: ends when its caller leaves
	cancel context.CancelFunc
	place  *list.Element // in a queue, or nil

	cmd   *redis.Cmd
	left  *redis.Cmd // of a claim
	reply any
	err   error
	done  chan struct{} // closed when reply and err are set
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
	cmd := c.bySHA()
	p.Process(c.context(), cmd)
	c.took(p, cmd)
}

// took takes what became of a command that ran the script by its digest. A server
// that was restarted, or became the master, does not know the script.
func (c *call) took(p processor, cmd *redis.Cmd) {
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = c.byText()
		p.Process(c.context(), cmd)
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

// apart counts the calls that go by themselves.
type apart struct {
	n   atomic.Int64
	max int64
}

// maxApart is how many of them may be under way. Most wait for a connection then.
const maxApart = 4096

// sendApart sends a call by itself, with a goroutine of its own, so that its caller
// can leave.
func (s *Store) sendApart(c *call) error {
	if s.apart.n.Add(1) > s.apart.max {
		s.apart.n.Add(-1)
		return errCrowded(s.apart.max)
	}
	c.ctx, c.cancel = context.WithCancel(background)
	go func() {
		defer s.apart.n.Add(-1)
		defer c.cancel()
		defer c.end()
		if s.opts.replicas > 0 && c.script.settles != nil {
			c.reply, c.err = s.evalReplicated(c)
			return
		}
		c.alone(s.client)
	}()
	return nil
}

// leaveApart has such a call end as soon as it can. It may have been sent.
func (c *call) leaveApart() bool {
	c.cancel()
	return false
}
