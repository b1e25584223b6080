package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/crypto/bcrypt"
)

// An authority signs certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newAuthority(t testing.TB, name string) *authority {
	a := &authority{t: t}
	a.cert = &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: name}}
	made := a.sign(a.cert)
	a.cert, a.key = made.Leaf, made.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// sign makes a certificate of a template, and a key for it. The first signs itself.
func (a *authority) sign(template *x509.Certificate) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.n++
	template.SerialNumber = big.NewInt(a.n)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	by := a.key
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), by)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// client is a new certificate of somebody.
func (a *authority) client(name string) *tls.Certificate {
	c := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return &c
}

// pem writes the authority's own certificate, and returns the file's name.
func (a *authority) pem(dir, name string) string {
	return writePEM(a.t, dir, name, "CERTIFICATE", a.cert.Raw)
}

func writePEM(t testing.TB, dir, name, kind string, der []byte) string {
	t.Helper()
	return writeFile(t, dir, name, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}

func writeFile(t testing.TB, dir, name, text string) string {
	t.Helper()
	name = filepath.Join(dir, name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A counter is an upstream that gives each request a receipt of its own.
type counter struct {
	*httptest.Server
	effects atomic.Int64
}

func newCounter(t testing.TB) *counter {
	c := new(counter)
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "receipt %d", c.effects.Add(1))
	}))
	t.Cleanup(c.Close)
	return c
}

// A gate is onceproxy over TLS with one route, and what clients need to trust it.
type gate struct {
	*process
	t     testing.TB
	dir   string
	up    *counter
	roots *x509.CertPool
	many  int // keys that wrongCaller has used
}

