// Compare measures oncehttp beside what a program would use in its place, all in one
// run, prints the tables, judges the figures that are promised, and writes them into
// docs/benchmarks.md.
//
//	compare                    everything, in about four minutes
//	compare -only=client,tcp   some sections: client, retry, contention, tcp, server, memory, growth
//	compare -write=FILE        where the tables go as well, between its markers
//
// It is started from the root of the repository; `make bench` does that. The exit
// status is 1 if a promised figure was missed.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// A section measures and reports.
type section struct {
	name, title string
	run         func(*report)
}

// What a key takes comes first: what another section leaves behind, and a timer keeps for
// a while, would be gone in the middle of it.
var sections = []section{
	{"memory", "What a key takes", memorySection},
	{"client", "A call that succeeds at once", clientSection},
	{"retry", "A call that is answered 503, 503, 200", retrySection},
	{"contention", "Many goroutines", contentionSection},
	{"tcp", "Over loopback TCP", tcpSection},
	{"server", "The server half, in memory", serverSection},
	{"growth", "Many hosts and many keys", growthSection},
}

var (
	rounds    = flag.Int("rounds", 15, "how often each benchmark runs, in turn with those that it is compared with")
	benchTime = flag.Duration("benchtime", 200*time.Millisecond, "how long one benchmark runs each time")
	raw       = flag.String("raw", "", "also write every measurement to this `file`, in the format that benchstat reads")
)

func main() {
	testing.Init()
	only := flag.String("only", "", "comma-separated `sections` to run; empty: all")
	write := flag.String("write", "", "a Markdown `file` whose text between the compare markers is replaced by the tables")
	flag.Parse()
	if err := flag.Set("test.benchtime", benchTime.String()); err != nil {
		fatal(err)
	}
	wanted := strings.FieldsFunc(*only, func(r rune) bool { return r == ',' })
	for _, name := range wanted {
		if !slices.ContainsFunc(sections, func(s section) bool { return s.name == name }) {
			fatal(fmt.Errorf("-only: there is no section %q", name))
		}
	}
	r := &report{}
	r.printf("%s, %s/%s, GOMAXPROCS=%d%s. Medians of %d rounds, in which the candidates take turns.\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), cpuModel(), *rounds)
	for i, s := range sections {
		if len(wanted) > 0 && !slices.Contains(wanted, s.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "[%d/%d] %s\n", i+1, len(sections), s.title)
		r.printf("\n### %s\n\n", s.title)
		s.run(r)
	}
	r.summary()
	if *raw != "" {
		if err := os.WriteFile(*raw, r.raw.Bytes(), 0o644); err != nil {
			fatal(err)
		}
	}
	if *write != "" {
		if err := replaceBetweenMarkers(*write, "compare", r.text.String()); err != nil {
			fatal(err)
		}
	}
	if r.missed > 0 {
		os.Exit(1)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "compare:", err)
	os.Exit(1)
}

// cpuModel is what the processor calls itself, where that can be told.
func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return ", " + strings.TrimSpace(v)
		}
	}
	return ""
}
