package gateway

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"iop/state"
)

// calmEvery is how often a failure of the state is logged: each request meets it, and one line says as much as a thousand.
const calmEvery = time.Second

// calm is a slog.Handler that logs warnings and errors about failures of the state, from whatever part of the Edge, once a
// second in all, and says how many it left out. Everything else passes.
type calm struct {
	slog.Handler
	last *calmed // never nil; shared by all handlers made of one
}

type calmed struct {
	mu   sync.Mutex // guards what follows
	at   time.Time
	left int
}

func newCalm(h slog.Handler) calm { return calm{h, &calmed{}} }

// Handle implements slog.Handler.
func (c calm) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn || !aboutState(&r) {
		return c.Handler.Handle(ctx, r)
	}
	left, ok := c.last.take(r.Time)
	if !ok {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", left))
	}
	return c.Handler.Handle(ctx, r)
}

// take reports whether a line is due, and how many were left out since the last one.
func (c *calmed) take(now time.Time) (left int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if since := now.Sub(c.at); since >= 0 && since < calmEvery {
		c.left++
		return 0, false
	}
	left = c.left
	c.at, c.left = now, 0
	return left, true
}

// aboutState reports whether an attribute is an error by which the state failed.
func aboutState(r *slog.Record) (found bool) {
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		found = ok && state.FailureOf(err) != state.FailureNone
		return !found
	})
	return found
}

// WithAttrs implements slog.Handler.
func (c calm) WithAttrs(attrs []slog.Attr) slog.Handler {
	return calm{c.Handler.WithAttrs(attrs), c.last}
}

// WithGroup implements slog.Handler.
func (c calm) WithGroup(name string) slog.Handler { return calm{c.Handler.WithGroup(name), c.last} }
