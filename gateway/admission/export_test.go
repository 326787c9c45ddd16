package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/gateway/route"
)

// WithoutJitter makes breakers open for exactly their time.
func (c *Controller) WithoutJitter() *Controller {
	c.jitter = func(d time.Duration) time.Duration { return d }
	return c
}

// TableOf makes a table of routes, as a file that says the same does.
func TableOf(advertised bool, routes ...*route.Route) *route.Table {
	var b strings.Builder
	fmt.Fprintf(&b, "advertised_models: %s\nroutes:\n", map[bool]string{false: "refuse", true: "serve"}[advertised])
	for _, r := range routes {
		fmt.Fprintf(&b, "  - {model: %q, policy: %s, queue_limit: %d", r.Name, r.Policy, cmp.Or(r.QueueLimit, DefaultQueueLimit))
		list := func(name string, items []string) {
			if len(items) > 0 {
				fmt.Fprintf(&b, ", %s: [%s]", name, strings.Join(items, ", "))
			}
		}
		list("aliases", quoted(r.Aliases))
		list("principals", quoted(r.Principals))
		var groups []string
		for i, g := range r.Groups {
			when := ""
			if i > 0 && g.When == route.WhenDown {
				when = "when: down, "
			}
			var targets []string
			for _, t := range g.Targets {
				target := fmt.Sprintf("{model: %q, weight: %d", t.Model, t.Weight)
				if t.Node != "" {
					target += fmt.Sprintf(", node: %q", t.Node)
				}
				if t.Provider != "" {
					target += fmt.Sprintf(", provider: %q", t.Provider)
				}
				if t.Slot != "" {
					target += fmt.Sprintf(", slot: %q", t.Slot)
				}
				for name, value := range t.Labels {
					target += fmt.Sprintf(", labels: {%q: %q}", name, value)
				}
				targets = append(targets, target+"}")
			}
			groups = append(groups, fmt.Sprintf("{%stargets: [%s]}", when, strings.Join(targets, ", ")))
		}
		list("groups", groups)
		b.WriteString("}\n")
	}
	t, err := route.Parse("iop.yaml", []byte(b.String()), route.Managed(true))
	if err != nil {
		panic(fmt.Sprintf("%v in\n%s", err, b.String()))
	}
	return t
}

func quoted(list []string) (out []string) {
	for _, s := range list {
		out = append(out, strconv.Quote(s))
	}
	return out
}

// Remembered returns how many principals and flows are in memory.
func (c *Controller) Remembered() (principals, flows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lines {
		flows += len(l.flows)
	}
	return len(c.fair.principals), flows
}

// Lines returns how many names are in memory.
func (c *Controller) Lines() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.lines)
}

// Able reports whether the target can run what the request asks for.
func (c *Controller) Able(t Target, req *Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.placeLocked(t)
	return p != nil && p.ability.serves(req.need())
}

// InService reports whether a target of the route that the request may use is selectable with a closed breaker.
func (c *Controller) InService(req *Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, _ := c.lineLocked(req.Route)
	return l != nil && inService(l, req.scope())
}

// inService counts anew, from what the candidates are.
func inService(l *line, s scope) bool {
	for _, g := range l.groups {
		for _, x := range g.all {
			if x.place.selectable && x.service.breaker.state == breakerClosed && mayUse(x, s) {
				return true
			}
		}
	}
	return false
}

// mayUse counts anew what picker.allows says.
func mayUse(x *candidate, s scope) bool {
	return x.place.ability.serves(s.need) && !slices.Contains(s.avoid, x.place.target)
}

