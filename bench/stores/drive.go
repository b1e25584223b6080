package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncehttp/oncehttp"
)

// quiet is for stores that would warn of what is done on purpose.
var quiet = slog.New(slog.DiscardHandler)

// path is what every request here is for.
const path = "/payments"

// keyed is a handler behind a Middleware, with requests made by hand: what a
// server does to read one from the network is no part of what is measured.
type keyed struct {
	http.Handler
	auth bool // requests carry credentials, so records a binding
}

// protect puts a Middleware with a store around a handler that answers without a
// body.
func protect(s oncehttp.Store) keyed {
	m := &oncehttp.Middleware{Store: s, Logger: quiet}
	return keyed{Handler: m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
	}))}
}

// request sends a request with a key and sees that it was answered as it should.
func (k keyed) request(key string, replayed bool) error {
	const body = `{"to":"A-17"}`
	r := &http.Request{
		Method: "POST", URL: &url.URL{Path: path}, RequestURI: path, Host: "shop.example",
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{oncehttp.Header: {key}, "Content-Type": {"application/json"}},
		Body:          io.NopCloser(strings.NewReader(body)),
		ContentLength: int64(len(body)),
	}
	if k.auth {
		r.Header["Authorization"] = []string{"Bearer 8f14e45fceea167a5a36dedd4bea2543"}
	}
	w := answer{header: make(http.Header)}
	k.ServeHTTP(&w, r)
	if w.status != http.StatusCreated || (w.header.Get("Idempotent-Replayed") == "true") != replayed {
		return fmt.Errorf("the Middleware answered %d, %v: %s", w.status, w.header, w.body)
	}
	return nil
}

// fresh runs the handler under a key that is new.
func (k keyed) fresh(int64) error {
	return k.request("fresh-"+strconv.FormatInt(freshKeys.Add(1), 10), false)
}

var freshKeys atomic.Int64

// repeats makes n keys that have answers, and returns what asks for one of them.
func (k keyed) repeats(h *host, n int) func(i int64) error {
	name := func(i int64) string { return "done-" + strconv.FormatInt(i%int64(n), 10) }
	h.need(count(16, int64(n), func(i int64) error { return k.request(name(i), false) }))
	return func(i int64) error { return k.request(name(i), true) }
}

// An answer takes what is answered.
type answer struct {
	header http.Header
	status int
	body   []byte
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	a.body = append(a.body, b...)
	return len(b), nil
}

// perSecond calls do from some goroutines for a while, and returns how often a
// second that was. Each call has a number of its own.
func perSecond(callers int, span time.Duration, do func(i int64) error) (float64, error) {
	var n atomic.Int64
	began := time.Now()
	err := together(callers, func() (bool, error) {
		if time.Since(began) >= span {
			return false, nil
		}
		return true, do(n.Add(1))
	})
	return float64(n.Load()) / time.Since(began).Seconds(), err
}

// count calls do n times from some goroutines, with the numbers from 0 on.
func count(callers int, n int64, do func(i int64) error) error {
	var next atomic.Int64
	return together(callers, func() (bool, error) {
		i := next.Add(1) - 1
		if i >= n {
			return false, nil
		}
		return true, do(i)
	})
}

// together calls step from some goroutines until it says that it was the last time,
// and returns the first error.
func together(callers int, step func() (more bool, err error)) error {
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	for range callers {
		wg.Go(func() {
			for more := true; more; {
				var err error
				if more, err = step(); err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

// A duel is what came of measuring two sides in turns: medians, because a machine
// that does something else for a moment should not decide.
type duel struct{ ours, theirs, ratio float64 }

// cells are those of a table's row.
func (d duel) cells(what string, callers int) []string {
	return []string{what, strconv.Itoa(callers), thousands(d.ours), thousands(d.theirs), fmt.Sprintf("%.2f", d.ratio)}
}

// sideBySide measures both sides in turns, and returns how often a second each did
// what it does.
func sideBySide(h *host, rounds int, span time.Duration, ours, theirs func(span time.Duration) (float64, error)) duel {
	var our, their, ratio []float64
	for range rounds {
		t, err := theirs(span)
		h.need(err)
		o, err := ours(span)
		h.need(err)
		our, their, ratio = append(our, o), append(their, t), append(ratio, o/t)
	}
	return duel{median(our), median(their), median(ratio)}
}

func median(f []float64) float64 {
	slices.Sort(f)
	return f[len(f)/2]
}
