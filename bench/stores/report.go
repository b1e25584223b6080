package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// A report is what was measured.
type report struct {
	out    io.Writer
	fsync  time.Duration
	missed int
	speeds []speed // for the figure
}

// A speed is how often a second something was done, by us and, if there is anyone
// to compare with, by them.
type speed struct {
	store, what  string // "Postgres", "replays"
	callers      int
	ours, theirs float64
}

// A row is one line of a table.
type row struct {
	cells  []string
	got    float64
	limit  float64 // 0: the row is not judged
	atMost bool    // else at least
	why    string  // it is not judged
}

// judged reports whether the row says yes or no, and what.
func (r row) judged() (judged, holds bool) {
	if r.limit == 0 || r.why != "" {
		return false, false
	}
	if r.atMost {
		return true, r.got <= r.limit
	}
	return true, r.got >= r.limit
}

// verdict says it in words.
func (r row) verdict() string {
	judged, holds := r.judged()
	switch {
	case holds:
		return "holds"
	case judged:
		return "MISSED"
	case r.why != "":
		return "not judged: " + r.why
	}
	return "not judged"
}

func (r row) want() string {
	switch {
	case r.limit == 0:
		return "–"
	case r.atMost:
		return fmt.Sprintf("≤ %g", r.limit)
	}
	return fmt.Sprintf("≥ %g", r.limit)
}

// table prints rows under a title as Markdown, and notes what was missed.
func (r *report) table(title string, columns []string, rows []row) {
	fmt.Fprintf(r.out, "\n%s\n\n", title)
	w := tabwriter.NewWriter(r.out, 0, 0, 1, ' ', 0)
	line := func(cells []string) {
		for _, c := range cells {
			fmt.Fprintf(w, "| %s\t", c)
		}
		fmt.Fprintln(w, "|")
	}
	line(append(columns[:len(columns):len(columns)], "must be", ""))
	for range len(columns) + 2 {
		fmt.Fprint(w, "|---\t")
	}
	fmt.Fprintln(w, "|")
	for _, row := range rows {
		line(append(row.cells[:len(row.cells):len(row.cells)], row.want(), row.verdict()))
		if judged, holds := row.judged(); judged && !holds {
			r.missed++
		}
	}
	w.Flush()
}

// verdict is the program's exit status.
func (r *report) verdict() int {
	if r.missed > 0 {
		fmt.Fprintf(r.out, "\n%d rows MISSED\n", r.missed)
		return 1
	}
	fmt.Fprint(r.out, "\nevery row that is judged holds\n")
	return 0
}

// thousands writes a rate so that it can be read.
func thousands(f float64) string {
	n := int64(f + 0.5)
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s %03d", thousands(float64(n/1000)), n%1000)
}
