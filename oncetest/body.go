package oncetest

import (
	"bytes"
	"io"
	"net/http"
	"time"
)

// takeBody lets x know the body. It is read before the handler runs, if that
// cannot do harm: a handler may want to answer before it reads, or while the
// client still writes.
func (x *send) takeBody(r *http.Request, p *plan) {
	if r.Body == http.NoBody {
		x.bodyOver = true
		return
	}
	r.Body = &teeBody{ReadCloser: r.Body, x: x}
	known := 0 <= r.ContentLength && r.ContentLength <= remembered
	crooked := !p.isStraight() || p.copies != nil
	if r.Header.Get("Expect") != "" && p.copies == nil || !known && !crooked {
		return
	}
	all, err := io.ReadAll(r.Body)
	if err == nil {
		err = io.EOF
	}
	r.Body = &readBody{bytes.NewReader(all), err}
}

// restOfBody reads what the handler has left of the body, so that requests can be
// told apart by it. On HTTP/1 net/http does the same next, if the connection is to
// live. Otherwise a client that does not end its body now is not waited for.
func (x *send) restOfBody(w http.ResponseWriter, r *http.Request, live bool) {
	const patience = 100 * time.Millisecond
	over := false
	x.note(func() { over = x.bodyOver })
	switch {
	case over:
	case r.ProtoMajor == 1:
		if !live {
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience))
		}
		io.CopyN(io.Discard, r.Body, 256<<10) // net/http's own limit
	default:
		done := make(chan struct{})
		go func() {
			defer close(done)
			io.CopyN(io.Discard, r.Body, remembered)
		}()
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		}
	}
}

// bodyAgain returns a body like the one of r, which was read before.
func bodyAgain(r *http.Request) io.ReadCloser {
	b, ok := r.Body.(*readBody)
	if !ok {
		return http.NoBody
	}
	again := *b.Reader
	return &readBody{&again, b.err}
}

// A readBody is a body that was read before, with how it ended.
type readBody struct {
	*bytes.Reader
	err error
}

func (b *readBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = b.err
	}
	return n, err
}

// WriteTo hides that of bytes.Reader, which knows no error.
func (b *readBody) WriteTo(w io.Writer) (int64, error) {
	n, err := b.Reader.WriteTo(w)
	if err == nil && b.err != io.EOF {
		err = b.err
	}
	return n, err
}

func (b *readBody) Close() error { return nil }

// A teeBody remembers what the handler reads.
type teeBody struct {
	io.ReadCloser
	x *send
}

func (b *teeBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.x.note(func() {
		b.x.length += int64(n)
		b.x.sum.Write(p[:n])
		if room := remembered - len(b.x.body); room > 0 {
			b.x.body = append(b.x.body, p[:min(n, room)]...)
		}
		b.x.bodyOver = b.x.bodyOver || err != nil
	})
	return n, err
}
