package tunnel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// OpenSpec is what NodeSession.Open needs.
type OpenSpec struct {
	Open *wire.Open // required; BodyLength and ExpectsLease are set by Open
	Body []byte     // may be nil
	// More is the rest of the body, in pieces that follow Body; or nil. It spares the caller a copy of a large body in which
	// little is changed.
	More [][]byte
	// Released is called exactly once, when the run's capacity place on the Node is free again: at provider_done, at
	// END, or when the session ends; not when only the Edge gave the run up. It is called without locks held, from
	// any goroutine, and must return at once. Or nil.
	Released func()
	// Lease makes the sealed lease of the run, at most wire.MaxLease bytes; or nil: the run has none. It is called once,
	// on a goroutine of its own, when the rest of the request was written, if the run and its session live; ctx ends
	// with either, and after 10 s. What it returns goes out at once. An error ends the run: failed, as
	// session_superseded if it is ErrSuperseded, else as credential_rejected. Its text must hold no secret.
	Lease func(ctx context.Context) ([]byte, error)
}

// Batch is what has arrived since the last Take.
type Batch struct {
	Head *wire.Head // at most once, before any Data; never of a normalized run
	// Data is body bytes, of a normalized run its events as EventReader reads them; valid until the next Take, which also
	// gives their credit back to the Node.
	Data []byte
	// AtBorder: the last byte that arrived (in this batch or before) ends an SSE event, or one of a normalized run.
	AtBorder bool
	// End is set exactly once, in the last batch.
	End *execution.Terminal
}

// Run is the Edge's end of one run. Take and Ready are for one goroutine; the rest for any.
type Run struct {
	stream
	// Static after construction.
	events bool // a normalized run: it answers with EVENT
	// Guarded by link.mu.
	runID    execution.RunID
	head     *wire.Head
	terminal *execution.Terminal // made; given away once
	headSeen bool
	decided  bool // terminal made
	given    bool
	dropping bool // nobody takes any more
	phase    execution.Phase
	missed   uint8 // successive HEARTBEATs that did not know it
	lent     int   // bytes of the last batch, credit due at the next Take
	cancel   *time.Timer
	released func()              // nil once called
	direct   func() (taken bool) // or nil
	seal     *seal               // or nil: no lease is to be made (any more)
}

// Ready receives when Take has something to return. It is never closed.
func (r *Run) Ready() <-chan struct{} { return r.ready }

// Take returns what has arrived; ok is false if nothing has. After a batch with End nothing follows.
func (r *Run) Take() (b Batch, ok bool) {
	l := r.link
	l.mu.Lock()
	defer l.mu.Unlock()
	r.consumedLocked(r.lent)
	r.lent = 0
	b.AtBorder = r.rx.border
	if r.head != nil {
		b.Head, r.head = r.head, nil
		ok = true
	}
	if len(r.rx.buf) > 0 {
		b.Data = r.takeLocked()
		r.lent = len(b.Data)
		ok = true
	}
	if r.terminal != nil && !r.given {
		r.given = true
		b.End = r.terminal
		ok = true
	}
	return b, ok
}

// TakeData is Take for a batch that holds Data and nothing else; ok is false if there is more to it, or nothing, or so
// much that the Node could be out of credit: that of a batch is given back by the next call, and after this one nobody
// is bound to call again before more has arrived.
func (r *Run) TakeData() (data []byte, atBorder, ok bool) {
	l := r.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.head != nil || r.terminal != nil || len(r.rx.buf) == 0 || len(r.rx.buf) >= r.rx.window/4 {
		return nil, false, false
	}
	r.consumedLocked(r.lent)
	data = r.takeLocked()
	r.lent = len(data)
	return data, r.rx.border, true
}

// Direct lets the session's reader pass on what a message brought for this run alone, without waking the goroutine
// that waits on Ready: on a calm link that wake-up costs more than all else. take is called on the reader's goroutine,
// so it must never block, and calls TakeData; if it returns false Ready receives as ever. Once a run has ended it is
// not called any more.
func (r *Run) Direct(take func() (taken bool)) {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	r.direct = take
}

