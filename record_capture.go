package oncehttp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A capture is the ResponseWriter of a handler whose response is recorded. It
// holds the response back until the record is made, or, from the first Flush or
// once it is too large to record, passes it on as it is written.
//
// It has no Unwrap method: a wrapper or an http.ResponseController that reached the
// server's own ResponseWriter through it would write past the record. So it has
// every method that they look for.
type capture struct {
	m *Middleware
	w http.ResponseWriter
	r *run
	// writeBy is when the server itself gives up writing; zero: never.
	writeBy time.Time

	before   http.Header // what outer layers had set by then
	header   []field     // as it was at WriteHeader
	values   []string    // of header, one behind the other
	status   int         // 0: not yet written
	body     []byte
	trailers []string // declared, canonical
	late     []field  // trailers, when the handler has returned
	hold     bool     // never pass anything on before the record is made
	asked    bool     // the handler has asked for the header
	length   bool     // the handler gave a Content-Length
	tooLarge bool
	hijack   bool // was tried

	streaming bool
	answers   bool // from when streaming began: its status and header say that this is an answer
	announced bool // the client was told that it is the recorded one
	untimed   bool // the writer knows no deadlines
	gone      bool // the client is
	control   *http.ResponseController

	// Room for what is small in most responses.
	fieldRoom [3]field
	valueRoom [4]string
	bodyRoom  [64]byte
}

// A field is one of a header.
type field struct {
	name   string
	values []string
}

// Header implements http.ResponseWriter. The handler gets the map that goes out;
// after WriteHeader its changes do not count, except for trailers: see restore.
func (c *capture) Header() http.Header {
	h := c.w.Header()
	if !c.asked {
		c.asked = true
		if c.status == 0 {
			c.remember(h)
		}
	}
	return h
}

// remember keeps what outer layers had set.
func (c *capture) remember(h http.Header) {
	if len(h) > 0 && c.before == nil {
		c.before = h.Clone()
	}
}

// WriteHeader implements http.ResponseWriter.
func (c *capture) WriteHeader(status int) {
	if status < 100 || status > 999 { // as net/http does
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
	if c.status != 0 {
		return
	}
	h := c.w.Header()
	if !c.asked {
		c.remember(h)
	}
	c.take(h)
	if status < 200 && status != http.StatusSwitchingProtocols {
		late := c.restore(h)
		c.w.WriteHeader(status)
		setFields(h, late)
		return
	}
	c.status = status
	if !c.asked {
		return // what stands there is not the handler's
	}
	for _, f := range c.header {
		switch f.name {
		case "Content-Length":
			c.length = h[f.name] != nil // nil: the server is to send none
		case "Trailer":
			c.declare(f.values)
		}
	}
}

// declare notes trailers that the handler announces.
func (c *capture) declare(values []string) {
	for _, v := range values {
		for name := range strings.SplitSeq(v, ",") {
			if name = textproto.TrimString(name); name != "" {
				c.trailers = append(c.trailers, http.CanonicalHeaderKey(name))
			}
		}
	}
}

// take notes what the header is now, without late trailers, and removes the fields
// that only a Middleware may set.
func (c *capture) take(h http.Header) {
	if c.header == nil {
		c.header, c.values = c.fieldRoom[:0], c.valueRoom[:0]
	} else { // since a 1xx, after which h may have values of the room
		c.header, c.values = []field{}, nil
	}
	for name, values := range h {
		switch {
		case c.asked && isControl(name):
			delete(h, name)
		case !strings.HasPrefix(name, http.TrailerPrefix):
			n := len(c.values)
			c.values = append(c.values, values...)
			c.header = append(c.header, field{name, c.values[n:len(c.values):len(c.values)]})
		}
	}
}

// restore makes the header again what take noted, and returns the trailers that it had
// to take out.
func (c *capture) restore(h http.Header) (late []field) {
	same := len(h) == len(c.header) && len(c.trailers) == 0
	for i := 0; same && i < len(c.header); i++ {
		values, ok := h[c.header[i].name]
		same = ok && slices.Equal(values, c.header[i].values)
	}
	if same {
		return nil
	}
	late = c.lateFields(h)
	clear(h)
	setFields(h, c.header)
	return late
}

// lateFields returns the trailers that h has: the declared ones, and those with a
// prefix.
func (c *capture) lateFields(h http.Header) (late []field) {
	for _, name := range c.trailers {
		if values, ok := h[name]; ok {
			late = append(late, field{name, slices.Clone(values)})
		}
	}
	for name, values := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			late = append(late, field{name, slices.Clone(values)})
		}
	}
	return late
}

func setFields(h http.Header, fields []field) {
	for _, f := range fields {
		h[f.name] = f.values
	}
}

