package oncehttp

import (
	"bytes"
	"io"
	"net/http"
	"strings"
)

// readReply reads a reply of up to most bytes into memory, so that one which
// is cut short is noticed while the request can still be sent again. It returns
// why the reply was cut, nil if it was not, and leaves the bytes that came, and
// then the error, in resp.Body.
func readReply(resp *http.Response, most int64, method string) error {
	if method == http.MethodHead || resp.Body == http.NoBody || resp.ContentLength > most ||
		resp.StatusCode == http.StatusSwitchingProtocols || isEventStream(resp.Header) {
		return nil
	}
	var b bytes.Buffer
	n, err := io.CopyN(&b, resp.Body, most+1)
	switch {
	case err == io.EOF:
		resp.Body.Close()
		resp.Body = io.NopCloser(&b)
		return nil
	case err != nil:
		resp.Body = &heldReply{&b, &errReader{err}, resp.Body}
		return err
	case n > most:
		resp.Body = &heldReply{&b, resp.Body, resp.Body}
	}
	return nil
}

// isEventStream reports whether a reply is a stream of server-sent events,
// which may never end.
func isEventStream(h http.Header) bool {
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), "text/event-stream")
}

// A heldReply hands on what was read ahead, and then the rest.
type heldReply struct {
	ahead *bytes.Buffer
	rest  io.Reader
	io.Closer
}

func (r *heldReply) Read(p []byte) (int, error) {
	if r.ahead.Len() > 0 {
		return r.ahead.Read(p)
	}
	return r.rest.Read(p)
}

// endsWith replaces the error by which a cut reply ends.
func (r *heldReply) endsWith(err error) {
	if tail, ok := r.rest.(*errReader); ok {
		tail.err = err
	}
}

type errReader struct{ err error }

func (r *errReader) Read([]byte) (int, error) { return 0, r.err }
