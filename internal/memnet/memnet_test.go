package memnet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp/internal/memnet"
)

const addr = "pay.example:80"

// pair returns the two ends of a connection.
func pair(t *testing.T, n *memnet.Network) (client, server *memnet.Conn) {
	t.Helper()
	l, err := n.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := n.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c.(*memnet.Conn), s.(*memnet.Conn)
}

func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestConnectionsEndAsOnTCP(t *testing.T) {
	for _, row := range []struct {
		name  string
		end   func(c *memnet.Conn) error
		reads string
		rerr  error
		werr  error
	}{
		{"a closed one is read to its end", (*memnet.Conn).Close, "hello", io.EOF, syscall.EPIPE},
		{"a half-closed one is read to its end and still takes bytes", (*memnet.Conn).CloseWrite, "hello", io.EOF, nil},
		{"one whose reader has gone does not tell", (*memnet.Conn).CloseRead, "hello", os.ErrDeadlineExceeded, nil},
		{"a reset one loses what was under way", (*memnet.Conn).Reset, "", syscall.ECONNRESET, syscall.ECONNRESET},
	} {
		bubble(t, row.name, func(t *testing.T) {
			a, b := pair(t, new(memnet.Network))
			io.WriteString(a, "hello")
			if err := row.end(a); err != nil {
				t.Fatal(err)
			}
			b.SetReadDeadline(time.Now().Add(time.Hour))
			got, err := io.ReadAll(b)
			if err == nil {
				err = io.EOF
			}
			if string(got) != row.reads || !errors.Is(err, row.rerr) {
				t.Errorf("the other end read %q, %v; want %q, %v", got, err, row.reads, row.rerr)
			}
			if _, err := b.Write([]byte("x")); !errors.Is(err, row.werr) {
				t.Errorf("the other end wrote: %v, want %v", err, row.werr)
			}
		})
	}
}

func TestOnesOwnClosedConnectionIsErrClosed(t *testing.T) {
	for name, end := range map[string]func(c *memnet.Conn) error{"closed": (*memnet.Conn).Close, "reset": (*memnet.Conn).Reset} {
		bubble(t, name, func(t *testing.T) {
			n := new(memnet.Network)
			a, b := pair(t, n)
			io.WriteString(a, "unread")
			end(b)
			for op, f := range map[string]func() error{
				"Read":             func() error { _, err := b.Read(make([]byte, 1)); return err },
				"Write":            func() error { _, err := b.Write([]byte("x")); return err },
				"Close":            b.Close,
				"Reset":            b.Reset,
				"SetReadDeadline":  func() error { return b.SetReadDeadline(time.Time{}) },
				"SetWriteDeadline": func() error { return b.SetWriteDeadline(time.Time{}) },
			} {
				var oe *net.OpError
				if err := f(); !errors.Is(err, net.ErrClosed) || !errors.As(err, &oe) {
					t.Errorf("%s: %v, want a *net.OpError with net.ErrClosed", op, err)
				}
			}
			if got := n.Open(); got != 0 {
				t.Errorf("%d connections open, want 0", got)
			}
		})
	}
}

func TestEveryEndWakesThoseWhoWait(t *testing.T) {
	for _, row := range []struct {
		name       string
		end        func(n *memnet.Network, a, b *memnet.Conn)
		read, full error
	}{
		{"our Close", func(_ *memnet.Network, a, _ *memnet.Conn) { a.Close() }, net.ErrClosed, net.ErrClosed},
		{"our Reset", func(_ *memnet.Network, a, _ *memnet.Conn) { a.Reset() }, net.ErrClosed, net.ErrClosed},
		{"their Close", func(_ *memnet.Network, _, b *memnet.Conn) { b.Close() }, io.EOF, syscall.EPIPE},
		{"their Reset", func(_ *memnet.Network, _, b *memnet.Conn) { b.Reset() }, syscall.ECONNRESET, syscall.ECONNRESET},
		{"a broken network", func(n *memnet.Network, _, _ *memnet.Conn) { n.Break() }, syscall.ECONNRESET, syscall.ECONNRESET},
		{"a deadline that is moved to the past", func(_ *memnet.Network, a, _ *memnet.Conn) { a.SetDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded, os.ErrDeadlineExceeded},
	} {
		bubble(t, row.name, func(t *testing.T) {
			n := &memnet.Network{Buffer: 10}
			a, b := pair(t, n)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if _, err := a.Read(make([]byte, 1)); !errors.Is(err, row.read) {
						t.Errorf("Read: %v, want %v", err, row.read)
					}
				})
			}
			wg.Go(func() {
				if n, err := a.Write(make([]byte, 25)); n != 10 || !errors.Is(err, row.full) {
					t.Errorf("Write: %d, %v; want 10, %v", n, err, row.full)
				}
			})
			synctest.Wait()
			row.end(n, a, b)
			wg.Wait()
		})
	}
}

