package oncehttp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Middleware runs a handler once for a key, and answers every repeat of the
// request with the response of that run. It is the server half of
// draft-ietf-httpapi-idempotency-key-header. Only Store must be set:
//
//	mux.Handle("POST /refunds", (&oncehttp.Middleware{Store: store}).Handler(h))
//
// Put it inside of what authenticates, because a repeat is answered without running
// the handler, and inside of what compresses. One value may wrap any number of
// handlers. Its fields must not be changed after the first call of Handler; it
// is safe for concurrent use and must not be copied.
//
// Requests of a safe method (GET, HEAD, OPTIONS, TRACE, QUERY), and those without
// a key unless Required says otherwise, pass through untouched. What becomes of
// others:
//
//   - The first request with a key runs the handler. Its context keeps the values of
//     the request's, but does not end when the client leaves, and errors of
//     writing to a client that has left are hidden: the handler finishes, its
//     response is recorded, and the client's next try gets it. It has Timeout.
//   - The response is recorded first and sent then, marked with
//     "Idempotency-Status: executed". From the first Flush, or once it exceeds
//     MaxResponse, it is sent as it is written and recorded when the handler has
//     returned; only its end waits for that.
//   - A repeat gets the recorded response, marked with "Idempotent-Replayed: true".
//     One that comes while the handler runs waits for it, up to Wait.
//   - Whatever cannot be answered is refused; see [Refusal].
//
// Recorded are status, body, trailers, and what the handler made of the header,
// except Set-Cookie, Date, Content-Length (recomputed), hop-by-hop fields and
// credentials. A handler's panic is recorded as a 500 and goes on. A handler
// cannot hijack the connection.
//
// The record's key is made of Scope, method, path and key: see [RecordKey]. So one
// key is two on two routes; and two tenants, told apart by Scope, may use the
// same one. The path is the one on the wire, whatever an outer layer strips off
// it. Host, query, media type, If-Match and body must be the same in every
// repeat; JSON and multipart bodies are compared by what they mean.
type Middleware struct {
	// Store remembers the keys. It is required. If it is a [Transactor], handlers
	// run inside its transactions; then responses are never streamed, and 5xx
	// answers are not recorded: what they did is rolled back.
	Store Store

	// KeyHeader names the field with the key. "" means Idempotency-Key.
	KeyHeader string

	// Lease, Keep, Wait and Timeout are those of [Once]: how long a silent
	// holder is believed to be alive, how long a response is kept, how long a
	// repeat waits, and a response for its record, and how long a handler may
	// run, whether the client is there or not. Zero means 30 s, 24 h, 5 s and
	// 5 min. A client that does not read what is streamed to it for Wait (at least
	// 1 s) counts as gone.
	Lease, Keep, Wait, Timeout time.Duration

	// Orphan tells what becomes of a request whose handler vanished, as when
	// its process was killed. The zero value is OrphanRefuse; OrphanRerun is
	// for handlers that are safe to run again.
	Orphan Orphan

	// Scope says who is asking, from an identity that has been verified: the
	// account, the tenant. It becomes part of the record's key. An error is
	// answered with a 500.
	//
	// If it is nil, or returns "", the record is bound to the credentials of its
	// first request instead: the first that is there of Authorization, X-Api-Key
	// and the like, a verified client certificate, Cookie. A request with the
	// same key and others is refused, even if they are newer ones of the same
	// caller. Without any credentials, who knows the key may have the response.
	Scope func(*http.Request) (string, error)

	// Required says whether a request without a key is refused. Nil means no: it
	// passes through, unprotected.
	Required func(*http.Request) bool

	// Record says whether a response is recorded; if not, a repeat runs the
	// handler again. Nil means all but those by which a server says that it did
	// not act: 401, 407, 421, 425, 429, and 503 with Retry-After. A 500, a 504
	// or a bare 503 is recorded, because nobody knows what the handler did
	// before it failed; a handler that does know calls [Release].
	Record func(status int, h http.Header) bool

	// MaxBody and MaxResponse are the largest request body that is accepted
	// with a key, and the largest response body that is recorded; of a larger one
	// repeats learn the outcome only. Zero means 1 MiB each.
	MaxBody, MaxResponse int64

	// DocsURL is linked from refusals (rel="describedby"). "" means none.
	DocsURL string

	// Refuse writes refusals. Nil means [Refusal.ServeHTTP]. Link, Cache-Control
	// and Retry-After are set already.
	Refuse func(http.ResponseWriter, *http.Request, *Refusal)

	// OnOutcome is called exactly once for every request with a key, or that
	// should have had one, after it was answered and also if its handler
	// panicked. It may be called by several goroutines at once. Nil: not called.
	OnOutcome func(*http.Request, Outcome)

	// Logger is told what an operator should know. Nil means slog.Default(). A panic
	// of its handler is told on standard error and goes no further.
	Logger *slog.Logger

	mu   sync.Mutex // for making once
	once *Once
}

