package admission

import (
	"cmp"
	"slices"
	"time"
)

// Waiter is a request in the queue of its route. Exactly one of two things ends it: Ready is closed and Result tells
// what became of it, or Leave took it out.
type Waiter struct {
	ctl     *Controller
	request Request
	since   time.Time
	ready   chan struct{} // closed by the Controller, with the answer set before

	// Guarded by Controller.mu until ready is closed.
	line   *line // nil once it does not wait any more
	flow   *flow // nil for one that was in line before
	at     int   // in flow.waiters
	ticket *Ticket
	err    error
	absent time.Time // since when no target is connected; zero: one is
	place  int       // as last told
	placed time.Time // since when it is not further ahead
	passed uint8     // how often another went before it for affinity's sake
	ahead  bool      // it is granted before the flow whose turn it is, which the place can't run
}

// Ready is closed when Result has an answer.
func (w *Waiter) Ready() <-chan struct{} { return w.ready }

// Result returns the ticket or the error. It may be called once Ready is closed.
func (w *Waiter) Result() (*Ticket, error) { return w.ticket, w.err }

// Leave takes the request out of the queue; a ticket that it was given meanwhile is released.
func (w *Waiter) Leave() {
	c := w.ctl
	c.mu.Lock()
	if w.line != nil {
		c.removeLocked(w)
	}
	t := w.ticket
	c.mu.Unlock()
	if t != nil {
		t.Release()
		t.Done()
	}
}

func (w *Waiter) answer(t *Ticket, err error) {
	w.line, w.flow = nil, nil
	w.ticket, w.err = t, err
	close(w.ready)
}

// enqueueLocked puts the request in line; l is nil for a model that no Node has offered and nobody waits for.
func (c *Controller) enqueueLocked(l *line, req *Request, kept bool, now time.Time) (*Waiter, error) {
	switch {
	case l == nil || !l.known:
		if c.settled {
			return nil, ErrUnknownModel
		}
		// Names that no Node vouches for come from clients: together they may take no more than one queue.
		if c.unknown >= c.queueLimit {
			return nil, &QueueFullError{RetryAfter: time.Second}
		}
	case !kept && l.waiting >= c.limitOf(l) && !c.pushOutLocked(l, &req.Principal, now):
		return nil, &QueueFullError{RetryAfter: l.drains(now)}
	}
	if l == nil {
		l = c.newLineLocked(c.table.Resolve(req.Route.Name))
	}
	w := &Waiter{ctl: c, request: *req, since: now, ready: make(chan struct{})}
	if l.waiting == 0 {
		l.since = now
	}
	c.waiting++
	if !kept {
		w.flow = l.flowOf(c.fair.waits(req.Principal))
	}
	c.joinLocked(l, w)
	c.beginLocked(w, now)
	return w, nil
}

// maxPushOut bounds the search for whom to push out, in principals.
const maxPushOut = 1024

// pushOutLocked makes room in a full line for a request of who: the last request of the principal that has most in line for
// its weight gets a *QueueFullError in its place. False: nobody has more than who would have then. Without this, one principal that
// keeps a line full would keep all others out, however little they ask for.
func (c *Controller) pushOutLocked(l *line, who *Principal, now time.Time) bool {
	own, weight := 1, max(who.Weight, 1)
	if f := l.flows[who.ID]; f != nil {
		own += len(f.waiters)
	}
	var most *flow
	searched := 0
	for f := l.turns.last; f != nil && searched < maxPushOut; f = f.prev { // who has most was served lately
		searched++
		if most == nil || len(f.waiters)*most.principal.weight > len(most.waiters)*f.principal.weight {
			most = f
		}
	}
	if most == nil || len(most.waiters)*weight <= own*most.principal.weight {
		return false
	}
	last := most.waiters[0]
	for _, w := range most.waiters {
		if last.before(w) {
			last = w
		}
	}
	c.failLocked(last, &QueueFullError{RetryAfter: l.drains(now)})
	return true
}

func (c *Controller) limitOf(l *line) int {
	if l.route.QueueLimit > 0 {
		return l.route.QueueLimit
	}
	return c.queueLimit
}

