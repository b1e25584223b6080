// Testrun runs the tests of every module of the workspace and says at the end
// what was skipped and why.
//
//	testrun                  every test under the race detector, then the
//	                         allocation tests and the laboratory without it
//	testrun -soak            five minutes of fuzzing for each fuzz target, then
//	                         every test twenty times, long random runs included
//
// It is started from the root of the repository; `make test` and `make soak` do
// that.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"time"
)

func main() {
	soak := flag.Bool("soak", false, "fuzz every target, then run every test -count times with ONCEHTTP_SOAK=1")
	fuzzTime := flag.String("fuzztime", "5m", "how long -soak fuzzes each `target`, as go test's -fuzztime")
	count := flag.Int("count", 20, "how often -soak runs every test")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "testrun: takes no arguments, only flags")
		os.Exit(2)
	}

	var t tally
	var err error
	if *soak {
		err = t.soak(os.Stdout, *fuzzTime, *count)
	} else {
		var all []pass
		if all, err = passes(); err == nil {
			err = t.run(os.Stdout, all)
		}
	}
	ok := t.summarize(os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

// A pass is one run of go test.
type pass struct {
	title string
	dir   string
	env   []string
	args  []string // after `go test -json`
}

// passes is what `make test` runs. The pattern "work" means every package of
// every module in go.work, so a new module needs no change here. The race
// detector allocates, so what counts allocations has to run without it. It is also
// slow: without it the laboratory gets through seven times as many worlds.
//
// Tests mostly wait: for servers to start, for leases to lapse. So more packages run at
// a time than there are processors, and those that take longest are named first, or
// one would be left to run alone at the end.
func passes() ([]pass, error) {
	atATime := fmt.Sprintf("-p=%d", max(4, runtime.GOMAXPROCS(0)))
	pkgs, err := packagesWith(withoutRace)
	if err != nil {
		return nil, err
	}
	return []pass{
		{title: "every test, race detector on", args: []string{"-race", atATime, "-count=1", "./pgstore", ".", "./redisstore", "./sqlitestore", "./bench/...", "work"}},
		{title: "allocation tests and the laboratory, race detector off", args: append([]string{atATime, "-count=1", "-run=" + withoutRace}, pkgs...)},
		{title: "tools", dir: "tools", env: []string{"GOWORK=off"}, args: []string{"-race", "./..."}},
	}, nil
}

// withoutRace are the tests that run without the race detector too.
const withoutRace = "Alloc|^TestLab$"

// packagesWith returns the packages of the workspace that hold a test whose name
// matches: to link and start all the others only to find nothing in them takes long.
func packagesWith(name string) ([]string, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles", "work")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages: %w", err)
	}
	want := regexp.MustCompile(name)
	var found []string
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); err == io.EOF {
			return found, nil
		} else if err != nil {
			return nil, err
		}
		for _, file := range append(p.TestGoFiles, p.XTestGoFiles...) {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(testFunc.FindAllSubmatch(text, -1), func(m [][]byte) bool { return want.Match(m[1]) }) {
				found = append(found, p.ImportPath)
				break
			}
		}
	}
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)

// soak fuzzes every target, then runs every test count times.
func (t *tally) soak(w io.Writer, fuzzTime string, count int) error {
	targets, err := fuzzTargets("")
	if err != nil {
		return err
	}
	for _, id := range targets {
		heading(w, fmt.Sprintf("fuzz %s for %s", id, fuzzTime))
		cmd := exec.Command("go", "test", "-run=^$", "-fuzz=^"+id.name+"$", "-fuzztime="+fuzzTime, "-fuzzminimizetime=1x", id.pkg)
		cmd.Stdout, cmd.Stderr = w, w
		v := passed
		if cmd.Run() != nil {
			v = failed
		}
		t.note(testID{id.pkg, id.name + ", fuzzing"}, v)
	}
	return t.run(w, []pass{{
		title: fmt.Sprintf("every test %d times, long random runs on", count),
		env:   []string{"ONCEHTTP_SOAK=1"},
		args:  []string{"-race", "-count=" + strconv.Itoa(count), "-timeout=6h", "work"},
	}})
}

func (t *tally) run(w io.Writer, passes []pass) error {
	var failure error
	for _, p := range passes {
		heading(w, p.title)
		cmd := exec.Command("go", append([]string{"test", "-json"}, p.args...)...)
		cmd.Dir = p.dir
		cmd.Env = append(os.Environ(), p.env...)
		cmd.Stderr = w
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		if err := t.read(out, w); err != nil {
			return err
		}
		// Go on after a failure: the other passes may fail for another reason.
		if err := cmd.Wait(); err != nil && failure == nil {
			failure = fmt.Errorf("%s: %w", p.title, err)
		}
	}
	return failure
}

func heading(w io.Writer, title string) {
	fmt.Fprintf(w, "== %s  %s\n", time.Now().Format(time.TimeOnly), title)
}
