package openai

import (
	"bytes"
	"strings"

	"iop/execution"
)

// This file knows what events mean.

// StreamError is an error that a provider put into its 200 stream.
type StreamError struct {
	Err *Error
	// First is set if no other event came before it: if nothing was sent to the client yet, Err can be the answer.
	First bool
	// Visible is set if clients of the protocol raise it from the event itself: all is said then. Otherwise they would
	// read on and take the stream for good, and an in-band error must be put behind the event. Either way the filter
	// forwards nothing after it, but the rest of a Responses stream, whose own end says the same again.
	Visible bool
}

// Events returns how many events with data the stream had, withheld ones too, [DONE] and comments not.
func (f *StreamFilter) Events() int { return f.events }

// Progress returns a number that changes with each push that brought bytes of events, and stays with one that brought
// nothing but comments and blank lines.
func (f *StreamFilter) Progress() int64 { return f.taken + int64(f.size) }

// Ended reports whether nothing more is forwarded, whatever is pushed: the stream is over, or broke with an error.
func (f *StreamFilter) Ended() bool { return f.ended }

// Complete reports whether the protocol's terminal was seen: a finish_reason or [DONE]; response.completed,
// .incomplete or .failed; message_stop; done:true. A stream with an ErrorEvent may be complete as well, as engines
// send [DONE] after an error: look at that first.
func (f *StreamFilter) Complete() bool { return f.complete }

// SawDone reports whether [DONE] was seen. The stream then ends at once, whether or not the provider closes it: some
// clients wait for the connection's end, others take what follows for content.
func (f *StreamFilter) SawDone() bool { return f.done }

// Usage returns what the provider reported so far; of a whole stream that is all. Of an event over 1 MiB it is
// found if it stands in the last 64 KiB.
func (f *StreamFilter) Usage() execution.Usage { return f.usage }

// Spent returns what a stream that was cut off had used by then. What the provider reported counts; events with output
// that came after its last report, or without any, are counted as a token each, which is how engines send them, or by their text where it
// is long, and the usage is marked as estimated. An error is no output, unless it holds what the model wrote.
func (f *StreamFilter) Spent() execution.Usage {
	u := f.usage
	if unreported := f.produced - f.reported; unreported > 0 {
		u.Output = addCounts(u.Output, int64(unreported))
		u.Known, u.Estimated = true, true
	}
	return u
}

// report takes what the provider said of usage.
func (f *StreamFilter) report(u execution.Usage) { f.usage, f.reported = u, f.produced }

// ErrorEvent returns the first error that the stream reported, nil if none.
func (f *StreamFilter) ErrorEvent() *StreamError { return f.failure }

func (f *StreamFilter) fault(e *Error, visible bool) {
	if f.failure == nil {
		f.failure = &StreamError{Err: e, First: f.events == 1, Visible: visible}
	}
}

var byteOrderMark = []byte("\ufeff")

// event looks at a whole event: its bytes without the blank line, single its one line or nil, size its true length.
func (f *StreamFilter) event(ev, single []byte, size int) verdict {
	f.taken += int64(size)
	if size > maxEvent {
		f.events++
		f.tail(ev)
		return pass
	}
	var data, name, oldError []byte
	var ok bool
	if data, ok = fieldValue(single, "data:"); !ok {
		data, name, oldError = f.fields(ev)
	}
	switch {
	case len(oldError) > 0: // llama.cpp once wrote `error: {...}` as a field of its own, which no client reads
		f.events++
		f.fault(streamedError(oldError), false)
		return last
	case len(data) == 0:
		return pass
	}
	f.events++
	former, v := f.failure, pass
	switch f.kind {
	case StreamChat:
		v = f.chat(ev, data, name, size)
	case StreamResponses, StreamMessages, StreamMedia:
		v = f.typed(data, name)
	}
	if f.failure != former {
		f.failed(data)
	}
	return v
}

const (
	// tokenText is the longest text, in bytes, that an event of one token has: hardly any token is longer.
	tokenText = 16
	// shortDelta is the longest event of Responses or Messages of which the text is not looked at.
	shortDelta = 100
)

// TokensIn returns how many tokens an event with so many bytes of text counts as, at least 1. Engines send one each; clouds gather several,
// and a stream that its client cuts off right before the usage must not cost a fraction for that.
func TokensIn(text int) int {
	if text <= tokenText {
		return 1
	}
	return text / tokenBytes
}

// What stands before the text of an event: of Responses, and of Messages one after another. They begin with a letter: a needle
// that begins with a quote stops at every one.
var responsesDelta, messagesDelta, messagesType, valueStart = []byte(`delta":"`), []byte(`delta":{`), []byte(`_delta","`), []byte(`":"`)

