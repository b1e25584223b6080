package scope

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
)

const (
	defaultLeeway = 30 * time.Second
	maxToken      = 16 << 10
	maxJWKS       = 1 << 20
)

// A jwtScope believes tokens (RFC 7519) that certain issuers have signed.
type jwtScope struct {
	keys       jose.JSONWebKeySet
	algorithms []jose.SignatureAlgorithm
	issuers    []string
	audience   jwt.Audience
	leeway     time.Duration
}

func newJWT(c *config.JWT) (Func, error) {
	s := &jwtScope{issuers: c.Issuers, audience: c.Audience, leeway: c.Leeway.Or(defaultLeeway)}
	for _, a := range c.Algorithms {
		s.algorithms = append(s.algorithms, jose.SignatureAlgorithm(a))
	}
	if len(s.algorithms) == 0 {
		s.algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.PS256, jose.ES256, jose.EdDSA}
	}
	var err error
	s.keys, err = readKeys(c.JWKS)
	if err != nil {
		return nil, fmt.Errorf("scope.jwt.jwks: %w", err)
	}
	return s.name, nil
}

// readKeys reads a file of public keys (RFC 7517).
func readKeys(name string) (set jose.JSONWebKeySet, err error) {
	b, err := os.ReadFile(name)
	switch {
	case err != nil:
		return set, err
	case len(b) > maxJWKS:
		return set, fmt.Errorf("%s is larger than 1 MiB", name)
	}
	if err := json.Unmarshal(b, &set); err != nil {
		return set, fmt.Errorf("%s is no set of keys (RFC 7517)", name) // the error could quote a key
	}
	if len(set.Keys) == 0 {
		return set, fmt.Errorf("%s has no key in it", name)
	}
	for i, k := range set.Keys {
		if !k.Valid() || !k.IsPublic() {
			return set, fmt.Errorf("%s: key %d is no public key; secrets do not belong into this file", name, i+1)
		}
	}
	return set, nil
}

func (s *jwtScope) name(r *http.Request) (string, error) {
	fields := r.Header["Authorization"]
	if len(fields) != 1 {
		return "", s.refuse(errNoCredentials)
	}
	kind, token, _ := strings.Cut(fields[0], " ")
	if !strings.EqualFold(kind, "Bearer") || len(token) > maxToken {
		return "", s.refuse(errNoCredentials)
	}
	claims, err := s.verify(strings.TrimSpace(token), time.Now())
	if err != nil {
		return "", s.refuse(err)
	}
	// The lengths keep ("a", "b:c") and ("a:b", "c") apart.
	return fmt.Sprintf("jwt:%d:%s:%s", len(claims.Issuer), claims.Issuer, claims.Subject), nil
}

func (s *jwtScope) refuse(err error) error {
	return &Error{Challenge: `Bearer error="invalid_token"`, Msg: "a valid token of a known issuer is needed", Err: err}
}

// verify returns the claims of a token that one of the keys has signed, and that is of
// now and for us. Its algorithm is one of ours, never the token's own choice.
func (s *jwtScope) verify(token string, now time.Time) (claims jwt.Claims, err error) {
	t, err := jwt.ParseSigned(token, s.algorithms)
	if err != nil {
		return claims, errors.New("it is no token that is signed in an allowed way")
	}
	if len(t.Headers) != 1 {
		return claims, errors.New("it has several signatures")
	}
	if err := s.claims(t, &claims); err != nil {
		return claims, err
	}
	known := false
	for _, i := range s.issuers {
		known = known || i == claims.Issuer
	}
	switch {
	case !known:
		return claims, errors.New("its issuer is not known")
	case claims.Subject == "":
		return claims, errors.New("it has no subject")
	case claims.Expiry == nil:
		return claims, errors.New("it does not expire")
	}
	if err := claims.ValidateWithLeeway(jwt.Expected{AnyAudience: s.audience, Time: now}, s.leeway); err != nil {
		return claims, err
	}
	return claims, nil
}

// claims finds the key by the token's kid, or tries all where it names none.
func (s *jwtScope) claims(t *jwt.JSONWebToken, into *jwt.Claims) error {
	keys := s.keys.Keys
	if kid := t.Headers[0].KeyID; kid != "" {
		keys = s.keys.Key(kid)
	}
	for _, k := range keys {
		if k.Use != "" && k.Use != "sig" || k.Algorithm != "" && k.Algorithm != t.Headers[0].Algorithm {
			continue
		}
		if t.Claims(k.Key, into) == nil {
			return nil
		}
	}
	return errors.New("none of the known keys has signed it")
}