// Check returns what is wrong with the Controller's books, when the places of these tickets are out, and those of others
// were given back before all was told of them.
func (c *Controller) Check(out []*Ticket, told ...*Ticket) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := checker{c: c}
	k.check(len(c.dirty) == 0, "%d lines are dirty", len(c.dirty))
	k.tickets(out, told)
	for _, s := range c.sessions {
		for _, p := range s.places {
			k.place(p)
		}
	}
	idle, unknown, waiting, waited := 0, 0, 0, 0
	waits := map[*principal]int{}
	for name, l := range c.lines {
		k.check(l.name == name, "line %q is called %q", name, l.name)
		k.line(l, waits)
		waiting += l.waiting
		if l.waiting > 0 {
			waited++
			k.check(c.waited[l.at] == l, "%s is not among the waited", l.name)
		}
		switch {
		case !l.known:
			unknown += l.waiting
			k.check(l.waiting > 0, "%s is kept, unknown and for nobody", l.name)
		case l.route.Advertised && l.candidates == 0:
			idle++
		}
	}
	k.check(waiting == c.waiting, "%d wait, %d counted", waiting, c.waiting)
	k.check(waited == len(c.waited), "%d lines are waited for, %d listed", waited, len(c.waited))
	k.check(idle == c.idle.count, "%d idle, %d counted", idle, c.idle.count)
	for node, lines := range c.idle.of {
		for i, l := range lines {
			k.check(c.lines[l.name] == l && l.memory == memory{node, i}, "%s is remembered in the wrong place", l.name)
		}
		idle -= len(lines)
	}
	k.check(idle == 0, "%d idle are not remembered", idle)
	k.check(unknown == c.unknown, "%d unknown, %d counted", unknown, c.unknown)
	for id, p := range c.fair.principals {
		k.check(p.waiting == waits[p], "%s waits %d times, %d counted", id, waits[p], p.waiting)
	}
	return k.err
}

type checker struct {
	c   *Controller
	err error
}

func (k *checker) check(ok bool, format string, args ...any) {
	if !ok && k.err == nil {
		k.err = fmt.Errorf(format, args...)
	}
}

func (k *checker) tickets(out, told []*Ticket) {
	count := map[*engine]int{}
	for _, t := range out {
		count[t.engine]++
	}
	k.check(k.c.inFlight == len(out), "%d tickets, %d counted", len(out), k.c.inFlight)
	for e, n := range count {
		k.check(e.inFlight == n, "an engine has %d runs, %d counted", n, e.inFlight)
	}
	for _, s := range k.c.sessions {
		for _, p := range s.places {
			k.check(p.engine.inFlight == count[p.engine], "%v has %d runs, %d counted", p.target, count[p.engine], p.engine.inFlight)
			for _, s := range p.engine.services {
				if t := s.breaker.trial; t != nil {
					k.check(slices.Contains(out, t) || slices.Contains(told, t), "the trial of %v is over", p.target)
					k.check(s.breaker.state == breakerHalfOpen, "a trial of %v, which is %v", p.target, s.breaker.state)
				}
			}
		}
	}
}

func (k *checker) place(p *place) {
	if p.engine.place != p {
		k.check(len(p.seats) == 0, "%v is retired and has seats", p.target)
		return
	}
	parked, seats := 0, 0
	for _, s := range p.engine.services {
		for _, x := range s.candidates {
			k.check(x.place == p && x.service == s, "a candidate of %v is lost", p.target)
			k.candidate(x)
			seats++
			if x.parked {
				parked++
				k.check(slices.Contains(p.parked, x), "%v: parked nowhere", p.target)
			}
		}
		b := &s.breaker
		k.check((b.timer != nil) == (b.state != breakerClosed && !b.due), "%v: a timer of a breaker, or none", p.target)
		k.check(!b.due || b.state == breakerHalfOpen, "%v: due for a trial and %v", p.target, b.state)
	}
	k.check(parked == len(p.parked), "%v: %d parked, %d listed", p.target, parked, len(p.parked))
	k.check(p.engine.rest.resting == (p.engine.rest.timer != nil), "%v: rest and timer", p.target)
	for _, s := range p.seats {
		k.check(p.seatOf[s.line] == s && k.c.lines[s.line.name] == s.line, "%v: a seat in a line that is none", p.target)
		seats -= len(s.candidates)
		for i, x := range s.candidates {
			k.check(i == 0 || s.candidates[i-1].group.index < x.group.index, "%v: groups out of order", p.target)
		}
	}
	k.check(seats == 0, "%v: seats and candidates differ by %d", p.target, seats)
}

