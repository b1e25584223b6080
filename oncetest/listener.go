package oncetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncehttp/oncehttp/internal/memnet"
)

// inMemory knows the servers in memory by host and port, so that the clients of one
// can follow a redirect to another.
var (
	inMemory sync.Map
	serial   atomic.Int64
)

func introduce(s *Server) {
	s.host = fmt.Sprintf("server-%d.oncetest.example", serial.Add(1))
	s.addr = s.host + ":80"
	if s.config.tls {
		s.addr = s.host + ":443"
	}
	inMemory.Store(s.addr, s)
}

// DialContext dials addr as the server's Client does, for the DialContext of a
// transport that an adapter makes itself. It reaches servers in memory, and through
// TCP whatever else is there.
func (s *Server) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	to := s
	if addr != s.addr {
		v, ok := inMemory.Load(addr)
		if !ok {
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
		to = v.(*Server)
	}
	if to.refuseNext() {
		return nil, memnet.Refused(addr)
	}
	to.mu.Lock()
	to.dialing++
	to.mu.Unlock()
	var c net.Conn
	var err error
	if to.network != nil {
		c, err = to.network.DialContext(ctx, network, addr)
	} else {
		c, err = new(net.Dialer).DialContext(ctx, network, addr)
	}
	if err != nil {
		to.dialed()
		return nil, err
	}
	return c, nil
}

// dialed reports whether the dial of a connection was our own.
func (s *Server) dialed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dialing == 0 {
		return false
	}
	s.dialing--
	return true
}

// A listener makes a conn of each connection, and refuses those that are to be.
type listener struct {
	net.Listener
	s   *Server
	tls *tls.Config
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if !l.s.dialed() && l.s.refuseNext() {
			reset(raw)
			continue
		}
		c := &conn{Conn: raw, raw: raw, http2: l.s.config.http2}
		if l.tls != nil {
			c.tls = tls.Server(raw, l.tls)
			c.Conn = c.tls
		}
		c.cond.L = &c.mu
		c.in.each, c.out.each, c.in.preface = c.received, c.sent, preface
		return c, nil
	}
}

// reset closes a connection with a RST.
func reset(c net.Conn) {
	switch c := c.(type) {
	case *memnet.Conn:
		c.Reset()
	case *net.TCPConn:
		c.SetLinger(0)
		c.Close()
	default:
		c.Close()
	}
}

// certificate is made once; it must hold in the year 2000, where bubbles live.
var certificate = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{Organization: []string{"oncetest"}},
		NotBefore:    time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2084, 1, 1, 0, 0, 0, 0, time.UTC),
		DNSNames:     []string{"*.oncetest.example", "localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		IsCA:         true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
})
