package tunnel

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"iop/execution"
)

// ParseRunEvent reads the first event of data, as AppendRunEvent writes it, into e, all of it. n is how many bytes it
// took; 0 with no error: the event is not whole yet. Kinds and fields are closed: one that is not in the contract, a
// field that comes twice, text that is no UTF-8, JSON that is none or has line ends, and a number out of its bounds are
// errors, as an event over MaxEvent is (ErrEventTooLarge). What e points to is e's own, not data's.
func ParseRunEvent(data []byte, e *execution.Event) (n int, err error) {
	size, n, err := eventLength(data)
	if err != nil || n == 0 || len(data)-n < size {
		return 0, err
	}
	*e = execution.Event{}
	if err := parseEvent(data[n:n+size], e); err != nil {
		return 0, err
	}
	return n + size, nil
}

// fields walks through the fields of a message, each of which may come once: next, then one of the methods that take its
// value. The first error ends the walk.
type fields struct {
	rest   []byte
	seen   uint64
	num    protowire.Number
	typ    protowire.Type
	number uint64 // of VarintType
	bytes  []byte // of BytesType
	err    error
}

// next reports whether there is another field.
func (s *fields) next() bool {
	if s.err != nil || len(s.rest) == 0 {
		return false
	}
	var n, size int
	if s.num, s.typ, n = protowire.ConsumeTag(s.rest); n < 0 {
		s.err = errEvent
		return false
	}
	switch s.typ {
	case protowire.VarintType:
		s.number, size = protowire.ConsumeVarint(s.rest[n:])
	case protowire.BytesType:
		s.bytes, size = protowire.ConsumeBytes(s.rest[n:])
	default:
		size = -1
	}
	if size < 0 || s.num >= 64 || s.seen&(1<<s.num) != 0 {
		s.fail("is malformed, unknown or duplicated")
		return false
	}
	s.seen |= 1 << s.num
	s.rest = s.rest[n+size:]
	return true
}

func (s *fields) fail(what string) {
	if s.err == nil {
		s.err = fmt.Errorf("%w: field %d %s", errEvent, s.num, what)
	}
}

// unknown is for a field that is not in the contract.
func (s *fields) unknown() { s.fail("is unknown") }

func (s *fields) text() string {
	if s.typ != protowire.BytesType || !utf8.Valid(s.bytes) {
		s.fail("is not valid UTF-8")
		return ""
	}
	return string(s.bytes)
}

// json takes an array or an object, as opening says.
func (s *fields) json(opening byte) json.RawMessage {
	if s.typ != protowire.BytesType || len(s.bytes) == 0 || s.bytes[0] != opening || hasControl(s.bytes) || !json.Valid(s.bytes) {
		s.fail("is not its JSON in one line")
		return nil
	}
	return append(json.RawMessage(nil), s.bytes...)
}

// within takes a number from 0 to most.
func (s *fields) within(most uint64) int64 {
	if s.typ != protowire.VarintType || s.number > most {
		s.fail("is out of bounds")
		return 0
	}
	return int64(s.number)
}

func (s *fields) count() int64 { return s.within(math.MaxInt64) }

func (s *fields) flag() bool { return s.within(1) == 1 }

func (s *fields) message() []byte {
	if s.typ != protowire.BytesType {
		s.fail("is not a message")
		return nil
	}
	return s.bytes
}

func parseEvent(p []byte, e *execution.Event) error {
	s := fields{rest: p}
	for s.next() {
		switch {
		case s.num == eventChoice:
			e.Choice = int(s.within(execution.MaxChoices - 1))
		case e.Kind != 0:
			s.fail("is a second kind")
		default:
			s.kind(e)
		}
	}
	if s.err == nil && e.Kind == 0 {
		return fmt.Errorf("%w: of no kind", errEvent)
	}
	return s.err
}

