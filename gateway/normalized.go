package gateway

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/registry"
	"iop/openai"
	"iop/tunnel"
	"iop/tunnel/wire"
)

const (
	// wholeLimit bounds the answer of a normalized run that is gathered for a client that wants no stream.
	wholeLimit = 16 << 20
	// eventStream is the content type of streams of events.
	eventStream = "text/event-stream; charset=utf-8"
	// maxTold bounds how much of a provider's words a client is told, in bytes.
	maxTold = 2000
)

// normalized is a request as a normalized run: what the Node's adapter is given, and how the answer is written. It is
// made when the first target needs it and kept for the next ones. A request that is relayed raw has none.
type normalized struct {
	request *openai.Request // its Input is nil once input was made
	input   []byte          // as it goes out; nil once it need not be sent again
	paid    int64           // of the body budget, for the input
	noUsage bool            // this attempt's provider is not asked for usage

	// Of one attempt.
	reader    tunnel.EventReader
	renderer  openai.Renderer // of a stream; else nil
	collector *execution.Collector
	charged   int64  // of the body budget, for what collector or renderer has
	out       []byte // rendered, and not written yet
	begun     bool   // something came that is part of the answer itself
	failure   *execution.Failure
	fault     error // what makes the events unusable
}

// Faults of a normalized run's events, beside those that tunnel finds.
var (
	errWholeTooLarge = errors.New("the response is too large to be buffered")
	errGatherBudget  = errors.New("no memory to buffer the response")
)

// renderError says that the client's protocol can't carry the answer any further, and why.
type renderError struct{ told *openai.Error }

func (e *renderError) Error() string { return e.told.Message }

// parseError says that the request can't be a normalized run, and why.
type parseError struct{ told *openai.Error }

func (e *parseError) Error() string { return e.told.Error() }

// hereError says that the request is answered without a Node, and how.
type hereError struct{ body []byte }

func (*hereError) Error() string { return "the request contains nothing to run" }

// normalize makes x.norm, the input of a normalized run. What it holds counts against the body budget: while it is
// made, what was parsed and what is made of it.
func (x *exchange) normalize() error {
	if x.norm != nil && x.norm.input != nil {
		return nil
	}
	if body, ok := x.loads(); ok {
		return &hereError{body}
	}
	n := int64(2*len(x.body) + x.edits.Grows())
	if !x.s.bodies.take(x.share, n) {
		return errBudget
	}
	x.held += n
	paid := n
	request, e := x.parse()
	if e != nil {
		return &parseError{e}
	}
	input, err := execution.AppendInput(nil, request.Input)
	if err != nil {
		return err
	}
	if more := int64(cap(input)) - n; more > 0 && !x.s.bodies.take(x.share, more) {
		return errBudget
	} else if more > 0 {
		x.held += more
		paid += more
	}
	request.Input = nil
	x.norm = &normalized{request: request, input: input, paid: paid}
	return nil
}

// parse reads the client's request with the route's parameters in it. A default that the client's protocol has no word
// for is left out: the client did not ask for it.
func (x *exchange) parse() (*openai.Request, *openai.Error) {
	edits := x.edits
	for {
		if len(x.leftOut) > 0 {
			var err error
			if edits, err = x.env.Plan(x.body, x.op.ID, x.defaults(), x.route.Parameters.Caps); err != nil {
				return nil, asError(err)
			}
		}
		request, e := parsers[x.op.ID](x.env.Rewrite(x.body, openai.RewriteSpec{Edits: edits, Normalized: true}))
		if e == nil || !x.leaveOut(e.Param) {
			return request, e
		}
	}
}

// defaults are the route's, without what was left out.
func (x *exchange) defaults() []openai.ParameterDefault {
	return slices.DeleteFunc(slices.Clone(x.route.Parameters.Defaults), func(d openai.ParameterDefault) bool {
		return slices.Contains(x.leftOut, d.Name)
	})
}

// leaveOut leaves a default of the route out of the normalized run, as neither the client's protocol nor the provider's
// adapter can carry it. False: the parameter is none, or left out already, so it is the client's own.
func (x *exchange) leaveOut(param string) bool {
	param = strings.TrimPrefix(param, "options.") // Ollama's
	for _, d := range x.route.Parameters.Defaults {
		if d.Name == param && !slices.Contains(x.leftOut, param) {
			x.leftOut = append(x.leftOut, param)
			return true
		}
	}
	return false
}

