package execution

import (
	"crypto/rand"
	"fmt"
	"time"
)

// RunID names one run: one request executed on one Node. It is unguessable, so that knowing it is not a matter of
// counting. The zero value is invalid.
type RunID string

// runAlphabet is base32 in lower case, without the digits that look like letters.
const runAlphabet = "abcdefghijklmnopqrstuvwxyz234567"

// NewRunID returns a fresh RunID with 130 bits of randomness.
func NewRunID() RunID {
	const prefix, length = "run_", 26
	var id [len(prefix) + length]byte
	copy(id[:], prefix)
	rand.Read(id[len(prefix):]) // never fails
	for i := len(prefix); i < len(id); i++ {
		id[i] = runAlphabet[id[i]%32]
	}
	return RunID(id[:])
}

// NodeID is a Node's name. It belongs to the first join token (or workload identity) that used it. The zero value is
// invalid.
type NodeID string

// MaxNodeIDLength is the longest NodeID in bytes.
const MaxNodeIDLength = 128

// Validate reports whether the name may be used for a Node: 1 to MaxNodeIDLength bytes of ASCII letters, digits,
// '.', '_', ':', '-', and neither "." nor "..". A name that is safe everywhere needs no escaping anywhere.
func (n NodeID) Validate() error { return validateName("node", string(n), MaxNodeIDLength) }

// Generation numbers the sessions of one Node, strictly increasing and never reused. The zero value is invalid.
type Generation uint64

// ProviderID names one inference endpoint on a Node. The zero value is invalid.
type ProviderID string

// SessionID is an opaque correlation from the client. Equal values never give two runs shared state.
type SessionID string

// Outcome is how a run ended. A run has exactly one. The zero value is invalid.
type Outcome uint8

// The outcomes of a run.
const (
	Completed Outcome = iota + 1 // the provider answered to its end
	Failed                       // something broke; the code says what
	Cancelled                    // the client, the operator or a deadline ended it
	Rejected                     // it was refused before a provider was called
)

var outcomeNames = [...]string{"", "completed", "failed", "cancelled", "rejected"}

// String returns the outcome's name as it stands in metrics, logs and APIs.
func (o Outcome) String() string { return name(outcomeNames[:], uint8(o)) }

// Phase is how far a run has come. Phases only rise. The zero value is PhaseQueued.
type Phase uint8

// The phases of a run. What may follow a failure depends on the phase that the Edge knows: see ARCHITECTURE.md,
// "Failure".
const (
	PhaseQueued         Phase = iota // at the Edge, no Node chosen
	PhaseDispatched                  // OPEN was handed to the session's writer
	PhaseAdmitted                    // the Node has a capacity place for it
	PhaseProviderCalled              // the provider may have seen the request
	PhaseStreaming                   // a byte of the answer has arrived
	PhaseProviderDone                // the provider has answered to its end; its capacity place is free
)

var phaseNames = [...]string{"queued", "dispatched", "admitted", "provider_called", "streaming", "provider_done"}

// String returns the phase's name as it stands in logs and APIs.
func (p Phase) String() string { return name(phaseNames[:], uint8(p)) }

// Code says why a run ended as it did. The set is closed and append-only. The zero value is CodeNone.
type Code uint8

// The codes. A comment says with which outcome a code goes.
const (
	CodeNone                Code = iota // completed
	CodeCapacity                        // rejected: the Node has no free place for that provider
	CodeDraining                        // rejected: the Node or the session takes no new runs
	CodeUnknownProvider                 // rejected: the Node has no such provider, or the provider no such model
	CodeUnsupported                     // rejected: the Node can't do that kind of run or that operation
	CodeBadRequest                      // rejected: the run request is malformed
	CodeProviderUnreachable             // failed: connect refused, no route, DNS; the provider can't have seen the request
	CodeProviderError                   // failed: the provider broke the exchange before its head, or reported an error in its stream
	CodeProviderTimeout                 // failed: a phase timeout towards the provider
	CodeProviderTruncated               // failed: the answer ended without its terminal, or was cut
	CodeProviderRedirect                // failed: the provider answered with a redirect, which is never followed
	CodeResponseTooLarge                // failed: a head or an event over its limit
	CodeSessionLost                     // failed: the tunnel session ended first
	CodeSessionSuperseded               // failed: a newer generation took the Node over
	CodeLostByNode                      // failed: the Node no longer knows the run
	CodeFlowControl                     // failed: a peer sent more than its credit
	CodeProtocol                        // failed: a frame of this stream broke the contract
	CodeDeadline                        // cancelled: the run's own deadline
	CodeClientGone                      // cancelled: the client went away or took no byte for too long
	CodeCancelledByCaller               // cancelled: by the caller through the API
	CodeCancelledByOperator             // cancelled: through the admin API
	CodeDrainDeadline                   // cancelled: a drain ended before the run did
	CodeShutdown                        // cancelled: the process is stopping
	CodeCancelTimeout                   // cancelled: the Node did not answer the CANCEL in time
	CodeCredentialRejected              // failed: a lease was refused; nothing else is tried
	CodeInternal                        // failed: a fault of IOP itself
	CodeNoNodeAvailable                 // rejected, or cancelled as it waited for one in vain: no Node that serves the model was connected
)

var codeNames = [...]string{
	"", "capacity", "draining", "unknown_provider", "unsupported", "bad_request", "provider_unreachable",
	"provider_error", "provider_timeout", "provider_truncated", "provider_redirect", "response_too_large",
	"session_lost", "session_superseded", "lost_by_node", "flow_control", "protocol", "deadline", "client_gone",
	"cancelled_by_caller", "cancelled_by_operator", "drain_deadline", "shutdown", "cancel_timeout",
	"credential_rejected", "internal", "no_node_available",
}

// String returns the code's name as it stands in metrics, logs and APIs; empty for CodeNone.
func (c Code) String() string { return name(codeNames[:], uint8(c)) }

// Known reports whether the code is one of this version. A Node of a newer one may send others.
func (c Code) Known() bool { return int(c) < len(codeNames) }

func name(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("unknown_%d", i)
}

// Usage is what a run consumed, in tokens, as the provider reported it or, if Estimated, as the Node counted it. The zero value means that nothing is known.
type Usage struct {
	Input     int64 `json:"input_tokens"`
	Output    int64 `json:"output_tokens"`
	Cached    int64 `json:"cached_tokens,omitempty"`    // part of Input
	Reasoning int64 `json:"reasoning_tokens,omitempty"` // part of Output
	// Known is set when there is something to go by: zero tokens and no report are different things.
	Known bool `json:"known"`
	// Estimated is set, beside Known, when the numbers are not the provider's: a run that ended early had only its
	// events counted.
	Estimated bool `json:"estimated,omitempty"`
}

// Timings are durations measured on the Node against its monotonic clock.
type Timings struct {
	Admission time.Duration // OPEN read until the capacity place was taken
	FirstByte time.Duration // provider called until the first byte of its answer's body
	Provider  time.Duration // provider called until it had answered to its end
}

// Terminal is the one end of a run.
type Terminal struct {
	Outcome Outcome
	Code    Code
	Phase   Phase // the highest phase reached
	// Detail is for logs and the admin API only. It may name a provider's address; clients never see it.
	Detail  string
	Usage   Usage
	Timings Timings
	// Told is set, with Failed, when the client already has the provider's own error in its answer: whoever writes the
	// answer's end adds nothing to it, no error and no terminal event.
	Told bool
}
