package nodeagent

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"iop/execution"
	"iop/openai"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// run is what an exchange uses of a tunnel.NodeRun, so that tests drive it without a tunnel.
type run interface {
	Open() *wire.Open
	Body() (body []byte, ok bool)
	Read(p []byte) (int, error)
	Lease(ctx context.Context) ([]byte, error)
	Keeper() tunnel.Keeper
	Phase(p execution.Phase)
	Head(h *wire.Head) error
	Write(p []byte, border bool) error
	Events(p []byte) error
	End(t execution.Terminal)
}

var (
	_ run            = (*tunnel.NodeRun)(nil)
	_ tunnel.Handler = (*Agent)(nil)
)

// ServeRun implements tunnel.Handler.
func (a *Agent) ServeRun(ctx context.Context, r *tunnel.NodeRun) { a.serve(ctx, r) }

// serve executes one run on the caller's goroutine.
func (a *Agent) serve(ctx context.Context, r run) {
	if r.Open().GetOllama() != nil {
		a.serveOllama(ctx, r)
		return
	}
	begin := time.Now()
	e, refusal := a.admit(r)
	if refusal != nil {
		outcome := execution.Rejected
		if refusal.code == execution.CodeCredentialRejected {
			outcome = execution.Failed // nothing else is to be tried
		}
		r.End(execution.Terminal{Outcome: outcome, Code: refusal.code, Phase: execution.PhaseDispatched, Detail: refusal.detail})
		return
	}
	e.timings.Admission = time.Since(begin)
	e.serve(ctx)
}

// maxBodyLength is beyond what any Edge takes: a greater number is a fault, not a body.
const maxBodyLength = 1 << 32

// refused says why a run is not even tried. Nothing was done for it.
type refused struct {
	code   execution.Code
	detail string
}

// admit checks what the Edge asks for against what this Node has, and takes a capacity place. It reads nothing of the
// body: a run that finds no place must learn so at once.
func (a *Agent) admit(r run) (*exchange, *refused) {
	open := r.Open()
	req := open.GetProviderTunnel()
	if open.GetRun() != nil {
		req = tunnelRequest(open.GetRun())
	}
	if req == nil {
		return nil, &refused{execution.CodeUnsupported, "this Node does not support runs of that kind"}
	}
	p := (*a.providers.Load())[execution.ProviderID(req.GetProvider())]
	if p == nil {
		return nil, &refused{execution.CodeUnknownProvider, "unknown provider id"}
	}
	if !p.serves(req.GetModel()) {
		return nil, &refused{execution.CodeUnknownProvider, "the provider does not serve the model"}
	}
	if refusal := a.refuseLease(r, open, p); refusal != nil {
		return nil, refusal
	}
	e := &exchange{p: p, run: r, open: open, req: req}
	if open.GetRun() != nil {
		if !e.normalize(open.GetRun()) {
			return nil, &refused{execution.CodeUnsupported, "no adapter for the provider's protocol"}
		}
	} else if e.target = p.targetOf(req.GetOperation()); e.target == nil {
		return nil, &refused{execution.CodeUnsupported, "unknown operation"}
	}
	if open.GetBodyLength() > maxBodyLength {
		return nil, &refused{execution.CodeBadRequest, "the announced body is too long"}
	}
	var err error
	e.key = p.key.Load()
	if e.header, err = requestHeader(req.GetHeaders(), e.key); err != nil {
		return nil, &refused{execution.CodeBadRequest, err.Error()}
	}
	if !p.acquire() {
		return nil, &refused{execution.CodeCapacity, "the provider is at capacity"}
	}
	e.holds = true
	if open.GetExpectsLease() {
		e.loan = &loan{log: a.log, keeper: r.Keeper().(*keeper)}
	}
	return e, nil
}

