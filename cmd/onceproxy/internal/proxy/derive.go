package proxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"

	"github.com/oncehttp/oncehttp"
)

// derive gives a request without a key one that is made of what is asked and by whom,
// and reports whether it could: a client that has no credentials, or a body that is too
// large, leave it without. It reads the body, and puts it back.
func (rt *Route) derive(r *http.Request, who *principal) (bool, error) {
	owner := who.scope
	if owner == "" {
		// The same in every process: the key goes to a store that they share.
		id, any := credentialDigest([]byte("onceproxy-derived/v1"), r)
		if !any && !rt.conf.Key.DeriveAnonymous {
			return false, nil
		}
		owner = id
	}
	digest, whole, err := digestBody(r, rt.conf.Limits.Body.Or(defaultResponse))
	if err != nil || !whole {
		return false, err
	}
	r.Header[rt.field] = []string{oncehttp.DeriveKey("onceproxy", owner, r.Method, r.Host, r.URL.EscapedPath(), r.URL.RawQuery,
		r.Header.Get("Content-Type"), digest)}
	return true, nil
}

// digestBody reads the body up to most bytes and leaves the request with all of it.
func digestBody(r *http.Request, most int64) (digest string, whole bool, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return "", true, nil
	}
	if r.ContentLength > most {
		return "", false, nil
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return "", false, err
	}
	whole = int64(len(b)) <= most
	rest := r.Body
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b), rest), rest}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), whole, nil
}
