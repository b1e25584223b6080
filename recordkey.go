package oncehttp

import (
	"net/http"
	"strings"
)

const (
	recordKeyPrefix = "or1_"
	recordDomain    = "oncehttp-record/v1\x00"
)

// RecordKey returns the key under which a [Middleware] records requests: what to
// look for in a store. scope is what Scope returned, or "". path is as it stands in
// the request's first line, in its escaped form and without the query.
func RecordKey(scope, method, path, key string) string {
	sum := sumParts(recordDomain, scope, method, plainEscapes(path), key)
	return hexKey(recordKeyPrefix, &sum)
}

// wirePath returns the path that the client asked for. r.URL.Path may be without
// a prefix by now, and the pattern that matched it changes with a refactoring.
func wirePath(r *http.Request) string {
	target := r.RequestURI
	if target == "" { // not from a server
		return r.URL.EscapedPath()
	}
	if target[0] != '/' { // absolute form, RFC 9112, section 3.2.2
		if _, rest, ok := strings.Cut(target, "://"); ok {
			target = "/"
			if i := strings.IndexAny(rest, "/?"); i >= 0 && rest[i] == '/' {
				target = rest[i:]
			}
		}
	}
	path, _, _ := strings.Cut(target, "?")
	return path
}

// plainEscapes writes a path's escapes in their normal form: RFC 3986, sections
// 6.2.2.1 and 6.2.2.2. Nothing else: %2F is not /.
func plainEscapes(path string) string {
	if !strings.Contains(path, "%") {
		return path
	}
	b := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		if path[i] != '%' || i+2 >= len(path) || !isHex(path[i+1]) || !isHex(path[i+2]) {
			b = append(b, path[i])
			continue
		}
		c := unhex(path[i+1])<<4 | unhex(path[i+2])
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_', c == '~':
			b = append(b, c)
		default:
			const digits = "0123456789ABCDEF"
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
		i += 2
	}
	return string(b)
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	}
	return c - 'a' + 10
}
