// Package badlog is a slog.Handler that fails, for tests of those who log.
package badlog

import (
	"context"
	"log/slog"
)

// New returns a logger whose handler calls fail whenever it is told something.
func New(fail func()) *slog.Logger { return slog.New(handler{fail}) }

type handler struct{ fail func() }

func (handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(context.Context, slog.Record) error {
	h.fail()
	return nil
}

func (h handler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h handler) WithGroup(string) slog.Handler      { return h }
