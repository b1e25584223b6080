package services

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The test binary runs itself, and kills what it ran.
func TestAServerEndsWithATestBinaryThatIsKilled(t *testing.T) {
	const mark = "ONCEHTTP_SERVICES_VICTIM"
	if os.Getenv(mark) != "" {
		pg := Postgres(t)
		os.Stdout.WriteString("\n" + strconv.Itoa(pg.cmd.Process.Pid) + " " + pg.dir + "\n")
		time.Sleep(time.Hour)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), mark+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	var pid int
	var dir string
	for lines := bufio.NewScanner(out); dir == "" && lines.Scan(); {
		if n, rest, ok := strings.Cut(lines.Text(), " "); ok && strings.Contains(rest, "oncehttp-pg-") {
			pid, _ = strconv.Atoi(n)
			dir = rest
		}
	}
	if dir == "" {
		t.Fatal("the other test binary started no server")
	}
	status := filepath.Join("/proc", strconv.Itoa(pid), "cmdline")
	if b, err := os.ReadFile(status); err != nil || !strings.Contains(string(b), dir) {
		t.Fatalf("the server does not run: %v", err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	for until := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		b, _ := os.ReadFile(status)
		_, err := os.Stat(dir)
		if !strings.Contains(string(b), dir) && os.IsNotExist(err) {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("after %v the server runs: %v; its folder is there: %v", patience, len(b) > 0, err == nil)
		}
	}
}
