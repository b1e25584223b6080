package services

import "os/exec"

// Program finds a program that a test runs, and installs Debian packages that have it where
// it is missing. The error says why that cannot be done.
func Program(name string, packages ...string) (path string, err error) {
	return install(func() string {
		path, _ := exec.LookPath(name)
		return path
	}, packages...)
}
