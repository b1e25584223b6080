package scope

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/crypto/bcrypt"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
)

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func sign(t *testing.T, alg jose.SignatureAlgorithm, key any, kid string, claims any) string {
	t.Helper()
	opts := (&jose.SignerOptions{}).WithType("JWT")
	if kid != "" {
		opts = opts.WithHeader("kid", kid)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, opts)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(s).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestATokenHasToBeOursAndOfNow(t *testing.T) {
	good, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	weak, _ := rsa.GenerateKey(rand.Reader, 2048)
	set, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: good.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"},
		{Key: weak.Public(), KeyID: "2", Use: "enc"},
	}})
	name, err := New(config.Scope{JWT: &config.JWT{JWKS: file(t, string(set)), Issuers: []string{"https://us"}, Audience: []string{"pay"}}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	claims := func(change func(*jwt.Claims)) jwt.Claims {
		c := jwt.Claims{Issuer: "https://us", Subject: "alice", Audience: jwt.Audience{"pay"}, Expiry: jwt.NewNumericDate(now.Add(time.Hour))}
		if change != nil {
			change(&c)
		}
		return c
	}
	b64 := base64.RawURLEncoding.EncodeToString
	body, _ := json.Marshal(claims(nil))
	public, _ := x509.MarshalPKIXPublicKey(good.Public())
	right := sign(t, jose.ES256, good, "1", claims(nil))
	for _, c := range []struct {
		name, header string
		ok           bool
	}{
		{"a good one", "Bearer " + right, true},
		{"a good one, in another spelling", "bearer " + right, true},
		{"one without a kid", "Bearer " + sign(t, jose.ES256, good, "", claims(nil)), true},
		{"none", "", false},
		{"another kind", "Basic " + right, false},
		{"nonsense", "Bearer x.y.z", false},
		{"of another issuer", "Bearer " + sign(t, jose.ES256, good, "1", claims(func(c *jwt.Claims) { c.Issuer = "https://them" })), false},
		{"without an issuer", "Bearer " + sign(t, jose.ES256, good, "1", claims(func(c *jwt.Claims) { c.Issuer = "" })), false},
		{"without a subject", "Bearer " + sign(t, jose.ES256, good, "1", claims(func(c *jwt.Claims) { c.Subject = "" })), false},
		{"that never expires", "Bearer " + sign(t, jose.ES256, good, "1", claims(func(c *jwt.Claims) { c.Expiry = nil })), false},
		{"that has expired", "Bearer " + sign(t, jose.ES256, good, "1", claims(func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(now.Add(-time.Hour)) })), false},
		{"that is not yet valid", "Bearer " + sign(t, jose.ES256, good, "1", claims(func(c *jwt.Claims) { c.NotBefore = jwt.NewNumericDate(now.Add(time.Hour)) })), false},
		{"for somebody else", "Bearer " + sign(t, jose.ES256, good, "1", claims(func(c *jwt.Claims) { c.Audience = jwt.Audience{"mail"} })), false},
		{"signed by another key", "Bearer " + sign(t, jose.ES256, other, "1", claims(nil)), false},
		{"signed by an unknown key", "Bearer " + sign(t, jose.ES256, other, "9", claims(nil)), false},
		{"signed by a key for something else", "Bearer " + sign(t, jose.RS256, weak, "2", claims(nil)), false},
		{"signed by nobody", "Bearer " + b64([]byte(`{"alg":"none"}`)) + "." + b64(body) + ".", false},
		{"signed with the public key as a secret", "Bearer " + sign(t, jose.HS256, public, "1", claims(nil)), false},
		{"with another body", "Bearer " + strings.Split(right, ".")[0] + "." + b64([]byte(`{"iss":"https://us","sub":"bob","aud":"pay","exp":9999999999}`)) + "." + strings.Split(right, ".")[2], false},
		{"that is endless", "Bearer " + strings.Repeat("a", 20<<10), false},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		if c.header != "" {
			r.Header.Set("Authorization", c.header)
		}
		who, err := name(r)
		if (err == nil) != c.ok || c.ok && who != "jwt:10:https://us:alice" {
			t.Errorf("a token %s: got %q, %v", c.name, who, err)
		}
		var e *Error
		if !c.ok && (!errors.As(err, &e) || !strings.HasPrefix(e.Challenge, "Bearer") || who != "") {
			t.Errorf("a token %s: got %q, %v", c.name, who, err)
		}
		if err != nil && strings.Contains(err.Error(), right) {
			t.Errorf("a token %s is in the error", c.name)
		}
	}
	r := httptest.NewRequest("POST", "/", nil)
	r.Header["Authorization"] = []string{"Bearer " + right, "Bearer " + right}
	if who, err := name(r); err == nil {
		t.Errorf("two tokens: got %q", who)
	}
}

