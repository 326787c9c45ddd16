package tunnel

import (
	"sync/atomic"
	"time"
)

// Stream credit bounds memory, per stream and direction. Session credit bounds what is in flight on the link, so that
// a heartbeat never waits behind more than seconds of data. Both count BODY and EVENT payload only.
const (
	streamWindowMin  = 64 << 10
	streamWindowMax  = 256 << 10
	streamWindowStep = 64 << 10
	// windowBudget is what a process spends on windows beyond the guaranteed ones.
	windowBudget = 64 << 20

	// The session's window begins at sessionWindowFirst and grows by what the peer acknowledges up to
	// sessionWindowStart, until the link has been measured: a link that turns out to be slow must not have a megabyte
	// in flight in front of the first heartbeat.
	sessionWindowFirst = 256 << 10
	sessionWindowStart = 1 << 20
	sessionWindowMin   = 64 << 10
	sessionWindowMax   = 8 << 20
	// sessionGrantStep is how many bytes the reader takes off the socket before it gives their credit back: few
	// enough for the smallest window, many enough that credit is a small part of the traffic.
	sessionGrantStep = 16 << 10
	// sessionHorizon is how much of the link's recent past the window holds.
	sessionHorizon = 5 * time.Second

	// sendBufferLimit is what a writer may queue on a stream before it waits.
	sendBufferLimit = 64 << 10
)

// budget is a process's allowance for window growth.
type budget struct{ left atomic.Int64 }

func newBudget() *budget {
	b := &budget{}
	b.left.Store(windowBudget)
	return b
}

func (b *budget) take(n int64) bool {
	if b.left.Add(-n) >= 0 {
		return true
	}
	b.left.Add(n)
	return false
}

func (b *budget) give(n int64) { b.left.Add(n) }

// sessionCredit is the sender's view of the link. It is guarded by the link's mutex.
type sessionCredit struct {
	inFlight int
	limit    int
	measured bool // limit is what the link was seen to take
	// The present measurement: begun when the link became busy, with the bytes acknowledged since, in slices of a
	// second so that only the horizon counts.
	since  time.Time
	slices [int(sessionHorizon / time.Second)]int
	at     int64 // index of the current slice, in seconds since `since`
}

func (c *sessionCredit) room() int { return c.limit - c.inFlight }

// message is how large a message may get by BODY. Nothing of a message is of use before all of it has arrived: on a
// slow link, where the limit is low, it must not take seconds.
func (c *sessionCredit) message() int { return max(quantum, c.limit/16) }

func (c *sessionCredit) sent(n int, now func() time.Time) {
	// What the peer has not yet granted because it is under its step counts as idle.
	if c.inFlight <= sessionGrantStep && c.inFlight+n > sessionGrantStep {
		c.since, c.at = now(), 0
		clear(c.slices[:])
	}
	c.inFlight += n
}

// acked takes n bytes as arrived and lets the limit follow what the link took. It reports whether n was in flight.
func (c *sessionCredit) acked(n int, now func() time.Time) bool {
	if n > c.inFlight {
		return false
	}
	c.inFlight -= n
	if !c.measured {
		c.limit = min(c.limit+n, sessionWindowStart)
	}
	if c.since.IsZero() {
		return true
	}
	elapsed := now().Sub(c.since)
	second := int64(elapsed / time.Second)
	for c.at < second {
		c.at++
		c.slices[int(c.at)%len(c.slices)] = 0
		if second-c.at > int64(len(c.slices)) {
			c.at = second - int64(len(c.slices))
		}
	}
	c.slices[int(second)%len(c.slices)] += n
	if elapsed >= time.Second {
		c.measured = true
		c.limit = min(max(c.taken(elapsed), sessionWindowMin), sessionWindowMax)
	}
	return true
}

// taken is what the link takes in a horizon, from what it took so far.
func (c *sessionCredit) taken(elapsed time.Duration) int {
	total := 0
	for _, n := range c.slices {
		total += n
	}
	// The current slice has only begun: the horizon is the full slices before it and the part of it that has passed.
	span := min(elapsed, sessionHorizon-time.Second+elapsed%time.Second)
	return int(float64(total) * float64(sessionHorizon) / float64(span))
}
