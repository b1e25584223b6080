//go:build !linux

package services

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// Elsewhere than on Linux a server runs as whoever runs the test, what is missing
// is not installed, and a server may outlive a test binary that was killed.

func startAll() {
	for s := range starts {
		s.done <- s.cmd.Start()
	}
}

func dieWithUs(*exec.Cmd, int, int) {}

func apart(*exec.Cmd) {}

func killTree(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

// reserve finds out whether somebody listens on a port, and keeps it for nobody.
func reserve(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

func account(name string) (uid, gid int, err error) {
	if os.Getuid() == 0 {
		return 0, 0, errors.New("servers are not run as root: run the tests as somebody else")
	}
	return -1, -1, nil
}

func install(find func() string, packages ...string) (string, error) {
	if path := find(); path != "" {
		return path, nil
	}
	return "", fmt.Errorf("%s is not installed: install it", strings.Join(packages, " "))
}
