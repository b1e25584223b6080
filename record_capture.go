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
	w     http.ResponseWriter
	r     *run
	limit int64                                // largest body that is recorded
	test  func(status int, h http.Header) bool // Middleware.Record
	wait  time.Duration                        // how long a client may take to read what is written
	hold  bool                                 // never pass anything on before the record is made
	// writeBy is when the server itself gives up writing; zero: never.
	writeBy time.Time

	header   http.Header // the handler's; nil until it asks for it
	before   http.Header // what outer layers had set by then
	values   []string    // of the header that goes out, with room for two more
	status   int         // 0: not yet written
	body     []byte
	trailers []string // declared, canonical
	length   bool     // the handler gave a Content-Length
	tooLarge bool
	hijack   bool // was tried

	streaming bool
	answers   bool   // from when streaming began: its status and header say that this is an answer
	announced bool   // the client was told that it is the recorded one
	fields    []byte // what is recorded of the header, from when streaming began
	control   *http.ResponseController
	untimed   bool // the writer knows no deadlines
	gone      bool // the client is

	room [192]byte // for the head, which is rarely larger
}

// Header implements http.ResponseWriter. The handler gets a copy: after
// WriteHeader its changes must not count, except for trailers.
func (c *capture) Header() http.Header {
	if c.header == nil {
		h := c.w.Header()
		c.remember(h)
		if c.header = h.Clone(); c.header == nil {
			c.header = make(http.Header)
		}
	}
	return c.header
}

// remember keeps what outer layers had set. Only the map is copied: they do not
// change the values while the handler runs.
func (c *capture) remember(h http.Header) {
	if len(h) > 0 && c.before == nil {
		c.before = maps.Clone(h)
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
	if c.header != nil {
		c.values = copyHeader(h, c.header)
	} else {
		c.remember(h)
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		c.w.WriteHeader(status)
		return
	}
	c.status = status
	c.length = c.header["Content-Length"] != nil
	for _, v := range c.header["Trailer"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = textproto.TrimString(name); name != "" {
				c.trailers = append(c.trailers, http.CanonicalHeaderKey(name))
			}
		}
	}
}

// copyHeader makes dst what src is, without the fields that only a Middleware may
// set and without late trailers. It returns all values.
func copyHeader(dst, src http.Header) []string {
	clear(dst)
	n := 0
	for _, values := range src {
		n += len(values)
	}
	all := make([]string, 0, n+2)
	for name, values := range src {
		if isControl(name) || strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		start := len(all)
		all = append(all, values...)
		dst[name] = all[start:len(all):len(all)]
	}
	return all
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
	case c.hold || int64(len(c.body))+int64(len(p)) <= c.limit:
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
	if len(c.body) > 0 {
		next = c.body
	}
	// The server would sniff the type of whatever is written first, which on a
	// replay is more.
	if _, ok := h["Content-Type"]; !ok && bodyAllowed(c.status) && h.Get("Content-Encoding") == "" {
		if h["Content-Type"] = nil; len(next) > 0 {
			h["Content-Type"] = []string{http.DetectContentType(next)}
		}
	}
	// Now, because outer layers may change the header when it is written.
	c.fields = appendFields(make([]byte, 0, 256), h, c.before)
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
	if len(c.body) > 0 {
		c.pass(c.body)
	}
}

// isAnswer says whether the response answers the request, or says that nothing
// was done.
func (c *capture) isAnswer() bool {
	if c.streaming {
		return c.answers
	}
	h := c.w.Header()
	if c.test != nil {
		return c.test(c.status, h)
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
	by := time.Now().Add(c.wait)
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
}

// die makes the response one that says that the handler died. If a part of
// another one is on its way, the client sees that cut short.
func (c *capture) die() {
	c.undo()
	c.header, c.before, c.trailers, c.fields = nil, nil, nil, nil
	c.status, c.body, c.length, c.tooLarge = http.StatusInternalServerError, diedBody, true, false
	c.fields = appendFields(nil, http.Header{"Content-Type": {"application/problem+json"}}, nil)
}

// record returns the response as it is stored.
func (c *capture) record() (head, body []byte) {
	s := stored{status: c.status, bodyLen: len(c.body), length: c.length}
	body = c.body
	if c.tooLarge || int64(len(body)) > c.limit && c.hold {
		s.gone, s.bodyLen, body = true, 0, nil
	}
	fields := c.fields
	if fields == nil {
		var stack [512]byte
		fields = appendFields(stack[:0], c.w.Header(), c.before)
	}
	return appendHead(c.room[:0], s, fields, c.header, c.trailers), body
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
	c.setTrailers(h, true)
	c.w.WriteHeader(c.status)
	if len(c.body) > 0 {
		c.w.Write(c.body)
	}
	c.setTrailers(h, false)
}

// setTrailers sets the trailers with a prefix, or the declared ones.
func (c *capture) setTrailers(h http.Header, prefixed bool) {
	if !prefixed {
		for _, name := range c.trailers {
			if values, ok := c.header[name]; ok {
				h[name] = slices.Clone(values)
			}
		}
		return
	}
	for name, values := range c.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			h[name] = slices.Clone(values)
		}
	}
}

// again forgets what a handler did whose transaction was rolled back and that runs
// once more. Nothing of it went out: hold is set.
func (c *capture) again() {
	c.undo()
	c.header, c.values, c.body, c.trailers, c.fields = nil, nil, nil, nil, nil
	c.status, c.length, c.tooLarge, c.hijack = 0, false, false, false
}

// undo takes back what the handler set, of a response that is not sent.
func (c *capture) undo() {
	if c.header != nil && !c.streaming {
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
	s.fields(h)
	h[headerReplayed] = []string{"true"}
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

// finish ends a stream.
func (c *capture) finish() {
	h := c.w.Header()
	c.setTrailers(h, true)
	c.setTrailers(h, false)
}
