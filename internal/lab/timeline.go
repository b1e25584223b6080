package lab

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// An event is a line of the timeline.
type event struct {
	at    time.Duration
	id    tryID
	where string
	text  string
	args  []any
}

// note adds a line to the timeline. It is formatted only if somebody reads it, so
// what args point to must not change.
func (w *world) note(id tryID, where, text string, args ...any) {
	at := time.Since(w.born)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, event{at, id, where, text, args})
}

// did notes a fault, and counts it.
func (w *world) did(id tryID, where, fault string) {
	at := time.Since(w.born)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, event{at, id, where, fault, nil})
	w.tally[where+": "+fault]++
}

// count counts what a world has seen.
func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tally[what]++
}

// broke notes that a promise was broken.
func (w *world) broke(id tryID, promise int, text string, args ...any) {
	at := time.Since(w.born)
	s := fmt.Sprintf("promise %d: ", promise) + fmt.Sprintf(text, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, s)
	w.events = append(w.events, event{at, id, "BROKEN", s, nil})
}

// timeline is the story of the world.
func (w *world) timeline() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, e := range w.events {
		text := e.text
		if e.args != nil {
			text = fmt.Sprintf(e.text, e.args...)
		}
		fmt.Fprintf(&b, "%10.4fs  %-18s %-8s %s\n", e.at.Seconds(), e.id, e.where, text)
	}
	return b.String()
}

// logger returns a Logger that writes to the timeline, as long as who logs lives.
func (w *world) logger(id tryID, where string, dead func() bool) *slog.Logger {
	return slog.New(&logHandler{w, id, where, dead})
}

type logHandler struct {
	w     *world
	id    tryID
	where string
	dead  func() bool
}

func (h *logHandler) Enabled(context.Context, slog.Level) bool { return h.dead == nil || !h.dead() }

func (h *logHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h *logHandler) WithGroup(string) slog.Handler { return h }

func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	id := h.id
	if a, ok := ctx.Value(arrivalKey{}).(*arrival); ok {
		id = a.id
	}
	msg := strings.TrimPrefix(r.Message, "oncehttp: ")
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			msg += ": " + a.Value.String()
		}
		return true
	})
	h.w.count("log: " + strings.TrimPrefix(r.Message, "oncehttp: "))
	h.w.note(id, h.where, "log: %s", msg)
	return nil
}
