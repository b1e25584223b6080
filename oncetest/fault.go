package oncetest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Fault is something that goes wrong between a client and the handler. It goes
// wrong with the first send; [Fault.On], [Fault.Always] and [Fault.Where] return
// a copy that chooses others. A Fault is a value: it holds no state, and several
// servers may use it.
//
// A send is a request that reaches the server, or a connection that [RefuseConn]
// refused in its place. Sends are numbered from 1, those of all clients together,
// repeats included.
//
// Any number of faults may meet in one send. [DelayHeaders], [DripBody] and
// [DeliverTwice] go together with everything; each of the others decides how a
// send ends, and of those the first in NewServer's argument list does. So
//
//	oncetest.NewServer(t, h, oncetest.LoseReply().On(2), oncetest.Status(503).Always())
//
// loses the reply to the second send and answers every other with 503. A fault
// that never happened is named at the end of [Server.Timeline].
type Fault struct {
	kind   kind
	name   string
	status int
	header http.Header
	bytes  int
	wait   time.Duration

	on     []int // nil: the first
	always bool
	where  func(*http.Request) bool
	err    error // what is wrong with it
}

type kind uint8

const (
	none kind = iota
	// These decide how a send ends.
	loseReply
	cutBody
	resetBefore
	resetAfter
	status
	statusAfter
	refuseConn
	goAwayBefore
	goAwayAfter
	// These add to whatever happens.
	delayHeaders
	dripBody
	deliverTwice
)

func (k kind) ends() bool { return none < k && k <= goAwayAfter }

// before reports whether the connection breaks before the handler runs.
func (k kind) before() bool { return k == resetBefore || k == goAwayBefore }

// after reports whether the handler's reply reaches nobody.
func (k kind) after() bool {
	return k == loseReply || k == resetAfter || k == statusAfter || k == goAwayAfter
}

// LoseReply runs the handler and loses its reply whole: on HTTP/1 the connection
// closes, on HTTP/2 the stream is reset. The client cannot know whether anything
// happened.
func LoseReply() Fault { return Fault{kind: loseReply, name: "LoseReply"} }

// CutBody runs the handler and breaks off its reply after n bytes of the body: on
// HTTP/1 the connection closes, on HTTP/2 the stream is reset. The end of the
// body never arrives, not even that of one shorter than n. A reply that has no body, such
// as a 204, cannot be cut and arrives.
func CutBody(n int) Fault {
	f := Fault{kind: cutBody, name: fmt.Sprintf("CutBody(%d)", n), bytes: n}
	if n < 0 {
		f.err = fmt.Errorf("%s: the number of bytes is negative", f.name)
	}
	return f
}

// ResetBefore reads the request and then resets the connection instead of running
// the handler. On HTTP/2 the connection's other requests are lost with it.
func ResetBefore() Fault { return Fault{kind: resetBefore, name: "ResetBefore"} }

// ResetAfter runs the handler and then resets the connection instead of sending
// its reply. On HTTP/2 the connection's other requests are lost with it.
func ResetAfter() Fault { return Fault{kind: resetAfter, name: "ResetAfter"} }

// Status answers with a status code instead of running the handler, as an
// overloaded server or a gateway does. Lines are header fields for the answer:
//
//	oncetest.Status(503, "Retry-After: 2")
func Status(code int, lines ...string) Fault { return statusFault(status, "Status", code, lines) }

// StatusAfter runs the handler, throws its reply away and answers with a status
// code, as a gateway does whose patience was shorter than the work:
//
//	oncetest.StatusAfter(504)
func StatusAfter(code int, lines ...string) Fault {
	return statusFault(statusAfter, "StatusAfter", code, lines)
}

func statusFault(k kind, name string, code int, lines []string) Fault {
	f := Fault{kind: k, name: fmt.Sprintf("%s(%d)", name, code), status: code, header: http.Header{}}
	if code < 200 || code > 999 {
		f.err = fmt.Errorf("%s: the status is not between 200 and 999", f.name)
	}
	for _, line := range lines {
		field, value, ok := strings.Cut(line, ":")
		if !ok || field == "" {
			f.err = fmt.Errorf("%s: %q is no header line; write \"Name: value\"", f.name, line)
			break
		}
		f.header.Add(field, strings.TrimSpace(value))
	}
	return f
}

// DelayHeaders holds the reply back for d, counted from when the handler began
// it. The handler does not wait: it may have finished its work long before a
// client with a shorter timeout gives up.
func DelayHeaders(d time.Duration) Fault {
	return Fault{kind: delayHeaders, name: fmt.Sprintf("DelayHeaders(%v)", d), wait: d, err: positive("DelayHeaders", d)}
}

// DripBody sends the reply's body n bytes at a time, with a wait of d in between.
func DripBody(n int, d time.Duration) Fault {
	f := Fault{kind: dripBody, name: fmt.Sprintf("DripBody(%d, %v)", n, d), bytes: n, wait: d, err: positive("DripBody", d)}
	if n < 1 {
		f.err = fmt.Errorf("%s: the number of bytes is less than 1", f.name)
	}
	return f
}

