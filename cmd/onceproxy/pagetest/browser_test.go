package pagetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/oncehttp/oncehttp/internal/services"
)

// patience is how long one step in the browser may take. It is long: CI machines do
// other things too.
const patience = time.Minute

// chromium finds the browser, and installs Debian's where there is none. The error says
// why that cannot be done.
var chromium = sync.OnceValues(func() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return services.Program("chromium", "chromium")
})

// process is the browser that all tests share. It ends with the test binary.
var process = sync.OnceValues(func() (context.Context, error) {
	path, err := chromium()
	if err != nil {
		return nil, err
	}
	profile, err := os.MkdirTemp("", "onceproxy-browser")
	if err != nil {
		return nil, err
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(profile),
		chromedp.Flag("disable-lcd-text", true), chromedp.Flag("lang", "en"))
	if os.Geteuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(alloc)
	endBrowser = func() { cancel(); stop(); os.RemoveAll(profile) }
	if err := chromedp.Do(ctx); err != nil { // not under a deadline, which would end the browser
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return ctx, nil
})

var endBrowser = func() {}

// browse opens a tab with cookies of its own, which ends with the test. Where there is
// no browser the test is skipped, and says why.
func browse(t *testing.T) *browser {
	t.Helper()
	if _, err := chromium(); err != nil {
		t.Skip(err)
	}
	parent, err := process()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(parent, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	return &browser{t: t, ctx: ctx}
}

// A browser is one tab of a real one.
type browser struct {
	t   *testing.T
	ctx context.Context
}

// do runs steps, all of which must succeed.
func (b *browser) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("%s: %v\nthe page says:\n%s", what, err, b.text())
	}
}

// follow does something that loads another page, and waits for that.
func (b *browser) follow(what string, step chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if _, err := chromedp.RunResponse(ctx, step); err != nil {
		b.t.Fatalf("%s: %v\nthe page says:\n%s", what, err, b.text())
	}
}

// text is what can be read on the page.
func (b *browser) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		return err.Error()
	}
	return text
}

// ask evaluates an expression. The page's own policy forbids scripts; the debugger
// is above that.
func ask[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression[:min(len(expression), 60)], err)
	}
	return v
}

// A screen is what a page is looked at with.
type screen struct {
	name  string
	width int64
	scale float64
	dark  bool
}

var screens = []screen{
	{"phone-light", 390, 2, false},
	{"phone-dark", 390, 2, true},
	{"desktop-light", 1280, 1, false},
	{"desktop-dark", 1280, 1, true},
}

func (b *browser) use(s screen) {
	b.t.Helper()
	scheme := "light"
	if s.dark {
		scheme = "dark"
	}
	height := int64(800)
	opts := []chromedp.EmulateViewportOption{chromedp.EmulateScale(s.scale)}
	if s.width < 600 {
		height = 844
		opts = append(opts, chromedp.EmulateMobile)
	}
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	b.do("use a "+s.name, chromedp.EmulateViewport(s.width, height, opts...),
		chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
			_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, media)
			return err
		}))
}
