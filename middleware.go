package oncehttp

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
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

	// Logger is told what an operator should know. Nil means slog.Default().
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
	x := &exchange{p: p, w: w, req: r, callerKey: key}
	if p.m.OnOutcome != nil || writeTimeout(r) > 0 {
		x.began = time.Now()
	}
	x.serve(&h, err)
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
	r         run
	h         *handling // nil if the handler was not called
	out       Outcome
	nested    bool
	room      [64]byte // for a short body
}

// A handling is what a handler is called with.
type handling struct {
	c    capture
	ctx  recordContext
	body bodyReader
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
	}
	if x.r.died { // what the handler was answered with is the server's to say
		x.out.Kind, x.out.Status = x.r.fate.Kind, http.StatusInternalServerError
		x.out.Recorded, x.out.Holder = x.r.fate.Recorded, x.r.fate.Holder
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
	x.r.op.Fingerprint = fingerprint(r.Host, r.URL.RawQuery, joined(h.contentType), joined(h.contentEncoding), joined(h.ifMatch), data)
	return nil
}

const (
	recordKeyPrefix = "or1_"
	recordDomain    = "oncehttp-record/v1\x00"
)

// RecordKey returns the key under which a [Middleware] records requests: what to
// look for in a store. scope is what Scope returned, or "". path is as it stands in
// the request's first line, in its escaped form and without the query.
func RecordKey(scope, method, path, key string) string {
	sum := sumParts(recordDomain, scope, method, plainEscapes(path), key)
	return hexKey(recordKeyPrefix, &sum)
}

// wirePath returns the path that the client asked for. r.URL.Path may be without
// a prefix by now, and the pattern that matched it changes with a refactoring.
func wirePath(r *http.Request) string {
	target := r.RequestURI
	if target == "" { // not from a server
		return r.URL.EscapedPath()
	}
	if target[0] != '/' { // absolute form, RFC 9112, section 3.2.2
		if _, rest, ok := strings.Cut(target, "://"); ok {
			target = "/"
			if i := strings.IndexAny(rest, "/?"); i >= 0 && rest[i] == '/' {
				target = rest[i:]
			}
		}
	}
	path, _, _ := strings.Cut(target, "?")
	return path
}

// plainEscapes writes a path's escapes in their normal form: RFC 3986, sections
// 6.2.2.1 and 6.2.2.2. Nothing else: %2F is not /.
func plainEscapes(path string) string {
	if !strings.Contains(path, "%") {
		return path
	}
	b := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		if path[i] != '%' || i+2 >= len(path) || !isHex(path[i+1]) || !isHex(path[i+2]) {
			b = append(b, path[i])
			continue
		}
		c := unhex(path[i+1])<<4 | unhex(path[i+2])
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_', c == '~':
			b = append(b, c)
		default:
			const digits = "0123456789ABCDEF"
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
		i += 2
	}
	return string(b)
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	}
	return c - 'a' + 10
}

// bind binds a record to its caller: see requestHeader.binding.
func bind(key, name string, values []string) (sum [32]byte) {
	var stack [512]byte
	b := appendText(stack[:0], name)
	for _, v := range values {
		b = appendText(b, v)
	}
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write(b)
	mac.Sum(sum[:0])
	return sum
}

// readBody reads the request's body. It is read whole before anything is
// claimed: a body that does not arrive leaves no trace.
func (x *exchange) readBody() *Refusal {
	r, limit := x.req, x.p.m.maxBody()
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if r.ContentLength > limit {
		return refuseBodyTooLarge(limit)
	}
	// A declared length is not believed beyond what is cheap: memory follows
	// what has arrived.
	size := int64(512)
	if r.ContentLength >= 0 {
		size = min(r.ContentLength+1, 32<<10) // one more, to see the end
	}
	b := x.room[:0]
	if size > int64(len(x.room)) {
		b = make([]byte, 0, size)
	}
	for {
		if len(b) == cap(b) {
			b = slices.Grow(b, 1)
		}
		n, err := r.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case int64(len(b)) > limit:
			return refuseBodyTooLarge(limit)
		case err == io.EOF:
			x.data = b
			return x.consumed()
		case err != nil:
			return x.bodyError(err)
		}
	}
}

