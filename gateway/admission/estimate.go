package admission

import (
	"math"
	"time"
)

// mean is how long something took lately: a moving mean, and the last time. The zero value knows nothing.
type mean struct {
	value, last time.Duration
	n           uint8 // up to maxSamples
}

func (m *mean) add(d time.Duration) {
	m.n = min(m.n+1, maxSamples)
	m.value += (d - m.value) / time.Duration(m.n)
	m.last = d
}

// step is how long the queue takes to move on by one, 0: unknown. It is learnt from the route's grants, and is no less than
// its runs take for as many at once as its targets have room for: a queue is mostly met in the middle of a run, so the time to
// its first grant is too short.
func (l *line) step() time.Duration {
	capacity := 0
	for _, g := range l.groups {
		capacity += g.capacity
	}
	return max(l.interval.value, l.fleet.runs.value/time.Duration(max(capacity, 1)))
}

// estimate is how long it may take until whoever is at that position, and was no further ahead since then, gets a place. The
// next grant is not expected sooner than what was just measured: the last one, the time since, and the time without progress.
func (l *line) estimate(now time.Time, position int, since time.Time) time.Duration {
	step := l.step()
	if step == 0 { // unknown: it is no faster than it was since somebody waits
		step = now.Sub(l.since)
	}
	next := max(step, l.interval.last, now.Sub(l.since), now.Sub(since))
	return time.Duration(position-1)*step + next
}

// drains is when those who wait now will have got a place, for clients that found the queue full.
func (l *line) drains(now time.Time) time.Duration {
	seconds := math.Ceil(l.estimate(now, max(l.waiting, 1), now).Seconds())
	return time.Duration(min(max(seconds, 1), 60)) * time.Second
}
