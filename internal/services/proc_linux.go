package services

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// startAll starts commands on a thread that never ends.
func startAll() {
	runtime.LockOSThread()
	for s := range starts {
		s.done <- s.cmd.Start()
	}
}

// dieWithUs makes a command run as somebody else, in a process group of its own,
// and end at once when we do. Postgres and PgBouncer take SIGQUIT for "immediate
// shutdown", and so does whoever does not handle it.
func dieWithUs(cmd *exec.Cmd, uid, gid int) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT, Setpgid: true}
	if uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
}

// apart gives a command a session of its own.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// killTree kills a process and its children as a power cut would: none of them
// has the time to notice that another one is gone.
func killTree(pid int) error {
	syscall.Kill(pid, syscall.SIGSTOP) // it must not start another child meanwhile
	children := children(pid)
	err := syscall.Kill(pid, syscall.SIGKILL)
	for _, c := range children {
		syscall.Kill(c, syscall.SIGKILL)
	}
	return err
}

// children are the processes that pid started and that live.
func children(pid int) []int {
	var all []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		// pid (name) state ppid …, and the name may have anything in it
		_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(pid) {
			if c, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				all = append(all, c)
			}
		}
	}
	return all
}

// reserve takes a port of 127.0.0.1 if nobody has it, or says EADDRINUSE. Linux gives it
// to no outgoing connection then, and to no listener that asks for any port, but to
// servers that ask for this one with SO_REUSEADDR, as nearly all do. See inet_csk_get_port
// in the kernel's net/ipv4/inet_connection_sock.c.
func reserve(port int) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	// Without SO_REUSEADDR it shares with nobody, and with it with one who listens.
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err != nil {
		syscall.Close(fd)
	}
	return err // and the socket stays open
}

// account returns whom a server runs as that refuses to run as root.
func account(name string) (uid, gid int, err error) {
	if os.Getuid() != 0 {
		return -1, -1, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		err = locked(func() error {
			if u, err = user.Lookup(name); err == nil {
				return nil
			}
			if _, err := run(-1, -1, "/", "useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", name); err != nil {
				return err
			}
			u, err = user.Lookup(name)
			return err
		})
	}
	if err != nil {
		return 0, 0, fmt.Errorf("no user %s, and none can be made: %w", name, err)
	}
	uid, err = strconv.Atoi(u.Uid)
	if err == nil {
		gid, err = strconv.Atoi(u.Gid)
	}
	return uid, gid, err
}

// install installs Debian packages unless find finds what is needed.
func install(find func() string, packages ...string) (string, error) {
	if path := find(); path != "" {
		return path, nil
	}
	what := strings.Join(packages, " ")
	if os.Getuid() != 0 {
		return "", fmt.Errorf("%s is not installed and this is not root: install it (on Debian: apt-get install %s)", what, what)
	}
	var path string
	err := locked(func() error {
		if path = find(); path != "" {
			return nil // another test binary has installed it
		}
		if _, err := exec.LookPath("apt-get"); err != nil {
			return fmt.Errorf("%s is not installed and there is no apt-get to install it with", what)
		}
		if _, err := run(-1, -1, "/", "apt-get", "-q", "update"); err != nil {
			return fmt.Errorf("%s is not installed and apt-get cannot be used: %w", what, err)
		}
		argv := []string{"env", "DEBIAN_FRONTEND=noninteractive",
			"apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300", "install", "--no-install-recommends"}
		if _, err := run(-1, -1, "/", append(argv, packages...)...); err != nil {
			return fmt.Errorf("%s is not installed and cannot be: %w", what, err)
		}
		if path = find(); path == "" {
			return fmt.Errorf("%s was installed but what is needed of it is not where Debian puts it", what)
		}
		return nil
	})
	return path, err
}

// locked runs f while no other process of this machine does.
func locked(f func() error) error {
	inProcess.Lock()
	defer inProcess.Unlock()
	file, err := os.OpenFile(filepath.Join(os.TempDir(), "oncehttp-services.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() // and with it the lock
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		if err == nil {
			return f()
		}
		if err != syscall.EINTR {
			return err
		}
	}
}

var inProcess sync.Mutex