// exchange is one run's HTTP exchange with a provider. It belongs to ServeRun's goroutine.
type exchange struct {
	p      *provider
	target *target // nil of a normalized run before its request is made
	run    run
	open   *wire.Open
	req    *wire.ProviderTunnelRequest
	header http.Header
	key    *credential // nil if the provider wants none, or before the lease that brings it is open
	loan   *loan       // nil without a lease
	norm   *normalized // nil of a raw exchange

	runCtx  context.Context // the run's, of the tunnel
	ctx     context.Context // of the provider's request
	cancel  context.CancelCauseFunc
	watch   watch
	upload  *upload // nil if the body went in one piece
	holds   bool    // a capacity place
	called  time.Time
	phase   execution.Phase
	timings execution.Timings

	resp     *http.Response       // nil before the provider's head
	scrub    *scrubber            // nil without a key
	stream   *openai.StreamFilter // nil unless the answer is a stream
	prelude  []byte               // what a stream held before its first event, still to be sent
	whole    unaryBody            // an answer that is none
	observer openai.UsageObserver // of it
	usage    usageReader          // stream or observer; nil before the first byte
	renamer  *openai.ModelRenamer // nil where the answer's model keeps its name
	sent     int64                // bytes of the answer given to the tunnel
	linger   bool                 // the answer is whole, its connection perhaps not yet
	headOut  bool                 // the Edge has a head
	patience *time.Timer          // nil until the provider reported an error and may have more to say of it
}

// errRunOver is the cause with which an exchange ends its own request.
var errRunOver = errors.New("the run is over")

func (e *exchange) serve(ctx context.Context) {
	// The request has a context of its own: the run's ends with END, but the last bytes of a chunked answer may still be
	// on their way then, and a connection that has seen them can be used again.
	e.runCtx = ctx
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	unhook := context.AfterFunc(ctx, func() { e.cancel(context.Cause(ctx)) })
	buf := buffers.Get().(*[readBufferSize]byte)

	t := e.relay(buf[:])
	if e.loan != nil {
		e.loan.close()
	}
	unhook() // the run's context ends with END, and must not take a healthy connection along
	e.watch.end()
	e.release()
	e.run.End(t)

	e.finish(buf[:])
	if e.loan != nil {
		e.loan.finish(e)
	}
	buffers.Put(buf)
}

// buffers holds what answers are read into. A buffer stays with its run for as long as the run lasts.
var buffers = sync.Pool{New: func() any { return new([readBufferSize]byte) }}

// release gives the capacity place back, once.
func (e *exchange) release() {
	if e.holds {
		e.holds = false
		e.p.release()
	}
}

// relay calls the provider and passes its answer on. It returns the run's one terminal.
func (e *exchange) relay(buf []byte) execution.Terminal {
	e.phase = execution.PhaseAdmitted
	if e.norm != nil {
		if t, over := e.norm.prepare(); over {
			return t
		}
	}
	req := e.target.request.WithContext(e.ctx)
	req.Header = e.header
	body, err := e.attachBody(req, int64(e.open.GetBodyLength()))
	if err != nil {
		return e.bodyFailed(err)
	}
	if e.loan != nil {
		if err := e.loan.open(e, req, body); err != nil {
			return e.leaseFailed(err)
		}
	}
	e.phase = execution.PhaseProviderCalled
	e.run.Phase(execution.PhaseProviderCalled)
	e.called = time.Now()
	e.watch.begin(millis(e.req.GetFirstByteTimeoutMs()), millis(e.req.GetIdleTimeoutMs()), e.cancel)
	transport := e.transport(req)
	if e.loan != nil {
		if err := e.loan.authorize(e, req); err != nil {
			return e.leaseFailed(err)
		}
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return e.callFailed(err)
	}
	e.resp = resp
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return e.failed(execution.CodeProviderRedirect, "the provider answered with a redirect, status "+resp.Status)
	case resp.StatusCode < 200:
		return e.failed(execution.CodeProviderError, "the provider switched protocols, status "+resp.Status)
	}
	if e.norm != nil {
		return e.norm.pass(buf)
	}
	return e.passAnswer(buf)
}

// transport chooses the connection: one that the provider may be closing at this moment must cost no run.
func (e *exchange) transport(req *http.Request) http.RoundTripper {
	if e.upload != nil {
		return e.p.oneShot
	}
	req.Close = e.req.GetStream() && e.p.engine().traits().closesStreams
	return e.p.transport
}

