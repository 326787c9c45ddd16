package nodeagent

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"iop/execution"
	"iop/openai"
	"iop/tunnel/wire"
)

// usageReader tells what an answer said of its usage so far.
type usageReader interface{ Usage() execution.Usage }

// firstEventError marks a head that the provider never sent: its stream began with an error, and nothing of it had been
// passed on. The Edge treats it as the status that it should have been.
const firstEventError = "x-iop-first-event-error"

// passAnswer sends the provider's answer to the Edge. The head waits for the first byte of the body: an answer that
// breaks before it, or turns out empty, is then still a failure that may be tried elsewhere.
func (e *exchange) passAnswer(buf []byte) execution.Terminal {
	n, err := e.read(buf)
	for n == 0 && err == nil {
		n, err = e.read(buf)
	}
	status := e.resp.StatusCode
	switch {
	case n == 0 && !errors.Is(err, io.EOF):
		e.p.look()
		return e.failed(execution.CodeProviderError, "the provider's answer failed before its first byte: "+err.Error())
	case n == 0 && status == http.StatusOK:
		return e.failed(execution.CodeProviderError, "the provider answered 200 with an empty body")
	case e.key != nil && (status == http.StatusUnauthorized || status == http.StatusForbidden):
		return e.passRefusal(status)
	case e.key != nil && encoded(e.resp.Header):
		return e.failed(execution.CodeProviderError, unsearchable)
	}
	if kind := e.streamKind(buf[:n]); kind != openai.StreamNone {
		return e.passStream(kind, buf, n, err)
	}
	return e.passUnary(buf, n, err)
}

// read reads from the provider and takes note that it lives. Whoever reads says by arrived what it was.
func (e *exchange) read(buf []byte) (int, error) {
	e.watch.wait()
	n, err := e.resp.Body.Read(buf)
	if n > 0 {
		e.p.activity.Add(1)
	}
	return n, err
}

// arrived takes note of what was read: bytes of the answer, or comments by which a provider or a proxy before it only
// keeps the connection. Those are no answer: the limits on silence go on.
func (e *exchange) arrived(answer bool) {
	if !answer {
		e.watch.heard()
		return
	}
	e.watch.got()
	if e.phase < execution.PhaseStreaming {
		e.phase = execution.PhaseStreaming
		e.timings.FirstByte = time.Since(e.called)
	}
}

// streamKind decides whether the answer is an event stream, and which. The content type decides where it says
// something; else the first bytes do.
func (e *exchange) streamKind(first []byte) openai.StreamKind {
	kind := e.target.op.Stream
	h := e.resp.Header
	if e.resp.StatusCode != http.StatusOK || kind == openai.StreamNone || encoded(h) {
		return openai.StreamNone
	}
	switch t := mediaType(h); {
	case t == "text/event-stream", e.req.GetStream() && looksLikeSSE(first): // whatever it calls itself
		return kind
	case kind == openai.StreamOllama && strings.Contains(t, "ndjson"):
		return kind
	}
	return openai.StreamNone
}

// unsearchable is why an answer that may hold a credential is not passed on. The request asked for no encoding; to undo one
// nevertheless would take a decoder for each and a bound for what grows in it, for the sake of servers that break RFC 9110.
const unsearchable = "the provider encoded its answer although identity was asked for: its key could not be found in it"

// encoded reports whether an answer's bytes are not those of its content: any field line may say so, and name several.
func encoded(h http.Header) bool {
	for _, line := range h["Content-Encoding"] {
		for coding := range strings.SplitSeq(line, ",") {
			if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
				return true
			}
		}
	}
	return false
}

func mediaType(h http.Header) string {
	v := h["Content-Type"]
	if len(v) == 0 {
		return ""
	}
	switch v[0] { // the usual ones, without the parser's allocations
	case "application/json", "text/event-stream":
		return v[0]
	case "text/event-stream; charset=utf-8":
		return "text/event-stream"
	}
	t, _, err := mime.ParseMediaType(v[0])
	if err != nil {
		t, _, _ = strings.Cut(v[0], ";")
		t = strings.ToLower(strings.TrimSpace(t))
	}
	return t
}

