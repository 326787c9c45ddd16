package execution

import (
	"bytes"
	"encoding/json"
)

// piece is a part of a choice's answer that came in one: a text up to a thought, a call or a refusal, a thought, a call, or
// an annotation.
type piece struct {
	kind     EventKind
	from, to int // of a text or a refusal: its bytes; of the others from is the index
	logprobs int // of a text or a refusal: how many of the choice's arrays
}

// note remembers when what an event brought has come. An annotation is of the text before it, which goes on behind it.
func (b *building) note(e *Event) {
	switch e.Kind {
	case EventText:
		b.noteText(e, len(b.text))
	case EventRefusal:
		b.noteText(e, len(b.refusal))
	case EventReasoning:
		b.noteNew(EventReasoning, len(b.Reasoning))
	case EventToolCall:
		b.noteNew(EventToolCall, len(b.ToolCalls))
	case EventAnnotation:
		b.noteNew(EventAnnotation, len(b.Annotations))
	}
}

func (b *building) noteText(e *Event, end int) {
	if e.Text == "" && e.Logprobs == nil {
		return
	}
	last := len(b.order) - 1
	for last >= 0 && b.order[last].kind == EventAnnotation {
		last--
	}
	if last < 0 || b.order[last].kind != e.Kind {
		last = len(b.order)
		b.order = append(b.order, piece{kind: e.Kind, from: end - len(e.Text)})
	}
	b.order[last].to = end
	if e.Logprobs != nil {
		b.order[last].logprobs++
	}
}

// noteNew notes those of a kind that are new; count is how many there are now.
func (b *building) noteNew(kind EventKind, count int) {
	for ; b.noted[kind] < count; b.noted[kind]++ {
		b.order = append(b.order, piece{kind: kind, from: b.noted[kind]})
	}
}

// Events are the events that make the choice, the fewest that do, in the order in which their beginnings came, without that
// of its finish. What the provider signed must go back to it in its order.
func (c *Choice) Events() []Event {
	events := make([]Event, 0, len(c.order))
	logprobs := c.Logprobs
	for _, p := range c.order {
		e := Event{Kind: p.kind}
		switch p.kind {
		case EventText:
			e.Text = c.Text[p.from:p.to]
		case EventRefusal:
			e.Text = c.Refusal[p.from:p.to]
		case EventReasoning:
			thought := &c.Reasoning[p.from]
			e.Text, e.Signature, e.Redacted = thought.Text, thought.Signature, thought.Redacted
		case EventToolCall:
			call := &c.ToolCalls[p.from]
			e.Call = ToolCallDelta{Index: p.from, ID: call.ID, Name: call.Name, Arguments: call.Arguments}
		case EventAnnotation:
			e.Annotation = c.Annotations[p.from]
		}
		if p.logprobs > 0 {
			e.Logprobs = joinArrays(logprobs[:p.logprobs])
			logprobs = logprobs[p.logprobs:]
		}
		events = append(events, e)
	}
	return events
}

// joinArrays makes one JSON array of several.
func joinArrays(arrays []json.RawMessage) json.RawMessage {
	all := json.RawMessage{'['}
	for _, array := range arrays {
		inside := bytes.TrimSpace(array)
		if len(inside) < 2 {
			continue
		}
		if inside = bytes.TrimSpace(inside[1 : len(inside)-1]); len(inside) == 0 {
			continue
		}
		if len(all) > 1 {
			all = append(all, ',')
		}
		all = append(all, inside...)
	}
	return append(all, ']')
}
