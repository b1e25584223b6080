package oncetest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Timeline returns what happened to every send so far, one line for each, for a
// person to read.
func (s *Server) Timeline() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	s.timeline(&b, s.actions(), nil)
	return strings.TrimRight(b.String(), "\n")
}

// timeline writes a line for every send. If they are too many for a reader, it
// leaves out those that do not belong to the actions in first. The lock is held.
func (s *Server) timeline(b *strings.Builder, actions, first []*action) {
	const most = 60
	of := map[*send]*action{}
	for _, a := range actions {
		for _, x := range a.sends {
			of[x] = a
		}
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	lines, more := 0, 0
	for _, x := range s.sends {
		a := of[x]
		if len(s.sends) > most && first != nil && a != nil && !slices.Contains(first, a) || lines == most {
			more++
			continue
		}
		lines++
		letter := ""
		if a != nil {
			letter = a.letter
		}
		fmt.Fprintf(w, "  #%d\t+%v\t%s\t%s\t%s\t%s\n", x.n, x.at.Sub(s.start).Round(time.Millisecond), letter, x.whatAndKey(), x.server(), x.client())
	}
	w.Flush()
	for line := range strings.Lines(table.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	if more > 0 {
		fmt.Fprintf(b, "  and %d more sends\n", more)
	}
	for _, f := range s.config.faults {
		if f.hits == 0 {
			fmt.Fprintf(b, "  %v did not happen\n", f.Fault)
		}
	}
}

// what names the request without its query.
func (x *send) what() string {
	path, _, _ := strings.Cut(x.url, "?")
	return x.method + " " + short(path, 60)
}

func (x *send) whatAndKey() string {
	switch {
	case x.refused:
		return ""
	case x.keyed:
		return x.what() + ", key " + short(x.key, min(8, len(x.key)/2))
	}
	return x.what() + ", no key"
}

func short(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// server says what happened on the server's side.
func (x *send) server() string {
	var b strings.Builder
	switch {
	case x.refused:
		b.WriteString("connection refused")
	case x.runs == 0:
		b.WriteString("not run")
	default:
		b.WriteString("ran" + times(x.runs))
		for _, e := range x.endings {
			if e.panicked != nil {
				b.WriteString(", panicked: " + short(fmt.Sprint(e.panicked), 60))
			} else if e.exited {
				b.WriteString(", ended its goroutine")
			}
		}
		if x.effects > 0 {
			b.WriteString(", took effect" + times(x.effects))
		} else {
			b.WriteString(", no effect")
		}
	}
	if x.lost != 0 {
		fmt.Fprintf(&b, "; its %d lost", x.lost)
	}
	if x.status != 0 {
		fmt.Fprintf(&b, "; %d", x.status)
	}
	switch {
	case x.sent:
		b.WriteString(" sent")
	case x.fate != "":
		b.WriteString(", " + x.fate)
	case x.over == 0:
		b.WriteString("; under way")
	}
	if len(x.faults) > 0 {
		b.WriteString(" [" + strings.Join(x.faults, ", ") + "]")
	}
	return b.String()
}

func times(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(" %d times", n)
}

// client says what a Client of the server saw.
func (x *send) client() string {
	switch {
	case x.read:
		return "client read it all"
	case x.closed:
		return "client closed it"
	case x.err != nil:
		return "client: " + short(brief(x.err), 90)
	}
	return ""
}

// brief leaves out the addresses, which are others in each run.
func brief(err error) string {
	var op *net.OpError
	if !errors.As(err, &op) || op.Err == nil {
		return err.Error()
	}
	err = op.Err
	if sys, ok := err.(*os.SyscallError); ok {
		err = sys.Err
	}
	return op.Op + ": " + err.Error()
}