// joinLocked puts w, which waits already, into a line. Its flow is nil, or one of its principal in any line.
func (c *Controller) joinLocked(l *line, w *Waiter) {
	w.line = l
	if w.flow == nil {
		i, _ := slices.BinarySearchFunc(l.kept, w.request.Line, byLine)
		l.kept = slices.Insert(l.kept, i, w)
	} else {
		l.flowOf(w.flow.principal).add(w, c.fair.grants)
	}
	l.needs.add(w.request.need(), 1)
	if !w.absent.IsZero() {
		l.absent++
	}
	if l.since.IsZero() {
		l.since = time.Now()
	}
	if l.waiting++; l.waiting == 1 {
		l.at = len(c.waited)
		c.waited = append(c.waited, l)
	}
	if !l.known {
		c.unknown++
	}
}

func byLine(w *Waiter, line uint64) int { return cmp.Compare(w.request.Line, line) }

// removeLocked takes w out of line.
func (c *Controller) removeLocked(w *Waiter) {
	l := w.line
	if w.flow == nil {
		i, _ := slices.BinarySearchFunc(l.kept, w.request.Line, byLine)
		for l.kept[i] != w {
			i++ // a number that was used twice
		}
		l.kept = slices.Delete(l.kept, i, i+1)
	} else {
		w.flow.drop(w)
	}
	l.needs.add(w.request.need(), -1)
	w.setAbsent(time.Time{})
	if !l.known {
		c.unknown--
	}
	if l.waiting--; l.waiting == 0 {
		c.emptiedLocked(l)
	}
	c.forgetLocked(w)
}

// forgetLocked ends the wait of w, which is in no line any more.
func (c *Controller) forgetLocked(w *Waiter) {
	if w.flow != nil {
		w.flow.principal.waiting--
	}
	w.line = nil
	if c.waiting--; c.waiting == 0 {
		c.fair.reset()
	}
}

// emptiedLocked takes a line that nobody waits for out of the list of those.
func (c *Controller) emptiedLocked(l *line) {
	last := c.waited[len(c.waited)-1]
	c.waited[l.at], last.at = last, l.at
	c.waited[len(c.waited)-1] = nil
	c.waited = c.waited[:len(c.waited)-1]
	if len(l.flows) > 0 {
		clear(l.flows)
	}
	l.clock = 0
	l.again.stop()
	if !l.known {
		delete(c.lines, l.name)
	}
}

// all returns who waits.
func (q *queue) all() []*Waiter {
	list := make([]*Waiter, 0, q.waiting)
	list = append(list, q.kept...)
	for _, f := range q.flows {
		list = append(list, f.waiters...)
	}
	return list
}

func (c *Controller) failLocked(w *Waiter, err error) {
	c.removeLocked(w)
	w.answer(nil, err)
}

func (c *Controller) failAllLocked(l *line, err error) {
	for _, w := range l.all() {
		c.failLocked(w, err)
	}
}

// grantLocked gives w a run of x.
func (c *Controller) grantLocked(w *Waiter, x *candidate, now time.Time) {
	l, f := w.line, w.flow
	l.interval.add(now.Sub(l.since))
	l.since = now
	if f != nil {
		c.fair.charge(f, &w.request, !w.ahead && !x.place.engine.oldestNext())
	}
	c.removeLocked(w)
	if f != nil {
		f.granted()
	}
	x.place.engine.grants++
	t := c.takeLocked(x, &w.request, Reason{Rule: "queue", Candidates: 1}, now)
	w.answer(t, nil)
}

// serveLocked gives the free places of p to those whose turn it is, and wakes nobody else.
func (c *Controller) serveLocked(p *place) {
	if len(c.waited) == 0 || !p.free() {
		return
	}
	for now := time.Now(); len(c.waited) > 0 && p.free(); {
		w, x := c.nextLocked(p)
		if w == nil {
			return
		}
		c.grantLocked(w, x, now)
	}
}

// nextLocked returns whose turn it is among those that p can serve, and as what p serves it. It walks the shorter of
// two lists: the lines that p is in, or those that somebody waits for.
func (c *Controller) nextLocked(p *place) (*Waiter, *candidate) {
	t := turn{ctl: c, place: p, oldest: p.engine.oldestNext()}
	if len(p.seats) <= len(c.waited) {
		for _, s := range p.seats {
			if s.line.waiting > 0 {
				t.consider(s)
			}
		}
	} else {
		for _, l := range c.waited {
			if s := p.seatOf[l]; s != nil {
				t.consider(s)
			}
		}
	}
	if t.kept != nil {
		return t.kept, t.keptAs
	}
	if t.first != nil {
		t.first.ahead = t.first.flow != t.flow.line.nextFlow(c.fair.floor())
		return t.first, t.flowAs
	}
	if t.flow != nil {
		if t.flowAs.id != 0 && !t.oldest && !t.flow.late {
			return c.affineWaiterLocked(t.flow, t.flowAs), t.flowAs
		}
		return t.flow.waiters[0], t.flowAs
	}
	return nil, nil
}

