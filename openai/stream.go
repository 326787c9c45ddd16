package openai

import (
	"bytes"

	"iop/execution"
)

// Limits of a StreamFilter's memory.
const (
	// maxHeld is the longest event that is held back for a decision, in bytes. A usage event or an error is a few
	// hundred; what grows longer than this is content and goes on as it arrives.
	maxHeld = 64 << 10
	// maxEvent is the longest event that is read as JSON. Of a longer one, which is forwarded all the same, only the
	// head (for its type) and the tail (for usage and finish) are looked at.
	maxEvent = 1 << 20
	headSize = 512
	tailSize = 64 << 10
	// keepCapacity is the largest buffer that is kept from one event to the next.
	keepCapacity = 64 << 10
)

// StreamFilter reads a provider's event stream (or NDJSON) as it passes. It forwards bytes, never events: what comes
// out is what went in, in the same order, whatever the pushes' sizes. The exceptions are few:
//
//   - the usage-only chunk of a chat stream is dropped where the client did not ask for it;
//   - after [DONE] the blank line is completed if it is missing or was not yet there, and all after it is dropped;
//   - after an error all is dropped, and so is the [DONE] that some engines send then (see [StreamError]);
//   - an event that is whole but for its blank line when the stream ends gets that blank line.
//
// The first event, and with withholding any event that may still turn out to be the usage-only chunk, is held until it
// is known what it is; so an error that comes first can still become an HTTP status. A push of whole events is neither
// held nor copied, unless one in its middle is dropped.
//
// A filter is for one stream and one goroutine. The zero value is not usable.
type StreamFilter struct {
	// Static after NewStreamFilter.
	kind     StreamKind
	withhold bool

	// What the stream has told.
	events   int
	taken    int64 // bytes of whole events
	produced int   // events with output
	reported int   // of those, how many had come when usage was last reported
	complete bool
	done     bool // [DONE]
	ended    bool // nothing more is forwarded
	usage    execution.Usage
	finished int             // choices that ended
	endings  uint64          // a bit for each of them, by its index, of the first 64
	totals   int             // chunks that hold usage and no choices
	parts    execution.Usage // sum of the usage that came with choices, or of answers
	shares   []choiceShare   // of parts, by the choices' indices
	failure  *StreamError    // nil while there is none
	dull     shape
	joined   []byte // scratch for data of several lines

	// The event that the last push left open. Empty buf: none.
	buf       []byte // its bytes; the last of them if cut
	head      []byte // its first bytes, if cut
	size      int    // its length so far
	lineStart int    // where in buf its last line begins
	held      int    // buf[:held] came with earlier pushes and is not forwarded yet
	searched  int    // how far buf was searched for choices
	cut       bool   // buf holds the tail only
	partial   bool   // some of it was forwarded
	comment   bool   // a comment line is open instead; it is not buffered

	// Line ends. A CR at the end of a push may be half of a CRLF.
	cr      bool // the last byte was a CR that ended a line
	crDrops bool // and what it ended was dropped, so an LF goes with it
	lone    bool // a CR without LF was seen: this stream uses them
	midway  bool // Finish left the stream inside an event

	// The output of the current push: p[lo:hi], or out if copied.
	lo, hi int
	out    []byte
	copied bool
}

// NewStreamFilter returns a filter for one stream. withholdUsage drops the usage-only chunk; it has no meaning for
// kinds other than StreamChat.
func NewStreamFilter(kind StreamKind, withholdUsage bool) *StreamFilter {
	return &StreamFilter{kind: kind, withhold: withholdUsage && kind == StreamChat}
}

// verdict is what becomes of the bytes up to the end of a line.
type verdict uint8

const (
	more verdict = iota // the event goes on
	pass                // an event, a comment or a blank line ended: forward it
	drop                // an event ended: withhold it
	stop                // the line is [DONE]
	last                // an event ended: forward it and nothing after it
)

