package oncetest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Once fails the test if an action took effect more than once, or if a client was
// told of success and nothing took effect. It first waits until the handler has
// returned everywhere.
//
// An action is what a key names. Requests without a key are one action if method,
// URL and body are equal (a body that not even the server has read to its end, as
// far as it was read). A request under a new key belongs to an earlier action
// too if it equals that in method, URL and body, and all sends of that were over
// and had left their client without an answer that settles it: with none, or with
// 408, 409, 425, 429 or 5xx. A client that has not learnt how its request ended,
// and sends it again, repeats it, whatever it calls it.
//
// Told of success means a 2xx to a request whose method is not a safe one and for
// which [NoEffect] was not called. A Client of the server was told when it read the
// reply to its end, or closed a reply that was sent whole. Other clients the server
// cannot look into; they count as told when the whole reply was handed to a
// connection that still stood.
//
// The failure names the actions and shows their attempts in order, and the
// connections that were refused. It holds no body and no query, and of a key only
// the beginning.
func Once(t TB, s *Server) {
	t.Helper()
	patience := 10 * time.Second
	if inBubble() {
		patience = 24 * time.Hour // which take no time
	}
	if !s.settle(patience) {
		t.Errorf("oncetest: the handler is still running after %v, so there is no saying what it will do:\n%s", patience, s.Timeline())
		return
	}
	s.mu.Lock()
	actions := s.actions()
	var wrong []*action
	var text strings.Builder
	for _, a := range actions {
		problem := a.problem()
		if problem == "" {
			continue
		}
		wrong = append(wrong, a)
		if len(wrong) <= 5 {
			fmt.Fprintf(&text, "oncetest: %s\n", problem)
		}
	}
	if n := len(wrong) - 5; n > 0 {
		fmt.Fprintf(&text, "oncetest: and %d more actions like these\n", n)
		wrong = wrong[:5]
	}
	if len(wrong) > 0 {
		if !slices.ContainsFunc(s.sends, func(x *send) bool { return x.effects > 0 }) {
			text.WriteString("The handler has noted no effect at all: does it call oncetest.Effect?\n")
		}
		s.timeline(&text, actions, wrong)
	}
	s.mu.Unlock()
	if len(wrong) > 0 {
		t.Errorf("%s", strings.TrimRight(text.String(), "\n"))
	}
}

// An action is what is to take effect once.
type action struct {
	letter string
	sends  []*send
}

// actions sorts the sends into actions, in the order of their beginning. The lock
// is held.
func (s *Server) actions() []*action {
	var all []*action
	byName := map[string]*action{}
	for _, x := range s.sends {
		if x.refused {
			continue
		}
		name := "=" + x.content()
		if x.keyed {
			name = "key " + x.key
		}
		a := byName[name]
		if a == nil {
			a = new(action)
			all = append(all, a)
			byName[name] = a
		}
		a.sends = append(a.sends, x)
	}
	latest := map[string]*action{} // by content, among those that are kept
	kept := all[:0]
	for _, a := range all {
		content := a.sends[0].content()
		if before := latest[content]; before != nil && before.leads(a) {
			before.sends = append(before.sends, a.sends...)
			continue
		}
		latest[content] = a
		a.letter = letter(len(kept))
		kept = append(kept, a)
	}
	return kept
}

// leads reports whether b repeats a under another key.
func (a *action) leads(b *action) bool {
	for _, x := range a.sends {
		if x.end() == 0 || x.end() > b.sends[0].began || x.settled() {
			return false
		}
	}
	return true
}

// problem says what is wrong with a, and nothing if nothing is.
func (a *action) problem() string {
	effects, asks, told := 0, false, (*send)(nil)
	keys, contents := map[string]bool{}, map[string]bool{}
	for _, x := range a.sends {
		effects += x.effects
		asks = asks || x.asks
		keys[x.key] = true
		contents[x.content()] = true
		if told == nil && x.told() && x.status/100 == 2 && !safe(x.method) {
			told = x
		}
	}
	switch {
	case effects > 1 && len(contents) > 1:
		return fmt.Sprintf("%s took effect %d times, but must at most once; one key was used for different requests (action %s)", a.sends[0].what(), effects, a.letter)
	case effects > 1 && len(keys) > 1:
		return fmt.Sprintf("%s took effect %d times, but must at most once; its repeats brought new keys (action %s)", a.sends[0].what(), effects, a.letter)
	case effects > 1:
		return fmt.Sprintf("%s took effect %d times, but must at most once (action %s)", a.sends[0].what(), effects, a.letter)
	case effects == 0 && told != nil && !asks:
		return fmt.Sprintf("%s was told %d, but nothing took effect (action %s)", told.what(), told.status, a.letter)
	}
	return ""
}

// safe reports whether method is safe (RFC 9110, section 9.2.1, and for QUERY
// draft-ietf-httpbis-safe-method-w-body).
func safe(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "QUERY":
		return true
	}
	return false
}

// content is what makes two requests without keys the same.
func (x *send) content() string {
	return fmt.Sprintf("%s %s %x", x.method, x.url, x.sum.Sum(nil))
}

// end is when x was over for its client, as far as is known; 0: it is not.
func (x *send) end() int {
	if x.observed != 0 {
		return x.observed
	}
	return x.over
}

// told reports whether the client knows x.status, as far as is known.
func (x *send) told() bool {
	if x.observed == 0 || x.closed {
		return x.sent
	}
	return x.read
}

// settled reports whether the client knows how its request ended.
func (x *send) settled() bool {
	switch x.status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return x.told() && x.status < 500
}

func letter(i int) string {
	s := string(rune('A' + i%26))
	if i >= 26 {
		s = letter(i/26-1) + s
	}
	return s
}
