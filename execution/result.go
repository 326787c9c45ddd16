package execution

import (
	"encoding/json"
	"fmt"
)

// Bounds of what a Collector takes, so that no provider decides how much the Edge remembers.
const (
	MaxChoices   = 128
	MaxToolCalls = 1024 // of one choice
)

// PieceSize is what a part, a call or the like costs whoever remembers it, in bytes, beside what is in it: an answer of
// many small ones is no small answer.
const PieceSize = 256

// Result is the whole answer of a normalized run, for a client that wants no stream.
type Result struct {
	Started *Started // nil if the provider told nothing
	Choices []Choice // by index
	Usage   Usage
	Failure *Failure // nil if there was none
}

// Choice is one of a result's answers.
type Choice struct {
	Text, Refusal string
	Reasoning     []Part // of kind PartReasoning
	ToolCalls     []ToolCall
	Annotations   []json.RawMessage
	Logprobs      []json.RawMessage // an array each
	Finish        Finish            // the zero value: the choice was not ended

	order []piece // in which all that came; see Events
}

// Collector gathers the events of one run. The zero value is ready. It is for one goroutine.
type Collector struct {
	result  Result
	choices []building
	size    int
}

// building is a choice that grows.
type building struct {
	Choice
	text, refusal []byte
	thought       []byte
	signature     []byte // of the thought
	thinking      bool   // the last of Reasoning is still growing
	arguments     [][]byte
	noted         [EventFailure + 1]int // of each kind, how many are in order
}

// Size returns how many bytes have been gathered, about: all of the content, and PieceSize for each piece that is
// remembered by itself.
func (c *Collector) Size() int { return c.size }

// Add takes the next event. It fails for one that breaks the contract (an index out of bounds).
func (c *Collector) Add(e *Event) error {
	switch e.Kind {
	case EventStarted:
		c.result.Started = e.Started
		return nil
	case EventUsage:
		c.result.Usage = *e.Usage
		return nil
	case EventFailure:
		c.result.Failure = e.Failure
		return nil
	}
	if e.Choice < 0 || e.Choice >= MaxChoices {
		return fmt.Errorf("an event of choice %d", e.Choice)
	}
	for len(c.choices) <= e.Choice {
		c.choices = append(c.choices, building{})
	}
	b := &c.choices[e.Choice]
	pieces := b.pieces()
	err := b.add(e)
	b.note(e)
	c.size += len(e.Text) + len(e.Signature) + len(e.Redacted) + len(e.Logprobs) + len(e.Annotation) +
		len(e.Call.ID) + len(e.Call.Name) + len(e.Call.Arguments) + len(e.Finish.StopWord) + PieceSize*(b.pieces()-pieces)
	return err
}

// pieces is how many pieces are remembered by themselves.
func (b *building) pieces() int {
	return len(b.Reasoning) + len(b.ToolCalls) + len(b.Annotations) + len(b.Logprobs) + len(b.order)
}

func (b *building) add(e *Event) error {
	if e.Kind != EventReasoning {
		b.endThought()
	}
	switch e.Kind {
	case EventText:
		b.text = append(b.text, e.Text...)
	case EventRefusal:
		b.refusal = append(b.refusal, e.Text...)
	case EventReasoning:
		b.think(e)
	case EventToolCall:
		return b.call(&e.Call)
	case EventAnnotation:
		b.Annotations = append(b.Annotations, e.Annotation)
	case EventFinish:
		b.Finish = e.Finish
	}
	if e.Logprobs != nil {
		b.Logprobs = append(b.Logprobs, e.Logprobs)
	}
	return nil
}

// think adds to the thought, or begins another after a signature.
func (b *building) think(e *Event) {
	if e.Redacted != "" {
		b.endThought()
		b.Reasoning = append(b.Reasoning, Part{Kind: PartReasoning, Redacted: e.Redacted})
		return
	}
	if b.thinking && e.Text != "" && len(b.signature) > 0 {
		b.endThought()
	}
	if !b.thinking {
		b.Reasoning, b.thinking = append(b.Reasoning, Part{Kind: PartReasoning}), true
	}
	b.thought = append(b.thought, e.Text...)
	b.signature = append(b.signature, e.Signature...)
}

func (b *building) endThought() {
	if b.thinking {
		last := &b.Reasoning[len(b.Reasoning)-1]
		last.Text, last.Signature = string(b.thought), string(b.signature)
		b.thought, b.signature = b.thought[:0], b.signature[:0]
		b.thinking = false
	}
}

func (b *building) call(d *ToolCallDelta) error {
	if d.Index < 0 || d.Index > len(b.ToolCalls) || d.Index >= MaxToolCalls {
		return fmt.Errorf("tool call %d after %d", d.Index, len(b.ToolCalls))
	}
	if d.Index == len(b.ToolCalls) {
		b.ToolCalls = append(b.ToolCalls, ToolCall{})
		b.arguments = append(b.arguments, nil)
	}
	call := &b.ToolCalls[d.Index]
	if d.ID != "" {
		call.ID = d.ID
	}
	if d.Name != "" {
		call.Name = d.Name
	}
	b.arguments[d.Index] = append(b.arguments[d.Index], d.Arguments...)
	return nil
}

// Result returns what has been gathered. The Collector must not be used after.
func (c *Collector) Result() *Result {
	for i := range c.choices {
		b := &c.choices[i]
		b.endThought()
		b.Text, b.Refusal = string(b.text), string(b.refusal)
		for j := range b.ToolCalls {
			b.ToolCalls[j].Arguments = string(b.arguments[j])
		}
		c.result.Choices = append(c.result.Choices, b.Choice)
	}
	return &c.result
}