// Backlog is what of an answer waits at the Edge for whoever takes it.
type Backlog struct {
	Bytes  int  // arrived, and not consumed: what the last Take returned is consumed by the next
	Window int  // how many the Node may send before some are consumed; at least 64 KiB
	Place  bool // the run's capacity place on the Node is still taken: OpenSpec.Released is to be called
}

// Backlog returns the run's present backlog.
func (r *Run) Backlog() Backlog {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	return Backlog{Bytes: len(r.rx.buf) + r.lent, Window: r.rx.window, Place: r.released != nil}
}

// Phase returns the highest phase known.
func (r *Run) Phase() execution.Phase {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	return r.phase
}

// OpenWritten reports whether the OPEN frame was handed to the socket: if not, no Node has seen the run.
func (r *Run) OpenWritten() bool {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	return r.tx.started
}

// RequestWritten reports whether all of the request, its lease too, was handed to the socket, and the body that Open was
// given is not looked at any more.
func (r *Run) RequestWritten() bool {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	return r.tx.started && len(r.tx.queue) == 0 && r.seal == nil
}

// Cancel asks the Node to end the run. The terminal follows in a batch: the Node's own, or after 10 s the Edge's
// (cancelled, cancel_timeout). If OPEN was not written yet the terminal is there at once. Idempotent.
func (r *Run) Cancel(code execution.Code, reason string) {
	r.link.mu.Lock()
	r.cancelLocked(code, reason)
	r.unlock()
}

// Abandon is Cancel for a caller that won't Take any more: what arrives is dropped.
func (r *Run) Abandon(code execution.Code, reason string) {
	r.link.mu.Lock()
	r.dropping = true
	r.rx.buf, r.rx.spare, r.head = nil, nil, nil
	r.cancelLocked(code, reason)
	r.unlock()
}

// unlock releases the link's lock and calls what became due under it.
func (r *Run) unlock() { r.link.unlock() }

func (l *link) unlock() {
	after := l.after
	l.after = nil
	l.mu.Unlock()
	for _, f := range after {
		f()
	}
}

func (r *Run) cancelLocked(code execution.Code, reason string) {
	if r.decided || r.cancel != nil {
		return
	}
	if !r.tx.started {
		// The Node has never heard of it.
		r.finishLocked(&execution.Terminal{Outcome: execution.Cancelled, Code: code, Phase: execution.PhaseQueued, Detail: reason})
		r.forgetLocked()
		return
	}
	r.stopSealLocked()
	r.dropUnsentLocked()
	r.tx.dead = true
	r.link.urgentLocked(wire.TypeCancel, &r.stream, &wire.Cancel{Code: uint32(code), Reason: truncate(reason, 256)})
	r.cancel = time.AfterFunc(cancelWait, func() {
		r.link.mu.Lock()
		if !r.decided {
			r.link.metrics.CancelTimeouts.Add(1)
			r.finishLocked(&execution.Terminal{
				Outcome: execution.Cancelled, Code: execution.CodeCancelTimeout, Phase: r.phase,
				Detail: "the Node did not respond to the cancellation within 10 s: " + reason,
			})
		}
		r.unlock()
	})
}

// finishLocked makes the terminal. The run stays in the session until the Node's END: its place is still taken.
func (r *Run) finishLocked(t *execution.Terminal) {
	if r.decided {
		return
	}
	r.decided = true
	t.Phase = max(t.Phase, r.phase)
	r.phase = t.Phase
	r.terminal = t
	r.stopSealLocked()
	if r.cancel != nil {
		r.cancel.Stop()
	}
	poke(r.ready)
}

// forgetLocked takes the run off the session: nothing of it is left at the Node.
func (r *Run) forgetLocked() {
	delete(r.session().runs, r.id)
	r.endLocked()
	r.releaseLocked()
	if r.cancel != nil {
		r.cancel.Stop()
	}
	r.session().idleLocked()
}

func (r *Run) releaseLocked() {
	if r.released != nil {
		r.link.after = append(r.link.after, r.released)
		r.released = nil
	}
}

