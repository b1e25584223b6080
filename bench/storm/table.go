package storm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Print writes what came of all runs, in Markdown.
func Print(w io.Writer, runs []*Run, calm map[string]*Run) {
	fmt.Fprintf(w, "| peer | pause | heeds Retry-After | breaker | retry budget |\n|---|---|---|---|---|\n")
	for _, p := range Peers {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", p.Name, p.Pause, p.RetryAfter, p.Breaker, p.Budget)
	}
	for _, o := range Outages {
		fmt.Fprintf(w, "\n**%s**\n\n![%s](figures/storm-%s.svg)\n\n", o.Title(), alt(o), o.Name())
		fmt.Fprintf(w, "| peer | sends per action | while it lasts | peak load | busiest second | wasted sends | actions failed | recovery | healthy p99 | of a calm run | healthy failed |\n")
		fmt.Fprintf(w, "|---|---|---|---|---|---|---|---|---|---|---|\n")
		for _, r := range runs {
			if r.Outage != o {
				continue
			}
			before := calm[r.Peer.Name].HealthyP99
			fmt.Fprintf(w, "| %s | %.3f | %.2f | %.2f | %.2f | %.1f %% | %.1f %% | %v | %v | × %.2f | %.1f %% |\n",
				r.Peer.Name, r.SendsPerAction, r.OutageSends, r.Peak, r.PeakSecond, 100*r.Wasted, 100*r.Failed, r.Recovery,
				r.HealthyP99.Round(time.Millisecond/10), float64(r.HealthyP99)/float64(before), 100*r.HealthyFailed)
		}
	}
}

func alt(o Outage) string {
	return "Load and success over time: " + strings.ToLower(o.Title())
}

// PrintPromises writes how the promises were kept, in Markdown.
func PrintPromises(w io.Writer, all []Promise) {
	fmt.Fprintf(w, "\n| outage | promise | measured | limit | kept |\n|---|---|---|---|---|\n")
	for _, p := range all {
		kept := "yes"
		if !p.Kept {
			kept = "**no**"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", p.Outage.Title(), p.Text, p.Got, p.Need, kept)
	}
}

// The command's part of the page.
const (
	opens  = "<!-- make storm writes from here -->"
	closes = "<!-- to here -->"
)

// Replace puts text between the marks in the file.
func Replace(name string, text []byte) error {
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	before, rest, found := bytes.Cut(old, []byte(opens))
	_, after, ends := bytes.Cut(rest, []byte(closes))
	if !found || !ends {
		return fmt.Errorf("%s: has no part between %q and %q", name, opens, closes)
	}
	var page bytes.Buffer
	page.Write(before)
	fmt.Fprintf(&page, "%s\n\n%s\n%s", opens, text, closes)
	page.Write(after)
	return os.WriteFile(name, page.Bytes(), 0o644)
}
