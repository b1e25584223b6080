package oncetest

import (
	"net/http"
)

// Effect notes that r has taken effect. A handler calls it where it does what must
// not be done twice: once for each time that it does it, and not when it answers
// from memory. R is the handler's request, or one whose context comes from that;
// the handler may have returned.
//
// Effect fails the test and panics when r did not come from a [Server].
func Effect(r *http.Request) {
	x := sendOf("Effect", r)
	x.note(func() { x.effects++ })
}

// NoEffect notes that r is a question: that it has no effect is right, although
// its method is not a safe one. [Once] then does not miss one. A POST that searches,
// or fetches a token, is such a request.
func NoEffect(r *http.Request) {
	x := sendOf("NoEffect", r)
	x.note(func() { x.asks = true })
}

// misuse is what a handler panics with that uses this package wrongly.
type misuse string

func (m misuse) Error() string { return "oncetest: " + string(m) }

func sendOf(caller string, r *http.Request) *send {
	if x, ok := r.Context().Value(sendKey).(*send); ok {
		return x
	}
	panic(misuse(caller + ": the request does not come from an oncetest.Server; pass the handler's own, or one with its context"))
}