func millis(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

// finish gives the provider's connection back, to the pool if it can be had.
func (e *exchange) finish(buf []byte) {
	if e.resp != nil {
		if e.linger {
			e.drain(buf)
		}
		e.resp.Body.Close()
	}
	e.cancel(errRunOver)
	if e.patience != nil {
		e.patience.Stop()
	}
	if e.upload != nil {
		e.upload.detach()
	}
}

// Limits of what is still read after an answer's end, for the sake of its connection.
const (
	lingerTime  = 100 * time.Millisecond
	lingerBytes = 4 << 10
)

// drain reads to the end of a chunked answer whose last event has already been passed on. Nobody waits for it: END is
// sent and the place is free.
func (e *exchange) drain(buf []byte) {
	timer := time.AfterFunc(lingerTime, func() { e.cancel(errRunOver) })
	defer timer.Stop()
	for read := 0; read < lingerBytes; {
		n, err := e.resp.Body.Read(buf)
		if err != nil {
			return
		}
		read += n
	}
}

// terminal is the run's end with what has been measured so far.
func (e *exchange) terminal(o execution.Outcome, c execution.Code, detail string) execution.Terminal {
	t := execution.Terminal{Outcome: o, Code: c, Phase: e.phase, Detail: e.clean(detail), Timings: e.timings}
	switch {
	case e.stream != nil && (o != execution.Completed || !e.stream.Usage().Known):
		// The provider reports usage at an end that it never came to, or not at all. What was produced is near to what
		// came, and neither nothing nor all that was asked for.
		t.Usage = e.stream.Spent()
	case e.usage != nil:
		t.Usage = e.usage.Usage()
	}
	if !e.called.IsZero() && t.Timings.Provider == 0 {
		t.Timings.Provider = time.Since(e.called)
	}
	return t
}

// maxDetail is what an END carries.
const maxDetail = 512

// clean makes a text fit for logs: no key, no control characters, not too long.
func (e *exchange) clean(detail string) string {
	if detail == "" {
		return ""
	}
	detail = strings.Map(func(r rune) rune {
		if isControl(r) {
			return ' '
		}
		return r
	}, e.key.mask(detail))
	if len(detail) > maxDetail {
		detail = strings.ToValidUTF8(detail[:maxDetail], "")
	}
	return detail
}

// failed is the end of a run that something broke, unless the run was cancelled: then that is why, if the client did not
// leave because of the provider's own error.
func (e *exchange) failed(code execution.Code, detail string) execution.Terminal {
	cause := context.Cause(e.runCtx) // first: its end may not have reached the request's context yet
	if cause == nil {
		cause = context.Cause(e.ctx)
	}
	if c, ok := errors.AsType[*tunnel.CancelError](cause); ok {
		if failure := e.leftOver(c.Code); failure != nil {
			return e.toldOf(failure)
		}
		return e.terminal(execution.Cancelled, c.Code, c.Reason)
	}
	switch {
	case cause == nil:
		return e.terminal(execution.Failed, code, detail)
	case errors.Is(cause, errFirstByte), errors.Is(cause, errIdle):
		e.p.look()
		return e.terminal(execution.Failed, execution.CodeProviderTimeout, cause.Error())
	case errors.Is(cause, errWithdrawn):
		return e.terminal(execution.Failed, execution.CodeCredentialRejected, cause.Error())
	}
	return e.terminal(execution.Cancelled, execution.CodeShutdown, "the session's context ended")
}

// bodyFailed is the end of a run whose request body did not arrive.
func (e *exchange) bodyFailed(err error) execution.Terminal {
	return e.failed(execution.CodeProtocol, err.Error())
}

// callFailed is the end of a run whose provider gave no head.
func (e *exchange) callFailed(err error) execution.Terminal {
	switch {
	case unreachable(err):
		e.p.look()
		return e.failed(execution.CodeProviderUnreachable, err.Error())
	case strings.Contains(err.Error(), "server response headers exceeded"):
		return e.failed(execution.CodeResponseTooLarge, err.Error())
	}
	e.p.look()
	return e.failed(execution.CodeProviderError, err.Error())
}