// Push takes the next bytes of the stream and returns those that may be forwarded now, and whether all that was
// forwarded so far ends at an event border, where a comment or an error event may be put. out aliases p or memory of
// the filter and is valid until p changes or the filter is called again.
func (f *StreamFilter) Push(p []byte) (out []byte, atBorder bool) {
	f.begin()
	if f.ended || len(p) == 0 {
		return nil, f.AtBorder()
	}
	i := f.resume(p)
	if i < len(p) && !f.ended {
		f.scan(p, i)
	}
	if f.copied {
		return f.out, f.AtBorder()
	}
	return p[f.lo:f.hi:f.hi], f.AtBorder()
}

// AtBorder reports whether all that was forwarded so far ends at an event border.
func (f *StreamFilter) AtBorder() bool {
	switch {
	case f.midway || f.comment || f.partial:
		return false
	case f.cr && len(f.buf) == 0:
		return f.lone || f.crDrops // else an LF may follow that belongs to it
	}
	return true
}

// scan goes over p from i, where no event is open. This is the path of every whole event.
func (f *StreamFilter) scan(p []byte, i int) {
	hasCR := f.kind != StreamOllama && bytes.IndexByte(p[i:], '\r') >= 0
	from, start := i, i // the first byte not yet emitted; of the event
	var single []byte   // the event's line, if it has one so far
	var v verdict
	for i < len(p) {
		end, next := f.lineEnd(p, i, hasCR)
		if end < 0 {
			break
		}
		line := p[i:end]
		switch v = f.take(p[start:end], line, single, i == start, end-start); v {
		case more:
			if i == start {
				single = line
			} else {
				single = nil
			}
			i = next
			continue
		case drop:
			f.emit(p, from, start)
			from = next
		case stop, last:
			f.emit(p, from, end)
			f.seal(p, end, v)
			return
		}
		i, start, single = next, next, nil
	}
	f.emit(p, from, start)
	f.noteCR(p, i, hasCR, start == len(p) && v == drop)
	if start < len(p) {
		f.open(p, start, i)
	}
}

// lineEnd finds the end of the line at i and the start of the next one; -1 if the line does not end in p.
func (f *StreamFilter) lineEnd(p []byte, i int, hasCR bool) (end, next int) {
	n := bytes.IndexByte(p[i:], '\n')
	if hasCR {
		rest := p[i:]
		if n >= 0 {
			rest = rest[:n]
		}
		if c := bytes.IndexByte(rest, '\r'); c >= 0 {
			end, next = i+c, i+c+1
			if next < len(p) {
				if p[next] == '\n' {
					next++
				} else {
					f.lone = true
				}
			}
			return end, next
		}
	}
	if n < 0 {
		return -1, -1
	}
	return i + n, i + n + 1
}

// noteCR remembers whether p, all of whose lines up to i are done, ended with a CR.
func (f *StreamFilter) noteCR(p []byte, i int, hasCR, dropped bool) {
	f.cr = hasCR && i == len(p) && p[i-1] == '\r'
	f.crDrops = f.cr && dropped
}

// take looks at one line. ev is the event's bytes up to the line's end, size their number (ev may be cut).
func (f *StreamFilter) take(ev, line, single []byte, fresh bool, size int) verdict {
	switch {
	case f.kind == StreamOllama:
		if size > maxEvent {
			f.events++
			f.taken += int64(size)
			f.tail(ev)
			return pass
		}
		return f.ollama(line)
	case len(line) == 0:
		if fresh {
			return pass
		}
		return f.event(ev, single, size)
	case line[0] == ':' && fresh:
		return pass
	case isDone(line):
		return stop
	}
	return more
}

// isDone reports whether the line is `data: [DONE]`, give or take white space.
func isDone(line []byte) bool {
	const field, done = "data:", "[DONE]"
	if len(line) < len(field+done) || len(line) > 32 || string(line[:len(field)]) != field {
		return false
	}
	return string(bytes.TrimSpace(line[len(field):])) == done
}
