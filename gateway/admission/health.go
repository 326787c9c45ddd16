package admission

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"time"
)

const (
	// A failure adds penaltyStep to the load share of its target, maxPenalty at most, of which half is left after
	// each penaltyHalf and nothing below leastPenalty: a target that fails fast is idle, and looks the best of all.
	penaltyStep  = 0.5
	maxPenalty   = 2
	leastPenalty = 0.01
	penaltyHalf  = 10 * time.Second

	// A breaker opens after tripInRow failures in a row, or when half of the last tripWindow runs failed, tripLeast
	// at least.
	tripInRow  = 5
	tripLeast  = 5
	tripWindow = 20
	// It lets a trial through after firstOpen, twice as long after each trial that fails, up to maxOpen. Each time is
	// a tenth more or less, so that targets that failed together are not tried together.
	firstOpen = time.Second
	maxOpen   = time.Minute
	// A half-open breaker that had no trial for so long, as all others are less busy, gets the next run of its group:
	// otherwise what is mended would stay unused until the last of its penalty is gone.
	trialWait = 30 * time.Second

	// A target that refused a run for want of capacity rests for firstBackoff, doubled at each further refusal up to
	// maxBackoff; one that said for how long, for so long, up to maxRest.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	maxRest      = time.Minute
)

// penalty is what is left of a target's failures, in shares of its capacity.
type penalty struct {
	value float64
	since time.Time
}

func (p *penalty) at(now time.Time) float64 {
	if p.value == 0 {
		return 0
	}
	if left := p.value * math.Exp2(-float64(now.Sub(p.since))/float64(penaltyHalf)); left >= leastPenalty {
		return left
	}
	p.value = 0
	return 0
}

func (p *penalty) add(now time.Time) {
	p.value, p.since = min(p.at(now)+penaltyStep, maxPenalty), now
}

type breakerState uint8

const (
	breakerClosed breakerState = iota
	breakerOpen
	breakerHalfOpen // it lets one run at a time through, on trial
)

func (s breakerState) String() string { return [...]string{"closed", "open", "half_open"}[s] }

// breaker keeps runs away from a service that fails, while another one of the line is in service.
type breaker struct {
	state  breakerState
	window uint32      // of the last runs, the newest lowest; 1: failed
	seen   int         // runs in window
	inRow  int         // failures
	opened int         // times since it was closed
	until  time.Time   // when it is, or was, half open
	timer  *time.Timer // or nil
	trial  *Ticket     // or nil
	due    bool        // half open for trialWait, and nothing came of it
}

// record takes in how a run ended, and reports whether that is a failure too many.
func (b *breaker) record(failed bool) bool {
	b.window = b.window << 1 & (1<<tripWindow - 1)
	b.seen = min(b.seen+1, tripWindow)
	if !failed {
		b.inRow = 0
		return false
	}
	b.window |= 1
	b.inRow++
	failures := bits.OnesCount32(b.window)
	return b.inRow >= tripInRow || failures >= tripLeast && 2*failures >= b.seen
}

