package oncetest

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// RFC 9113, section 3.4: the server's first frame is SETTINGS.
func TestGoAwayDoesNotOvertakeTheSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		c := &conn{Conn: server, raw: server, http2: true}
		c.cond.L = &c.mu
		c.in.each, c.out.each = c.received, c.sent
		go c.goAway(leaving)
		synctest.Wait()
		go c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // empty SETTINGS
		got := make([]byte, 9+9)
		if _, err := io.ReadFull(client, got); err != nil {
			t.Fatal(err)
		}
		if got[3] != 4 || got[9+3] != frameGoAway {
			t.Errorf("got a frame of type %d and then one of type %d, want SETTINGS (4) and GOAWAY (%d)", got[3], got[9+3], frameGoAway)
		}
		io.ReadFull(client, make([]byte, 8)) // the rest of the GOAWAY
	})
}
