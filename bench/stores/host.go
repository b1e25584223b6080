package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A host stands for the test for which package services starts a server: what it
// starts ends with the program.
type host struct {
	testing.TB // nil: only what is defined here is used
	out        io.Writer
	cleanups   []func()
}

// A failure ends the measurement.
type failure string

func (h *host) Helper()                           {}
func (h *host) Cleanup(f func())                  { h.cleanups = append(h.cleanups, f) }
func (h *host) Fatal(args ...any)                 { panic(failure(fmt.Sprint(args...))) }
func (h *host) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }
func (h *host) Errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "stores: "+format+"\n", args...)
}
func (h *host) Logf(format string, args ...any) { h.Errorf(format, args...) }

// TempDir makes a directory that ends with the program.
func (h *host) TempDir() string {
	dir, err := os.MkdirTemp("", "oncehttp-stores-")
	h.need(err)
	h.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (h *host) need(err error) {
	if err != nil {
		h.Fatal(err)
	}
}

// end ends what was started last first.
func (h *host) end() {
	for _, f := range slices.Backward(h.cleanups) {
		f()
	}
}

// part runs f and ends what it started.
func (h *host) part(f func(h *host)) {
	inner := &host{out: h.out}
	defer inner.end()
	f(inner)
}

// progress tells somebody who waits what is being done.
func (h *host) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// fsyncTime is how long the disk of a directory takes to make a page durable: the
// median of some.
func fsyncTime(h *host, dir string) time.Duration {
	f, err := os.Create(filepath.Join(dir, "fsync"))
	h.need(err)
	defer f.Close()
	page := make([]byte, 4096)
	took := make([]time.Duration, 100)
	for i := range took {
		began := time.Now()
		_, err := f.WriteAt(page, int64(i*len(page)))
		h.need(err)
		h.need(f.Sync())
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[len(took)/2].Round(time.Microsecond)
}
