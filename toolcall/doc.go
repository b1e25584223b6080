// Package toolcall runs the tool calls of a model so that each intended effect
// happens once, and answers every call with something a model can act on.
//
// A model repeats itself: after a timeout, after a crash of its runtime, or
// because it forgot. A [Runner] gives every call a key that the model never sees,
// made of who acts, the turn, the tool and the arguments by value, so that the
// same call again in the turn gets the first result and not a second effect.
//
//	r := &toolcall.Runner{Scope: "acme/support-agent", Store: store}
//	err := r.Register(toolcall.Tool{
//		Name:    "refund_order",
//		Effect:  toolcall.Keyed,
//		Timeout: 10 * time.Second,
//		Call:    toolcall.Func(refund),
//	})
//	…
//	turn := r.Turn("turn_01", toolcall.Budget{Calls: 20, Wall: time.Minute})
//	results := turn.Do(ctx, calls...) // one for every call, in order, always
//
// What a call may do when it fails follows from its [Effect]. A call whose outcome
// nobody knows latches its tool: the same tool with other arguments is refused for
// the rest of the turn, because a model that tries a smaller amount "to test the
// service" refunds a second time.
//
// The package imports no model SDK. A [Call] is what an adapter makes of a tool call,
// from the bytes the model sent: a decoded number above 2⁵³ is another number.
package toolcall
