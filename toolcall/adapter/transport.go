package adapter

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"

	"github.com/oncehttp/oncehttp"
)

// Transport sends a model's requests through an [oncehttp.Transport].
//
// A model that is called inside a tool, as a sub-agent does, is not the tool's effect, and the key
// of the tool's call can name one request only. So each call of the model gets a key that is
// derived from that and from its own content. Requests to other paths than Paths, such as a
// tool's own request through the same client, keep the key of the call.
type Transport struct {
	*oncehttp.Transport
	Paths []string // how the URL's path of a model's request ends
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	key, _ := oncehttp.KeyFromContext(req.Context())
	if !strings.HasPrefix(key, "tc1_") || req.GetBody == nil || !t.asks(req.URL.Path) {
		return t.Transport.RoundTrip(req)
	}
	sum := sha256.New()
	body, err := req.GetBody()
	if err == nil {
		_, err = io.Copy(sum, body)
		body.Close()
	}
	if err != nil {
		req.Body.Close() // as a RoundTripper must
		return nil, err
	}
	ctx := oncehttp.WithAction(req.Context(), "model call "+hex.EncodeToString(sum.Sum(nil)))
	return t.Transport.RoundTrip(req.WithContext(ctx))
}

func (t *Transport) asks(path string) bool {
	for _, end := range t.Paths {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	return false
}
