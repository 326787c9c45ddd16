package nodeagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"iop/execution"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// This file is the third of the commands that an operator has: one call of the Ollama API of one provider. What can be
// called is an enum: no method, path or query comes from the Edge.

// ollamaOp is one operation of the Ollama API. The zero value is none.
type ollamaOp uint8

const (
	ollamaTags ollamaOp = iota + 1
	ollamaLoaded
	ollamaVersion
	ollamaShow
	ollamaDelete
	ollamaPull
)

// ollamaOps is what each operation is at the provider, by its number.
var ollamaOps = [...]struct {
	name, method, path string
	takesBody          bool
	changes            bool          // the provider's models are others after it
	timeout            time.Duration // 0: none but the run's own
}{
	ollamaTags:    {name: "tags", method: http.MethodGet, path: pathOllamaTags, timeout: ollamaTimeout},
	ollamaLoaded:  {name: "ps", method: http.MethodGet, path: pathOllamaLoaded, timeout: ollamaTimeout},
	ollamaVersion: {name: "version", method: http.MethodGet, path: pathOllamaVersion, timeout: ollamaTimeout},
	ollamaShow:    {name: "show", method: http.MethodPost, path: "/api/show", takesBody: true, timeout: ollamaTimeout},
	ollamaDelete:  {name: "delete", method: http.MethodDelete, path: "/api/delete", takesBody: true, changes: true, timeout: ollamaTimeout},
	ollamaPull:    {name: "pull", method: http.MethodPost, path: "/api/pull", takesBody: true, changes: true},
}

// Limits of the Ollama API's calls.
const (
	ollamaTimeout  = time.Minute // of all that does not load a model from elsewhere
	maxOllamaBody  = 64 << 10
	maxOllamaCalls = 4 // at once, of one provider: they take none of its places
)

func parseOllamaOp(name string) (ollamaOp, bool) {
	for op := ollamaTags; int(op) < len(ollamaOps); op++ {
		if ollamaOps[op].name == name {
			return op, true
		}
	}
	return 0, false
}

// errOllamaTimeout is the cause with which a call ends that took too long.
var errOllamaTimeout = errors.New("the provider did not answer in time")

// ollamaCall is one call. It belongs to ServeRun's goroutine.
type ollamaCall struct {
	p       *provider
	op      ollamaOp
	run     run
	ctx     context.Context // of the provider's request
	key     *credential     // or nil
	phase   execution.Phase
	called  time.Time
	timings execution.Timings
}

// serveOllama executes one call of the Ollama API to its end.
func (a *Agent) serveOllama(ctx context.Context, r run) {
	begin := time.Now()
	c, refusal := a.admitOllama(r)
	if refusal != nil {
		r.End(execution.Terminal{Outcome: execution.Rejected, Code: refusal.code, Phase: execution.PhaseDispatched, Detail: refusal.detail})
		return
	}
	defer c.p.ollamaCalls.Add(-1)
	c.timings.Admission = time.Since(begin)
	c.ctx = ctx
	if limit := ollamaOps[c.op].timeout; limit > 0 {
		var cancel context.CancelFunc
		c.ctx, cancel = context.WithTimeoutCause(ctx, limit, errOllamaTimeout)
		defer cancel()
	}
	t := c.call()
	if ollamaOps[c.op].changes {
		c.p.look()
	}
	r.End(t)
}

// admitOllama checks what the Edge asks for. Whoever gets a call must count it off c.p.ollamaCalls.
func (a *Agent) admitOllama(r run) (*ollamaCall, *refused) {
	open := r.Open()
	req := open.GetOllama()
	p := (*a.providers.Load())[execution.ProviderID(req.GetProvider())]
	if p == nil {
		return nil, &refused{execution.CodeUnknownProvider, "unknown provider id"}
	}
	if p.engine() != OllamaEngine {
		return nil, &refused{execution.CodeUnsupported, "the provider is not Ollama"}
	}
	if p.leased() || open.GetExpectsLease() {
		return nil, &refused{execution.CodeUnsupported, "the provider's credential comes by lease, which only runs have"}
	}
	op, ok := parseOllamaOp(req.GetOperation())
	if !ok {
		return nil, &refused{execution.CodeUnsupported, "unknown operation of the Ollama API"}
	}
	switch n := open.GetBodyLength(); {
	case n > maxOllamaBody:
		return nil, &refused{execution.CodeBadRequest, fmt.Sprintf("the request has more than %d bytes", maxOllamaBody)}
	case (n > 0) != ollamaOps[op].takesBody:
		return nil, &refused{execution.CodeBadRequest, "the operation needs a request and has none, or takes none and has one"}
	}
	if p.ollamaCalls.Add(1) > maxOllamaCalls {
		p.ollamaCalls.Add(-1)
		return nil, &refused{execution.CodeCapacity, fmt.Sprintf("%d calls of the Ollama API are under way", maxOllamaCalls)}
	}
	return &ollamaCall{p: p, op: op, run: r, key: p.key.Load(), phase: execution.PhaseAdmitted}, nil
}

