package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// MaxEventSize is the longest event that an EventReader takes, in bytes of lines.
const MaxEventSize = 32 << 20

// ErrEventTooLarge is what an EventReader returns for an event over MaxEventSize. The stream can't be read further.
var ErrEventTooLarge = errors.New("a stream event is larger than the limit")

// Event is one event as a client of the stream sees it.
type Event struct {
	Type string // the event field; empty means "message"
	ID   string // the last id that the stream has set, which lasts
	Data []byte // the data lines, joined with LF; valid until the next call of Next
}

// EventReader reads an event stream as the HTML standard interprets one (section 9.2.6), for clients of ours: load
// generator, tests. It is as strict as the standard: an event that the stream's end cuts off is not dispatched. The
// one liberty is that invalid UTF-8 is left as it is. Not safe for concurrent use.
type EventReader struct {
	r       io.Reader
	err     error // of r, once it failed
	buf     []byte
	at, end int // buf[at:end] is read but not taken
	begun   bool
	skipLF  bool // the last line ended with CR
	line    []byte
	data    []byte
	hasData bool
	typ     string
	id      string
}

// NewEventReader returns a reader of the stream r. It reads ahead.
func NewEventReader(r io.Reader) *EventReader {
	return &EventReader{r: r, buf: make([]byte, 16<<10)}
}

// Next returns the next event. At the stream's end it returns io.EOF, whether or not that cut an event off.
func (r *EventReader) Next() (Event, error) {
	r.data, r.hasData, r.typ = r.data[:0], false, ""
	for {
		line, err := r.readLine()
		if err != nil {
			return Event{}, err
		}
		if len(line) > 0 {
			if err := r.field(line); err != nil {
				return Event{}, err
			}
			continue
		}
		if r.hasData {
			return Event{Type: r.typ, ID: r.id, Data: r.data[:len(r.data)-1]}, nil
		}
		r.typ = ""
	}
}

func (r *EventReader) field(line []byte) error {
	if line[0] == ':' {
		return nil
	}
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "data":
		if len(r.data)+len(value) > MaxEventSize {
			return ErrEventTooLarge
		}
		r.data = append(append(r.data, value...), '\n')
		r.hasData = true
	case "event":
		if string(value) != r.typ {
			r.typ = string(value)
		}
	case "id":
		if bytes.IndexByte(value, 0) < 0 && string(value) != r.id {
			r.id = string(value)
		}
	}
	return nil
}

// readLine returns the next line without its end. A line that the stream's end cuts off is not returned.
func (r *EventReader) readLine() ([]byte, error) {
	r.line = r.line[:0]
	for {
		if r.at == r.end {
			if err := r.fill(); err != nil {
				return nil, err
			}
		}
		if r.skipLF {
			r.skipLF = false
			if r.buf[r.at] == '\n' {
				r.at++
				continue
			}
		}
		fresh := r.buf[r.at:r.end]
		i := lineBreak(fresh)
		if i < 0 {
			if len(r.line)+len(fresh) > MaxEventSize {
				return nil, ErrEventTooLarge
			}
			r.line = append(r.line, fresh...)
			r.at = r.end
			continue
		}
		r.skipLF = fresh[i] == '\r' // so that a line is out before the byte behind it has come
		r.at += i + 1
		line := fresh[:i]
		if len(r.line) > 0 {
			r.line = append(r.line, line...)
			line = r.line
		}
		if !r.begun {
			r.begun = true
			line = bytes.TrimPrefix(line, byteOrderMark)
		}
		return line, nil
	}
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

// fill reads more; it returns nil only with at least one byte.
func (r *EventReader) fill() error {
	r.at, r.end = 0, 0
	for empty := 0; r.err == nil; empty++ {
		if empty == 100 {
			r.err = io.ErrNoProgress
			break
		}
		r.end, r.err = r.r.Read(r.buf)
		if r.end > 0 {
			return nil
		}
	}
	if r.err != io.EOF {
		return fmt.Errorf("read the event stream: %w", r.err)
	}
	return io.EOF
}
