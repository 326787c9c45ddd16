package tunnel

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"iop/execution"
	"iop/tunnel/wire"
)

// MaxEvent bounds one event of a normalized run, in bytes without its length prefix: a reader holds one in pieces.
const MaxEvent = wire.MaxEvent

// ErrEventTooLarge is in the chain of the error for an event over MaxEvent.
var ErrEventTooLarge = fmt.Errorf("an event over %d bytes", MaxEvent)

var errEvent = errors.New("a malformed event")

// Fields of wire.RunEvent and of what it holds, as iop.proto numbers them.
const (
	eventText       protowire.Number = 1
	eventReasoning  protowire.Number = 2
	eventToolCall   protowire.Number = 3
	eventFinish     protowire.Number = 4
	eventUsage      protowire.Number = 5
	eventRefusal    protowire.Number = 6
	eventChoice     protowire.Number = 7
	eventStarted    protowire.Number = 8
	eventAnnotation protowire.Number = 9
	eventFailure    protowire.Number = 10
)

// AppendRunEvent appends one event as it travels in EVENT frames: its length, then a wire.RunEvent. An event of a kind
// that is not in the contract appends nothing. It does not allocate unless dst must grow or a text is not as it must
// be: bytes that are no UTF-8 become U+FFFD, and JSON loses its line ends. A date that nobody can write is left out.
func AppendRunEvent(dst []byte, e *execution.Event) []byte {
	const room = binary.MaxVarintLen32
	start := len(dst)
	dst = append(dst, make([]byte, room)...)
	body := len(dst)
	dst, ok := appendEventKind(dst, e)
	if !ok {
		return dst[:start]
	}
	if e.Choice > 0 {
		dst = appendUint(dst, eventChoice, uint64(e.Choice))
	}
	// The length is known only now: it goes in front, and what follows moves up to it.
	size := len(dst) - body
	n := binary.PutUvarint(dst[start:body], uint64(size))
	copy(dst[start+n:], dst[body:])
	return dst[:start+n+size]
}

func appendEventKind(dst []byte, e *execution.Event) (_ []byte, ok bool) {
	var at int
	switch e.Kind {
	case execution.EventText:
		dst, at = beginMessage(dst, eventText)
		dst = appendText(dst, e, false)
	case execution.EventRefusal:
		dst, at = beginMessage(dst, eventRefusal)
		dst = appendText(dst, e, false)
	case execution.EventReasoning:
		dst, at = beginMessage(dst, eventReasoning)
		dst = appendText(dst, e, true)
	case execution.EventToolCall:
		dst, at = beginMessage(dst, eventToolCall)
		dst = appendUint(dst, 1, uint64(max(e.Call.Index, 0)))
		dst = appendString(dst, 2, e.Call.ID)
		dst = appendString(dst, 3, e.Call.Name)
		dst = appendString(dst, 4, e.Call.Arguments)
	case execution.EventFinish:
		dst, at = beginMessage(dst, eventFinish)
		dst = appendString(dst, 1, string(e.Finish.Reason))
		dst = appendString(dst, 2, e.Finish.StopWord)
	case execution.EventUsage:
		dst, at = beginMessage(dst, eventUsage)
		dst = appendUsage(dst, e.Usage)
	case execution.EventStarted:
		dst, at = beginMessage(dst, eventStarted)
		dst = appendStarted(dst, e.Started)
	case execution.EventFailure:
		dst, at = beginMessage(dst, eventFailure)
		dst = appendFailure(dst, e.Failure)
	case execution.EventAnnotation:
		return appendJSON(dst, eventAnnotation, e.Annotation), true
	default:
		return dst, false
	}
	return endMessage(dst, at), true
}

// beginMessage appends a field's tag and room for a length of one byte; endMessage sets it, and makes more room where
// that is too little.
func beginMessage(dst []byte, field protowire.Number) ([]byte, int) {
	dst = protowire.AppendTag(dst, field, protowire.BytesType)
	return append(dst, 0), len(dst) + 1
}

func endMessage(dst []byte, at int) []byte {
	size := len(dst) - at
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(size))
	dst = append(dst, length[:n-1]...)
	copy(dst[at-1+n:], dst[at:at+size])
	copy(dst[at-1:], length[:n])
	return dst
}

// appendUint leaves 0 out, as proto3 does; appendString and appendJSON leave out what is empty.
func appendUint(dst []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), v)
}

func appendString(dst []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return dst
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	return protowire.AppendString(protowire.AppendTag(dst, field, protowire.BytesType), s)
}

