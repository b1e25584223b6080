// Package dropin is what a user of net/http relies on, as a table whose rows are behaviours:
// what a client loses nothing of if something of this project is put between it and its server.
//
// A row needs nothing but net/http to hold. So each is run without anything in between too,
// which proves the row.
package dropin

import (
	"net"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
)

// Rows is the table.
var Rows = slices.Concat(methodRows, bodyRows, answerRows, codingRows, redirectRows, expectRows,
	traceRows, endRows, poolRows, addressRows, proxyRows, refusalRows, streamRows)

// A Row is one behaviour.
type Row struct {
	Does string // a sentence; its name
	On   Protocols
	When Clock
	run  func(*Wire)
}

// Protocols are those on which a row holds.
type Protocols int

const (
	Both Protocols = iota
	HTTP1
	HTTP2
)

// A Clock is what a row goes by.
type Clock int

const (
	// Real: over TCP, or TLS for HTTP/2.
	Real Clock = iota
	// Virtual: within the process and in a bubble, for what takes time or would be retried.
	// With a Front such a row goes by the real one.
	Virtual
)

// A Setup is what stands between a row's client and its servers.
type Setup struct {
	// Over wraps the transport of the client. Nil: not at all.
	Over func(http.RoundTripper) http.RoundTripper
	// Front is a proxy in front of the servers. Nil: none.
	Front Front
	// Hides says of a row that it cannot be run, or would show nothing. Nil: each row can.
	Hides func(r *Row, h2 bool) bool
}

// A Front is a proxy between a row's client and its servers. It is used by several rows at
// once.
type Front interface {
	// Listen opens where a server will be that the proxy forwards to.
	Listen(w *Wire) net.Listener
	// URL is where the client of w reaches the server at l, which is over TLS or not.
	URL(w *Wire, l net.Listener, tls bool) string
}

// Run holds what s describes to the table, one parallel subtest a row and protocol.
func (s Setup) Run(t *testing.T) {
	for _, proto := range []string{"http1", "http2"} {
		t.Run(proto, func(t *testing.T) {
			for _, row := range Rows {
				h2 := proto == "http2"
				if h2 && row.On == HTTP1 || !h2 && row.On == HTTP2 || s.Hides != nil && s.Hides(&row, h2) {
					continue
				}
				t.Run(row.Does, func(t *testing.T) {
					t.Parallel()
					w := &Wire{H2: h2, Row: &row, setup: s}
					if row.When == Virtual && s.Front == nil {
						synctest.Test(t, func(t *testing.T) { w.run(t, true, row.run) })
					} else {
						w.run(t, false, row.run)
					}
				})
			}
		})
	}
}