// call makes the provider's request and passes on the answer. It returns the one terminal.
func (c *ollamaCall) call() execution.Terminal {
	body, err := c.body()
	if err != nil {
		return c.failed(execution.CodeBadRequest, err)
	}
	// A connection of its own: no request with a body must meet one that is just being closed.
	c.advance(execution.PhaseProviderCalled)
	c.called = time.Now()
	resp, err := c.p.oneShot.RoundTrip(c.request(body))
	if err != nil {
		c.p.look()
		if unreachable(err) {
			return c.failed(execution.CodeProviderUnreachable, err)
		}
		return c.failed(execution.CodeProviderError, err)
	}
	defer resp.Body.Close()
	if c.key != nil && encoded(resp.Header) {
		return c.failed(execution.CodeProviderError, errors.New(unsearchable))
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return c.failed(execution.CodeProviderRedirect, errors.New("the provider answered with a redirect, status "+resp.Status))
	}
	return c.pass(resp)
}

// body reads the request, which must be a JSON object.
func (c *ollamaCall) body() ([]byte, error) {
	if !ollamaOps[c.op].takesBody {
		return nil, nil
	}
	body, ok := c.run.Body()
	if !ok {
		body = make([]byte, c.run.Open().GetBodyLength())
		if _, err := io.ReadFull(c.run, body); err != nil {
			return nil, err
		}
	}
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' || !json.Valid(body) {
		return nil, errors.New("the request is not a JSON object")
	}
	return body, nil
}

func (c *ollamaCall) request(body []byte) *http.Request {
	op := ollamaOps[c.op]
	u := c.p.endpoint(op.path)
	req := (&http.Request{
		Method: op.method, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Accept": jsonType, "Accept-Encoding": plainCoding, "User-Agent": userAgent},
	}).WithContext(c.ctx)
	if op.takesBody {
		req.Header["Content-Type"] = jsonType
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	c.key.authorize(req.Header)
	return req
}

func (c *ollamaCall) advance(p execution.Phase) {
	c.phase = p
	c.run.Phase(p)
}

// pass sends the provider's answer on as it comes, each whole line at once.
func (c *ollamaCall) pass(resp *http.Response) execution.Terminal {
	head, err := responseHead(resp.StatusCode, resp.Header, resp.ContentLength)
	if err != nil {
		return c.failed(execution.CodeResponseTooLarge, err)
	}
	c.mask(head)
	if err := c.run.Head(head); err != nil {
		return c.failed(execution.CodeSessionLost, err)
	}
	buf := buffers.Get().(*[readBufferSize]byte)
	defer buffers.Put(buf)
	scrub := c.key.scrubber()
	for {
		n, err := resp.Body.Read(buf[:])
		if n > 0 {
			c.p.activity.Add(1)
			if c.phase < execution.PhaseStreaming {
				c.phase, c.timings.FirstByte = execution.PhaseStreaming, time.Since(c.called)
			}
		}
		piece := buf[:n]
		if scrub != nil {
			piece = scrub.push(piece)
		}
		if werr := c.write(piece); werr != nil {
			return c.failed(execution.CodeSessionLost, werr)
		}
		switch {
		case err == nil:
			continue
		case !errors.Is(err, io.EOF):
			return c.failed(execution.CodeProviderTruncated, err)
		}
		break
	}
	if scrub != nil {
		if err := c.write(scrub.finish()); err != nil {
			return c.failed(execution.CodeSessionLost, err)
		}
	}
	c.advance(execution.PhaseProviderDone)
	return c.terminal(execution.Completed, execution.CodeNone, "")
}

// mask hides the key where the provider's head echoes it.
func (c *ollamaCall) mask(head *wire.Head) {
	for _, h := range head.Headers {
		h.Value = c.key.mask(h.Value)
	}
}

// write sends bytes of the answer. What ends a line ends at a border.
func (c *ollamaCall) write(p []byte) error {
	whole := bytes.LastIndexByte(p, '\n') + 1
	if whole > 0 {
		if err := c.run.Write(p[:whole], true); err != nil {
			return err
		}
	}
	if whole == len(p) {
		return nil
	}
	return c.run.Write(p[whole:], false)
}

// failed is the end of a call that something broke, unless it was cancelled: then that is why.
func (c *ollamaCall) failed(code execution.Code, err error) execution.Terminal {
	cause := context.Cause(c.ctx)
	if cancelled, ok := errors.AsType[*tunnel.CancelError](cause); ok {
		return c.terminal(execution.Cancelled, cancelled.Code, cancelled.Reason)
	}
	switch {
	case errors.Is(cause, errOllamaTimeout):
		return c.terminal(execution.Failed, execution.CodeProviderTimeout, cause.Error())
	case cause != nil:
		return c.terminal(execution.Cancelled, execution.CodeShutdown, "the session's context ended")
	case code == execution.CodeSessionLost:
		return c.terminal(execution.Cancelled, code, err.Error())
	case code == execution.CodeBadRequest:
		return c.terminal(execution.Rejected, code, err.Error())
	}
	return c.terminal(execution.Failed, code, err.Error())
}

// terminal is the one end. Its text is for the operator: a line, without the key.
func (c *ollamaCall) terminal(o execution.Outcome, code execution.Code, detail string) execution.Terminal {
	detail = strings.Map(func(r rune) rune {
		if isControl(r) {
			return ' '
		}
		return r
	}, c.key.mask(detail))
	if len(detail) > maxDetail {
		detail = strings.ToValidUTF8(detail[:maxDetail], "")
	}
	if !c.called.IsZero() {
		c.timings.Provider = time.Since(c.called)
	}
	return execution.Terminal{Outcome: o, Code: code, Phase: c.phase, Detail: detail, Timings: c.timings}
}
