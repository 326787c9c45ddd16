package admission

import (
	"time"
)

const (
	// maxLag is how far the virtual time of who waits may count as behind that of the last grant, in tokens at a
	// weight of 1: a few requests' worth.
	maxLag = 8192
	// maxCost bounds what one request is charged, in tokens: above it an estimate is a mistake, or a trick.
	maxCost = 1 << 24
	// One grant of turnEvery at a place goes to the flow that was served longest ago.
	turnEvery = 16
	// leastSweep is from how many entries on those that say nothing are swept out of a map.
	leastSweep = 1024
)

// fairness is the fair order among principals, over all lines.
type fairness struct {
	clock      float64 // the virtual time at which the last grant began
	grants     uint64
	principals map[string]*principal // who waits, and who was served ahead of the clock
	sweepAt    int                   // entries
}

func newFairness() fairness {
	return fairness{principals: map[string]*principal{}, sweepAt: leastSweep}
}

// principal is who waits.
type principal struct {
	id      string
	weight  int
	waiting int     // requests in all lines, without those that were in line before
	time    float64 // virtual: what was granted, in tokens over weight
	served  uint64  // number of the last grant
}

// flow is a principal in one line.
type flow struct {
	line       *line
	principal  *principal
	waiters    ordered[*Waiter]
	tokens     int64   // of waiters
	tag        float64 // the virtual time of the line when the next of them may begin
	late       bool    // it stands in line.late, by tag; else in line.early, by key
	key        float64 // principal.time when last looked at: never above it
	at         int     // in its heap
	turn       uint64  // number of the last grant, or of the last one before it began to wait
	prev, next *flow   // in line.turns
}

func (f *flow) index() *int { return &f.at }

func (f *flow) before(g *flow) bool {
	a, b := f.key, g.key
	if f.late {
		a, b = f.tag, g.tag
	}
	if a != b {
		return a < b
	}
	return f.waiters[0].request.Line < g.waiters[0].request.Line
}

func (w *Waiter) index() *int { return &w.at }

func (w *Waiter) before(v *Waiter) bool {
	if w.request.Principal.Priority != v.request.Principal.Priority {
		return w.request.Principal.Priority > v.request.Principal.Priority
	}
	return w.request.Line < v.request.Line
}

func costOf(req *Request) int64 { return min(max(req.Tokens, 1), maxCost) }

// waits returns the principal of a request that begins to wait. It brings no time along from when it did not.
func (f *fairness) waits(who Principal) *principal {
	p := f.principals[who.ID]
	if p == nil {
		if len(f.principals) >= f.sweepAt {
			f.sweep()
		}
		p = &principal{id: who.ID}
		f.principals[who.ID] = p
	}
	if p.waiting == 0 {
		p.time = max(p.time, f.clock)
	}
	p.weight = max(who.Weight, 1)
	p.waiting++
	return p
}

// sweep drops principals that do not wait, first those whose time has come.
func (f *fairness) sweep() {
	for id, p := range f.principals {
		if p.waiting == 0 && p.time <= f.clock {
			delete(f.principals, id)
		}
	}
	if len(f.principals) >= f.sweepAt {
		for id, p := range f.principals {
			if p.waiting == 0 {
				delete(f.principals, id)
			}
		}
	}
	f.sweepAt = max(leastSweep, 2*len(f.principals))
}

// reset forgets all when nobody waits anywhere.
func (f *fairness) reset() {
	if len(f.principals) > 0 {
		clear(f.principals)
	}
	f.clock, f.sweepAt = 0, leastSweep
}

func (f *fairness) floor() float64 { return f.clock - maxLag }

// charge makes the next request of x's principal begin later by what this one costs. A grant out of order moves no
// clock: who is served ahead of its time must not make all others late.
func (f *fairness) charge(x *flow, req *Request, inOrder bool) {
	p := x.principal
	f.grants++
	p.served, x.turn = f.grants, f.grants
	cost := float64(costOf(req)) / float64(p.weight)
	begin := max(p.time, f.floor())
	if inOrder {
		f.clock = max(f.clock, begin)
		x.line.clock = max(x.line.clock, x.tag)
	}
	p.time = begin + cost
	x.tag += cost
}

