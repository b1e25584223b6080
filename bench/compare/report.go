package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// A report collects what is printed, every single measurement, and the verdicts.
type report struct {
	text, raw bytes.Buffer
	verdicts  []string
	missed    int
}

func (r *report) printf(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	os.Stdout.WriteString(s)
	r.text.WriteString(s)
}

// judge notes whether got is within limit: at most, or at least, as the sign says.
func (r *report) judge(what string, got float64, sign string, limit float64, unit string) {
	ok := got <= limit
	if sign == "≥" {
		ok = got >= limit
	}
	mark := "held"
	if !ok {
		mark = "**missed**"
		r.missed++
	}
	r.verdicts = append(r.verdicts, fmt.Sprintf("| %s | %s%s | %s %s%s | %s |", what, figure(got), unit, sign, figure(limit), unit, mark))
}

func figure(f float64) string {
	switch {
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

func (r *report) summary() {
	r.printf("\n### What is promised\n\n| what | measured | limit | |\n|---|---|---|---|\n%s\n", strings.Join(r.verdicts, "\n"))
	if r.missed > 0 {
		r.printf("\n%d of %d missed.\n", r.missed, len(r.verdicts))
	}
}

// A candidate is one of the things that are compared.
type candidate struct {
	name     string
	features string
	bench    func(b *testing.B)
	setup    func() (undo func()) // before each round; may be nil

	nsOp, bytesOp, allocsOp []float64
}

// measure runs the candidates in turn, round after round, so that a change of the
// machine's speed meets all of them.
func (r *report) measure(section string, candidates []*candidate) {
	for round := range *rounds {
		for i := range candidates {
			c := candidates[(i+round)%len(candidates)]
			undo := func() {}
			if c.setup != nil {
				undo = c.setup()
			}
			runtime.GC()
			res := testing.Benchmark(func(b *testing.B) {
				b.ReportAllocs()
				c.bench(b)
			})
			undo()
			if res.N == 0 {
				fatal(fmt.Errorf("%s: %s: the benchmark failed", section, c.name))
			}
			ns := float64(res.T.Nanoseconds()) / float64(res.N)
			c.nsOp = append(c.nsOp, ns)
			c.bytesOp = append(c.bytesOp, float64(res.MemBytes)/float64(res.N))
			c.allocsOp = append(c.allocsOp, float64(res.MemAllocs)/float64(res.N))
			fmt.Fprintf(&r.raw, "Benchmark%s/%s %d %.1f ns/op %d B/op %d allocs/op\n", section,
				strings.ReplaceAll(c.name, " ", "_"), res.N, ns, res.AllocedBytesPerOp(), res.AllocsPerOp())
		}
	}
}

func median(x []float64) float64 { return quantile(x, 0.5) }

// quantile interpolates between the two nearest values.
func quantile(x []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(x))
	at := q * float64(len(s)-1)
	low := int(at)
	if low+1 == len(s) {
		return s[low]
	}
	return s[low] + (at-float64(low))*(s[low+1]-s[low])
}

func (c *candidate) time() float64   { return median(c.nsOp) }
func (c *candidate) allocs() float64 { return median(c.allocsOp) }

// spread is how far the rounds lie apart: half the distance of the quartiles.
func (c *candidate) spread() float64 {
	return 100 * (quantile(c.nsOp, 0.75) - quantile(c.nsOp, 0.25)) / 2 / c.time()
}

// table prints the candidates; the ratio is to the first of them, the limit of what
// is possible.
func (r *report) table(candidates []*candidate) {
	r.printf("| | time | ± | of the bare one | B/op | allocs/op | has |\n|---|---|---|---|---|---|---|\n")
	bare := candidates[0].time()
	for _, c := range candidates {
		r.printf("| %s | %v | %.0f%% | %.2f | %.0f | %.0f | %s |\n", c.name, time.Duration(c.time()).Round(time.Nanosecond),
			c.spread(), c.time()/bare, median(c.bytesOp), c.allocs(), c.features)
	}
}

// replaceBetweenMarkers replaces what stands in file between <!-- name --> and
// <!-- /name -->.
func replaceBetweenMarkers(file, name, text string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->\n"
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q", file, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(file, []byte(before+begin+"\n"+strings.TrimSpace(text)+"\n\n"+end+after), 0o644)
}
