package redisstore

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A line is a connection over which callers send for themselves: who finds it free
// sends his call, and whatever waits, and hands the line to the first of those who
// have come meanwhile. That saves every call two changes of goroutine, which cost
// more than sending it.
//
// Who reads from a connection cannot leave when his context ends. So a line has a
// patience below overtime. What it does not get an answer to is left to the lanes,
// as is whatever has gone wrong: every call may be repeated.
type line struct {
	conn   *redis.Conn
	ctx    context.Context // of what is to go over it
	since  time.Time
	used   bool
	broken bool
}

const (
	// linePatience is the time for sending a batch, and again for its answers.
	// Together they must stay below overtime; the client's clock is up to 50 ms behind.
	linePatience = 100 * time.Millisecond
	// lineAgain is how long there is no other line after one failed, and lineQuick
	// what a lane must take no longer for to open one.
	lineAgain = time.Second
	lineQuick = linePatience / 2
	// lineAge is how long a line is held. Then its connection goes through the
	// client's pool, which looks after it: after 5 s it would look in each call.
	lineAge  = 4 * time.Second
	maxLines = 3
	// maxLineBytes is what is sent over a line at once.
	maxLineBytes = 64 << 10
	// minPool is how large the client's pool must be to spare that many connections.
	minPool = 2 * maxLines
)

// openLine opens one more line, if there may be one. A lane that had a quick answer
// just now calls it.
func (l *lanes) openLine() {
	l.mu.Lock()
	wanted := len(l.free)+l.held+l.opening < maxLines && !l.closed && time.Now().After(l.noLine)
	if wanted {
		l.opening++
	}
	l.mu.Unlock()
	if !wanted {
		return
	}
	line := newLine(l.client)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opening--
	if line == nil {
		l.noLine = time.Now().Add(lineAgain)
		return
	}
	l.held++
	l.pass(line)
}

// newLine returns nil if the client has no connection to spare.
func newLine(client *redis.Client) *line {
	quick := client.WithTimeout(linePatience)
	o := quick.Options()
	if o.PoolSize < minPool {
		return nil
	}
	if m := o.MaintNotificationsConfig; m != nil && m.Mode != maintnotifications.ModeDisabled {
		return nil // the server may make the client more patient
	}
	line := &line{conn: quick.Conn(), since: time.Now()}
	line.ctx = context.WithValue(background, lineKey{}, line)
	if line.reached(client) {
		return line
	}
	client.AddHook(throughLine{})
	if line.reached(client) {
		return line
	}
	line.conn.Close()
	return nil
}

// reached reports whether the client sends over the line.
func (line *line) reached(client *redis.Client) (yes bool) {
	defer func() {
		if recover() != nil { // in a hook of the client; a lane will tell
			yes = false
		}
	}()
	ctx, cancel := context.WithTimeout(line.ctx, linePatience)
	defer cancel()
	return client.Ping(ctx).Err() == nil && line.used
}

// throughLine is a hook that sends over a line what is meant for one. A client with
// another timeout, which the line's is, does not have its parent's hooks; so the
// parent is asked, and its other hooks, for traces, see what goes over a line.
type throughLine struct{}

type lineKey struct{}

func (throughLine) DialHook(next redis.DialHook) redis.DialHook { return next }

func (throughLine) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if line, ok := ctx.Value(lineKey{}).(*line); ok {
			line.used = true
			return line.conn.Process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

func (throughLine) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		line, ok := ctx.Value(lineKey{}).(*line)
		if !ok {
			return next(ctx, cmds)
		}
		pipe := line.conn.Pipeline()
		for _, cmd := range cmds {
			pipe.Process(ctx, cmd)
		}
		_, err := pipe.Exec(ctx)
		return err
	}
}

// lead sends the call of who has a line, and others. It reports whether the call is
// over; else a lane will send it.
func (l *lanes) lead(c *call) (over bool) {
	// As a lane does. Where calls wait already there are enough to go along.
	if l.lonely() {
		runtime.Gosched()
	}
	var few [16]*call
	l.mu.Lock()
	line := c.line
	c.line = nil
	batch := l.waiting.take(append(few[:0], c), maxLineBytes, (*call).fits)
	l.mu.Unlock()

	exec(line.ctx, l.client, batch, true)

	var bad []*call
	broken := false
	for _, c := range batch {
		if !c.plain() {
			broken = broken || c.err != nil || !isAnswer(c.cmd.Err())
			bad = append(bad, c)
		}
	}
	l.mu.Lock()
	l.repeat(bad)
	if broken {
		l.noLine = time.Now().Add(lineAgain)
		line.broken = true
	}
	l.pass(line)
	l.mu.Unlock()
	for _, other := range batch {
		if other.tried {
			continue
		}
		other.take()
		if other == c {
			over = true
		} else {
			other.end()
		}
	}
	return over
}

// lonely reports whether no call waits although there seems to be more than one caller.
func (l *lanes) lonely() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held > 1 && l.waiting.calls.Len() == 0
}

// plain reports whether the call was answered as it should be, with nothing left to
// find out.
func (c *call) plain() bool {
	if c.err != nil {
		return false
	}
	err := c.cmd.Err()
	return err == nil || err == redis.Nil
}

// repeat leaves calls to the lanes.
func (l *lanes) repeat(calls []*call) {
	for _, c := range calls {
		c.tried, c.err = true, nil
		if c.word == nil {
			c.word = make(chan word, 1)
		}
	}
	l.waiting.restore(calls)
}

// pass gives a line that was held to the first who waits. If there is nobody it is
// free.
func (l *lanes) pass(line *line) {
	some := l.waiting.calls.Len() > 0
	switch {
	case line.broken || l.closed || time.Since(line.since) > lineAge:
		l.held--
		go line.conn.Close() // not under the lock
	case some && l.waiting.first().fits():
		next := l.waiting.first()
		l.waiting.remove(next)
		next.line = line
		next.word <- leads
		return
	default:
		l.held--
		l.free = append(l.free, line)
	}
	if some {
		l.wakeLane()
	}
}

// fits reports whether a call may go over a line. One that did already has no better
// luck there the second time.
func (c *call) fits() bool { return !c.tried && c.size <= maxLineBytes }

// isAnswer reports whether err is what a server has sent.
func isAnswer(err error) bool {
	if err == nil || err == redis.Nil {
		return true
	}
	var server redis.Error
	return errors.As(err, &server)
}