// start is for a new attempt.
func (n *normalized) start(x *exchange) {
	n.reader, n.out, n.begun, n.failure, n.fault = tunnel.EventReader{}, n.out[:0], false, nil, nil
	n.renderer, n.collector = nil, nil
	x.held -= n.charged
	x.s.bodies.give(x.share, n.charged)
	n.charged = 0
	if x.env.Stream {
		n.renderer = n.request.Render(x.renderSpec())
	} else {
		n.collector = new(execution.Collector)
	}
}

func (x *exchange) renderSpec() openai.RenderSpec {
	return openai.RenderSpec{
		ID: string(x.rec.id), Model: x.env.Model, Created: x.started, IncludeUsage: x.env.IncludeUsage,
	}
}

// runRequest is what the Node is asked.
func (x *exchange) runRequest(t *admission.Ticket) *wire.RunRequest {
	x.norm.noUsage = x.noUsage || x.s.usageRefused(t.Target)
	r := &wire.RunRequest{
		Provider: string(t.Target.Provider), Model: t.Model, Stream: true, WithoutUsage: x.norm.noUsage,
		FirstByteTimeoutMs: milliseconds(x.route.Timeouts.FirstByte),
		IdleTimeoutMs:      milliseconds(x.route.Timeouts.BetweenChunks),
	}
	for _, h := range x.headers {
		switch h.Name {
		case "anthropic-beta", "via", "traceparent", "tracestate": // the others are of the client's protocol, or its own
			r.Headers = append(r.Headers, h)
		}
	}
	return r
}

// relayEvents is relay for a normalized run: its events become the answer in the client's protocol.
func (x *exchange) relayEvents(run registry.Run, ticket *admission.Ticket) *verdict {
	x.reply.opaque = false
	n := x.norm
	n.start(x)
	x.answer = answer{status: http.StatusOK, kind: x.streamKind(), length: -1, sse: x.env.Stream}
	lent := false
	for {
		if n.fault != nil {
			return x.faulted(nil, run, ticket)
		}
		b, ok := run.Take()
		if !ok {
			if ev := x.wait(run.Ready()); ev != eventReady {
				return x.cut(run, ev)
			}
			continue
		}
		if len(b.Data) > 0 {
			x.takeEvents(b.Data)
			if n.begun {
				ticket.Answering()
			}
			whole := b.End != nil && b.End.Outcome == execution.Completed // its end goes out with it, in one write
			if n.ready() && !whole && !x.pass(n) {
				return x.cut(run, eventGone)
			}
		}
		if b.End != nil {
			x.believe(b.End)
		}
		switch {
		case b.End != nil && n.fault != nil:
			return x.faulted(b.End, run, ticket)
		case b.End != nil:
			return x.finishEvents(b.End, run, ticket)
		}
		if x.reply.answered {
			x.letGoIfSent()
		}
		if !lent && x.answer.sse && x.reply.answered {
			lent = true
			x.lendEvents(run)
		}
	}
}

func (x *exchange) streamKind() string {
	switch {
	case !x.env.Stream:
		return "application/json"
	case x.lines():
		return kindLines
	}
	return eventStream
}

// takeEvents reads events, and renders or gathers them. What is wrong with them is n.fault.
func (x *exchange) takeEvents(data []byte) {
	n := x.norm
	if n.fault != nil {
		return
	}
	if n.fault = n.reader.Push(data, n.event); n.fault == nil {
		n.fault = x.chargeGathered()
	}
}

// wholeCost is how many times its size a gathered answer takes when its document is written: itself, its copy in the
// protocol's own form, and the document.
const wholeCost = 3

// gathered is how many bytes of the answer are remembered until its end, and what the end takes besides.
func (n *normalized) gathered() int {
	switch {
	case n.renderer != nil:
		return n.renderer.Held()
	case n.collector != nil:
		return wholeCost * n.collector.Size()
	}
	return 0
}

// chargeGathered takes what was gathered of the answer from the body budget: in large steps, and nothing for what most
// answers are.
func (x *exchange) chargeGathered() error {
	n := x.norm
	more := int64(n.gathered()) - n.charged
	if more <= gatherLimit {
		return nil
	}
	if !x.s.bodies.take(x.share, more) {
		return errGatherBudget
	}
	n.charged += more
	x.held += more
	return nil
}

