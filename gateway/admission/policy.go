package admission

import (
	"math/rand/v2"
	"slices"
	"time"

	"iop/gateway/route"
)

const (
	// maxCandidates is how many candidates with room are compared. Of more, the best of a random sample is hardly
	// worse than the best of all, and takes no longer with a thousand Nodes than with ten.
	maxCandidates = 16
	// A model that is in memory is worth less than a place that works: with a higher penalty it goes without saying.
	maxWarmPenalty = 0.5
	// untriedCost is what a penalty of 1 adds to the expected time of a target, so that one of which only failures
	// are known is not taken for the fastest.
	untriedCost = 5 * time.Second
)

// pickLocked returns the candidate that the route's policy picks for a request, nil if none has room.
func (c *Controller) pickLocked(l *line, req *Request, now time.Time) (*candidate, Reason) {
	var why Reason
	p := picker{req: req, now: now, why: &why}
	cut := 0
	for _, g := range l.groups {
		cut += len(g.cut.items)
		if len(g.due.items)+len(g.free.items)+len(g.warm.items) == 0 || !c.opensLocked(g, req.scope()) {
			continue
		}
		if x := c.firstOfLocked(g, &p); x != nil {
			if len(g.all) == 1 {
				why.Rule = "only_target"
			}
			return x, why
		}
	}
	if cut == 0 || !c.lastResortLocked(l, req.scope()) {
		return nil, Reason{}
	}
	for _, g := range l.groups {
		if x := c.lastOfLocked(g, &p); x != nil {
			return x, why
		}
	}
	return nil, Reason{}
}

// lastOfLocked picks among those that fail, by the policy as far as it goes: all of it only steers.
func (c *Controller) lastOfLocked(g *group, p *picker) *candidate {
	return p.least(&g.cut, func(x *candidate) float64 {
		switch g.policy() {
		case route.Weighted: // the least of these is each as often as its weight says
			return rand.ExpFloat64() * (1 + x.service.penalty.at(p.now)) / float64(x.weight)
		case route.LowestWait:
			return p.expected(x)
		case route.WarmFirst:
			if x.service.warm() {
				return x.load(p.now) - 1
			}
		case route.PrefixAffinity:
			return x.load(p.now) - float64(c.index.seen(&p.req.Affinity, x.id, 0))/100
		}
		return x.load(p.now)
	})
}

// firstOfLocked picks one that is due for its trial, or by the policy.
func (c *Controller) firstOfLocked(g *group, p *picker) *candidate {
	if len(g.due.items) > 0 {
		if x := p.leastBusy(&g.due); x != nil {
			return x
		}
	}
	return c.byPolicyLocked(g, p)
}

func (c *Controller) byPolicyLocked(g *group, p *picker) *candidate {
	switch g.policy() {
	case route.Weighted:
		return p.weighted(g)
	case route.LowestWait:
		return p.lowestWait(g)
	case route.WarmFirst:
		return p.warmFirst(g)
	case route.PrefixAffinity:
		return c.affineLocked(g, p)
	}
	return p.leastBusy(&g.free)
}

// picker is one decision in one group. It holds no candidate, and the reason by pointer, so that the
// compiler sees that the request stays on the stack.
type picker struct {
	req *Request
	now time.Time
	why *Reason // never nil: the rule that decided, and how many candidates were compared
}

// draw fills a sample from a pool with candidates that the request may use, and parks what has no room.
func (p *picker) draw(sample *[maxCandidates]*candidate, from *pool) []*candidate {
	start, n := 0, 0
	if len(from.items) > maxCandidates {
		start = rand.IntN(len(from.items))
	}
	for i := start; i < len(from.items) && n < maxCandidates; {
		x := from.items[i]
		if !x.place.free() {
			x.park() // the last one, which was not seen yet, stands at i now
			continue
		}
		if p.allows(x) {
			sample[n] = x
			n++
		}
		i++
	}
	end := min(start, len(from.items))
	for i := 0; i < end && n < maxCandidates; {
		x := from.items[i]
		if !x.place.free() {
			seen := len(from.items) > end
			x.park()
			if !seen {
				end--
				continue
			}
		} else if p.allows(x) {
			sample[n] = x
			n++
		}
		i++
	}
	p.why.Candidates = n
	return sample[:n]
}