// An Outcome is how a request with a key was answered.
type Outcome struct {
	// Kind tells how it ended. An answer of OutcomeUnknown is either the
	// handler's own, which said [Unknown], or a refusal.
	Kind OutcomeKind

	// Status is the HTTP status of the answer, even if its client has gone.
	Status int

	// Key is the beginning of the record's key ([RecordKey]): enough to find a
	// record by, useless as a key. It is "" for a request whose own key was
	// never read.
	Key string

	// Duration is how long the answer took.
	Duration time.Duration

	// Recorded says that repeats are known to get this answer.
	Recorded bool

	// Holder counts the runs that the key has had, those that vanished included.
	// It is 0 for a request that was refused.
	Holder int

	// Refusal is why there was no other answer, or nil.
	Refusal *Refusal
}

const (
	defaultMaxBody = 1 << 20

	// minReading is the least time that a client gets to read what is streamed
	// to it: who has no use for waiting repeats still has clients.
	minReading = time.Second
)

// Handler returns a handler that runs next once for a key. It panics if a field
// makes no sense, so that a mistake shows when the program starts and not with
// its first customer.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("oncehttp: Middleware.Handler: next is nil")
	}
	m.make()
	field := http.CanonicalHeaderKey(m.KeyHeader)
	if field == "" {
		field = Header
	}
	return &protected{m: m, field: field, next: next}
}

// make checks the fields and makes the Once that all handlers share.
func (m *Middleware) make() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.once != nil {
		return
	}
	once := &Once{
		Store: m.Store, Lease: m.Lease, Keep: m.Keep, Wait: m.Wait, Timeout: m.Timeout,
		Orphan: m.Orphan, Logger: m.Logger,
	}
	if err := once.check(); err != nil {
		panic(strings.Replace(err.Error(), "Once.", "Middleware.", 1))
	}
	switch {
	case m.MaxBody < 0:
		panic("oncehttp: Middleware.MaxBody is negative")
	case m.MaxResponse < 0:
		panic("oncehttp: Middleware.MaxResponse is negative")
	case m.KeyHeader != "" && !isToken(m.KeyHeader):
		panic("oncehttp: Middleware.KeyHeader is not the name of a header field")
	}
	if _, err := url.Parse(m.DocsURL); err != nil || strings.ContainsAny(m.DocsURL, "<>\" ") {
		panic("oncehttp: Middleware.DocsURL is not a URL")
	}
	m.once = once
}

// Drain waits until no handler runs and nothing is left to tell the store, or
// until ctx ends. Call it at shutdown, after http.Server.Shutdown: what a process
// still owes the store when it ends becomes an orphan.
func (m *Middleware) Drain(ctx context.Context) error {
	m.mu.Lock()
	once := m.once
	m.mu.Unlock()
	if once == nil {
		return nil
	}
	return once.Drain(ctx)
}

