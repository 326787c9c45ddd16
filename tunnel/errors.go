package tunnel

import (
	"errors"
	"fmt"
	"time"

	"iop/execution"
)

// What Open can answer. In each case nothing was sent.
var (
	ErrSessionClosed  = errors.New("the session has ended")
	ErrDraining       = errors.New("the session takes no new runs")
	ErrTooManyStreams = errors.New("the session is at its limit of runs")
)

// errProtocol is in the chain of every error that the peer's frames caused.
var errProtocol = errors.New("protocol error")

// errUnread is in the chain of a protocol error when part of the message is still in the socket: what is read next is
// no message.
var errUnread = fmt.Errorf("%w: an unreadable message", errProtocol)

// Codes of GOODBYE and of an EndError. Closed, append-only.
const (
	goodbyeHeartbeat  = "heartbeat_timeout"
	goodbyeProtocol   = "protocol_error"
	goodbyeSuperseded = "session_superseded"
	goodbyeDrained    = "drained"
	goodbyeDeadline   = "drain_deadline"
	goodbyeShutdown   = "shutdown"
	goodbyeRefused    = "refused"
	goodbyeClock      = "clock_jump"
	goodbyeUntrusted  = "untrusted"
	goodbyeTooFast    = "too_fast"
	goodbyeLost       = "connection_lost"
)

// Refusal is an error that the peer is told: a code of the closed set in wire.Refusal and one clear sentence.
type Refusal struct {
	Code       string
	Message    string
	RetryAfter time.Duration // a hint to the Node's supervisor; 0 for none
}

func (r *Refusal) Error() string { return r.Code + ": " + r.Message }

// EndError is why a session ended.
type EndError struct {
	Code    string // one of the codes of GOODBYE, or connection_lost
	Message string // for people: it stands in GOODBYE and in logs
	// Remote is set when the peer said so, unset when this end did.
	Remote bool
	// Run is the code that runs which were open get.
	Run execution.Code
	// Err is the cause, or nil.
	Err error
}

func (e *EndError) Error() string {
	text := e.Code
	if e.Message != "" {
		text += ": " + e.Message
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *EndError) Unwrap() error { return e.Err }

// CancelError is the cause of a NodeRun's context: why the run is to end before its provider's answer does.
type CancelError struct {
	Code   execution.Code // the one that the run's terminal is to have
	Reason string         // for logs
}

func (e *CancelError) Error() string { return e.Code.String() + ": " + e.Reason }
