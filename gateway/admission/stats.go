package admission

import (
	"cmp"
	"slices"
	"time"
)

// PlaceStats is one target's load.
type PlaceStats struct {
	Target     Target
	InFlight   int // of sessions that replaced each other: together
	Capacity   int
	Selectable bool
	BackingOff bool           // it rests after a refusal
	Rests      time.Duration  // how long it still does; 0 where it doesn't
	Retired    bool           // of a session that was withdrawn, or that another took over from
	Breakers   []BreakerStats // those that are not closed
}

// BreakerStats is a breaker that is not closed.
type BreakerStats struct {
	Model string        // what the provider calls it
	State string        // "open", "half_open"
	Opens time.Duration // until the next trial; 0 if half open
}

// QueueStats is who waits for a route.
type QueueStats struct {
	Route      string
	Waiting    int
	Limit      int
	Oldest     time.Duration // how long the first to come has waited
	Interval   time.Duration // the mean time between two grants; 0: unknown
	Principals []PrincipalStats
}

// PrincipalStats is a principal's part of a queue.
type PrincipalStats struct {
	ID      string
	Waiting int
	Weight  int
}

// Stats is a snapshot of the Controller.
type Stats struct {
	InFlight int // tickets out
	Waiting  int
	Places   []PlaceStats // ordered by nothing
	Queues   []QueueStats // of the file's routes, and of others that somebody waits for; by route
}

// Stats returns a snapshot. It takes a time in proportion to all places and waiters.
func (c *Controller) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	st := Stats{InFlight: c.inFlight, Waiting: c.waiting}
	for _, s := range c.sessions {
		for _, p := range s.places {
			var rests time.Duration
			if r := &p.engine.rest; r.resting {
				rests = max(r.until.Sub(now), 0)
			}
			st.Places = append(st.Places, PlaceStats{
				Target: p.target, InFlight: p.engine.inFlight, Capacity: p.capacity, Selectable: p.selectable,
				BackingOff: p.engine.rest.resting, Rests: rests, Retired: p.engine.place != p, Breakers: p.engine.breakers(now),
			})
		}
	}
	for _, l := range c.lines {
		if l.waiting > 0 || !l.route.Advertised {
			st.Queues = append(st.Queues, c.queueStatsLocked(l, now))
		}
	}
	slices.SortFunc(st.Queues, func(a, b QueueStats) int { return cmp.Compare(a.Route, b.Route) })
	return st
}

func (e *engine) breakers(now time.Time) (list []BreakerStats) {
	for _, s := range e.services {
		if b := &s.breaker; b.state != breakerClosed {
			st := BreakerStats{Model: s.model, State: b.state.String()}
			if b.state == breakerOpen {
				st.Opens = max(b.until.Sub(now), 0)
			}
			list = append(list, st)
		}
	}
	slices.SortFunc(list, func(a, b BreakerStats) int { return cmp.Compare(a.Model, b.Model) })
	return list
}

func (c *Controller) queueStatsLocked(l *line, now time.Time) QueueStats {
	st := QueueStats{Route: l.name, Waiting: l.waiting, Limit: c.limitOf(l), Interval: l.interval.value}
	byID := map[string]int{}
	for _, w := range l.all() {
		st.Oldest = max(st.Oldest, now.Sub(w.since))
		who := w.request.Principal
		i, ok := byID[who.ID]
		if !ok {
			i = len(st.Principals)
			byID[who.ID] = i
			st.Principals = append(st.Principals, PrincipalStats{ID: who.ID, Weight: max(who.Weight, 1)})
		}
		st.Principals[i].Waiting++
	}
	slices.SortFunc(st.Principals, func(a, b PrincipalStats) int { return cmp.Compare(a.ID, b.ID) })
	return st
}

// Counts returns the tickets out and the requests that wait.
func (c *Controller) Counts() (inFlight, waiting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight, c.waiting
}

// maxEstimated is how many flows Waiter.Place looks at; beyond it what these have is taken for all.
const maxEstimated = 256

// Place returns the place in line, 1 for the next, and how long it may take to come up; 0: unknown. Both are estimates:
// whoever comes later may be served earlier, by its principal's share. It is 0 once the request does not wait. There is no
// estimate while no target is connected.
func (w *Waiter) Place() (position int, estimate time.Duration) {
	c := w.ctl
	c.mu.Lock()
	defer c.mu.Unlock()
	l := w.line
	if l == nil {
		return 0, 0
	}
	if w.flow == nil {
		position, _ = slices.BinarySearchFunc(l.kept, w.request.Line, byLine)
	} else {
		position = len(l.kept) + l.ahead(w)
	}
	position++
	now := time.Now()
	if position < w.place || w.place == 0 {
		w.placed = now
	}
	w.place = position
	if l.step() == 0 || !w.absent.IsZero() {
		return position, 0
	}
	return position, l.estimate(now, position, w.placed)
}

// ahead estimates how many requests of all flows go before w.
func (q *queue) ahead(w *Waiter) int {
	own := 0
	for _, v := range w.flow.waiters {
		if v != w && v.before(w) {
			own++
		}
	}
	until := w.flow.after(own)
	others, seen := 0, 0
	for _, f := range q.flows {
		if f == w.flow || len(f.waiters) == 0 {
			continue
		}
		if seen == maxEstimated {
			break
		}
		seen++
		others += f.until(until)
	}
	if all := len(q.early) + len(q.late) - 1; seen > 0 {
		others = others * all / seen
	}
	return own + others
}

// step is by how much one request of the flow moves its time on, by their mean.
func (f *flow) step() float64 {
	return float64(f.tokens) / float64(len(f.waiters)) / float64(f.principal.weight)
}

// after is the flow's time after n more grants.
func (f *flow) after(n int) float64 { return f.principal.time + float64(n)*f.step() }

// until is how many of the flow's requests begin before a time.
func (f *flow) until(time float64) int {
	n := int((time-f.principal.time)/f.step()) + 1
	if time < f.principal.time {
		n = 0
	}
	return min(n, len(f.waiters))
}
