package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// A tally reads the events of any number of `go test -json` runs and counts what
// became of every test. A test that ran more than once counts once: it failed if
// it ever failed, and it was skipped only if it never ran to its end.
//
// The zero value is ready to use.
type tally struct {
	tests    map[testID]verdict
	reasons  map[testID]string // of those skipped so far
	packages map[string]*packageRun
}

type testID struct{ pkg, name string } // name "": the package itself

func (id testID) String() string {
	if id.name == "" {
		return id.pkg
	}
	return id.pkg + " " + id.name
}

type verdict int

const (
	skipped verdict = iota + 1
	passed
	failed // the worst of several wins, so the order matters
)

// A packageRun is what is known of a package whose run has not ended.
type packageRun struct {
	output   map[string][]string // by test; "" holds what belongs to none
	verdicts map[string]verdict  // of the tests that have ended in this run
}

// An event is one line of `go test -json`: see `go doc test2json` and, for the
// build actions, `go help buildjson`.
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// read consumes one run's events from r, and writes to w one line for each
// package that ends and everything that failing tests had printed.
func (t *tally) read(r io.Reader, w io.Writer) error {
	t.packages = map[string]*packageRun{}
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				fmt.Fprintln(w, strings.TrimRight(line, "\n")) // the go command speaking for itself
			} else {
				t.add(e, w)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	// A run that was killed never says how its packages ended.
	for _, name := range slices.Sorted(maps.Keys(t.packages)) {
		t.end(event{Action: "fail", Package: name}, w)
	}
	return nil
}

func (t *tally) add(e event, w io.Writer) {
	if e.Action == "build-output" {
		fmt.Fprint(w, e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	p := t.packages[e.Package]
	if p == nil {
		p = &packageRun{output: map[string][]string{}, verdicts: map[string]verdict{}}
		t.packages[e.Package] = p
	}
	switch e.Action {
	case "run":
		p.output[e.Test] = []string{}
	case "output":
		p.output[e.Test] = append(p.output[e.Test], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			t.end(e, w)
			return
		}
		v := map[string]verdict{"pass": passed, "fail": failed, "skip": skipped}[e.Action]
		p.verdicts[e.Test] = max(p.verdicts[e.Test], v) // with -count a test ends more than once
		t.judge(testID{e.Package, e.Test}, v, p.output[e.Test], w)
		delete(p.output, e.Test)
	}
}

// judge notes how a test ended, and prints what a failed one had said.
func (t *tally) judge(id testID, v verdict, output []string, w io.Writer) {
	t.note(id, v)
	switch v {
	case skipped:
		if t.reasons == nil {
			t.reasons = map[testID]string{}
		}
		t.reasons[id] = reason(output)
	case failed:
		fmt.Fprintf(w, "FAILED %s\n", id)
		for _, s := range output {
			fmt.Fprint(w, s)
		}
	}
}

func (t *tally) note(id testID, v verdict) {
	if t.tests == nil {
		t.tests = map[testID]verdict{}
	}
	t.tests[id] = max(t.tests[id], v)
}

// end closes a package's run.
func (t *tally) end(e event, w io.Writer) {
	p := t.packages[e.Package]
	delete(t.packages, e.Package)
	if e.Action == "fail" {
		// A panic, os.Exit or the time limit ends the process in the middle of
		// a test: such a test has started and never says how it ended.
		for _, name := range slices.Sorted(maps.Keys(p.output)) {
			if name != "" {
				p.verdicts[name] = failed
				t.judge(testID{e.Package, name}, failed, append(p.output[name], "the process ended before this test did\n"), w)
			}
		}
		if !slices.Contains(slices.Collect(maps.Values(p.verdicts)), failed) {
			t.judge(testID{e.Package, ""}, failed, nil, w)
		}
		for _, s := range p.output[""] {
			fmt.Fprint(w, s)
		}
	}
	n := map[verdict]int{}
	for _, v := range p.verdicts {
		n[v]++
	}
	if e.Action != "fail" && len(n) == 0 { // the package holds no tests, or none that -run selects
		return
	}
	fmt.Fprintf(w, "%-4s  %s  %.1fs  %s\n", e.Action, e.Package, e.Elapsed, counts(n))
}

// summarize prints what was skipped and why, then the counts as the last line.
// It reports whether nothing failed.
func (t *tally) summarize(w io.Writer) bool {
	byVerdict := map[verdict][]testID{}
	n := map[verdict]int{}
	for id, v := range t.tests {
		byVerdict[v] = append(byVerdict[v], id)
		n[v]++
	}
	for _, ids := range byVerdict {
		slices.SortFunc(ids, func(a, b testID) int {
			if c := strings.Compare(a.pkg, b.pkg); c != 0 {
				return c
			}
			return strings.Compare(a.name, b.name)
		})
	}
	if n[failed] > 0 {
		fmt.Fprintln(w, "failed:")
		for _, id := range byVerdict[failed] {
			fmt.Fprintf(w, "  %s\n", id)
		}
	}
	if n[skipped] == 0 {
		fmt.Fprintln(w, "skipped: nothing")
	} else {
		fmt.Fprintln(w, "skipped:")
		for _, id := range byVerdict[skipped] {
			fmt.Fprintf(w, "  %s: %s\n", id, t.reasons[id])
		}
	}
	fmt.Fprintln(w, counts(n))
	return n[failed] == 0
}

func counts(n map[verdict]int) string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", n[passed], n[failed], n[skipped])
}

// reason returns what a skipped test gave as its reason, which is all that it
// printed besides the framing lines of go test.
func reason(output []string) string {
	var said []string
	for _, s := range output {
		s = strings.TrimSpace(s)
		if s != "" && !strings.HasPrefix(s, "=== ") && !strings.HasPrefix(s, "--- ") {
			said = append(said, s)
		}
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}
