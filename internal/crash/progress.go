package crash

import (
	"fmt"
	"os"
	"sync"
)

// A Progress tells what a process is doing, in a file that outlives it: one byte
// for each thing that goes on, written when it begins, changes and ends. The kernel
// has what was written, whoever dies. It is safe for concurrent use.
type Progress struct {
	f    *os.File
	mu   sync.Mutex
	free []int64 // places in the file that nobody uses
	size int64
}

// OpenProgress begins the account of one process: it empties the file, which it
// makes if it is not there.
func OpenProgress(path string) (*Progress, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	return &Progress{f: f}, err
}

// What goes on, as the file has it.
const (
	idle      = '.'
	claiming  = 'c' // a Claim or TakeOver has been called
	held      = 'h' // it has acquired the key
	recording = 'r' // Complete has been called
	freeing   = 'f' // Release has been called
	before    = 'b' // a handler has not begun its effect
	during    = 'd' // it makes its effect
	after     = 'a' // it has made it and not returned
)

// Phases counts what went on in a process at one moment.
type Phases struct {
	// Claiming counts calls that ask for a key and have no answer.
	Claiming int
	// Running counts claims from the moment at which they were acquired to that at
	// which they were recorded, or freed.
	Running int
	// Recording counts those of Running whose record was being written.
	Recording int
	// Before, During and After count handlers: before their effect, making it, and
	// after it.
	Before, During, After int
}

// ReadPhases returns what the process that wrote the file was doing when it died.
// Without a file it was doing nothing.
func ReadPhases(path string) (Phases, error) {
	var p Phases
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return p, nil
	}
	if err != nil {
		return p, err
	}
	for _, what := range b {
		switch what {
		case claiming:
			p.Claiming++
		case held, freeing:
			p.Running++
		case recording:
			p.Running++
			p.Recording++
		case before:
			p.Before++
		case during:
			p.During++
		case after:
			p.After++
		case idle, 0:
		default:
			return p, fmt.Errorf("crash: %q in the file of what goes on", what)
		}
	}
	return p, nil
}

// begin notes that something goes on, and returns where.
func (p *Progress) begin(what byte) int64 {
	p.mu.Lock()
	var at int64
	if n := len(p.free); n > 0 {
		at, p.free = p.free[n-1], p.free[:n-1]
	} else {
		at = p.size
		p.size++
	}
	p.mu.Unlock()
	p.set(at, what)
	return at
}

// set notes that what goes on is something else now.
func (p *Progress) set(at int64, what byte) {
	if _, err := p.f.WriteAt([]byte{what}, at); err != nil {
		panic(err) // figures that lie are worse than none
	}
}

// end notes that it has ended.
func (p *Progress) end(at int64) {
	p.set(at, idle)
	p.mu.Lock()
	p.free = append(p.free, at)
	p.mu.Unlock()
}

// Close closes the file.
func (p *Progress) Close() error { return p.f.Close() }