func (k *checker) candidate(x *candidate) {
	p, g := x.place, x.group
	k.check(g.all[x.at] == x, "%v: not in its group", x)
	k.check(!p.free() || x.pool != nil, "%v: free and not listed", x)
	k.check((x.pool == nil) == x.parked, "%v: listed and parked, or nowhere", x)
	if x.pool == nil {
		return
	}
	k.check(x.pool == g.poolOf(x) && x.pool.items[x.slot] == x, "%v: in the wrong list", x)
}

func (x *candidate) String() string { return fmt.Sprint(x.place.target, " in ", x.group.line.name) }

func (k *checker) line(l *line, waits map[*principal]int) {
	candidates := 0
	for _, g := range l.groups {
		candidates += len(g.all)
		k.group(g)
	}
	k.check(candidates == l.candidates, "%s: %d candidates, %d counted", l.name, candidates, l.candidates)
	flows, waiting := 0, len(l.kept)
	for id, f := range l.flows {
		waiting += len(f.waiters)
		waits[f.principal] += len(f.waiters)
		k.check(f.line == l && f.principal.id == id, "%s: a flow of another", l.name)
		if len(f.waiters) == 0 {
			continue
		}
		flows++
		k.check(k.c.fair.principals[id] == f.principal, "%s: %s is forgotten", l.name, id)
		k.check((*l.heapOf(f))[f.at] == f, "%s: a flow where it does not stand", l.name)
		k.check(f.late || f.key <= f.principal.time, "%s: a key ahead of its time", l.name)
		tokens := int64(0)
		for i, w := range f.waiters {
			k.check(w.at == i && w.flow == f && w.line == l, "%s: a waiter where it does not stand", l.name)
			k.check(i == 0 || !w.before(f.waiters[(i-1)/2]), "%s: a heap out of order", l.name)
			tokens += costOf(&w.request)
		}
		k.check(tokens == f.tokens, "%s: %d tokens, %d counted", l.name, tokens, f.tokens)
	}
	for _, h := range []ordered[*flow]{l.early, l.late} {
		for i, f := range h {
			k.check(i == 0 || !f.before(h[(i-1)/2]), "%s: flows out of order", l.name)
		}
	}
	k.check(flows == len(l.early)+len(l.late), "%s: %d flows, %d in order", l.name, flows, len(l.early)+len(l.late))
	for f := l.turns.first; f != nil; f = f.next {
		flows--
	}
	k.check(flows == 0, "%s: %d flows have no turn", l.name, flows)
	k.check(waiting == l.waiting, "%s: %d wait, %d counted", l.name, waiting, l.waiting)
	k.bars(l)
	k.unserved(l)
	k.absent(l)
}

// absent: the grace runs for those, and only those, for whom no target is connected, and it is not over.
func (k *checker) absent(l *line) {
	absent, now := 0, time.Now()
	for _, w := range l.all() {
		can, connected := l.candidates == 0, false
		for _, g := range l.groups {
			for _, x := range g.all {
				if p := x.place; p.ability.serves(w.request.need()) {
					can = true
					connected = connected || p.selectable || p.engine.inFlight > 0 && !p.drained
				}
			}
		}
		if !can { // its time is that of the place that was lost
			k.check(!l.hopeless(w.request.need()) && l.again.timer != nil, "%s: somebody waits for what nothing can run", l.name)
		}
		k.check(w.absent.IsZero() == (connected || !can), "%s: connected %v, absent since %v", l.name, connected, w.absent)
		if !w.absent.IsZero() {
			absent++
			due := w.absent.Add(k.c.graceOf(l))
			k.check(due.After(now) && l.again.timer != nil && !l.again.at.After(due), "%s: nobody sees that the grace is over", l.name)
		}
	}
	k.check(absent == l.absent, "%s: for %d nothing is connected, counted %d", l.name, absent, l.absent)
	k.check(l.again.timer == nil || l.waiting > 0, "%s: it is looked at again for nobody", l.name)
}

