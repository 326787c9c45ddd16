package tunnel

import "sync/atomic"

// Metrics counts what sessions do. The gauges return to 0 when every session has ended. Any goroutine may read it.
type Metrics struct {
	Sessions atomic.Int64 // gauge: sessions past registration
	Streams  atomic.Int64 // gauge: runs open at this end

	FramesSent       atomic.Uint64
	FramesReceived   atomic.Uint64
	MessagesSent     atomic.Uint64
	MessagesReceived atomic.Uint64
	BytesSent        atomic.Uint64 // messages, without WebSocket and TLS framing
	BytesReceived    atomic.Uint64

	FramesDropped     atomic.Uint64 // for runs that had ended, and ignorable unknown types
	CreditStalls      atomic.Uint64 // a stream had bytes to send and no stream credit
	SessionStalls     atomic.Uint64 // the writer had bytes to send and no session credit
	HeartbeatTimeouts atomic.Uint64
	ProtocolErrors    atomic.Uint64 // of a session
	StreamErrors      atomic.Uint64 // of one stream
	LostRuns          atomic.Uint64 // ended by reconciliation
	CancelTimeouts    atomic.Uint64
	Dials             atomic.Uint64 // the Node's supervisor
	Refusals          atomic.Uint64
}