func (s *fields) kind(e *execution.Event) {
	p := s.message()
	var err error
	switch s.num {
	case eventText:
		err = parseText(p, e, execution.EventText)
	case eventRefusal:
		err = parseText(p, e, execution.EventRefusal)
	case eventReasoning:
		err = parseText(p, e, execution.EventReasoning)
	case eventToolCall:
		err = parseToolCall(p, e)
	case eventFinish:
		err = parseFinish(p, e)
	case eventUsage:
		e.Kind, e.Usage = execution.EventUsage, &execution.Usage{}
		err = parseUsage(p, e.Usage)
	case eventStarted:
		err = parseStarted(p, e)
	case eventAnnotation:
		e.Kind, e.Annotation = execution.EventAnnotation, s.json('{')
	case eventFailure:
		err = parseFailure(p, e)
	default:
		s.unknown()
	}
	if s.err == nil {
		s.err = err
	}
}

func parseText(p []byte, e *execution.Event, kind execution.EventKind) error {
	e.Kind = kind
	reasoning := kind == execution.EventReasoning
	s := fields{rest: p}
	for s.next() {
		switch {
		case s.num == 1:
			e.Text = s.text()
		case s.num == 2 && !reasoning:
			e.Logprobs = s.json('[')
		case s.num == 3 && reasoning:
			e.Signature = s.text()
		case s.num == 4 && reasoning:
			e.Redacted = s.text()
		default:
			s.unknown()
		}
	}
	return s.err
}

func parseToolCall(p []byte, e *execution.Event) error {
	e.Kind = execution.EventToolCall
	s := fields{rest: p}
	for s.next() {
		switch s.num {
		case 1:
			e.Call.Index = int(s.within(execution.MaxToolCalls - 1))
		case 2:
			e.Call.ID = s.text()
		case 3:
			e.Call.Name = s.text()
		case 4:
			e.Call.Arguments = s.text()
		default:
			s.unknown()
		}
	}
	return s.err
}

func parseFinish(p []byte, e *execution.Event) error {
	e.Kind = execution.EventFinish
	s := fields{rest: p}
	for s.next() {
		switch s.num {
		case 1:
			e.Finish.Reason = execution.FinishReason(s.text())
		case 2:
			e.Finish.StopWord = s.text()
		default:
			s.unknown()
		}
	}
	if s.err != nil {
		return s.err
	}
	switch e.Finish.Reason {
	case execution.FinishStop, execution.FinishStopWord, execution.FinishLength, execution.FinishToolCalls, execution.FinishFilter, execution.FinishPause:
		return nil
	}
	return fmt.Errorf("%w: no reason to finish of that name", errEvent)
}

func parseUsage(p []byte, u *execution.Usage) error {
	u.Known = true
	s := fields{rest: p}
	for s.next() {
		switch s.num {
		case 1:
			u.Input = s.count()
		case 2:
			u.Output = s.count()
		case 3:
			u.Cached = s.count()
		case 4:
			u.Reasoning = s.count()
		case 5:
			u.Estimated = s.flag()
		default:
			s.unknown()
		}
	}
	return s.err
}

// maxUnixSeconds is the end of the year 9999: what RFC 3339 can write.
const maxUnixSeconds = 253402300799

func parseStarted(p []byte, e *execution.Event) error {
	started := &execution.Started{}
	e.Kind, e.Started = execution.EventStarted, started
	s := fields{rest: p}
	for s.next() {
		switch s.num {
		case 1:
			started.ID = s.text()
		case 2:
			started.Model = s.text()
		case 3:
			if seconds := s.within(maxUnixSeconds); seconds > 0 {
				started.Created = time.Unix(seconds, 0)
			}
		case 4:
			if usage := s.message(); s.err == nil {
				s.err = parseUsage(usage, &started.Usage)
			}
		default:
			s.unknown()
		}
	}
	return s.err
}

func parseFailure(p []byte, e *execution.Event) error {
	f := &execution.Failure{}
	e.Kind, e.Failure = execution.EventFailure, f
	s := fields{rest: p}
	for s.next() {
		switch s.num {
		case 1:
			f.Status = int(s.within(599))
		case 2:
			f.Type = s.text()
		case 3:
			f.Code = s.text()
		case 4:
			f.Param = execution.Param(s.text())
		case 5:
			f.Message = s.text()
		case 6:
			f.RetryAfter = time.Duration(s.within(math.MaxUint32)) * time.Millisecond
		case 7:
			f.Unsupported = s.flag()
		default:
			s.unknown()
		}
	}
	return s.err
}
