package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/oncehttp/oncehttp"
)

// newBase makes what connects to a route's upstream.
func newBase(h2c bool, ca string) (*http.Transport, error) {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		// The standard number of two would have a busy proxy dial all the time.
		MaxIdleConns: 1024, MaxIdleConnsPerHost: 512,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		// Bodies pass as they are; compression is between client and upstream.
		DisableCompression: true,
	}
	if h2c {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("there is no certificate in %s", ca)
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	return t, nil
}

// newTransport makes the client half of a route.
func (rt *Route) newTransport(base http.RoundTripper) *oncehttp.Transport {
	c := &rt.conf
	t := &oncehttp.Transport{
		Base: base, AttemptTimeout: c.Timeout.Or(defaultTimeout), KeyHeader: c.Key.Header,
		Breaker: &oncehttp.Breaker{Disabled: !c.Breaker}, Logger: rt.log,
	}
	if c.HonorsKeys {
		return t
	}
	// No method makes an exception: what may have reached such an upstream is not sent
	// there again.
	t.Honors = func(*http.Request) bool { return false }
	t.OnAttempt = func(r *http.Request, a oncehttp.Attempt) {
		exchangeOf(r.Context()).notSent = a.Certainty == oncehttp.CertaintyNotSent
	}
	t.CheckRetry = func(ctx context.Context, _ *http.Response, _ error) (bool, error) {
		return exchangeOf(ctx).notSent, nil
	}
	return t
}

const defaultTimeout = 5 * time.Minute