func (r *Run) session() *NodeSession { return r.link.peer.(*NodeSession) }

// faultLocked ends a run whose frames broke the contract, and tells the Node to end it too.
func (r *Run) faultLocked(code execution.Code, err error) {
	r.link.metrics.StreamErrors.Add(1)
	if !r.tx.dead {
		r.dropUnsentLocked()
		r.tx.dead = true
		r.link.urgentLocked(wire.TypeCancel, &r.stream, &wire.Cancel{Code: uint32(code), Reason: truncate(err.Error(), 256)})
	}
	r.finishLocked(&execution.Terminal{Outcome: execution.Failed, Code: code, Detail: err.Error()})
}

// frameLocked takes one frame of the run.
func (r *Run) frameLocked(h wire.FrameHeader, payload []byte) {
	skip, err := r.checkLocked(h)
	if err != nil {
		if !r.decided {
			r.faultLocked(execution.CodeProtocol, err)
		}
		// Still the Node's END, whatever is wrong with it.
		if h.Type == wire.TypeEnd {
			r.forgetLocked()
		}
		return
	}
	if skip {
		return
	}
	if h.Type == wire.TypeEnd {
		r.endFrameLocked(payload)
		return
	}
	if r.decided || r.dropping {
		r.droppedLocked(h, payload)
		return
	}
	if err := r.openFrameLocked(h, payload); err != nil {
		r.faultLocked(execution.CodeProtocol, fmt.Errorf("%s: %w", h.Type, err))
	}
}

// droppedLocked counts a frame that nobody wants; PHASE still frees the place. The run was cancelled, so its sender waits for
// no more credit of its own; that of the session was given back when the frame was read.
func (r *Run) droppedLocked(h wire.FrameHeader, payload []byte) {
	r.link.metrics.FramesDropped.Add(1)
	if h.Type == wire.TypePhase {
		_ = r.phaseFrameLocked(payload)
	}
}

func (r *Run) openFrameLocked(h wire.FrameHeader, payload []byte) error {
	switch h.Type {
	case wire.TypePhase:
		return r.phaseFrameLocked(payload)
	case wire.TypeWindow:
		return r.windowLocked(payload)
	case wire.TypeHead:
		return r.headFrameLocked(payload)
	case wire.TypeBody:
		switch {
		case r.events:
			return fmt.Errorf("in a normalized run")
		case !r.headSeen:
			return fmt.Errorf("before HEAD")
		}
		r.dataFrameLocked(payload, h.Flags&wire.FlagBorder != 0)
		return nil
	case wire.TypeEvent:
		if !r.events {
			return fmt.Errorf("in a run that is not normalized")
		}
		r.dataFrameLocked(payload, h.Flags&wire.FlagContinued == 0)
		return nil
	default:
		return fmt.Errorf("not a frame from a Node")
	}
}

// dataFrameLocked takes BODY or EVENT.
func (r *Run) dataFrameLocked(payload []byte, border bool) {
	r.phase = max(r.phase, execution.PhaseStreaming)
	if r.receiveLocked(payload, border) {
		r.session().arrivedLocked(r)
		return
	}
	r.faultLocked(execution.CodeFlowControl, fmt.Errorf("the Node sent %d bytes with credit for %d", len(payload), r.rx.allow))
}

func (r *Run) phaseFrameLocked(payload []byte) error {
	if len(payload) != 1 || payload[0] > byte(execution.PhaseProviderDone) {
		return fmt.Errorf("malformed")
	}
	p := execution.Phase(payload[0])
	if p == execution.PhaseProviderDone {
		r.releaseLocked()
	}
	r.phase = max(r.phase, p)
	return nil
}