// deltaTokens is TokensIn for an event of Responses or Messages. In a string their names would have escaped quotes.
func deltaTokens(data []byte) int {
	if len(data) <= shortDelta {
		return 1
	}
	_, text, found := bytes.Cut(data, responsesDelta)
	if !found {
		_, text, _ = bytes.Cut(data, messagesDelta)
		_, text, _ = bytes.Cut(text, messagesType)
		_, text, _ = bytes.Cut(text, valueStart)
	}
	n := 0
	for n < len(text) && text[n] != '"' {
		if text[n] == '\\' {
			n++
		}
		n++
	}
	return TokensIn(n)
}

// fields reads an event of any number of lines. error is a field that no specification knows.
func (f *StreamFilter) fields(ev []byte) (data, name, oldError []byte) {
	if f.events == 0 {
		ev = bytes.TrimPrefix(ev, byteOrderMark)
	}
	lines := 0
	for len(ev) > 0 {
		var line []byte
		line, ev = cutLine(ev)
		if value, ok := fieldValue(line, "data:"); ok {
			if lines++; lines == 1 {
				data = value
				continue
			}
			if lines == 2 {
				f.joined = append(f.joined[:0], data...)
			}
			f.joined = append(append(f.joined, '\n'), value...)
			data = f.joined
		} else if value, ok := fieldValue(line, "event:"); ok {
			name = value
		} else if value, ok := fieldValue(line, "error:"); ok {
			oldError = value
		}
	}
	if cap(f.joined) > keepCapacity {
		f.joined = nil // data still holds it
	}
	return data, name, oldError
}

// fieldValue returns the value of a line that has this field; name ends with the colon.
func fieldValue(line []byte, name string) ([]byte, bool) {
	if len(line) < len(name) || string(line[:len(name)]) != name {
		return nil, false
	}
	if line = line[len(name):]; len(line) > 0 && line[0] == ' ' {
		line = line[1:]
	}
	return line, true
}

// cutLine takes the first line off b. LF, CRLF and CR end it.
func cutLine(b []byte) (line, rest []byte) {
	i := lineBreak(b)
	if i < 0 {
		return b, nil
	}
	if b[i] == '\r' && i+1 < len(b) && b[i+1] == '\n' {
		return b[:i], b[i+2:]
	}
	return b[:i], b[i+1:]
}

// chat looks at a chunk of chat or text completions.
func (f *StreamFilter) chat(ev, data, name []byte, size int) verdict {
	if len(name) == 0 {
		if f.dull.match(data) {
			f.produced += f.dull.tokens(data)
			return pass
		}
		if !f.telling(data) {
			f.produced += chunkTokens(data)
			f.dull.learn(data)
			return pass
		}
	}
	flat := string(name) == "error" // an error by the event's name only: some clients take it for a chunk
	if !wellFormed(data) {
		if flat {
			f.fault(ProviderFailed(""), false)
			return last
		}
		return pass // clients will complain, and rightly
	}
	c := readChunk(data)
	f.complete = f.complete || c.finished
	f.takeChunk(c, data)
	switch {
	case c.err != nil:
		f.fault(streamedError(c.err), true)
		return last
	case flat:
		f.fault(streamedError(data), false)
		return last
	case f.withhold && c.usageOnly && size <= maxHeld && !hasChoices(ev):
		return drop
	}
	return pass
}

// takeChunk notes the output and the usage of a chunk.
func (f *StreamFilter) takeChunk(c chunk, data []byte) {
	if c.output && c.err == nil {
		f.produced += chunkTokens(data)
	}
	bit := uint64(1) << min(uint64(c.index), 64) // none without an index, and from 64 on
	again := f.endings&bit != 0
	if c.finished && !again {
		f.finished++
		f.endings |= bit
	}
	if c.usage.Known {
		f.report(f.ofAll(c, again))
	}
}

// ofAll is what a chunk's usage makes the usage of the stream. The last word counts, but where several answers run (n, or a
// list of prompts): llama.cpp reports each with its end, in a chunk of its own in chat, and never their sum; vLLM and SGLang, where
// the client asks for it, each as it grows, and the sum last, which a client that hangs up does not wait for.
// again: the chunk is of a choice that had ended before.
func (f *StreamFilter) ofAll(c chunk, again bool) execution.Usage {
	switch {
	case again:
		f.parts, f.shares = execution.Usage{}, f.shares[:0]
		return f.share(c)
	case c.usageOnly:
		f.totals++
		if f.totals == 1 || f.totals > f.finished {
			f.parts = c.usage
		} else {
			f.parts = sumOfAnswers(f.parts, c.usage)
		}
		return f.parts
	case f.totals > 0:
		return c.usage
	case c.index >= 0:
		return f.share(c)
	case c.finished:
		f.parts = sumOfAnswers(f.parts, c.usage)
		return f.parts
	}
	return sumOfAnswers(f.parts, c.usage)
}

