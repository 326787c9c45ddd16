package admission

// Wanted returns how many requests wait that would run at the target if one of its runs ended: 0 where it has room, takes no
// runs, or nobody waits for what it serves. A session that was replaced stands for its successor, whose places its runs take.
func (c *Controller) Wanted(t Target) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waited) == 0 {
		return 0
	}
	p := c.placeLocked(t)
	if p != nil {
		p = p.engine.place
	}
	if p == nil || !p.selectable || p.engine.rest.resting || p.engine.inFlight < p.capacity {
		return 0
	}
	n, at := 0, turn{ctl: c, place: p}
	for _, s := range p.seats {
		for _, waiting := range s.line.needs {
			if at.serves(s, scope{need: waiting.value}) != nil {
				n += waiting.n
			}
		}
	}
	return n
}
