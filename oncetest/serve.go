package oncetest

import (
	"context"
	"log"
	"net/http"
	"runtime/debug"
	"time"
)

type contextKey int

const (
	connKey contextKey = iota // the *conn of a request
	sendKey                   // the *send of a request
)

// serve is the server's handler: it notes the send and lets it meet its faults.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey).(*conn)
	if state := c.connectionState(); state != nil {
		r.TLS = state
	}
	if c.isMute() {
		panic(http.ErrAbortHandler)
	}
	x, p := s.arrive(r)
	if r.ProtoMajor == 1 {
		c.serves(x)
	}
	defer x.note(func() {
		s.seq++
		x.over = s.seq
		if r.ProtoMajor != 1 { // else when net/http has written what it has of the reply
			s.ended()
		}
	})
	x.takeBody(r, p)
	for _, d := range p.copies {
		s.deliverCopy(x, r, d)
	}
	if x.lastOnConn {
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		} else {
			c.retire()
		}
	}
	if p.isStraight() {
		s.straight(w, r, x)
	} else {
		s.crooked(w, r, x, p, c)
	}
}

// arrive gives a request its number and its faults.
func (s *Server) arrive(r *http.Request) (*send, *plan) {
	id := r.Header.Get(idHeader)
	r.Header.Del(idHeader)
	x := newSend(s, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
	s.number(x)
	if id != "" {
		s.seen[id] = x
	}
	p := planFor(s.config.faults, x.n, r)
	x.faults = p.names
	x.lastOnConn = refuses(s.config.faults, x.n+1) != nil
	return x, p
}

// number makes x the next send. The lock is held.
func (s *Server) number(x *send) {
	s.sends = append(s.sends, x)
	s.seq++
	x.n, x.at, x.began = len(s.sends), time.Now(), s.seq
}

// refuseNext reports whether the connection for the next send is refused, and
// notes it.
func (s *Server) refuseNext() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := refuses(s.config.faults, len(s.sends)+1)
	if f == nil {
		return false
	}
	f.hits++
	x := &send{s: s, refused: true, faults: []string{f.name}}
	s.number(x)
	x.over = x.began
	return true
}

// straight runs the handler on the real ResponseWriter.
func (s *Server) straight(w http.ResponseWriter, r *http.Request, x *send) {
	s.begin()
	o := &observer{ResponseWriter: w, head: r.Method == http.MethodHead, declared: -1}
	s.handle(o, r, x, func(how ending) {
		if !how.exited && !o.hijacked && !o.fullDuplex && r.Header.Get("Expect") == "" {
			x.restOfBody(w, r, how.ok())
		}
		o.report(x, how, r.Context().Err())
		if how.panicked != nil {
			panic(how.panicked)
		}
	})
}

// crooked runs the handler, if it is to run, beside the passing on of its reply:
// what the network does to that must not depend on how the handler writes it.
func (s *Server) crooked(w http.ResponseWriter, r *http.Request, x *send, p *plan, c *conn) {
	reply := newReply(w)
	switch {
	case p.ends(status):
		reply.answer(p.end.Fault)
	case p.end != nil && p.end.kind.before():
		wait(r.Context(), p.delay)
		s.breakOff(p, c)
	default:
		s.begin()
		go s.handle(reply, r, x, reply.finish)
	}
	if p.end != nil && p.end.kind.after() {
		reply.swallow(x)
		if !p.ends(statusAfter) {
			wait(r.Context(), p.delay)
			s.breakOff(p, c)
		}
		reply = newReply(w)
		reply.answer(p.end.Fault)
	}
	if !reply.pass(w, r, x, p) {
		s.breakOff(p, c)
	}
}

// breakOff ends the exchange without an answer, or without the rest of one. It
// does not return.
func (s *Server) breakOff(p *plan, c *conn) {
	if p.end != nil {
		switch p.end.kind {
		case resetBefore, resetAfter:
			c.Reset()
		case goAwayBefore:
			c.goAway(unprocessed)
		case goAwayAfter:
			c.goAway(processed)
		}
	}
	// On HTTP/1 this closes the connection, on HTTP/2 it resets the stream.
	panic(http.ErrAbortHandler)
}

// deliverCopy delivers r once more, after d.
func (s *Server) deliverCopy(x *send, r *http.Request, d time.Duration) {
	// The copy comes over another connection, so its context does not end with r's.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	context.AfterFunc(s.closing, cancel)
	r2 := r.Clone(ctx)
	r2.Body = bodyAgain(r)
	s.begin()
	go func() {
		defer cancel()
		if !wait(ctx, d) {
			x.note(s.ended)
			return
		}
		reply := newReply(nil)
		reply.deaf = true
		s.handle(reply, r2, x, reply.finish)
	}()
}

// begin notes that something runs that Once and Close must wait for.
func (s *Server) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
}

// ended notes that it has ended. The lock is held.
func (s *Server) ended() {
	s.running--
	s.idle.Broadcast()
}

// An ending is how a run of the handler ended. Its zero value is a return.
type ending struct {
	panicked any
	exited   bool // by runtime.Goexit, which is what t.FailNow does
}

func (e ending) ok() bool { return e.panicked == nil && !e.exited }

// handle runs the handler, for which begin was called, and tells finish how that
// ended, whichever way it did.
func (s *Server) handle(w http.ResponseWriter, r *http.Request, x *send, finish func(ending)) {
	how := ending{exited: true}
	x.note(func() { x.runs++ })
	defer func() {
		defer x.note(s.ended)
		if v := recover(); v != nil {
			how = ending{panicked: v}
		}
		switch v := how.panicked.(type) {
		case nil:
		case misuse:
			s.t.Errorf("oncetest: %s", string(v))
		default:
			if v != http.ErrAbortHandler {
				log.Printf("oncetest: the handler panicked: %v\n%s", v, debug.Stack())
			}
		}
		x.note(func() { x.endings = append(x.endings, how) })
		finish(how)
	}()
	s.handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sendKey, x)))
	how = ending{}
}

// wait waits for d, or until ctx has ended, and reports whether it was d.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
