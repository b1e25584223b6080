package oncehttp_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// h2Reset serves HTTP/2 and resets every stream with PROTOCOL_ERROR once its request has ended.
func h2Reset(t *testing.T, code uint32, ran *atomic.Int32) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.CopyN(io.Discard, c, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
				c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
				var h [9]byte
				for {
					if _, err := io.ReadFull(c, h[:]); err != nil {
						return
					}
					n := int64(h[0])<<16 | int64(h[1])<<8 | int64(h[2])
					io.CopyN(io.Discard, c, n)
					typ, flags := h[3], h[4]
					switch {
					case typ == 4 && flags&1 == 0:
						c.Write([]byte{0, 0, 0, 4, 1, 0, 0, 0, 0})
					case (typ == 0 || typ == 1) && flags&1 != 0: // END_STREAM
						ran.Add(1)
						b := append([]byte{0, 0, 4, 3, 0}, h[5:9]...)
						c.Write(binary.BigEndian.AppendUint32(b, code))
					}
				}
			}()
		}
	}()
	return "http://" + ln.Addr().String()
}

// net/http itself sends such a request again for as long as it is let, thousands
// of times a second: golang/go#47635.
func TestAStreamErrorIsNoLeaveToSendAgain(t *testing.T) {
	for _, kind := range []string{"unkeyed", "keyed"} {
		for _, body := range []string{"x", ""} {
			for _, code := range []uint32{1, 2} { // PROTOCOL_ERROR and INTERNAL_ERROR, RFC 9113, section 7
				t.Run(fmt.Sprintf("%s, body %q, code %d", kind, body, code), func(t *testing.T) {
					var ran atomic.Int32
					url := h2Reset(t, code, &ran)
					p := new(http.Protocols)
					p.SetUnencryptedHTTP2(true)
					tr := &oncehttp.Transport{Base: &http.Transport{Protocols: p}, Attempts: 1, AttemptTimeout: time.Second,
						Honors: func(*http.Request) bool { return kind == "keyed" }}
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					var r io.Reader
					if body != "" {
						r = strings.NewReader(body)
					}
					req, _ := http.NewRequestWithContext(ctx, "POST", url+"/refund", r)
					_, err := tr.RoundTrip(req)
					if e, ok := err.(*oncehttp.Error); !ok || e.Certainty != oncehttp.CertaintyUnknown {
						t.Errorf("error = %v, want one that says unknown", err)
					}
					if ran.Load() != 1 {
						t.Errorf("the request arrived %d times, want once", ran.Load())
					}
				})
			}
		}
	}
}
