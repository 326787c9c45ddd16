package tunnel

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// nodeSession is one session seen from the Node. The Supervisor owns it.
type nodeSession struct {
	link link

	// Static after registration.
	sup        *Supervisor
	generation execution.Generation
	maxStreams int
	// configRevision is that of REGISTERED.
	configRevision uint64
	keeper         Keeper        // or nil
	endKeeper      func()        // calls Ended, once; never nil
	readyAck       chan struct{} // closed by READY_ACK
	drainAsked     chan struct{} // closed by the Edge's DRAIN
	work           chan *NodeRun // to idle handlers; never closed
	// idleHandlers counts the goroutines that wait on work.
	idleHandlers atomic.Int32

	// Guarded by link.mu.
	runs      map[uint32]*NodeRun
	highest   uint32 // OPEN processed
	online    bool
	drain     *wire.Drain // what the Edge asked
	draining  bool        // this end said DRAIN
	started   time.Time
	refreshID uint64
	unacked   uint64 // the id of a refresh under way; 0 for none
	dirty     bool   // the inventory changed meanwhile
	idle      waiters
	readyAt   time.Time // READY was queued
	former    uint64    // sessions that the process had before this one
}

func (s *nodeSession) heartbeatLocked(hb *wire.Heartbeat) {
	hb.HighestOpen = s.highest
	hb.OpenStreams = make([]uint32, 0, len(s.runs))
	for id := range s.runs {
		hb.OpenStreams = append(hb.OpenStreams, id)
	}
}

// ackLocked cancels what the Edge no longer knows.
func (s *nodeSession) ackLocked(ack *wire.HeartbeatAck) {
	for _, id := range ack.UnknownStreams {
		if r := s.runs[id]; r != nil {
			s.link.metrics.LostRuns.Add(1)
			r.cancelRunLocked(execution.CodeSessionLost, "the Edge does not know the run")
		}
	}
	if ack.Id == s.link.beat.lastSent {
		s.timeLocked(ack.EdgeTimeUnixMs, s.link.beat.sentAt)
	}
}

func (s *nodeSession) requestSent(*stream) {}

func (s *nodeSession) messageReadLocked() {}

func (s *nodeSession) sessionFrameLocked(h wire.FrameHeader, payload []byte) error {
	switch h.Type {
	case wire.TypeHeartbeat:
		var hb wire.Heartbeat
		if err := proto.Unmarshal(payload, &hb); err != nil {
			return protocolError("HEARTBEAT: %w", err)
		}
		return s.link.answerLocked(wire.TypeHeartbeatAck, &wire.HeartbeatAck{Id: hb.Id})
	case wire.TypeReadyAck:
		if s.online {
			return protocolError("READY_ACK twice")
		}
		var ack wire.NodeReadyResponse
		if err := proto.Unmarshal(payload, &ack); err != nil {
			return protocolError("READY_ACK: %w", err)
		}
		s.online = true
		s.link.startHeartbeatsLocked()
		s.timeLocked(ack.EdgeTimeUnixMs, s.readyAt)
		close(s.readyAck)
		return nil
	case wire.TypeRefresh:
		return s.refreshFrameLocked(payload)
	case wire.TypeDrain:
		return s.drainFrameLocked(payload)
	case wire.TypeCommand:
		return s.commandLocked(payload)
	case wire.TypeNotice:
		return s.noticeLocked(payload)
	case wire.TypeRevoke:
		return s.revokeLocked(payload)
	default:
		return protocolError("%s is not a frame from an Edge", h.Type)
	}
}

func (s *nodeSession) refreshFrameLocked(payload []byte) error {
	var msg wire.Refresh
	if err := proto.Unmarshal(payload, &msg); err != nil {
		return protocolError("REFRESH: %w", err)
	}
	if msg.GetAck() == nil {
		return s.configFrameLocked(&msg)
	}
	if msg.Id == s.unacked {
		s.unacked = 0
		if s.dirty {
			s.announceLocked()
		}
	}
	return nil
}

func (s *nodeSession) drainFrameLocked(payload []byte) error {
	var d wire.Drain
	if err := proto.Unmarshal(payload, &d); err != nil {
		return protocolError("DRAIN: %w", err)
	}
	if s.drain == nil {
		s.drain = &d
		close(s.drainAsked)
	}
	return nil
}

// noticeLocked passes on what the Edge wants the Node's operator to know.
func (s *nodeSession) noticeLocked(payload []byte) error {
	var n wire.Notice
	if err := proto.Unmarshal(payload, &n); err != nil {
		return protocolError("NOTICE: %w", err)
	}
	code, message := truncate(n.Code, maxCodeBytes), truncate(n.Message, maxMessageBytes)
	s.link.after = append(s.link.after, func() { s.link.log.Warn("tunnel: notice from the Edge", "code", code, "message", message) })
	return nil
}

// revokeLocked takes REVOKE. A Node that opens no leases has nothing to withdraw.
func (s *nodeSession) revokeLocked(payload []byte) error {
	var r wire.Revoke
	if err := proto.Unmarshal(payload, &r); err != nil {
		return protocolError("REVOKE: %w", err)
	}
	ack := &wire.RevokeAck{Id: r.Id}
	if s.keeper == nil {
		return s.link.answerLocked(wire.TypeRevokeAck, ack)
	}
	s.keepLocked(wire.TypeRevoke, wire.TypeRevokeAck, ack, func() error { return s.keeper.Revoked(&r) })
	return nil
}

