package pagetest

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

//go:embed readable.js
var readable string

func (b *browser) signIn(w *world) {
	b.t.Helper()
	b.follow("open the page", chromedp.Navigate(w.admin+"/"))
	b.follow("give the token", chromedp.SendKeys(chromedp.CSS("#token"), token+kb.Enter))
	b.mustSay("Duplicate effects prevented")
}

func (b *browser) mustSay(texts ...string) {
	b.t.Helper()
	all := b.text()
	for _, text := range texts {
		if !strings.Contains(all, text) {
			b.t.Fatalf("the page does not say %q:\n%s", text, all)
		}
	}
}

// searchFor uses the form on the list of keys.
func (b *browser) searchFor(state string) {
	b.t.Helper()
	b.follow("to the list", chromedp.Click(chromedp.CSS(`nav a[href="/keys"]`)))
	b.do("choose a state", chromedp.SetValue(chromedp.CSS("#state"), state))
	b.follow("search", chromedp.Click(chromedp.CSS(`form[role=search] button`)))
}

// rows counts the keys that are listed.
func (b *browser) rows() int {
	return ask[int](b, `document.querySelectorAll("table.keys tbody tr").length`)
}

// findBy looks a key up by what a client sent.
func (b *browser) findBy(path, key string) {
	b.t.Helper()
	b.follow("to the list", chromedp.Click(chromedp.CSS(`nav a[href="/keys"]`)))
	b.do("unfold", chromedp.Click(chromedp.CSS(`details summary`)))
	b.do("fill in", chromedp.SendKeys(chromedp.CSS("#path"), path), chromedp.SendKeys(chromedp.CSS("#key"), key))
	b.follow("find", chromedp.Click(chromedp.CSS(`form[action="/find"] button`)))
}

func TestAnOperatorListsSearchesShowsAndSettlesKeys(t *testing.T) {
	w, b := begin(t), browse(t)
	b.use(screens[2])

	b.follow("open the page", chromedp.Navigate(w.admin+"/keys"))
	b.mustSay("Sign in")
	b.follow("give a wrong token", chromedp.SendKeys(chromedp.CSS("#token"), "wrong"+kb.Enter))
	b.mustSay("This is not the token.")
	b.signIn(w)
	b.mustSay("2 keys have an unknown outcome.", "payments", "mail", "open", "closed")
	if got := ask[string](b, `[...document.querySelectorAll(".cards div")].map(e => e.innerText.replace("\n", "=")).join(" ")`); !strings.Contains(got, "Executed=23") || !strings.Contains(got, "Replayed=7") || !strings.Contains(got, "Unknown=2") {
		t.Errorf("counts: got %s", got)
	}

	b.follow("to the list", chromedp.Click(chromedp.CSS(`nav a[href="/keys"]`)))
	if n := b.rows(); n != 26 {
		t.Errorf("got %d keys, want 23 done, 2 unknown and 1 running", n)
	}
	b.searchFor("running")
	if n := b.rows(); n != 1 {
		t.Errorf("got %d running keys, want 1", n)
	}
	b.searchFor("unknown")
	if n := b.rows(); n != 2 {
		t.Errorf("got %d unknown keys, want 2", n)
	}

	t.Run("it happened", func(t *testing.T) { settleAsHappened(t, w, b) })
	t.Run("it did not", func(t *testing.T) { settleAsNot(t, w, b) })
	t.Run("purge", func(t *testing.T) { purgeOne(t, w, b) })

	b.follow("sign out", chromedp.Click(chromedp.CSS(`form[action="/sign-out"] button`)))
	b.follow("back to the list", chromedp.Navigate(w.admin+"/keys"))
	b.mustSay("Sign in")
}

func settleAsHappened(t *testing.T, w *world, b *browser) {
	before := w.effects.Load()
	b.findBy("/v1/charges/lost", "order-lost-1")
	b.mustSay("unknown outcome", "nobody recorded how that ended")
	b.do("say that it happened", chromedp.Click(chromedp.CSS("#yes")), chromedp.SetValue(chromedp.CSS("#status"), "201"),
		chromedp.SendKeys(chromedp.CSS("#body"), `{"id":"ch_lost","note":"<b>"}`))
	b.follow("go on", chromedp.Click(chromedp.CSS(`form[action="/resolve"] button`)))
	b.mustSay("Record this answer?", "answer 201")
	if r := w.post("/v1/charges/lost", "order-lost-1"); r.status != 409 || r.problem != "urn:oncehttp:outcome-unknown" {
		t.Errorf("before it was confirmed: got %+v, want 409", r)
	}
	b.follow("confirm", chromedp.Click(chromedp.CSS(`form[action="/resolve"] button`)))
	b.mustSay("The outcome is recorded.", "answered with 201", "application/json")
	if text := b.text(); strings.Contains(text, "ch_lost") {
		t.Errorf("the page shows the body:\n%s", text)
	}
	if r := w.post("/v1/charges/lost", "order-lost-1"); r.status != 201 || r.body != `{"id":"ch_lost","note":"<b>"}` || !r.replayed {
		t.Errorf("a repeat got %+v, want what the operator gave", r)
	}
	if n := w.effects.Load(); n != before {
		t.Errorf("the upstream got %d more requests, want none", n-before)
	}
}

