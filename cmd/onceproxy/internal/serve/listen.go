package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
)

const (
	defaultConnections = 10_000
	defaultHeaderBytes = 64 << 10
	defaultHeader      = 10 * time.Second
	defaultWrite       = time.Minute
	defaultIdle        = 2 * time.Minute
	defaultDrain       = 30 * time.Second
)

// newServer makes the server that clients talk to: HTTP/1, HTTP/2, and HTTP/2 in clear.
func newServer(c *config.Config, h http.Handler, base context.Context, log *slog.Logger) *http.Server {
	s := &http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: c.Timeouts.Header.Or(defaultHeader),
		IdleTimeout:       c.Timeouts.Idle.Or(defaultIdle),
		MaxHeaderBytes:    int(c.Limits.HeaderBytes.Or(defaultHeaderBytes)),
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		Protocols:         new(http.Protocols),
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	return s
}

// listen opens the address that clients connect to.
func listen(c *config.Config) (net.Listener, error) {
	l, err := net.Listen("tcp", c.ListenAddr())
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	most := c.Limits.Connections
	if most == 0 {
		most = defaultConnections
	}
	return &slowListener{netutil.LimitListener(l, most), c.Timeouts.Write.Or(defaultWrite)}, nil
}

// A slowListener's connections give up on clients that do not read.
type slowListener struct {
	net.Listener
	write time.Duration
}

// Accept implements net.Listener.
func (l *slowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &slowConn{Conn: c, write: l.write}, nil
}

// A slowConn bounds the time that each Write may take, unless somebody has set a
// deadline. That covers every protocol that is spoken over it, upgraded ones too, while
// a server's WriteTimeout would end healthy streams.
type slowConn struct {
	net.Conn
	write time.Duration
	set   atomic.Bool
}

// Write implements net.Conn.
func (c *slowConn) Write(p []byte) (int, error) {
	if !c.set.Load() {
		c.Conn.SetWriteDeadline(time.Now().Add(c.write))
	}
	return c.Conn.Write(p)
}

// SetWriteDeadline implements net.Conn.
func (c *slowConn) SetWriteDeadline(t time.Time) error {
	c.set.Store(!t.IsZero())
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline implements net.Conn.
func (c *slowConn) SetDeadline(t time.Time) error {
	c.set.Store(!t.IsZero())
	return c.Conn.SetDeadline(t)
}

// A tlsFiles is what the files of the TLS settings say, as of the latest load.
type tlsFiles struct {
	cert   *tls.Certificate
	client *x509.CertPool
}

func loadTLS(c *config.TLS) (*tlsFiles, error) {
	cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	f := &tlsFiles{cert: &cert}
	if c.ClientCA != "" {
		pem, err := os.ReadFile(c.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("tls.client_ca: %w", err)
		}
		f.client = x509.NewCertPool()
		if !f.client.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.client_ca: there is no certificate in %s", c.ClientCA)
		}
	}
	return f, nil
}

// config returns a tls.Config whose handshakes use what files holds at the time.
func tlsConfig(c *config.TLS, files *atomic.Pointer[tlsFiles]) *tls.Config {
	made := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	made.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		f := files.Load()
		own := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: made.NextProtos, Certificates: []tls.Certificate{*f.cert}}
		if f.client != nil {
			own.ClientCAs, own.ClientAuth = f.client, tls.VerifyClientCertIfGiven
			if c.RequireClient {
				own.ClientAuth = tls.RequireAndVerifyClientCert
			}
		}
		return own, nil
	}
	return made
}
