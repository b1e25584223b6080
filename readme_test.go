package oncehttp_test

import (
	"context"
	"fmt"
	"go/scanner"
	"go/token"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oncehttp/oncehttp"
)

// The first reply is lost after the work was done, and the action is asked for
// three times.
func Example_lostReply() {
	var made atomic.Int32
	refund := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "receipt %d", made.Add(1))
	}

	mux := http.NewServeMux()
	once := &oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}
	mux.Handle("POST /refunds", once.Handler(http.HandlerFunc(refund)))

	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			mux.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler) // closes the connection without an answer
		}
		mux.ServeHTTP(w, r)
	}))
	defer server.Close()

	for range 3 {
		if err := ask(context.Background(), server.URL); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println("requests:", requests.Load(), "refunds:", made.Load())
	// Output:
	// 201 Created, receipt 1, replayed: true
	// 201 Created, receipt 1, replayed: true
	// 201 Created, receipt 1, replayed: true
	// requests: 4 refunds: 1
}

func ask(ctx context.Context, url string) error {
	client := &http.Client{Transport: &oncehttp.Transport{}}

	ctx = oncehttp.WithAction(ctx, "refund order A-1041")
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/refunds", strings.NewReader(`{"cents":12000}`))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	receipt, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	fmt.Printf("%s, %s, replayed: %s\n", resp.Status, receipt, resp.Header.Get("Idempotent-Replayed"))
	return nil
}

// markdown returns the Markdown files by name.
func markdown(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = string(text)
		}
	}
	if files["README.md"] == "" {
		t.Fatal("no README.md")
	}
	return files
}

// Go code that stands in Markdown is nothing that a compiler sees. So it has to be
// a passage of a file that it does see.
func TestGoCodeInMarkdownIsCompiled(t *testing.T) {
	var sources []string
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || name != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case strings.HasSuffix(name, ".go"):
			text, err := os.ReadFile(name)
			sources = append(sources, goTokens(string(text)))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	isPassage := func(block string) bool {
		want := goTokens(block)
		for _, s := range sources {
			if strings.Contains(s, want) {
				return true
			}
		}
		return false
	}
	blocks := 0
	for name, text := range markdown(t) {
		for _, m := range regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(text, -1) {
			blocks++
			if !isPassage(m[1]) {
				t.Errorf("%s: this is not a passage of any .go file; put it into an Example, then copy it from there:\n%s", name, m[1])
			}
		}
	}
	if blocks < 2 {
		t.Errorf("found %d blocks of Go code, want at least the client's and the server's", blocks)
	}
	for _, rotten := range []string{
		"once := &oncehttp.Middleware{Storage: &oncehttp.MemoryStore{}}", // a field by another name
		"Go code that stands in Markdown",                                // words of a comment
	} {
		if isPassage(rotten) {
			t.Errorf("%q passes for compiled code", rotten)
		}
	}
}

// goTokens returns the tokens of Go text, which may be a part of a file, without
// comments and layout.
func goTokens(text string) string {
	var s scanner.Scanner
	src := []byte(text)
	fset := token.NewFileSet()
	s.Init(fset.AddFile("", fset.Base(), len(src)), src, nil, 0)
	b := []byte{'\n'}
	for {
		_, tok, lit := s.Scan()
		switch {
		case tok == token.EOF:
			return string(b)
		case tok == token.SEMICOLON && lit == "\n": // the end of a line
			continue
		case lit == "":
			lit = tok.String()
		}
		b = append(b, lit...)
		b = append(b, '\n')
	}
}

func TestLinksInMarkdownResolve(t *testing.T) {
	links := 0
	for name, text := range markdown(t) {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), target)); err != nil {
				t.Errorf("%s links to %s: %v", name, target, err)
			}
		}
	}
	if links == 0 {
		t.Error("found no links, so this test checks nothing")
	}
}
