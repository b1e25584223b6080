package oncehttp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// A Certainty says what is known of an attempt, or of a whole request, whose
// server may have acted. The zero value is the careful one.
type Certainty uint8

const (
	// CertaintyUnknown: the request was sent, at least in part, and no answer
	// came, or the answer was cut. The server may or may not have acted.
	CertaintyUnknown Certainty = iota
	// CertaintyAnswered: the server answered with a status.
	CertaintyAnswered
	// CertaintyNotSent: no byte of the request reached a server that could
	// have acted on it.
	CertaintyNotSent
)

// String returns the certainty in words.
func (c Certainty) String() string {
	switch c {
	case CertaintyAnswered:
		return "answered"
	case CertaintyNotSent:
		return "not sent"
	}
	return "unknown"
}

// worse returns the more careful of two certainties: a second attempt that was
// never sent says nothing about the first.
func worse(a, b Certainty) Certainty { return min(a, b) }

// wire is what httptrace told of an attempt. Only a net/http Transport reports
// here, so the absence of a report means nothing unless asked is set.
type wire struct {
	asked bool  // a connection was asked for
	conns int32 // connections obtained
}

// certaintyOf judges an attempt that ended without a response. In doubt it
// answers unknown.
func certaintyOf(err error, w wire) Certainty {
	if unprocessed(err) {
		return CertaintyNotSent
	}
	if w.conns > 0 {
		// net/http sends a keyed request without a body again by itself when a
		// reused connection dies; if that second try cannot dial, its error
		// looks as if nothing had been sent: golang/go#19943.
		return CertaintyUnknown
	}
	if w.asked || neverConnected(err) {
		return CertaintyNotSent
	}
	return CertaintyUnknown
}

// neverConnected reports whether err can only come from before a connection
// stood: dialling, name resolution, or the TLS handshake.
func neverConnected(err error) bool {
	if op, ok := asType[*net.OpError](err); ok && (op.Op == "dial" || op.Op == "proxyconnect") {
		return true
	}
	if _, ok := asType[*net.DNSError](err); ok {
		return true
	}
	if _, ok := asType[tls.RecordHeaderError](err); ok {
		return true
	}
	return badCertificate(err) || strings.HasSuffix(err.Error(), "net/http: TLS handshake timeout")
}

// badCertificate reports whether the server's certificate was refused. Since
// Go 1.20 crypto/tls wraps the x509 errors, so comparing types misses them.
func badCertificate(err error) bool {
	if _, ok := asType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := asType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := asType[x509.HostnameError](err); ok {
		return true
	}
	_, ok := asType[x509.CertificateInvalidError](err)
	return ok
}

// streamError has the shape of an HTTP/2 stream error, which net/http's own
// unexported type fills through its As method.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return fmt.Sprintf("http2 stream error %d", e.Code) }

const refusedStream = 0x7 // REFUSED_STREAM, RFC 9113, section 7

// unprocessed reports whether the server said that it did not process the
// request: REFUSED_STREAM, or GOAWAY with a lower last stream (RFC 9113,
// sections 8.7 and 6.8). For a request with a body net/http wraps both into
// plain text, so text is all there is to match.
func unprocessed(err error) bool {
	if se, ok := asType[streamError](err); ok {
		return se.Code == refusedStream
	}
	text := err.Error()
	const prefix = "http2: Transport: cannot retry err ["
	i := strings.Index(text, prefix)
	if i < 0 {
		return false
	}
	text = text[i+len(prefix):]
	return strings.Contains(text, "; REFUSED_STREAM") ||
		strings.HasPrefix(text, "http2: Transport received Server's graceful shutdown GOAWAY]") ||
		strings.HasPrefix(text, "http2: client conn not usable]")
}

// finalError reports whether sending the same request again cannot help: a
// refused certificate, a name that does not exist, a request that no one can send.
func finalError(err error, req *http.Request) bool { return hopeless(err) || unsendable(req) }

func hopeless(err error) bool {
	dns, ok := asType[*net.DNSError](err)
	return ok && dns.IsNotFound || badCertificate(err)
}

// unsendable reports whether net/http refuses req before it connects.
func unsendable(req *http.Request) bool {
	return req.URL.Host == "" || req.Method != "" && !isToken(req.Method) || !sendable(req.Header) || !sendable(req.Trailer)
}

// sendable reports whether net/http would put h on the wire (RFC 9110, section 5).
func sendable(h http.Header) bool {
	for name, values := range h {
		if !isToken(name) {
			return false
		}
		for _, v := range values {
			for i := 0; i < len(v); i++ {
				if c := v[i]; c < ' ' && c != '\t' || c == 0x7f {
					return false
				}
			}
		}
	}
	return true
}

// isToken reports whether s is a token (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

var (
	// errAttemptTimeout is what ends an attempt whose answer did not come.
	errAttemptTimeout error = &attemptTimeout{"no answer within the attempt's timeout"}
	// errStarved is the same when the caller's own body was waited for.
	errStarved error = &attemptTimeout{"the request's body did not come within the attempt's timeout"}
	// errAgain is what ends an attempt that net/http was about to send again.
	errAgain = errors.New("the connection failed, and the request was not sent again over another one")
	// errNeither guards against a Base that breaks the RoundTripper contract.
	errNeither = errors.New("the base RoundTripper returned neither a response nor an error")
)

type attemptTimeout struct{ text string }

func (e *attemptTimeout) Error() string   { return e.text }
func (e *attemptTimeout) Timeout() bool   { return true }
func (e *attemptTimeout) Temporary() bool { return true }

// A statusError stands for an answer that was discarded before the next attempt.
type statusError int

func (e statusError) Error() string {
	return fmt.Sprintf("the server answered %d %s", int(e), http.StatusText(int(e)))
}

func asType[E error](err error) (e E, ok bool) {
	ok = errors.As(err, &e)
	return e, ok
}
