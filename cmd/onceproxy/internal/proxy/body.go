package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A pacedBody is a request's body whose client has to keep sending: each Read must
// bring something within idle, and all of them together must be done by end. What has
// no end may take as long as it likes.
type pacedBody struct {
	io.ReadCloser
	control *http.ResponseController
	idle    time.Duration
	end     time.Time // zero: none
	over    bool
}

// errSlow says that a client did not send the body of its request in time. It wraps
// the error by which the Middleware knows.
var errSlow = errors.Join(errors.New("the client did not send the request's body in time"), os.ErrDeadlineExceeded)

// Read implements io.Reader.
func (b *pacedBody) Read(p []byte) (int, error) {
	if b.over || b.idle <= 0 {
		return b.ReadCloser.Read(p)
	}
	by := time.Now().Add(b.idle)
	if !b.end.IsZero() && b.end.Before(by) {
		by = b.end
	}
	b.control.SetReadDeadline(by)
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		// Else the server, which from now on waits for the client to go away, would
		// take the deadline for that.
		b.over = true
		b.control.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		// The deadline stays: the server reads what is left of a body before it
		// answers, and would wait for it without end.
		b.over = true
		err = errSlow
	case err != nil:
		b.over = true
	}
	return n, err
}

// refuseBody is for a request without a key whose own body is the trouble, which turns
// up only while it is on its way.
func refuseBody(err error) *oncehttp.Refusal {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return refuseTooLarge()
	case errors.Is(err, errSlow):
		return &oncehttp.Refusal{
			Type: problem("body-unreadable"), Status: http.StatusRequestTimeout,
			Title:   "The request body came too slowly",
			Detail:  "A part of the request was passed on before its client stopped sending.",
			Outcome: "unknown", Err: err,
		}
	}
	return nil
}

// refuseUnread is for a body that did not arrive before anything was done with it.
func refuseUnread(err error) *oncehttp.Refusal {
	if p := refuseBody(err); p != nil {
		return p
	}
	return &oncehttp.Refusal{
		Type: problem("body-unreadable"), Status: http.StatusBadRequest,
		Title:   "The request body did not arrive",
		Detail:  "The body was cut short, so this request was not sent on.",
		Outcome: "unknown", Err: err,
	}
}

func refuseTooLarge() *oncehttp.Refusal {
	return &oncehttp.Refusal{
		Type: problem("body-too-large"), Status: http.StatusRequestEntityTooLarge,
		Title:   "The request body is too large",
		Detail:  "This proxy does not pass on bodies of this size.",
		Outcome: "none",
	}
}
