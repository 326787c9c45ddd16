package openai

import (
	"time"

	"iop/execution"
)

// Request is a client's request as a normalized run: what is to be run, and how the answer is written in the client's
// protocol. Each family has a parser that makes one of a body.
type Request struct {
	Input *execution.Input
	// Param is the client's protocol's own name for a parameter, for errors.
	Param func(execution.Param) string
	// Render returns a writer of the answer.
	Render func(RenderSpec) Renderer
}

// RenderSpec is what a Renderer must know besides the request.
type RenderSpec struct {
	ID           string // unique and opaque; a Renderer puts its protocol's prefix before it
	Model        string // the name that the answer bears
	Created      time.Time
	IncludeUsage bool // Chat Completions: the client asked for the usage event
}

// Renderer writes the answer of one run in a client's protocol. It is for one goroutine. A stream is Event for each
// event, then one of Complete and Fail; a whole answer is one call of Whole on a Renderer of its own. What is written
// ends at an event's border, always.
type Renderer interface {
	// Event appends what the client's stream says of the event, perhaps nothing. EventFailure and EventStarted are given too; a failure
	// writes nothing here, as Fail follows.
	Event(dst []byte, e *execution.Event) []byte
	// Fault is why the answer can't become a whole one any more, nil as long as it can: nothing of the run is wanted then, and
	// Fail is to be called.
	Fault() *Error
	// Held is how many bytes of the answer are remembered until its end, and what writing them at the end takes besides,
	// about. It grows with the events; whoever has no room for it calls Fail.
	Held() int
	// Complete appends the stream's end. An error means that the events were no whole answer: nothing was appended, and Fail
	// is to be called.
	Complete(dst []byte, usage execution.Usage) ([]byte, *Error)
	// Fail appends the protocol's own error and, where the protocol has one, its failed end.
	Fail(dst []byte, e *Error) []byte
	// Whole appends the answer of a client that wants no stream. An error means that the result is no whole answer.
	Whole(dst []byte, r *execution.Result) ([]byte, *Error)
}