func (m *Middleware) maxBody() int64 {
	if m.MaxBody == 0 {
		return defaultMaxBody
	}
	return m.MaxBody
}

func (m *Middleware) maxResponse() int64 {
	if m.MaxResponse == 0 {
		return defaultMaxBody
	}
	return m.MaxResponse
}

// A protected is a handler behind a Middleware.
type protected struct {
	m     *Middleware
	field string
	next  http.Handler
}

func (p *protected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if isSafe(r.Method) {
		p.next.ServeHTTP(w, r)
		return
	}
	var h requestHeader
	h.read(r.Header, p.field)
	key, err := onlyKey(p.field, h.keys, h.key)
	if errors.Is(err, ErrNoKey) && (p.m.Required == nil || !p.m.Required(r)) {
		p.next.ServeHTTP(w, r)
		return
	}
	x := exchanges.Get().(*exchange)
	x.p, x.w, x.req, x.callerKey = p, w, r, key
	if p.m.OnOutcome != nil || writeTimeout(r) > 0 {
		x.began = time.Now()
	}
	x.serve(&h, err)
	// Not deferred: after a panic, who knows who still has it.
	x.giveBack()
}

// exchanges has those that are over. What a handler or a hook gets is never part of one.
var exchanges = sync.Pool{New: func() any { return &exchange{f: new(fingerprinter)} }}

// giveBack makes another request's exchange of this one.
func (x *exchange) giveBack() {
	late := x.out.Kind == OutcomeRan && !x.out.Recorded // what is recorded later lies in it
	if x.cut || late || x.held != nil && x.held.transaction {
		return // a body, or a store, that does not end when it says so may still have it
	}
	f := x.f
	if f.oversized() {
		f = new(fingerprinter)
	}
	*x = exchange{}
	x.f = f
	exchanges.Put(x)
}

// writeTimeout is what the server's WriteTimeout allows a request from its beginning
// to the end of its answer; zero: as long as it takes.
func writeTimeout(r *http.Request) time.Duration {
	s, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	if s == nil {
		return 0
	}
	return s.WriteTimeout
}

// An exchange is one request with a key, and its answer.
type exchange struct {
	p         *protected
	w         http.ResponseWriter
	req       *http.Request
	began     time.Time // if somebody wants to know
	callerKey string
	data      []byte // the request's body
	form      string // or what an outer layer made of it
	cut       bool   // reading the body failed
	r         claiming
	held      *run      // nil if the claim was not acquired
	ready     *handling // for the next call of the handler
	h         *handling // nil if the handler was not called
	out       Outcome
	nested    bool
	f         *fingerprinter  // kept for the next request
	room      [shortBody]byte // for a short body
	head      [96]byte        // for the head of a response
}

// shortBody is the longest body for which there is room in an exchange, and in a
// handling.
const shortBody = 64

// A handling is what a handler is called with, but for its request, which a store that
// keeps the body would hold too. It is one piece of memory, which is never used again: a
// handler may keep its request for as long as it likes.
type handling struct {
	r    run // of the claim under which the handler was called first
	c    capture
	ctx  recordContext
	body bodyReader
	room [shortBody]byte
}

func (x *exchange) serve(h *requestHeader, keyErr error) {
	x.r.method, x.r.path = x.req.Method, wirePath(x.req)
	defer x.report()
	if errors.Is(keyErr, ErrNoKey) {
		x.refuse(refuseMissingKey(x.p.field))
		return
	}
	if keyErr != nil {
		x.refuse(refuseMalformedKey(keyErr))
		return
	}
	if h.isUpgrade(x.req) {
		x.refuse(refuseUpgrade())
		return
	}
	if refusal := x.prepare(h); refusal != nil {
		x.refuse(refusal)
		return
	}
	if outer, ok := x.req.Context().Value(runKey{}).(*run); ok && outer.op.Key == x.r.op.Key {
		// Another Middleware outside of this one protects the request already.
		// To claim its key again would be to wait for oneself.
		x.pass()
		return
	}
	x.protect()
}

