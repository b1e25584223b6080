package oncehttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// remembered is how much of a body without GetBody is kept for a repeat.
const remembered = 1 << 20

// readAtOnce is how much of a body one Read asks for, here as in io.Copy.
const readAtOnce = 32 << 10

var (
	errBodyClosed = errors.New("oncehttp: read of a request body after its attempt ended")
	errBodyLength = errors.New("its length is not the Content-Length")
	errBodyDied   = errors.New("oncehttp: a read of the request body did not return")
	errNilBody    = errors.New("GetBody returned nil and no error")
)

// An upload is one attempt's request body. It notes when bytes move, because a
// long upload is not a hung host, and whose fault a failed read is.
type upload struct {
	src    io.ReadCloser
	length int64                 // what Content-Length promises; 0 or less: nothing
	count  int64                 // bytes read
	moved  atomic.Int64          // the moment of the latest read that gave bytes or the end; 0: none yet
	asking atomic.Bool           // a read of src is under way
	failed atomic.Pointer[error] // what the caller's own body returned, if not io.EOF
	closed atomic.Bool
	onEnd  atomic.Pointer[func()] // called once at Close
}

func (u *upload) Read(p []byte) (int, error) {
	if u.closed.Load() {
		return 0, errBodyClosed // HTTP/2 may still ask after it closed the body
	}
	u.asking.Store(true)
	n, err := u.src.Read(p)
	u.asking.Store(false)
	u.count += int64(n)
	if n > 0 || err == io.EOF {
		u.moved.Store(int64(thisMoment()))
	}
	switch {
	case u.closed.Load() || err == errBodyClosed:
	case err != nil && err != io.EOF:
		u.failed.CompareAndSwap(nil, &err)
	case u.length > 0 && (u.count > u.length || err == io.EOF && u.count < u.length):
		u.failed.CompareAndSwap(nil, &errBodyLength)
	}
	return n, err
}

func (u *upload) Close() error {
	if u.closed.Swap(true) {
		return nil
	}
	err := u.src.Close()
	if end := u.onEnd.Load(); end != nil {
		u.ended()
	}
	return err
}

// whenClosed calls f when the body is closed, or now if it has been.
func (u *upload) whenClosed(f func()) {
	u.onEnd.Store(&f)
	if u.closed.Load() {
		u.ended()
	}
}

func (u *upload) ended() {
	if end := u.onEnd.Swap(nil); end != nil {
		(*end)()
	}
}

// inMemory reports whether b is a reader over all of a body in memory, as
// http.NewRequest makes it, and small enough to be read at once. To net/http such
// a body is known. It sends it in one piece with the head, and any other, such as
// a wrapper of ours, apart from that, for fear of its blocking.
func inMemory(b io.ReadCloser, length int64) bool {
	if t := reflect.TypeOf(b); t != nopCloser && t != nopCloserWriterTo {
		return false
	}
	r, ok := reflect.ValueOf(b).Field(0).Interface().(interface{ Len() int })
	if !ok || length > readAtOnce || int64(r.Len()) != length {
		return false
	}
	switch r.(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		return true
	}
	return false
}

// What io.NopCloser makes, which is how http.NewRequest wraps a reader.
var (
	nopCloser         = reflect.TypeOf(io.NopCloser(nil))
	nopCloserWriterTo = reflect.TypeOf(io.NopCloser((*bytes.Reader)(nil)))
)

// A replacedBody is what Prepare has put in place of the attempt's own body. It may
// read from that one, which is closed with it.
type replacedBody struct {
	io.ReadCloser
	own io.Closer
}

func (b *replacedBody) Close() error {
	defer b.own.Close()
	return b.ReadCloser.Close()
}

// A resent body still counts as its attempt's upload.
type resent struct {
	io.ReadCloser
	u *upload
}

func (r *resent) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if n > 0 {
		r.u.moved.Store(int64(thisMoment()))
	}
	return n, err
}

// A tape lets several attempts read one body that cannot be rewound, one after
// the other. It remembers what was read, up to limit, and never reads ahead of
// what an attempt asks for: the caller may be writing the other end of a pipe
// in answer to what it gets.
//
// A Read of the caller's body may block for ever, and the attempt that asked for
// it may be given up meanwhile. So each Read runs in a goroutine of its own:
// an attempt stops waiting for it when its context ends, the next one waits in
// its place, and its bytes are lost to neither. src has one reader at a time.
type tape struct {
	src   io.ReadCloser
	limit int

	mu      sync.Mutex
	mem     []byte        // all bytes so far, unless lost
	last    []byte        // the bytes of the latest Read
	given   int64         // bytes read from src
	lost    bool          // more was read than is remembered
	err     error         // how src ended: io.EOF or a failure
	died    func()        // does what a Read of src did instead of returning
	reading chan struct{} // closed when the Read under way is over; nil: none is
	live    *tapeReader   // the latest attempt's reader
	ended   bool          // the logical request is over
	closed  bool          // src is closed
}

// reader starts the tape from the beginning for an attempt under ctx.
func (t *tape) reader(ctx context.Context) *tapeReader {
	r := &tapeReader{t: t, ctx: ctx}
	t.mu.Lock()
	t.live = r
	t.mu.Unlock()
	return r
}

// rewindable reports whether another attempt can read the whole body.
func (t *tape) rewindable() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.lost && (t.err == nil || t.err == io.EOF)
}

