// Package operate is what an operator sees of a running proxy: counts, breakers, the
// store, metrics and health.
package operate

import "github.com/oncehttp/oncehttp"

// Counts are how requests of a route ended since the proxy started.
type Counts struct {
	Passed   uint64 // unprotected: of a safe method, or without a key
	Executed uint64 // sent on, and the answer recorded
	Released uint64 // sent on, or meant to be, and nothing happened: the key is free
	Attached uint64 // waited for the same request, which was running
	Replayed uint64 // answered from the record
	Refused  uint64 // not sent on, and no answer to give
	Unknown  uint64 // sent on with no word of the outcome, or a repeat of one that was

	// Prevented are the requests that would have had an effect once more, had they been
	// sent on: repeats that were attached, replayed, or refused because the first one
	// runs, has an unknown outcome, or an answer that is no longer kept.
	Prevented uint64
}

// Prevented reports whether the request would have had an effect once more.
func Prevented(o oncehttp.Outcome) bool {
	switch {
	case o.Kind == oncehttp.OutcomeAttached, o.Kind == oncehttp.OutcomeReplayed:
		return true
	case o.Refusal == nil:
		return false
	}
	switch o.Refusal.Type {
	case "urn:oncehttp:in-progress", "urn:oncehttp:outcome-unknown", "urn:oncehttp:response-gone":
		return true
	}
	return false
}