func TestDeadlinesPassOnTheClockAndCanBeMoved(t *testing.T) {
	bubble(t, "read", func(t *testing.T) {
		a, b := pair(t, new(memnet.Network))
		start := time.Now()
		a.SetReadDeadline(start.Add(time.Minute))
		time.AfterFunc(30*time.Second, func() { a.SetReadDeadline(start.Add(time.Hour)) })
		_, err := a.Read(make([]byte, 1))
		if ne, ok := err.(net.Error); !ok || !ne.Timeout() || time.Since(start) != time.Hour {
			t.Errorf("%v after %v, want a timeout after an hour", err, time.Since(start))
		}
		io.WriteString(b, "late")
		if _, err = a.Read(make([]byte, 9)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after the deadline: %v, want it to stand", err)
		}
		a.SetReadDeadline(time.Time{})
		if n, err := a.Read(make([]byte, 9)); n != 4 || err != nil {
			t.Errorf("without a deadline: %d, %v; want 4 bytes", n, err)
		}
	})
	bubble(t, "write", func(t *testing.T) {
		a, b := pair(t, &memnet.Network{Buffer: 3})
		start := time.Now()
		a.SetWriteDeadline(start.Add(time.Minute))
		if n, err := a.Write([]byte("hello")); n != 3 || !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("%d, %v after %v; want 3 bytes and a timeout after a minute", n, err, time.Since(start))
		}
		a.SetWriteDeadline(time.Time{})
		time.AfterFunc(time.Minute, func() { b.Read(make([]byte, 3)) })
		if n, err := a.Write([]byte("lo")); n != 2 || err != nil {
			t.Errorf("once there is room: %d, %v; want 2 bytes", n, err)
		}
	})
}

func TestBytesArriveInOrderThroughASmallBuffer(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		a, b := pair(t, &memnet.Network{Buffer: 7})
		want := bytes.Repeat([]byte("oncehttp "), 5000)
		go func() {
			a.Write(want)
			a.Close()
		}()
		if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, %v; want the %d that were written", len(got), err, len(want))
		}
	})
}

func TestDialing(t *testing.T) {
	refused := func(t *testing.T, err error) {
		t.Helper()
		var oe *net.OpError
		if !errors.As(err, &oe) || oe.Op != "dial" || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v, want a refused *net.OpError of dial", err)
		}
	}
	bubble(t, "is refused without a listener and after its Close", func(t *testing.T) {
		n := new(memnet.Network)
		_, err := n.DialContext(t.Context(), "tcp", addr)
		refused(t, err)
		l, _ := n.Listen(addr)
		l.Close()
		_, err = n.DialContext(t.Context(), "tcp", addr)
		refused(t, err)
		if got := n.Dials(); got != 2 {
			t.Errorf("%d dials, want 2", got)
		}
	})
	bubble(t, "does not wait for Accept, until the backlog is full", func(t *testing.T) {
		n := new(memnet.Network)
		l, _ := n.Listen(addr)
		c, err := n.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = n.DialContext(t.Context(), "tcp", addr)
		}
		refused(t, err)
		l.Close()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection that nobody accepted: %v, want ECONNRESET", err)
		}
	})
	bubble(t, "fails when its context has ended", func(t *testing.T) {
		n := new(memnet.Network)
		n.Listen(addr)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := n.DialContext(ctx, "tcp", addr); !errors.Is(err, context.Canceled) {
			t.Errorf("dial: %v, want context.Canceled", err)
		}
	})
	bubble(t, "an address has one listener at a time", func(t *testing.T) {
		n := new(memnet.Network)
		l, _ := n.Listen(addr)
		if _, err := n.Listen(addr); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("second Listen: %v, want EADDRINUSE", err)
		}
		l.Close()
		if _, err := n.Listen(addr); err != nil {
			t.Errorf("Listen after Close: %v", err)
		}
	})
	bubble(t, "connections have addresses of their own", func(t *testing.T) {
		n := new(memnet.Network)
		a, b := pair(t, n)
		c, _ := pair(t, n)
		if a.LocalAddr().String() == c.LocalAddr().String() {
			t.Errorf("two clients at %v", a.LocalAddr())
		}
		if a.LocalAddr() != b.RemoteAddr() || a.RemoteAddr() != b.LocalAddr() || b.LocalAddr().String() != addr {
			t.Errorf("%v → %v is %v ← %v at the other end", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
		}
	})
}

