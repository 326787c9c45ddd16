package anthropic

import (
	"strings"

	"iop/execution"
	"iop/openai"
)

// maxWaiting bounds what waits for the open call to become whole, in bytes.
const maxWaiting = 8 << 20

// waiting is what came while a call was open that was not whole: providers may write several calls in turns, and clients
// take one block after the other. Each block waits until those before it have ended, and is written then as far as it is
// known. While something waits the open block is a call that is not whole.
type waiting struct {
	blocks []*waitingBlock       // in the order in which they began
	calls  map[int]*waitingBlock // those that are calls, by their index
	size   int                   // about how many bytes wait
}

// waitingBlock is a block that is to come.
type waitingBlock struct {
	kind            execution.EventKind // a refusal is text
	text, signature []byte              // of a call text is the arguments
	redacted        string
	call            int
	id, name        string
}

// expects reports whether something is to be done with a piece of a call, and counts one that begins. A piece that can't be
// told any more, or belongs to no call, is a fault.
func (r *renderer) expects(c *execution.ToolCallDelta) bool {
	switch {
	case c.Index == r.calls && c.Index < execution.MaxToolCalls:
		r.calls++
		return true
	case c.Index < 0 || c.Index >= r.calls:
		r.fault = openai.ProviderFailed("The provider numbered its tool calls wrongly.")
		return false
	case c.Index == r.call || r.waiting.calls[c.Index] != nil:
		return c.Arguments != ""
	}
	if strings.TrimSpace(c.Arguments) != "" {
		r.fault = openai.ProviderFailed("The provider continued a tool call that was already complete.")
	}
	return false
}

// mustWait reports whether an event is of a block that can't begin yet.
func (r *renderer) mustWait(e *execution.Event) bool {
	if r.open != toolBlock || r.nesting.Whole() {
		return false
	}
	switch e.Kind {
	case execution.EventToolCall:
		return e.Call.Index != r.call
	case execution.EventReasoning:
		return e.Text != "" || e.Signature != "" || e.Redacted != ""
	}
	return e.Text != ""
}

// wait keeps an event for later.
func (r *renderer) wait(e *execution.Event) {
	b := r.waitingBlock(e)
	before := b.size()
	if e.Kind == execution.EventToolCall {
		b.text = append(b.text, e.Call.Arguments...)
	} else {
		b.text = append(b.text, e.Text...)
	}
	b.signature = append(b.signature, e.Signature...)
	if r.waiting.size += b.size() - before; r.waiting.size > maxWaiting {
		r.fault = openai.ProviderFailed("The provider sent too much before it completed a tool call.")
	}
}

// waitingBlock is the block that an event is a piece of, perhaps a new one.
func (r *renderer) waitingBlock(e *execution.Event) *waitingBlock {
	w := &r.waiting
	b := &waitingBlock{kind: e.Kind}
	switch e.Kind {
	case execution.EventToolCall:
		if known := w.calls[e.Call.Index]; known != nil {
			return known
		}
		b.call, b.id, b.name = e.Call.Index, e.Call.ID, e.Call.Name
		if w.calls == nil {
			w.calls = map[int]*waitingBlock{}
		}
		w.calls[b.call] = b
	case execution.EventRefusal:
		b.kind = execution.EventText
		fallthrough
	default:
		if n := len(w.blocks); n > 0 && w.blocks[n-1].goesOn(b.kind, e) {
			return w.blocks[n-1]
		}
		b.redacted = e.Redacted
	}
	w.blocks = append(w.blocks, b)
	w.size += b.size()
	return b
}

// size is about how many bytes the block takes.
func (b *waitingBlock) size() int {
	return execution.PieceSize + len(b.text) + len(b.signature) + len(b.redacted) + len(b.id) + len(b.name)
}

// goesOn reports whether an event of this kind is the next piece of the block. Text after a signature is another thought.
func (b *waitingBlock) goesOn(kind execution.EventKind, e *execution.Event) bool {
	if b.kind != kind || b.redacted != "" || e.Redacted != "" {
		return false
	}
	return len(b.signature) == 0 || e.Text == ""
}

// catchUp writes what waits, up to a call that is not whole; once the answer has ended, all of it.
func (r *renderer) catchUp(dst []byte) []byte {
	w := &r.waiting
	for len(w.blocks) > 0 && r.fault == nil {
		if r.open == toolBlock && !r.nesting.Whole() && r.finish.Reason == "" {
			return dst
		}
		b := w.blocks[0]
		w.blocks[0] = nil
		w.blocks = w.blocks[1:]
		w.size -= b.size()
		dst = r.show(dst, b.event())
		if b.kind == execution.EventToolCall {
			delete(w.calls, b.call)
		}
	}
	return dst
}

// event is all of the block that is known.
func (b *waitingBlock) event() *execution.Event {
	if b.kind == execution.EventToolCall {
		return &execution.Event{Kind: b.kind, Call: execution.ToolCallDelta{Index: b.call, ID: b.id, Name: b.name, Arguments: string(b.text)}}
	}
	return &execution.Event{Kind: b.kind, Text: string(b.text), Signature: string(b.signature), Redacted: b.redacted}
}