// report tells what became of the request.
func (x *exchange) report() {
	if x.p.m.OnOutcome == nil || x.nested {
		return
	}
	if x.out.Kind == 0 {
		// One of our own hooks panicked before anything was claimed.
		x.out.Kind, x.out.Status = OutcomeRefused, http.StatusInternalServerError
		if x.h != nil { // or the store ended this goroutine
			x.out.Kind = OutcomeRan
		}
	}
	if x.held != nil && x.held.died { // what the handler was answered with is the server's to say
		x.out.Kind, x.out.Status = x.held.fate.Kind, http.StatusInternalServerError
		x.out.Recorded, x.out.Holder = x.held.fate.Recorded, x.held.fate.Holder
	}
	x.out.Duration = time.Since(x.began)
	x.p.m.OnOutcome(x.req, x.out)
}

// refuse answers without the handler.
func (x *exchange) refuse(p *Refusal) {
	m := x.p.m
	if x.out.Kind == 0 {
		x.out.Kind = OutcomeRefused
	}
	x.out.Status, x.out.Refusal = p.Status, p
	h := x.w.Header()
	p.setHeader(h)
	if m.DocsURL != "" {
		h.Add("Link", "<"+m.DocsURL+`>; rel="describedby"`)
	}
	if m.Refuse != nil {
		m.Refuse(x.w, x.req, p)
		return
	}
	p.ServeHTTP(x.w, x.req)
}

// prepare reads what the record is made of: the whole request, before anything
// is claimed.
func (x *exchange) prepare(h *requestHeader) *Refusal {
	m, r := x.p.m, x.req
	scope := ""
	if m.Scope != nil {
		var err error
		if scope, err = m.Scope(r); err != nil {
			m.once.log().ErrorContext(r.Context(), "oncehttp: Middleware.Scope failed; the request was not run",
				"method", x.r.method, "path", x.r.path, "err", err)
			return refuseScope(err)
		}
	}
	x.r.op.Key = RecordKey(scope, x.r.method, x.r.path, x.callerKey)
	mem, _ := m.Store.(*MemoryStore)
	var ahead uint64
	if mem != nil {
		ahead = mem.fetchSlot(x.r.op.Key)
	}
	x.out.Key = logKey(x.r.op.Key)
	if scope == "" {
		x.r.op.Binding = h.binding(r, x.callerKey)
	}
	if refusal := x.readBody(); refusal != nil {
		return refusal
	}
	data := x.data
	if x.form != "" {
		data = []byte(x.form)
	}
	x.f.take(r.Host, r.URL.RawQuery, joined(h.contentType), joined(h.contentEncoding), joined(h.ifMatch), data)
	if mem != nil {
		mem.fetchRecord(ahead)
	}
	x.r.op.Fingerprint = x.f.digest()
	return nil
}

// pass hands the request on as it is, but for its body, which has been read.
func (x *exchange) pass() {
	x.nested = true
	r := x.req
	if x.data != nil {
		r = r.WithContext(r.Context())
		r.Body = &bodyReader{b: slices.Clone(x.data)}
	}
	x.p.next.ServeHTTP(x.w, r)
}

// protect has the handler run, unless it has run already, and answers.
func (x *exchange) protect() {
	m := x.p.m
	a, err := m.once.do(x.req.Context(), &x.r, x)
	x.out.Kind, x.out.Recorded, x.out.Holder = a.Kind, a.Recorded, a.Holder
	if x.h != nil && x.answerOwn(&a, err) {
		return
	}
	if err != nil {
		x.refuse(refuse(err))
		return
	}
	x.replay(&a)
}

