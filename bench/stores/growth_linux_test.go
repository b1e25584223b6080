package main

import (
	"os"
	"runtime"
	"testing"
)

// Other systems do not tell.
func TestMinorFaults(t *testing.T) {
	before, known := minorFaults([]int{os.Getpid()})
	fresh := make([]byte, 64<<20)
	for i := 0; i < len(fresh); i += 4096 {
		fresh[i] = 1
	}
	after, _ := minorFaults([]int{os.Getpid()})
	runtime.KeepAlive(fresh)
	// Pages may be as large as 2 MiB.
	if !known || after-before < 16 {
		t.Errorf("to write 64 MiB for the first time were %d faults (told: %v)", after-before, known)
	}
	if _, known := minorFaults([]int{os.Getpid(), -1}); known {
		t.Error("faults are told of a process that is not")
	}
}
