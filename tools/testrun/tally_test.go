package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// workspace writes a module with the given files and a go.work around it, and
// makes it the working directory.
func workspace(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	files["go.work"] = "go 1.26.0\n\nuse .\n"
	files["go.mod"] = "module example.com/m\n\ngo 1.26.0\n"
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("GOWORK", "")
	t.Setenv("GOFLAGS", "")
}

// The events come from the go command itself, because its format is what could
// be misunderstood.
func TestTally(t *testing.T) {
	const head = "package a\n\nimport \"testing\"\n\n"
	for _, tc := range []struct {
		name  string
		files map[string]string
		args  []string
		ok    bool
		want  []string // lines of the output, in this order
	}{
		{
			name: "everything passes",
			files: map[string]string{"a_test.go": head + `
func TestOne(t *testing.T) { t.Run("sub", func(t *testing.T) {}) }
func TestTwo(t *testing.T) {}
`},
			ok:   true,
			want: []string{"skipped: nothing", "3 passed, 0 failed, 0 skipped"},
		},
		{
			name: "a skipped test is named with its reason",
			files: map[string]string{"a_test.go": head + `
func TestOne(t *testing.T) { t.Skip("no moon tonight") }
func TestTwo(t *testing.T) { t.Run("sub", func(t *testing.T) { t.SkipNow() }) }
`},
			ok: true,
			want: []string{
				"skipped:",
				"  example.com/m TestOne: a_test.go:6: no moon tonight",
				"  example.com/m TestTwo/sub: no reason given",
				"1 passed, 0 failed, 2 skipped",
			},
		},
		{
			name: "a failure shows what the test printed, and other packages still count",
			files: map[string]string{
				"a_test.go":   head + "func TestOne(t *testing.T) { t.Error(\"got 2, want 1\") }\n",
				"b/b_test.go": head + "func TestTwo(t *testing.T) {}\n",
			},
			want: []string{
				"FAILED example.com/m TestOne",
				"    a_test.go:5: got 2, want 1",
				"failed:",
				"  example.com/m TestOne",
				"skipped: nothing",
				"1 passed, 1 failed, 0 skipped",
			},
		},
		{
			name: "a test that ends the process has failed",
			files: map[string]string{"a_test.go": "package a\n\nimport (\"os\"; \"testing\")\n" + `
func TestOne(t *testing.T) {}
func TestTwo(t *testing.T) { os.Exit(3) }
func TestThree(t *testing.T) {}
`},
			want: []string{
				"FAILED example.com/m TestTwo",
				"the process ended before this test did",
				"failed:",
				"  example.com/m TestTwo",
				"1 passed, 1 failed, 0 skipped",
			},
		},
		{
			name:  "a panic is shown",
			files: map[string]string{"a_test.go": head + "func TestOne(t *testing.T) { panic(\"on purpose\") }\n"},
			want:  []string{"panic: on purpose [recovered, repanicked]", "0 passed, 1 failed, 0 skipped"},
		},
		{
			name:  "a package that does not build has failed, and the compiler is heard",
			files: map[string]string{"a_test.go": head + "func TestOne(t *testing.T) { undefinedName() }\n"},
			want:  []string{"./a_test.go:5:30: undefined: undefinedName", "0 passed, 1 failed, 0 skipped"},
		},
		{
			name: "a test that fails once in several runs has failed",
			files: map[string]string{"a_test.go": head + `
var n int
func TestOne(t *testing.T) { if n++; n == 2 { t.Fatal("second time") } }
`},
			args: []string{"-count=3"},
			want: []string{"    a_test.go:7: second time", "0 passed, 1 failed, 0 skipped"},
		},
		{
			name:  "a package without tests is not mentioned",
			files: map[string]string{"a.go": "package a\n"},
			ok:    true,
			want:  []string{"skipped: nothing", "0 passed, 0 failed, 0 skipped"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			workspace(t, tc.files)
			var tl tally
			var out strings.Builder
			err := tl.run(&out, []pass{{title: "all", args: append(tc.args, "work")}})
			if ok := tl.summarize(&out); ok != tc.ok {
				t.Errorf("summarize reports %v, want %v", ok, tc.ok)
			}
			if (err == nil) != tc.ok {
				t.Errorf("run: %v, want an error: %v", err, !tc.ok)
			}
			lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
			if got, want := lines[len(lines)-1], tc.want[len(tc.want)-1]; got != want {
				t.Errorf("last line is %q, want %q", got, want)
			}
			rest := lines
			for _, want := range tc.want {
				i := slices.Index(rest, want)
				if i < 0 {
					t.Fatalf("no line %q, or not in its place, in\n%s", want, out.String())
				}
				rest = rest[i+1:]
			}
		})
	}
}

