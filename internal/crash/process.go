package crash

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/oncehttp/oncehttp/internal/services"
)

// A Process is a Victim that is a command of its own. It serves once Addr takes
// connections.
type Process struct {
	// Command makes the command of one life. Its standard error is kept, to be
	// shown if it ends by itself. It ends when the test binary does (on Linux).
	Command func() *exec.Cmd

	// Addr is where it listens; [Addr] finds one.
	Addr string

	cmd  *exec.Cmd
	log  *tail
	gone chan struct{} // closed when cmd has ended
	err  error         // how
}

// Start implements Victim.
func (p *Process) Start() error {
	p.cmd, p.log, p.gone = p.Command(), &tail{}, make(chan struct{})
	p.cmd.Stderr = p.log
	if p.cmd.Stdout == nil {
		p.cmd.Stdout = p.log
	}
	p.cmd.WaitDelay = time.Second
	if err := services.StartTied(p.cmd); err != nil {
		return err
	}
	cmd, gone := p.cmd, p.gone
	go func() {
		p.err = cmd.Wait()
		close(gone)
	}()
	return nil
}

// Ready implements Victim.
func (p *Process) Ready(ctx context.Context) error {
	for {
		select {
		case <-p.gone:
			return p.ended()
		case <-ctx.Done():
			return fmt.Errorf("%s takes no connections: %w\n%s", p.cmd.Path, ctx.Err(), p.log)
		default:
		}
		if c, err := net.DialTimeout("tcp", p.Addr, time.Second); err == nil {
			return c.Close()
		}
		sleep(ctx, 2*time.Millisecond)
	}
}

// Kill implements Victim.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return p.ended()
	}
	<-p.gone
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signal() != syscall.SIGKILL {
		return p.ended()
	}
	return nil
}

// Stop asks the process to leave, with SIGTERM, and waits for that.
func (p *Process) Stop(patience time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return p.ended()
	}
	select {
	case <-p.gone:
	case <-time.After(patience):
		p.cmd.Process.Kill()
		<-p.gone
		return fmt.Errorf("it was still there after %v\n%s", patience, p.log)
	}
	if p.err != nil {
		return p.ended()
	}
	return nil
}

// ended says that and how the process has ended by itself.
func (p *Process) ended() error {
	<-p.gone
	return fmt.Errorf("%s ended by itself: %v\n%s", p.cmd.Path, p.err, p.log)
}

// tail keeps the last of what a process has written.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if n := len(t.b) - tailSize; n > tailSize {
		t.b = bytes.Clone(t.b[n:])
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b[max(0, len(t.b)-tailSize):])
}

// Addr returns an address of this machine that nobody listens on, and that no
// outgoing connection gets while the victim is dead.
func Addr() (string, error) {
	port, err := services.FreePort()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}
