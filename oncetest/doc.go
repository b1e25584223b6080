// Package oncetest tests that what a client asks for takes effect once, whatever
// the network does in between.
//
// A [Server] is a test server behind a network that misbehaves on script. The
// handler says where the effect is, with [Effect]; [Once] fails the test if that
// came more than once for one action, or if the client was told of success and
// it did not come at all. This test finds out whether an adapter repeats a refund
// whose reply was lost:
//
//	func TestARefundIsMadeOnce(t *testing.T) {
//		srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
//			oncetest.Effect(r) // here the money moves
//			w.WriteHeader(http.StatusCreated)
//		}), oncetest.LoseReply())
//		adapter := Refunds{Client: srv.Client(), URL: srv.URL} // the code under test
//		adapter.Refund("A-17", 100)
//		oncetest.Once(t, srv)
//	}
//
// If it does, the test fails and tells the story:
//
//	oncetest: POST /refunds took effect 2 times, but must at most once (action A)
//	  #1  +0s   A  POST /refunds, no key  ran, took effect; its 201 lost [LoseReply]  client: EOF
//	  #2  +2ms  A  POST /refunds, no key  ran, took effect; 201 sent                  client read it all
//
// An adapter may repeat a request if it sends an idempotency key and the server
// honours keys. Let the test server do so too:
//
//	func TestARefundIsRepeatedUnderItsKey(t *testing.T) {
//		pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
//			oncetest.Effect(r)
//			w.WriteHeader(http.StatusCreated)
//		})
//		once := &oncehttp.Middleware{Store: new(oncehttp.MemoryStore)}
//		srv := oncetest.NewServer(t, once.Handler(pay), oncetest.LoseReply())
//		client := srv.Client()
//		client.Transport = &oncehttp.Transport{Base: client.Transport}
//		adapter := Refunds{Client: client, URL: srv.URL}
//		if err := adapter.Refund("A-17", 100); err != nil {
//			t.Errorf("a lost reply: %v\n%s", err, srv.Timeline())
//		}
//		oncetest.Once(t, srv)
//	}
//
// # Faults
//
// Each fault is a [Fault], which happens to the first send unless On, Always or
// Where says otherwise. Several go together:
//
//	oncetest.NewServer(t, pay, oncetest.LoseReply(), oncetest.Status(503, "Retry-After: 2").On(2))
//
//	                               the handler runs     the client gets
//	RefuseConn()                   no                   a refused connection
//	ResetBefore()                  no                   a reset connection
//	GoAwayBefore()                 no                   a GOAWAY: not processed
//	Status(code, lines...)         no                   another answer
//	StatusAfter(code, lines...)    yes                  another answer
//	LoseReply()                    yes                  an end without an answer
//	ResetAfter()                   yes                  a reset connection
//	GoAwayAfter()                  yes                  a GOAWAY: perhaps processed
//	CutBody(n)                     yes                  the head and n bytes
//	DelayHeaders(d)                yes                  the answer, late
//	DripBody(n, d)                 yes                  the answer, n bytes at a time
//	DeliverTwice(d)                yes, and once more   the answer
//
// [Server.Requests], [Server.Sends] and [Server.Timeline] tell what really happened.
//
// A send that meets a fault has its body read before the handler runs, and what
// the handler writes waits in memory for the network; other sends pass through
// untouched.
//
// # Time and protocols
//
// Inside a bubble of testing/synctest the server is reached through memory, so that
// waits take no time. Make the server, and everything else, inside the bubble:
//
//	synctest.Test(t, func(t *testing.T) {
//		srv := oncetest.NewServer(t, pay, oncetest.DelayHeaders(time.Hour))
//		…
//	})
//
// Elsewhere it listens on 127.0.0.1, and any client may come, in any language. The
// options [Memory], [Loopback], [HTTP2] and [TLS] choose otherwise. An adapter that
// makes its own transport gives it [Server.DialContext].
package oncetest