func TestSkippedUnderRaceButRunWithoutIsNotSkipped(t *testing.T) {
	const race = `{"Action":"run","Package":"p","Test":"TestAllocs"}
{"Action":"output","Package":"p","Test":"TestAllocs","Output":"    a_test.go:1: the race detector allocates\n"}
{"Action":"skip","Package":"p","Test":"TestAllocs"}
{"Action":"pass","Package":"p"}
`
	const plain = `{"Action":"run","Package":"p","Test":"TestAllocs"}
{"Action":"pass","Package":"p","Test":"TestAllocs"}
{"Action":"pass","Package":"p"}
`
	for _, order := range [][]string{{race, plain}, {plain, race}} {
		var tl tally
		var out strings.Builder
		for _, events := range order {
			if err := tl.read(strings.NewReader(events), &out); err != nil {
				t.Fatal(err)
			}
		}
		tl.summarize(&out)
		if got, want := out.String(), "skipped: nothing\n1 passed, 0 failed, 0 skipped\n"; !strings.HasSuffix(got, want) {
			t.Errorf("got\n%s\nwant it to end in\n%s", got, want)
		}
	}
}

func TestKilledRunHasFailed(t *testing.T) {
	var tl tally
	var out strings.Builder
	err := tl.read(strings.NewReader(`{"Action":"run","Package":"p","Test":"TestOne"}
go: some complaint that is not an event
`), &out)
	if err != nil {
		t.Fatal(err)
	}
	if tl.summarize(&out) {
		t.Errorf("a run that stopped in the middle passes:\n%s", out.String())
	}
	if want := "go: some complaint that is not an event\n"; !strings.Contains(out.String(), want) {
		t.Errorf("got\n%s\nwant %q in it", out.String(), want)
	}
}

func TestSoakFuzzesEveryTarget(t *testing.T) {
	workspace(t, map[string]string{
		"a_test.go": `package a

import ("os"; "testing")

func TestSoaking(t *testing.T) { if os.Getenv("ONCEHTTP_SOAK") != "1" { t.Error("not soaking") } }
func FuzzFine(f *testing.F) { f.Fuzz(func(t *testing.T, b []byte) {}) }
`,
		"b/b_test.go": `package b

import "testing"

func FuzzBroken(f *testing.F) { f.Fuzz(func(t *testing.T, n int) { if n != 0 { t.Fatal("found it") } }) }
`,
	})
	var tl tally
	var out strings.Builder
	if err := tl.soak(&out, "3x", 2); err != nil && !strings.Contains(err.Error(), "exit status 1") {
		t.Fatal(err)
	}
	if tl.summarize(&out) {
		t.Errorf("a fuzzer's finding passes:\n%s", out.String())
	}
	for id, want := range map[testID]verdict{
		{"example.com/m", "FuzzFine, fuzzing"}:     passed,
		{"example.com/m/b", "FuzzBroken, fuzzing"}: failed,
		{"example.com/m", "TestSoaking"}:           passed,
	} {
		if got := tl.tests[id]; got != want {
			t.Errorf("%v: got verdict %d, want %d; output:\n%s", id, got, want, out.String())
		}
	}
}

func TestPackagesAreFoundByTheTestsThatTheyHold(t *testing.T) {
	workspace(t, map[string]string{
		"a.go": "package a\n",
		"a_test.go": `package a

import "testing"

func TestReplaysAllocateLittle(t *testing.T) {}
func TestLabel(t *testing.T) {}
`,
		"lab/lab_test.go": "package lab_test\n\nimport \"testing\"\n\nfunc TestLab(t *testing.T) {}\n",
		"others/others_test.go": `package others

import "testing"

// func TestLab( is what this package does not have, nor TestAllocs.
func TestLabels(t *testing.T) { TestLabelled(t) }
func TestLabelled(t *testing.T) {}
func helpAlloc() {}
`,
		"norace/lab_test.go": "//go:build race\n\npackage norace\n\nimport \"testing\"\n\nfunc TestLab(t *testing.T) {}\n",
		"norace/norace.go":   "package norace\n",
	})
	got, err := packagesWith(withoutRace)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"example.com/m", "example.com/m/lab"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
