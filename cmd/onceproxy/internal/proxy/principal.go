package proxy

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"net/http"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/scope"
)

type principalKey struct{}

// A principal is who asks.
type principal struct {
	scope string // the verified name, or "" where clients are told apart by credentials
	id    string // names the client within this process; see clientID
	host  string // that the client sent; see Route.underOneHost
}

func principalOf(ctx context.Context) *principal {
	p, _ := ctx.Value(principalKey{}).(*principal)
	return p
}

// identify finds out who asks, or says why the request is refused.
func (rt *Route) identify(r *http.Request) (*principal, *oncehttp.Refusal) {
	if rt.scope == nil {
		return &principal{id: clientID(r)}, nil
	}
	name, err := rt.scope(r)
	if err == nil {
		return &principal{scope: name, id: name}, nil
	}
	rt.log.InfoContext(r.Context(), "a client has not shown who it is", "route", rt.label, "err", err.Error())
	status := http.StatusForbidden
	var e *scope.Error
	if errors.As(err, &e) && e.Challenge != "" {
		status = http.StatusUnauthorized
	}
	return nil, &oncehttp.Refusal{
		Type: problem("unidentified"), Status: status,
		Title:        "This proxy cannot tell who is asking",
		Detail:       "Requests with an idempotency key, and their answers, belong to whoever sent them first. This one does not show who it is from, so it was not sent on. Send it again, with the same key, and with valid credentials.",
		RetrySameKey: true, SafeNewKey: false, Outcome: "unknown", Err: err,
	}
}

// credentialFields are those by which oncehttp.Middleware tells callers apart.
var credentialFields = [...]string{
	"Authorization", "X-Api-Key", "Api-Key", "Apikey", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key",
	"X-Auth-Token", "X-Access-Token", "Private-Token", "Cookie",
}

// clientSecret makes clientID of no use outside of this process.
var clientSecret = func() (b [32]byte) { rand.Read(b[:]); return b }()

// anonymous begins the clientID of clients without credentials.
const anonymous = "anonymous "

// clientID is a digest of a client's credentials, or says that it is anonymous and
// where it is.
func clientID(r *http.Request) string {
	id, any := credentialDigest(clientSecret[:], r)
	if any {
		return id
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return anonymous + host
}

// credentialDigest is a digest of all that identifies a request's client, and whether
// there is anything.
func credentialDigest(secret []byte, r *http.Request) (id string, any bool) {
	mac := hmac.New(sha256.New, secret)
	add := func(s string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		mac.Write(n[:])
		mac.Write([]byte(s))
	}
	for _, name := range credentialFields {
		for _, v := range r.Header[name] {
			if v != "" {
				add(name)
				add(v)
				any = true
			}
		}
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && len(r.TLS.VerifiedChains[0]) > 0 {
		add("certificate")
		add(string(r.TLS.VerifiedChains[0][0].Raw))
		any = true
	}
	return hex.EncodeToString(mac.Sum(nil)), any
}
