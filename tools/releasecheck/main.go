// Releasecheck tries a release before it is made: in a copy of the tree it writes
// real versions into every module's go.mod and drops the replace directives that
// only this repository needs, serves the modules from a folder as a module proxy
// would, and builds programs that import one of them each. It prints which modules
// each program carries, and fails if one carries more than it may: a driver is
// for those who import its store.
//
// It is started from the root of the repository; `make release-check` does that.
package main

import (
	"archive/zip"
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"
)

const (
	root    = "github.com/oncehttp/oncehttp"
	version = "v0.0.1"
)

// rootCarries is all that importers of the root package carry.
var rootCarries = []string{
	"github.com/hashicorp/go-cleanhttp",
	"github.com/hashicorp/go-retryablehttp",
	root,
	"github.com/sony/gobreaker/v2",
	"golang.org/x/time",
}

// drivers are what one store, adapter or bridge has and no other program may carry.
var drivers = map[string]string{
	"pgstore":            "github.com/jackc/pgx",
	"redisstore":         "github.com/redis/go-redis",
	"sqlitestore":        "modernc.org/sqlite",
	"onceotel":           "go.opentelemetry.io/otel",
	"adapters/anthropic": "github.com/anthropics/anthropic-sdk-go",
	"adapters/mcp":       "github.com/modelcontextprotocol/go-sdk",
	"adapters/openai":    "github.com/openai/openai-go",
}

// brought are drivers that a module's SDK imports itself.
var brought = map[string]string{"adapters/anthropic": drivers["onceotel"]}

// private are the folders of modules that nobody imports.
var private = []string{"examples", "conformance", "bench", "cmd/onceproxy/pagetest"}

func main() {
	if err := check(); err != nil {
		fmt.Fprintln(os.Stderr, "releasecheck:", err)
		os.Exit(1)
	}
}

