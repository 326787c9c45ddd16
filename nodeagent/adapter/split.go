package adapter

import (
	"bytes"
	"errors"

	"iop/execution"
)

// MaxEvent bounds one event or line of a provider's stream, in bytes: far above what any provider sends, and what a
// broken one can make the Node remember.
const MaxEvent = 1 << 20

func tooLarge() error {
	return &StreamError{execution.CodeResponseTooLarge, "an event of the provider's stream is larger than 1 MiB"}
}

// Malformed is the error of an answer that is not of its protocol.
func Malformed(detail string) error { return &StreamError{execution.CodeProviderError, detail} }

// Truncated is the error of an answer whose body ended before its protocol's own end.
func Truncated() error {
	return &StreamError{execution.CodeProviderTruncated, "the provider ended its stream without the stream's own end"}
}

// cutOff is the error of an answer's last event or line, which its end completed: if that was malformed it was only cut.
func cutOff(err error) error {
	if s, ok := errors.AsType[*StreamError](err); ok && s.Code == execution.CodeProviderError {
		return Truncated()
	}
	return err
}

// ServerEvent is one event of an event stream. Its fields are valid until the function that was given it returns.
type ServerEvent struct {
	Name []byte // of the event field; nil if there was none
	Data []byte // the data lines, joined with LF; nil if there was none
	Err  []byte // the value of an `error` field, as llama.cpp once wrote it; nil if there was none
}

// EventSplitter cuts an event stream (HTML standard, section 9.2.6) into events as its bytes arrive. The zero value is
// ready. It is for one goroutine.
type EventSplitter struct {
	line     []byte // of the line that the last push left open
	event    ServerEvent
	borrowed bool // what event holds is the caller's memory
	joined   bool // event.Data is buf
	buf      []byte
	open     bool // the event has a field
	begun    bool
	skipLF   bool // the last line ended with CR
	progress int64
}

// Progress returns a number that changes with each push that brought bytes of events, and not with comments.
func (s *EventSplitter) Progress() int64 { return s.progress }

// Push takes the next bytes and gives each event that they complete to each. It stops where each says so, or fails. The
// one error of its own is that of an event over [MaxEvent].
func (s *EventSplitter) Push(p []byte, each func(*ServerEvent) (stop bool, err error)) (stop bool, err error) {
	for len(p) > 0 {
		if s.skipLF {
			s.skipLF = false
			if p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		i := lineBreak(p)
		if i < 0 {
			break
		}
		line := p[:i]
		s.skipLF = p[i] == '\r'
		p = p[i+1:]
		if len(s.line) > 0 {
			if len(s.line)+len(line) > MaxEvent {
				return false, tooLarge()
			}
			line = append(s.line, line...)
			s.line = line[:0]
		}
		if stop, err = s.take(line, each); stop || err != nil {
			return stop, err
		}
	}
	s.own()
	if len(s.line)+len(p) > MaxEvent {
		return false, tooLarge()
	}
	if s.line = append(s.line, p...); len(p) > 0 && s.line[0] != ':' {
		s.progress += int64(len(p))
	}
	return false, nil
}

// End is called when the stream is over: an event that is whole but for its blank line counts.
func (s *EventSplitter) End(each func(*ServerEvent) (stop bool, err error)) (stop bool, err error) {
	if len(s.line) > 0 {
		line := s.line
		s.line = nil
		if stop, err = s.take(line, each); stop || err != nil {
			return stop, err
		}
	}
	return s.take(nil, each)
}

// lineBreak returns the offset of the first LF or CR, -1 if there is none.
func lineBreak(b []byte) int {
	n := bytes.IndexByte(b, '\n')
	if n >= 0 {
		b = b[:n]
	}
	if c := bytes.IndexByte(b, '\r'); c >= 0 {
		return c
	}
	return n
}

// take takes one line.
func (s *EventSplitter) take(line []byte, each func(*ServerEvent) (bool, error)) (stop bool, err error) {
	if !s.begun {
		s.begun = true
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if len(line) > 0 {
		return false, s.field(line)
	}
	if !s.open {
		return false, nil
	}
	s.open, s.joined, s.borrowed = false, false, false
	if s.event.Data == nil && s.event.Err == nil {
		s.event = ServerEvent{}
		return false, nil
	}
	stop, err = each(&s.event)
	s.event = ServerEvent{}
	return stop, err
}

func (s *EventSplitter) field(line []byte) error {
	if line[0] == ':' {
		return nil
	}
	s.progress += int64(len(line))
	name, value, _ := bytes.Cut(line, []byte(":"))
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(name) {
	case "data":
		return s.data(value)
	case "event":
		s.event.Name = value
	case "error":
		s.event.Err = value
	default:
		return nil
	}
	s.open, s.borrowed = true, true
	return nil
}

func (s *EventSplitter) data(value []byte) error {
	s.open, s.borrowed = true, true
	if s.event.Data == nil {
		s.event.Data = value
		return nil
	}
	if len(s.event.Data)+len(value) >= MaxEvent {
		return tooLarge()
	}
	if !s.joined {
		s.joined = true
		s.buf = append(s.buf[:0], s.event.Data...)
	}
	s.buf = append(append(s.buf, '\n'), value...)
	s.event.Data = s.buf
	return nil
}

// own copies what an open event has of the caller's memory, which is the caller's again.
func (s *EventSplitter) own() {
	if !s.borrowed {
		return
	}
	s.borrowed = false
	s.event.Name, s.event.Err = clone(s.event.Name), clone(s.event.Err)
	if s.event.Data != nil && !s.joined {
		s.buf, s.joined = append(s.buf[:0], s.event.Data...), true
		s.event.Data = s.buf
	}
}

// clone is bytes.Clone, but for an empty value: it stays one.
func clone(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append([]byte{}, b...)
}

// LineSplitter cuts a stream of lines, as of NDJSON, as its bytes arrive. Blank lines are left out. The zero value is ready. It
// is for one goroutine.
type LineSplitter struct {
	line     []byte // that the last push left open
	progress int64
}

// Progress is as of [EventSplitter].
func (s *LineSplitter) Progress() int64 { return s.progress }

// Push takes the next bytes and gives each line that they complete to each. It stops where each says so, or fails. The one
// error of its own is that of a line over [MaxEvent].
func (s *LineSplitter) Push(p []byte, each func(line []byte) (stop bool, err error)) (stop bool, err error) {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			break
		}
		line := p[:i]
		p = p[i+1:]
		if len(s.line) > 0 {
			if len(s.line)+len(line) > MaxEvent {
				return false, tooLarge()
			}
			line = append(s.line, line...)
			s.line = line[:0]
		}
		if stop, err = s.take(line, each); stop || err != nil {
			return stop, err
		}
	}
	if len(s.line)+len(p) > MaxEvent {
		return false, tooLarge()
	}
	s.line = append(s.line, p...)
	s.progress += int64(len(bytes.TrimSpace(p)))
	return false, nil
}

// End is called when the stream is over: the last line needs no LF.
func (s *LineSplitter) End(each func(line []byte) (stop bool, err error)) (stop bool, err error) {
	line := s.line
	s.line = nil
	return s.take(line, each)
}

func (s *LineSplitter) take(line []byte, each func([]byte) (bool, error)) (bool, error) {
	if line = bytes.TrimSpace(line); len(line) == 0 {
		return false, nil
	}
	s.progress += int64(len(line))
	return each(line)
}
