package tunnel

import (
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// terminalGrace is how long a Handler may take to end a run that was cancelled before the session does it for it: the
// Edge waits longer than that for END.
const terminalGrace = 5 * time.Second

// Handler runs runs.
type Handler interface {
	// ServeRun executes one run on a goroutine of its own. ctx ends when the run is cancelled, its deadline passes or
	// the session ends; context.Cause tells which (*CancelError). A run that ServeRun leaves without End ends as
	// cancelled if it was, else as failed, internal.
	ServeRun(ctx context.Context, run *NodeRun)
}

// NodeRun is the Node's end of one run. Its methods are for ServeRun's goroutine and those it waits for; Read may be
// called beside the others.
type NodeRun struct {
	stream
	// Static after construction.
	open   *wire.Open
	ctx    context.Context
	cancel context.CancelCauseFunc
	lease  *leaseWait // nil: none was announced

	// Guarded by link.mu.
	deadline *time.Timer // or nil
	grace    *time.Timer // or nil: not cancelled
	bodyLeft uint64      // of the request body, not yet arrived
	phase    execution.Phase
	headSent bool
	events   bool               // static: a normalized run, which answers with events
	ended    bool               // END is queued or sent
	terminal execution.Terminal // valid when ended
	cut      *CancelError       // a cancel dropped part of the answer; or nil
	read     int                // bytes of rx.spare that Read has given away
}

// Open returns what the Edge asked for; never nil. It must not be changed.
func (r *NodeRun) Open() *wire.Open { return r.open }

// Body returns the whole request body if all of it has arrived and none was read, without waiting. It is valid until
// the run ends.
func (r *NodeRun) Body() (body []byte, ok bool) {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	if r.bodyLeft > 0 || uint64(len(r.rx.buf)) != r.open.BodyLength {
		return nil, false
	}
	body = r.takeLocked()
	// It stays with the caller: Read has nothing left and no buffer comes back.
	r.rx.spare = nil
	r.consumedLocked(len(body))
	return body, true
}

// Read reads the request body as it arrives (io.Reader); io.EOF after the last byte, the run's CancelError when it
// was cancelled. It gives credit back as it goes.
func (r *NodeRun) Read(p []byte) (int, error) {
	for {
		if n, err := r.readSome(p); n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		select {
		case <-r.ready:
		case <-r.ctx.Done():
			return 0, context.Cause(r.ctx)
		}
	}
}

func (r *NodeRun) readSome(p []byte) (int, error) {
	l := r.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.read == len(r.rx.spare) && len(r.rx.buf) > 0 {
		r.takeLocked()
		r.read = 0
	}
	n := copy(p, r.rx.spare[r.read:])
	r.read += n
	r.consumedLocked(n)
	if n == 0 && r.bodyLeft == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Phase tells the Edge how far the run is. A phase that is not beyond the last is ignored.
func (r *NodeRun) Phase(p execution.Phase) {
	l := r.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if p <= r.phase || r.ended || l.end != nil {
		return
	}
	r.phase = p
	l.urgentPayloadLocked(wire.TypePhase, &r.stream, phasePayloads[p:p+1:p+1])
}

// phasePayloads are the payloads of PHASE: a byte each.
var phasePayloads = []byte{0, 1, 2, 3, 4, 5}

// Head sends the answer's head. It must come once, before Write; a normalized run has none. It never blocks. It fails for a
// head over wire.MaxHead bytes, and as Write does when the run was cancelled or the session ended.
func (r *NodeRun) Head(h *wire.Head) error {
	payload, err := encode(h)
	if err != nil {
		return fmt.Errorf("encode HEAD: %w", err)
	}
	if len(payload) > wire.MaxHead {
		return fmt.Errorf("HEAD has %d bytes, over %d", len(payload), wire.MaxHead)
	}
	l := r.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := r.writableLocked(); err != nil {
		return err
	}
	if r.headSent || r.events {
		return fmt.Errorf("HEAD was already sent, or the run has none")
	}
	r.headSent = true
	r.pushLocked(sendItem{typ: wire.TypeHead, data: payload})
	l.wakeWriter()
	return nil
}

func (r *NodeRun) writableLocked() error {
	switch {
	case r.tx.dead:
		if cause := context.Cause(r.ctx); cause != nil {
			return cause
		}
		return &CancelError{Code: execution.CodeProtocol, Reason: "the run was ended"}
	case r.ended || r.link.end != nil:
		return io.ErrClosedPipe
	}
	return nil
}

// Write queues body bytes (copied), and blocks while the stream's send buffer is full for want of credit. border: p
// ends an SSE event. It fails when the run was cancelled or the session ended.
func (r *NodeRun) Write(p []byte, border bool) error { return r.write(wire.TypeBody, p, border) }

// Events queues events of a normalized run (copied): p is whole ones, as AppendRunEvent makes them. It blocks and fails
// as Write does; ErrEventTooLarge: one of them is over MaxEvent, and none was queued.
func (r *NodeRun) Events(p []byte) error {
	if err := wholeEvents(p); err != nil {
		return err
	}
	return r.write(wire.TypeEvent, p, true)
}

func (r *NodeRun) write(typ wire.Type, p []byte, border bool) error {
	for len(p) > 0 {
		n, err := r.writeSome(typ, p, border)
		if err != nil {
			return err
		}
		p = p[n:]
		if n > 0 {
			if len(p) == 0 && border {
				r.link.writeNow() // an event of a stream: nothing may follow for a while
			} else {
				r.link.wakeWriter()
			}
			continue
		}
		select {
		case <-r.space:
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	}
	return nil
}

func (r *NodeRun) writeSome(typ wire.Type, p []byte, border bool) (int, error) {
	l := r.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := r.writableLocked(); err != nil {
		return 0, err
	}
	if (typ == wire.TypeEvent) != r.events {
		return 0, fmt.Errorf("%s in a run of another kind", typ)
	}
	if !r.events && !r.headSent {
		return 0, fmt.Errorf("body before HEAD")
	}
	n := min(len(p), sendBufferLimit-r.tx.queued)
	if n <= 0 {
		return 0, nil
	}
	r.appendDataLocked(typ, p[:n], border && n == len(p))
	return n, nil
}

// End sends the terminal. Only the first call counts. It never blocks.
func (r *NodeRun) End(t execution.Terminal) {
	l := r.link
	l.mu.Lock()
	defer l.mu.Unlock()
	r.endRunLocked(t)
}

func (r *NodeRun) endRunLocked(t execution.Terminal) {
	if r.ended || r.stream.over {
		return
	}
	r.ended, r.terminal = true, t
	r.admitCutLocked()
	r.pushLocked(sendItem{typ: wire.TypeEnd, flags: wire.FlagLast, data: r.encodeEndLocked()})
	r.link.wakeWriter()
}

// admitCutLocked changes a terminal that calls an answer complete which a cancel has cut off: it would make it pass
// for one. It reports whether it did.
func (r *NodeRun) admitCutLocked() bool {
	if r.cut == nil || r.terminal.Outcome != execution.Completed {
		return false
	}
	r.terminal.Outcome, r.terminal.Code, r.terminal.Detail = execution.Cancelled, r.cut.Code, r.cut.Reason
	return true
}

func (r *NodeRun) encodeEndLocked() []byte {
	// It can't fail: every number fits and the text is UTF-8.
	payload, _ := proto.Marshal(encodeEnd(r.terminal, max(r.terminal.Phase, r.phase)))
	return payload
}

func encodeEnd(t execution.Terminal, phase execution.Phase) *wire.End {
	end := &wire.End{
		Outcome:     uint32(t.Outcome),
		Code:        uint32(t.Code),
		Phase:       uint32(phase),
		Detail:      truncate(t.Detail, wire.MaxDetail),
		AdmissionUs: t.Timings.Admission.Microseconds(),
		FirstByteUs: t.Timings.FirstByte.Microseconds(),
		ProviderUs:  t.Timings.Provider.Microseconds(),
		Told:        t.Told && t.Outcome == execution.Failed,
	}
	if u := t.Usage; u.Known {
		end.Usage = &wire.Usage{Input: u.Input, Output: u.Output, Cached: u.Cached, Reasoning: u.Reasoning, Estimated: u.Estimated}
	}
	return end
}

// cancelRunLocked ends the run's context; what is unsent is dropped but END.
func (r *NodeRun) cancelRunLocked(code execution.Code, reason string) {
	if r.grace != nil || r.stream.over {
		return
	}
	r.tx.dead = true
	cause := &CancelError{Code: code, Reason: reason}
	r.cancel(cause)
	// A handler that has not ended the run yet finds that it can't write any more.
	if dropped := r.dropUnsentLocked(); dropped || !r.ended {
		r.cut = cause
	}
	if r.ended && r.admitCutLocked() {
		r.tx.queue[0].data = r.encodeEndLocked() // END is all that is left
	}
	r.link.wakeWriter()
	r.grace = time.AfterFunc(terminalGrace, func() {
		r.link.mu.Lock()
		defer r.link.mu.Unlock()
		r.endRunLocked(execution.Terminal{Outcome: execution.Cancelled, Code: code, Detail: reason})
	})
}

// faultLocked ends a run whose frames broke the contract.
func (r *NodeRun) faultLocked(code execution.Code, err error) {
	r.link.metrics.StreamErrors.Add(1)
	r.endRunLocked(execution.Terminal{Outcome: execution.Failed, Code: code, Detail: err.Error()})
	r.cancelRunLocked(code, err.Error())
}

// frameLocked takes one frame of the run.
func (r *NodeRun) frameLocked(h wire.FrameHeader, payload []byte) {
	skip, err := r.checkLocked(h)
	if err != nil {
		if !r.tx.dead {
			r.faultLocked(execution.CodeProtocol, err)
		}
		return
	}
	if skip {
		return
	}
	if err := r.orderedFrameLocked(h, payload); err != nil && !r.tx.dead {
		r.faultLocked(execution.CodeProtocol, fmt.Errorf("%s: %w", h.Type, err))
	}
}

func (r *NodeRun) orderedFrameLocked(h wire.FrameHeader, payload []byte) error {
	switch h.Type {
	case wire.TypeWindow:
		return r.windowLocked(payload)
	case wire.TypeCancel:
		var c wire.Cancel
		if err := proto.Unmarshal(payload, &c); err != nil {
			return err
		}
		r.cancelRunLocked(execution.Code(min(c.Code, 255)), truncate(c.Reason, 256))
		return nil
	case wire.TypeBody:
		return r.bodyFrameLocked(payload)
	case wire.TypeLease:
		return r.leaseFrameLocked(payload)
	default:
		return fmt.Errorf("not a frame from an Edge")
	}
}

func (r *NodeRun) bodyFrameLocked(payload []byte) error {
	if r.tx.dead {
		r.link.metrics.FramesDropped.Add(1)
		return nil
	}
	if uint64(len(payload)) > r.bodyLeft {
		return fmt.Errorf("%d bytes more than OPEN announced", uint64(len(payload))-r.bodyLeft)
	}
	r.bodyLeft -= uint64(len(payload))
	if r.ended {
		// A run that was rejected: the rest of its body is for nobody.
		r.link.metrics.FramesDropped.Add(1)
		return nil
	}
	if r.receiveLocked(payload, false) {
		poke(r.ready)
	} else {
		r.faultLocked(execution.CodeFlowControl, fmt.Errorf("the Edge sent %d bytes with credit for %d", len(payload), r.rx.allow))
	}
	return nil
}

// removeLocked takes the run off the session.
func (r *NodeRun) removeLocked() {
	if r.deadline != nil {
		r.deadline.Stop()
	}
	if r.grace != nil {
		r.grace.Stop()
	}
	r.endLocked()
	if r.lease != nil {
		r.lease.token = nil
	}
	r.cancel(&CancelError{Code: execution.CodeNone, Reason: "the run has ended"})
}