func check() error {
	tmp, err := os.MkdirTemp("", "releasecheck")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	tree, proxy := filepath.Join(tmp, "tree"), filepath.Join(tmp, "proxy")
	if err := copyTree(tree); err != nil {
		return err
	}
	dirs, err := modules()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		fmt.Println("== write", path.Join(root, dir)+"@"+version)
		if err := publish(tree, proxy, dir); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	wrong := 0
	for _, dir := range dirs {
		carried, err := build(filepath.Join(tmp, "importer", dir), proxy, path.Join(root, dir))
		if err != nil {
			return fmt.Errorf("a program that imports %s: %w", path.Join(root, dir), err)
		}
		fmt.Printf("== a program that imports %s carries %d modules\n", path.Join(root, dir), len(carried))
		for _, m := range carried {
			fmt.Println("  ", m)
		}
		for _, m := range tooMuch(dir, carried) {
			fmt.Printf("it must not carry %s\n", m)
			wrong++
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d modules are carried that must not be", wrong)
	}
	fmt.Printf("%d passed, 0 failed\n", len(dirs))
	return nil
}

// tooMuch are those of the carried modules that importers of dir must not carry.
func tooMuch(dir string, carried []string) (wrong []string) {
	if dir == "" {
		for _, m := range carried {
			if !slices.Contains(rootCarries, m) {
				wrong = append(wrong, m)
			}
		}
		return wrong
	}
	if isProgram(path.Join(root, dir)) {
		return nil // it is nobody's dependency
	}
	for _, m := range carried {
		for owner, d := range drivers {
			if owner != dir && brought[dir] != d && strings.HasPrefix(m, d) {
				wrong = append(wrong, m)
			}
		}
	}
	return wrong
}

// copyTree copies the files that git tracks.
func copyTree(to string) error {
	list, err := output("", nil, "git", "ls-files", "-z")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(list, "\x00"), "\x00") {
		b, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // deleted and not committed
		}
		if err != nil {
			return err
		}
		dst := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(dst, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// modules lists the folders of the modules that people import, the root's first.
func modules() (dirs []string, err error) {
	list, err := output("", nil, "go", "list", "-m")
	if err != nil {
		return nil, err
	}
	for m := range strings.FieldsSeq(list) {
		dir := strings.TrimPrefix(strings.TrimPrefix(m, root), "/")
		if !slices.ContainsFunc(private, func(p string) bool { return dir == p || strings.HasPrefix(dir, p+"/") }) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs, nil
}

// publish writes a module into the proxy's folder, laid out as the GOPROXY
// protocol has it.
func publish(tree, proxy, dir string) error {
	src := filepath.Join(tree, dir)
	if dir != "" {
		args, err := releaseEdits(src)
		if err != nil {
			return err
		}
		if _, err := output(src, []string{"GOWORK=off"}, "go", append([]string{"mod", "edit"}, args...)...); err != nil {
			return err
		}
	}
	m := module.Version{Path: path.Join(root, dir), Version: version}
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	dst := filepath.Join(proxy, escaped, "@v")
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return err
	}
	gomod, err := os.ReadFile(filepath.Join(src, "go.mod"))
	if err != nil {
		return err
	}
	if bytes.Contains(gomod, []byte("replace")) && dir != "" {
		return fmt.Errorf("go.mod still has a replace directive")
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version, time.Now().UTC()})
	if err != nil {
		return err
	}
	var z bytes.Buffer
	if err := modzip.CreateFromDir(&z, m, src); err != nil {
		return err
	}
	if _, err := zip.NewReader(bytes.NewReader(z.Bytes()), int64(z.Len())); err != nil {
		return err
	}
	for name, b := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": info, version + ".mod": gomod, version + ".zip": z.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(dst, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// releaseEdits are what turns a module of this tree into one of a release: the modules
// that it replaces by folders of the tree are required in their real version.
func releaseEdits(src string) (args []string, err error) {
	b, err := os.ReadFile(filepath.Join(src, "go.mod"))
	if err != nil {
		return nil, err
	}
	mod, err := modfile.Parse("go.mod", b, nil)
	if err != nil {
		return nil, err
	}
	for _, r := range mod.Replace {
		if r.Old.Path == root || strings.HasPrefix(r.Old.Path, root+"/") {
			args = append(args, "-dropreplace="+r.Old.Path, "-require="+r.Old.Path+"@"+version)
		}
	}
	return args, nil
}

// build makes a program that imports one package and returns the modules that end
// up in it.
func build(dir, proxy, pkg string) (carried []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	src := "package main\n\nimport _ \"" + pkg + "\"\n\nfunc main() {}\n"
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(src), 0o644); err != nil {
		return nil, err
	}
	upstream, err := output("", nil, "go", "env", "GOPROXY")
	if err != nil {
		return nil, err
	}
	cache := filepath.Join(filepath.Dir(proxy), "cache")
	env := []string{
		"GOWORK=off", "GOFLAGS=-mod=mod -modcacherw", "GOMODCACHE=" + cache,
		"GONOSUMDB=" + root, "GOPROXY=file://" + proxy + "," + upstreamFirst(strings.TrimSpace(upstream)),
	}
	steps := [][]string{
		{"go", "mod", "init", "importer.example/program"},
		{"go", "get", pkg + "@" + version},
		{"go", "build", "-o", os.DevNull, "."},
	}
	if isProgram(pkg) {
		// What people do with it; a replace directive would make this fail.
		env = append(env, "GOBIN="+dir, "CGO_ENABLED=0")
		steps = [][]string{{"go", "install", pkg + "@" + version}}
	}
	for _, args := range steps {
		if _, err := output(dir, env, args[0], args[1:]...); err != nil {
			return nil, err
		}
	}
	if isProgram(pkg) {
		return carriedBy(filepath.Join(dir, path.Base(pkg)))
	}
	list, err := output(dir, env, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	if err != nil {
		return nil, err
	}
	for m := range strings.FieldsSeq(list) {
		if m != "importer.example/program" && !slices.Contains(carried, m) {
			carried = append(carried, m)
		}
	}
	slices.Sort(carried)
	return carried, nil
}

// isProgram reports whether a package is one to install, rather than to import.
func isProgram(pkg string) bool { return strings.HasPrefix(pkg, root+"/cmd/") }

// carriedBy are the modules in a program, by its own account.
func carriedBy(file string) (carried []string, err error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		carried = append(carried, m.Path)
	}
	slices.Sort(carried)
	return carried, nil
}

// upstreamFirst puts this machine's own module cache before its proxy, since what
// the repository builds with is there.
func upstreamFirst(upstream string) string {
	cache, err := output("", nil, "go", "env", "GOMODCACHE")
	if err != nil {
		return upstream
	}
	return "file://" + filepath.Join(strings.TrimSpace(cache), "cache", "download") + "," + upstream
}

func output(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, &errs)
	}
	return out.String(), nil
}
