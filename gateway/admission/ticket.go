package admission

import (
	"strconv"
	"sync/atomic"
	"time"

	"iop/gateway/route"
)

// Reason says why a target was chosen, for logs and operators.
type Reason struct {
	// Rule is "only_target", "least_busy", "weighted", "lowest_wait", "warm", "affinity", "affinity_yield" (where the
	// prompt ran before there was too much load), "queue" (a place became free for who waited), "trial" (of a target
	// that failed before) or "last_resort" (of one that fails, as there is no other).
	Rule       string
	Candidates int // targets with room that were compared
	InFlight   int // runs at the target, this one included
	Capacity   int
	Group      int // of the route's groups, from 0
}

// String renders the reason, e.g. "least_busy 1/4 of 3", or "queue 4/4 of 1, group 2" for a target of a later group.
func (r Reason) String() string {
	if r.Rule == "" {
		return ""
	}
	var buf [64]byte // this is in each line of the log
	b := append(append(buf[:0], r.Rule...), ' ')
	b = append(strconv.AppendInt(b, int64(r.InFlight), 10), '/')
	b = append(strconv.AppendInt(b, int64(r.Capacity), 10), " of "...)
	b = strconv.AppendInt(b, int64(r.Candidates), 10)
	if r.Group > 0 {
		b = strconv.AppendInt(append(b, ", group "...), int64(r.Group+1), 10)
	}
	return string(b)
}

// Public renders what a caller may see of the reason: nothing of how many Nodes there are, or how large.
func (r Reason) Public() string { return r.Rule }

// Ticket is the right to open one run at a target. It holds a place until Release or Refused. What became of the run is
// told once, by Served, Failed or Refused, before Release or after it; a run of which nothing is told (the client went
// away) says nothing of its target. Done follows when nothing more will be told. Any goroutine may call its methods.
type Ticket struct {
	Target Target
	Model  string // what the provider calls it
	Reason Reason
	Line   uint64 // the place in line, for another Acquire of the same request
	// Normalized says that the target does not have the operation itself: its adapter, of that Kind, runs a normalized run.
	Normalized bool
	Kind       Kinds
	// Spec is the target of the route's file that selected Target; nil for a route without groups. It is not to be changed.
	Spec *route.Target

	ctl     *Controller
	engine  *engine
	service *service
	fleet   *pace // of the route; never nil
	trial   bool  // it is, or was, the one run that a half-open breaker lets through
	// outage is the service's, for the runs that can end it: those that began while the breaker was not closed. Else 0.
	outage  uint64
	answers atomic.Bool // Answering was called

	// Guarded by ctl.mu.
	done   bool // the place was given back
	judged bool // what became of it was told
}

// Release gives the place back, as the provider has done with the run. Only the first call counts. A trial goes on until
// what became of it is told, or Done.
func (t *Ticket) Release() {
	c := t.ctl
	c.mu.Lock()
	defer c.mu.Unlock()
	c.giveBackLocked(t)
	c.freedLocked(t.engine)
}

// Refused gives the place back, if Release has not yet, and keeps new runs away from the target for retryAfter, 60 s at
// most: it has no room, whatever was counted here. 0 is for a target that did not say how long: it rests for a moment,
// a longer one after each refusal in a row, until a run there ends well or its Node says something new.
func (t *Ticket) Refused(retryAfter time.Duration) {
	c := t.ctl
	c.mu.Lock()
	defer c.mu.Unlock()
	c.giveBackLocked(t)
	if !t.judged {
		t.judged = true
		c.counters.Refusals.Add(1)
		c.endTrialLocked(t)
		c.restLocked(t.engine, retryAfter)
	}
	c.freedLocked(t.engine)
}

// Done says that nothing more will be told of the run. If it is the trial of a breaker, and nothing was, there can be
// another one. It gives no place back, the provider may be at work still, and costs nothing for a ticket that is no
// trial. Who got a ticket calls it once, at any time after; a second call does nothing.
func (t *Ticket) Done() {
	if !t.trial {
		return
	}
	c := t.ctl
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endTrialLocked(t)
	c.freedLocked(t.engine)
}

// Failed says that the run failed by its target's fault.
func (t *Ticket) Failed() {
	c := t.ctl
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.judged {
		return
	}
	t.judged = true
	c.counters.Failures.Add(1)
	c.failedLocked(t, time.Now())
	c.settleLocked()
}

// Answering says that the target has begun to answer well. If the run is the trial of a breaker, or a last resort, that
// closes it: the rest of the answer may take minutes, and all others wait for it. What becomes of the run is still to be
// told. Only the first call counts, and it costs nothing for any other ticket.
func (t *Ticket) Answering() {
	if t.outage == 0 || t.answers.Swap(true) {
		return
	}
	c := t.ctl
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passedLocked(t)
	c.freedLocked(t.engine)
}

// Served says that the run went well, and what it took.
func (t *Ticket) Served(s Sample) {
	c := t.ctl
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.judged {
		return
	}
	t.judged = true
	if s.Duration > 0 && (s.FirstToken > 0 || s.Output > 0) {
		now := time.Now()
		t.service.pace.observe(now, s, t.Reason.InFlight)
		c.rememberLocked(t.service)
		t.fleet.observe(now, s, t.Reason.InFlight)
		t.fleet.runs.add(s.Duration)
	}
	c.servedLocked(t)
	c.freedLocked(t.engine)
}

// takeLocked gives a run of x to a request.
func (c *Controller) takeLocked(x *candidate, req *Request, why Reason, now time.Time) *Ticket {
	p, s := x.place, x.service
	c.picks++
	p.picked = c.picks
	c.countLocked(p.engine, 1)
	c.inFlight++
	why.InFlight, why.Capacity, why.Group = p.engine.inFlight, p.capacity, x.group.index
	t := &Ticket{
		Target: p.target, Model: s.model, Reason: why, Line: req.Line, Spec: x.spec,
		Normalized: req.Op != 0 && !p.ability.raw.Has(req.Op), Kind: p.ability.runs,
		ctl: c, engine: p.engine, service: s, fleet: x.group.line.fleet,
	}
	if s.breaker.state != breakerClosed {
		t.outage, t.Reason.Rule = s.outages, "last_resort"
		if s.admits() {
			t.trial, t.Reason.Rule = true, "trial"
			s.breaker.trial = t
			s.relist()
		}
	}
	s.pace.picked(now)
	c.ranLocked(p.engine, s)
	if x.id != 0 {
		c.index.record(&req.Affinity, x.id)
	}
	return t
}

// giveBackLocked gives back the place that t holds.
func (c *Controller) giveBackLocked(t *Ticket) {
	if t.done {
		return
	}
	t.done = true
	c.inFlight--
	c.countLocked(t.engine, -1)
	if t.engine.place != nil {
		c.idleLocked(t.engine.place)
	}
}

// countLocked counts runs at an engine.
func (c *Controller) countLocked(e *engine, delta int) {
	e.inFlight += delta
	if e.place == nil {
		return
	}
	for _, x := range e.place.weighed {
		if x.inService {
			x.group.load.inFlight += delta
		}
	}
}
