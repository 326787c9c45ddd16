package tunnel

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// The liveness profile of the transport. Constants, not configuration: both ends must agree, and a session that has
// long prefills or slow clients needs no other.
const (
	heartbeatInterval = 30 * time.Second
	heartbeatWait     = 45 * time.Second
)

const (
	// farewellTime is how long GOODBYE and the closing handshake may take before the socket is cut.
	farewellTime = time.Second
	// maxCodeBytes and maxMessageBytes bound what a peer's GOODBYE or refusal puts into logs and status.
	maxCodeBytes    = 64
	maxMessageBytes = 1024
	// cancelWait is how long the Edge waits for END after CANCEL before it makes the terminal itself.
	cancelWait = 10 * time.Second
)

// peerEnd is what an end of the tunnel adds to a link. Methods ending in Locked are called with link.mu held.
type peerEnd interface {
	// sessionFrameLocked and runFrameLocked take one frame. Their error ends the session.
	sessionFrameLocked(h wire.FrameHeader, payload []byte) error
	runFrameLocked(h wire.FrameHeader, payload []byte) error
	// messageReadLocked is told that every frame of a message was taken.
	messageReadLocked()
	// endSentLocked is told that END of s was serialised.
	endSentLocked(s *stream)
	// requestSent is told that all that was queued of s, whose lease is to follow, was written; without the lock, by
	// the writer.
	requestSent(s *stream)
	// heartbeatLocked completes a heartbeat of ours.
	heartbeatLocked(*wire.Heartbeat)
	// endedLocked makes the terminal of everything that is open: the link has ended.
	endedLocked(*EndError)
	// ended is called once after endedLocked, without the lock. It calls link.wg.Done when whoever has to know knows.
	ended(*EndError)
}

// link is what both ends share: one WebSocket, its reader and its writer.
type link struct {
	// Static after construction.
	conn    messageConn
	peer    peerEnd
	log     *slog.Logger
	metrics *Metrics
	budget  *budget
	now     func() time.Time

	wake chan struct{} // one token: the writer has something to look at; never closed
	done chan struct{} // closed by fail
	wg   sync.WaitGroup

	// writing holds one token while somebody writes to the connection, which may be for as long as the session lives.
	// It is taken before mu.
	writing chan struct{}
	// written are the runs whose request, all but its lease, is in the message that is being written. Guarded by writing.
	written []*stream

	mu sync.Mutex
	// Guarded by mu.
	lastWrite    time.Time // when a write last began
	urgent       []urgentFrame
	urgentQueued uint64 // how many there were so far, and how many of them went to the writer
	urgentTaken  uint64
	answers      int       // bytes of the answers in urgent
	windows      []*stream // with credit to give back
	ctl          ring      // streams whose next item is a control frame
	body         ring      // streams whose next item is BODY, with credit
	txSeq, rxSeq uint32    // of the session
	credit       sessionCredit
	sessionGrant int      // session credit to give back
	after        []func() // to be called when the lock is released, by the reader
	end          *EndError
	traffic      traffic

	beat struct {
		lastSent uint64
		sentAt   time.Time
		rtt      time.Duration
		lastAck  time.Time
		interval *time.Timer
		wait     *time.Timer
		waiters  map[uint64]chan struct{} // probes, by heartbeat id
	}
}

func (l *link) init(conn messageConn, peer peerEnd, log *slog.Logger, metrics *Metrics, b *budget) {
	l.conn, l.peer, l.log, l.metrics, l.budget = conn, peer, log, metrics, b
	l.now = time.Now
	l.wake = make(chan struct{}, 1)
	l.writing = make(chan struct{}, 1)
	l.done = make(chan struct{})
	l.credit.limit = sessionWindowFirst
	l.wg.Add(1) // for peer.ended
}

// readLoop reads until the connection is gone. It blocks on nothing but the socket.
func (l *link) readLoop() {
	for {
		if err := l.conn.receive(l.dispatch); err != nil {
			l.fail(readEnd(err))
			if errors.Is(err, errUnread) {
				return // the closing handshake skips what is left of it
			}
			break
		}
	}
	// Whoever ended the session may still be saying so; what arrives meanwhile is for nobody.
	l.drainSocket()
}

func readEnd(err error) *EndError {
	if errors.Is(err, errProtocol) || errors.Is(err, websocket.ErrMessageTooBig) {
		return &EndError{Code: goodbyeProtocol, Message: err.Error(), Run: execution.CodeSessionLost}
	}
	if end, ok := errors.AsType[*EndError](err); ok {
		return end
	}
	return &EndError{Code: goodbyeLost, Message: "the connection broke", Err: err, Run: execution.CodeSessionLost}
}

// drainSocket reads and drops until the socket is closed, so that the closing handshake of either end can finish.
func (l *link) drainSocket() {
	drop := func([]byte) error { return nil }
	for {
		if l.conn.receive(drop) != nil {
			return
		}
	}
}