func (p *picker) allows(x *candidate) bool {
	return x.place.ability.serves(p.req.need()) && (len(p.req.Avoid) == 0 || !slices.Contains(p.req.Avoid, x.place.target))
}

// leastBusy takes the least share of capacity taken, and among equals who was picked longest ago.
func (p *picker) leastBusy(from *pool) *candidate {
	p.why.Rule = "least_busy"
	return p.least(from, func(x *candidate) float64 { return x.load(p.now) })
}

// least takes the candidate of the least cost, and among equals the least busy one.
func (p *picker) least(from *pool, cost func(*candidate) float64) (best *candidate) {
	var sample [maxCandidates]*candidate
	var least, load float64
	for _, x := range p.draw(&sample, from) {
		c := cost(x)
		if best != nil && c > least {
			continue
		}
		l := x.load(p.now)
		if best == nil || c < least || l < load || l == load && x.place.picked < best.place.picked {
			best, least, load = x, c, l
		}
	}
	return best
}

// weighted takes each candidate with room as often as its weight says, less often with a penalty.
func (p *picker) weighted(g *group) *candidate {
	for tries := 0; tries < maxCandidates; {
		total := g.weights.total()
		if total == 0 {
			return nil
		}
		x := g.all[g.weights.find(rand.Int64N(total))]
		if !x.place.free() {
			x.park()
			continue
		}
		if p.allows(x) && rand.Float64()*(1+x.service.penalty.at(p.now)) < 1 {
			p.why.Rule, p.why.Candidates = "weighted", len(g.free.items)
			return x
		}
		tries++
	}
	return p.leastBusy(&g.free) // what has the weight is to be avoided, or fails
}

// lowestWait takes what is expected to answer first.
func (p *picker) lowestWait(g *group) *candidate {
	p.why.Rule = "lowest_wait"
	return p.least(&g.free, p.expected)
}

// expected is the time to the end of the answer that is to be expected of x, with what its failures add to it.
func (p *picker) expected(x *candidate) float64 {
	expected := x.service.pace.expect(p.now, paceLoad{
		inFlight: x.place.engine.inFlight, input: max(p.req.Tokens-p.req.Output, 0), output: p.req.Output,
	}, x.group.line.fleet)
	penalty := x.service.penalty.at(p.now)
	return float64(expected)*(1+penalty) + penalty*float64(untriedCost)
}

// warmFirst takes the least busy of those that have the model loaded, and of the others if none has.
func (p *picker) warmFirst(g *group) *candidate {
	x := p.leastBusyWarm(g)
	if x != nil && x.pool == &g.warm {
		p.why.Rule = "warm"
	}
	return x
}

// leastBusyWarm takes the least busy of those that need not load the model first, as far as that is known, and of all
// if none of these is as good as any.
func (p *picker) leastBusyWarm(g *group) *candidate {
	warm := p.leastBusy(&g.warm)
	if warm != nil && warm.service.penalty.at(p.now) <= maxWarmPenalty {
		return warm
	}
	cold := p.leastBusy(&g.free)
	if cold == nil || warm != nil && warm.load(p.now) <= cold.load(p.now) {
		return warm
	}
	return cold
}

// affineLocked takes where the prompt ran before, unless there is too much load, and else the least busy; both where the
// model is in memory, if it is anywhere.
func (c *Controller) affineLocked(g *group, p *picker) *candidate {
	if p.req.Affinity.empty() {
		return p.leastBusyWarm(g)
	}
	room := func(id placeID) (inFlight, capacity int, ok bool) {
		x := g.byID[id]
		if x == nil || x.service.cold() || !x.inService || !x.place.free() || !p.allows(x) {
			return 0, 0, false
		}
		extra := x.service.penalty.at(p.now) * float64(x.place.capacity)
		return x.place.engine.inFlight + int(extra+0.5), x.place.capacity, true
	}
	id, result := c.index.choose(&p.req.Affinity, g.load, room)
	if result == affinityHit {
		c.counters.AffinityHits.Add(1)
		p.why.Rule, p.why.Candidates = "affinity", 1
		return g.byID[id]
	}
	x := p.leastBusyWarm(g)
	switch {
	case x == nil: // no room at all
	case result == affinityYield:
		p.why.Rule = "affinity_yield"
		c.counters.AffinityYields.Add(1)
	default:
		c.counters.AffinityMisses.Add(1)
	}
	return x
}
