package oncetest

import (
	"crypto/sha256"
	"hash"
	"net/http"
	"net/textproto"
	"slices"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A Request is one request as it reached the server, and what became of it.
type Request struct {
	N      int       // its number among all sends, from 1
	Time   time.Time // when it arrived
	Proto  string    // "HTTP/1.1" or "HTTP/2.0"
	Method string
	URL    string // path and query
	Header http.Header
	Body   []byte // as far as it was read, and the first MiB at most
	Key    string // its idempotency key without quotes; "" if it has none

	Faults  []string // the faults that it met
	Runs    int      // how often the handler was started for it
	Effects int      // how often the handler called Effect for it

	// Status is the status that was sent, or the beginning of which was. It is 0
	// if nothing was.
	Status int

	// Sent means that the whole reply was handed to a connection that still stood.
	// A client has read it then, unless it went away in the meantime.
	Sent bool

	// Read means that a Client of the server read the reply to its end. Err is
	// what such a client got instead. Both are zero for other clients, which the
	// server cannot look into.
	Read bool
	Err  error
}

// A send is one send as the server knows it. The server's lock guards what
// changes after newSend.
type send struct {
	s          *Server
	n          int
	at         time.Time
	began      int  // in the order of all that happened
	over       int  // the same, on the server's side; 0: still under way
	refused    bool // there was no request
	lastOnConn bool
	faults     []string

	proto, method, url string
	header             http.Header
	key                string
	keyed              bool
	body               []byte
	length             int64
	sum                hash.Hash
	bodyOver           bool // it was read to its end, or failed

	runs    int
	endings []ending
	effects int
	asks    bool // NoEffect
	lost    int  // the status of a reply that reached nobody
	status  int
	sent    bool
	fate    string // why the reply was not sent whole

	observed int // when a Client of ours knew how it ended for it; 0: never
	read     bool
	closed   bool // by the client, before its end
	err      error
}

// remembered is how much of a body is kept.
const remembered = 1 << 20

func newSend(s *Server, r *http.Request) *send {
	x := &send{s: s, proto: r.Proto, method: r.Method, url: r.URL.RequestURI(), header: r.Header.Clone(), sum: sha256.New()}
	if values := textproto.MIMEHeader(r.Header).Values(s.config.keyHeader); len(values) > 0 {
		x.keyed = true
		// A server may take what ParseKey does not, so what is no key by the rules
		// still is itself.
		x.key = values[0]
		if key, err := oncehttp.ParseKey(http.Header{oncehttp.Header: values}); err == nil {
			x.key = key
		}
	}
	return x
}

// note changes what is known of x.
func (x *send) note(change func()) {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	change()
}

// Requests returns the requests that have reached the server, in the order of
// their arrival.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Request
	for _, x := range s.sends {
		if x.refused {
			continue
		}
		all = append(all, Request{
			N: x.n, Time: x.at, Proto: x.proto, Method: x.method, URL: x.url, Header: x.header.Clone(),
			Body: slices.Clone(x.body), Key: x.key,
			Faults: slices.Clone(x.faults), Runs: x.runs, Effects: x.effects,
			Status: x.status, Sent: x.sent, Read: x.read, Err: x.err,
		})
	}
	return all
}

// Sends returns how often clients tried: the number of requests that have reached
// the server and of connections that were refused.
func (s *Server) Sends() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sends)
}

// Effects returns how often the handler has called [Effect], for all requests
// together.
func (s *Server) Effects() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, x := range s.sends {
		n += x.effects
	}
	return n
}