// consumed looks for what an outer layer has read of the body. A form that it
// parsed is what the handler sees too. Anything else is gone: two different
// requests would look the same. Without a Content-Length there is no telling.
func (x *exchange) consumed() *Refusal {
	r := x.req
	missing := int64(len(x.data)) < r.ContentLength && r.Header.Get("Content-Encoding") == ""
	files := r.MultipartForm != nil && len(r.MultipartForm.File) > 0
	switch {
	case len(x.data) == 0 && !files && len(r.PostForm) > 0:
		x.form = r.PostForm.Encode()
	case len(x.data) == 0 && files, missing:
		x.p.m.once.log().ErrorContext(r.Context(), "oncehttp: a layer outside of the Middleware has read the request's body; the request was not run",
			"method", x.r.method, "path", x.r.path)
		return refuseConsumed()
	}
	return nil
}

func (x *exchange) bodyError(err error) *Refusal {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge): // an outer layer's limit
		return refuseBodyTooLarge(tooLarge.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuseBody(http.StatusRequestTimeout, err)
	}
	return refuseBody(http.StatusBadRequest, err)
}

// A bodyReader is the body that the handler gets.
type bodyReader struct {
	b      []byte
	closed bool
}

func (b *bodyReader) Read(p []byte) (int, error) {
	switch {
	case b.closed:
		return 0, http.ErrBodyReadAfterClose
	case len(b.b) == 0 && len(p) > 0:
		return 0, io.EOF
	}
	n := copy(p, b.b)
	b.b = b.b[n:]
	return n, nil
}

func (b *bodyReader) WriteTo(w io.Writer) (int64, error) {
	switch {
	case b.closed:
		return 0, http.ErrBodyReadAfterClose
	case len(b.b) == 0:
		return 0, nil
	}
	n, err := w.Write(b.b)
	b.b = b.b[n:]
	return int64(n), err
}

func (b *bodyReader) Close() error {
	b.closed = true
	return nil
}

// pass hands the request on as it is, but for its body, which has been read.
func (x *exchange) pass() {
	x.nested = true
	r := x.req
	if x.data != nil {
		r = r.WithContext(r.Context())
		r.Body = &bodyReader{b: x.data}
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

// run is the work: the handler.
func (x *exchange) run(ctx context.Context) (head, body []byte, v verdict) {
	x.prepareHandling(ctx)
	h := x.h
	r := x.req.WithContext(&h.ctx)
	if x.data != nil {
		h.body = bodyReader{b: x.data}
		r.Body = &h.body
	}
	defer x.sweep(r)
	x.p.next.ServeHTTP(&h.c, r)
	h.c.end()
	if v = x.verdict(); v == verdictRecord {
		head, body = h.c.record()
	}
	return head, body, v
}

// prepareHandling makes what the handler is called with.
func (x *exchange) prepareHandling(ctx context.Context) {
	if x.h != nil { // it was called and rolled back, so its answer never was
		x.h.c.undo()
	}
	m := x.p.m
	x.h = new(handling)
	c := &x.h.c
	c.w, c.r = x.w, &x.r
	c.limit, c.test, c.wait = m.maxResponse(), m.Record, max(m.once.wait(), minReading)
	_, c.hold = m.Store.(Transactor)
	if d := writeTimeout(x.req); d > 0 {
		c.writeBy = x.began.Add(d)
	}
	x.h.ctx.init(ctx, x.callerKey, &x.r.op)
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
	if x.r.saidUnknown.Load() {
		return nil, nil, verdictUnknown
	}
	head, body = x.h.c.record()
	return head, body, verdictRecord
}

// verdict says what becomes of the handler's answer.
func (x *exchange) verdict() verdict {
	c := &x.h.c
	frees := !c.isAnswer() || x.r.saidRelease.Load()
	fails := c.status >= 500
	switch {
	case x.r.saidUnknown.Load() && (frees || fails):
		return verdictUnknown
	case x.r.transaction && (frees || fails || x.r.ended()):
		return verdictFree // whatever it did is rolled back
	case frees && !c.announced && !x.r.ended():
		return verdictFree
	}
	return verdictRecord
}
