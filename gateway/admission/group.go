package admission

import (
	"slices"

	"iop/gateway/route"
)

// line is a route at work: who serves it and who waits for it.
type line struct {
	name       string
	route      *route.Route
	known      bool // it stands in the file, or a Node has offered it
	groups     []*group
	candidates int
	abilities  tally[ability] // of the candidates
	lost       []loss         // of candidates that are gone
	fleet      *pace          // of all targets together; never nil
	memory     memory         // while it is remembered: see remembered
	bars
	queue
}

// group is the candidates of one of a route's groups.
type group struct {
	line  *line
	index int
	when  route.When
	all   []*candidate
	// The pools hold every candidate whose place has room, and some without, which who meets them parks. warm is for two
	// policies: for WarmFirst, those that have the model loaded; for PrefixAffinity, those that are not known to have
	// others loaded in its place. due are those that get the next run as a trial; cut those whose breaker lets nothing
	// through, for a last resort.
	free, warm, due, cut pool
	selectable           int                    // candidates whose place is
	capacity             int                    // of these
	inService            int                    // of these, whose breaker is closed
	weights              weights                // for Weighted: of those in free, by their place in all
	load                 groupLoad              // for PrefixAffinity: of those in service
	byID                 map[placeID]*candidate // for PrefixAffinity
}

// candidate is a service as a member of a group. It is in a pool, or parked.
type candidate struct {
	group      *group
	place      *place
	service    *service
	weight     int
	spec       *route.Target // that selected it; nil for a route without groups
	id         placeID       // 0: the route's policy asks for none
	at         int           // in group.all
	pool       *pool         // or nil
	slot       int           // in pool
	parked     bool          // in place.parked
	selectable bool          // counted so
	inService  bool          // counted so
	counted    int           // the capacity that group.capacity and group.load have of it
}

// pool is an unordered list.
type pool struct{ items []*candidate }

func (l *pool) add(x *candidate) {
	x.pool, x.slot = l, len(l.items)
	l.items = append(l.items, x)
}

func (l *pool) drop(x *candidate) {
	last := len(l.items) - 1
	moved := l.items[last]
	l.items[x.slot], moved.slot = moved, x.slot
	l.items[last] = nil
	l.items = l.items[:last]
	x.pool = nil
}

func (g *group) policy() route.Policy { return g.line.route.Policy }

func (g *group) poolOf(x *candidate) *pool {
	switch {
	case !x.service.admits():
		return &g.cut
	case x.service.breaker.due:
		return &g.due
	case g.policy() == route.WarmFirst && x.service.warm(), g.policy() == route.PrefixAffinity && !x.service.cold():
		return &g.warm
	}
	return &g.free
}

// list puts x into its pool, unless it is in one, or parked.
func (x *candidate) list() {
	if x.pool != nil || x.parked {
		return
	}
	x.group.poolOf(x).add(x)
	if x.weighs() {
		x.group.weights.add(x.at, int64(x.weight))
	}
}

func (x *candidate) unlist() {
	if x.pool == nil {
		return
	}
	if x.weighs() {
		x.group.weights.add(x.at, -int64(x.weight))
	}
	x.pool.drop(x)
}

// weighs reports whether x is among the weights of its group.
func (x *candidate) weighs() bool {
	return x.group.policy() == route.Weighted && x.pool == &x.group.free
}

// park takes x, whose place has no room, out of its pool until it has. To do so when it is met, and not when the place
// becomes full, makes a run cost the same whether its place serves one route or a thousand.
func (x *candidate) park() {
	x.unlist()
	x.parked = true
	x.place.parked = append(x.place.parked, x)
}

// join adds a candidate to its group, to be counted by recountLocked.
func (g *group) join(x *candidate) {
	x.at = len(g.all)
	g.all = append(g.all, x)
	g.line.candidates++
	g.line.abilities.add(x.place.ability, 1)
	switch g.policy() {
	case route.Weighted:
		g.weights.append()
	case route.PrefixAffinity:
		x.id = x.service.id
		g.byID[x.id] = x
		x.place.weighed = append(x.place.weighed, x)
	}
	x.list()
}

