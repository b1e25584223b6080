package crash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// maxAction is the longest name of an action, in bytes.
const maxAction = 200

// A Work is a handler that does what its request's body names: it has one effect,
// takes some time before and after it, and answers 201 with the action's name and
// that of the run. With oncehttp between it and the client, as much belongs inside.
type Work struct {
	// Effect makes the effect: [Journal.Append], or an insert in the request's
	// transaction. An error is answered with a 500.
	Effect func(ctx context.Context, action string, e Effect) error

	// Progress is told. Nil: nobody is.
	Progress *Progress

	// Pause is the longest time before the effect, and after it. Zero means 4 ms.
	Pause time.Duration
}

type arrivedKey struct{}

// Arrivals notes in the context when a request came, for the Work within h.
func Arrivals(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), arrivedKey{}, time.Now())))
	})
}

// ServeHTTP implements http.Handler.
func (k *Work) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := Effect{Run: newRun(), Began: time.Now()}
	e.Arrived, _ = r.Context().Value(arrivedKey{}).(time.Time)
	if e.Arrived.IsZero() {
		e.Arrived = e.Began
	}
	note := func(byte) {}
	if p := k.Progress; p != nil {
		at := p.begin(before)
		defer p.end(at)
		note = func(what byte) { p.set(at, what) }
	}
	action, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAction))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pause := orElse(k.Pause, 4*time.Millisecond)
	time.Sleep(rand.N(pause))
	note(during)
	if err := k.Effect(r.Context(), string(action), e); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	note(after)
	time.Sleep(rand.N(pause))
	w.WriteHeader(http.StatusCreated)
	io.WriteString(w, did(string(action), e.Run))
}

// did is the answer to an action.
func did(action, run string) string { return fmt.Sprintf("did %s in run %s", action, run) }

// Serve serves h on addr until SIGTERM, then lets what runs end and calls drain
// (oncehttp's Middleware.Drain).
func Serve(addr string, h http.Handler, drain func(context.Context) error) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	told, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-told.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return errors.Join(srv.Shutdown(ctx), drain(ctx))
}
