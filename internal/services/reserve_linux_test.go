package services

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// Else a test whose server is dead could speak to the server of another test.
func TestADeadServersPortIsNobodyElses(t *testing.T) {
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	if err := reserve(port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("a port was given twice: %v", err)
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	for range 2 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			t.Fatal("somebody listens on a port that is free")
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatalf("its server cannot have it: %v", err)
		}
		if err := reserve(port); !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("the port of a server was given away: %v", err)
		}
		l.Close()
	}
}
