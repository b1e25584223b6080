// Package calmlog keeps a slog.Handler's panics from whoever logs: what is logged in the
// middle of a claim, or in a goroutine that nobody recovers, must not be how it ends.
//
// The stores use it from modules of their own, whose versions may be older than this
// one's: Logger has to stay as it is.
package calmlog

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
)

// Logger returns a logger to l's handler, or to that of slog.Default() if l is nil. A
// panic of the handler is told on standard error and goes no further.
func Logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		l = slog.Default()
	}
	return slog.New(handler{l.Handler()})
}

type handler struct{ h slog.Handler }

func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	defer calm()
	return h.h.Enabled(ctx, level)
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	defer calm()
	return h.h.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler { return handler{h.h.WithAttrs(attrs)} }
func (h handler) WithGroup(name string) slog.Handler       { return handler{h.h.WithGroup(name)} }

// calm is deferred. The panic's value may hold anything, so only its type is told. There
// is no other logger to tell: package log writes to the default handler, which may be the
// one that panicked.
func calm() {
	if p := recover(); p != nil {
		fmt.Fprintf(os.Stderr, "oncehttp: a log handler panicked: a value of type %T\n%s", p, debug.Stack())
	}
}
