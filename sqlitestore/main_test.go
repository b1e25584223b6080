package sqlitestore

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Some tests need another process: it is this one's binary, told by childEnv what to
// be.
const childEnv = "SQLITESTORE_TEST_CHILD"

// children are what another process can be. They get arguments, and say on standard
// output that they are ready.
var children = map[string]func(args []string){}

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		children[name](os.Args[1:])
		return
	}
	os.Exit(m.Run())
}

// A child is another process.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	in    interface{ Close() error }
}

// start starts another process, which ends when its standard input does.
func start(t testing.TB, name string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startBinary(t, exe, nil, name, args...)
}

func startBinary(t testing.TB, exe string, attr *syscall.SysProcAttr, name string, args ...string) *child {
	t.Helper()
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, bufio.NewScanner(out), in}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	return c
}

// line reads the next line that the child writes.
func (c *child) line(t testing.TB) string {
	t.Helper()
	if !c.lines.Scan() {
		t.Fatalf("another process ended early: %v", c.cmd.Wait())
	}
	return c.lines.Text()
}

// rest reads what the child writes until it ends.
func (c *child) rest(t testing.TB) []string {
	t.Helper()
	var all []string
	for c.lines.Scan() {
		all = append(all, c.lines.Text())
	}
	if err := c.cmd.Wait(); err != nil {
		t.Fatalf("another process failed: %v\n%s", err, strings.Join(all, "\n"))
	}
	return all
}

// end lets the child end by itself.
func (c *child) end(t testing.TB) {
	t.Helper()
	c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("another process failed: %v", err)
	}
}

// untilTold waits until the parent has no more use for this process.
func untilTold() { bufio.NewReader(os.Stdin).ReadByte() }

// die ends a child that fails.
func die(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}
