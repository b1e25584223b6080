package storetest

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

// What the suite quotes is what authors read: in the documentation of the
// interfaces and in docs/store-contract.md.
func TestTheQuotedSentencesAreThoseOfTheContract(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../store.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var comments strings.Builder
	for _, c := range file.Comments {
		comments.WriteString(c.Text())
	}
	source := plain(comments.String())
	doc := plain(read(t, "../docs/store-contract.md"))
	for r, text := range texts {
		for i, part := range strings.Split(text, ". ") {
			if i == 0 && r <= 9 {
				part = fmt.Sprintf("%d. %s", r, part)
			}
			if !strings.Contains(source, part) {
				t.Errorf("store.go does not print of %v: %s", r, part)
			}
			if !strings.Contains(doc, part) {
				t.Errorf("docs/store-contract.md does not print of %v: %s", r, part)
			}
		}
	}
}

// The table in docs/store-contract.md is the one that is checked.
func TestTheTableIsThatOfTheContract(t *testing.T) {
	want := markdown()
	if !strings.Contains(read(t, "../docs/store-contract.md"), want) {
		t.Errorf("docs/store-contract.md does not contain this table:\n%s", want)
	}
}

func markdown() string {
	var b strings.Builder
	b.WriteString("| method | called by | free | running | orphaned | done |\n|---|---|---|---|---|---|\n")
	for m := claim; m <= release; m++ {
		for _, w := range []who{holder, other} {
			fmt.Fprintf(&b, "| %v | %v |", m, w)
			for s := free; s <= done; s++ {
				row, ok := table[s][w][m]
				switch {
				case !ok:
					b.WriteString(" |")
					continue
				case row.status != 0:
					fmt.Fprintf(&b, " %v", row.status)
				default:
					fmt.Fprintf(&b, " %s", show(row.err))
				}
				if row.then != s {
					fmt.Fprintf(&b, " → %v", row.then)
				}
				b.WriteString(" |")
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	link  = regexp.MustCompile(`\[(?:Inspector\.)?([A-Za-z]+)\]`)
	space = regexp.MustCompile(`\s+`)
)

// plain is text without line breaks and markup.
func plain(s string) string {
	s = strings.ReplaceAll(link.ReplaceAllString(s, "$1"), "`", "")
	return space.ReplaceAllString(s, " ")
}
