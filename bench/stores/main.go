// Command stores measures the durable stores, each beside what its server can do at
// all, both in one run, and says whether they are as fast and as small as they have
// to be. It starts the servers itself.
//
//	go run ./bench/stores                         everything, in some five minutes
//	go run ./bench/stores -only growth -records 10000000
//
// It exits with status 1 if a row that is judged is missed.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// config is what the flags say.
type config struct {
	only    string
	dir     string
	figure  string
	span    time.Duration
	rounds  int
	records int
}

// sections are what -only chooses from, in the order in which they run.
var sections = []struct {
	name string
	run  func(h *host, c config, r *report)
}{
	{"sqlite", measureSQLite},
	{"postgres", measurePostgres},
	{"redis", measureRedis},
	{"footprint", measureFootprint},
	{"growth", measureGrowth},
}

func main() {
	var c config
	flag.StringVar(&c.only, "only", "", "sections to run, with commas between: sqlite, postgres, redis, footprint, growth, growth-sqlite, growth-postgres (default all)")
	flag.StringVar(&c.dir, "dir", "", "directory for what the servers and SQLite write; its disk is measured (default the system's for temporary files)")
	flag.StringVar(&c.figure, "figure", "", "SVG file to draw the speeds in (default none)")
	flag.DurationVar(&c.span, "span", time.Second, "how long each side is measured in each round")
	flag.IntVar(&c.rounds, "rounds", 5, "how often each side is measured, in turns")
	flag.IntVar(&c.records, "records", 1_000_000, "the larger number of records of growth")
	flag.Parse()
	os.Exit(run(c, os.Stdout))
}

func run(c config, out io.Writer) (status int) {
	if err := c.check(); err != nil {
		fmt.Fprintln(os.Stderr, "stores:", err)
		return 2
	}
	if c.dir != "" {
		os.Setenv("TMPDIR", c.dir) // the servers' folders follow it
	}
	h := &host{out: out}
	defer h.end()
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			fmt.Fprintln(os.Stderr, "stores:", p)
			status = 1
		default:
			panic(p)
		}
	}()
	r := &report{out: out}
	r.fsync = fsyncTime(h, h.TempDir())
	fmt.Fprintf(out, "%d CPUs, %s/%s, %s; fsync of a 4 KiB page: %v\n", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), r.fsync)
	for _, s := range sections {
		if c.wants(s.name) {
			s.run(h, c, r)
		}
	}
	if c.figure != "" {
		if err := drawFigure(r.speeds, c.figure); err != nil {
			h.Fatal(err)
		}
	}
	return r.verdict()
}

func (c config) check() error {
	known := []string{"growth-sqlite", "growth-postgres"}
	for _, s := range sections {
		known = append(known, s.name)
	}
	for _, name := range c.names() {
		if !slices.Contains(known, name) {
			return fmt.Errorf("-only: there is no section %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	switch {
	case c.span < 100*time.Millisecond:
		return fmt.Errorf("-span: %v is too short to measure anything: at least 100ms", c.span)
	case c.rounds < 1:
		return fmt.Errorf("-rounds: %d: at least 1", c.rounds)
	case c.records <= fewRecords:
		return fmt.Errorf("-records: %d: more than the %d that they are compared with", c.records, fewRecords)
	}
	return nil
}

func (c config) names() []string {
	if c.only == "" {
		return nil
	}
	return strings.Split(c.only, ",")
}

// wants reports whether a section, or part of one, was asked for.
func (c config) wants(section string) bool {
	names := c.names()
	return len(names) == 0 || slices.ContainsFunc(names, func(n string) bool {
		return n == section || strings.HasPrefix(n, section+"-") || strings.HasPrefix(section, n+"-")
	})
}