func (s *nodeSession) runFrameLocked(h wire.FrameHeader, payload []byte) error {
	if r := s.runs[h.Stream]; r != nil {
		r.frameLocked(h, payload)
		return nil
	}
	if h.Type == wire.TypeOpen {
		return s.openFrameLocked(h, payload)
	}
	if h.Stream > s.highest {
		return protocolError("%s for stream %d, which was never opened", h.Type, h.Stream)
	}
	s.link.metrics.FramesDropped.Add(1)
	return nil
}

// openFrameLocked begins a run.
func (s *nodeSession) openFrameLocked(h wire.FrameHeader, payload []byte) error {
	switch {
	case h.Stream <= s.highest:
		return protocolError("OPEN for stream %d after %d", h.Stream, s.highest)
	case !s.online:
		return protocolError("OPEN before READY_ACK")
	case h.Seq != 0:
		return protocolError("OPEN with seq %d", h.Seq)
	case h.Length > wire.MaxPayload:
		return protocolError("OPEN: %w", wire.ErrTooLarge)
	case len(s.runs) >= s.maxStreams:
		return protocolError("OPEN beyond %d runs at once", s.maxStreams)
	}
	open := &wire.Open{}
	if err := proto.Unmarshal(payload, open); err != nil {
		return protocolError("OPEN: %w", err)
	}
	s.highest = h.Stream
	r := &NodeRun{open: open, bodyLeft: open.BodyLength, events: open.GetRun() != nil}
	initStream(&r.stream, &s.link, h.Stream)
	r.space = make(chan struct{}, 1)
	r.rx.seq = 1
	if open.ExpectsLease {
		r.lease = &leaseWait{arrived: make(chan struct{})}
	}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	s.runs[h.Stream] = r
	s.link.metrics.Streams.Add(1)
	if s.draining {
		r.endRunLocked(execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeDraining})
		return nil
	}
	if open.TimeoutMs > 0 {
		r.deadline = time.AfterFunc(time.Duration(open.TimeoutMs)*time.Millisecond, func() {
			s.link.mu.Lock()
			defer s.link.mu.Unlock()
			r.cancelRunLocked(execution.CodeDeadline, "the run's deadline passed")
		})
	}
	// Once all frames of the message were read: OPEN and a small body mostly come together.
	s.link.after = append(s.link.after, func() { s.serveRun(r) })
	return nil
}

// maxIdleHandlers bounds the goroutines that wait for a run.
const maxIdleHandlers = 64

// serveRun serves r on a goroutine that has served one before, if there is an idle one: its stack has grown already.
func (s *nodeSession) serveRun(r *NodeRun) {
	select {
	case s.work <- r:
	default:
		s.link.wg.Go(func() { s.serveRuns(r) }) // the reader, which calls this, waits for wg after its end
	}
}

func (s *nodeSession) serveRuns(r *NodeRun) {
	for {
		s.handle(r)
		if s.idleHandlers.Add(1) > maxIdleHandlers {
			s.idleHandlers.Add(-1)
			return
		}
		select {
		case r = <-s.work:
			s.idleHandlers.Add(-1)
		case <-s.link.done:
			return
		}
	}
}

func (s *nodeSession) handle(r *NodeRun) {
	defer func() {
		if p := recover(); p != nil {
			s.link.log.Error("tunnel: a run panicked", "run_id", r.open.RunId, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
		r.End(leftWithoutEnd(r.ctx))
	}()
	s.sup.cfg.Handler.ServeRun(r.ctx, r)
}

// leftWithoutEnd is the terminal of a run whose handler gave none: what cancelled it, or else a fault of ours.
func leftWithoutEnd(ctx context.Context) execution.Terminal {
	if c, ok := errors.AsType[*CancelError](context.Cause(ctx)); ok {
		return execution.Terminal{Outcome: execution.Cancelled, Code: c.Code, Detail: c.Reason}
	}
	return execution.Terminal{Outcome: execution.Failed, Code: execution.CodeInternal, Detail: "the Node's handler returned without ending the run"}
}

func (s *nodeSession) endSentLocked(st *stream) {
	if r := s.runs[st.id]; r != nil {
		delete(s.runs, st.id)
		r.removeLocked()
	}
	if len(s.runs) == 0 {
		s.idle.tell()
	}
}

// whenIdle returns a channel that is closed when no run is left.
func (s *nodeSession) whenIdle() <-chan struct{} {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.idle.wait(len(s.runs) == 0)
}

func (s *nodeSession) endedLocked(end *EndError) {
	for id, r := range s.runs {
		delete(s.runs, id)
		r.tx.dead = true
		r.cancel(&CancelError{Code: end.Run, Reason: end.Code})
		r.removeLocked()
	}
}

func (s *nodeSession) ended(end *EndError) {
	s.endKeeper()
	s.link.log.Info("tunnel: session ended", "reason", end.Code, "detail", end.Error(), "remote", end.Remote)
	s.link.wg.Done()
}