// appendJSON appends JSON in one line: whoever writes it into an event stream need not look for line ends.
func appendJSON(dst []byte, field protowire.Number, raw json.RawMessage) []byte {
	if len(raw) == 0 && field != eventAnnotation {
		return dst
	}
	if hasControl(raw) {
		var flat bytes.Buffer
		if json.Compact(&flat, raw) == nil {
			raw = flat.Bytes()
		}
	}
	return protowire.AppendBytes(protowire.AppendTag(dst, field, protowire.BytesType), raw)
}

func hasControl(raw []byte) bool {
	for _, c := range raw {
		if c < 0x20 {
			return true
		}
	}
	return false
}

func appendText(dst []byte, e *execution.Event, reasoning bool) []byte {
	dst = appendString(dst, 1, e.Text)
	if !reasoning {
		return appendJSON(dst, 2, e.Logprobs)
	}
	dst = appendString(dst, 3, e.Signature)
	return appendString(dst, 4, e.Redacted)
}

func appendUsage(dst []byte, u *execution.Usage) []byte {
	if u == nil {
		return dst
	}
	dst = appendUint(dst, 1, uint64(max(u.Input, 0)))
	dst = appendUint(dst, 2, uint64(max(u.Output, 0)))
	dst = appendUint(dst, 3, uint64(max(u.Cached, 0)))
	dst = appendUint(dst, 4, uint64(max(u.Reasoning, 0)))
	if u.Estimated {
		dst = appendUint(dst, 5, 1)
	}
	return dst
}

func appendStarted(dst []byte, s *execution.Started) []byte {
	if s == nil {
		return dst
	}
	dst = appendString(dst, 1, s.ID)
	dst = appendString(dst, 2, s.Model)
	if at := s.Created.Unix(); at > 0 && at <= maxUnixSeconds { // some providers write milliseconds: that is no date
		dst = appendUint(dst, 3, uint64(at))
	}
	if s.Usage.Known {
		var at int
		dst, at = beginMessage(dst, 4)
		dst = endMessage(appendUsage(dst, &s.Usage), at)
	}
	return dst
}

func appendFailure(dst []byte, f *execution.Failure) []byte {
	if f == nil {
		return dst
	}
	dst = appendUint(dst, 1, uint64(min(max(f.Status, 0), 599)))
	dst = appendString(dst, 2, f.Type)
	dst = appendString(dst, 3, f.Code)
	dst = appendString(dst, 4, string(f.Param))
	dst = appendString(dst, 5, f.Message)
	dst = appendUint(dst, 6, uint64(millis(f.RetryAfter)))
	if f.Unsupported {
		dst = appendUint(dst, 7, 1)
	}
	return dst
}

// wholeEvents checks that p is whole delimited events, each within MaxEvent.
func wholeEvents(p []byte) error {
	for len(p) > 0 {
		size, n, err := eventLength(p)
		switch {
		case err != nil:
			return err
		case n == 0 || len(p)-n < size:
			return fmt.Errorf("%w: its end is missing", errEvent)
		}
		p = p[n+size:]
	}
	return nil
}

// eventLength reads the length that stands before an event; n is 0 if it is not whole yet.
func eventLength(p []byte) (size, n int, err error) {
	length, n := binary.Uvarint(p)
	switch {
	case n < 0 || length > MaxEvent:
		return 0, 0, ErrEventTooLarge
	case n == 0 && len(p) >= binary.MaxVarintLen32:
		return 0, 0, ErrEventTooLarge
	}
	return int(length), n, nil
}

// EventReader takes the events of a normalized run out of what Take gives, whose borders are not those of events. Its
// zero value is ready. It holds one unfinished event at most. It is for one goroutine.
type EventReader struct {
	held  []byte
	event execution.Event
}

// Push takes data as it came, and gives each event that is whole to f, in order. The event is f's until it returns; what
// it points to stays. An error of f is returned as it is and ends the reading. Others are a peer's fault (ErrEventTooLarge
// among them). After an error the reader must not be used.
func (r *EventReader) Push(data []byte, f func(*execution.Event) error) error {
	if len(r.held) > 0 {
		r.held = append(r.held, data...)
		data = r.held
	}
	for len(data) > 0 {
		n, err := ParseRunEvent(data, &r.event)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		data = data[n:]
		if err := f(&r.event); err != nil {
			return err
		}
	}
	// It may be the tail of held itself: copied to its head.
	r.held = append(r.held[:0], data...)
	if len(r.held) == 0 && cap(r.held) > 64<<10 {
		r.held = nil
	}
	return nil
}
