package tunnel

import (
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// TransportStatus is one end's view of a session. What an end can't know is zero.
type TransportStatus struct {
	Generation execution.Generation
	Uptime     time.Duration // of the session
	// HeartbeatRTT is the round trip of the last heartbeat, at the Edge as NodeSession.RTT; LastAckAge how long ago the last
	// one was answered; 0 before the first.
	HeartbeatRTT time.Duration
	LastAckAge   time.Duration
	Draining     bool

	OpenStreams    int // runs
	StalledStreams int // of them, that have bytes to send and no stream credit
	QueuedBytes    int // of BODY and EVENT that wait to be sent, in all streams
	// SessionWindow is how many bytes of BODY and EVENT may be under way to the peer, SessionInFlight how many are.
	SessionWindow   int
	SessionInFlight int

	// Of this session.
	FramesSent, FramesReceived uint64
	BytesSent, BytesReceived   uint64

	// Of the Node alone: sessions that its process had before this one, and how long it runs.
	Reconnects    uint64
	ProcessUptime time.Duration
}

// traffic is what went over one link.
type traffic struct {
	framesSent, framesReceived uint64
	bytesSent, bytesReceived   uint64
}

// statusLocked is what both ends know of their link.
func (l *link) statusLocked() TransportStatus {
	st := TransportStatus{
		HeartbeatRTT: l.beat.rtt, SessionWindow: l.credit.limit, SessionInFlight: l.credit.inFlight,
		FramesSent: l.traffic.framesSent, FramesReceived: l.traffic.framesReceived,
		BytesSent: l.traffic.bytesSent, BytesReceived: l.traffic.bytesReceived,
	}
	if !l.beat.lastAck.IsZero() {
		st.LastAckAge = l.now().Sub(l.beat.lastAck)
	}
	return st
}

// addLocked counts one open stream.
func (st *TransportStatus) addLocked(s *stream) {
	st.OpenStreams++
	st.QueuedBytes += s.tx.queued
	if s.tx.stalled {
		st.StalledStreams++
	}
}

// TransportStatus returns the Edge's view of the session.
func (s *NodeSession) TransportStatus() TransportStatus {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	st := s.link.statusLocked()
	st.Generation, st.Uptime, st.Draining = s.generation, time.Since(s.since), s.draining
	for _, r := range s.runs {
		st.addLocked(&r.stream)
	}
	return st
}

// statusLocked is the Node's view of the session.
func (s *nodeSession) statusLocked() *wire.TransportStatus {
	st := s.link.statusLocked()
	for _, r := range s.runs {
		st.addLocked(&r.stream)
	}
	return &wire.TransportStatus{
		Generation:      uint64(s.generation),
		OpenStreams:     uint32(st.OpenStreams),
		UptimeMs:        s.link.now().Sub(s.started).Milliseconds(),
		LastAckAgeMs:    st.LastAckAge.Milliseconds(),
		FramesSent:      st.FramesSent,
		FramesReceived:  st.FramesReceived,
		HeartbeatRttUs:  st.HeartbeatRTT.Microseconds(),
		SessionWindow:   uint64(st.SessionWindow),
		SessionInFlight: uint64(max(st.SessionInFlight, 0)),
		QueuedBytes:     uint64(max(st.QueuedBytes, 0)),
		StalledStreams:  uint32(st.StalledStreams),
		BytesSent:       st.BytesSent,
		BytesReceived:   st.BytesReceived,
		Reconnects:      s.former,
		Draining:        s.draining || s.drain != nil,
		ProcessUptimeMs: s.link.now().Sub(s.sup.began).Milliseconds(),
	}
}

// parseStatus reads what a Node said. Numbers beyond all sense become the greatest that make some.
func parseStatus(w *wire.TransportStatus) TransportStatus {
	const most = 1 << 40
	ms := func(n int64) time.Duration { return time.Duration(min(max(n, 0), most)) * time.Millisecond }
	count := func(n uint64) int { return int(min(n, most)) }
	return TransportStatus{
		Generation: execution.Generation(w.GetGeneration()), Uptime: ms(w.GetUptimeMs()), LastAckAge: ms(w.GetLastAckAgeMs()),
		HeartbeatRTT: time.Duration(min(max(w.GetHeartbeatRttUs(), 0), most)) * time.Microsecond, Draining: w.GetDraining(),
		OpenStreams: int(w.GetOpenStreams()), StalledStreams: int(w.GetStalledStreams()), QueuedBytes: count(w.GetQueuedBytes()),
		SessionWindow: count(w.GetSessionWindow()), SessionInFlight: count(w.GetSessionInFlight()),
		FramesSent: w.GetFramesSent(), FramesReceived: w.GetFramesReceived(), BytesSent: w.GetBytesSent(), BytesReceived: w.GetBytesReceived(),
		Reconnects: w.GetReconnects(), ProcessUptime: ms(w.GetProcessUptimeMs()),
	}
}
