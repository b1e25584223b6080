package keys

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/oncehttp/oncehttp"
)

// A Request is what a client sent, as far as it makes the key of its record.
type Request struct {
	Method string // "": POST
	Path   string // as in the request's first line; a query is left out
	Key    string // the value of its Idempotency-Key field
	Scope  string // what the route's scope calls the client; "" without one
}

// maxPart bounds each part of a Request, in bytes.
const maxPart = 8 << 10

// RecordKey returns the key under which the request is recorded.
func (r Request) RecordKey() (string, error) {
	for _, part := range []struct{ name, value string }{{"method", r.Method}, {"path", r.Path}, {"key", r.Key}, {"scope", r.Scope}} {
		if len(part.value) > maxPart {
			return "", fmt.Errorf("%s: it is longer than %d bytes", part.name, maxPart)
		}
	}
	if r.Method == "" {
		r.Method = "POST"
	}
	if strings.ContainsAny(r.Method, " \t\r\n/") {
		return "", errors.New("method: this is not a method; write one such as POST")
	}
	path, _, _ := strings.Cut(r.Path, "?")
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, " \r\n") {
		return "", errors.New("path: write it as the client sends it, such as /v1/charges, with its escapes and without the host")
	}
	key, err := oncehttp.ParseKey(http.Header{oncehttp.Header: {r.Key}})
	if err != nil {
		return "", errors.New("key: this is not an idempotency key; write it as the client sends it")
	}
	return oncehttp.RecordKey(r.Scope, r.Method, path, key), nil
}