// maxShares bounds the choices whose reports count; of those beyond, each chunk counts as a token.
const maxShares = 1024

// choiceShare is what was reported of one choice so far.
type choiceShare struct{ output, reasoning int64 }

// share returns the usage of the stream with that of the chunk's choice in place of what was reported of it before.
func (f *StreamFilter) share(c chunk) execution.Usage {
	if c.index >= maxShares {
		f.parts.Output = addCounts(f.parts.Output, 1)
		return f.parts
	}
	i := int(c.index)
	for len(f.shares) <= i {
		f.shares = append(f.shares, choiceShare{})
	}
	s := &f.shares[i]
	f.parts.Output, f.parts.Reasoning = f.parts.Output-s.output, f.parts.Reasoning-s.reasoning
	*s = choiceShare{min(c.usage.Output, maxCount), min(c.usage.Reasoning, maxCount)}
	c.usage.Output, c.usage.Reasoning = s.output, s.reasoning
	f.parts = sumOfAnswers(f.parts, c.usage)
	return f.parts
}

// sumOfAnswers adds the usage of another answer. Answers to one prompt share it, so that its tokens are not added.
func sumOfAnswers(a, b execution.Usage) execution.Usage {
	return execution.Usage{
		Input: max(a.Input, b.Input), Output: addCounts(a.Output, b.Output), Cached: max(a.Cached, b.Cached),
		Reasoning: addCounts(a.Reasoning, b.Reasoning), Known: true,
	}
}

// telling reports whether a chunk may hold something that matters. Names are searched by their last letters: a needle
// that begins with a quote stops at every one in the text.
func (f *StreamFilter) telling(data []byte) bool {
	return hasValue(data, `"u`, `sage"`) || hasValue(data, `"e`, `rror"`) || hasValue(data, `"`, `finish_reason"`)
}

// hasValue reports whether a member named front+back seems to have a value other than null somewhere in data. Inside
// of a JSON string its name would have escaped quotes.
func hasValue(data []byte, front, back string) bool {
	for {
		i := bytes.Index(data, []byte(back))
		if i < 0 {
			return false
		}
		named := i >= len(front) && string(data[i-len(front):i]) == front
		data = data[i+len(back):]
		if !named {
			continue
		}
		s := scanner{b: data}
		if k := s.space(0); k < len(data) && data[k] == ':' {
			if k = s.space(k + 1); k < len(data) && data[k] != 'n' {
				return true
			}
		}
	}
}

// chunk is what matters of a chat chunk.
type chunk struct {
	finished  bool
	index     int64 // of the last choice; -1 without one
	output    bool  // there are choices, and none of them ends
	usageOnly bool  // choices are there and empty, and usage is an object; it may be an error all the same
	usage     execution.Usage
	err       []byte // the error's value; nil if there is none
}

func readChunk(data []byte) (c chunk) {
	c.index = -1
	noChoices, usage := false, false
	for m := objectMembers(data); m.next(); {
		switch string(m.key) {
		case "choices":
			noChoices = is(m.val, 'n')
			if is(m.val, '[') {
				c.output = c.readChoices(m.val)
				noChoices = !c.output
			}
		case "usage":
			if usage = is(m.val, '{'); usage {
				c.usage = parseUsage(m.val)
			}
		case "error":
			if isError(m.val) {
				c.err = m.val
			}
		}
	}
	c.usageOnly = noChoices && usage
	c.output = c.output && !c.finished
	return c
}

// readChoices returns whether there are any. Some engines report usage inside of one.
func (c *chunk) readChoices(list []byte) (any bool) {
	for el := arrayElements(list); el.next(); any = true {
		for m := objectMembers(el.val); m.next(); {
			switch string(m.key) {
			case "index":
				count(&c.index, m.val)
			case "finish_reason":
				c.finished = c.finished || (is(m.val, '"') && len(m.val) > 2) // some write "" for null
			case "usage":
				if is(m.val, '{') && !c.usage.Known {
					c.usage = parseUsage(m.val)
				}
			}
		}
	}
	return any
}

// isError tells an error from `"error":null`, false and the like.
func isError(val []byte) bool { return is(val, '{') || (is(val, '"') && len(val) > 2) }

// typed looks at an event that says its type: Responses, Messages, media.
func (f *StreamFilter) typed(data, name []byte) verdict {
	t := eventType(data, name)
	switch f.kind {
	case StreamResponses:
		f.responses(string(t), data)
	case StreamMessages:
		f.messages(string(t), data)
	case StreamMedia:
		f.media(string(t), data)
	}
	if f.failure != nil && f.kind != StreamResponses { // there response.failed follows, which is the stream's end
		return last
	}
	return pass
}

