package oncetest

import "fmt"

// An Option configures a [Server]: a [Fault], or how it is reached ([Memory],
// [Loopback], [HTTP2], [TLS]), or [KeyHeader].
type Option interface{ configure(*config) }

type config struct {
	faults    []*scripted
	memory    bool
	http2     bool
	tls       bool
	keyHeader string
	err       error
}

type option func(*config)

func (o option) configure(c *config) { o(c) }

// Memory makes clients reach the server through memory instead of TCP. Inside a
// bubble of testing/synctest that is the default.
func Memory() Option { return option(func(c *config) { c.memory = true }) }

// Loopback makes clients reach the server through TCP on 127.0.0.1, which is the
// default outside the bubbles of testing/synctest. Inside one the clock stands
// still while a connection waits.
func Loopback() Option { return option(func(c *config) { c.memory = false }) }

// HTTP2 makes the server speak HTTP/2, with or without TLS, besides HTTP/1, and
// its Client only HTTP/2. Without TLS a client must do so with prior knowledge
// (RFC 9113, section 3.3), in Go with http.Transport.Protocols. In a bubble of
// testing/synctest this needs Go 1.26: the net/http of Go 1.25 shares channels
// between its HTTP/2 servers, which a bubble does not allow.
func HTTP2() Option { return option(func(c *config) { c.http2 = true }) }

// TLS makes the server speak TLS, with the certificate that [Server.Certificate]
// returns and that its Client trusts.
func TLS() Option { return option(func(c *config) { c.tls = true }) }

// KeyHeader names the header field that carries keys. Without it the field is
// Idempotency-Key.
func KeyHeader(name string) Option {
	return option(func(c *config) {
		c.keyHeader = name
		if name == "" && c.err == nil {
			c.err = fmt.Errorf("KeyHeader: the name is empty")
		}
	})
}