// set sets a field of the header that goes out.
func (c *capture) set(h http.Header, name, value string) {
	n := len(c.values)
	c.values = append(c.values, value)
	h[name] = c.values[n : n+1 : n+1]
}

// Write implements http.ResponseWriter.
func (c *capture) Write(p []byte) (int, error) { return captured(c, p) }

// WriteString implements io.StringWriter.
func (c *capture) WriteString(s string) (int, error) { return captured(c, s) }

func captured[T []byte | string](c *capture, p T) (int, error) {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(c.status) {
		return 0, http.ErrBodyNotAllowed
	}
	switch {
	case c.tooLarge:
	case c.hold || int64(len(c.body))+int64(len(p)) <= c.m.maxResponse():
		if c.body == nil {
			c.body = c.bodyRoom[:0]
		}
		c.body = append(c.body, p...)
	default:
		c.tooLarge = true
		if !c.streaming {
			c.stream([]byte(p[:min(len(p), 512)]))
		}
		c.body = nil
	}
	if !c.streaming {
		return len(p), nil
	}
	return c.pass([]byte(p))
}

// ReadFrom implements io.ReaderFrom.
func (c *capture) ReadFrom(src io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{c}, src, buf[:])
}

var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// stream begins to pass the response on. next is what comes behind c.body.
func (c *capture) stream(next []byte) {
	h := c.w.Header()
	late := c.restore(h)
	if len(c.body) > 0 {
		next = c.body
	}
	// The server would sniff the type of whatever is written first, which on a
	// replay is more.
	if _, ok := h["Content-Type"]; !ok && bodyAllowed(c.status) && h.Get("Content-Encoding") == "" {
		if h["Content-Type"] = nil; len(next) > 0 {
			h["Content-Type"] = []string{http.DetectContentType(next)}
		}
		c.header = append(c.header, field{"Content-Type", h["Content-Type"]})
	}
	c.part()
	c.answers = c.isAnswer()
	// A 5xx may yet be declared unknown.
	if c.answers && c.status < 500 && !c.r.saidUnknown.Load() && !c.r.saidRelease.Load() {
		c.set(h, headerStatus, executed)
		c.announced = true
	}
	c.streaming = true
	c.control = http.NewResponseController(c.w)
	c.arm()
	c.w.WriteHeader(c.status)
	c.disarm()
	setFields(h, late) // the handler may go on to change them
	if len(c.body) > 0 {
		c.pass(c.body)
	}
}

// part gives what was noted of the header values of its own: the handler, which goes on,
// may change in place those that stand in the map now.
func (c *capture) part() {
	values := make([]string, 0, len(c.values)+1)
	for i := range c.header {
		n := len(values)
		values = append(values, c.header[i].values...)
		c.header[i].values = values[n:len(values):len(values)]
	}
}

// isAnswer says whether the response answers the request, or says that nothing
// was done.
func (c *capture) isAnswer() bool {
	if c.streaming {
		return c.answers
	}
	h := c.w.Header()
	if c.m.Record != nil {
		return c.m.Record(c.status, h)
	}
	switch c.status {
	case http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusMisdirectedRequest,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	case http.StatusServiceUnavailable:
		return h.Get("Retry-After") == ""
	}
	return true
}

// pass writes to the client. The handler does not learn that the client is gone,
// since it must not stop half-way. That its claim is lost it does learn.
func (c *capture) pass(p []byte) (int, error) {
	if c.r.isLost() {
		return 0, errLost
	}
	if c.gone {
		return len(p), nil
	}
	c.arm()
	n, err := c.w.Write(p)
	c.disarm()
	if errors.Is(err, http.ErrContentLength) { // the handler's own mistake
		return n, err
	}
	c.gone = err != nil
	return len(p), nil
}

// arm sets the time by which the client must have read what is written next,
// disarm takes it back: in HTTP/2 it would also end a stream that merely pauses.
func (c *capture) arm() {
	by := time.Now().Add(max(c.m.once.wait(), minReading))
	if !c.writeBy.IsZero() && c.writeBy.Before(by) {
		by = c.writeBy
	}
	c.untimed = c.untimed || c.control.SetWriteDeadline(by) != nil
}

func (c *capture) disarm() {
	if !c.untimed {
		c.control.SetWriteDeadline(c.writeBy)
	}
}

// Flush implements http.Flusher.
func (c *capture) Flush() { c.FlushError() }

// FlushError is what an http.ResponseController calls.
func (c *capture) FlushError() error {
	if c.hold || !canFlush(c.w) {
		return fmt.Errorf("oncehttp: this response cannot be flushed before it is complete: %w", http.ErrNotSupported)
	}
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if c.r.isLost() {
		return errLost
	}
	if !c.streaming {
		c.stream(nil)
	}
	if !c.gone {
		c.arm()
		c.gone = c.control.Flush() != nil
		c.disarm()
	}
	return nil
}