// looksLikeSSE reports whether an answer begins as an event stream does: with one of its field names or a comment.
func looksLikeSSE(p []byte) bool {
	p = bytes.TrimLeft(bytes.TrimPrefix(p, []byte("\xef\xbb\xbf")), "\r\n")
	for _, field := range []string{"data:", "event:", "id:", "retry:", ":"} {
		if len(p) > 0 && (bytes.HasPrefix(p, []byte(field)) || len(p) < len(field) && strings.HasPrefix(field, string(p))) {
			return true
		}
	}
	return false
}

// scrubbed is what of p may go on, and all of it where the provider has no key that it could echo.
func (e *exchange) scrubbed(p []byte) []byte {
	if e.scrub == nil {
		if e.key == nil {
			return p
		}
		e.scrub = e.key.scrubber()
	}
	return e.scrub.push(p)
}

// passStream sends an event stream as it comes, minus what the filter withholds.
func (e *exchange) passStream(kind openai.StreamKind, buf []byte, n int, err error) execution.Terminal {
	f := openai.NewStreamFilter(kind, e.req.GetWithholdUsage())
	e.stream, e.usage = f, f
	if name := e.req.GetAnswerModel(); name != "" {
		e.renamer = openai.NewModelRenamer(kind, name)
	}
	for {
		if n > 0 {
			before := f.Progress()
			out, border := f.Push(e.scrubbed(buf[:n]))
			e.arrived(f.Progress() != before)
			if t, over := e.passEvents(out, border); over {
				return t
			}
			if f.SawDone() || border && f.Complete() && endsWithItsTerminal(kind) {
				e.linger = true
				break
			}
		}
		if err != nil {
			break
		}
		n, err = e.read(buf)
	}
	if !e.linger {
		if e.scrub != nil {
			out, border := f.Push(e.scrub.finish())
			if t, over := e.passEvents(out, border); over {
				return t
			}
		}
		out := f.Finish()
		if t, over := e.passEvents(out, f.AtBorder()); over {
			return t
		}
	}
	return e.streamEnd(err)
}

// endsWithItsTerminal reports whether nothing follows the terminal event of a kind of stream. After a chat's
// finish_reason there may be usage and [DONE]; several images end in an event each.
func endsWithItsTerminal(kind openai.StreamKind) bool {
	return kind == openai.StreamResponses || kind == openai.StreamMessages || kind == openai.StreamOllama
}

// maxPrelude bounds the comments that wait for a stream's first event, so that an error that comes first can still be
// a status. The client misses nothing: the Edge keeps it company in its own way.
const maxPrelude = 4 << 10

// passEvents sends a piece of a stream. over is set where the run ends with it.
func (e *exchange) passEvents(out []byte, border bool) (t execution.Terminal, over bool) {
	failure := e.stream.ErrorEvent()
	if failure != nil && failure.First && !e.headOut {
		return e.passFirstError(failure.Err), true
	}
	if e.renamer != nil {
		out = e.renamer.Push(out)
	}
	if !e.headOut && e.stream.Events() == 0 && !e.stream.Complete() && len(e.prelude)+len(out) <= maxPrelude {
		e.prelude = append(e.prelude, out...) // comments alone
		return t, false
	}
	if len(e.prelude) > 0 {
		out = append(e.prelude, out...)
		e.prelude = nil
	}
	if err := e.write(out, border, -1); err != nil {
		return e.writeFailed(err), true
	}
	if failure == nil {
		return t, false
	}
	return e.reported(failure, border)
}

// streamEnd is the end of a stream of which no byte is left; err is how its reading ended.
func (e *exchange) streamEnd(err error) execution.Terminal {
	switch f := e.stream; {
	case f.ErrorEvent() != nil:
		return e.told(f.ErrorEvent())
	case f.Complete():
		if werr := e.sendHead(-1); werr != nil {
			return e.writeFailed(werr)
		}
		return e.completed()
	case err != nil && !errors.Is(err, io.EOF):
		return e.broken(err)
	case !e.headOut:
		return e.failed(execution.CodeProviderError, "the provider's stream ended without an event")
	}
	return e.failed(execution.CodeProviderTruncated, "the provider ended its stream without the stream's own end")
}