// event takes one event.
func (n *normalized) event(e *execution.Event) error {
	switch e.Kind {
	case execution.EventFailure:
		n.failure = e.Failure
		return nil
	case execution.EventStarted, execution.EventUsage:
	default:
		n.begun = true
	}
	if n.renderer != nil {
		n.out = n.renderer.Event(n.out, e)
		if f := n.renderer.Fault(); f != nil {
			return &renderError{f}
		}
		return nil
	}
	if err := n.collector.Add(e); err != nil {
		return err
	}
	if n.collector.Size() > wholeLimit {
		return errWholeTooLarge
	}
	return nil
}

// ready reports whether there is something to be sent: until the answer itself has begun, an error can still be a
// status, and another target be tried.
func (n *normalized) ready() bool { return n.begun && len(n.out) > 0 }

// pass sends what was rendered. False: the client is gone.
func (x *exchange) pass(n *normalized) bool {
	ok := x.send(&x.answer, n.out, true, nil)
	n.out = n.out[:0]
	return ok
}

// lendEvents is lend for a normalized run.
func (x *exchange) lendEvents(run registry.Run) {
	if x.cork == nil || !canWriteSome {
		return
	}
	run.Direct(func() bool { return x.passEventsDirect(run) })
}

// passEventsDirect is passDirect for a normalized run. To render takes no longer than to copy would.
func (x *exchange) passEventsDirect(run registry.Run) bool {
	if !x.busy.TryLock() {
		return false // the handler is awake
	}
	defer x.busy.Unlock()
	n := x.norm
	if x.reply.gone || x.cork.lagging() || n.fault != nil {
		return false
	}
	data, _, ok := run.TakeData()
	if !ok {
		return false
	}
	x.takeEvents(data)
	switch {
	case n.fault != nil:
		return false // the handler ends the run
	case !n.ready():
		return true
	}
	ok = x.writeDirect(n.out, true)
	n.out = n.out[:0]
	return ok
}

// faulted ends a run whose events can't be used. end is nil if it has not ended by itself.
func (x *exchange) faulted(end *execution.Terminal, run registry.Run, ticket *admission.Ticket) *verdict {
	n := x.norm
	code := execution.CodeProtocol
	cannot, isCannot := errors.AsType[*renderError](n.fault)
	switch {
	case isCannot:
		code = execution.CodeProviderError
	case errors.Is(n.fault, errGatherBudget):
		code = execution.CodeInternal
	case errors.Is(n.fault, errWholeTooLarge), errors.Is(n.fault, tunnel.ErrEventTooLarge):
		code = execution.CodeResponseTooLarge
	}
	var t execution.Terminal
	if end != nil {
		t = *end
	} else {
		t = x.detach(run, code)
	}
	t.Outcome, t.Code, t.Detail, t.Told = execution.Failed, code, n.fault.Error(), false
	if code != execution.CodeInternal { // which is neither the Node's fault nor the provider's
		report(ticket, code)
	}
	v := &verdict{terminal: t, problem: problemOf(t)}
	switch {
	case isCannot:
		v.problem = cannot.told
		if n.ready() {
			x.pass(n) // what came is not kept from the client
		}
	case errors.Is(n.fault, errGatherBudget):
		v.problem = openai.Overloaded(budgetWait)
	}
	return v
}

// finishEvents is the verdict of a normalized run that has ended.
func (x *exchange) finishEvents(end *execution.Terminal, run registry.Run, ticket *admission.Ticket) *verdict {
	n, v := x.norm, &verdict{terminal: *end}
	switch {
	case n.failure != nil && n.failure.Unsupported:
		return x.unsupported(end, ticket)
	case n.failure != nil:
		return x.failedEvents(end, ticket)
	case end.Outcome != execution.Completed && x.reply.answered:
		report(ticket, end.Code)
		v.problem = problemOf(*end)
		return v
	case end.Outcome != execution.Completed:
		return x.failed(*end, x.reached(run), ticket)
	}
	if e := x.complete(end); e != nil {
		v.terminal.Code = execution.CodeProviderTruncated
		v.fail(e)
		ticket.Failed()
		return v
	}
	ticket.Served(x.sampleOf(end))
	return v
}

