// Package page is the operator's page: what a running proxy does, what its store knows
// of keys, and a way to settle those whose outcome nobody recorded. It is rendered here,
// without scripts, and answers nobody who has not shown its token.
package page

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/keys"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/operate"
)

//go:embed assets
var assets embed.FS

// patience is how long the store gets to answer.
const patience = 10 * time.Second

type page struct {
	state    *operate.State
	token    string
	log      *slog.Logger
	sessions *sessions
	mux      *http.ServeMux
}

// New returns the operator's page of a proxy. It must be served on a loopback address
// only. An empty token lets nobody in.
func New(state *operate.State, token string) http.Handler {
	p := &page{state: state, token: token, log: state.Log, sessions: newSessions(), mux: http.NewServeMux()}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	open := func(pattern string, f http.HandlerFunc) { p.mux.HandleFunc(pattern, f) }
	open("GET /style.css", asset("style.css", "text/css; charset=utf-8"))
	open("GET /icon.svg", asset("icon.svg", "image/svg+xml"))
	open("GET /sign-in", p.signIn)
	open("POST /sign-in", p.signIn)
	shut := func(pattern string, f func(http.ResponseWriter, *http.Request, visitor)) {
		p.mux.HandleFunc(pattern, p.admitted(f))
	}
	shut("GET /{$}", p.overview)
	shut("GET /keys", p.list)
	shut("GET /key", p.one)
	shut("POST /find", p.find)
	shut("POST /resolve", p.resolve)
	shut("POST /purge", p.purge)
	shut("POST /sign-out", p.signOut)
	shut("/", p.nothing)
	return p
}

// ServeHTTP implements http.Handler.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	protect(w.Header())
	if no := guard(r); no != nil {
		p.refuse(w, r, visitor{}, no)
		return
	}
	if r.Method == http.MethodPost {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			status := http.StatusBadRequest
			if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
				status = http.StatusRequestEntityTooLarge
			}
			p.refuse(w, r, visitor{}, &refusal{status, "The form cannot be read", "It is too large, or not a form."})
			return
		}
	}
	p.mux.ServeHTTP(w, r)
}

// admitted lets pass who has shown the token. A form that changes something must also
// carry what only the page itself can have put into it.
func (p *page) admitted(f func(http.ResponseWriter, *http.Request, visitor)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := p.visitor(r)
		if !v.known {
			p.askToken(w, r, "")
			return
		}
		if r.Method == http.MethodPost && v.session != "" && !isSecret(r.PostFormValue("form"), p.sessions.formToken(v.session)) {
			p.refuse(w, r, v, &refusal{http.StatusForbidden, "This form is not from the page", "Nothing was changed. Open the key again, and use the form that is there."})
			return
		}
		f(w, r, v)
	}
}

func (p *page) nothing(w http.ResponseWriter, r *http.Request, v visitor) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		p.refuse(w, r, v, &refusal{http.StatusNotFound, "There is no such page", "Use the links above."})
	default:
		w.Header().Set("Allow", "GET, HEAD")
		p.refuse(w, r, v, &refusal{http.StatusMethodNotAllowed, "This cannot be done here", "Nothing was changed."})
	}
}

// A view is what the templates show.
type view struct {
	Title  string
	Here   string // the link of the navigation that this is
	Notice string // what was just done
	Wrong  string // what is wrong with the input
	Form   string // the token of the session's forms
	Known  bool
	Every  int // seconds after which the page is loaded again; 0: never
	Data   any
}

func (p *page) refuse(w http.ResponseWriter, r *http.Request, v visitor, no *refusal) {
	p.show(w, r, v, no.status, "refusal", view{Title: no.title, Data: no.text})
}

// failed says that the store did not do what it was asked.
func (p *page) failed(w http.ResponseWriter, r *http.Request, v visitor, err error) {
	p.log.WarnContext(r.Context(), "the store did not answer the operator's page", "err", err.Error())
	text := "The log says more. Load the page again to see how things stand."
	if errors.Is(err, context.DeadlineExceeded) {
		text = "It did not answer in time. Load the page again to see how things stand."
	}
	p.refuse(w, r, v, &refusal{http.StatusBadGateway, "The store did not answer", text})
}

func (p *page) show(w http.ResponseWriter, r *http.Request, who visitor, status int, name string, v view) {
	v.Known = who.known && who.session != ""
	if v.Known {
		v.Form = p.sessions.formToken(who.session)
	}
	var b bytes.Buffer
	if err := templates[name].ExecuteTemplate(&b, "layout", v); err != nil {
		p.log.ErrorContext(r.Context(), "the operator's page has a mistake", "page", name, "err", err.Error())
		http.Error(w, "the page has a mistake; the log says more", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	w.Write(b.Bytes())
}

var templates = parse("overview", "list", "key", "confirm", "token", "refusal")

func parse(names ...string) map[string]*template.Template {
	funcs := template.FuncMap{
		"human": keys.Human, "short": shorten, "link": linkTo,
		"until": func(t time.Time) string {
			if d := time.Until(t); d > 0 {
				return "for " + keys.Human(d)
			}
			return "the next request decides"
		},
		"plain": isPlain, "quoted": quoted, "hex": hexOf,
	}
	all := map[string]*template.Template{}
	for _, name := range names {
		all[name] = template.Must(template.New(name).Funcs(funcs).ParseFS(assets, "assets/layout.html", "assets/"+name+".html"))
	}
	return all
}

func asset(name, kind string) http.HandlerFunc {
	b, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		w.Write(b)
	}
}

// linkTo is the address of a key's page.
func linkTo(key string) string {
	if isPlain(key) {
		return "/key?" + url.Values{"key": {key}}.Encode()
	}
	return "/key?" + url.Values{"hex": {hexOf(key)}}.Encode()
}
