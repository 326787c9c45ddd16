package admission

import (
	"errors"
	"slices"
	"time"
)

// DefaultGrace is how long a request waits while no target is connected: a Node that lost its connection is back within
// seconds, one that restarts mostly within this.
const DefaultGrace = 30 * time.Second

// ErrNotConnected: no target of the route is connected, and none connected within the route's grace.
var ErrNotConnected = errors.New("no target of this model is connected")

// connected reports whether runs can be expected to go to the place without an operator's help: its provider answers probes,
// or is silent while it has runs, which can be a long prefill. A place that an operator drained takes nothing new. Breakers
// and rests do not count: they end by themselves.
func (p *place) connected() bool {
	return p.selectable || !p.drained && p.engine.inFlight > 0
}

// connected reports whether a place is connected that can run what is needed.
func (l *line) connected(n need) bool {
	_, each := l.canRun(n)
	for _, g := range l.groups {
		if each && g.selectable > 0 {
			return true
		}
		for _, x := range g.all {
			if x.place.connected() && x.place.ability.serves(n) {
				return true
			}
		}
	}
	return false
}

func (c *Controller) graceOf(l *line) time.Duration {
	if d := l.route.Timeouts.NoNode; d > 0 {
		return d
	}
	return c.grace
}

// Absent reports whether the request waits because no target is connected, rather than because all are busy.
func (w *Waiter) Absent() bool {
	w.ctl.mu.Lock()
	defer w.ctl.mu.Unlock()
	return !w.absent.IsZero()
}

// Resting reports whether each target that could run the request rests after failures, so that it waits for these rests, and
// for no other request. One that has its answer waits for nothing.
func (w *Waiter) Resting() bool {
	w.ctl.mu.Lock()
	defer w.ctl.mu.Unlock()
	if w.line == nil {
		return false
	}
	for _, g := range w.line.groups {
		for _, x := range g.all {
			if x.inService && !x.place.engine.rest.resting && x.place.ability.serves(w.request.need()) {
				return false
			}
		}
	}
	return true
}

// setAbsent notes since when no target is connected for w; the zero time: one is.
func (w *Waiter) setAbsent(since time.Time) {
	switch l := w.line; {
	case w.absent.IsZero() && !since.IsZero():
		l.absent++
	case !w.absent.IsZero() && since.IsZero():
		l.absent--
	}
	w.absent = since
}

// beginLocked starts the grace of a request that has just begun to wait, where it needs one.
func (c *Controller) beginLocked(w *Waiter, now time.Time) {
	l, n := w.line, w.request.need()
	if missing, until := l.missing(n); missing {
		c.lookAgainLocked(l, until)
	} else if !l.connected(n) {
		w.setAbsent(now)
		c.lookAgainLocked(l, now.Add(c.graceOf(l)))
	}
}

// refuseAbsentLocked refuses those of the line whose grace is over, and arranges to look again when the next one's is. A
// grace begins when the last target goes or when the request begins to wait, whichever is later. A target that connects
// ends it.
func (c *Controller) refuseAbsentLocked(l *line, now time.Time) {
	var away []need
	for i := range l.needs {
		n := l.needs[i].value
		if missing, until := l.missing(n); missing { // refuseHopelessLocked decides
			c.lookAgainLocked(l, until)
		} else if !l.connected(n) {
			away = append(away, n)
		}
	}
	if len(away) == 0 && l.absent == 0 {
		return
	}
	grace := c.graceOf(l)
	var next time.Time
	for _, w := range l.all() {
		if !slices.Contains(away, w.request.need()) {
			w.setAbsent(time.Time{})
			continue
		}
		if w.absent.IsZero() {
			w.setAbsent(now)
		}
		if due := w.absent.Add(grace); !due.After(now) {
			c.failLocked(w, ErrNotConnected)
		} else if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	if !next.IsZero() {
		c.lookAgainLocked(l, next)
	}
}

// again is when a line is looked at although nothing has changed.
type again struct {
	timer *time.Timer // or nil
	at    time.Time
}

func (a *again) stop() {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

// lookAgainLocked has the line looked at no later than at.
func (c *Controller) lookAgainLocked(l *line, at time.Time) {
	if l.again.timer != nil && !at.Before(l.again.at) || c.closed {
		return
	}
	l.again.stop()
	var timer *time.Timer
	timer = time.AfterFunc(time.Until(at), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if l.again.timer != timer {
			return // stopped too late
		}
		l.again.timer = nil
		c.soilLocked(l)
		c.settleLocked()
	})
	l.again = again{timer, at}
}

// idleLocked has the lines of a place that is not selectable looked at, once it has no runs: it may have been what kept them
// waiting.
func (c *Controller) idleLocked(p *place) {
	if p.selectable || p.engine.inFlight > 0 && !p.drained {
		return
	}
	for _, s := range p.seats {
		c.soilLocked(s.line)
	}
}
