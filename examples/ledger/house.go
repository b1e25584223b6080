package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

// What the server's process finds in its environment.
const (
	envMode = "LEDGER_MODE"
	envDB   = "LEDGER_DB"

	transactional = "in transactions"
	plain         = "without"
)

// An errand is a transfer, and what happens to the server meanwhile.
type errand struct {
	transfer
	kills []string // the points at which it is killed, one run after another
	twin  bool     // a second client asks for it, with the same key, when the first one's handler runs
}

// A house runs the server's process, holds it at its points, kills it where an
// errand says so, and starts it again.
type house struct {
	mode   string
	place  place
	twin   func(x transfer) // sends a twin
	socket *os.File         // listens as long as the house stands, whoever accepts
	url    string

	twins sync.WaitGroup

	mu       sync.Mutex
	pending  map[string]*errand
	running  map[string]bool // handlers of the process
	awaiting string          // the memo of the twin without which the server does not go on
	kills    int
	killedAt map[string]int
	twinsRan int
}

func newHouse(mode string, p place, errands []errand) (*house, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close() // our copy of it
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	h := &house{
		mode: mode, place: p, socket: socket, url: "http://" + l.Addr().String(),
		pending: make(map[string]*errand), killedAt: make(map[string]int),
	}
	for _, e := range errands {
		e.kills = slices.Clone(e.kills)
		h.pending[e.Memo] = &e
	}
	return h, nil
}

// keep runs one process after another until ctx ends.
func (h *house) keep(ctx context.Context) error {
	defer h.socket.Close()
	for ctx.Err() == nil {
		if err := h.one(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// one runs a process until it is killed.
func (h *house) one(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	server := exec.CommandContext(ctx, self) // killed when ctx ends
	server.Env = append(os.Environ(), envMode+"="+h.mode, envDB+"="+h.place.dsn)
	server.ExtraFiles = []*os.File{h.socket}
	server.Stderr = os.Stderr
	in, err := server.StdinPipe()
	if err != nil {
		return err
	}
	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	h.running = make(map[string]bool)
	if err := server.Start(); err != nil {
		return err
	}
	killed := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		point, memo, _ := strings.Cut(lines.Text(), " ")
		kill, on := h.heard(point, memo)
		if on {
			io.WriteString(in, "go on\n")
		}
		if kill {
			killed = true
			if err := server.Process.Kill(); err != nil { // SIGKILL
				return err
			}
		}
	}
	err = server.Wait()
	if killed {
		return nil
	}
	return errors.Join(fmt.Errorf("the server %s ended by itself", h.mode), err)
}

// heard is what to do when the server has reached a point: kill it, let it go on,
// or leave it there.
func (h *house) heard(point, memo string) (kill, on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.pending[memo]
	if e == nil {
		return false, point != arrived
	}
	switch point {
	case arrived:
		on = h.awaiting == memo
		if on {
			h.awaiting = ""
		}
		return false, on
	case begun:
		if h.running[memo] {
			h.twinsRan++
		}
		h.running[memo] = true
	case committed:
		h.running[memo] = false
	}
	if point == begun && e.twin {
		e.twin = false
		h.awaiting = memo
		h.twins.Go(func() { h.twin(e.transfer) })
		return false, false
	}
	if len(e.kills) > 0 && e.kills[0] == point {
		e.kills = e.kills[1:]
		h.kills++
		h.killedAt[point]++
		return true, false
	}
	return false, true
}
