// Package services starts the servers that tests need: real ones, each in a
// temporary folder and on a free port of its own, never one that happens to run
// on the machine.
//
// A server ends with the test binary, however that ends: the kernel and a small
// shell that waits for the binary's end see to it. What is not installed is
// installed with apt-get, once a machine; where that cannot be done the test
// fails. It is not skipped: a test that does not run promises nothing.
package services

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a server may take to start or to stop. It is long: CI
// machines do other things too.
const patience = 60 * time.Second

// A server is a process that a test can kill and start again.
type server struct {
	name string // as it appears in messages
	dir  string // its folder, which goes when the test binary ends
	argv []string
	env  []string // what it gets beside environment()
	uid  int      // whom it runs as; -1: whoever runs the test
	gid  int

	mu   sync.Mutex
	cmd  *exec.Cmd
	gone chan struct{} // closed when cmd has ended
	err  error         // how it ended
}

// folder makes the folder of a server. Others may pass through it, because the
// server runs as somebody else.
func folder(name string) (string, error) {
	dir, err := os.MkdirTemp("", "oncehttp-"+name+"-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", err
	}
	return dir, sweepLater(dir)
}

// start starts the process. Its output goes to the file log in its folder.
func (s *server) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		select {
		case <-s.gone:
		default:
			return fmt.Errorf("%s is running already", s.name)
		}
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.Dir = s.dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(environment(), s.env...)
	dieWithUs(cmd, s.uid, s.gid)
	if err := startTied(cmd); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	gone := make(chan struct{})
	s.cmd, s.gone = cmd, gone
	go func() {
		err := cmd.Wait()
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		close(gone)
	}()
	return nil
}

// ready waits until ask says that the server answers.
func (s *server) ready(ask func() error) error {
	var err error
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if err = ask(); err == nil {
			return nil
		}
		select {
		case <-s.gone:
			return fmt.Errorf("%s ended before it was ready: %v\n%s", s.name, s.err, s.tail())
		default:
		}
	}
	return fmt.Errorf("%s was not ready within %v: %v\n%s", s.name, patience, err, s.tail())
}

// signal sends a signal to the process.
func (s *server) signal(sig os.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return fmt.Errorf("%s was not started", s.name)
	}
	return s.cmd.Process.Signal(sig)
}

// ended waits for the end of the process.
func (s *server) ended() error {
	select {
	case <-s.gone:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s did not end within %v\n%s", s.name, patience, s.tail())
	}
}

func (s *server) log() string { return filepath.Join(s.dir, "log") }

// tail is the end of the server's log.
func (s *server) tail() string {
	b, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

// environment is ours without what would make a client or server use another
// server, or speak another language.
func environment() []string {
	env := []string{"LC_ALL=C"}
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// run runs a command to its end.
func run(uid, gid int, dir string, argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = environment()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	dieWithUs(cmd, uid, gid)
	err := startTied(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		b := out.Bytes()
		return "", fmt.Errorf("%s: %w\n%s", filepath.Base(argv[0]), err, b[max(0, len(b)-4000):])
	}
	return out.String(), nil
}

// onFreePort starts a server on a port that nobody has. Somebody who does not ask first
// may take the port before the server does; then another one is tried.
func onFreePort(start func(port int) error) error {
	var err error
	for range 3 {
		var port int
		if port, err = FreePort(); err != nil {
			return err
		}
		if err = start(port); err == nil {
			return nil
		}
	}
	return err
}

// FreePort returns a port of 127.0.0.1 that nobody has, and keeps it for whoever listens
// on it by its number, until this process ends (on Linux): while a server is dead, no
// other one's clients may take what runs on its port for it. The port is below those that
// Linux gives to outgoing connections, because a client that dials such a port again and
// again ends up connected to itself.
func FreePort() (int, error) {
	const lowest, ports = 17000, 15000
	start := int(time.Now().UnixNano()/1000) + 7919*os.Getpid()
	var failed error
	for i := range ports {
		port := lowest + (start+i)%ports
		err := reserve(port)
		if err == nil {
			return port, nil
		}
		failed = err
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return 0, fmt.Errorf("services: no free port: %w", failed)
}

// StartTied starts a command that ends when this process does, however that ends (on
// Linux). The command is in a process group of its own; its SysProcAttr is replaced.
func StartTied(cmd *exec.Cmd) error {
	dieWithUs(cmd, -1, -1)
	return startTied(cmd)
}

// startTied starts a command from a thread that lasts as long as the process,
// because Linux takes the end of the thread that started a child for the end of
// the parent (golang/go#27505).
func startTied(cmd *exec.Cmd) error {
	starter.Do(func() { go startAll() })
	done := make(chan error)
	starts <- start{cmd, done}
	return <-done
}

type start struct {
	cmd  *exec.Cmd
	done chan<- error
}

var (
	starter sync.Once
	starts  = make(chan start)
)

// sweepLater has a folder removed after the end of this process. A shell waits
// for it, in a session of its own so that an interrupted test run does not end
// it first, and gives servers, which end by themselves, the time to.
func sweepLater(dir string) error {
	cmd := exec.Command("sh", "-c", `cat >/dev/null
for i in 1 2 3 4 5 6 7 8 9 10; do
	sleep 0.2
	rm -rf "$0" 2>/dev/null && exit
done`, dir)
	// Nothing is ever written: the pipe closes when this process ends.
	_, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	apart(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("a shell that cleans up: %w", err)
	}
	keep(cmd)
	return nil
}

// keep keeps a command's pipes from being collected, and so closed.
func keep(cmd *exec.Cmd) {
	kept.Lock()
	kept.cmds = append(kept.cmds, cmd)
	kept.Unlock()
	go cmd.Wait()
}

var kept struct {
	sync.Mutex
	cmds []*exec.Cmd
}

// need fails the test if err is not nil.
func need(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("services: %v", err)
	}
}

// newest returns the path that matches pattern and has the highest version, as
// version reads it from the path, or "".
func newest(pattern string, version func(path string) string) string {
	var best string
	var most float64
	paths, _ := filepath.Glob(pattern)
	for _, p := range paths {
		if v, err := strconv.ParseFloat(version(p), 64); err == nil && v > most {
			best, most = p, v
		}
	}
	return best
}
