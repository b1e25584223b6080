package page

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/keys"
)

// perPage is how many keys are shown at once.
const perPage = 50

// A list is a search, as it was asked for, and what it found.
type list struct {
	Prefix, State, Age string
	States             []option
	Ages               []option
	Found              keys.Found
	Next               string // address of the next page, or ""
	Asked              bool   // not all keys were asked for

	Request keys.Request // of the form that looks a client's key up
	Unfound string       // what is wrong with that
}

type option struct {
	Value, Text string
	Chosen      bool
}

func (p *page) list(w http.ResponseWriter, r *http.Request, v visitor) {
	q := r.URL.Query()
	l := list{Prefix: strings.TrimSpace(q.Get("q")), State: q.Get("state"), Age: q.Get("age")}
	search := keys.Search{Prefix: l.Prefix, After: q.Get("after"), Limit: perPage}
	var err error
	if search.Status, err = keys.ParseState(l.State); err == nil && l.Age != "" {
		if search.MinAge, err = time.ParseDuration(l.Age); err != nil {
			err = fmt.Errorf("age: %.20q is not a time; write one such as 10m, or 2h", l.Age)
		}
	}
	if err == nil {
		err = search.Check()
	}
	if err != nil {
		l.Prefix = l.Prefix[:min(len(l.Prefix), keys.MaxPrefix)]
		p.showList(w, r, v, http.StatusBadRequest, l, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if l.Found, err = search.Run(ctx, p.state.Keys); err != nil {
		p.failed(w, r, v, err)
		return
	}
	if l.Found.Next != "" {
		l.Next = "/keys?" + url.Values{"q": {l.Prefix}, "state": {l.State}, "age": {l.Age}, "after": {l.Found.Next}}.Encode()
	}
	l.Asked = l.Prefix != "" || l.State != "" || l.Age != ""
	p.showList(w, r, v, http.StatusOK, l, "")
}

func (p *page) showList(w http.ResponseWriter, r *http.Request, v visitor, status int, l list, wrong string) {
	l.States = choices(l.State, option{Text: "any"}, option{Value: "unknown", Text: "unknown outcome"}, option{Value: "running", Text: "running"}, option{Value: "done", Text: "done"})
	l.Ages = choices(l.Age, option{Text: "any"}, option{Value: "1m", Text: "1 minute or more"}, option{Value: "10m", Text: "10 minutes or more"},
		option{Value: "1h", Text: "1 hour or more"}, option{Value: "24h", Text: "1 day or more"})
	notice := ""
	switch r.URL.Query().Get("done") {
	case "purged":
		notice = "The key was purged. A repeat is sent on as if it were new."
	case "freed":
		notice = "The key is free. A repeat is sent on."
	}
	p.show(w, r, v, status, "list", view{Title: "Keys", Here: "/keys", Notice: notice, Wrong: wrong, Data: l})
}

func choices(chosen string, all ...option) []option {
	for i := range all {
		all[i].Chosen = all[i].Value == chosen
	}
	return all
}

// find looks a key up by what the client sent. That comes in a form's body, not in an
// address, which browsers remember.
func (p *page) find(w http.ResponseWriter, r *http.Request, v visitor) {
	asked := keys.Request{
		Method: strings.ToUpper(strings.TrimSpace(r.PostFormValue("method"))), Path: strings.TrimSpace(r.PostFormValue("path")),
		Key: r.PostFormValue("key"), Scope: r.PostFormValue("scope"),
	}
	key, err := asked.RecordKey()
	if err != nil {
		p.showList(w, r, v, http.StatusBadRequest, list{Request: asked, Unfound: err.Error()}, "")
		return
	}
	http.Redirect(w, r, linkTo(key), http.StatusSeeOther)
}
