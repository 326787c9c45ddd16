package tunnel

import (
	"slices"
	"sync/atomic"
	"time"

	"iop/execution"
)

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

	// What became of Nodes that asked to be registered, at the Edge. The first three add up to the generations given.
	NewNodes      atomic.Uint64 // a process's first session
	Reconnects    atomic.Uint64 // a process that had sessions before is back: same boot id
	Replacements  atomic.Uint64 // a process put a session beside its own that drains: same boot id
	Supersessions atomic.Uint64 // sessions that ended because a newer one of the Node took over
	Refusals      atomic.Uint64 // of all codes; also at the Node, of its own

	refusals [len(refusalCodes) + 1]atomic.Uint64 // by code; the last is any other

	LeasesSent   atomic.Uint64 // LEASE frames, at the Edge
	LeasesFailed atomic.Uint64 // runs that ended because there was no lease for them, at the Edge
	Rotations    atomic.Uint64 // sessions that took the place of another because Rotate was called, at the Node

	// HeartbeatRTT are the round trips of heartbeats.
	HeartbeatRTT Histogram
}

// refusalCodes is the closed set of wire.Refusal's codes.
var refusalCodes = [...]string{
	"unauthorized", "token_expired", "token_revoked", "node_taken", "wrong_node", "bad_request", "draining", "flapping",
	"stale_generation", "unavailable", "identity_expired", "identity_revoked", "node_reserved",
	"token_limit", "edge_limit", "label_not_allowed",
}

// EachRefusal calls f with each code of the closed set, and "other", and how many refusals had it.
func (m *Metrics) EachRefusal(f func(code string, n uint64)) {
	for i, code := range refusalCodes {
		f(code, m.refusals[i].Load())
	}
	f("other", m.refusals[len(refusalCodes)].Load())
}

func (m *Metrics) refused(code string) {
	i := slices.Index(refusalCodes[:], code)
	if i < 0 {
		i = len(refusalCodes)
	}
	m.Refusals.Add(1)
	m.refusals[i].Add(1)
}

// registered counts a session that was given a generation.
func (m *Metrics) registered(highestSeen, replaces execution.Generation) {
	switch {
	case replaces != 0:
		m.Replacements.Add(1)
	case highestSeen != 0:
		m.Reconnects.Add(1)
	default:
		m.NewNodes.Add(1)
	}
}

// histogramBounds are the upper bounds of a Histogram's buckets, inclusive; the last bucket has none.
var histogramBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, heartbeatWait,
}

// Histogram counts durations in fixed buckets. The zero value is empty. Any goroutine may use it.
type Histogram struct {
	buckets [len(histogramBounds) + 1]atomic.Uint64
	sum     atomic.Int64 // nanoseconds
}

// Observe counts one duration.
func (h *Histogram) Observe(d time.Duration) {
	i, _ := slices.BinarySearch(histogramBounds[:], d)
	h.buckets[i].Add(1)
	h.sum.Add(int64(d))
}

// HistogramSnapshot is what a Histogram held at one moment.
type HistogramSnapshot struct {
	Bounds []time.Duration // upper bounds, inclusive, rising
	Counts []uint64        // cumulative: how many durations were at most the bound of the same index
	Count  uint64          // of all, those beyond the last bound too
	Sum    time.Duration
}

// Snapshot returns what the histogram holds. What is observed meanwhile may be in Sum and not in Count, or the reverse.
func (h *Histogram) Snapshot() HistogramSnapshot {
	s := HistogramSnapshot{Bounds: slices.Clone(histogramBounds[:]), Counts: make([]uint64, len(histogramBounds))}
	for i := range h.buckets {
		s.Count += h.buckets[i].Load()
		if i < len(s.Counts) {
			s.Counts[i] = s.Count
		}
	}
	s.Sum = time.Duration(h.sum.Load())
	return s
}
