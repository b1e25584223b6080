package oncehttp

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// recordLater goes on recording an answer that has already gone out, while the
// heartbeat goes on too.
func (o *Once) recordLater(r *run, head, body []byte) {
	o.busy.add(1)
	go (&recording{o, r, head, body, time.Now().Add(o.recording()), 100 * time.Millisecond}).run()
}

// A recording is what recordLater is at.
type recording struct {
	o          *Once
	r          *run
	head, body []byte
	until      time.Time
	pause      time.Duration
}

func (x *recording) run() {
	o, r := x.o, x.r
	over := false
	defer func() {
		if !over { // the store ended this goroutine
			go x.run()
			return
		}
		defer o.busy.add(-1)
		r.stop()
	}()
	for {
		time.Sleep(x.pause)
		x.pause = min(2*x.pause, o.lease()/3)
		over = time.Now().After(x.until)
		err := o.complete(o.newCall(r.base, o.patience()), r.op, x.head, x.body, o.keep())
		switch {
		case err == nil:
			over = true
			r.log(slog.LevelInfo, "oncehttp: an answer that went out unconfirmed is now recorded")
			return
		case errors.Is(err, ErrClaimLost):
			over = true
			r.log(slog.LevelError, "oncehttp: an answer went out but its claim was lost before it could be recorded; another holder may have done the work too")
			return
		case over || time.Now().After(x.until):
			over = true
			r.log(slog.LevelError, "oncehttp: giving up recording an answer that went out; its key is an orphan", "err", err)
			return
		}
	}
}

// settleLater does in the background what settle has not come to.
func (o *Once) settleLater(r *run, head, body []byte, v verdict) {
	r.finish(time.Now())
	if v == verdictRecord {
		o.recordLater(r, head, body)
		return
	}
	r.stop()
	r.tookOver = r.tookOver || v == verdictUnknown
	how := untilDone
	if r.unanswered {
		how = forWholeLease
	}
	o.undo(&r.claiming, how)
}

// recording is how long the store is asked to take the end of work that was
// done. Not for ever: what is owed to a store is kept in memory.
func (o *Once) recording() time.Duration { return min(o.keep(), time.Hour) }

type insistence int

const (
	// untilDone: until the store has said that the claim is gone.
	untilDone insistence = iota
	// forWholeLease: whatever the store says, because a claim may still be on its
	// way to it and would meet nobody who knows of it.
	forWholeLease
)

// undo ends a claim in the background, again and again. To free a key under which
// nothing happened it goes on until the store has answered, for as long as an
// answer would be recorded: the orphan that the key would become instead is work
// for somebody. It holds no goroutine while it pauses, so
// an outage with thousands of refused calls costs little.
func (o *Once) undo(r *claiming, how insistence) {
	u := &undoing{o: o, base: r.detached(), op: r.op, orphan: r.tookOver, how: how, began: time.Now()}
	o.busy.add(1)
	go u.try()
}

type undoing struct {
	o      *Once
	base   context.Context
	op     Op
	orphan bool // by Renew(0) and not by Release
	how    insistence
	began  time.Time
	tries  int
}

func (u *undoing) try() {
	lease := u.o.lease()
	end := lease
	if !u.orphan {
		end = max(lease, u.o.recording())
	}
	since := time.Since(u.began)
	enough, last := u.how == untilDone || since >= lease, since >= end
	err := errGoexit
	defer func() { u.tried(err, enough, last, end) }()
	call := u.o.newCall(u.base, u.o.patience())
	if u.orphan {
		err = u.o.renew(call, u.op, 0)
	} else {
		err = u.o.release(call, u.op)
	}
}

// errGoexit stands for what a store did not return.
var errGoexit = errors.New("oncehttp: store: it ended its goroutine")

// tried ends the undoing, or has it tried again.
func (u *undoing) tried(err error, enough, last bool, end time.Duration) {
	lease := u.o.lease()
	gone := err == nil || errors.Is(err, ErrClaimLost)
	if last || gone && enough {
		defer u.o.busy.add(-1)
		if !gone {
			u.o.log().WarnContext(u.base, "oncehttp: a claim could not be given up; its key is an orphan once the lease is over", "key", logKey(u.op.Key), "err", err)
		}
		return
	}
	// At once, after a sixteenth of the lease, and then every eighth; the last
	// time at the end, neither before nor after it.
	u.tries++
	next := lease / 16
	if u.tries > 1 {
		next = lease * time.Duration(u.tries-1) / 8
	}
	time.AfterFunc(min(next, end)-time.Since(u.began), u.try)
}