func TestAFileOfKeysHoldsPublicKeysOnly(t *testing.T) {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	private, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key, KeyID: "1"}}})
	secret, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: []byte("0123456789abcdef"), KeyID: "1"}}})
	for name, text := range map[string]string{"a private key": string(private), "a secret": string(secret), "no key": `{"keys":[]}`, "no set": "hello", "nothing": ""} {
		if _, err := New(config.Scope{JWT: &config.JWT{JWKS: file(t, text), Issuers: []string{"a"}}}); err == nil || !strings.Contains(err.Error(), "scope.jwt.jwks") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestAUserIsOneWhosePasswordIsRight(t *testing.T) {
	hash, _ := bcrypt.GenerateFromPassword([]byte("sesame"), bcrypt.MinCost)
	name, err := New(config.Scope{Basic: &config.Basic{Htpasswd: file(t, "# users\nalice:"+string(hash)+"\nbob:"+string(hash)+"\n")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user, password string
		ok             bool
	}{{"alice", "sesame", true}, {"alice", "sesame", true}, {"bob", "sesame", true}, {"alice", "wrong", false}, {"alice", "", false}, {"carol", "sesame", false}, {"", "sesame", false}, {"alic", "e:sesame", false}} {
		r := httptest.NewRequest("POST", "/", nil)
		r.SetBasicAuth(c.user, c.password)
		who, err := name(r)
		if (err == nil) != c.ok || c.ok && who != "basic:"+c.user || err != nil && strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s with %q: got %q, %v", c.user, c.password, who, err)
		}
	}
	for what, text := range map[string]string{"a password in clear": "alice:sesame", "MD5": "alice:$apr1$x$y", "a user twice": "a:" + string(hash) + "\na:" + string(hash), "nobody": "\n", "no colon": "alice"} {
		if _, err := New(config.Scope{Basic: &config.Basic{Htpasswd: file(t, text)}}); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("a file with %s: got %v", what, err)
		}
	}
}

func TestAHeaderIsBelievedFromTrustedProxiesOnly(t *testing.T) {
	name, err := New(config.Scope{Header: &config.Header{Name: "X-User", From: []string{"10.0.0.0/8", "::1/128"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, from string
		values     []string
		ok         bool
	}{
		{"a proxy's word", "10.1.2.3:4", []string{"alice"}, true},
		{"a proxy's word over IPv6", "[::1]:4", []string{"alice"}, true},
		{"a mapped address", "[::ffff:10.1.2.3]:4", []string{"alice"}, true},
		{"anybody's word", "192.168.1.1:4", []string{"alice"}, false},
		{"two words", "10.1.2.3:4", []string{"alice", "bob"}, false},
		{"no word", "10.1.2.3:4", nil, false},
		{"an empty word", "10.1.2.3:4", []string{" "}, false},
		{"no address", "@", []string{"alice"}, false},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r.RemoteAddr, r.Header["X-User"] = c.from, c.values
		if who, err := name(r); (err == nil) != c.ok || c.ok && who != "header:alice" {
			t.Errorf("%s: got %q, %v", c.what, who, err)
		}
	}
}

func TestACertificateHasToBeVerified(t *testing.T) {
	cert := &x509.Certificate{Subject: pkix.Name{CommonName: "alice"}, RawSubject: []byte("s"), RawIssuer: []byte("i")}
	nameless := &x509.Certificate{}
	for _, c := range []struct {
		what  string
		state *tls.ConnectionState
		ok    bool
	}{
		{"a verified one", &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}}, true},
		{"an unverified one", &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}, false},
		{"none", &tls.ConnectionState{}, false},
		{"no TLS", nil, false},
		{"one without a name", &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{nameless}}}, false},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r.TLS = c.state
		if who, err := mtls(r); (err == nil) != c.ok || c.ok && who != "mtls:69:73" {
			t.Errorf("%s: got %q, %v", c.what, who, err)
		}
	}
}
