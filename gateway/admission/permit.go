package admission

import (
	"fmt"
	"slices"

	"iop/execution"
	"iop/gateway/route"
	"iop/state"
)

// Permission is what a Node may have, be it connected or not.
type Permission struct {
	Node  execution.NodeID
	Slots []string // patterns
}

// Permit says what all Nodes may have that may connect, in place of what was said before. It tells a route whose Node is
// away, and for which a request waits, from one that no Node may serve, which is refused; before it was called all wait.
// What a Node that is connected gets depends on its Offer alone. Nothing that is passed is kept.
func (c *Controller) Permit(list []Permission) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.permits, c.listed = true, make([]Permission, 0, len(list))
	for _, p := range list {
		c.listed = append(c.listed, Permission{p.Node, slices.Clone(p.Slots)})
	}
	for _, l := range c.lines {
		if len(l.barred) > 0 {
			l.awaited = c.awaitsLocked(l)
			c.soilLocked(l)
		}
	}
	c.settleLocked()
}

// NotPermittedError says that what serves the route may not have the slot that its target names, and that no other Node
// may which could come.
type NotPermittedError struct {
	Target Target        // one that is connected
	Spec   *route.Target // that would have selected it; not to be changed
}

func (e *NotPermittedError) Error() string {
	return fmt.Sprintf("no node that could serve this request may use the slot %q", e.Spec.Slot)
}

// bars are the places that would serve a line if they might have a slot.
type bars struct {
	barred  map[*place]*route.Target // with a target that would have selected it
	awaited bool                     // a Node may come that could serve the line; valid while any place is barred
}

// barLocked notes that only the slot of the target keeps p out of the target's line.
func (c *Controller) barLocked(ref targetRef, p *place) {
	l := ref.group.line
	if l.barred[p] != nil {
		return
	}
	if len(l.barred) == 0 {
		l.barred, l.awaited = map[*place]*route.Target{}, c.awaitsLocked(l)
	}
	l.barred[p] = ref.target
	p.barred = append(p.barred, l)
	c.soilLocked(l)
}

// unbar takes back barLocked, for every line.
func (p *place) unbar() {
	for _, l := range p.barred {
		delete(l.barred, p)
	}
	p.barred = nil
}

// awaitsLocked reports whether a Node may come that could serve the line: one that may have the slot of a target and has the
// name for it, or any where a target has no slot.
func (c *Controller) awaitsLocked(l *line) bool {
	if !c.permits {
		return true
	}
	for _, g := range l.route.Groups {
		for i := range g.Targets {
			t := &g.Targets[i]
			if t.Slot == "" || slices.ContainsFunc(c.listed, func(p Permission) bool { return p.mayServe(t) }) {
				return true
			}
		}
	}
	return false
}

func (p *Permission) mayServe(t *route.Target) bool {
	return (t.Node == "" || state.MatchGlob(t.Node, string(p.Node))) && t.PermittedTo(p.Slots)
}

// notPermitted returns why nobody should wait for the line, a *NotPermittedError, or nil.
func (l *line) notPermitted() error {
	if l.candidates > 0 || l.awaited {
		return nil
	}
	for p, spec := range l.barred {
		return &NotPermittedError{Target: p.target, Spec: spec}
	}
	return nil
}