// dispatch takes one message apart. The lock is held once for all its frames.
func (l *link) dispatch(message []byte) error {
	l.metrics.MessagesReceived.Add(1)
	l.metrics.BytesReceived.Add(uint64(len(message)))
	l.mu.Lock()
	err := l.dispatchLocked(message)
	after := l.after
	l.after = nil
	l.mu.Unlock()
	for _, f := range after {
		f()
	}
	return err
}

func (l *link) dispatchLocked(message []byte) error {
	if l.end != nil {
		return l.end
	}
	frames, received := uint64(0), uint64(len(message))
	defer func() {
		l.metrics.FramesReceived.Add(frames)
		l.traffic.framesReceived += frames
		l.traffic.bytesReceived += received
		l.peer.messageReadLocked()
	}()
	for {
		h, payload, rest, err := wire.Next(message)
		if err != nil && !(errors.Is(err, wire.ErrTooLarge) && payload != nil && h.Stream != 0) {
			return protocolError("%w", err)
		}
		frames++
		if err := l.frameLocked(h, payload); err != nil {
			return err
		}
		if len(rest) == 0 {
			break
		}
		message = rest
	}
	if l.sessionGrant >= sessionGrantStep {
		l.wakeWriter()
	}
	return nil
}

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errProtocol, fmt.Errorf(format, args...))
}

func (l *link) frameLocked(h wire.FrameHeader, payload []byte) error {
	if h.Type == wire.TypeBody || h.Type == wire.TypeEvent {
		l.sessionGrant += len(payload)
	}
	if h.Stream != 0 {
		return l.peer.runFrameLocked(h, payload)
	}
	if h.Seq != l.rxSeq {
		return protocolError("session frame %s has seq %d, want %d", h.Type, h.Seq, l.rxSeq)
	}
	l.rxSeq++
	switch h.Type {
	case wire.TypeHeartbeat, wire.TypeHeartbeatAck, wire.TypeGoodbye, wire.TypeWindow:
		return l.sharedFrameLocked(h, payload)
	}
	if !h.Type.Known() {
		return l.unknownLocked(h)
	}
	return l.peer.sessionFrameLocked(h, payload)
}

func (l *link) unknownLocked(h wire.FrameHeader) error {
	if h.Flags&wire.FlagIgnorable == 0 {
		return protocolError("unknown mandatory frame %s", h.Type)
	}
	l.metrics.FramesDropped.Add(1)
	return nil
}

// sharedFrameLocked takes the session frames that mean the same at both ends.
func (l *link) sharedFrameLocked(h wire.FrameHeader, payload []byte) error {
	switch h.Type {
	case wire.TypeWindow:
		n, err := wire.ParseWindow(payload)
		if err != nil {
			return protocolError("%w", err)
		}
		if !l.credit.acked(int(n), l.now) {
			return protocolError("session credit for %d bytes that were not in flight", n)
		}
		if l.body.n > 0 {
			l.wakeWriter()
		}
		return nil
	case wire.TypeHeartbeatAck:
		var ack wire.HeartbeatAck
		if err := proto.Unmarshal(payload, &ack); err != nil {
			return protocolError("HEARTBEAT_ACK: %w", err)
		}
		return l.ackedLocked(&ack)
	case wire.TypeGoodbye:
		var bye wire.Goodbye
		if err := proto.Unmarshal(payload, &bye); err != nil {
			return protocolError("GOODBYE: %w", err)
		}
		return &EndError{Code: truncate(bye.Code, maxCodeBytes), Message: truncate(bye.Message, maxMessageBytes), Remote: true, Run: execution.CodeSessionLost}
	default: // HEARTBEAT
		return l.peer.sessionFrameLocked(h, payload)
	}
}

// checkLocked checks what any frame of a run must keep to: its order, its size, its type. skip is set for one that
// this version does not know and may ignore.
func (s *stream) checkLocked(h wire.FrameHeader) (skip bool, err error) {
	if h.Seq != s.rx.seq {
		return false, fmt.Errorf("frame %s has seq %d, want %d", h.Type, h.Seq, s.rx.seq)
	}
	s.rx.seq++
	switch {
	case h.Length > wire.MaxPayload:
		return false, fmt.Errorf("frame %s has %d bytes, over %d", h.Type, h.Length, wire.MaxPayload)
	case h.Type.Known():
		return false, nil
	case h.Flags&wire.FlagIgnorable == 0:
		return false, fmt.Errorf("unknown mandatory frame %s", h.Type)
	}
	s.link.metrics.FramesDropped.Add(1)
	return true, nil
}

// windowLocked takes a run's WINDOW.
func (s *stream) windowLocked(payload []byte) error {
	n, err := wire.ParseWindow(payload)
	if err != nil {
		return err
	}
	// More than a window at a time is a peer that gives what it does not have.
	if s.tx.credit+int(n) > streamWindowMax {
		return fmt.Errorf("WINDOW raises the credit to %d, over %d", s.tx.credit+int(n), streamWindowMax)
	}
	s.tx.credit += int(n)
	s.scheduleLocked()
	if s.tx.inBody {
		s.link.wakeWriter()
	}
	return nil
}