func (r *Run) headFrameLocked(payload []byte) error {
	switch {
	case r.events:
		return fmt.Errorf("in a normalized run")
	case r.headSeen:
		return fmt.Errorf("twice")
	}
	if len(payload) > wire.MaxHead {
		return fmt.Errorf("over %d bytes", wire.MaxHead)
	}
	head := &wire.Head{}
	if err := proto.Unmarshal(payload, head); err != nil {
		return err
	}
	if err := validHead(head); err != nil {
		return err
	}
	r.headSeen = true
	r.head = head
	r.phase = max(r.phase, execution.PhaseProviderCalled)
	poke(r.ready)
	return nil
}

// validHead checks what must hold before a head may become one of HTTP.
func validHead(h *wire.Head) error {
	if h.Status < 200 || h.Status > 599 {
		return fmt.Errorf("status %d", h.Status)
	}
	for _, f := range h.Headers {
		if !httpguts.ValidHeaderFieldName(f.Name) || !httpguts.ValidHeaderFieldValue(f.Value) {
			return fmt.Errorf("a malformed header field")
		}
	}
	return nil
}

func (r *Run) endFrameLocked(payload []byte) {
	t, err := parseEnd(payload)
	if err == nil && r.events && t.Outcome == execution.Completed && !r.rx.border && !r.dropping {
		err = errors.New("of an event without its end")
	}
	switch {
	case err != nil && !r.decided:
		r.link.metrics.StreamErrors.Add(1)
		t = &execution.Terminal{Outcome: execution.Failed, Code: execution.CodeProtocol, Detail: "END: " + err.Error()}
		fallthrough
	case !r.decided:
		r.finishLocked(t)
	}
	r.forgetLocked()
}

func parseEnd(payload []byte) (*execution.Terminal, error) {
	var end wire.End
	if err := proto.Unmarshal(payload, &end); err != nil {
		return nil, err
	}
	if end.Outcome < uint32(execution.Completed) || end.Outcome > uint32(execution.Rejected) {
		return nil, fmt.Errorf("outcome %d", end.Outcome)
	}
	t := &execution.Terminal{
		Outcome: execution.Outcome(end.Outcome),
		Code:    execution.Code(min(end.Code, 255)),
		Phase:   execution.Phase(min(end.Phase, uint32(execution.PhaseProviderDone))),
		Detail:  truncate(end.Detail, wire.MaxDetail),
		Timings: execution.Timings{
			Admission: micros(end.AdmissionUs), FirstByte: micros(end.FirstByteUs), Provider: micros(end.ProviderUs),
		},
		Told: end.Told && end.Outcome == uint32(execution.Failed),
	}
	if u := end.Usage; u != nil {
		t.Usage = execution.Usage{Input: u.Input, Output: u.Output, Cached: u.Cached, Reasoning: u.Reasoning, Known: true, Estimated: u.Estimated}
	}
	return t, nil
}

// micros is a time that a Node says a run took: a negative one is 0, and none is longer than runs are.
func micros(n int64) time.Duration {
	return time.Duration(min(max(n, 0), longestRun.Microseconds())) * time.Microsecond
}

// longestRun bounds the times that END says: more than TimeoutMs can say.
const longestRun = 50 * 24 * time.Hour

// Probe sends a HEARTBEAT and waits for its answer: that the session lives, both ways. Errors: ErrSessionClosed, ctx's, or
// too many probes at once (64).
func (s *NodeSession) Probe(ctx context.Context) error { return s.link.probe(ctx) }

// probe sends a HEARTBEAT and waits for its answer: by then the peer has read all that was sent before it.
func (l *link) probe(ctx context.Context) error {
	l.mu.Lock()
	if l.end != nil {
		l.mu.Unlock()
		return ErrSessionClosed
	}
	if len(l.beat.waiters) >= 64 {
		l.mu.Unlock()
		return fmt.Errorf("too many probes at once")
	}
	ch := make(chan struct{})
	id := l.heartbeatNowLocked()
	if l.beat.waiters == nil {
		l.beat.waiters = make(map[uint64]chan struct{})
	}
	l.beat.waiters[id] = ch
	l.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-l.done:
		return ErrSessionClosed
	case <-ctx.Done():
		l.mu.Lock()
		delete(l.beat.waiters, id)
		l.mu.Unlock()
		return ctx.Err()
	}
}