// answerOwn answers with what the handler wrote, or reports false if that is not the
// answer.
func (x *exchange) answerOwn(a *Answer, err error) bool {
	c := &x.h.c
	own := err == nil && (a.Kind == OutcomeRan || a.Kind == OutcomeReleased || a.Kind == OutcomeUnknown)
	switch {
	case c.streaming && (!own || c.announced && !a.Recorded && x.p.m.Orphan == OrphanRerun):
		// What the client has of this answer is not, or may not be, what repeats
		// will get.
		x.out.Kind, x.out.Status = OutcomeUnknown, c.status
		panic(http.ErrAbortHandler)
	case c.streaming:
		x.out.Status = c.status
	case own:
		x.out.Status = c.status
		c.send(a.Recorded)
	default:
		c.undo()
		return false
	}
	return true
}

func (x *exchange) replay(a *Answer) {
	status, outcome, ok := replay(x.w, a)
	x.out.Status = status
	if !ok {
		x.out.Kind, x.out.Recorded = OutcomeRefused, false
		x.refuse(refuseGone(outcome))
	}
}

// begin implements work.
func (x *exchange) begin() *run {
	x.ready = new(handling)
	x.held = &x.ready.r
	x.held.claiming = x.r
	return x.held
}

// run is the work: the handler.
func (x *exchange) run(ctx context.Context) (head, body []byte, v verdict) {
	x.prepareHandling(ctx)
	h := x.h
	r := x.req.WithContext(&h.ctx)
	if x.data != nil {
		h.body = bodyReader{b: x.data}
		if len(x.data) <= len(h.room) { // it lies in the exchange
			h.body.b = h.room[:copy(h.room[:], x.data)]
		}
		r.Body = &h.body
	}
	defer x.sweep(r)
	x.p.next.ServeHTTP(&h.c, r)
	h.c.end()
	if v = x.verdict(); v == verdictRecord {
		head, body = h.c.record(x.headRoom())
	}
	return head, body, v
}

// headRoom is room for the response's head. A store may keep what it is given, unless it
// is one that is known to copy it.
func (x *exchange) headRoom() []byte {
	if x.p.m.once.inMemory() {
		return x.head[:0]
	}
	return make([]byte, 0, len(x.head))
}

// prepareHandling makes what the handler is called with.
func (x *exchange) prepareHandling(ctx context.Context) {
	if x.h != nil { // it was called and rolled back, so its answer never was
		x.h.c.undo()
		x.ready = new(handling)
	}
	m := x.p.m
	x.h = x.ready
	c := &x.h.c
	c.m, c.w, c.r = m, x.w, x.held
	_, c.hold = m.Store.(Transactor)
	if d := writeTimeout(x.req); d > 0 {
		c.writeBy = x.began.Add(d)
	}
	x.h.ctx.init(ctx, x.callerKey, &x.held.op)
}

// sweep does for the handler's request what the server does for its own.
func (x *exchange) sweep(r *http.Request) {
	if r.MultipartForm != nil && x.req.MultipartForm == nil {
		r.MultipartForm.RemoveAll()
	}
	if x.req.Pattern == "" {
		x.req.Pattern = r.Pattern // access logs show it
	}
}

// died is what is recorded of a handler that panicked.
func (x *exchange) died() (head, body []byte, v verdict) {
	x.h.c.die()
	if x.held.saidUnknown.Load() {
		return nil, nil, verdictUnknown
	}
	head, body = x.h.c.record(x.headRoom())
	return head, body, verdictRecord
}

// verdict says what becomes of the handler's answer.
func (x *exchange) verdict() verdict {
	c := &x.h.c
	frees := !c.isAnswer() || x.held.saidRelease.Load()
	fails := c.status >= 500
	switch {
	case x.held.saidUnknown.Load() && (frees || fails):
		return verdictUnknown
	case x.held.transaction && (frees || fails || x.held.ended()):
		return verdictFree // whatever it did is rolled back
	case frees && !c.announced && !x.held.ended():
		return verdictFree
	}
	return verdictRecord
}
