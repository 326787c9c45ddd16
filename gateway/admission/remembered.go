package admission

import (
	"slices"

	"iop/execution"
)

// maxRemembered bounds the names of models that no Node offers any more. What is forgotten answers as unknown.
const maxRemembered = 16384

// remembered are the lines of advertised models without a candidate, by the Node that offered each last. The zero value is
// empty. The Controller guards it.
type remembered struct {
	of    map[execution.NodeID][]*line
	count int
}

// memory is where remembered has a line.
type memory struct {
	node execution.NodeID
	at   int
}

// add takes a line in. Beyond maxRemembered it returns one to forget, nil if each is waited for: one of the Node with most of
// them, so that a Node with ever new names doesn't have the others' models forgotten.
func (r *remembered) add(l *line, node execution.NodeID) (forget *line) {
	if r.of == nil {
		r.of = map[execution.NodeID][]*line{}
	}
	l.memory = memory{node, len(r.of[node])}
	r.of[node] = append(r.of[node], l)
	if r.count++; r.count <= maxRemembered {
		return nil
	}
	most := node
	for n, lines := range r.of {
		if len(lines) > len(r.of[most]) {
			most = n
		}
	}
	for _, l := range r.of[most] {
		if l.waiting == 0 {
			r.remove(l)
			return l
		}
	}
	return nil
}

// remove takes a line out that add took in.
func (r *remembered) remove(l *line) {
	lines := r.of[l.memory.node]
	last := lines[len(lines)-1]
	lines[l.memory.at], last.memory.at = last, l.memory.at
	lines[len(lines)-1] = nil
	if lines = lines[:len(lines)-1]; len(lines) == 0 {
		delete(r.of, l.memory.node)
	} else {
		r.of[l.memory.node] = lines
	}
	r.count--
}

// rememberLineLocked keeps the line of an advertised model that has no candidates, of which node was the last one.
func (c *Controller) rememberLineLocked(l *line, node execution.NodeID) {
	if old := c.idle.add(l, node); old != nil {
		delete(c.lines, old.name)
	}
}

// Forget makes the models unknown that a Node which is away offered last, but for those that are waited for.
func (c *Controller) Forget(node execution.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range slices.Clone(c.idle.of[node]) {
		if l.waiting == 0 {
			c.idle.remove(l)
			delete(c.lines, l.name)
		}
	}
}

// Remember says which models a Node offered before this process began: who asks for one that is advertised waits for it, as for
// those of a Node that went away. What the Controller knows already stays.
func (c *Controller) Remember(node execution.NodeID, models []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range models {
		r := c.table.Resolve(m)
		if r == nil || !r.Advertised || c.lines[r.Name] != nil {
			continue
		}
		l := c.newLineLocked(r)
		l.known = true
		c.rememberLineLocked(l, node)
	}
}