// aroundTenth returns d, a tenth more or less.
func aroundTenth(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

// failedLocked counts a failure. What ends while the breaker is not closed says nothing new, but for the trial: runs of
// a last resort would have it open for ever.
func (c *Controller) failedLocked(t *Ticket, now time.Time) {
	s, b := t.service, &t.service.breaker
	s.penalty.add(now)
	switch b.state {
	case breakerClosed:
		if b.record(true) {
			c.openLocked(s, now)
		}
	case breakerHalfOpen:
		if b.trial == t {
			c.openLocked(s, now)
		}
	case breakerOpen:
	}
}

// servedLocked counts a run that went well.
func (c *Controller) servedLocked(t *Ticket) {
	c.forgiveLocked(t.engine)
	c.passedLocked(t)
	if b := &t.service.breaker; b.state == breakerClosed {
		b.record(false)
	}
}

// passedLocked closes the breaker that was not closed when t was given out, and has not been since: its trial, or a run
// of a last resort, goes well.
func (c *Controller) passedLocked(t *Ticket) {
	s := t.service
	if s.breaker.state == breakerClosed || t.outage != s.outages {
		return
	}
	s.breaker.stop()
	s.breaker, s.penalty = breaker{}, penalty{}
	c.counters.BreakerClosed.Add(1)
	c.recountServiceLocked(s)
	s.relist()
}

// endTrialLocked makes room for another trial, if t is one of which nothing is known.
func (c *Controller) endTrialLocked(t *Ticket) {
	if s := t.service; s.breaker.trial == t {
		s.breaker.trial = nil
		s.relist()
	}
}

func (c *Controller) openLocked(s *service, now time.Time) {
	b := &s.breaker
	if b.state == breakerClosed {
		s.outages++
	}
	b.stop()
	d := min(firstOpen<<min(b.opened, 10), maxOpen)
	*b = breaker{state: breakerOpen, opened: b.opened + 1, until: now.Add(c.jitter(d))}
	c.counters.BreakerOpened.Add(1)
	s.relist()
	c.recountServiceLocked(s)
	c.armLocked(s, now)
}

func (c *Controller) recountServiceLocked(s *service) {
	for _, x := range s.candidates {
		c.recountLocked(x)
	}
}

// armLocked sets the time at which an open breaker lets a trial through, or a half-open one is due for it. A service
// that takes no runs has none, until a session takes over from the one that is gone.
func (c *Controller) armLocked(s *service, now time.Time) {
	e, b := s.engine, &s.breaker
	if b.state == breakerClosed || b.due || e.place == nil || e.services[s.model] != s || c.closed {
		return
	}
	at := b.until
	if b.state == breakerHalfOpen {
		at = at.Add(trialWait)
	}
	var timer *time.Timer
	timer = time.AfterFunc(at.Sub(now), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if b.timer != timer {
			return // stopped too late
		}
		b.timer = nil
		if b.state == breakerHalfOpen {
			b.due = true
			s.relist()
			return
		}
		b.state = breakerHalfOpen
		s.relist()
		c.armLocked(s, time.Now())
		c.freedLocked(e)
	})
	b.timer = timer
}

// rest is the time that an engine that refused a run is left alone.
type rest struct {
	resting  bool
	told     bool // the provider said how long: nothing ends it early
	refusals int  // for which it rested, since the last run that went well
	until    time.Time
	timer    *time.Timer // or nil
}

func (c *Controller) restLocked(e *engine, told time.Duration) {
	r, now := &e.rest, time.Now()
	d := min(told, maxRest)
	if told <= 0 {
		if r.resting {
			return // by a run that went there before it rested
		}
		d = min(firstBackoff<<min(r.refusals, 10), maxBackoff)
		r.refusals++
	}
	if until := now.Add(d); !r.resting || until.After(r.until) {
		r.until = until
	}
	r.resting, r.told = true, r.told || told > 0
	c.armRestLocked(e, now)
}

func (c *Controller) armRestLocked(e *engine, now time.Time) {
	r := &e.rest
	r.stop()
	if !r.resting || e.place == nil || c.closed {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(r.until.Sub(now), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.timer != timer {
			return // stopped too late
		}
		r.timer, r.resting, r.told = nil, false, false
		c.freedLocked(e)
	})
	r.timer = timer
}

func (r *rest) stop() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// forgiveLocked ends a rest whose length was our guess.
func (c *Controller) forgiveLocked(e *engine) {
	r := &e.rest
	r.refusals = 0
	if r.resting && !r.told {
		r.stop()
		r.resting = false
	}
}

// stopTimers stops the timers of an engine that takes no runs. startTimersLocked starts them again.
func (e *engine) stopTimers() {
	e.rest.stop()
	for _, s := range e.services {
		s.breaker.stop()
	}
}

func (b *breaker) stop() {
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
}

func (c *Controller) startTimersLocked(e *engine) {
	now := time.Now()
	c.armRestLocked(e, now)
	for _, s := range e.services {
		c.armLocked(s, now)
	}
}