func (k *checker) group(g *group) {
	selectable, capacity, inService, listed := 0, 0, 0, int64(0)
	var load groupLoad
	for i, x := range g.all {
		k.check(x.at == i && x.group == g, "%s: a candidate where it does not stand", g.line.name)
		if x.place.selectable {
			selectable++
			capacity += x.place.capacity
			if x.service.breaker.state == breakerClosed {
				inService++
				load.inFlight += x.place.engine.inFlight
				load.capacity += x.place.capacity
			}
		}
		if x.pool == &g.free && g.policy() == route.Weighted {
			k.check(g.weights.find(listed) == i && g.weights.find(listed+int64(x.weight)-1) == i, "%s: weights", g.line.name)
			listed += int64(x.weight)
		}
	}
	k.check(selectable == g.selectable && inService == g.inService, "%s: %d selectable, %d in service; counted %d, %d",
		g.line.name, selectable, inService, g.selectable, g.inService)
	k.check(capacity == g.capacity, "%s: a capacity of %d, counted %d", g.line.name, capacity, g.capacity)
	if g.policy() == route.PrefixAffinity {
		k.check(load == g.load, "%s: load %v, counted %v", g.line.name, load, g.load)
	}
	k.check(listed == g.weights.total(), "%s: weights of %d, counted %d", g.line.name, listed, g.weights.total())
}

// bars: who is kept out may not have the slot, who is not may, and nobody waits for a line that no Node may serve.
func (k *checker) bars(l *line) {
	for p, t := range l.barred {
		k.check(k.c.placeLocked(p.target) == p && p.engine.place == p && slices.Contains(p.barred, l), "%s: %v is barred and gone", l.name, p.target)
		k.check(!t.PermittedTo(p.slots), "%s: %v is barred and may have %s", l.name, p.target, t.Slot)
	}
	for _, g := range l.groups {
		for _, x := range g.all {
			k.check(x.spec == nil || x.spec.PermittedTo(x.place.slots), "%s: %v may not have %v", l.name, x.place.target, x.spec)
		}
	}
	if len(l.barred) > 0 {
		k.check(l.awaited == k.c.awaitsLocked(l), "%s: %v that a Node may come", l.name, l.awaited)
		k.check(l.waiting == 0 || l.candidates > 0 || l.awaited, "%s: somebody waits for what no Node may have", l.name)
	}
}

// unserved: nobody waits for whom there is room, or nothing.
func (k *checker) unserved(l *line) {
	room := func(s scope) bool {
		for _, g := range l.groups {
			for _, x := range g.all {
				if !x.place.free() || !mayUse(x, s) {
					continue
				}
				if x.service.admits() && k.c.opensLocked(g, s) || !inService(l, s) {
					return true
				}
			}
		}
		return false
	}
	for _, f := range l.flows {
		for _, w := range f.waiters {
			k.check(!room(scope{need: w.request.need()}), "%s: somebody waits for what is free", l.name)
		}
	}
	for _, w := range l.kept {
		k.check(!room(w.request.scope()), "%s: somebody waits for another that is free", l.name)
		k.check(len(w.request.Avoid) == 0 || k.c.hasOtherLocked(l, w.request.scope()), "%s: somebody waits for nothing", l.name)
	}
}

// Again makes a ticket that was released stand for another one of its place.
func (t *Ticket) Again() { t.done = false }

// RaceEnabled reports whether each step takes ten times as long.
func RaceEnabled() bool { return raceEnabled }
