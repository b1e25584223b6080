// Package oncehttp makes an HTTP call that changes something take effect once.
//
// A reply that is lost leaves a client with two bad choices: to send a request
// again that may have done its work, or not to send one that may not. An
// idempotency key resolves it, if every attempt repeats the same key and the
// server answers a known key with its first response. This package is both
// ends of that.
//
// # The client
//
// A [Transport] goes around the RoundTripper of any http.Client:
//
//	client := &http.Client{Transport: &oncehttp.Transport{}}
//
// It gives every request that is not safe a key, sends a request again only
// when that is safe, waits with full jitter or as long as the server asks,
// stops at once when a wait would pass the context's deadline, and refuses
// hosts that keep failing ([Breaker]) or have used up their retries ([Budget]).
// [Attempts] and [Error] tell what happened, and above all what is known:
// [Certainty].
//
// A key of its own protects one request. If something above the Transport may
// repeat the request, an SDK, a job queue, an agent's model, name what is to be
// done once with [WithAction], and every repeat carries the same key.
//
// # The server
//
// A [Middleware] goes around any http.Handler:
//
//	mux.Handle("POST /refunds", (&oncehttp.Middleware{Store: &oncehttp.MemoryStore{}}).Handler(h))
//
// It runs the handler once for a key, records its response in a [Store], and
// answers every repeat with that. A handler's own requests through a Transport
// get keys derived from the request it serves. [Release] and [Unknown] let a
// handler say what its status cannot. [Once] is the same for any function.
//
// # What is not promised
//
// Exactly once for effects outside the store's own transaction; keys in a
// [MemoryStore] across restarts; one key across regions. When nobody can know
// whether an effect happened, the answer says so, and nothing is run again on
// a guess.
package oncehttp
