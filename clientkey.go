package oncehttp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strings"
)

// A requestKey is the key of one request, and what follows from it for repeats.
type requestKey struct {
	value     string
	minted    bool // made here, for this request only
	supplied  bool // from the caller: other requests may carry it too
	declared  bool // a nil entry in the header: idempotent, says the caller
	unhonored bool // repeated without protection: RetryUnhonored
	strip     bool // the header field must not be sent
	asIs      bool // it stands in the header as the caller wants it
	once      bool // the body could not be compared: one attempt
	ahead     bool // the body had to be read to be compared
}

// repeats reports whether the key, or the caller, allows a repeat of a request
// that is not idempotent by its method.
func (k *requestKey) repeats() bool { return k.value != "" || k.declared || k.unhonored }

// chooseKey finds the request's key. A nil entry in the header comes first,
// as net/http's way to say "idempotent, send nothing"; then the context, since
// an SDK above may mint a fresh key for every try; then the header; then a
// fresh key. Last come the rules for redirects, because http.Client copies
// header fields to the next hop, whoever that belongs to.
func (c *call) chooseKey() error {
	k, req := &c.key, c.req
	if c.safe = isSafe(req.Method); c.safe {
		k.strip = strayed(req, true)
		return nil
	}
	field := c.t.keyField()
	sent, present := req.Header[field]
	var from *http.Request // what redirected to here
	if req.Response != nil {
		from = req.Response.Request
	}
	away := from != nil && from.URL != nil && hostKeyOf(from.URL) != c.host.key
	if present && len(sent) == 0 {
		k.declared = true
		return nil
	}
	source := keySourceFrom(req.Context())
	if err := source.err(); err != nil {
		return err
	}
	own, err := parseKeyField(req.Header, field) // the header's key, however its name is spelled
	if present = err == nil; err != nil && !errors.Is(err, ErrNoKey) {
		return err
	}
	if c.t.Honors != nil && !c.t.Honors(req) {
		k.strip, k.unhonored = present, c.t.RetryUnhonored
		return nil
	}
	before := callOf(req.Response)
	explicit, isExplicit := source.explicitKey()
	switch {
	case before != nil && before.key != "":
		o := outcome(before.ended.Load())
		k.value, k.minted, k.supplied = before.key, o&keyMinted != 0, o&keySupplied != 0
	case isExplicit:
		k.value, k.supplied = explicit, true
	case source.isAction():
		if k.value, err = c.actionKey(source); err != nil {
			return err
		}
		k.supplied = true
	case present:
		k.value, k.supplied = own, true
	default:
		k.value, k.minted = NewKey(), true
	}
	if present && from == nil && own != k.value {
		c.t.logger().Info("oncehttp: the context's key replaces another in the request's header",
			"method", req.Method, "host", req.URL.Host, "path", req.URL.EscapedPath(), "field", field)
	}
	if from != nil && (before == nil || before.key == "") {
		away = strayed(req, false) // the key is of the first hop, not of the one before
	}
	if away {
		k.value = DeriveKey(k.value, originOf(req.URL))
	}
	k.asIs = present && own == k.value && !isExplicit && !source.isAction()
	return nil
}

// strayed reports whether there was another host on the way to req by redirects,
// or, if changes counts, a request that changed something. http.Client copies the
// first request's header to every hop.
func strayed(req *http.Request, changes bool) bool {
	if req.Response == nil {
		return false
	}
	to := hostKeyOf(req.URL)
	for hop := req; hop.Response != nil && hop.Response.Request != nil; {
		hop = hop.Response.Request
		if changes && !isSafe(hop.Method) || hop.URL != nil && hostKeyOf(hop.URL) != to {
			return true
		}
	}
	return false
}

// changesHeader reports whether the header must differ from the caller's.
func (k *requestKey) changesHeader() bool { return k.value != "" && !k.asIs || k.strip }

// header copies h with value in the field, or nothing, and no other spelling of
// it. The copy shares the values of other fields, cut so that an append
// cannot reach the caller's.
func (k *requestKey) header(h http.Header, field string, value []string) http.Header {
	own := make(http.Header, len(h)+1)
	for name, values := range h {
		if len(name) != len(field) || !strings.EqualFold(name, field) {
			own[name] = values[:len(values):len(values)]
		}
	}
	if k.value != "" {
		own[field] = value
	}
	return own
}

// actionKey derives the request's key from its action, and has the action
// compare the request with others under the same key.
func (c *call) actionKey(source *keySource) (string, error) {
	req := c.req
	body, known, err := c.comparableBody(source.implicit())
	if err != nil {
		return "", err
	}
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	contentType, encoding := req.Header.Get("Content-Type"), req.Header.Get("Content-Encoding")
	var fp [32]byte
	if known {
		if body.digest != nil {
			encoding += "; large"
			body.bytes = body.digest
		}
		fp = fingerprint(host, req.URL.RawQuery, contentType, encoding, req.Header.Get("If-Match"), body.bytes)
	}
	c.key.once = !known
	return source.actionKey(req.Method, originOf(req.URL), req.URL.EscapedPath(), fp, known)
}

// A seenBody is a request's body as it is compared: whole, or by its digest.
type seenBody struct{ bytes, digest []byte }

// comparableBody looks at the body before it is sent. Only an action needs
// that. A body without GetBody is read ahead and sent from memory; one that is
// too large for that is refused under an action that a caller named, and not
// compared under one that a handler runs in.
func (c *call) comparableBody(implicit bool) (seen seenBody, known bool, err error) {
	switch {
	case !c.hasBody():
		return seen, true, nil
	case c.getBody() != nil:
		body, err := c.newBody()
		if err != nil {
			return seen, false, &bodyError{err}
		}
		defer body.Close()
		seen, err = readSeen(body)
		if err != nil {
			return seen, false, &bodyError{err}
		}
		return seen, true, nil
	case implicit && (c.req.ContentLength <= 0 || c.req.ContentLength > remembered):
		return seen, false, nil
	}
	body := c.req.Body
	stop := context.AfterFunc(c.req.Context(), func() { body.Close() })
	defer stop()
	b, err := io.ReadAll(io.LimitReader(c.req.Body, remembered+1))
	if ctxErr := c.req.Context().Err(); ctxErr != nil {
		return seen, false, ctxErr
	}
	if err != nil {
		c.more().bodyErr = err
		return seen, false, &bodyError{err}
	}
	if len(b) > remembered {
		return seen, false, fmt.Errorf("%w: under an action a body is read before it is sent, and this one is over %d bytes", ErrBody, remembered)
	}
	c.key.ahead = true
	c.more().getBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	return seenBody{bytes: b}, true, nil
}

// readSeen keeps up to what is remembered, and digests what is longer.
func readSeen(r io.Reader) (seenBody, error) {
	var b bytes.Buffer
	n, err := io.CopyN(&b, r, remembered+1)
	if err == io.EOF {
		return seenBody{bytes: b.Bytes()}, nil
	}
	if err != nil {
		return seenBody{}, err
	}
	var h hash.Hash = sha256.New()
	h.Write(b.Bytes()[:n])
	if _, err := io.Copy(h, r); err != nil {
		return seenBody{}, err
	}
	return seenBody{digest: h.Sum(nil)}, nil
}