// write sends a piece of the answer, behind its head.
func (e *exchange) write(p []byte, border bool, length int64) error {
	if len(p) == 0 {
		return nil
	}
	if err := e.sendHead(length); err != nil {
		return err
	}
	e.sent += int64(len(p))
	return e.run.Write(p, border)
}

func (e *exchange) sendHead(length int64) error {
	if e.headOut {
		return nil
	}
	e.headOut = true
	head, err := responseHead(e.resp.StatusCode, e.resp.Header, length)
	if err != nil {
		return &tooLarge{err}
	}
	for _, h := range head.Headers {
		if e.renamer != nil && h.Name == "openai-model" && validValue(e.req.GetAnswerModel()) {
			h.Value = e.req.GetAnswerModel()
		}
		if e.key != nil {
			h.Value = e.key.mask(h.Value)
		}
	}
	return e.run.Head(head)
}

// tooLarge is a head that does not fit.
type tooLarge struct{ error }

// passRefusal answers for a provider that refused the operator's key. Its own words may quote the key, and are for the
// operator, not for the client.
func (e *exchange) passRefusal(status int) execution.Terminal {
	body := openai.AppendError(nil, openai.FamilyOpenAI, "", openai.ProviderRefused())
	if err := e.passOwn(uint32(status), body); err != nil {
		return e.writeFailed(err)
	}
	return e.completed()
}

// passFirstError turns a stream whose first event is an error into the HTTP status that it should have been.
func (e *exchange) passFirstError(failure *openai.Error) execution.Terminal {
	body := openai.AppendError(nil, openai.FamilyOpenAI, "", failure)
	if err := e.passOwn(uint32(failure.Status), body, &wire.Header{Name: firstEventError, Value: "1"}); err != nil {
		return e.writeFailed(err)
	}
	return e.completed()
}

// passOwn sends a JSON answer of the Node's own making.
func (e *exchange) passOwn(status uint32, body []byte, extra ...*wire.Header) error {
	e.headOut = true
	head := &wire.Head{Status: status, Headers: append(extra, &wire.Header{Name: "content-type", Value: jsonType[0]})}
	if err := e.run.Head(head); err != nil {
		return err
	}
	return e.run.Write(body, true)
}

// ownWindow is what the Edge takes of an answer without its client taking anything: an answer beyond it may still wait
// on a slow client when the provider is long done.
const ownWindow = 64 << 10

// completed is the end of an answer that came whole. The place is free from here on, whatever the client still drains.
func (e *exchange) completed() execution.Terminal {
	e.providerDone()
	return e.terminal(execution.Completed, execution.CodeNone, "")
}

func (e *exchange) providerDone() {
	e.phase = execution.PhaseProviderDone
	e.timings.Provider = time.Since(e.called)
	if e.sent > ownWindow {
		e.release()
		e.run.Phase(execution.PhaseProviderDone)
	}
}

// broken is the end of an answer that stopped in its middle.
func (e *exchange) broken(err error) execution.Terminal {
	e.p.look()
	if !e.headOut {
		return e.failed(execution.CodeProviderError, "the provider's answer was cut off: "+err.Error())
	}
	return e.failed(execution.CodeProviderTruncated, "the provider's answer was cut off: "+err.Error())
}

// writeFailed is the end of a run that the tunnel takes no bytes of any more, or whose head was too large for it.
func (e *exchange) writeFailed(err error) execution.Terminal {
	if large, ok := errors.AsType[*tooLarge](err); ok {
		return e.failed(execution.CodeResponseTooLarge, large.Error())
	}
	t := e.failed(execution.CodeInternal, err.Error())
	if t.Outcome == execution.Failed && t.Code == execution.CodeInternal {
		t.Outcome, t.Code = execution.Cancelled, execution.CodeSessionLost
	}
	return t
}