func canFlush(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case interface{ FlushError() error }, http.Flusher:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// Hijack refuses: what happens on a hijacked connection cannot be recorded.
func (c *capture) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.hijack = true
	return nil, nil, fmt.Errorf("oncehttp: a request with an idempotency key cannot be hijacked: %w", http.ErrNotSupported)
}

// SetReadDeadline is what an http.ResponseController calls.
func (c *capture) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(c.w).SetReadDeadline(t)
}

// SetWriteDeadline is what an http.ResponseController calls. A client that stops
// reading a stream may be given up earlier.
func (c *capture) SetWriteDeadline(t time.Time) error {
	c.writeBy = t
	return http.NewResponseController(c.w).SetWriteDeadline(t)
}

// EnableFullDuplex is what an http.ResponseController calls. The request's body
// has been read by then, so it makes no difference.
func (c *capture) EnableFullDuplex() error {
	return http.NewResponseController(c.w).EnableFullDuplex()
}

// Push implements http.Pusher.
func (c *capture) Push(target string, opts *http.PushOptions) error {
	if p, ok := c.w.(http.Pusher); ok {
		return p.Push(target, opts)
	}
	return http.ErrNotSupported
}

// end completes what the handler left to the server.
func (c *capture) end() {
	switch {
	case c.status != 0:
	case c.hijack:
		c.Header().Set("Content-Type", "application/problem+json")
		c.WriteHeader(http.StatusBadRequest)
		c.Write(hijackBody)
	default:
		c.WriteHeader(http.StatusOK)
	}
	switch h := c.w.Header(); {
	case !c.asked:
	case c.streaming:
		c.late = c.lateFields(h)
	default:
		c.late = c.restore(h)
	}
}

// die makes the response one that says that the handler died. If a part of
// another one is on its way, the client sees that cut short.
func (c *capture) die() {
	c.undo()
	c.before, c.trailers, c.late = nil, nil, nil
	c.header = []field{{"Content-Type", []string{"application/problem+json"}}}
	c.status, c.body, c.length, c.tooLarge = http.StatusInternalServerError, diedBody, true, false
}

// record returns the response as it is stored. Its head lies in room, if that is enough.
func (c *capture) record(room []byte) (head, body []byte) {
	s := stored{status: c.status, bodyLen: len(c.body), length: c.length}
	body = c.body
	if c.tooLarge || int64(len(body)) > c.m.maxResponse() && c.hold {
		s.gone, s.bodyLen, body = true, 0, nil
	}
	return appendHead(room, s, c.header, c.before, c.late), body
}

// send sends a response that was held back.
func (c *capture) send(isRecorded bool) {
	h := c.w.Header()
	if isRecorded {
		c.set(h, headerStatus, executed)
	}
	if c.length && bodyAllowed(c.status) {
		c.set(h, "Content-Length", strconv.Itoa(len(c.body)))
	}
	// Before the header, so that HTTP/1 does not send a short body with its
	// length and without its trailers.
	setTrailers(h, c.late, true)
	c.w.WriteHeader(c.status)
	if len(c.body) > 0 {
		c.w.Write(c.body)
	}
	setTrailers(h, c.late, false)
}

// setTrailers sets the trailers with a prefix, or the declared ones.
func setTrailers(h http.Header, late []field, prefixed bool) {
	for _, f := range late {
		if strings.HasPrefix(f.name, http.TrailerPrefix) == prefixed {
			h[f.name] = f.values
		}
	}
}

// undo takes back what the handler set, of a response that is not sent.
func (c *capture) undo() {
	if c.asked && !c.streaming {
		h := c.w.Header()
		clear(h)
		maps.Copy(h, c.before)
	}
}

// replay writes a recorded response. It reports false, and the outcome, if that
// cannot be done.
func replay(w http.ResponseWriter, a *Answer) (status int, outcome string, ok bool) {
	s, err := parseHead(a.Head)
	if err != nil {
		return 0, outcomeUnknown, false
	}
	if s.gone || a.BodyDropped && s.bodyLen > 0 || s.bodyLen != len(a.Body) {
		if s.status >= 200 && s.status <= 299 {
			return s.status, outcomeApplied, false
		}
		return s.status, outcomeUnknown, false
	}
	h := w.Header()
	values := append(s.fields(h), "true")
	h[headerReplayed] = values[len(values)-1:]
	if s.length && bodyAllowed(s.status) {
		h["Content-Length"] = []string{strconv.Itoa(s.bodyLen)}
	}
	s.trailers(h, true)
	w.WriteHeader(s.status)
	if len(a.Body) > 0 {
		w.Write(a.Body)
	}
	s.trailers(h, false)
	return s.status, "", true
}

// executed is the value of Idempotency-Status on an answer that was recorded just
// now.
const executed = "executed"
