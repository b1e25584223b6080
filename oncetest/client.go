package oncetest

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// idHeader is what a Client of ours writes into each request, to find what it sees
// among what the server has seen. The server removes it.
const idHeader = "Oncetest-Send"

// Client returns an http.Client for s, a new one with each call, so that its
// fields may be set; its Transport is the same each time. It does not repeat
// anything, except what net/http repeats by itself. To test what wraps a
// transport, wrap this one:
//
//	client := srv.Client()
//	client.Transport = &oncehttp.Transport{Base: client.Transport}
//
// The server notes what comes back to this transport: which replies are read to
// their end, and which errors stand in for them.
func (s *Server) Client() *http.Client {
	return &http.Client{Transport: &watch{s: s, base: s.base}}
}

func (s *Server) transport() *http.Transport {
	t := &http.Transport{DialContext: s.DialContext}
	if s.config.http2 {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetHTTP2(s.config.tls)
		t.Protocols.SetUnencryptedHTTP2(!s.config.tls)
	}
	if s.config.tls {
		roots := x509.NewCertPool()
		roots.AddCert(s.cert)
		t.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	return t
}

// A watch is a transport that tells the server how its requests end here.
type watch struct {
	s    *Server
	base *http.Transport
}

func (t *watch) CloseIdleConnections() { t.base.CloseIdleConnections() }

func (t *watch) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL == nil || req.Header == nil || req.URL.Host != t.s.host {
		return t.base.RoundTrip(req)
	}
	t.s.mu.Lock()
	t.s.lastID++
	id := strconv.Itoa(t.s.lastID)
	t.s.mu.Unlock()
	r := req.Clone(req.Context())
	r.Header.Set(idHeader, id)
	resp, err := t.base.RoundTrip(r)
	if err != nil {
		t.s.observe(id, func(x *send) { x.err = err })
		return nil, err
	}
	resp.Request = req
	if _, ok := resp.Body.(io.Writer); ok {
		return resp, nil // switched protocols: there is no end to wait for
	}
	b := &watchedBody{ReadCloser: resp.Body, s: t.s, id: id}
	if resp.Body == http.NoBody || resp.ContentLength == 0 || req.Method == http.MethodHead {
		b.end(func(x *send) { x.read = true })
	}
	resp.Body = b
	return resp, nil
}

// observe notes how the send with an id ended at the client. Net/http may have
// sent it more than once by itself; the client sees the end of the last.
func (s *Server) observe(id string, note func(*send)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.seen[id]; x != nil {
		s.seq++
		x.observed = s.seq
		note(x)
	}
}

// A watchedBody tells how the reading of a response's body ends.
type watchedBody struct {
	io.ReadCloser
	s    *Server
	id   string
	once sync.Once
}

func (b *watchedBody) end(note func(*send)) {
	b.once.Do(func() { b.s.observe(b.id, note) })
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch err {
	case nil:
	case io.EOF:
		b.end(func(x *send) { x.read = true })
	default:
		b.end(func(x *send) { x.err = err })
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.end(func(x *send) { x.closed = true })
	return b.ReadCloser.Close()
}
