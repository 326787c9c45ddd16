package admission

import (
	"slices"
	"time"
)

// Waiter is a request in the queue of its model. Exactly one of two things ends it: Ready is closed and Result tells
// what became of it, or Leave took it out.
type Waiter struct {
	ctl     *Controller
	model   *model
	request Request
	since   time.Time
	ready   chan struct{} // closed by the Controller, with the answer set before

	// Guarded by Controller.mu until ready is closed.
	prev, next *Waiter
	queued     bool
	ticket     *Ticket
	err        error
}

// Ready is closed when Result has an answer.
func (w *Waiter) Ready() <-chan struct{} { return w.ready }

// Result returns the ticket or the error. It may be called once Ready is closed.
func (w *Waiter) Result() (*Ticket, error) { return w.ticket, w.err }

// Place returns the place in line, 1 for the next, and how long it may take; 0: unknown.
func (w *Waiter) Place() (position int, estimate time.Duration) {
	w.ctl.mu.Lock()
	defer w.ctl.mu.Unlock()
	for v := w; v != nil && w.queued; v = v.prev {
		position++
	}
	return position, 0
}

// Leave takes the request out of the queue; a ticket that it was given meanwhile is released.
func (w *Waiter) Leave() {
	w.ctl.mu.Lock()
	if w.queued {
		w.ctl.removeLocked(w)
	}
	t := w.ticket
	w.ctl.mu.Unlock()
	if t != nil {
		t.Release()
	}
}

// enqueueLocked puts the request in line for its model, which may be unknown (m nil).
func (c *Controller) enqueueLocked(m *model, req Request) (*Waiter, error) {
	switch {
	case m != nil && m.waiting >= c.queueLimit:
		return nil, &QueueFullError{RetryAfter: headWait(m)}
	case m == nil || !m.known:
		if c.settled {
			return nil, ErrUnknownModel
		}
		// Names that no Node vouches for come from clients: together they may take no more than one queue.
		if c.unknown >= c.queueLimit {
			return nil, &QueueFullError{RetryAfter: time.Second}
		}
	}
	if m == nil {
		m = c.modelLocked(req.Route.Name)
	}
	w := &Waiter{ctl: c, model: m, request: req, since: time.Now(), ready: make(chan struct{}), queued: true}
	m.insert(w)
	c.waiting++
	if !m.known {
		c.unknown++
	}
	c.waited[m] = struct{}{}
	return w, nil
}

func headWait(m *model) time.Duration {
	return min(max(time.Since(m.head.since).Round(time.Second), time.Second), time.Minute)
}

// insert puts w in line. New requests go to the end; one that was in line before goes where it belongs.
func (m *model) insert(w *Waiter) {
	after := m.tail
	for after != nil && after.request.Line > w.request.Line {
		after = after.prev
	}
	w.prev = after
	if after == nil {
		w.next, m.head = m.head, w
	} else {
		w.next, after.next = after.next, w
	}
	if w.next == nil {
		m.tail = w
	} else {
		w.next.prev = w
	}
	m.waiting++
	if len(w.request.Avoid) > 0 {
		m.picky++
	}
}

// removeLocked takes w out of line.
func (c *Controller) removeLocked(w *Waiter) {
	m := w.model
	w.queued = false
	if w.prev == nil {
		m.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		m.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	m.waiting--
	c.waiting--
	if len(w.request.Avoid) > 0 {
		m.picky--
	}
	if !m.known {
		c.unknown--
	}
	if m.waiting == 0 {
		delete(c.waited, m)
		if !m.known {
			delete(c.models, m.name)
		}
	}
}

func (c *Controller) grantLocked(w *Waiter, t *Ticket) {
	c.removeLocked(w)
	w.ticket = t
	close(w.ready)
}

func (c *Controller) failLocked(w *Waiter, err error) {
	c.removeLocked(w)
	w.err = err
	close(w.ready)
}

// serveLocked gives p's free places to those who wait longest for one of its models, and wakes nobody else.
func (c *Controller) serveLocked(p *place) {
	for len(c.waited) > 0 && p.free() {
		w := c.oldestLocked(p)
		if w == nil {
			return
		}
		c.grantLocked(w, c.takeLocked(p, w.model, w.request.Line, "queue", 1))
	}
}

// oldestLocked returns the first in line among the waiters that p can serve, or nil. It walks the shorter of two
// lists: the models that p serves, or those that somebody waits for.
func (c *Controller) oldestLocked(p *place) *Waiter {
	var oldest *Waiter
	consider := func(m *model) {
		if w := m.first(p.target); w != nil && (oldest == nil || w.request.Line < oldest.request.Line) {
			oldest = w
		}
	}
	if len(p.models) <= len(c.waited) {
		for _, m := range p.models {
			consider(m)
		}
		return oldest
	}
	for m := range c.waited {
		if m.servedBy(p) {
			consider(m)
		}
	}
	return oldest
}

// first returns the first waiter that does not avoid target, or nil.
func (m *model) first(target Target) *Waiter {
	for w := m.head; w != nil; w = w.next {
		if !slices.Contains(w.request.Avoid, target) {
			return w
		}
	}
	return nil
}

func (m *model) servedBy(p *place) bool {
	for _, q := range m.targets {
		if p == q {
			return true
		}
	}
	return false
}

// recheckLocked answers those who avoid a target and for whom nothing else is left.
func (c *Controller) recheckLocked(m *model) {
	if m.picky == 0 {
		return
	}
	for w := m.head; w != nil; {
		next := w.next
		if len(w.request.Avoid) > 0 && !m.hasOther(w.request.Avoid) {
			c.failLocked(w, ErrNoOther)
		}
		w = next
	}
}

// settleLocked starts the time after which unknown models are refused; called when a Node comes online.
func (c *Controller) settleLocked() {
	if c.timer != nil || c.settled || c.closed {
		return
	}
	if c.settle < 0 {
		c.refuseUnknownLocked()
		return
	}
	c.timer = time.AfterFunc(c.settle, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refuseUnknownLocked()
	})
}

func (c *Controller) refuseUnknownLocked() {
	c.settled = true
	for m := range c.waited {
		if m.known {
			continue
		}
		for m.head != nil {
			c.failLocked(m.head, ErrUnknownModel)
		}
	}
}

// Close answers everyone who waits, and every later Acquire, with ErrClosed. Tickets stay valid.
func (c *Controller) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	for m := range c.waited {
		for m.head != nil {
			c.failLocked(m.head, ErrClosed)
		}
	}
	for _, s := range c.sessions {
		for _, p := range s.places {
			c.unblockLocked(p)
		}
	}
}
