package toolcall

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"text/tabwriter"
)

// An Audit tells of each tool what a repeat of it would do.
type Audit []AuditLine

// An AuditLine is one tool's.
type AuditLine struct {
	Tool   string
	Effect Effect
	Safety Safety
	Reason string // why it is that safe, with the tool's Note

	// Problem says what must be changed. "" if nothing.
	Problem string
}

// A Safety says how safe a tool is when its call is made again.
type Safety string

const (
	Safe        Safety = "safe"
	SafeWithKey Safety = "safe with key"
	NotSafe     Safety = "unsafe"
)

// Audit lists the tools in the order of their registration. Problems are an Unsafe tool
// without a Note (nobody has declared its effect), a tool that changes something and
// has no Timeout of its own, and a Keyed tool that was run and has never sent its key:
// no response came from a Transport that carried it, and nobody asked KeyFromContext. For
// the last, audit after a test that runs the tools.
func (r *Runner) Audit() Audit {
	r.mu.RLock()
	defer r.mu.RUnlock()
	a := make(Audit, 0, len(r.order))
	for _, t := range r.order {
		l := AuditLine{Tool: t.Name, Effect: t.Effect}
		var problems []string
		switch t.Effect {
		case Read:
			l.Safety, l.Reason = Safe, "changes nothing"
		case Idempotent:
			l.Safety, l.Reason = Safe, "a second run changes nothing more"
		case Keyed:
			l.Safety, l.Reason = SafeWithKey, "its server acts once for a key"
			if t.ran.Load() && !t.keySent.Load() {
				problems = append(problems, "it was run and its key was never sent: use an oncehttp.Transport and toolcall.HTTP, or toolcall.KeyFromContext")
			}
		default:
			l.Safety, l.Reason = NotSafe, "runs once; an unknown outcome stays unknown"
			if t.Verify != nil {
				l.Reason = "runs once; an unknown outcome is verified"
			}
			if t.Note == "" {
				problems = append(problems, "its effect is not declared: set Effect, or say in Note why it is Unsafe")
			}
		}
		if t.Note != "" {
			l.Reason += ": " + t.Note
		}
		if t.Effect != Read && t.Timeout == 0 {
			problems = append(problems, "it changes something and has no Timeout")
		}
		l.Problem = strings.Join(problems, "; ")
		a = append(a, l)
	}
	return a
}

// WriteTo prints the audit as a table.
func (a Audit) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TOOL\tEFFECT\tREPEAT\tREASON\tPROBLEM")
	for _, l := range a {
		problem := l.Problem
		if problem == "" {
			problem = "-"
		}
		fmt.Fprintf(t, "%s\t%v\t%s\t%s\t%s\n", l.Tool, l.Effect, l.Safety, l.Reason, problem)
	}
	t.Flush() // into memory
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// String is the table of WriteTo.
func (a Audit) String() string {
	var b strings.Builder
	a.WriteTo(&b)
	return b.String()
}

// Check fails the test for every problem.
func (a Audit) Check(t interface {
	Helper()
	Errorf(format string, args ...any)
}) {
	t.Helper()
	for _, l := range a {
		if l.Problem != "" {
			t.Errorf("toolcall: tool %q: %s", l.Tool, l.Problem)
		}
	}
}

// evidence is what was seen of a tool.
type evidence struct {
	ran     atomic.Bool
	keySent atomic.Bool // its key was read, or came back with a response
}

func sentKey(ctx context.Context) {
	if u, ok := ctx.Value(runKey{}).(*run); ok {
		u.tool.keySent.Store(true)
	}
}
