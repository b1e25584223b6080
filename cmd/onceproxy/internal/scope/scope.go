// Package scope says who is asking, from an identity that was verified.
package scope

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
)

// A Func returns the verified name of a request's client: the same for all of its
// requests and for nobody else's, and never empty. An error is an [*Error].
type Func func(*http.Request) (string, error)

// An Error says that a client has not shown who it is.
type Error struct {
	Challenge string // for WWW-Authenticate; "": there is nothing that the client could send
	Msg       string // what is missing, without anything that came with the request
	Err       error  // for logs; may be nil
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Msg + ": " + e.Err.Error()
	}
	return e.Msg
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// New makes what settings ask for, and reads the files that they name. It returns nil
// where they ask for nothing: then clients are told apart by their exact credentials.
func New(c config.Scope) (Func, error) {
	switch {
	case c.JWT != nil:
		return newJWT(c.JWT)
	case c.MTLS:
		return mtls, nil
	case c.Basic != nil:
		return newBasic(c.Basic)
	case c.Header != nil:
		return newHeader(c.Header)
	}
	return nil, nil
}

// mtls takes the subject of a certificate that the TLS handshake has verified, with the
// authority that vouches for it.
func mtls(r *http.Request) (string, error) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.VerifiedChains[0]) == 0 {
		return "", &Error{Msg: "the connection has no verified client certificate"}
	}
	cert := r.TLS.VerifiedChains[0][0]
	if len(cert.RawSubject) == 0 || cert.Subject.String() == "" {
		return "", &Error{Msg: "the client's certificate has no subject"}
	}
	// As they are in the certificate: two names that print alike are two.
	return fmt.Sprintf("mtls:%x:%x", cert.RawIssuer, cert.RawSubject), nil
}

// newHeader takes a field that a proxy in front has set.
func newHeader(c *config.Header) (Func, error) {
	var from []netip.Prefix
	for _, f := range c.From {
		p, err := netip.ParsePrefix(f)
		if err != nil {
			return nil, err
		}
		from = append(from, p)
	}
	name := http.CanonicalHeaderKey(c.Name)
	return func(r *http.Request) (string, error) {
		if !isFrom(r.RemoteAddr, from) {
			return "", &Error{Msg: "the request did not come through a proxy whose word counts"}
		}
		values := r.Header[name]
		if len(values) != 1 || strings.TrimSpace(values[0]) == "" {
			return "", &Error{Msg: "the proxy in front has not said, once, who is asking"}
		}
		return "header:" + values[0], nil
	}, nil
}

func isFrom(remote string, from []netip.Prefix) bool {
	addr, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	for _, p := range from {
		if p.Contains(addr.Addr().Unmap()) {
			return true
		}
	}
	return false
}

var errNoCredentials = errors.New("there are no credentials of the right kind")
