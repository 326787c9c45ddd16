package main

import (
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/mattn/go-isatty"

	"iop/gateway"
)

// logLevels are the values of the settings IOP_EDGE_LOG and IOP_NODE_LOG.
var logLevels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

// serverLog is the log of a command that serves until a signal stops it.
type serverLog struct {
	*slog.Logger
	out *gateway.LogWriter // whole lines that are not the logger's
}

// newLogger returns a logger that writes to w without ever waiting for it. A person at a terminal reads text, everything
// else JSON. Its close must be called at the end, so that no line is lost.
func newLogger(w io.Writer, level slog.Level) serverLog {
	// Where the reader of standard output or error has gone, a write must fail: by default it ends the process.
	signal.Ignore(syscall.SIGPIPE)
	out := gateway.NewLogWriter(w)
	var handler slog.Handler = gateway.NewLogHandler(out, level)
	if isTerminal(w) {
		handler = slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})
	}
	return serverLog{Logger: slog.New(handler), out: out}
}

func (l serverLog) close() { l.out.Close() }

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
