package nodeagent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"iop/execution"
	"iop/nodeagent/adapter"
	"iop/nodeagent/adapter/anthropic"
	"iop/nodeagent/adapter/ollama"
	adapteropenai "iop/nodeagent/adapter/openai"
	"iop/openai"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// This file executes normalized runs: an adapter makes the provider's request of the run's input, and the answer goes to
// the Edge as events. All between the two is that of any exchange.

// adapters are the protocols that this Node speaks with providers, by the name that stands in the inventory.
var adapters = map[string]adapter.Adapter{
	adapteropenai.Name: adapteropenai.New(),
	ollama.Name:        ollama.New(),
	anthropic.Name:     anthropic.New(),
}

const (
	// maxBatch is how many bytes of events wait to be sent together; what one read brings is nearly always less.
	maxBatch = 32 << 10
	// maxFailure bounds how much of an answer that is an error is read.
	maxFailure = 64 << 10
)

// normalized is what an exchange has beside the rest if it is a normalized run. It belongs to ServeRun's goroutine.
type normalized struct {
	e       *exchange
	adapter adapter.Adapter
	spec    adapter.Spec

	input   []byte           // as it came
	request *adapter.Request // nil before prepare
	scrub   *eventScrubber   // nil without a key
	batch   []byte           // events that are not sent yet
	emitted bool             // some event was given
	failure *execution.Failure
	sendErr error // of the tunnel
}

// tunnelRequest says a normalized run as the exchange that it becomes.
func tunnelRequest(r *wire.RunRequest) *wire.ProviderTunnelRequest {
	return &wire.ProviderTunnelRequest{
		Provider: r.GetProvider(), Model: r.GetModel(), Headers: r.GetHeaders(), Stream: true,
		FirstByteTimeoutMs: r.GetFirstByteTimeoutMs(), IdleTimeoutMs: r.GetIdleTimeoutMs(),
	}
}

// normalize makes a normalized run of an exchange; false if this Node has no adapter for its provider.
func (e *exchange) normalize(r *wire.RunRequest) bool {
	a := adapters[e.p.engine().traits().adapter]
	e.norm = &normalized{e: e, adapter: a, spec: adapter.Spec{Model: r.GetModel(), WithoutUsage: r.GetWithoutUsage(), Hosted: e.p.isOpenAIHost()}}
	return a != nil
}

// isOpenAIHost reports whether the provider is OpenAI's own service, or Microsoft's of the same models.
func (p *provider) isOpenAIHost() bool {
	host := p.base.Hostname()
	for _, domain := range []string{"openai.com", "openai.azure.com"} {
		if host == domain || strings.HasSuffix(host, "."+domain) {
			return true
		}
	}
	return false
}

// prepare reads the run's input and makes the provider's request of it. Nobody was called and no lease opened when it
// refuses; over is set then.
func (n *normalized) prepare() (t execution.Terminal, over bool) {
	e := n.e
	length := int64(e.open.GetBodyLength())
	if length > maxLeasedBody {
		return e.terminal(execution.Rejected, execution.CodeBadRequest, "the run's input is too long"), true
	}
	body, err := e.wholeBody(length)
	if err != nil {
		return e.bodyFailed(err), true
	}
	in, err := execution.ParseInput(body)
	if err != nil {
		return e.terminal(execution.Rejected, execution.CodeUnsupported, err.Error()), true
	}
	n.input = body
	n.request, err = n.adapter.Request(in, n.spec)
	if refusal, ok := errors.AsType[*execution.UnsupportedError](err); ok {
		return n.refuse(refusal), true
	}
	if err != nil {
		return e.failed(execution.CodeInternal, err.Error()), true
	}
	if e.target = e.p.targetOf(n.request.Operation); e.target == nil {
		return e.failed(execution.CodeInternal, "the adapter requested an unknown operation"), true
	}
	e.header["Content-Type"], e.header["Accept"] = jsonType, streamTypes
	if n.request.Operation != messagesOperation {
		delete(e.header, "Anthropic-Beta") // it says nothing to others, and is not theirs to know
	}
	for _, h := range n.request.Header {
		e.header[h[0]] = []string{h[1]}
	}
	return t, false
}

