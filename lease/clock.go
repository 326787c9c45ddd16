package lease

import (
	"fmt"
	"sync"
	"time"
)

// MaxClockOffset is how far a Node's clock may be from the Edge's in managed mode: with more, certificates would be
// judged at the wrong time too.
const MaxClockOffset = 5 * time.Minute

// maxDrift is how much two monotonic clocks may diverge: more than any working oscillator.
const maxDrift = 200e-6

// EdgeClock is the Edge's time as a Node knows it: what the Edge said, plus the time that has passed since by the Node's
// monotonic clock. The Node's wall clock has no part in it. One belongs to one session; all methods may be called at
// any time. The zero value knows nothing yet.
type EdgeClock struct {
	mu      sync.Mutex
	at      time.Time     // when the sample arrived, with its monotonic reading
	edge    time.Time     // the Edge's time then
	unsure  time.Duration // how wrong edge may be, either way
	offset  time.Duration // the Edge's time less this Node's wall clock
	sampled bool
}

// Observe takes a time from the Edge: of a registration or a heartbeat. sent is when what it answers was sent, received
// when it came in; both must be of time.Now, for their monotonic reading. Of the times that agree with each other the
// most precise counts; one that can't be right any more, because the Edge's clock was set, is replaced at once.
func (c *EdgeClock) Observe(edge, sent, received time.Time) {
	unsure := max(received.Sub(sent), 0)/2 + time.Millisecond // Edge times are whole milliseconds
	edge = edge.Add(unsure)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sampled {
		passed := max(received.Sub(c.at), 0)
		now := c.unsure + time.Duration(float64(passed)*maxDrift)
		apart := edge.Sub(c.edge.Add(passed)).Abs()
		if unsure > now && apart <= unsure+now {
			return
		}
	}
	c.at, c.edge, c.unsure, c.sampled = received, edge, unsure, true
	c.offset = edge.Round(0).Sub(received.Round(0))
}

// Now returns the Edge's time, and false as long as the Edge has not told it.
func (c *EdgeClock) Now() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.sampled {
		return time.Time{}, false
	}
	return c.edge.Add(time.Since(c.at)), true
}

// ClockError says that the Node's wall clock is too far from the Edge's.
type ClockError struct{ Offset time.Duration } // the Edge's time less the Node's

func (e *ClockError) Error() string {
	return fmt.Sprintf("the Edge's clock is %s from this Node's, more than %s: set the clocks", e.Offset.Round(time.Millisecond), MaxClockOffset)
}

// Check compares the Edge's time with the Node's wall clock when it was told: a *ClockError refuses the registration.
func (c *EdgeClock) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.offset.Abs() > MaxClockOffset {
		return &ClockError{Offset: c.offset}
	}
	return nil
}
