// Mutants checks the laboratory: for each deliberate mistake in the table it
// builds the laboratory around a product that makes it, and lets it look for up to
// 2 000 seeds. A mistake that is not noticed is a hole in the laboratory.
//
//	go run ./internal/lab/mutants              every one of them, in some minutes
//	go run ./internal/lab/mutants -only=token  those whose names match
//
// It is started from the root of the repository; make mutants does that. The
// product's files are not touched: go test -overlay puts the changed ones in
// their place.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	only := flag.String("only", "", "a `pattern` that the names of those to look for match")
	seeds := flag.Int("seeds", 2000, "how many seeds each may take")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "mutants: takes flags only, and -only must be a regular expression:", err)
		os.Exit(2)
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
	defer os.RemoveAll(dir)

	var missed []string
	n, replayed, began := 0, 0, time.Now()
	for i := range mutants {
		m := &mutants[i]
		if !match.MatchString(m.name) {
			continue
		}
		n++
		start := time.Now()
		caught, err := m.hunt(dir, *seeds)
		if err != nil {
			missed = append(missed, m.name)
			fmt.Printf("%2d of %d  %3.0fs  MISSED     %s\n%25s%v\n", i+1, len(mutants), time.Since(start).Seconds(), m.name, "", err)
			continue
		}
		replayed += caught.again
		fmt.Printf("%2d of %d  %3.0fs  seed %-5s %s\n%25s%s (and again %d times of %d)\n",
			i+1, len(mutants), time.Since(start).Seconds(), caught.seed, m.name, "", caught.how, caught.again, replays)
	}
	fmt.Printf("mutants: %d of %d were caught, in %.0f s; %d of %d replays of the seeds that did caught them again\n",
		n-len(missed), n, time.Since(began).Seconds(), replayed, replays*(n-len(missed)))
	if len(missed) > 0 {
		fmt.Printf("missed: %s\n", strings.Join(missed, "\nmissed: "))
		os.RemoveAll(dir)
		os.Exit(1)
	}
}

// patched returns the file that m changes, as it would be. root is the directory
// of the product.
func (m *mutant) patched(root string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(b, []byte(m.old)); n != 1 {
		return nil, fmt.Errorf("what it changes stands %d times in %s, and should once: bring the table up to date", n, m.file)
	}
	return bytes.Replace(b, []byte(m.old), []byte(m.new), 1), nil
}

// A capture tells by which seed a mutant was caught, and how.
type capture struct {
	seed, how string
	again     int // how many of the replays of that seed did
}

// replays is how often the seed that caught a mutant is run again, to see what a
// replay is worth.
const replays = 3

var (
	seedBroke = regexp.MustCompile(`seed (\d+) broke\n\s*(.*)`)
	seedTrace = regexp.MustCompile(`(?m)^lab: seed (\d+)$`)
)

// hunt has the laboratory look for the mutant, in dir, and then once more with the
// seed that found it.
func (m *mutant) hunt(dir string, seeds int) (caught capture, err error) {
	lab, err := m.build(dir)
	if err != nil {
		return caught, err
	}
	if caught, err = run(lab, fmt.Sprintf("-seeds=%d", seeds)); err != nil {
		return caught, err
	}
	for range replays {
		if c, err := run(lab, "-from="+caught.seed, "-seeds=1"); err == nil && c.seed == caught.seed {
			caught.again++
		}
	}
	return caught, nil
}

// build builds the laboratory around the mutant.
func (m *mutant) build(dir string) (lab string, err error) {
	b, err := m.patched(".")
	if err != nil {
		return "", err
	}
	original, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	changed, list := filepath.Join(dir, m.file), filepath.Join(dir, "overlay.json")
	lab = filepath.Join(dir, "lab.test")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.WriteFile(changed, b, 0o644), os.WriteFile(list, overlay, 0o644)); err != nil {
		return "", err
	}
	if out, err := exec.Command("go", "test", "-c", "-overlay", list, "-o", lab, "./internal/lab").CombinedOutput(); err != nil {
		return "", fmt.Errorf("it does not build: %s", out)
	}
	return lab, nil
}

// run runs the laboratory until a seed breaks something.
func run(lab string, flags ...string) (caught capture, err error) {
	// A mistake can keep a world from ever ending.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, lab, append([]string{"-test.run=^TestLab$", "-test.timeout=0", "-trace"}, flags...)...).CombinedOutput()
	if found := seedBroke.FindSubmatch(out); found != nil {
		return capture{seed: string(found[1]), how: string(found[2])}, nil
	}
	if err == nil {
		return caught, errors.New("no seed noticed")
	}
	caught.seed, caught.how = "?", "it crashes"
	if all := seedTrace.FindAllSubmatch(out, -1); len(all) > 0 {
		caught.seed = string(all[len(all)-1][1])
	}
	if ctx.Err() != nil {
		caught.how = "its world never ends"
		return caught, nil
	}
	for l := range strings.Lines(string(out)) {
		if strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") {
			caught.how = strings.TrimSpace(l)
			return caught, nil
		}
	}
	return caught, fmt.Errorf("the laboratory fails without a word of any seed: %w\n%s", err, out)
}