// messagesOperation is the one operation whose protocol has beta headers.
const messagesOperation = "messages"

// streamTypes is what a normalized run accepts of a provider.
var streamTypes = []string{"text/event-stream, application/x-ndjson"}

// refuse is the end of a run whose input the provider's protocol can't carry.
func (n *normalized) refuse(refusal *execution.UnsupportedError) execution.Terminal {
	n.emit(&execution.Event{Kind: execution.EventFailure, Failure: &execution.Failure{
		Status: http.StatusBadRequest, Param: refusal.Param, Message: refusal.Detail, Unsupported: true,
	}})
	if err := n.flush(); err != nil {
		return n.e.writeFailed(err)
	}
	return n.e.terminal(execution.Rejected, execution.CodeBadRequest, refusal.Error())
}

// emit takes an event of the answer.
func (n *normalized) emit(e *execution.Event) error {
	n.emitted = true
	if e.Kind == execution.EventFailure {
		n.failure = e.Failure
	}
	if n.scrub != nil {
		return n.scrub.push(e, n.add)
	}
	return n.add(e)
}

// add puts an event to those that are sent next.
func (n *normalized) add(e *execution.Event) error {
	n.batch = tunnel.AppendRunEvent(n.batch, e)
	if len(n.batch) < maxBatch {
		return nil
	}
	return n.flush()
}

// flush sends what waits.
func (n *normalized) flush() error {
	if len(n.batch) == 0 || n.sendErr != nil {
		return n.sendErr
	}
	n.sendErr = n.e.run.Events(n.batch)
	n.e.headOut = true
	n.e.sent += int64(len(n.batch))
	if n.batch = n.batch[:0]; cap(n.batch) > 2*maxBatch {
		n.batch = nil
	}
	return n.sendErr
}

// pass reads the provider's answer and sends its events.
func (n *normalized) pass(buf []byte) execution.Terminal {
	e := n.e
	n.scrub = e.key.eventScrubber()
	if e.resp.StatusCode >= 300 {
		return n.passFailure(buf)
	}
	if encoded(e.resp.Header) {
		return e.failed(execution.CodeProviderError, "the provider encoded its answer although identity was asked for")
	}
	size, err := e.read(buf)
	for size == 0 && err == nil {
		size, err = e.read(buf)
	}
	switch {
	case size == 0 && !errors.Is(err, io.EOF):
		e.p.look()
		return e.failed(execution.CodeProviderError, "the provider's answer failed before its first byte: "+err.Error())
	case size == 0:
		return e.failed(execution.CodeProviderError, "the provider answered a run with an empty body")
	case n.isDocument(buf[:size]):
		return n.passDocument(buf, size, err)
	}
	return n.passEvents(buf, size, err)
}

// isDocument reports whether an answer that should be an event stream is one JSON document instead.
func (n *normalized) isDocument(first []byte) bool {
	if n.e.target.op.Stream == openai.StreamOllama {
		return false
	}
	first = bytes.TrimLeft(first, " \t\r\n")
	return len(first) > 0 && first[0] == '{'
}

// passEvents reads a stream.
func (n *normalized) passEvents(buf []byte, size int, err error) execution.Terminal {
	e := n.e
	reader, emit := n.adapter.Reader(n.spec), n.emit // made once
	e.usage = reader
	for {
		if size > 0 {
			before := reader.Progress()
			done, rerr := reader.Push(buf[:size], emit)
			e.arrived(reader.Progress() != before)
			if t, over := n.after(done, rerr); over {
				return t
			}
		}
		if err != nil {
			break
		}
		size, err = e.read(buf)
	}
	end := reader.End(emit)
	if !errors.Is(err, io.EOF) && (end != nil || e.ctx.Err() != nil) {
		n.finishScrub()
		if werr := n.flush(); werr != nil {
			return e.writeFailed(werr)
		}
		return e.broken(err)
	}
	t, _ := n.after(true, end) // an answer that is whole is whole, however its connection ended
	return t
}

