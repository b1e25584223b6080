package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
)

var rssLine = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

// residentKiB is the memory that a process has at the moment.
func residentKiB(t testing.TB, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := rssLine.FindSubmatch(b)
	if m == nil {
		t.Fatal("no VmRSS in /proc")
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}
