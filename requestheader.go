package oncehttp

import (
	"crypto/hmac"
	"crypto/sha256"
	"net/http"
	"strings"
)

// A requestHeader is what a Middleware wants to know of a request's header. It is found
// in one pass, because to look for each of some twenty fields, of which few are there,
// takes longer.
type requestHeader struct {
	keys int    // how often a key is there, under any spelling of its field
	key  string // one of them

	contentType, contentEncoding, ifMatch []string
	connection, upgrade                   []string

	// The field that identifies the caller best, if there is one, and the cookies.
	credential  string
	rank        int
	credentials []string
	cookies     []string
}

func (x *requestHeader) read(h http.Header, keyField string) {
	for name, values := range h {
		if len(values) > 0 && len(name) == len(keyField) && strings.EqualFold(name, keyField) {
			x.keys += len(values)
			x.key = values[0]
		}
		switch name {
		case "Content-Type":
			x.contentType = values
		case "Content-Encoding":
			x.contentEncoding = values
		case "If-Match":
			x.ifMatch = values
		case "Connection":
			x.connection = values
		case "Upgrade":
			x.upgrade = values
		case "Cookie":
			x.cookies = values
		default:
			if rank := credentialRank(name); rank > x.rank && present(values) {
				x.credential, x.rank, x.credentials = name, rank, values
			}
		}
	}
}

// credentialRank tells how well a field identifies the caller, 0 that it does not.
func credentialRank(name string) int {
	switch name {
	case "Authorization":
		return 9
	case "X-Api-Key":
		return 8
	case "Api-Key":
		return 7
	case "Apikey":
		return 6
	case "X-Goog-Api-Key":
		return 5
	case "Ocp-Apim-Subscription-Key":
		return 4
	case "X-Auth-Token":
		return 3
	case "X-Access-Token":
		return 2
	case "Private-Token":
		return 1
	}
	return 0
}

func present(values []string) bool {
	for _, v := range values {
		if v != "" {
			return true
		}
	}
	return false
}

// binding is what is kept of the caller's credentials: an HMAC under a key that is
// not stored, so that nothing in the store tells what they were or that two
// records are of one caller.
func (x *requestHeader) binding(r *http.Request, key string) [32]byte {
	switch {
	case x.rank > 0:
		return bind(key, x.credential, x.credentials)
	case r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && len(r.TLS.VerifiedChains[0]) > 0:
		// Only a certificate that was verified says who is there.
		return bind(key, "certificate", []string{string(r.TLS.VerifiedChains[0][0].Raw)})
	case present(x.cookies):
		return bind(key, "Cookie", x.cookies)
	}
	return [32]byte{}
}

// bind binds a record to its caller: see requestHeader.binding.
func bind(key, name string, values []string) (sum [32]byte) {
	var stack [512]byte
	b := appendText(stack[:0], name)
	for _, v := range values {
		b = appendText(b, v)
	}
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write(b)
	mac.Sum(sum[:0])
	return sum
}

// isUpgrade tells whether the request wants to leave HTTP. Java's HttpClient
// offers h2c with every request in clear, which a server is free to ignore (RFC
// 9110, section 7.8).
func (x *requestHeader) isUpgrade(r *http.Request) bool {
	if r.Method == http.MethodConnect {
		return true
	}
	asked := false
	for _, v := range x.connection {
		asked = asked || hasToken(v, "upgrade")
	}
	if !asked {
		return false
	}
	for _, v := range x.upgrade {
		for proto := range strings.SplitSeq(v, ",") {
			if proto = strings.TrimSpace(proto); proto != "" && !strings.EqualFold(proto, "h2c") {
				return true
			}
		}
	}
	return false
}

// joined returns a field's values as one.
func joined(values []string) string {
	switch len(values) {
	case 0:
		return ""
	case 1:
		return values[0]
	}
	return strings.Join(values, ", ")
}