// complete writes the answer's end, or all of it. An error says that the events were no whole answer.
func (x *exchange) complete(end *execution.Terminal) *openai.Error {
	n, a := x.norm, &x.answer
	var e *openai.Error
	if n.renderer != nil {
		n.out, e = n.renderer.Complete(n.out, end.Usage)
	} else {
		result := n.collector.Result()
		if end.Usage.Known {
			result.Usage = end.Usage
		}
		n.out, e = n.request.Render(x.renderSpec()).Whole(n.out, result)
		a.length = int64(len(n.out))
	}
	if e != nil {
		a.length = -1
		if n.renderer != nil && n.ready() {
			x.pass(n) // what came is not kept from the client
		}
		return e
	}
	x.send(a, n.out, true, end) // a client that is gone has missed nothing but this
	return nil
}

// unsupported is the verdict of a run that the target's adapter can't carry. Another kind of adapter may, or a target
// that has the operation itself.
func (x *exchange) unsupported(end *execution.Terminal, ticket *admission.Ticket) *verdict {
	f := x.norm.failure
	e := openai.InvalidRequest(x.param(f.Param), told(f.Message))
	e.Code = "unsupported_parameter"
	if !x.reply.answered && x.leaveOut(e.Param) {
		x.held -= x.norm.paid
		x.s.bodies.give(x.share, x.norm.paid)
		x.norm = nil // it is made anew
		return &verdict{terminal: *end, problem: e, next: nextAgain}
	}
	return &verdict{terminal: *end, problem: e, next: nextOtherKind, kinds: ticket.Kind}
}

// param is the client's protocol's name of a parameter.
func (x *exchange) param(p execution.Param) string {
	if p == "" {
		return ""
	}
	return x.norm.request.Param(p)
}

// failedEvents is the verdict of a run whose provider said that it failed: refused for a normalized run.
func (x *exchange) failedEvents(end *execution.Terminal, ticket *admission.Ticket) *verdict {
	f, v := x.norm.failure, &verdict{terminal: *end}
	if f.Status >= 400 {
		v.terminal.Detail = cmp.Or(end.Detail, answeredWith(f.Status))
	}
	status := cmp.Or(f.Status, http.StatusBadGateway)
	v.problem = x.problemOf(f)
	reportStatus(ticket, status, f.RetryAfter, *end)
	if v.problem.Status < 500 && v.problem.Status != http.StatusTooManyRequests { // the exchange was one; the request was wrong
		v.terminal.Outcome, v.terminal.Code = execution.Completed, execution.CodeNone
	} else {
		v.terminal.Outcome, v.terminal.Code = execution.Failed, cmp.Or(end.Code, execution.CodeProviderError)
	}
	if x.reply.answered {
		return v
	}
	x.answer.status = status // it costs nothing
	if status == http.StatusBadRequest && !x.norm.noUsage && x.saysRefusal([]byte(f.Message)) {
		v.next = nextPlain
	} else {
		v.next = x.afterStatus(status)
	}
	return v
}

// problemOf says what the client is told of a provider's error. It is what WrapProviderError does with an answer's body.
func (x *exchange) problemOf(f *execution.Failure) *openai.Error {
	message := told(f.Message)
	var e *openai.Error
	switch s := f.Status; {
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		return openai.ProviderRefused()
	case s == http.StatusTooManyRequests:
		e = openai.RateLimited(f.RetryAfter, message)
		e.Code = cmp.Or(f.Code, e.Code)
	case s >= 400 && s < 500:
		e = openai.InvalidRequest(x.param(f.Param), message)
		e.Status, e.Type, e.Code = s, cmp.Or(f.Type, e.Type), cmp.Or(f.Code, e.Code)
		e.NoRetry = s != http.StatusRequestTimeout && s != http.StatusConflict
	case s == http.StatusServiceUnavailable || s == 529: // as Anthropic says it
		e = openai.Overloaded(f.RetryAfter)
	default:
		e = openai.ProviderFailed("")
		e.NoRetry = s == http.StatusNotImplemented
	}
	if message != "" {
		e.Message = message
	}
	e.RetryAfter = min(e.RetryAfter, maxRetryAfter)
	return e
}

// told cuts a provider's words to what a client is told of them.
func told(message string) string {
	if len(message) > maxTold {
		message = message[:maxTold] + "..."
	}
	return strings.ToValidUTF8(message, "")
}

// renders reports whether the stream that the client gets is one that is rendered.
func (x *exchange) renders() bool {
	return x.norm != nil && x.norm.renderer != nil && x.ticket.Normalized
}

// failInBand ends a stream that was rendered with the protocol's own error.
func (x *exchange) failInBand(e *openai.Error) {
	n := x.norm
	n.out = n.renderer.Fail(n.out, e)
	x.write(n.out, time.Now(), false)
}
