package oncehttp

import (
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
)

// readBody reads the request's body. It is read whole before anything is
// claimed: a body that does not arrive leaves no trace.
func (x *exchange) readBody() *Refusal {
	r, limit := x.req, x.p.m.maxBody()
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if r.ContentLength > limit {
		return refuseBodyTooLarge(limit)
	}
	// A declared length is not believed beyond what is cheap: memory follows
	// what has arrived.
	size := int64(512)
	if r.ContentLength >= 0 {
		size = min(r.ContentLength+1, 32<<10) // one more, to see the end
	}
	b := x.room[:0]
	if size > int64(len(x.room)) {
		b = make([]byte, 0, size)
	}
	for {
		if len(b) == cap(b) {
			b = slices.Grow(b, 1)
		}
		n, err := r.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case int64(len(b)) > limit:
			return refuseBodyTooLarge(limit)
		case err == io.EOF:
			x.data = b
			return x.consumed()
		case err != nil:
			return x.bodyError(err)
		}
	}
}

// consumed looks for what an outer layer has read of the body. A form that it
// parsed is what the handler sees too. Anything else is gone: two different
// requests would look the same. Without a Content-Length there is no telling.
func (x *exchange) consumed() *Refusal {
	r := x.req
	missing := int64(len(x.data)) < r.ContentLength && r.Header.Get("Content-Encoding") == ""
	files := r.MultipartForm != nil && len(r.MultipartForm.File) > 0
	switch {
	case len(x.data) == 0 && !files && len(r.PostForm) > 0:
		x.form = r.PostForm.Encode()
	case len(x.data) == 0 && files, missing:
		x.p.m.once.log().ErrorContext(r.Context(), "oncehttp: a layer outside of the Middleware has read the request's body; the request was not run",
			"method", x.r.method, "path", x.r.path)
		return refuseConsumed()
	}
	return nil
}

func (x *exchange) bodyError(err error) *Refusal {
	x.cut = true
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge): // an outer layer's limit
		return refuseBodyTooLarge(tooLarge.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuseBody(http.StatusRequestTimeout, err)
	}
	return refuseBody(http.StatusBadRequest, err)
}

// A bodyReader is the body that the handler gets.
type bodyReader struct {
	b      []byte
	closed atomic.Bool // a client that it was handed to may still read when the handler closes it
}

func (b *bodyReader) Read(p []byte) (int, error) {
	switch {
	case b.closed.Load():
		return 0, http.ErrBodyReadAfterClose
	case len(b.b) == 0 && len(p) > 0:
		return 0, io.EOF
	}
	n := copy(p, b.b)
	b.b = b.b[n:]
	return n, nil
}

func (b *bodyReader) WriteTo(w io.Writer) (int64, error) {
	switch {
	case b.closed.Load():
		return 0, http.ErrBodyReadAfterClose
	case len(b.b) == 0:
		return 0, nil
	}
	n, err := w.Write(b.b)
	b.b = b.b[n:]
	return int64(n), err
}

func (b *bodyReader) Close() error {
	b.closed.Store(true)
	return nil
}
