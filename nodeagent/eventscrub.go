package nodeagent

import (
	"slices"

	"iop/execution"
	"iop/nodeagent/adapter"
)

// eventScrubber hides a credential where a provider echoes it in the events of a normalized run. A client puts the pieces
// of one text together, whatever came between them: what may be the beginning of a needle at the end of a piece waits
// for the text's next piece, or for the end of its choice. It is for one goroutine.
//
// Texts end with the first letters of a credential by chance, and what waits is late when it comes at last. So when
// another text's piece comes, such a letter or two goes on before it, and is remembered.
type eventScrubber struct {
	scrub   scrubber // its tail is that of the text that is being looked at
	tails   []textTail
	choices map[int]*choiceTexts
	failed  error // why no event is taken any more
	// scratch
	event execution.Event
	text  []byte
}

// maxTails bounds the texts of an answer in which a needle may have begun at the same time. All texts of as many choices as
// an answer may have are fewer, and a tool call that is whole ends with none.
const maxTails = 2 * execution.MaxChoices

// textID says which text an event is a piece of. What is said and what is refused are one, as some protocols have one
// place for both; the signature of a thought is a text beside it.
type textID struct {
	choice    int
	kind      execution.EventKind
	call      int
	signature bool
}

// textTail is the tail of a text in which a needle may have begun. Those in eventScrubber.tails stand in the order in which
// they began; behind the last there are some to be used again.
type textTail struct {
	tail
	id   textID
	kind execution.EventKind // of the piece that came last: of what is said there are two
	// other is how much of what is held, from its start, is of the other kind.
	other int
}

// choiceTexts is what must be known of one choice.
type choiceTexts struct {
	last  textID              // the text that was written last, the zero value if there is none
	said  execution.EventKind // whether the choice is an answer or a refusal by now; 0: neither
	mixed bool                // it has become the one after the other
}

// eventScrubber returns a scrubber of the credential, nil if there is none.
func (c *credential) eventScrubber() *eventScrubber {
	if c == nil {
		return nil
	}
	return &eventScrubber{scrub: scrubber{needles: c.needles()}, choices: map[int]*choiceTexts{}}
}

func textOfEvent(e *execution.Event) textID {
	id := textID{choice: e.Choice, kind: e.Kind, signature: signs(e)}
	switch e.Kind {
	case execution.EventRefusal:
		id.kind = execution.EventText
	case execution.EventToolCall:
		id.call = e.Call.Index
	}
	return id
}

// signs reports whether an event is a piece of a signature and nothing else.
func signs(e *execution.Event) bool { return e.Signature != "" && e.Text == "" }