// oldestNext reports whether the next grant goes to who was served longest ago.
func (e *engine) oldestNext() bool { return e.grants%turnEvery == turnEvery-1 }

// turn is the search for whose turn it is at a place.
type turn struct {
	ctl            *Controller
	place          *place
	oldest         bool // this time it is who was served longest ago
	kept           *Waiter
	flow           *flow
	first          *Waiter // of flow, where the place can't run all that wait; else nil
	keptAs, flowAs *candidate
}

func (t *turn) consider(s *seat) {
	for _, w := range s.line.kept {
		if t.kept != nil && w.request.Line >= t.kept.request.Line {
			break
		}
		if x := t.serves(s, w.request.scope()); x != nil {
			t.kept, t.keptAs = w, x
			break
		}
	}
	if t.kept != nil || s.line.plain() == 0 {
		return
	}
	if !s.line.alike() {
		t.considerEach(s)
		return
	}
	f := t.of(s.line)
	x := t.serves(s, scope{need: f.waiters[0].request.need()})
	if x != nil && (t.flow == nil || t.before(f, t.flow)) {
		t.flow, t.flowAs, t.first = f, x, nil
	}
}

func (t *turn) of(l *line) *flow {
	if t.oldest {
		return l.turns.first
	}
	return l.nextFlow(t.ctl.fair.floor())
}

// before reports whether f goes before g, of another line.
func (t *turn) before(f, g *flow) bool {
	switch {
	case t.oldest:
		if f.turn != g.turn {
			return f.turn < g.turn
		}
	case f.late != g.late:
		return f.late
	case f.late:
		if f.principal.served != g.principal.served {
			return f.principal.served < g.principal.served
		}
	case f.key != g.key:
		return f.key < g.key
	}
	return f.waiters[0].request.Line < g.waiters[0].request.Line
}

// serves returns as what the place serves a line, nil if it can't now.
func (t *turn) serves(s *seat, who scope) *candidate {
	if !t.place.ability.serves(who.need) || slices.Contains(who.avoid, t.place.target) {
		return nil
	}
	var cut *candidate
	for _, x := range s.candidates {
		switch {
		case !x.service.admits():
			if cut == nil {
				cut = x
			}
		case t.ctl.opensLocked(x.group, who):
			return x
		}
	}
	if cut != nil && t.ctl.lastResortLocked(s.line, who) {
		return cut
	}
	return nil
}

// settleLocked gives the lines that lost something what is left for them: a later group, or ErrNoOther.
func (c *Controller) settleLocked() {
	for len(c.dirty) > 0 {
		l := c.dirty[len(c.dirty)-1]
		c.dirty = c.dirty[:len(c.dirty)-1]
		l.dirty = false
		c.serveKeptLocked(l)
		if err := l.notPermitted(); err != nil {
			c.failAllLocked(l, err)
		}
		c.refuseHopelessLocked(l)
		for l.plain() > 0 {
			now := time.Now()
			x := c.pickWaitingLocked(l, now)
			if x == nil {
				break
			}
			w, as := c.nextLocked(x.place)
			if w == nil {
				break
			}
			c.grantLocked(w, as, now)
		}
		c.refuseAbsentLocked(l, time.Now())
	}
}

// pickWaitingLocked picks a candidate for one of those who wait and were not in line before; nil if none of them has one.
func (c *Controller) pickWaitingLocked(l *line, now time.Time) *candidate {
	req := l.nextFlow(c.fair.floor()).waiters[0].request
	if x, _ := c.pickLocked(l, &req, now); x != nil || len(l.needs) == 1 {
		return x
	}
	for i := range l.needs {
		req.Op, req.Kinds = l.needs[i].value.op, l.needs[i].value.kinds
		x, _ := c.pickLocked(l, &req, now)
		if x != nil {
			return x
		}
	}
	return nil
}

// serveKeptLocked answers those who were in line before, and for whom something else is free or nothing else is left.
func (c *Controller) serveKeptLocked(l *line) {
	if len(l.kept) == 0 {
		return
	}
	now := time.Now()
	for _, w := range slices.Clone(l.kept) {
		if len(w.request.Avoid) > 0 && !c.hasOtherLocked(l, w.request.scope()) {
			c.failLocked(w, ErrNoOther)
		} else if x, _ := c.pickLocked(l, &w.request, now); x != nil {
			c.grantLocked(w, x, now)
		}
	}
}
