package oncetest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
)

// An observer is a ResponseWriter that remembers what was answered, and whether
// that was whole.
type observer struct {
	http.ResponseWriter
	head       bool // the request's method is HEAD
	status     int
	declared   int64 // the Content-Length that the handler set; -1: none
	written    int64
	err        error
	hijacked   bool
	fullDuplex bool
}

func (o *observer) WriteHeader(code int) {
	if o.status == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
		o.begin(code)
	}
	o.ResponseWriter.WriteHeader(code)
}

func (o *observer) begin(code int) {
	o.status = code
	if n, err := strconv.ParseInt(o.Header().Get("Content-Length"), 10, 64); err == nil {
		o.declared = n
	}
}

func (o *observer) Write(b []byte) (int, error) {
	if o.status == 0 {
		o.begin(http.StatusOK)
	}
	n, err := o.ResponseWriter.Write(b)
	o.note(int64(n), err)
	return n, err
}

// ReadFrom keeps io.Copy as fast as it is without an observer.
func (o *observer) ReadFrom(r io.Reader) (int64, error) {
	if o.status == 0 {
		o.begin(http.StatusOK)
	}
	n, err := io.Copy(o.ResponseWriter, r)
	o.note(n, err)
	return n, err
}

func (o *observer) note(n int64, err error) {
	o.written += n
	if o.err == nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		o.err = err
	}
}

func (o *observer) Flush() { o.FlushError() }

func (o *observer) FlushError() error {
	if o.status == 0 {
		o.begin(http.StatusOK)
	}
	err := http.NewResponseController(o.ResponseWriter).Flush()
	o.note(0, err)
	return err
}

func (o *observer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(o.ResponseWriter).Hijack()
	o.hijacked = err == nil
	return c, rw, err
}

func (o *observer) EnableFullDuplex() error {
	o.fullDuplex = true
	return http.NewResponseController(o.ResponseWriter).EnableFullDuplex()
}

func (o *observer) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// report writes into x what was answered. Gone says why the client is no longer
// there, if it is not.
func (o *observer) report(x *send, how ending, gone error) {
	x.note(func() {
		if o.hijacked {
			x.fate = "connection taken over by the handler"
			return
		}
		x.status = o.status
		if x.status == 0 && how.ok() {
			x.status = http.StatusOK // what net/http says then
		}
		short := !o.head && o.declared >= 0 && o.written < o.declared
		switch {
		case !how.ok():
			x.fate = "broken off"
		case o.err != nil || gone != nil:
			x.fate = "client gone"
		case short:
			x.fate = fmt.Sprintf("%d of %d bytes sent", o.written, o.declared)
		default:
			x.sent = true
		}
	})
}

// breakAfter sends what was written so far and says that no more will come.
func (o *observer) breakAfter(x *send) bool {
	o.Flush()
	x.note(func() {
		x.status, x.sent = o.status, false
		x.fate = fmt.Sprintf("cut after %d bytes", o.written)
	})
	return false
}