func settleAsNot(t *testing.T, w *world, b *browser) {
	before := w.effects.Load()
	b.findBy("/v1/charges/lost", "order-lost-2")
	// With the keyboard alone: the first radio, then the button.
	b.do("say that it did not", chromedp.Focus(chromedp.CSS("#no")), chromedp.KeyEvent(" "), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Tab))
	b.follow("go on", chromedp.KeyEvent(kb.Enter))
	b.mustSay("Free the key?", "takes effect twice")
	b.follow("cancel", chromedp.Click(chromedp.CSS(`a.button`)))
	b.mustSay("Say what happened")
	b.do("say it again", chromedp.Click(chromedp.CSS("#no")))
	b.follow("go on", chromedp.Click(chromedp.CSS(`form[action="/resolve"] button`)))
	b.follow("confirm", chromedp.Click(chromedp.CSS(`form[action="/resolve"] button`)))
	b.mustSay("The key is free.")
	if w.effects.Load() != before {
		t.Errorf("the upstream got a request, and nobody repeated one")
	}
	w.post("/v1/charges/lost", "order-lost-2")
	if n := w.effects.Load(); n != before+1 {
		t.Errorf("after a repeat the upstream got %d more requests, want 1", n-before)
	}
}

func purgeOne(t *testing.T, w *world, b *browser) {
	before := w.effects.Load()
	b.findBy("/v1/charges", "order-3")
	b.follow("purge", chromedp.Click(chromedp.CSS(`form[action="/purge"] button`)))
	b.mustSay("Purge the key?")
	if r := w.post("/v1/charges", "order-3"); !r.replayed {
		t.Errorf("before it was confirmed: got %+v, want a replay", r)
	}
	b.follow("confirm", chromedp.Click(chromedp.CSS(`form[action="/purge"] button`)))
	b.mustSay("The key was purged.")
	if r := w.post("/v1/charges", "order-3"); r.replayed || w.effects.Load() != before+1 {
		t.Errorf("after it: got %+v and %d more effects, want one", r, w.effects.Load()-before)
	}
	b.findBy("/v1/charges/slow", "order-slow")
	b.mustSay("It is running now", "cannot be purged")
}

// A page of another server of the same machine is the worst neighbour: browsers send
// it the same cookies, and take it for the same site.
func TestAnotherSiteCannotUseTheOperatorsBrowser(t *testing.T) {
	w, b := begin(t), browse(t)
	b.openLink(w)
	b.findBy("/v1/charges/lost", "order-lost-1")
	key := ask[string](b, `new URL(location.href).searchParams.get("key")`)
	fields := ask[map[string]string](b, `Object.fromEntries([...document.querySelectorAll('form[action="/purge"] input')].map(e => [e.name, e.value]))`)
	if fields["form"] == "" || fields["seen"] == "" {
		t.Fatalf("the form has %v", fields)
	}

	evil := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		switch r.URL.Path {
		case "/form": // even one that knows the form's token
			fmt.Fprintf(rw, `<form method="post" action="%s/purge"><input name="key" value="%s"><input name="confirm" value="yes"><input name="form" value="%s"><input name="seen" value="%s"><button>Win</button></form>`,
				w.admin, key, fields["form"], fields["seen"])
		case "/frame":
			fmt.Fprintf(rw, `<iframe src="%s/" onload="document.title='loaded'"></iframe>`, w.admin)
		case "/fetch":
			fmt.Fprintf(rw, `<script>fetch("%s/keys", {credentials: "include"}).then(r => r.text()).then(t => document.title = "read " + t.length, e => document.title = "failed")</script>`, w.admin)
		case "/script":
			fmt.Fprintf(rw, `<script src="%s/keys" onload="document.title='ran'" onerror="document.title='failed'"></script>`, w.admin)
		}
	}))
	defer evil.Close()

	b.do("another site's form", chromedp.Navigate(evil.URL+"/form"))
	b.follow("is sent", chromedp.Click(chromedp.CSS("button")))
	b.mustSay("This came from another site")

	b.do("another site's frame", chromedp.Navigate(evil.URL+"/frame"), chromedp.Poll[chromedp.Void](`document.title === "loaded"`))
	if n := ask[int](b, `frames.length && (() => { try { return frames[0].document.body.innerText.length } catch { return 0 } })()`); n > 0 {
		t.Errorf("the frame shows %d characters", n)
	}
	for _, path := range []string{"/fetch", "/script"} {
		b.do("another site's "+path, chromedp.Navigate(evil.URL+path), chromedp.Poll[chromedp.Void](`document.title !== ""`))
		if got := ask[string](b, `document.title`); got != "failed" {
			t.Errorf("%s: %s", path, got)
		}
	}
	b.follow("look again", chromedp.Navigate(w.admin+"/key?key="+key))
	b.mustSay("unknown outcome")
}