func TestAcceptEndsWithTheListener(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l, _ := new(memnet.Network).Listen(addr)
		time.AfterFunc(time.Second, func() { l.Close() })
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v, want net.ErrClosed", err)
		}
	})
}

func TestHTTPInABubble(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		bubble(t, proto, func(t *testing.T) {
			n := new(memnet.Network)
			stop, err := n.Serve(addr, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/echo":
					io.Copy(w, r.Body)
				case "/hang":
					<-r.Context().Done()
				}
			})})
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			tr := n.Transport(proto == "HTTP/2.0")
			defer tr.CloseIdleConnections()
			client := &http.Client{Transport: tr}

			resp, err := client.Post("http://pay.example/echo", "", struct{ io.Reader }{strings.NewReader("hello")})
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(body) != "hello" || err != nil || resp.Proto != proto {
				t.Errorf("%s %q, %v; want hello", resp.Proto, body, err)
			}
			if got := n.Open(); got != 1 {
				t.Errorf("%d connections open, want 1", got)
			}

			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			start := time.Now()
			req, _ := http.NewRequestWithContext(ctx, "GET", "http://pay.example/hang", nil)
			if _, err = client.Do(req); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Hour {
				t.Errorf("a hung call: %v after %v, want the deadline after an hour", err, time.Since(start))
			}

			time.AfterFunc(time.Minute, n.Break)
			if _, err = client.Get("http://pay.example/hang"); err == nil {
				t.Error("a broken connection: no error")
			} else if proto == "HTTP/1.1" && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a broken connection: %v, want ECONNRESET", err)
			}

			stop()
			synctest.Wait()
			if _, err = client.Get("http://pay.example/echo"); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a stopped server: %v, want ECONNREFUSED", err)
			}
			if got := n.Open(); got != 0 {
				t.Errorf("%d connections open at the end, want 0", got)
			}
		})
	}
}

// A peer that neither reads nor answers must leave the bubble's clock running:
// the mutexes of HTTP/2 make that the hard case.
func TestAStalledServerDoesNotStopTheClock(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		bubble(t, proto, func(t *testing.T) {
			n := new(memnet.Network)
			l, _ := n.Listen(addr)
			defer l.Close()
			tr := n.Transport(proto == "HTTP/2.0")
			defer n.Break()
			client := &http.Client{Transport: tr, Timeout: time.Minute}
			start := time.Now()
			go func() {
				for {
					if _, err := l.Accept(); err != nil {
						return
					}
				}
			}()
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					_, err := client.Post("http://pay.example/", "", bytes.NewReader(make([]byte, 1<<20)))
					var ne net.Error
					if !errors.As(err, &ne) || !ne.Timeout() {
						t.Errorf("%v, want a timeout", err)
					}
				})
			}
			wg.Wait()
			if got := time.Since(start); got != time.Minute {
				t.Errorf("took %v, want a minute", got)
			}
		})
	}
}
