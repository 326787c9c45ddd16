package admission

import (
	"slices"

	"iop/gateway/route"
)

// targetRef is a target of a group of the file.
type targetRef struct {
	group  *group
	order  int           // among the group's targets: the first that matches a place counts
	target *route.Target // nil for a route without groups: any place
}

// Configure replaces the routes. Who waits stays in line; whose route is gone, or may no longer be used, gets
// ErrUnknownModel.
func (c *Controller) Configure(t *route.Table) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	former, waited := c.lines, c.waited
	places := c.placesLocked()
	for _, p := range places {
		c.detachLocked(p)
	}
	c.table, c.lines, c.waited, c.dirty = t, map[string]*line{}, nil, nil
	c.refs = map[string][]targetRef{}
	c.idle, c.unknown = remembered{}, 0
	for _, r := range t.Routes() {
		c.addRouteLocked(r)
	}
	for name, l := range former {
		l.again.stop()
		c.keepLineLocked(name, l)
	}
	for _, p := range places {
		c.attachLocked(p)
	}
	for _, l := range waited {
		c.moveWaitersLocked(l)
	}
	for _, l := range c.waited {
		c.soilLocked(l)
	}
	c.settleLocked()
}

// placesLocked returns all places that may get runs.
func (c *Controller) placesLocked() (list []*place) {
	for _, s := range c.sessions {
		for _, p := range s.places {
			if p.engine.place == p {
				list = append(list, p)
			}
		}
	}
	return list
}

// newLineLocked makes the line of a route, without candidates.
func (c *Controller) newLineLocked(r *route.Route) *line {
	l := &line{name: r.Name, route: r, fleet: &pace{}}
	groups := r.Groups
	if len(groups) == 0 {
		groups = []route.Group{{}}
	}
	for i := range groups {
		g := &group{line: l, index: i, when: groups[i].When}
		if r.Policy == route.PrefixAffinity {
			g.byID = map[placeID]*candidate{}
		}
		l.groups = append(l.groups, g)
	}
	if r.Policy == route.PrefixAffinity && c.index == nil {
		c.index = newPrefixIndex(c.affinityEntries)
	}
	c.lines[r.Name] = l
	return l
}

// addRouteLocked makes the line of a route of the file.
func (c *Controller) addRouteLocked(r *route.Route) {
	l := c.newLineLocked(r)
	l.known = true
	if len(r.Groups) == 0 {
		c.refs[r.Name] = append(c.refs[r.Name], targetRef{group: l.groups[0]})
	}
	for i, g := range r.Groups {
		for j := range g.Targets {
			t := &g.Targets[j]
			c.refs[t.Model] = append(c.refs[t.Model], targetRef{group: l.groups[i], order: j, target: t})
		}
	}
}

// keepLineLocked takes over what is worth keeping of a line of the former table.
func (c *Controller) keepLineLocked(name string, former *line) {
	l := c.lines[name]
	if r := c.table.Resolve(name); l == nil && former.known && former.route.Advertised && r != nil && r.Advertised {
		l = c.newLineLocked(r)
		l.known = true
		c.rememberLineLocked(l, former.memory.node)
	}
	if l != nil {
		l.fleet, l.interval, l.since = former.fleet, former.interval, former.since
	}
}

// moveWaitersLocked lets those who wait in a line of the former table wait in what its name means now.
func (c *Controller) moveWaitersLocked(former *line) {
	r := c.table.Resolve(former.name)
	for _, w := range former.all() {
		var to *line
		if r != nil && r.Allows(w.request.Principal.ID) {
			to = c.lines[r.Name]
			if to == nil && !c.settled {
				to = c.newLineLocked(r)
			}
		}
		if to == nil {
			c.forgetLocked(w)
			w.answer(nil, ErrUnknownModel)
			continue
		}
		c.joinLocked(to, w)
	}
}

// attachLocked makes p a candidate wherever it is one.
func (c *Controller) attachLocked(p *place) {
	for i := range p.models {
		s := p.engine.services[p.models[i].ID]
		if len(s.candidates) > 0 {
			continue // offered twice
		}
		if r := c.table.Resolve(s.model); r != nil && r.Advertised {
			c.joinGroupLocked(c.advertisedLocked(r).groups[0], p, s, 1, nil)
		}
	}
	for g, m := range c.matchesLocked(p) {
		weight := 1
		if m.ref.target != nil {
			weight = max(m.ref.target.Weight, 1)
		}
		c.joinGroupLocked(g, p, m.service, weight, m.ref.target)
	}
	for _, s := range p.seats {
		slices.SortFunc(s.candidates, func(x, y *candidate) int { return x.group.index - y.group.index })
	}
}

// match is the first target of a group that selects a place and that its Node may have the slot of.
type match struct {
	ref     targetRef
	service *service
}

// matchesLocked finds out which groups p is a candidate of, and notes where only the slot keeps it out.
func (c *Controller) matchesLocked(p *place) map[*group]match {
	found := map[*group]match{}
	for name, s := range p.engine.services {
		for _, ref := range c.refsLocked(p, name) {
			if ref.target != nil && !ref.target.Matches(p.target.Node, p.labels, p.target.Provider) {
				continue
			}
			if ref.target != nil && !ref.target.PermittedTo(p.slots) {
				c.barLocked(ref, p)
				continue
			}
			if m, ok := found[ref.group]; !ok || ref.order < m.ref.order {
				found[ref.group] = match{ref, s}
			}
		}
	}
	return found
}

// refsLocked returns the targets that mean the model of that name at p: those of the name, and those of Ollama's other spelling of it
// where p does not offer that.
func (c *Controller) refsLocked(p *place, name string) []targetRef {
	other := route.OtherSpelling(name)
	if other == "" || len(c.refs[other]) == 0 || p.engine.services[other] != nil {
		return c.refs[name]
	}
	return slices.Concat(c.refs[name], c.refs[other])
}

// advertisedLocked returns the line of an advertised model, made if needed, that is about to get a candidate.
func (c *Controller) advertisedLocked(r *route.Route) *line {
	l := c.lines[r.Name]
	switch {
	case l == nil:
		l = c.newLineLocked(r)
	case !l.known:
		c.unknown -= l.waiting
	case l.candidates == 0:
		c.idle.remove(l)
	}
	l.known = true
	return l
}

func (c *Controller) joinGroupLocked(g *group, p *place, s *service, weight int, spec *route.Target) {
	x := &candidate{group: g, place: p, service: s, weight: weight, spec: spec}
	g.join(x)
	s.candidates = append(s.candidates, x)
	at := p.seatOf[g.line]
	if at == nil {
		at = &seat{line: g.line}
		p.seats = append(p.seats, at)
		p.seatOf[g.line] = at
	}
	at.candidates = append(at.candidates, x)
	c.recountLocked(x)
	c.soilLocked(g.line) // what waits for nothing is known now
}

// detachLocked takes p out of all its lines. An advertised model without candidates stays known, within bounds.
func (c *Controller) detachLocked(p *place) {
	for _, s := range p.engine.services {
		s.candidates = nil
	}
	selectable := p.selectable
	p.selectable = false
	c.recountAllLocked(p)
	p.selectable = selectable
	for _, s := range p.seats {
		for _, x := range s.candidates {
			x.group.leave(x)
		}
		l := s.line
		c.soilLocked(l) // also where nothing that was in service goes: see place.connected
		if l.candidates > 0 || !l.route.Advertised {
			continue
		}
		c.rememberLineLocked(l, p.target.Node)
	}
	p.seats, p.seatOf = nil, map[*line]*seat{}
	p.weighed, p.parked = nil, nil
	p.unbar()
}
