package oncehttp

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

// connTrace counts the connections that net/http obtains for an attempt whose
// certainty matters. The Base may be, or hide, something that sends more than
// once, and then the last error says nothing of the sends before.
type connTrace struct {
	httptrace.ClientTrace
	asked atomic.Bool
	conns atomic.Int32
	again atomic.Bool // the attempt was ended before net/http sent it again

	mu   sync.Mutex
	last net.Conn
}

// hooks returns a's trace, with what the caller's own trace asks for in it.
func (a *attempt) hooks() *httptrace.ClientTrace {
	if t := a.trace.Load(); t != nil {
		return &t.ClientTrace
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.trace.Load()
	if t == nil {
		t = new(connTrace)
		if a.t.overNetHTTP() {
			// net/http's own: it proves something if no connection was obtained.
			t.GetConn = func(string) { t.asked.Store(true) }
		}
		t.GotConn = func(info httptrace.GotConnInfo) { a.gotConn(t, info.Conn) }
		if httptrace.ContextClientTrace(a.c) != nil {
			httptrace.WithClientTrace(a.c, &t.ClientTrace) // which adds the caller's hooks to ours
		}
		a.trace.Store(t)
	}
	return &t.ClientTrace
}

// traceKey is the key by which httptrace finds a trace in a context. An attempt
// answers to it, and so makes a trace only for a Base that looks for one.
var traceKey = func() any {
	var k askedFor
	httptrace.ContextClientTrace(&k)
	return k.key
}()

// askedFor notes the key of the value that it is asked for.
type askedFor struct {
	context.Context
	key any
}

func (x *askedFor) Value(k any) any {
	x.key = k
	return nil
}

// gotConn ends an attempt that net/http is about to send again over another
// HTTP/2 connection. It does so after a stream error PROTOCOL_ERROR, for any
// method, without a pause and without an end, while that error also comes from
// proxies to which the answer of work that was done looked malformed:
// golang/go#47635. A stream that was refused is sent again over the same one.
func (a *attempt) gotConn(t *connTrace, conn net.Conn) {
	t.mu.Lock()
	other := t.last != nil && t.last != conn
	t.last = conn
	t.mu.Unlock()
	if other && a.ends && a.overHTTP2(conn) {
		t.again.Store(true)
		a.end()
		return
	}
	t.conns.Add(1)
}

// overHTTP2 reports whether conn, or else the host's latest answer, is HTTP/2.
func (a *attempt) overHTTP2(conn net.Conn) bool {
	if tlsConn, ok := conn.(*tls.Conn); ok {
		return tlsConn.ConnectionState().NegotiatedProtocol == "h2"
	}
	if t, ok := a.t.base().(*http.Transport); ok && t.Protocols != nil && t.Protocols.UnencryptedHTTP2() {
		return true
	}
	return a.t.hostOf(a.c.req.URL).v.proto.Load() == 2
}

// traced returns a's trace, if a Base has looked for it.
func (a *attempt) traced() *connTrace {
	if a == nil {
		return nil
	}
	return a.trace.Load()
}

// seen is what the connections tell.
func (t *connTrace) seen() wire {
	if t == nil {
		return wire{}
	}
	return wire{asked: t.asked.Load(), conns: t.conns.Load()}
}