// newGate starts it with what tls and scope say, in terms of YAML's flow style.
func newGate(t testing.TB, dir, more, scope string) *gate {
	t.Helper()
	a := newAuthority(t, "servers")
	server := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "proxy"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	der, err := x509.MarshalPKCS8PrivateKey(server.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{t: t, dir: dir, up: newCounter(t), roots: x509.NewCertPool()}
	g.roots.AddCert(a.cert)
	settings := fmt.Sprintf("store: \"memory:\"\ntls: {cert: %s, key: %s%s}\nroutes:\n- {upstream: \"%s\"%s}\n",
		writePEM(t, dir, "server.pem", "CERTIFICATE", server.Certificate[0]), writePEM(t, dir, "server.key", "PRIVATE KEY", der), more, g.up.URL, scope)
	g.process = start(t, "-config", write(t, settings))
	if !strings.HasPrefix(g.URL, "https://") {
		t.Fatalf("it listens at %s, want https", g.URL)
	}
	return g
}

// client speaks HTTP/2 if h2 is set, and HTTP/1.1 otherwise, and shows cert, if there is one.
func (g *gate) client(h2 bool, cert *tls.Certificate) *http.Client {
	conf := &tls.Config{RootCAs: g.roots}
	if cert != nil {
		conf.Certificates = []tls.Certificate{*cert}
	}
	tr := &http.Transport{TLSClientConfig: conf, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP2(h2)
	tr.Protocols.SetHTTP1(!h2)
	g.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

// post sends a request with a key, and header lines of the form "Name: value".
func (g *gate) post(c *http.Client, k string, lines ...string) answer {
	g.t.Helper()
	req, err := http.NewRequest("POST", g.URL+"/pay", strings.NewReader(`{"cents":100}`))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, l := range append(lines, key(k)) {
		name, value, _ := strings.Cut(l, ": ")
		req.Header.Add(name, value)
	}
	resp, err := c.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// A caller is a way to send one principal's requests.
type caller func(k string, lines ...string) answer

// tellsApart holds that the same key is one effect for one principal, whichever of its ways
// it takes, and two for two; and that what a client merely says of itself changes nothing.
func (g *gate) tellsApart(alice []caller, bob caller) {
	g.t.Helper()
	first := alice[0]("k")
	if first.status != 200 || first.replayed() {
		g.t.Fatalf("the first: got %d %s", first.status, first.body)
	}
	forged := []string{
		"X-User: bob", "X-Forwarded-User: bob", "X-Remote-User: bob", "X-Ssl-Client-S-Dn: CN=bob", "X-Client-Cert: bob",
		"X-Forwarded-Client-Cert: Subject=\"CN=bob\"", "X-Forwarded-For: 10.0.0.9", "Forwarded: for=10.0.0.9", "Cookie: user=bob", "X-Api-Key: bob",
	}
	for i, a := range alice {
		for _, lines := range [][]string{nil, forged} {
			if again := a("k", lines...); again.body != first.body || !again.replayed() {
				g.t.Errorf("the same principal, way %d, with %q: got %d %s, want %s again", i+1, lines, again.status, again.body, first.body)
			}
		}
	}
	if n := g.up.effects.Load(); n != 1 {
		g.t.Fatalf("one principal with one key has %d effects", n)
	}
	other := bob("k", "X-User: alice", "X-Forwarded-User: alice", "X-Forwarded-Client-Cert: Subject=\"CN=alice\"", "X-Api-Key: alice")
	if other.status != 200 || other.replayed() || other.body == first.body {
		g.t.Errorf("another principal with the same key: got %d %s, replayed %v", other.status, other.body, other.replayed())
	}
	if again := bob("k"); again.body != other.body || !again.replayed() {
		g.t.Errorf("the other principal's repeat: got %d %s, want %s", again.status, again.body, other.body)
	}
	if n := g.up.effects.Load(); n != 2 {
		g.t.Errorf("two principals with one key have %d effects", n)
	}
}

// refuses holds that a request with a key is not sent on, also with a key that somebody used.
func (g *gate) refuses(what string, status int, send caller) {
	g.t.Helper()
	before := g.up.effects.Load()
	g.many++
	for _, k := range []string{"k", fmt.Sprint("new", g.many)} {
		if a := send(k); a.status != status || a.problem() != "unidentified" || a.replayed() || strings.Contains(a.body, "receipt") {
			g.t.Errorf("%s: got %d %s", what, a.status, a.body)
		}
	}
	if n := g.up.effects.Load() - before; n != 0 {
		g.t.Errorf("%s: %d requests reached the upstream", what, n)
	}
}

// Clients connect over TLS, by HTTP/2 if they can, and are told apart by the subject of a
// certificate that one of the client authorities has signed.
func TestClientsAreTheirCertificatesSubjects(t *testing.T) {
	dir := t.TempDir()
	clients, strangers := newAuthority(t, "clients"), newAuthority(t, "clients")
	g := newGate(t, dir, ", client_ca: "+clients.pem(dir, "clients.pem"), ", scope: {mtls: true}")
	by := func(h2 bool, cert *tls.Certificate) caller {
		c := g.client(h2, cert)
		return func(k string, lines ...string) answer { return g.post(c, k, lines...) }
	}
	alice := clients.client("alice")
	g.tellsApart([]caller{by(true, alice), by(false, alice), by(true, clients.client("alice"))}, by(true, clients.client("bob")))
	for _, h2 := range []bool{true, false} {
		g.refuses("a client without a certificate", 403, by(h2, nil))
	}
	for what, cert := range map[string]*tls.Certificate{"of another authority of the same name": strangers.client("alice"), "for servers only": server(clients)} {
		c := g.client(false, cert)
		if resp, err := c.Get(g.URL); err == nil {
			resp.Body.Close()
			t.Errorf("a certificate %s is taken: %s", what, resp.Status)
		}
	}
}

// server is a certificate that is good for servers only.
func server(a *authority) *tls.Certificate {
	c := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "alice"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return &c
}

// The protocol that a client of TLS offers is the one that is spoken, and one that insists on an
// old version of TLS, or on none, gets nowhere.
func TestTLSIsListenedFor(t *testing.T) {
	dir := t.TempDir()
	clients := newAuthority(t, "clients")
	g := newGate(t, dir, ", client_ca: "+clients.pem(dir, "clients.pem")+", require_client: true", "")
	for _, h2 := range []bool{true, false} {
		resp, err := g.client(h2, clients.client("alice")).Get(g.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if want := map[bool]int{true: 2, false: 1}[h2]; resp.ProtoMajor != want || resp.TLS == nil || resp.StatusCode != 200 {
			t.Errorf("HTTP/2 %v: got %s over %s", h2, resp.Status, resp.Proto)
		}
	}
	old := g.client(false, clients.client("alice"))
	conf := old.Transport.(*http.Transport).TLSClientConfig
	conf.MinVersion, conf.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	for what, c := range map[string]*http.Client{"TLS 1.1": old, "no certificate, where one is required": g.client(true, nil)} {
		if resp, err := c.Get(g.URL); err == nil {
			resp.Body.Close()
			t.Errorf("%s: got %s", what, resp.Status)
		}
	}
	if resp, err := client.Post(strings.Replace(g.URL, "https", "http", 1), "text/plain", nil); err == nil {
		resp.Body.Close()
		if resp.StatusCode != 400 {
			t.Errorf("in clear: got %s", resp.Status)
		}
	}
	if n := g.up.effects.Load(); n != 2 {
		t.Errorf("the upstream got %d requests, want the two good ones", n)
	}
}

// A client is issuer and subject of a token that one of the issuers' keys has signed.
func TestClientsAreTheirTokensSubjects(t *testing.T) {
	good, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	bad, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: good.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	g := newGate(t, dir, "", ", scope: {jwt: {jwks: "+writeFile(t, dir, "jwks.json", string(set))+`, issuers: ["https://a", "https://b"]}}`)
	token := func(key *ecdsa.PrivateKey, issuer, subject string, lasts time.Duration) string {
		s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "1"))
		if err != nil {
			t.Fatal(err)
		}
		signed, err := jwt.Signed(s).Claims(jwt.Claims{Issuer: issuer, Subject: subject, ID: rand.Text(), Expiry: jwt.NewNumericDate(time.Now().Add(lasts))}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	h2, h1 := g.client(true, nil), g.client(false, nil)
	by := func(c *http.Client, tokens ...string) caller {
		return func(k string, lines ...string) answer {
			for _, token := range tokens {
				lines = append(lines, "Authorization: Bearer "+token)
			}
			return g.post(c, k, lines...)
		}
	}
	alice := token(good, "https://a", "alice", time.Hour)
	g.tellsApart([]caller{by(h2, alice), by(h1, alice), by(h2, token(good, "https://a", "alice", 2*time.Hour))}, by(h2, token(good, "https://a", "bob", time.Hour)))
	if a := by(h2, token(good, "https://b", "alice", time.Hour))("k"); a.status != 200 || a.replayed() {
		t.Errorf("the same subject of another issuer: got %d %s, replayed %v", a.status, a.body, a.replayed())
	}
	part := strings.Split(alice, ".")
	b64 := base64.RawURLEncoding.EncodeToString
	bob := b64([]byte(`{"iss":"https://a","sub":"bob","exp":9999999999}`))
	for what, send := range map[string]caller{
		"no token":                       by(h2),
		"a wrong signature":              by(h2, token(bad, "https://a", "alice", time.Hour)),
		"another body under a signature": by(h2, part[0]+"."+bob+"."+part[2]),
		"an expired token":               by(h2, token(good, "https://a", "alice", -time.Hour)),
		"alg none":                       by(h2, b64([]byte(`{"alg":"none"}`))+"."+part[1]+"."),
		"alg none with a signature":      by(h2, b64([]byte(`{"alg":"none","kid":"1"}`))+"."+part[1]+"."+part[2]),
		"a wrong issuer":                 by(h2, token(good, "https://c", "alice", time.Hour)),
		"no subject":                     by(h2, token(good, "https://a", "", time.Hour)),
		"two tokens":                     by(h2, alice, alice),
		"a word":                         by(h2, "alice"),
	} {
		g.refuses(what, 401, send)
	}
	for _, secret := range []string{alice, part[2], "alice"} {
		if strings.Contains(g.log.String(), secret) {
			t.Errorf("%.20q is in the log", secret)
		}
	}
}

// A client is a user of the htpasswd file whose password was right.
func TestClientsAreUsersWithAPassword(t *testing.T) {
	dir, file := t.TempDir(), ""
	for user, password := range map[string]string{"alice": "sesame", "bob": "sesame"} {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		file += user + ":" + string(hash) + "\n"
	}
	g := newGate(t, dir, "", ", scope: {basic: {htpasswd: "+writeFile(t, dir, "htpasswd", file)+"}}")
	by := func(h2 bool, credentials ...string) caller {
		c := g.client(h2, nil)
		return func(k string, lines ...string) answer {
			for _, x := range credentials {
				lines = append(lines, "Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte(x)))
			}
			return g.post(c, k, lines...)
		}
	}
	g.tellsApart([]caller{by(true, "alice:sesame"), by(false, "alice:sesame")}, by(true, "bob:sesame"))
	for what, send := range map[string]caller{
		"nobody":                           by(true),
		"a wrong password":                 by(true, "alice:hunter2"),
		"no password":                      by(true, "alice:"),
		"an unknown user":                  by(true, "carol:sesame"),
		"two users":                        by(true, "alice:sesame", "bob:sesame"),
		"a name that is a user's and more": by(true, "alice:sesame:x"),
	} {
		g.refuses(what, 401, send)
	}
	for _, secret := range []string{"sesame", "hunter2"} {
		if strings.Contains(g.log.String(), secret) {
			t.Errorf("%q is in the log", secret)
		}
	}
}
