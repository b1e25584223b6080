package page

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/keys"
)

// A one is the page of one key.
type one struct {
	keys.Story
	Seen string // see seen
	Word word   // of the form that settles it
}

// A word is an operator's, as it stands in the form.
type word struct {
	Happened, Status, ContentType, Body string
}

// asked is the key that an address or a form names.
func asked(values url.Values) (string, *refusal) {
	key := values.Get("key")
	if h := values.Get("hex"); h != "" {
		b, err := hex.DecodeString(h)
		if err != nil {
			return "", &refusal{http.StatusBadRequest, "This is not a key", "The address was changed on its way here."}
		}
		key = string(b)
	}
	if key == "" {
		return "", &refusal{http.StatusBadRequest, "No key was named", "Search for it in the list of keys."}
	}
	return key, nil
}

// look gets the record of the key that values name, or answers that it cannot.
func (p *page) look(w http.ResponseWriter, r *http.Request, v visitor, values url.Values) (story keys.Story, ok bool) {
	key, no := asked(values)
	if no != nil {
		p.refuse(w, r, v, no)
		return story, false
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	record, err := p.state.Keys.Show(ctx, key)
	switch {
	case errors.Is(err, oncehttp.ErrNotFound):
		p.refuse(w, r, v, &refusal{http.StatusNotFound, "There is no such key", "Nothing is recorded under " + shorten(key) + ": it was not used, nothing happened under it, or it was forgotten. A request with it is sent on."})
		return story, false
	case err != nil:
		p.failed(w, r, v, err)
		return story, false
	}
	return keys.Tell(record), true
}

func (p *page) one(w http.ResponseWriter, r *http.Request, v visitor) {
	story, ok := p.look(w, r, v, r.URL.Query())
	if !ok {
		return
	}
	notice := ""
	if r.URL.Query().Get("done") == "resolved" {
		notice = "The outcome is recorded. Repeats get this answer."
	}
	p.showKey(w, r, v, http.StatusOK, one{Story: story}, notice, "")
}

func (p *page) showKey(w http.ResponseWriter, r *http.Request, v visitor, status int, o one, notice, wrong string) {
	o.Seen = seen(o.Story)
	p.show(w, r, v, status, "key", view{Title: "One key", Here: "/keys", Notice: notice, Wrong: wrong, Data: o})
}

// seen is what an operator had before him when he decided. An older one of the same
// state and holder is the same record.
func seen(s keys.Story) string {
	return s.State() + "." + strconv.Itoa(s.Holder) + "." + s.Fingerprint + "." + strconv.FormatInt(int64(s.Age/time.Second), 10)
}

// isStillSo reports whether the record is the one that was seen.
func isStillSo(now keys.Story, before string) bool {
	i, j := strings.LastIndexByte(before, '.'), strings.LastIndexByte(seen(now), '.')
	if i < 0 || before[:i] != seen(now)[:j] {
		return false
	}
	age, err := strconv.ParseInt(before[i+1:], 10, 64)
	return err == nil && int64(now.Age/time.Second) >= age
}

// isPlain reports whether a key survives an HTML form: browsers change ends of lines,
// and what is not UTF-8.
func isPlain(key string) bool {
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return false
		}
	}
	return key != ""
}

func hexOf(key string) string { return hex.EncodeToString([]byte(key)) }

// quoted is a key as people read it.
func quoted(key string) string {
	if isPlain(key) {
		return key
	}
	return strconv.QuoteToASCII(key)
}

// shorten is quoted for tables.
func shorten(key string) string {
	if key = quoted(key); len(key) > 20 {
		return key[:16] + "…" // as much as logs show
	}
	return key
}
