package proxy

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
)

// hold reads an answer to a request with a key whole, unless it is a stream or large,
// so that one which is cut short can be answered in words, and a whole one is recorded
// before it is sent. Of a stream, the client sees the cut itself; its repeats learn
// that the outcome is unknown.
func (rt *Route) hold(resp *http.Response, x *exchange) error {
	most := rt.conf.Limits.Response.Or(defaultResponse)
	if !isHeld(resp, most) {
		resp.Body = &watchedBody{resp.Body, x}
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return errors.Join(errCut, err)
	case int64(len(b)) > most:
		resp.Body = &watchedBody{struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(b), resp.Body), resp.Body}, x}
		return nil
	}
	resp.Body.Close()
	// A ReverseProxy flushes what has no length at once, and that begins a stream.
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	return nil
}

const defaultResponse = 1 << 20

// isHeld reports whether an answer is held back until its end has come: one of a known
// and moderate length, or a JSON document, which is of no use before its end.
func isHeld(resp *http.Response, most int64) bool {
	switch {
	case resp.Request.Method == http.MethodHead || resp.ContentLength == 0 || resp.ContentLength > most:
		return false
	case resp.ContentLength > 0:
		return true
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}

// A watchedBody notices when an answer is cut short.
type watchedBody struct {
	io.ReadCloser
	x *exchange
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.x.unknown()
	}
	return n, err
}
