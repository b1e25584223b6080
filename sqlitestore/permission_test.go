//go:build unix

package sqlitestore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Root may write where nobody may, so another process, which is not root, has to
// try.
func TestAFileWithoutPermissionIsSaidToBeReadOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "once.db")
	open(t, path).Close()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var attr *syscall.SysProcAttr
	if os.Getuid() == 0 {
		attr, exe = asNobody(t, exe)
	}
	for _, c := range []struct {
		what      string
		dir, file os.FileMode
	}{
		{"a file that may only be read", 0o777, 0o444},
		{"a file in a directory that may only be read", 0o555, 0o666},
	} {
		if err := errors.Join(os.Chmod(path, c.file), os.Chmod(dir, c.dir)); err != nil {
			t.Fatal(err)
		}
		child := startBinary(t, exe, attr, "open", path)
		got := strings.Join(child.rest(t), "\n")
		if !strings.Contains(got, ErrReadOnly.Error()) && !strings.Contains(got, ErrCannotOpen.Error()) || !strings.Contains(got, path) {
			t.Errorf("%s: got %q", c.what, got)
		}
	}
	os.Chmod(dir, 0o777)
}

// asNobody is how to run a program as a user without rights, and the program, where
// that user may read it.
func asNobody(t *testing.T, exe string) (*syscall.SysProcAttr, string) {
	dir, err := os.MkdirTemp("", "sqlitestore")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program, err := os.ReadFile(exe)
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "child"), program, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	for d := t.TempDir(); len(d) > len(os.TempDir()); d = filepath.Dir(d) {
		os.Chmod(d, 0o755)
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, filepath.Join(dir, "child")
}
