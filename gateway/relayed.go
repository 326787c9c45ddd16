package gateway

import (
	"bytes"

	"iop/execution"
	"iop/openai"
)

// frameMost bounds how many bytes of each event count as its frame, not as text. The measure is a stream's first event, which can
// hold a copy of the request.
const frameMost = 512

// relayed counts what reached the client of a provider's answer, for a run whose Node can no longer report it.
type relayed struct {
	bytes, lines           int64 // lines: of an event stream
	whole                  int64 // bytes up to the last line end
	firstBytes, firstLines int64 // those of its first piece
}

// note counts a piece of an event stream. It runs for each chunk: no more than a search for line ends.
func (r *relayed) note(data []byte) {
	n := int64(bytes.Count(data, lineEnd))
	if n > 0 {
		r.whole = r.bytes + int64(bytes.LastIndexByte(data, '\n')) + 1
	}
	r.bytes += int64(len(data))
	r.lines += n
	if r.firstLines == 0 && len(data) > 0 && data[0] != ':' { // a comment has another size
		r.firstBytes += int64(len(data))
		r.firstLines = n
	}
}

var lineEnd = []byte("\n")

// eventLines is how many lines an event has in a stream of that kind.
func eventLines(kind openai.StreamKind) int64 {
	switch kind {
	case openai.StreamOllama:
		return 1
	case openai.StreamResponses, openai.StreamMessages: // event, data and a blank line
		return 3
	}
	return 2
}

// output is about how many tokens passed: one for each event, or by the text beyond the events' frames where that is more, as
// providers may put several tokens into an event. most bounds what the text makes; 0: nothing does.
func (r *relayed) output(kind openai.StreamKind, most int64) int64 {
	if r.lines == 0 {
		return openai.EstimateTokens(int(r.bytes))
	}
	per := eventLines(kind)
	events := (r.lines + per - 1) / per
	frame := min(r.firstBytes/max((r.firstLines+per-1)/per, 1), frameMost)
	text := openai.EstimateTokens(int(max(r.whole-events*frame, 0)))
	if most > 0 {
		text = min(text, most)
	}
	return max(events, text)
}

// usedByRelayed is the usage of a run that was lost after its answer had begun: the Node had no chance to report what it counted.
func (x *exchange) usedByRelayed() execution.Usage {
	u := execution.Usage{Input: x.input, Known: true, Estimated: true}
	if x.tokens > x.input { // else the operation's answers are not counted
		most := int64(0)
		if x.length.Bounded {
			most = x.tokens - x.input
		}
		passed := x.reply.relayed
		if !x.reply.events {
			passed.bytes = x.answer.came
		}
		u.Output = passed.output(x.op.Stream, most)
	}
	return u
}
