package execution

import (
	"encoding/json"
	"time"
)

// EventKind says what an Event is. The zero value is invalid.
type EventKind uint8

// The kinds of events of a normalized run. How the run ended is no event but its [Terminal].
const (
	EventStarted    EventKind = iota + 1 // the provider has begun to answer; at most one, before all others but EventFailure
	EventText                            // a piece of the answer's text
	EventReasoning                       // a piece of what the model thinks
	EventToolCall                        // a piece of a tool call
	EventRefusal                         // a piece of a refusal's text
	EventAnnotation                      // a citation or the like, of the text so far
	EventUsage                           // what was consumed; the last one counts
	EventFinish                          // why a choice ended; at most one of each choice, nothing of the choice after it
	EventFailure                         // the provider's own error, or the adapter's refusal; at most one, the last event
)

// Event is one step of a normalized run. Events come in the order in which the provider produced them. Of the fields
// below Choice only those count that Kind names.
type Event struct {
	Kind   EventKind
	Choice int // which of several answers, from 0

	Text      string          // of Text, Reasoning, Refusal: the piece
	Signature string          // of Reasoning: what the provider wants to see again with this thought; a piece of it
	Redacted  string          // of Reasoning: a thought that the provider keeps to itself, whole
	Logprobs  json.RawMessage // of Text and Refusal: an array as Chat Completions has it; nil without

	Call       ToolCallDelta
	Annotation json.RawMessage // of Annotation: an object as Chat Completions has it
	Started    *Started
	Usage      *Usage
	Finish     Finish
	Failure    *Failure
}

// Started says what the provider calls its answer.
type Started struct {
	ID      string // the provider's own; may be empty
	Model   string // the name that the provider gives; may be empty
	Created time.Time
	// Usage is what the provider knows of the prompt at once; zero if it does not.
	Usage Usage
}

// ToolCallDelta is a piece of one tool call. The first of an Index has ID and Name; Arguments of all of them make the
// JSON text.
type ToolCallDelta struct {
	Index     int // of the call within its choice, from 0, without a gap
	ID        string
	Name      string
	Arguments string
}

// FinishReason says why a choice ended.
type FinishReason string

// The reasons.
const (
	FinishStop      FinishReason = "stop"           // the model was done
	FinishStopWord  FinishReason = "stop_sequence"  // it wrote one of the stop strings
	FinishLength    FinishReason = "length"         // the bound of tokens or of the context
	FinishToolCalls FinishReason = "tool_calls"     // it wants its tools called
	FinishFilter    FinishReason = "content_filter" // the provider held it back
	FinishPause     FinishReason = "pause_turn"     // the provider wants to be asked to go on
)

// Finish is a choice's end.
type Finish struct {
	Reason   FinishReason
	StopWord string // the stop string, where the provider tells it
}

// Failure is an error that the client is told: the provider's own, or that of an adapter that can't carry the request.
type Failure struct {
	Status     int    // as HTTP has it; 0: the error came in a stream, and had none
	Type       string // the provider's words, empty where it had none
	Code       string
	Param      Param // canonical, where the adapter refuses
	Message    string
	RetryAfter time.Duration // 0: none
	// Unsupported is set where the adapter refused and no provider was called.
	Unsupported bool
}
