package page

import (
	"crypto/sha256"
	"crypto/subtle"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Limits of one request, in bytes.
const (
	maxQuery = 4 << 10
	maxForm  = 4 << 20 // an answer of keys.MaxBody, escaped
)

// A refusal is why a request goes no further.
type refusal struct {
	status int
	title  string
	text   string
}

// guard refuses what no browser of an operator sends: requests for another host, which
// is how a name that was pointed at this machine shows (DNS rebinding), those that
// another site has a browser make, and those that are too large. It says nothing of who
// asks.
func guard(r *http.Request) *refusal {
	switch {
	case !isLocal(r.Host):
		return &refusal{http.StatusMisdirectedRequest, "Another host was asked for", "The operator's page answers only under a loopback address, such as 127.0.0.1, or under localhost."}
	case isForeign(r):
		return &refusal{http.StatusForbidden, "This came from another site", "The operator's page takes no requests that another site has a browser make. Open its address yourself."}
	case len(r.URL.RawQuery) > maxQuery:
		return &refusal{http.StatusRequestURITooLong, "The address is too long", "Search with fewer characters: some of the record's key are enough."}
	case r.Method == http.MethodPost && !isForm(r):
		return &refusal{http.StatusUnsupportedMediaType, "This is not a form", "Send application/x-www-form-urlencoded."}
	case r.ContentLength > maxForm:
		return &refusal{http.StatusRequestEntityTooLarge, "The form is too large", "Give answers that are this large with onceproxy keys resolve."}
	}
	return nil
}

// isLocal reports whether a Host field names this machine in a way that no name server
// has a say in. The port does not count: it may be that of a tunnel.
func isLocal(host string) bool {
	name := host
	if h, port, err := net.SplitHostPort(host); err == nil {
		name = h
		if strings.Trim(port, "0123456789") != "" {
			return false
		}
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil && ip.IsLoopback() && ip.Zone() == ""
}

// isForeign reports whether a browser says that another site, or another port of this
// machine, is behind the request. Programs that are no browsers say nothing, and need
// the token anyway.
func isForeign(r *http.Request) bool {
	for _, site := range r.Header["Sec-Fetch-Site"] {
		if site != "same-origin" && site != "none" {
			return true
		}
	}
	for _, origin := range r.Header["Origin"] {
		if !strings.EqualFold(origin, "http://"+r.Host) {
			return true
		}
	}
	return false
}

func isForm(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == "application/x-www-form-urlencoded"
}

// protect sets the fields by which browsers keep others out of the page, and the page
// out of caches.
func protect(h http.Header) {
	// No script at all, and nothing from elsewhere. Not even an injected form could
	// send anything to another server.
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	// With no-referrer browsers send Origin: null with the page's own forms.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
}

// isSecret compares in a time that tells nothing of what is right.
func isSecret(got, want string) bool {
	g, w := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return want != "" && subtle.ConstantTimeCompare(g[:], w[:]) == 1
}