// push gives what may go on of an event to emit, after what events before it left. After an error of its own nothing of
// the answer goes on.
func (s *eventScrubber) push(e *execution.Event, emit func(*execution.Event) error) error {
	if s.failed != nil {
		return s.failed
	}
	switch e.Kind {
	case execution.EventStarted, execution.EventUsage:
		return emit(s.masked(e))
	case execution.EventFailure:
		if err := s.finish(emit); err != nil {
			return err
		}
		return emit(s.masked(e))
	case execution.EventFinish:
		if err := s.endChoice(e.Choice, emit); err != nil {
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
	return s.piece(e, emit)
}

// piece passes a piece of a text, or what stands between such pieces.
func (s *eventScrubber) piece(e *execution.Event, emit func(*execution.Event) error) error {
	c, err := s.choice(e)
	if err != nil {
		return err
	}
	id := textOfEvent(e)
	if c.last != id {
		if err := s.leave(c.last, emit); err != nil {
			return err
		}
		c.last = id
	}
	out := s.masked(e)
	text := textOf(out)
	had := *textOf(e)
	if *text = had; had != "" {
		before, after, err := s.look(id, e.Kind, had)
		if err != nil {
			return err
		}
		if err := emitPiece(id, otherKind(e.Kind), before, emit); err != nil {
			return err
		}
		*text = after
	}
	if *text == "" && had != "" && out.Logprobs == nil && out.Call.ID == "" && out.Call.Name == "" && out.Redacted == "" {
		return nil // all of it waits
	}
	return emit(out)
}

// choice returns what is known of an event's choice, and takes note of the event.
func (s *eventScrubber) choice(e *execution.Event) (*choiceTexts, error) {
	c := s.choices[e.Choice]
	if c == nil {
		if len(s.choices) >= execution.MaxChoices {
			return nil, s.fail("the provider's answer has too many choices")
		}
		c = &choiceTexts{}
		s.choices[e.Choice] = c
	}
	if e.Text == "" || e.Kind != execution.EventText && e.Kind != execution.EventRefusal || e.Kind == c.said {
		return c, nil
	}
	if c.mixed {
		return nil, s.fail("the provider's answer alternates between an answer and a refusal")
	}
	c.said, c.mixed = e.Kind, c.said != 0
	return c, nil
}

// look takes a piece of a text, and returns what may go on: what was of the other kind, and what is of the piece's own.
func (s *eventScrubber) look(id textID, kind execution.EventKind, piece string) (before, after string, err error) {
	at := slices.IndexFunc(s.tails, func(t textTail) bool { return t.id == id })
	s.text = append(s.text[:0], piece...)
	if at < 0 {
		out := s.scrub.push(s.text)
		switch {
		case len(s.scrub.held) > 0:
			err = s.keep(textTail{tail: s.scrub.tail, id: id, kind: kind})
		case string(out) == piece:
			return "", piece, nil
		}
		return "", string(out), err
	}
	t := &s.tails[at]
	if t.kind != kind {
		t.kind, t.other = kind, len(t.held)
	}
	held := len(t.held) + len(piece)
	s.swap(t)
	out := s.scrub.push(s.text)
	s.swap(t)
	if before, after = t.cut(out, held-len(t.held)); len(t.held) == 0 {
		s.drop(at)
	}
	return before, after, nil
}

// swap makes a tail the one that s.scrub goes on with, and takes it back.
func (s *eventScrubber) swap(t *textTail) { s.scrub.tail, t.tail = t.tail, s.scrub.tail }

// cut cuts what goes on where the kind changed. border is how much of what was held is held no more.
func (t *textTail) cut(out []byte, border int) (before, after string) {
	first := border - len(out) // where out stands in what was held
	n := max(0, min(t.other, border)-first)
	t.other = max(0, t.other-border)
	return string(out[:n]), string(out[n:])
}

// keep remembers a tail, and takes it from s.scrub.
func (s *eventScrubber) keep(t textTail) error {
	if len(s.tails) >= maxTails {
		return s.fail("too many texts of the provider's answer end where a credential may have begun")
	}
	var spare []byte
	if n := len(s.tails); cap(s.tails) > n {
		spare = s.tails[:n+1][n].held[:0]
	}
	s.tails, s.scrub.tail = append(s.tails, t), tail{held: spare}
	return nil
}

// drop forgets a tail in which nothing is held.
func (s *eventScrubber) drop(at int) {
	t := s.tails[at]
	last := len(s.tails) - 1
	copy(s.tails[at:], s.tails[at+1:])
	s.tails[last] = t
	s.tails = s.tails[:last]
}

// leave gives what can't wait until the text goes on, as that of another comes: the little that tells nothing, and the
// rest of a signature, which belongs to the thought that it was for.
func (s *eventScrubber) leave(id textID, emit func(*execution.Event) error) error {
	at := slices.IndexFunc(s.tails, func(t textTail) bool { return t.id == id })
	if at < 0 {
		return nil
	}
	if id.signature {
		return s.end(at, emit)
	}
	t := &s.tails[at]
	s.swap(t)
	out := s.scrub.release()
	s.swap(t)
	return t.emit(out, len(t.held), emit)
}

// end gives what was held back of a text that is over.
func (s *eventScrubber) end(at int, emit func(*execution.Event) error) error {
	t := &s.tails[at]
	held := len(t.held)
	s.swap(t)
	out := s.scrub.finish()
	s.swap(t)
	over := *t
	s.drop(at)
	return over.emit(out, held, emit)
}

// emit gives out, the end of what was held, which was so many bytes.
func (t *textTail) emit(out []byte, held int, emit func(*execution.Event) error) error {
	n := max(0, t.other-(held-len(out)))
	if err := emitPiece(t.id, otherKind(t.kind), string(out[:n]), emit); err != nil {
		return err
	}
	return emitPiece(t.id, t.kind, string(out[n:]), emit)
}

// emitPiece gives a piece of a text by itself, if there is one.
func emitPiece(id textID, kind execution.EventKind, piece string, emit func(*execution.Event) error) error {
	if piece == "" {
		return nil
	}
	e := execution.Event{Kind: kind, Choice: id.choice, Call: execution.ToolCallDelta{Index: id.call}}
	if id.signature {
		e.Signature = piece
	} else {
		*textOf(&e) = piece
	}
	return emit(&e)
}

// otherKind is the kind of text that shares its place with this one in some protocols.
func otherKind(kind execution.EventKind) execution.EventKind {
	switch kind {
	case execution.EventText:
		return execution.EventRefusal
	case execution.EventRefusal:
		return execution.EventText
	}
	return kind
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

// endChoice gives all that was held back of a choice, in the order in which it began.
func (s *eventScrubber) endChoice(choice int, emit func(*execution.Event) error) error {
	for at := 0; at < len(s.tails); {
		if s.tails[at].id.choice != choice {
			at++
		} else if err := s.end(at, emit); err != nil {
			return err
		}
	}
	return nil
}

// finish gives all that was held back, in the order in which it began.
func (s *eventScrubber) finish(emit func(*execution.Event) error) error {
	for len(s.tails) > 0 {
		if err := s.end(0, emit); err != nil {
			return err
		}
	}
	return nil
}

// fail ends the answer: nothing that is held goes on.
func (s *eventScrubber) fail(detail string) error {
	s.failed = adapter.Malformed(detail)
	s.wipe()
	s.tails = s.tails[:0]
	return s.failed
}

// masked is a copy of the event in which whatever stands by itself is masked.
func (s *eventScrubber) masked(e *execution.Event) *execution.Event {
	s.event = *e
	out := &s.event
	mask := s.scrub.needles.mask
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
	for _, t := range s.tails[:cap(s.tails)] {
		t.wipe()
	}
	s.scrub.wipe()
	clear(s.text[:cap(s.text)])
}
