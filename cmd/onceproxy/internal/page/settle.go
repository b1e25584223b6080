package page

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/keys"
)

// A confirmation is what is about to be done to a key.
type confirmation struct {
	one
	Action string // where the form goes
	Doing  string // as on the button
	Means  []string
	Danger bool // a request may take effect once more
}

// resolve takes an operator's word on an unknown outcome. First it says what that
// means; only when it comes back confirmed does it change anything.
func (p *page) resolve(w http.ResponseWriter, r *http.Request, v visitor) {
	story, ok := p.look(w, r, v, r.PostForm)
	if !ok {
		return
	}
	o := one{Story: story, Word: word{
		Happened: r.PostFormValue("happened"), Status: strings.TrimSpace(r.PostFormValue("status")),
		ContentType: strings.TrimSpace(r.PostFormValue("type")), Body: r.PostFormValue("body"),
	}}
	if !isStillSo(story, r.PostFormValue("seen")) {
		p.showKey(w, r, v, http.StatusConflict, o, "", "The key has changed since you looked, so nothing was done. This is how it stands now.")
		return
	}
	said, wrong := o.Word.read()
	if wrong != "" {
		p.showKey(w, r, v, http.StatusBadRequest, o, "", wrong)
		return
	}
	res, err := said.Resolution()
	if err != nil {
		p.showKey(w, r, v, http.StatusBadRequest, o, "", "Nothing was changed. "+err.Error())
		return
	}
	if r.PostFormValue("confirm") != "yes" {
		p.confirm(w, r, v, confirmResolve(o, said))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	err = p.state.Keys.Resolve(ctx, story.Key, res)
	if !p.settled(w, r, v, err) {
		return
	}
	p.log.InfoContext(ctx, "an operator settled an unknown outcome", "key", keys.Short(story.Key), "happened", said.Happened, "status", said.Status)
	if said.Happened {
		http.Redirect(w, r, linkTo(story.Key)+"&done=resolved", http.StatusSeeOther)
		return
	}
	http.Redirect(w, r, "/keys?done=freed", http.StatusSeeOther)
}

// read makes sense of the form.
func (f word) read() (said keys.Word, wrong string) {
	switch f.Happened {
	case "no":
		return keys.Word{}, ""
	case "yes":
	default:
		return keys.Word{}, "Nothing was changed. Say whether the request took effect."
	}
	status, err := strconv.Atoi(f.Status)
	if err != nil {
		return keys.Word{}, "Nothing was changed. status: write a number, such as 201."
	}
	said = keys.Word{Happened: true, Status: status, Body: []byte(strings.ReplaceAll(f.Body, "\r\n", "\n"))}
	if len(said.Body) > 0 {
		said.ContentType = f.ContentType
	}
	return said, ""
}

func confirmResolve(o one, said keys.Word) confirmation {
	if !said.Happened {
		return confirmation{o, "/resolve", "Free the key", []string{
			"You say that the request did not take effect.",
			"The key is freed: when the client repeats the request, it is sent to the upstream.",
			"If it did take effect after all, it then takes effect twice.",
		}, true}
	}
	return confirmation{o, "/resolve", "Record this answer", []string{
		"You say that the request took effect.",
		"Repeats get the answer " + strconv.Itoa(said.Status) + ", with a body of " + strconv.Itoa(len(said.Body)) + " bytes. Nothing is sent to the upstream.",
		"A holder that comes back late can no longer record another answer.",
	}, false}
}

// purge forgets a key, once that is confirmed.
func (p *page) purge(w http.ResponseWriter, r *http.Request, v visitor) {
	story, ok := p.look(w, r, v, r.PostForm)
	if !ok {
		return
	}
	o := one{Story: story}
	if !isStillSo(story, r.PostFormValue("seen")) {
		p.showKey(w, r, v, http.StatusConflict, o, "", "The key has changed since you looked, so nothing was done. This is how it stands now.")
		return
	}
	if r.PostFormValue("confirm") != "yes" {
		p.confirm(w, r, v, confirmation{o, "/purge", "Purge the key", []string{
			"The store forgets this key and its answer.",
			"When the client repeats the request, it is sent to the upstream as if it were new.",
			"If it has taken effect already, it then takes effect twice.",
		}, true})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if !p.settled(w, r, v, p.state.Keys.Purge(ctx, story.Key)) {
		return
	}
	p.log.InfoContext(ctx, "an operator purged a key", "key", keys.Short(story.Key), "state", story.State())
	http.Redirect(w, r, "/keys?"+url.Values{"done": {"purged"}}.Encode(), http.StatusSeeOther)
}

// settled reports whether the store did it, and says so if not.
func (p *page) settled(w http.ResponseWriter, r *http.Request, v visitor, err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, oncehttp.ErrNotFound), errors.Is(err, oncehttp.ErrNotOrphaned), errors.Is(err, oncehttp.ErrNotPurgeable):
		p.refuse(w, r, v, &refusal{http.StatusConflict, "Nothing was changed", "The key is in another state by now. Look at it again."})
	default:
		p.failed(w, r, v, err)
	}
	return false
}

func (p *page) confirm(w http.ResponseWriter, r *http.Request, v visitor, c confirmation) {
	c.Seen = seen(c.Story)
	p.show(w, r, v, http.StatusOK, "confirm", view{Title: c.Doing + "?", Here: "/keys", Data: c})
}