// end says that the logical request is over: src is closed with its last
// reader, or now if that is gone.
func (t *tape) end() {
	t.mu.Lock()
	t.ended = true
	now := t.live == nil || t.live.closed
	t.mu.Unlock()
	if now {
		t.closeSrc()
	}
}

func (t *tape) closeSrc() error {
	t.mu.Lock()
	again := t.closed
	t.closed, t.mem, t.last = true, nil, nil
	t.mu.Unlock()
	if again {
		return nil
	}
	return t.src.Close()
}

// fetch reads src once, for whoever waits on done by then. If that panics, or ends the
// goroutine, so does whoever asks: that may be a Base's code in the caller's goroutine,
// where a server would recover it, and here it would end the process.
func (t *tape) fetch(buf []byte, done chan struct{}) {
	n, err := 0, errBodyDied
	var died func()
	defer func() {
		if err == errBodyDied {
			if p := recover(); p != nil {
				died = func() { panic(p) }
			} else {
				died = runtime.Goexit
			}
		}
		t.fetched(buf, n, err, died, done)
	}()
	got, end := t.src.Read(buf)
	_ = buf[:got:len(buf)] // one that gave what it cannot have panics here
	n, err = got, end
}

// fetched takes note of what a Read of src has come to.
func (t *tape) fetched(buf []byte, n int, err error, died func(), done chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.last = buf[:n]
		t.given += int64(n)
		if !t.lost && len(t.mem)+n > t.limit {
			t.lost, t.mem = true, nil
		}
		if !t.lost {
			t.mem = append(t.mem, t.last...)
		}
		t.err, t.died = err, died
	}
	t.reading = nil
	close(done)
}

type tapeReader struct {
	t      *tape
	ctx    context.Context
	off    int64 // bytes given so far
	closed bool  // guarded by t.mu
}

func (r *tapeReader) Read(p []byte) (int, error) {
	t := r.t
	for {
		if r.ctx.Err() != nil {
			return 0, errBodyClosed
		}
		t.mu.Lock()
		n, err, ok := r.recall(p)
		died := t.died
		if ok {
			t.mu.Unlock()
			if err == errBodyDied {
				died()
			}
			return n, err
		}
		done := t.reading
		if done == nil {
			done = make(chan struct{})
			t.reading = done
			buf := t.last[:cap(t.last)] // its bytes have been given: r is the live reader
			if want := min(len(p), readAtOnce); len(buf) < want {
				buf = make([]byte, want)
			} else {
				buf = buf[:want]
			}
			t.last = nil
			go t.fetch(buf, done)
		}
		t.mu.Unlock()
		select {
		case <-done:
		case <-r.ctx.Done():
			return 0, errBodyClosed
		}
	}
}

// recall answers a Read without touching src, if it can. t.mu is held.
func (r *tapeReader) recall(p []byte) (n int, err error, ok bool) {
	t := r.t
	before := t.given - int64(len(t.last)) // where the latest Read began
	switch {
	case r.closed || t.live != r || t.closed:
		return 0, errBodyClosed, true
	case len(p) == 0:
		return 0, nil, true
	case r.off < int64(len(t.mem)):
		n = copy(p, t.mem[r.off:])
	case r.off >= before && r.off < t.given:
		n = copy(p, t.last[r.off-before:])
	case r.off < t.given:
		return 0, ErrBody, true
	case t.err != nil:
		return 0, t.err, true
	default:
		return 0, nil, false
	}
	r.off += int64(n)
	return n, nil, true
}

func (r *tapeReader) Close() error {
	t := r.t
	t.mu.Lock()
	r.closed = true
	now := t.ended && t.live == r
	t.mu.Unlock()
	if now {
		return t.closeSrc()
	}
	return nil
}

// A replyBody is an attempt as the body of its response, as the caller gets it. It
// ends the attempt's context when the body has been read or closed, never before:
// ending it when RoundTrip returns cuts long bodies now and then.
type replyBody attempt

func (b *replyBody) Read(p []byte) (int, error) {
	n, err := b.reply.Read(p)
	if err != nil {
		b.release()
	}
	return n, err
}

func (b *replyBody) Close() error {
	err := b.reply.Close()
	(*attempt)(b).end()
	return err
}

// release ends the context once the upload is over too: a server may answer
// before it has read the whole request.
func (b *replyBody) release() {
	if up := b.up; up != nil && !up.closed.Load() {
		up.whenClosed((*attempt)(b).end)
		return
	}
	(*attempt)(b).end()
}

// A switchedBody is the body of a 101 response: both directions of the
// connection, as net/http hands it out.
type switchedBody struct {
	*replyBody
	io.Writer
}

func (b *switchedBody) Read(p []byte) (int, error) { return b.reply.Read(p) }

// CloseWrite closes the writing side, where the connection can.
func (b *switchedBody) CloseWrite() error {
	if cw, ok := b.reply.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return errors.ErrUnsupported
}

// drain reads the rest of a discarded response if that is cheap, so that its
// connection can be used again, and closes it in any case. Both bytes and
// time are bounded: a server may send an error page drop by drop.
func drain(resp *http.Response) {
	const (
		most = 4 << 10
		long = 50 * time.Millisecond
	)
	body := resp.Body
	if body == nil || body == http.NoBody {
		return
	}
	if resp.ContentLength <= most && resp.StatusCode != http.StatusSwitchingProtocols {
		late := time.AfterFunc(long, func() { body.Close() })
		io.CopyN(io.Discard, body, most+1)
		if !late.Stop() {
			return // closed, or about to be
		}
	}
	body.Close()
}
