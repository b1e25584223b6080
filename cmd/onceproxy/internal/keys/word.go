package keys

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/oncehttp/oncehttp"
)

// MaxBody is the largest body of an answer that an operator can give, in bytes.
const MaxBody = 1 << 20

// A Word is an operator's, on how a request ended that nobody recorded the end of.
type Word struct {
	// Happened says that the request took effect: repeats get the answer below. Else
	// it did not: the key is freed, and a repeat is sent on.
	Happened    bool
	Status      int    // 200 to 599
	ContentType string // "" only without a body
	Body        []byte
}

// Resolution is the word as a store takes it.
func (w Word) Resolution() (oncehttp.Resolution, error) {
	if !w.Happened {
		if w.Status != 0 || w.ContentType != "" || len(w.Body) > 0 {
			return oncehttp.Resolution{}, errors.New("there is an answer, but the request is said not to have happened; leave one of them out")
		}
		return oncehttp.Resolution{}, nil
	}
	header := make(http.Header)
	switch {
	case w.Status < 200 || w.Status > 599:
		return oncehttp.Resolution{}, errors.New("status: say which one repeats get, between 200 and 599")
	case len(w.Body) > MaxBody:
		return oncehttp.Resolution{}, fmt.Errorf("body: it is larger than %d bytes", MaxBody)
	case len(w.Body) > 0 && (w.Status == http.StatusNoContent || w.Status == http.StatusNotModified):
		return oncehttp.Resolution{}, fmt.Errorf("body: an answer with status %d has none", w.Status)
	case len(w.Body) > 0 && w.ContentType == "":
		return oncehttp.Resolution{}, errors.New("content type: say what the body is, such as application/json")
	}
	if w.ContentType != "" {
		if _, _, err := mime.ParseMediaType(w.ContentType); err != nil || !strings.Contains(w.ContentType, "/") || len(w.ContentType) > 200 {
			return oncehttp.Resolution{}, errors.New("content type: this is not one; write one such as application/json")
		}
		header.Set("Content-Type", w.ContentType)
	}
	return oncehttp.Resolution{Applied: true, Head: oncehttp.EncodeResponse(w.Status, header, w.Body), Body: w.Body}, nil
}
