package admission

import (
	"maps"
	"slices"

	"iop/execution"
	"iop/openai"
)

// Offer is what one provider of a session can take.
type Offer struct {
	Provider execution.ProviderID
	Capacity int // runs at once; below 1 counts as 1
	// Selectable is false while the provider must get no new runs (its probe says hung or gone, the operator drains
	// the Node). Its models stay known.
	Selectable bool
	Drained    bool // it is not selectable because an operator drained its Node, and not for its health
	Models     []Model
	// Slots are patterns of the credential slots that the Node may have; nil: none. A target of a route that has another
	// slot does not select the provider.
	Slots []string
	// Raw are the operations that are relayed to it as they are. Runs is the kind of its adapter, if that can run normalized
	// runs, else empty.
	Raw  openai.OpSet
	Runs Kinds
}

// Model is a model that a provider serves.
type Model struct {
	ID     string
	Loaded bool // it is in the provider's memory
}

// Offer says what a session serves from now on, in place of what was said before, and which labels its Node has.
// replaces names the generation that the session took over from in the same Node process, whose unfinished runs count
// against the same capacity and whose health it inherits; 0 for none. The former gets no new runs from now on. Whoever
// can run now is woken. A session that was withdrawn stays so. Nothing that is passed is kept.
func (c *Controller) Offer(node execution.NodeID, gen, replaces execution.Generation, labels map[string]string, offers []Offer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := sessionKey{node, gen}
	s := c.sessions[key]
	if s == nil {
		s = &session{places: make(map[execution.ProviderID]*place, len(offers))}
		c.sessions[key] = s
	}
	if s.withdrawn || c.closed {
		return
	}
	former := c.sessions[sessionKey{node, replaces}]
	for _, o := range offers {
		p := s.places[o.Provider]
		if p == nil {
			p = c.newPlaceLocked(Target{node, gen, o.Provider}, former)
			s.places[o.Provider] = p
		}
		c.updateLocked(p, o, labels)
	}
	for id, p := range s.places {
		if !slices.ContainsFunc(offers, func(o Offer) bool { return o.Provider == id }) {
			c.retireLocked(p)
			delete(s.places, id)
		}
	}
	c.settleLocked()
	c.startSettlingLocked()
}

func (c *Controller) newPlaceLocked(t Target, former *session) *place {
	p := &place{target: t, capacity: 1, seatOf: map[*line]*seat{}}
	if former != nil && former.places[t.Provider] != nil {
		p.engine = former.places[t.Provider].engine
		if p.engine.place != nil {
			c.retireLocked(p.engine.place)
		}
	} else {
		p.engine = &engine{services: map[string]*service{}}
	}
	p.engine.place = p
	c.startTimersLocked(p.engine)
	return p
}

// updateLocked takes over what is offered at p.
func (c *Controller) updateLocked(p *place, o Offer, labels map[string]string) {
	if p.engine.place != p {
		return // another session took over
	}
	p.capacity = max(o.Capacity, 1)
	p.selectable, p.drained = o.Selectable, o.Drained
	c.forgiveLocked(p.engine)
	can := ability{o.Raw, o.Runs}
	if p.models == nil || p.ability != can || !sameModels(p.models, o.Models) || !maps.Equal(p.labels, labels) || !slices.Equal(p.slots, o.Slots) {
		c.detachLocked(p)
		p.ability = can
		p.labels, p.models, p.slots = maps.Clone(labels), slices.Clone(o.Models), slices.Clone(o.Slots)
		c.serviceLocked(p)
		c.attachLocked(p)
	} else {
		copy(p.models, o.Models)
		c.serviceLocked(p)
		c.recountAllLocked(p)
	}
	c.idleLocked(p)
	c.roomLocked(p)
}

func sameModels(a, b []Model) bool {
	return slices.EqualFunc(a, b, func(a, b Model) bool { return a.ID == b.ID })
}

// serviceLocked makes the services of p's engine those of its models. What is no longer served is forgotten, its health
// included.
func (c *Controller) serviceLocked(p *place) {
	e := p.engine
	now := make(map[string]*service, len(p.models))
	e.tells = false
	for _, m := range p.models {
		s := now[m.ID]
		if s == nil {
			if s = e.services[m.ID]; s == nil {
				s = c.newServiceLocked(p, m.ID)
			}
			s.loaded = false
			now[m.ID] = s
		}
		s.loaded = s.loaded || m.Loaded
		e.tells = e.tells || m.Loaded
	}
	for name, s := range e.services {
		if now[name] != s {
			s.breaker.stop()
			if e.last == s {
				e.last = nil
			}
		}
	}
	e.services = now
	for _, s := range now {
		s.relist()
	}
}

// newServiceLocked makes a service, with the pace that was remembered of it.
func (c *Controller) newServiceLocked(p *place, model string) *service {
	s := &service{engine: p.engine, model: model, id: placeIDOf(p.target.Node, p.target.Provider, model)}
	if s.pace = c.paces[s.id]; s.pace == nil {
		s.pace = &pace{}
	}
	return s
}

// maxPaces bounds the paces that outlive a session; beyond it all are learned anew.
const maxPaces = 8192

// rememberLocked lets a pace that is known outlive its session: a Node that reconnects is as fast as before.
func (c *Controller) rememberLocked(s *service) {
	if c.paces[s.id] == s.pace {
		return
	}
	if len(c.paces) >= maxPaces {
		clear(c.paces)
	}
	c.paces[s.id] = s.pace
}

// retireLocked ends p: it gets no new runs and serves nothing. Its engine lives on in its tickets, and in a session that
// takes over.
func (c *Controller) retireLocked(p *place) {
	if p.engine.place != p {
		return
	}
	c.lostLocked(p)
	c.detachLocked(p)
	p.selectable = false
	p.engine.stopTimers()
	p.engine.place = nil
}

// Withdraw keeps new runs away from a session for good: it drains, or is as good as gone.
func (c *Controller) Withdraw(node execution.NodeID, gen execution.Generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withdrawLocked(c.sessions[sessionKey{node, gen}])
}

func (c *Controller) withdrawLocked(s *session) {
	if s == nil || s.withdrawn {
		return
	}
	s.withdrawn = true
	for _, p := range s.places {
		c.retireLocked(p)
	}
	c.settleLocked()
}

// Remove forgets a session that is gone. Tickets of it may still be released.
func (c *Controller) Remove(node execution.NodeID, gen execution.Generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := sessionKey{node, gen}
	c.withdrawLocked(c.sessions[key])
	delete(c.sessions, key)
}
