package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	"weak"

	"github.com/oncehttp/oncehttp"
)

// A call is one request made through a Transport, and what came back.
type call struct {
	id    callID
	a     *action
	ask   ask
	l     *life
	mode  keyMode
	fresh string // a new key, after an answer that allows one

	// Under world.mu, while it runs:
	tries int
	dials int
	key   string // as the first server saw it

	// What the caller was told:
	began, told time.Duration // told: RoundTrip or Do has returned
	deadline    time.Duration
	status      int
	header      http.Header
	body        []byte
	whole       bool // the body was read to its end
	err         error
	result      oncehttp.Result
	certainty   oncehttp.Certainty
	success     *success
	refusal     *refusal
}

type callKey struct{}

func (c *call) trying() int {
	c.l.c.w.mu.Lock()
	defer c.l.c.w.mu.Unlock()
	return c.tries
}

func (c *call) dialled() int {
	c.l.c.w.mu.Lock()
	defer c.l.c.w.mu.Unlock()
	c.dials++
	return c.dials
}

func (l *life) do(ctx context.Context, a *action, k ask, n int, fresh string) *call {
	w := l.c.w
	c := &call{id: callID{l.c.n, a.n, n}, a: a, ask: k, l: l, mode: a.mode, fresh: fresh, began: time.Since(w.born)}
	if by, ok := ctx.Deadline(); ok {
		c.deadline = by.Sub(w.born)
	}
	inner := context.WithValue(a.context(ctx), callKey{}, c)
	if fresh != "" {
		inner, c.mode = oncehttp.WithKey(inner, fresh), byKey
	}
	r := a.request(inner, w, c)
	before := snapshot(r)
	w.mu.Lock()
	w.calls[c.id] = c
	if w.calm.Load() {
		w.requests = append(w.requests, held{weak.Make(r), c.id, "client"})
	}
	w.mu.Unlock()
	w.note(tryID{callID: c.id}, "client", "%s %s: %v, %s, %s", r.Method, r.URL, k, c.mode, a.body)

	var resp *http.Response
	var err error
	if l.direct {
		resp, err = l.t.RoundTrip(r)
	} else {
		resp, err = (&http.Client{Transport: l.t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(r)
	}
	c.told = time.Since(w.born)
	c.err = err
	if resp != nil {
		c.result = oncehttp.Attempts(resp)
		c.status, c.header = resp.StatusCode, resp.Header
		c.body, err = io.ReadAll(resp.Body)
		c.whole = err == nil
		resp.Body.Close()
	}
	if e := (*oncehttp.Error)(nil); errors.As(c.err, &e) {
		c.result = e.Result
	}
	c.result.Tries = slices.Clone(c.result.Tries) // which would keep the request alive
	c.certainty = c.result.Certainty
	c.understand()
	w.note(tryID{callID: c.id}, "client", "is told %v", c)
	if after := snapshot(r); after != before {
		w.broke(tryID{callID: c.id}, 5, "the caller's request was changed: %s, then %s", before, after)
	}
	w.hears(c)
	if c.err != nil {
		c.err = errors.New(c.err.Error()) // an *oncehttp.Error keeps its request alive
	}
	return c
}

// understand reads the answer.
func (c *call) understand() {
	if c.status >= 200 && c.status <= 299 {
		c.success = new(success)
		if c.whole {
			if err := json.Unmarshal(c.body, c.success); err != nil {
				c.whole = false
			}
		}
	}
	if c.header.Get("Content-Type") == "application/problem+json" && c.whole {
		c.refusal = new(refusal)
		if json.Unmarshal(c.body, c.refusal) != nil {
			c.refusal = nil
		}
	}
}

// A refusal is a problem document.
type refusal struct {
	Type         string `json:"type"`
	Outcome      string `json:"outcome"`
	RetrySameKey bool   `json:"retry_same_key"`
	SafeNewKey   bool   `json:"safe_new_key"`
}

func (r *refusal) kind() string {
	if r == nil {
		return ""
	}
	return strings.TrimPrefix(r.Type, "urn:oncehttp:")
}

func (c *call) String() string {
	s := ""
	switch {
	case c.err != nil:
		s = c.err.Error()
	case c.refusal != nil:
		s = fmt.Sprintf("%d %s (outcome %s)", c.status, c.refusal.kind(), c.refusal.Outcome)
	default:
		s = fmt.Sprintf("%d %q", c.status, c.body[:min(len(c.body), 90)])
		if !c.whole {
			s += ", cut short"
		}
	}
	return fmt.Sprintf("%s [%d tries, %v]", s, len(c.result.Tries), c.certainty)
}

// snapshot is everything of a request that belongs to its caller.
func snapshot(r *http.Request) string {
	var h bytes.Buffer
	r.Header.Write(&h)
	return fmt.Sprintf("%s %s %s %q %d %v %p %v %v %v", r.Method, r.URL, r.Host, h.String(), r.ContentLength, r.TransferEncoding, r.Body, r.GetBody != nil, r.Close, r.Trailer)
}