// startHeartbeatsLocked begins liveness: READY_ACK counts as the first answer.
func (l *link) startHeartbeatsLocked() {
	if l.end != nil || l.beat.interval != nil {
		return
	}
	l.beat.lastAck = l.now()
	l.beat.interval = time.AfterFunc(heartbeatInterval, l.heartbeatDue)
	l.beat.wait = time.AfterFunc(heartbeatWait, l.heartbeatLate)
}

func (l *link) heartbeatDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		return
	}
	l.heartbeatNowLocked()
	l.beat.interval.Reset(heartbeatInterval)
}

// heartbeatNowLocked queues a HEARTBEAT and returns its id.
func (l *link) heartbeatNowLocked() uint64 {
	l.beat.lastSent++
	l.beat.sentAt = l.now()
	hb := &wire.Heartbeat{Id: l.beat.lastSent}
	l.peer.heartbeatLocked(hb)
	l.urgentLocked(wire.TypeHeartbeat, nil, hb)
	return hb.Id
}

func (l *link) heartbeatLate() {
	l.mu.Lock()
	if l.end != nil {
		l.mu.Unlock()
		return
	}
	// The timer was set at some earlier answer; what counts is the last.
	if age := l.now().Sub(l.beat.lastAck); age < heartbeatWait {
		l.beat.wait.Reset(heartbeatWait - age)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	l.metrics.HeartbeatTimeouts.Add(1)
	l.fail(&EndError{Code: goodbyeHeartbeat, Message: "no heartbeat was answered for 45 s", Run: execution.CodeSessionLost})
}

func (l *link) ackedLocked(ack *wire.HeartbeatAck) error {
	if ack.Id == 0 || ack.Id > l.beat.lastSent {
		return protocolError("HEARTBEAT_ACK %d was never requested", ack.Id)
	}
	l.beat.lastAck = l.now()
	if ack.Id == l.beat.lastSent {
		l.beat.rtt = l.beat.lastAck.Sub(l.beat.sentAt)
		l.metrics.HeartbeatRTT.Observe(l.beat.rtt)
	}
	if ch, ok := l.beat.waiters[ack.Id]; ok {
		delete(l.beat.waiters, ack.Id)
		close(ch)
	}
	if c, ok := l.peer.(interface{ ackLocked(*wire.HeartbeatAck) }); ok {
		c.ackLocked(ack)
	}
	return nil
}

// fail ends the link: every run gets its terminal before fail returns, then the writer says GOODBYE. Only the first
// call counts.
func (l *link) fail(end *EndError) {
	if end.Run == execution.CodeNone {
		end.Run = execution.CodeSessionLost
	}
	l.mu.Lock()
	if l.end != nil {
		l.mu.Unlock()
		return
	}
	l.end = end
	if l.beat.interval != nil {
		l.beat.interval.Stop()
		l.beat.wait.Stop()
	}
	if end.Code == goodbyeProtocol {
		l.metrics.ProtocolErrors.Add(1)
	}
	l.peer.endedLocked(end)
	after := l.after
	l.after = nil
	l.mu.Unlock()
	for _, f := range after {
		f()
	}
	close(l.done)
	time.AfterFunc(farewellTime, l.conn.kill)
	l.peer.ended(end)
}

// farewell is the writer's last act. fail has set the timer that cuts the socket under it.
func (l *link) farewell() {
	l.mu.Lock()
	end := l.end
	// What was said before, a DRAIN above all, goes first.
	var before fill
	l.fillUrgentLocked(&before)
	payload, err := proto.Marshal(&wire.Goodbye{Code: truncate(end.Code, maxCodeBytes), Message: truncate(end.Message, maxMessageBytes)})
	goodbye := wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeGoodbye, Seq: l.txSeq}, payload)
	l.txSeq++
	l.mu.Unlock()
	l.writing <- struct{}{} // held until the socket is closed: nothing follows
	defer func() { <-l.writing }()
	if err == nil && !end.Remote && end.Code != goodbyeLost {
		// Both are lost if the peer is: the socket is cut in a moment.
		if len(before.buf) > 0 {
			_ = l.conn.write(before.buf)
		}
		_ = l.conn.write(goodbye)
	}
	l.conn.close(closeStatus(end.Code), truncate(end.Code, 64))
	l.conn.kill()
}

func closeStatus(code string) websocket.StatusCode {
	switch code {
	case goodbyeProtocol:
		return websocket.StatusProtocolError
	case goodbyeDrained, goodbyeShutdown, goodbyeDeadline:
		return websocket.StatusGoingAway
	default:
		return websocket.StatusPolicyViolation
	}
}