// after sends what a push brought and decides whether the run ends with it. err is the reader's.
func (n *normalized) after(done bool, err error) (t execution.Terminal, over bool) {
	e := n.e
	if done || err != nil {
		if serr := n.finishScrub(); err == nil {
			err = serr
		}
	}
	if werr := n.flush(); werr != nil {
		return n.sendFailed(werr), true
	}
	switch {
	case n.failure != nil:
		e.linger = true // engines send [DONE] after an error, too
		return e.failed(execution.CodeProviderError, "the provider's stream reported: "+n.failure.Message), true
	case err != nil:
		return n.readFailed(err), true
	case done:
		e.linger = true
		return e.completed(), true
	}
	return t, false
}

// finishScrub gives what was held back for the sake of a credential.
func (n *normalized) finishScrub() error {
	if n.scrub == nil {
		return nil
	}
	return n.scrub.finish(n.add)
}

func (n *normalized) sendFailed(err error) execution.Terminal {
	if errors.Is(err, tunnel.ErrEventTooLarge) {
		return n.e.failed(execution.CodeResponseTooLarge, err.Error())
	}
	return n.e.writeFailed(err)
}

// readFailed is the end of a run whose answer can't be read on.
func (n *normalized) readFailed(err error) execution.Terminal {
	s, ok := errors.AsType[*adapter.StreamError](err)
	switch {
	case !ok:
		return n.e.failed(execution.CodeInternal, err.Error())
	case s.Code == execution.CodeProviderTruncated && !n.emitted:
		return n.e.failed(execution.CodeProviderError, "the provider's stream ended without an event")
	}
	return n.e.failed(s.Code, s.Detail)
}

// passFailure reports an answer that is an error by its status.
func (n *normalized) passFailure(buf []byte) execution.Terminal {
	e := n.e
	status := e.resp.StatusCode
	body, err := n.readBounded(buf, 0, nil)
	if err != nil && e.ctx.Err() != nil {
		return e.failed(execution.CodeProviderError, err.Error())
	}
	if encoded(e.resp.Header) {
		body = nil
	}
	f := openai.ReadFailure(status, body)
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		// Its own words may quote the key, and are for the operator, not for the client.
		f = &execution.Failure{Status: status, Message: openai.ProviderRefused().Message}
	}
	f.RetryAfter = retryAfter(e.resp.Header)
	return n.report(f, fmt.Sprintf("the provider answered with status %d", status))
}

// passDocument reports a document that came instead of a stream: an error, for all that is known of it.
func (n *normalized) passDocument(buf []byte, size int, err error) execution.Terminal {
	body, err := n.readBounded(buf, size, err)
	if err != nil && n.e.ctx.Err() != nil {
		return n.e.failed(execution.CodeProviderError, err.Error())
	}
	const detail = "the provider answered with a document where a stream was asked for"
	if v := openai.Member(body, "error"); openai.IsError(v) {
		n.e.arrived(true)
		return n.report(openai.ReadFailure(0, v), detail)
	}
	return n.e.failed(execution.CodeProviderError, detail)
}

// report ends a run with an error of the provider's.
func (n *normalized) report(f *execution.Failure, detail string) execution.Terminal {
	n.emit(&execution.Event{Kind: execution.EventFailure, Failure: f})
	if err := n.flush(); err != nil {
		return n.sendFailed(err)
	}
	return n.e.failed(execution.CodeProviderError, detail)
}

// readBounded reads an answer of which the first bytes are in buf, and no more of it than an error has. err is that of the read
// so far; a nil error is the answer's end, or the bound.
func (n *normalized) readBounded(buf []byte, size int, err error) ([]byte, error) {
	var body []byte
	for {
		body = append(body, buf[:size]...)
		switch {
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			return body, err
		case len(body) >= maxFailure:
			return body[:maxFailure], nil
		}
		size, err = n.e.read(buf)
	}
}

// retryAfter reads how long the provider asks to wait; 0 if it does not say, or by a date.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 && ms < float64(time.Hour/time.Millisecond) {
		return time.Duration(ms * float64(time.Millisecond))
	}
	if s, err := strconv.ParseUint(h.Get("Retry-After"), 10, 16); err == nil {
		return time.Duration(s) * time.Second
	}
	return 0
}
