package nodeagent

import "iop/execution"

// eventScrubber hides a credential where a provider echoes it in the events of a normalized run. Pieces of one text make
// one text for the client: what may be the beginning of a needle at the end of a piece waits for the next piece, or for
// the text's end. It is for one goroutine.
type eventScrubber struct {
	needles *needleSet
	choices map[int]*choiceScrubber
	event   execution.Event // scratch
}

// choiceScrubber is the text of one choice that is being written.
type choiceScrubber struct {
	scrub scrubber
	event execution.Event // of which kind the text is, and of which call
}

// eventScrubber returns a scrubber of the credential, nil if there is none.
func (c *credential) eventScrubber() *eventScrubber {
	if c == nil {
		return nil
	}
	return &eventScrubber{needles: c.needles(), choices: map[int]*choiceScrubber{}}
}

// sameText reports whether two events are pieces of one text. The signature of a thought is a text beside it.
func sameText(a, b *execution.Event) bool {
	return a.Kind == b.Kind && a.Call.Index == b.Call.Index && signs(a) == signs(b)
}

// signs reports whether an event is a piece of a signature and nothing else.
func signs(e *execution.Event) bool { return e.Signature != "" && e.Text == "" }

// push gives what may go on of an event to emit, after what an event before it left.
func (s *eventScrubber) push(e *execution.Event, emit func(*execution.Event) error) error {
	c := s.choices[e.Choice]
	switch e.Kind {
	case execution.EventStarted, execution.EventUsage:
		return emit(s.masked(e))
	case execution.EventFailure:
		if err := s.finish(emit); err != nil {
			return err
		}
		return emit(s.masked(e))
	case execution.EventFinish, execution.EventAnnotation:
		if err := s.end(c, emit); err != nil {
			return err
		}
		return emit(s.masked(e))
	}
	if e.Text != "" && e.Signature != "" { // first the text, then what stands beside it
		text, signature := *e, *e
		text.Signature, signature.Text = "", ""
		if err := s.push(&text, emit); err != nil {
			return err
		}
		return s.push(&signature, emit)
	}
	if c == nil {
		c = &choiceScrubber{scrub: scrubber{needles: s.needles}}
		s.choices[e.Choice] = c
	}
	if !sameText(&c.event, e) {
		if err := s.end(c, emit); err != nil {
			return err
		}
	}
	return s.piece(c, e, emit)
}

// piece passes a piece of a choice's text.
func (s *eventScrubber) piece(c *choiceScrubber, e *execution.Event, emit func(*execution.Event) error) error {
	c.event = execution.Event{Kind: e.Kind, Choice: e.Choice, Call: execution.ToolCallDelta{Index: e.Call.Index}}
	if signs(e) {
		c.event.Signature = "-" // says of which text it is
	} else if e.Redacted != "" { // whole, and not of the text
		if err := s.end(c, emit); err != nil {
			return err
		}
	}
	out := s.masked(e)
	text := textOf(out)
	had := *text != ""
	if had {
		*text = string(c.scrub.push([]byte(*textOf(e))))
	}
	if *text == "" && had && out.Logprobs == nil && out.Call.ID == "" && out.Call.Name == "" && out.Redacted == "" {
		return nil // all of it waits
	}
	return emit(out)
}

// textOf is where an event has its piece of text.
func textOf(e *execution.Event) *string {
	switch {
	case e.Kind == execution.EventToolCall:
		return &e.Call.Arguments
	case signs(e):
		return &e.Signature
	}
	return &e.Text
}

// end gives what was held back of a choice's text, which is over. c may be nil.
func (s *eventScrubber) end(c *choiceScrubber, emit func(*execution.Event) error) error {
	if c == nil || len(c.scrub.held) == 0 {
		return nil
	}
	e := c.event
	*textOf(&e) = string(c.scrub.finish())
	return emit(&e)
}

// finish gives all that was held back.
func (s *eventScrubber) finish(emit func(*execution.Event) error) error {
	for _, c := range s.choices {
		if err := s.end(c, emit); err != nil {
			return err
		}
	}
	return nil
}

// masked is a copy of the event in which whatever stands by itself is masked.
func (s *eventScrubber) masked(e *execution.Event) *execution.Event {
	s.event = *e
	out := &s.event
	mask := s.needles.mask
	for _, text := range [...]*string{&out.Signature, &out.Redacted, &out.Call.ID, &out.Call.Name, &out.Finish.StopWord} {
		if *text != "" {
			*text = mask(*text)
		}
	}
	if out.Logprobs != nil {
		out.Logprobs = []byte(mask(string(out.Logprobs)))
	}
	if out.Annotation != nil {
		out.Annotation = []byte(mask(string(out.Annotation)))
	}
	if out.Started != nil {
		started := *out.Started
		started.ID, started.Model = mask(started.ID), mask(started.Model)
		out.Started = &started
	}
	if out.Failure != nil {
		f := *out.Failure
		f.Type, f.Code, f.Message = mask(f.Type), mask(f.Code), mask(f.Message)
		out.Failure = &f
	}
	return out
}

// wipe overwrites what is held of an answer.
func (s *eventScrubber) wipe() {
	for _, c := range s.choices {
		c.scrub.wipe()
	}
}