// eventType finds an event's type at the least cost: it is the first member, or stands on the event line, or must be
// looked for.
func eventType(data, name []byte) []byte {
	const first = `{"type":"`
	if len(data) > len(first) && string(data[:len(first)]) == first {
		data = data[len(first):]
		return data[:max(0, bytes.IndexByte(data, '"'))]
	}
	if len(name) > 0 {
		return name
	}
	if t := member(data, "type"); is(t, '"') {
		return t[1 : len(t)-1]
	}
	return nil
}

func (f *StreamFilter) responses(t string, data []byte) {
	switch t {
	case "response.completed", "response.incomplete", "response.failed":
		f.complete = true
		r := member(data, "response")
		f.mergeUsage(member(r, "usage"))
		if t == "response.failed" {
			f.fault(streamedError(orObject(member(r, "error"))), true)
		}
	case "error", "":
		f.typedError(t, data)
	default:
		if strings.HasSuffix(t, ".delta") {
			f.produced += deltaTokens(data)
		}
	}
}

func (f *StreamFilter) messages(t string, data []byte) {
	switch t {
	case "message_start":
		f.mergeUsage(member(member(data, "message"), "usage"))
	case "content_block_delta":
		f.produced += deltaTokens(data)
	case "message_delta":
		f.mergeUsage(member(data, "usage"))
	case "message_stop":
		f.complete = true
	case "error", "":
		f.typedError(t, data)
	}
}

func (f *StreamFilter) media(t string, data []byte) {
	switch t {
	case "image_generation.completed", "image_edit.completed", "transcript.text.done", "speech.audio.done":
		f.complete = true
		f.mergeUsage(member(data, "usage"))
	case "transcript.text.delta":
		f.produced += deltaTokens(data)
	case "error", "":
		f.typedError(t, data)
		c := readChunk(data) // some engines transcribe in chunks of chat's shape
		f.complete = f.complete || c.finished
		f.takeChunk(c, data)
	}
}

// typedError reads an event of type error, or one without a type that has an error. Clients of Responses and Messages
// know the first; they find the second by its member.
func (f *StreamFilter) typedError(t string, data []byte) {
	switch nested := member(data, "error"); {
	case isError(nested):
		f.fault(streamedError(nested), true)
	case t == "error":
		f.fault(streamedError(data), true)
	}
}

func orObject(val []byte) []byte {
	if val == nil {
		return []byte("{}")
	}
	return val
}

// ollama looks at one line of NDJSON.
func (f *StreamFilter) ollama(line []byte) verdict {
	if line = bytes.TrimSpace(line); len(line) == 0 {
		return pass
	}
	f.events++
	f.taken += int64(len(line))
	if hasValue(line, `"e`, `rror"`) {
		if e := member(line, "error"); isError(e) {
			f.fault(streamedError(e), true)
			f.failed(line)
			return last
		}
	}
	if bytes.Contains(line, []byte(`done":`)) && is(member(line, "done"), 't') {
		f.complete = true
		f.mergeUsage(line)
	} else {
		f.produced += chunkTokens(line)
	}
	return pass
}

// tail looks at an event that is too long to be read: at its head for the type, at its tail for the rest.
func (f *StreamFilter) tail(ev []byte) {
	head := ev
	if f.cut {
		head = f.head
	}
	head = head[:min(len(head), headSize)]
	if len(ev) > tailSize {
		ev = ev[len(ev)-tailSize:]
	}
	if f.kind == StreamChat {
		f.produced++
	}
	if u := tailUsage(f.usage, lastData(ev), f.kind); u != f.usage {
		f.report(u)
	}
	switch f.kind {
	case StreamChat:
		f.complete = f.complete || hasValue(ev, `"`, `finish_reason"`)
	case StreamResponses, StreamMedia:
		switch t := string(headType(head, ev)); t {
		case "response.completed", "response.incomplete", "response.failed",
			"image_generation.completed", "image_edit.completed", "transcript.text.done", "speech.audio.done":
			f.complete = true
		}
	case StreamOllama:
		f.complete = f.complete || bytes.Contains(ev, []byte(`"done":true`))
	}
}

// headType finds the type of an event of which only head and tail are there.
func headType(head, tail []byte) []byte {
	line, rest := cutLine(head)
	if name, ok := bytes.CutPrefix(line, []byte("event:")); ok {
		if len(rest) > 0 {
			return bytes.TrimSpace(name)
		}
	}
	const key = `"type":"`
	for _, b := range [...][]byte{head, tail} {
		i := bytes.Index(b, []byte(key))
		if i < 0 {
			continue
		}
		b = b[i+len(key):]
		if end := bytes.IndexByte(b, '"'); end >= 0 {
			return b[:end]
		}
	}
	return nil
}

func (f *StreamFilter) mergeUsage(obj []byte) {
	if is(obj, '{') {
		f.report(mergeUsage(f.usage, obj))
	}
}
