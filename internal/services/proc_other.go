//go:build !linux

package services

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
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