// leave takes x out of its group, whose counts it has left already.
func (g *group) leave(x *candidate) {
	x.unlist()
	last := g.all[len(g.all)-1]
	if last != x {
		g.swapLast(x, last)
	}
	g.all[len(g.all)-1] = nil
	g.all = g.all[:len(g.all)-1]
	g.line.candidates--
	g.line.abilities.add(x.place.ability, -1)
	switch g.policy() {
	case route.Weighted:
		g.weights.pop()
	case route.PrefixAffinity:
		if g.byID[x.id] == x {
			delete(g.byID, x.id)
		}
	}
}

// swapLast puts the last of all where x stands, which is in no pool.
func (g *group) swapLast(x, last *candidate) {
	weighs := last.weighs()
	if weighs {
		g.weights.add(last.at, -int64(last.weight))
	}
	last.at, x.at = x.at, last.at
	g.all[last.at] = last
	if weighs {
		g.weights.add(last.at, int64(last.weight))
	}
}

// recountLocked counts x as what it is now. A line that lost something is looked at again in settleLocked.
func (c *Controller) recountLocked(x *candidate) {
	g, p := x.group, x.place
	selectable := p.selectable
	inService := selectable && x.service.breaker.state == breakerClosed
	if x.inService {
		g.load.inFlight -= p.engine.inFlight
		g.load.capacity -= x.counted
		g.inService--
	}
	if x.selectable {
		g.selectable--
		g.capacity -= x.counted
	}
	if inService {
		g.load.inFlight += p.engine.inFlight
		g.load.capacity += p.capacity
		g.inService++
	}
	if selectable {
		g.selectable++
		g.capacity += p.capacity
	}
	if x.selectable != selectable || x.inService && !inService {
		c.soilLocked(g.line)
	}
	x.selectable, x.inService, x.counted = selectable, inService, p.capacity
}

func (c *Controller) recountAllLocked(p *place) {
	for _, s := range p.seats {
		for _, x := range s.candidates {
			c.recountLocked(x)
		}
	}
}

// soilLocked notes a line that is to be looked at again: it lost something that was in service, or a target connected.
func (c *Controller) soilLocked(l *line) {
	if l.waiting > 0 && !l.dirty {
		l.dirty = true
		c.dirty = append(c.dirty, l)
	}
}

// opensLocked reports whether the group may be used: whether it is one of the first rank, or of those before it none has room
// (who asks has seen to that), or none is in service.
func (c *Controller) opensLocked(g *group, s scope) bool {
	if g.index == 0 || g.when != route.WhenDown {
		return true
	}
	for _, before := range g.line.groups[:g.index] {
		out := 0
		if before.inService > 0 {
			out = c.outsideLocked(before.line, s, func(x *candidate) bool { return x.group == before && x.inService })
		}
		if before.inService > out {
			return false
		}
	}
	return true
}

// lastResortLocked reports whether nothing of the line is in service that the request may use: a breaker keeps runs away from
// a target only for the sake of others.
func (c *Controller) lastResortLocked(l *line, s scope) bool {
	inService := 0
	for _, g := range l.groups {
		inService += g.inService
	}
	return inService == 0 || inService == c.outsideLocked(l, s, func(x *candidate) bool { return x.inService })
}

// hasOtherLocked reports whether something serves the line that the request may use, now or when it has room again.
func (c *Controller) hasOtherLocked(l *line, s scope) bool {
	selectable := 0
	for _, g := range l.groups {
		selectable += g.selectable
	}
	return selectable > c.outsideLocked(l, s, func(x *candidate) bool { return x.selectable })
}

// outsideLocked counts the candidates of a line for which is holds, and which the request may not use.
func (c *Controller) outsideLocked(l *line, s scope, is func(*candidate) bool) (n int) {
	if _, each := l.canRun(s.need); each {
		if len(s.avoid) == 0 {
			return 0
		}
		return c.avoidedLocked(l, s.avoid, is)
	}
	for _, g := range l.groups {
		for _, x := range g.all {
			if is(x) && (!x.place.ability.serves(s.need) || slices.Contains(s.avoid, x.place.target)) {
				n++
			}
		}
	}
	return n
}

// avoidedLocked counts the candidates of a line at the targets to avoid for which is holds.
func (c *Controller) avoidedLocked(l *line, avoid []Target, is func(*candidate) bool) (n int) {
	for i, t := range avoid {
		p := c.placeLocked(t)
		if p == nil || p.seatOf[l] == nil || slices.Contains(avoid[:i], t) {
			continue
		}
		for _, x := range p.seatOf[l].candidates {
			if is(x) {
				n++
			}
		}
	}
	return n
}