// openLink signs in by the link that is printed. The token must not stay anywhere.
func (b *browser) openLink(w *world) {
	b.t.Helper()
	b.follow("open the link", chromedp.Navigate(w.admin+"/sign-in?token="+url.QueryEscape(token)))
	b.mustSay("Duplicate effects prevented")
	if got := ask[string](b, `location.href`); got != w.admin+"/" {
		b.t.Errorf("the address is %s", got)
	}
	if got := ask[string](b, `document.cookie`); got != "" {
		b.t.Errorf("scripts can read the cookie: %s", got)
	}
	if got := ask[string](b, `performance.getEntriesByType("navigation").map(e => e.name).join()`); strings.Contains(got, token) {
		b.t.Errorf("the browser remembers %s", got)
	}
}

func TestPagesAreReadableOnPhoneAndDesktopInLightAndDark(t *testing.T) {
	w, b := begin(t), browse(t)
	b.follow("open the page", chromedp.Navigate(w.admin+"/"))
	for _, s := range screens {
		b.use(s)
		b.judge("sign in on " + s.name)
	}
	b.signIn(w)
	b.findBy("/v1/charges/lost", "order-lost-1")
	unknown := ask[string](b, `location.href`)
	b.findBy("/v1/charges", "order-1")
	done := ask[string](b, `location.href`)
	for _, s := range screens {
		b.use(s)
		for _, p := range []struct{ name, url string }{{"overview", w.admin + "/"}, {"keys", w.admin + "/keys"}, {"key-unknown", unknown}, {"key-done", done}, {"no-such-page", w.admin + "/nothing"}, {"wrong-search", w.admin + "/keys?age=soon"}} {
			b.follow("open "+p.name, chromedp.Navigate(p.url))
			b.judge(p.name + " on " + s.name)
			if p.name == "keys" || p.name == "overview" || p.name == "key-unknown" {
				b.draw(p.name, s)
			}
			if p.name == "key-unknown" {
				b.do("say yes", chromedp.Click(chromedp.CSS("#no")))
				b.follow("go on", chromedp.Click(chromedp.CSS(`form[action="/resolve"] button`)))
				b.judge("confirm on " + s.name)
				b.draw("confirm", s)
			}
		}
	}
	b.follow("open", chromedp.Navigate(w.admin+"/keys"))
	b.tabs()
}

// judge complains about what is hard to read.
func (b *browser) judge(what string) {
	b.t.Helper()
	for _, c := range ask[[]string](b, readable) {
		b.t.Errorf("%s: %s", what, c)
	}
}

// tabs goes through the list of keys with the keyboard: everything is reached in the
// order of the page, and shows that it has the focus.
func (b *browser) tabs() {
	b.t.Helper()
	var reached []string
	for range 10 {
		b.do("Tab", chromedp.KeyEvent(kb.Tab))
		reached = append(reached, ask[string](b, `(() => { const e = document.activeElement; return (e.id || e.innerText) + (getComputedStyle(e).outlineStyle === "none" ? " without outline" : "") })()`))
	}
	want := "Skip to the content, Overview, Keys, Sign out, q, state, age, Search, Find the key of a client’s request"
	if got := strings.Join(reached, ", "); !strings.HasPrefix(got, want) {
		b.t.Errorf("Tab reaches %s\nwant %s", got, want)
	}
}

// draw keeps a picture of the page, if -figures says where.
func (b *browser) draw(name string, s screen) {
	b.t.Helper()
	if *figures == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	if err := keep(*figures, "onceproxy-"+name+"-"+s.name+".png", png); err != nil {
		b.t.Fatal(err)
	}
}
