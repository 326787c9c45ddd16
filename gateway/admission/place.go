package admission

import (
	"time"

	"iop/execution"
)

type sessionKey struct {
	node       execution.NodeID
	generation execution.Generation
}

// session is what one Node session offers.
type session struct {
	places    map[execution.ProviderID]*place
	withdrawn bool // for good: it takes no new runs
}

// engine is one provider of one Node process: what counts its runs and knows its health. Sessions that replace each
// other share it: the runs that finish on the former still take places of the same engine.
type engine struct {
	inFlight int
	place    *place              // the one that takes new runs, or nil
	services map[string]*service // by the provider's name of the model
	last     *service            // what ran last, or nil
	tells    bool                // of some model that it is loaded
	grants   uint64              // to who waited
	rest     rest
}

// place is one target and its capacity.
type place struct {
	target     Target
	engine     *engine // never nil
	labels     map[string]string
	slots      []string // patterns of those that its Node may have
	barred     []*line  // in whose barred it is
	ability    ability
	capacity   int
	selectable bool
	drained    bool    // by an operator
	models     []Model // as offered
	seats      []*seat
	seatOf     map[*line]*seat
	weighed    []*candidate // those of groups that sum up their load
	parked     []*candidate // those that were found without room; see park
	picked     uint64       // when it was last picked, for turns among equals
}

// seat is a place's part in a line.
type seat struct {
	line       *line
	candidates []*candidate // by group, at most one of each
}

// service is a model that an engine serves.
type service struct {
	engine     *engine // never nil
	model      string
	loaded     bool         // the provider has it in memory
	candidates []*candidate // of engine.place
	id         placeID
	pace       *pace // never nil; Controller.paces may have it too
	penalty    penalty
	breaker    breaker
	outages    uint64 // times that the breaker opened when it was closed
}

// free reports whether the place could take a run.
func (p *place) free() bool {
	return p.selectable && !p.engine.rest.resting && p.engine.inFlight < p.capacity
}

// admits reports whether the breaker lets a run through now, be there others or not.
func (s *service) admits() bool {
	return s.breaker.state == breakerClosed || s.breaker.state == breakerHalfOpen && s.breaker.trial == nil
}

// load is the share of the capacity that is taken, and what failures of late add to it.
func (x *candidate) load(now time.Time) float64 {
	return float64(x.place.engine.inFlight)/float64(x.place.capacity) + x.service.penalty.at(now)
}

// freedLocked serves who waits for the engine's places, if it has any to give, and ends a change.
func (c *Controller) freedLocked(e *engine) {
	if e.place != nil && !c.closed {
		c.roomLocked(e.place)
	}
	c.settleLocked()
}

// roomLocked gives away what room p has, and lists p where it can be found if some is left.
func (c *Controller) roomLocked(p *place) {
	c.serveLocked(p)
	p.unpark()
}

// ranLocked notes that s runs at the engine, which may have pushed another model out.
func (c *Controller) ranLocked(e *engine, s *service) {
	former := e.last
	if former == s {
		return
	}
	e.last = s
	s.relist()
	if former != nil {
		former.relist()
	}
}

func (s *service) warm() bool { return s.loaded || s.engine.last == s }

// cold reports whether the model is known not to be in memory, and with it no cache of its prompts. Nothing is known of
// an engine that tells of no model that it is loaded.
func (s *service) cold() bool { return s.engine.tells && !s.warm() }

// relist puts the candidates of s where they belong, after its breaker or what warm returns has changed.
func (s *service) relist() {
	for _, x := range s.candidates {
		if x.pool != nil && x.pool != x.group.poolOf(x) {
			x.unlist()
			x.list()
		}
	}
}

// unpark lists what was found without room, if there is room again.
func (p *place) unpark() {
	if len(p.parked) == 0 || !p.free() {
		return
	}
	for i, x := range p.parked {
		x.parked, p.parked[i] = false, nil
		x.list()
	}
	p.parked = p.parked[:0]
}

// placeLocked returns the place of a target, nil if it is gone.
func (c *Controller) placeLocked(t Target) *place {
	if s := c.sessions[sessionKey{t.Node, t.Generation}]; s != nil {
		return s.places[t.Provider]
	}
	return nil
}
