package admission

import (
	"slices"
	"time"

	"iop/execution"
)

// Offer says what a session serves from now on, in place of what was said before. replaces names the generation that
// the session took over from in the same Node process, whose unfinished runs count against the same capacity; 0 for
// none. Whoever can run now is woken. A session that was withdrawn stays so.
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
			p = newPlace(Target{node, gen, o.Provider}, former)
			s.places[o.Provider] = p
		}
		c.updateLocked(p, o)
	}
	for id, p := range s.places {
		if !slices.ContainsFunc(offers, func(o Offer) bool { return o.Provider == id }) {
			c.retireLocked(p)
			delete(s.places, id)
		}
	}
	c.settleLocked()
}

func newPlace(t Target, former *session) *place {
	p := &place{target: t, load: &load{}}
	if former != nil {
		if q := former.places[t.Provider]; q != nil {
			p.load = q.load
		}
	}
	p.load.place = p
	return p
}

func (c *Controller) updateLocked(p *place, o Offer) {
	fell := p.selectable && !o.Selectable
	p.capacity = max(o.Capacity, 1)
	p.selectable = o.Selectable
	c.forgiveLocked(p)
	names := make([]string, len(o.Models))
	for i, m := range o.Models {
		names[i] = m.ID
	}
	if !slices.Equal(p.names, names) {
		c.detachLocked(p)
		p.names = names
		for _, name := range names {
			c.attachLocked(p, c.modelLocked(name))
		}
	}
	if fell {
		for _, m := range p.models {
			c.recheckLocked(m)
		}
	}
	c.serveLocked(p)
}

// modelLocked returns the entry of a model, made if needed.
func (c *Controller) modelLocked(name string) *model {
	m := c.models[name]
	if m == nil {
		m = &model{name: name}
		c.models[name] = m
	}
	return m
}

func (c *Controller) attachLocked(p *place, m *model) {
	if slices.Contains(p.models, m) {
		return // offered twice
	}
	if !m.known {
		m.known = true
		c.unknown -= m.waiting
	} else if len(m.targets) == 0 {
		c.idle--
	}
	m.targets = append(m.targets, p)
	p.models = append(p.models, m)
}

// detachLocked takes p out of all its models. A model without targets stays known, within bounds.
func (c *Controller) detachLocked(p *place) {
	for _, m := range p.models {
		if i := slices.Index(m.targets, p); i >= 0 {
			m.targets = slices.Delete(m.targets, i, i+1)
		}
		if len(m.targets) == 0 {
			if c.idle >= maxRemembered && m.waiting == 0 {
				delete(c.models, m.name)
			} else {
				c.idle++
			}
		}
		c.recheckLocked(m)
	}
	p.models, p.names = nil, nil
}

// retireLocked ends p: it gets no new runs and serves nothing. Its load lives on in its tickets.
func (c *Controller) retireLocked(p *place) {
	p.selectable = false
	c.forgiveLocked(p)
	c.detachLocked(p)
	if p.load.place == p {
		p.load.place = nil
	}
}

// Withdraw keeps new runs away from a session for good: it drains, or is as good as gone.
func (c *Controller) Withdraw(node execution.NodeID, gen execution.Generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := sessionKey{node, gen}
	s := c.sessions[key]
	if s == nil || s.withdrawn {
		return
	}
	s.withdrawn = true
	for _, p := range s.places {
		c.retireLocked(p)
	}
}

// Remove forgets a session that is gone. Tickets of it may still be released.
func (c *Controller) Remove(node execution.NodeID, gen execution.Generation) {
	c.Withdraw(node, gen)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, sessionKey{node, gen})
}

// PlaceStats is one target's load.
type PlaceStats struct {
	Target     Target
	InFlight   int // of sessions that replaced each other: together
	Capacity   int
	Selectable bool
	BackingOff bool
	Retired    bool // of a session that was withdrawn
	Breakers   []BreakerStats
}

// Stats is a snapshot of the Controller.
type Stats struct {
	InFlight int // tickets out
	Waiting  int
	Places   []PlaceStats
	Queues   []QueueStats
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

// BreakerStats is a breaker that is not closed.
type BreakerStats struct {
	Model   string        // what the provider calls it
	State   string        // "open", "half_open"
	Reopens time.Duration // until the next trial
}

// Stats returns a snapshot, its places ordered by nothing.
func (c *Controller) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := Stats{InFlight: c.inFlight, Waiting: c.waiting}
	for _, s := range c.sessions {
		for _, p := range s.places {
			st.Places = append(st.Places, PlaceStats{
				Target: p.target, InFlight: p.load.inFlight, Capacity: p.capacity,
				Selectable: p.selectable, BackingOff: p.blocked, Retired: s.withdrawn,
			})
		}
	}
	return st
}

// Counts returns the tickets out and the requests that wait.
func (c *Controller) Counts() (inFlight, waiting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight, c.waiting
}
