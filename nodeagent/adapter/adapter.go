// Package adapter holds what the Node's adapters share: an adapter says a normalized run in one provider protocol, and
// reads the provider's answer as events. The adapters are in packages of their own below this one.
package adapter

import (
	"iop/execution"
)

// Adapter is one provider protocol. Its methods are for any goroutine.
type Adapter interface {
	// Request makes the provider's request of a run. The only error is an *execution.UnsupportedError: the protocol can't carry
	// the input, which is refused whole.
	Request(in *execution.Input, spec Spec) (*Request, error)
	// Reader returns a reader of the answer to that request.
	Reader(spec Spec) Reader
}

// Spec is what an adapter must know besides the input.
type Spec struct {
	Model        string // the provider's name of it
	WithoutUsage bool   // the provider refuses to be asked for usage
	// Hosted says that the provider is the company's own service, by whose name the protocol goes: it knows what is new in
	// the protocol, refuses what was replaced, and knows nothing that engines have added to it.
	Hosted bool
}

// Request is an HTTP request to the provider, always a POST with a JSON body, whose answer is a stream.
type Request struct {
	Operation string // the name of the openai.Operation whose constant upstream path it goes to
	Body      []byte
	Header    [][2]string // what the protocol wants besides the content type; names in canonical form
}

// Reader reads the body of a successful answer (a status below 300). It is for one goroutine.
type Reader interface {
	// Push takes bytes of the body as they came, whatever their borders, and gives each event that they complete to emit, in order.
	// An event and what it points to are valid until emit returns. An error ends the run: a *StreamError (malformed
	// bytes, something over a limit), or emit's own. done: the answer has ended, and nothing more is wanted.
	Push(p []byte, emit func(*execution.Event) error) (done bool, err error)
	// End is called when the body ended without done. An error means that the answer was cut off (*StreamError).
	End(emit func(*execution.Event) error) error
	// Progress returns a number that changes with each push that brought bytes of the answer, and not with comments that
	// only keep the connection.
	Progress() int64
	// Usage is what is known of the run's usage so far: the provider's word, or where there was none and something had
	// come, an estimate.
	Usage() execution.Usage
}

// StreamError says that an answer can't be read on.
type StreamError struct {
	Code   execution.Code // CodeProviderTruncated, CodeProviderError or CodeResponseTooLarge
	Detail string         // for logs
}

// Error implements error.
func (e *StreamError) Error() string { return e.Detail }
