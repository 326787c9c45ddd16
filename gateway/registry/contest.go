package registry

import (
	"context"
	"fmt"
	"time"

	"iop/execution"
	"iop/tunnel"
)

// codeContested is the NOTICE to a Node that keeps its name from another process.
const codeContested = "name_contested"

// Two processes of one name. A Node that crashed or was replaced must come back at once, and two that run at the same
// time must not take the name, and the runs with it, from each other: the one that has runs keeps it, and once both have
// asked for it, the one that has it keeps it for as long as the other goes on asking.

// contest refuses a session that asks for the name of another process's session that keeps it. It returns that session if
// it is there and gave no sign of life.
func (r *Registry) contest(ctx context.Context, s Session) (dead *session, err error) {
	r.mu.Lock()
	n := r.nodes[s.Node()]
	var incumbent *session
	if n != nil {
		incumbent = n.current
	}
	r.mu.Unlock()
	if incumbent == nil || incumbent.s.BootID() == s.BootID() || outranks(s, incumbent.s) {
		return nil, nil
	}
	probe, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	if incumbent.s.Probe(probe) != nil {
		return incumbent, ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n.current == incumbent && n.defendsLocked(incumbent, &session{s: s}) {
		return nil, r.contestedLocked(n, incumbent, s)
	}
	return nil, nil
}

// defendsLocked reports whether the session that has the name keeps it from e.
func (n *node) defendsLocked(incumbent, e *session) bool {
	switch {
	case incumbent.s.BootID() == e.s.BootID(), outranks(e.s, incumbent.s):
		return false
	case incumbent.draining, incumbent == e.dead:
		return false
	}
	return time.Now().Before(n.contested) || incumbent.s.OpenRuns() > 0
}

// contestedLocked is the refusal of a session that asked for the name of a living one. Both are told.
func (r *Registry) contestedLocked(n *node, incumbent *session, s Session) *tunnel.Refusal {
	now := time.Now()
	n.contested, n.flapping, n.contender = now.Add(flapWindow), now.Add(flapWindow), s.RemoteAddr()
	r.flapped.Add(1)
	runs := incumbent.s.OpenRuns()
	r.log.Warn("two processes use the same node name", "node", n.id, "remote", s.RemoteAddr(), "incumbent", incumbent.s.RemoteAddr(), "runs", runs)
	if now.Sub(n.notified) >= flapWindow {
		n.notified = now
		incumbent.s.Notify(codeContested, fmt.Sprintf("another process with the node name %q, at %s, was refused because this one uses the name: give each Node its own name", n.id, s.RemoteAddr()))
	}
	return &tunnel.Refusal{
		Code:       "flapping",
		Message:    fmt.Sprintf("another process with the node name %q is connected from %s and keeps the name (it has %d runs): give each Node its own name, or stop the other process", n.id, incumbent.s.RemoteAddr(), runs),
		RetryAfter: flapRetryAfter,
	}
}

// endOfLocked returns how the session that had the name ends now that e has it; to be called without the lock.
func (n *node) endOfLocked(former, e *session) func() {
	rivals := former.s.BootID() != e.s.BootID()
	switch {
	case outranks(e.s, former.s):
		return func() { former.s.Refuse(reserved(former.s.Node())) }
	case !rivals && e.s.Replaces() == former.gen, rivals && former.draining:
		return func() { former.s.Supersede(replacedDeadline) }
	case !rivals, former == e.dead:
		return func() { former.s.Fence(execution.CodeSessionSuperseded, "a newer session of this node took over") }
	}
	n.contested = time.Now().Add(flapWindow)
	// A run may have begun since it was found idle.
	message := fmt.Sprintf("another process with this node name, at %s, took over while this one had no runs: give each Node its own name", e.s.RemoteAddr())
	return func() { former.s.Yield(replacedDeadline, message) }
}
