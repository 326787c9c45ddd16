package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/mattn/go-isatty"

	"iop/gateway"
)

// logLevels are the values of the settings IOP_EDGE_LOG and IOP_NODE_LOG.
var logLevels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

// newLogger returns a logger that writes to w without ever waiting for it, and what to call at the end, so that no line
// is lost. A person at a terminal reads text, everything else JSON.
func newLogger(w io.Writer, level slog.Level) (*slog.Logger, func()) {
	out := gateway.NewLogWriter(w)
	var handler slog.Handler = gateway.NewLogHandler(out, level)
	if isTerminal(w) {
		handler = slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})
	}
	return slog.New(handler), func() { out.Close() }
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
