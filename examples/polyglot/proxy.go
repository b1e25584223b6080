package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// A proxy is onceproxy, built and running.
type proxy struct {
	addr string
	cmd  *exec.Cmd
	out  bytes.Buffer
}

func startProxy(ctx context.Context, dir, upstream string) (*proxy, error) {
	bin := filepath.Join(dir, "onceproxy")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", bin, "github.com/oncehttp/oncehttp/cmd/onceproxy")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building onceproxy: %w\n%s", err, out)
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p := &proxy{addr: addr}
	p.cmd = exec.CommandContext(ctx, bin, "-upstream", upstream, "-listen", addr, "-store", filepath.Join(dir, "once.db"))
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	for range 300 { // ten seconds
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			return p, nil
		}
		time.Sleep(33 * time.Millisecond)
	}
	p.stop()
	return nil, fmt.Errorf("onceproxy does not answer:\n%s", &p.out)
}

func (p *proxy) stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.cmd.Wait()
}

// freeAddr is an address that nobody listened to a moment ago.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