// queue is who waits for a line.
type queue struct {
	kept        []*Waiter        // those that were in line before, by number
	needs       tally[need]      // of all who wait
	flows       map[string]*flow // by principal; some have no waiters, but a tag ahead of the clock
	early, late ordered[*flow]   // flows with waiters; late are those more than maxLag behind
	turns       turns            // the same flows
	clock       float64          // the tag at which the last grant began
	waiting     int
	absent      int // of these, for whom no target is connected
	again       again
	at          int       // in Controller.waited
	dirty       bool      // in Controller.dirty
	interval    mean      // between two grants
	since       time.Time // of the last grant, or when somebody began to wait
}

func (q *queue) plain() int { return q.waiting - len(q.kept) }

// next returns the flow whose turn it is, of flows there must be some. Times only grow, so that a key that is not up to
// date matters only once it comes to the top.
func (q *queue) nextFlow(floor float64) *flow {
	for len(q.late) > 0 && q.late[0].principal.time > floor {
		f := q.late[0]
		q.late.remove(0)
		q.toEarly(f)
	}
	for len(q.early) > 0 {
		f := q.early[0]
		switch {
		case f.key != f.principal.time:
			f.key = f.principal.time
			q.early.fix(0)
			continue
		case f.key <= floor:
			q.early.remove(0)
			f.late = true
			q.late.push(f)
			continue
		}
		break
	}
	if len(q.late) > 0 {
		return q.late[0]
	}
	return q.early[0]
}

func (q *queue) toEarly(f *flow) {
	f.late, f.key = false, f.principal.time
	q.early.push(f)
}

func (q *queue) heapOf(f *flow) *ordered[*flow] {
	if f.late {
		return &q.late
	}
	return &q.early
}

// flowOf returns the flow of a principal that begins to wait, made if needed.
func (l *line) flowOf(p *principal) *flow {
	f := l.flows[p.id]
	if f == nil {
		f = &flow{line: l}
		if l.flows == nil {
			l.flows = map[string]*flow{}
		}
		l.sweepFlows()
		l.flows[p.id] = f
	}
	f.principal = p
	return f
}

// sweepFlows drops flows without waiters when there are many.
func (l *line) sweepFlows() {
	if len(l.flows) < leastSweep || len(l.flows) < 2*(len(l.early)+len(l.late)) {
		return
	}
	for id, f := range l.flows {
		if len(f.waiters) == 0 {
			delete(l.flows, id)
		}
	}
}

// add puts w into the flow, and the flow into its line if w is the first.
func (f *flow) add(w *Waiter, grants uint64) {
	w.flow = f
	f.tokens += costOf(&w.request)
	f.waiters.push(w)
	q := &f.line.queue
	switch {
	case len(f.waiters) == 1:
		f.tag, f.turn = max(f.tag, q.clock), grants
		q.turns.append(f)
		q.toEarly(f)
	case w.at == 0:
		q.heapOf(f).fix(f.at)
	}
}

// drop takes w out of the flow, and the flow out of its line if w was the last.
func (f *flow) drop(w *Waiter) {
	q := &f.line.queue
	f.tokens -= costOf(&w.request)
	if len(f.waiters) == 1 {
		q.heapOf(f).remove(f.at)
		q.turns.remove(f)
		f.waiters.remove(0)
		return
	}
	first := w.at == 0
	f.waiters.remove(w.at)
	if first {
		q.heapOf(f).fix(f.at)
	}
}

// granted moves the flow to where it belongs after charge.
func (f *flow) granted() {
	if len(f.waiters) == 0 {
		return
	}
	q := &f.line.queue
	q.turns.remove(f)
	q.turns.append(f)
	q.heapOf(f).remove(f.at)
	q.toEarly(f)
}

// turns is a list of flows, the one that was served longest ago first.
type turns struct{ first, last *flow }

func (t *turns) append(f *flow) {
	f.prev, f.next = t.last, nil
	if t.last == nil {
		t.first = f
	} else {
		t.last.next = f
	}
	t.last = f
}

func (t *turns) remove(f *flow) {
	if f.prev == nil {
		t.first = f.next
	} else {
		f.prev.next = f.next
	}
	if f.next == nil {
		t.last = f.prev
	} else {
		f.next.prev = f.prev
	}
	f.prev, f.next = nil, nil
}
