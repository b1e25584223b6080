package proxy

import (
	"net/http"
	"net/http/httputil"
	"net/url"
)

// controls are the fields by which this proxy tells clients what an answer is. It takes
// them out of what clients and upstreams send, because they would be believed.
var controls = [...]string{"Idempotency-Status", "Idempotent-Replayed", "Idempotency-Replayed"}

func stripControls(h http.Header) {
	for _, name := range controls {
		delete(h, name)
	}
}

// rewrite makes the request that the upstream gets.
func (rt *Route) rewrite(p *httputil.ProxyRequest) {
	p.SetURL(rt.target)
	if rt.conf.PreserveHost {
		p.Out.Host = p.In.Host
	}
	if rt.conf.TrustForwarded {
		for _, name := range [...]string{"Forwarded", "X-Forwarded-For"} {
			if v, ok := p.In.Header[name]; ok {
				p.Out.Header[name] = v
			}
		}
	}
	p.SetXForwarded()
	if rt.conf.TrustForwarded {
		for _, name := range [...]string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
			if v, ok := p.In.Header[name]; ok {
				p.Out.Header[name] = v
			}
		}
	}
	stripControls(p.Out.Header)
	if isSafe(p.In.Method) {
		return
	}
	// The Transport chooses the key: one that belongs to the record, if the upstream
	// honours keys, and otherwise none. See oncehttp.Transport.Honors.
	delete(p.Out.Header, rt.field)
	if !rt.conf.HonorsKeys {
		hideKeys(p.Out.Header)
	}
	if exchangeOf(p.Out.Context()).keyed {
		// An offer of h2c may be ignored, but once accepted nothing could be recorded.
		p.Out.Header.Del("Upgrade")
		p.Out.Header.Del("Connection")
	}
}

// hideKeys keeps net/http from seeing the fields, of clients that use another field for
// this proxy, by which it takes a request for one that it may send again on its own
// when a connection dies. It looks for them under their canonical names only; to the
// upstream any spelling is the same (RFC 9110, section 5.1).
func hideKeys(h http.Header) {
	for name, hidden := range map[string]string{"Idempotency-Key": "idempotency-key", "X-Idempotency-Key": "x-idempotency-key"} {
		if v, ok := h[name]; ok {
			delete(h, name)
			h[hidden] = v
		}
	}
}

// targetOf is where an upstream's requests go, and whether in clear HTTP/2.
func targetOf(upstream string) (target *url.URL, h2c bool, err error) {
	u, err := url.Parse(upstream)
	if err != nil {
		return nil, false, err
	}
	if u.Scheme == "h2c" {
		u.Scheme, h2c = "http", true
	}
	return u, h2c, nil
}
