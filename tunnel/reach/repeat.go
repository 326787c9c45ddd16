package reach

import "time"

// After sayAgain a fault that has not changed is logged again; each time doubles it, up to sayAgainMax.
const (
	sayAgain    = time.Minute
	sayAgainMax = 15 * time.Minute
)

// Repeat decides which of many equal lines are logged: the first, and others ever more seldom. Its zero value has said nothing.
// It belongs to one goroutine.
type Repeat struct {
	last  string
	at    time.Time     // when last was logged
	every time.Duration // until it is due again
	left  int           // equal lines since
}

// Due reports whether a line is to be logged, and how many equal ones were left out before it.
func (r *Repeat) Due(line string, now time.Time) (left int, ok bool) {
	if line == r.last && now.Sub(r.at) < r.every {
		r.left++
		return 0, false
	}
	every := sayAgain
	if line == r.last {
		every, left = min(2*r.every, sayAgainMax), r.left
	}
	*r = Repeat{last: line, at: now, every: every}
	return left, true
}
