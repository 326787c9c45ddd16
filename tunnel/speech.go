package tunnel

import (
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"iop/tunnel/reach"
)

// slowDial is when a dial without an answer is worth a line: a port that drops packets must not look like a Node that hangs.
const slowDial = 4 * time.Second

// dialError is why a dial brought no session, as an operator should read it.
type dialError struct {
	finding reach.Finding
	err     error
}

// Error returns what was found, and the cause in the words of the libraries.
func (e *dialError) Error() string { return e.finding.Found + ": " + e.err.Error() }

func (e *dialError) Unwrap() error { return e.err }

// speech is what the log is told of attempts to connect. It belongs to the goroutine of Supervisor.Run, and to the dial that this
// waits for.
type speech struct {
	begun                   bool // the attempt was announced
	failed, replacing, slow reach.Repeat
}

// sayConnecting announces the first of a row of attempts.
func (s *Supervisor) sayConnecting() {
	if s.speech.begun {
		return
	}
	s.speech.begun = true
	args := []any{"edge", s.cfg.URL}
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: dialedURL(s.cfg.URL)}); err == nil && proxy != nil {
		args = append(args, "proxy", proxy.Host)
	}
	s.cfg.Logger.Info("tunnel: connecting", args...)
}

// sayConnected lets the next fault be logged, whatever was logged before.
func (s *Supervisor) sayConnected() { s.speech = speech{} }

// saySlow logs that a dial has no answer so far.
func (s *Supervisor) saySlow(f reach.Finding) {
	if left, ok := s.speech.slow.Due(f.Found, time.Now()); ok {
		s.cfg.Logger.Warn("tunnel: no answer yet", withLeft(left, "edge", s.cfg.URL, "found", f.Found, "do", f.Do, "gives_up_in", (dialTime-slowDial).String())...)
	}
}

// sayFailed logs why an attempt or a session ended, and when the next one begins.
func (s *Supervisor) sayFailed(err error, wait time.Duration) {
	level, message := slog.LevelWarn, "tunnel: not connected"
	if _, refused := errors.AsType[*Refusal](err); refused {
		level, message = slog.LevelError, "tunnel: the Edge refused this Node"
	}
	s.sayCalmly(&s.speech.failed, level, message, err, "retry_in", wait.Round(time.Millisecond).String())
}

// sayNoReplacement logs why a session that is to be replaced has no successor yet. It has a rhythm of its own: what follows if
// none comes is news, though the cause is the same.
func (s *Supervisor) sayNoReplacement(level slog.Level, err error, more ...any) {
	s.sayCalmly(&s.speech.replacing, level, "tunnel: no replacement yet", err, more...)
}

// sayCalmly logs err in the rhythm of said; what is not due is logged for debugging only.
func (s *Supervisor) sayCalmly(said *reach.Repeat, level slog.Level, message string, err error, more ...any) {
	line, args := s.finding(err)
	left, ok := said.Due(line, time.Now())
	if !ok {
		level = slog.LevelDebug
	}
	s.cfg.Logger.Log(s.draining, level, message, append(withLeft(left, args...), more...)...)
}

// finding is what a log says about err, and the part of it by which equal faults are recognized.
func (s *Supervisor) finding(err error) (line string, args []any) {
	args = []any{"edge", s.cfg.URL}
	if dialing, ok := errors.AsType[*dialError](err); ok {
		return dialing.finding.Found, append(args, "found", dialing.finding.Found, "do", dialing.finding.Do, "err", dialing.err)
	}
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok {
		return err.Error(), append(args, "err", err)
	}
	args = append(args, "code", refusal.Code, "message", refusal.Message)
	if do, known := reach.Refused(refusal.Code); known {
		args = append(args, "do", do)
	}
	return refusal.Code + " " + refusal.Message, args
}

// withLeft adds how many equal lines were left out.
func withLeft(left int, args ...any) []any {
	if left > 0 {
		args = append(args, "left_out", left)
	}
	return args
}

// dialedURL is the Edge's URL with the scheme of HTTP, by which a proxy is chosen. NewSupervisor has checked the URL.
func dialedURL(edge string) *url.URL {
	u, err := url.Parse(edge)
	if err != nil {
		return &url.URL{}
	}
	u.Scheme = map[string]string{"ws": "http", "wss": "https"}[u.Scheme]
	return u
}