// RefuseConn refuses the connection that a send needs, so that no byte of the
// request leaves the client. To make it need one, the server ends the connection
// of the send before, once that is answered. A request that comes all the same,
// over another connection that was open, is not touched.
//
// A [Server.Client], or a transport that dials with [Server.DialContext], gets
// ECONNREFUSED. A listening TCP port cannot refuse, so a client that dials
// by itself finds its connection reset before a byte was read.
func RefuseConn() Fault { return Fault{kind: refuseConn, name: "RefuseConn"} }

// GoAwayBefore announces with a GOAWAY frame (RFC 9113, section 6.8) that the
// request was not processed, and closes the HTTP/2 connection; the handler does
// not run. It waits until the connection's other requests are answered. Clients
// may send again whatever the request was; net/http does so by itself if it can.
// On HTTP/1 the connection closes without a reply.
func GoAwayBefore() Fault { return Fault{kind: goAwayBefore, name: "GoAwayBefore"} }

// GoAwayAfter runs the handler and, instead of sending its reply, announces with
// a GOAWAY frame that the request may have been processed, and closes the HTTP/2
// connection; its other requests are lost with it. On HTTP/1 the connection
// closes without a reply.
func GoAwayAfter() Fault { return Fault{kind: goAwayAfter, name: "GoAwayAfter"} }

// DeliverTwice delivers the request to the handler a second time, d after the
// first and, with a d of 0, at the same time, as a proxy or a client's stack does
// that repeats what it has sent. The reply to the copy reaches nobody. [Once]
// waits for the copy.
func DeliverTwice(d time.Duration) Fault {
	f := Fault{kind: deliverTwice, name: "DeliverTwice(0)", wait: d}
	if d != 0 {
		f.name, f.err = fmt.Sprintf("DeliverTwice(%v)", d), positive("DeliverTwice", d)
	}
	return f
}

func positive(name string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%s(%v): the duration is not positive", name, d)
	}
	return nil
}

// On returns f for the sends with these numbers, counted from 1, instead of the
// first.
func (f Fault) On(n ...int) Fault {
	f.on, f.always = slices.Clone(n), false
	if len(n) == 0 || slices.Min(n) < 1 {
		f.err = fmt.Errorf("%s.On(%s): sends are numbered from 1", f.name, join(n))
	}
	return f
}

// Always returns f for every send.
func (f Fault) Always() Fault {
	f.on, f.always = nil, true
	return f
}

// Where returns f for requests of which match is true; f then counts only those.
// Match must not read the body. It cannot be given to RefuseConn, which acts
// before there is a request.
func (f Fault) Where(match func(*http.Request) bool) Fault {
	f.where = match
	if f.kind == refuseConn {
		f.err = fmt.Errorf("RefuseConn.Where: the connection is refused before there is a request")
	}
	return f
}

// String returns f as it is written in Go.
func (f Fault) String() string {
	s := f.name
	if !strings.HasSuffix(s, ")") {
		s += "()"
	}
	switch {
	case f.always:
		s += ".Always()"
	case f.on != nil:
		s += ".On(" + join(f.on) + ")"
	}
	if f.where != nil {
		s += ".Where(…)"
	}
	return s
}

func join(n []int) string {
	s := make([]string, len(n))
	for i, v := range n {
		s[i] = strconv.Itoa(v)
	}
	return strings.Join(s, ", ")
}

// meets reports whether f happens to the n-th send of those that it counts.
func (f Fault) meets(n int) bool {
	return f.always || f.on == nil && n == 1 || slices.Contains(f.on, n)
}

func (f Fault) configure(c *config) {
	if f.kind == none {
		f.err = fmt.Errorf("a Fault must come from one of the package's functions")
	}
	c.faults = append(c.faults, &scripted{Fault: f})
	if f.err != nil && c.err == nil {
		c.err = f.err
	}
}

// A scripted fault is a Fault in a server, where it counts.
type scripted struct {
	Fault
	seen int // sends that it has counted; only used if it counts its own
	hits int
}

// A plan is what goes wrong with one send.
type plan struct {
	end    *scripted // how it ends; nil: well
	delay  time.Duration
	drip   *scripted // nil: at once
	copies []time.Duration
	names  []string
}

// isStraight reports whether the handler's reply needs no help on its way.
func (p *plan) isStraight() bool { return p.end == nil && p.delay == 0 && p.drip == nil }

func (p *plan) ends(k kind) bool { return p.end != nil && p.end.kind == k }

// planFor makes the plan for send n. The server's lock is held.
func planFor(faults []*scripted, n int, r *http.Request) *plan {
	p := new(plan)
	for _, f := range faults {
		count := n
		if f.where != nil {
			if !f.where(r) {
				continue
			}
			f.seen++
			count = f.seen
		}
		if !f.meets(count) || f.kind == refuseConn || f.kind.ends() && p.end != nil {
			continue
		}
		switch f.kind {
		case delayHeaders:
			p.delay += f.wait
		case dripBody:
			if p.drip != nil {
				continue
			}
			p.drip = f
		case deliverTwice:
			p.copies = append(p.copies, f.wait)
		default:
			p.end = f
		}
		f.hits++
		p.names = append(p.names, f.name)
	}
	return p
}

// refuses returns the fault that refuses the connection for send n, if there is
// one.
func refuses(faults []*scripted, n int) *scripted {
	for _, f := range faults {
		if f.kind.ends() && f.where == nil && f.meets(n) {
			if f.kind == refuseConn {
				return f
			}
			return nil // another fault, before it in the list, ends this send
		}
	}
	return nil
}
