package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"iop/execution"
	"iop/state"
	"iop/tunnel"
)

// Authenticate lets a Node in by its join token; in managed mode by its certificate.
func (r *Registry) Authenticate(req *http.Request) (tunnel.Identity, error) {
	if r.identity != nil {
		return r.authenticateManaged(req)
	}
	values := req.Header["Authorization"]
	if len(values) == 0 {
		return tunnel.Identity{}, refuse("unauthorized", "a join token is required: send it as Authorization: Bearer")
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if len(values) > 1 || !ok || !strings.EqualFold(scheme, "Bearer") || token == "" || strings.ContainsAny(token, " ,\t") {
		return tunnel.Identity{}, refuse("unauthorized", "the Authorization header must be exactly one, of the form: Bearer TOKEN")
	}
	t, err := r.store.VerifyJoinToken(req.Context(), token)
	if err != nil {
		return tunnel.Identity{}, tokenRefusal(err, "", nil)
	}
	return tunnel.Identity{TokenID: string(t.ID), Proof: t, Allowance: allowance(t)}, nil
}

func refuse(code, message string) *tunnel.Refusal {
	return &tunnel.Refusal{Code: code, Message: message}
}

// tokenRefusal tells the Node's operator what is wrong with the token, and with the name that the Node asks for. Other errors
// pass through: they are ours. Before the Node has said its name, node is empty and t nil.
func tokenRefusal(err error, node execution.NodeID, t *state.JoinToken) error {
	switch {
	case errors.Is(err, state.ErrTokenUnknown):
		return refuse("unauthorized", "unknown join token: check it, or create one with `iop join-token create`")
	case errors.Is(err, state.ErrTokenExpired):
		return refuse("token_expired", "the join token has expired: create a new one with `iop join-token create`")
	case errors.Is(err, state.ErrTokenRevoked):
		return refuse("token_revoked", "an operator revoked the join token")
	case errors.Is(err, state.ErrNodeTaken):
		return refuse("node_taken", fmt.Sprintf("the node name %q belongs to another join token: choose another name, or revoke that token", node))
	case errors.Is(err, state.ErrNodeReserved):
		return reserved(node)
	case errors.Is(err, state.ErrTooManyNodes):
		return refuse(codeTokenLimit, "the join token has reached its limit of node names: use one of its names, or create another token, for example with a higher --max-nodes")
	case errors.Is(err, state.ErrWrongNode):
		bound := "another node name"
		if t != nil && t.Node != "" {
			bound = fmt.Sprintf("node %q", t.Node) // whoever presents the secret may know it
		}
		return refuse("wrong_node", fmt.Sprintf("the join token is for %s, not %q: set IOP_NODE_NAME (--name)", bound, node))
	}
	return err
}

// reserved is the refusal for a name that a join token is bound to, and another token asks for.
func reserved(node execution.NodeID) *tunnel.Refusal {
	return refuse("node_reserved", fmt.Sprintf("the node name %q is reserved: another join token is bound to it. Use that token, or choose another name", node))
}

// outranks reports whether the session's join token is bound to its name and the other's is not: the name is reserved
// for it, whoever had it first.
func outranks(s, other Session) bool { return boundTo(s) != "" && boundTo(other) == "" }

// boundTo is the name that the session's join token is bound to; empty: none, or managed mode.
func boundTo(s Session) execution.NodeID {
	if token := tokenOf(s); token != nil {
		return token.Node
	}
	return ""
}

// tokenOf is the join token that the session was opened with; nil in managed mode.
func tokenOf(s Session) *state.JoinToken {
	token, _ := s.Identity().Proof.(*state.JoinToken)
	return token
}

const (
	codeTokenLimit = "token_limit"
	// managedSessions bounds those of one certificate's holder, which has one name: the current one, a few that drain, and
	// those that are not ready yet.
	managedSessions = 32
)

// allowance is what the token lets its Nodes say of themselves.
func allowance(t *state.JoinToken) *tunnel.Allowance {
	a := &tunnel.Allowance{Account: "token " + string(t.ID), InventoryBytes: t.MaxInventoryBytes, Joining: int(t.MaxSessions), Models: int(t.MaxModels)}
	if len(t.Models) > 0 {
		a.Model = t.AllowsModel
	}
	return a
}

// checkLabels refuses a Node with a label that its token does not allow: routes choose Nodes by them.
func checkLabels(token *state.JoinToken, node execution.NodeID, labels map[string]string) error {
	if token == nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if !token.AllowsLabel(key, labels[key]) {
			return refuse("label_not_allowed", fmt.Sprintf("the join token does not allow node %q the label %s=%s: its Nodes may have %s", node, key, labels[key], strings.Join(token.Labels, ", ")))
		}
	}
	return nil
}

// Register gives a session its generation. While a session of another process of the same name is connected, it is
// asked for a sign of life first.
func (r *Registry) Register(ctx context.Context, ns *tunnel.NodeSession) (execution.Generation, error) {
	return r.register(ctx, local{ns})
}

func (r *Registry) register(ctx context.Context, s Session) (execution.Generation, error) {
	if err := s.Node().Validate(); err != nil {
		return 0, refuse("bad_request", err.Error())
	}
	managed, err := r.claim(ctx, s)
	if err != nil {
		return 0, err
	}
	dead, err := r.contest(ctx, s)
	if err != nil {
		return 0, err
	}
	gen, err := r.store.NextGeneration(ctx, s.Node(), s.HighestSeen())
	if err != nil {
		return 0, err
	}
	if err := r.enter(&session{s: s, gen: gen, dead: dead, managed: managed}); err != nil {
		return 0, err
	}
	if managed == nil {
		return gen, nil
	}
	// Verify looks at sessions that are there: what changed before this one was is found here.
	r.lists.Lock()
	defer r.lists.Unlock()
	allow, err := r.trusted(ctx, managed)
	if err != nil {
		r.forget(s.Node(), gen)
		return 0, err
	}
	r.permit(managed, allow)
	return gen, nil
}

// claim gives the session the name that it asks for: its join token's, or its certificate's.
func (r *Registry) claim(ctx context.Context, s Session) (*credentials, error) {
	if r.identity != nil {
		return r.introduce(ctx, s)
	}
	token := tokenOf(s)
	if err := checkLabels(token, s.Node(), s.Info().Labels); err != nil {
		return nil, err
	}
	ctx = state.WithActor(ctx, state.Actor{Name: state.ActorNode, Source: state.SourceOf(s.RemoteAddr())})
	if err := r.store.ClaimNode(ctx, state.JoinTokenID(s.Identity().TokenID), s.Node()); err != nil {
		return nil, tokenRefusal(err, s.Node(), token)
	}
	return nil, nil
}

// enter adds the session, unless its join token or certificate has as many as it may.
func (r *Registry) enter(e *session) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.roomLocked(e.s.Identity()); err != nil {
		return err
	}
	r.nodeLocked(e.s.Node()).sessions[e.gen] = e
	return nil
}

// roomLocked returns a *tunnel.Refusal if the join token or certificate has as many sessions as it may.
func (r *Registry) roomLocked(id tunnel.Identity) error {
	most := int64(managedSessions)
	if token, _ := id.Proof.(*state.JoinToken); token != nil {
		most = token.MaxSessions
	}
	if most > 0 && r.sessionsLocked(id) >= most {
		return refuse(codeTokenLimit, fmt.Sprintf("this join token or identity has reached its limit of %d sessions: end some, or create a token with a higher --max-sessions", most))
	}
	return nil
}

// sessionsLocked counts the sessions of one join token or certificate's holder.
func (r *Registry) sessionsLocked(of tunnel.Identity) (count int64) {
	for _, n := range r.nodes {
		for _, e := range n.sessions {
			if id := e.s.Identity(); id.TokenID == of.TokenID && id.Peer == of.Peer {
				count++
			}
		}
	}
	return count
}

// forget takes back enter.
func (r *Registry) forget(node execution.NodeID, gen execution.Generation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes[node].sessions, gen)
}

// Ready makes the session the Node's current one. The former drains if the newcomer says that it replaces it in the
// same process; otherwise it is fenced.
func (r *Registry) Ready(ns *tunnel.NodeSession) error { return r.readied(ns.Node(), ns.Generation()) }

func (r *Registry) readied(id execution.NodeID, gen execution.Generation) error {
	r.mu.Lock()
	n := r.nodes[id]
	if n == nil || n.sessions[gen] == nil {
		r.mu.Unlock()
		return refuse("stale_generation", "this session is not registered")
	}
	if gen < n.ready {
		r.mu.Unlock()
		return refuse("stale_generation", fmt.Sprintf("generation %d of this node is already ready, this is %d", n.ready, gen))
	}
	e := n.sessions[gen]
	former := n.current
	if former != nil && n.defendsLocked(former, e) {
		refusal := r.contestedLocked(n, former, e.s)
		r.mu.Unlock()
		return refusal
	}
	n.current, n.ready = e, gen
	var end func()
	if former != nil {
		end = n.endOfLocked(former, e)
		former.draining = true
	}
	if n.drained != e.s.BootID() {
		n.drained = "" // the operator drained a process that is no more
	}
	r.mu.Unlock()
	if former != nil {
		r.adm.Withdraw(id, former.gen)
		end()
	}
	return nil
}

// Online lets runs be dispatched to the session.
func (r *Registry) Online(ns *tunnel.NodeSession) { r.online(ns.Node(), ns.Generation()) }

// online makes the session online and tells admission in one step: a Node that is seen to be online gets runs.
func (r *Registry) online(id execution.NodeID, gen execution.Generation) {
	r.mu.Lock()
	if n := r.nodes[id]; n != nil && n.sessions[gen] != nil {
		n.sessions[gen].online = true
		r.noteLocked(n)
		r.offerLocked(id, gen)
	}
	r.mu.Unlock()
	r.log.Info("node online", "node", id, "generation", gen)
}

// Refreshed takes over what the Node says of itself now.
func (r *Registry) Refreshed(ns *tunnel.NodeSession) { r.offer(ns.Node(), ns.Generation()) }

// offer tells admission what a session serves, if it serves at all. The lock is held throughout, so that the last word
// told is the last word said.
func (r *Registry) offer(id execution.NodeID, gen execution.Generation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offerLocked(id, gen)
}

func (r *Registry) offerLocked(id execution.NodeID, gen execution.Generation) {
	n := r.nodes[id]
	if n == nil {
		return
	}
	e := n.sessions[gen]
	if e == nil || !e.online || e.draining || n.current != e {
		return
	}
	info := e.s.Info()
	r.adm.Offer(id, gen, e.s.Replaces(), info.Labels, offers(info, n.drained != "", e.managed.slots()))
	r.noteModelsLocked(n, info.Models)
	r.changed()
}

// Draining keeps new runs away from the session.
func (r *Registry) Draining(ns *tunnel.NodeSession) { r.draining(ns.Node(), ns.Generation()) }

func (r *Registry) draining(id execution.NodeID, gen execution.Generation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[id]; n != nil && n.sessions[gen] != nil {
		n.sessions[gen].draining = true
	}
	r.adm.Withdraw(id, gen)
	r.changed()
}

// Gone forgets the session.
func (r *Registry) Gone(ns *tunnel.NodeSession, cause error) {
	r.gone(ns.Node(), ns.Generation(), cause)
}

func (r *Registry) gone(id execution.NodeID, gen execution.Generation, cause error) {
	r.adm.Remove(id, gen)
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[id]
	if n == nil {
		return
	}
	e := n.sessions[gen]
	delete(n.sessions, gen)
	if n.current != nil && n.current == e {
		n.current = nil
	}
	n.lastSeen = time.Now()
	n.lastCause = ""
	if cause != nil {
		n.lastCause = cause.Error()
	}
	if e != nil {
		if len(n.ended) == maxEndedSessions {
			n.ended = slices.Delete(n.ended, 0, 1)
		}
		if e.online {
			r.noteLocked(n)
		}
		n.ended = append(n.ended, EndedSession{Generation: gen, Remote: e.s.RemoteAddr(), Since: e.s.Since(), Until: n.lastSeen, Cause: n.lastCause})
	}
	r.changed()
	r.log.Info("node session ended", "node", id, "generation", gen, "cause", n.lastCause)
}

// nodeLocked returns the entry of a Node, made if needed. Beyond maxOfflineNodes the one that has been offline for longest makes room.
func (r *Registry) nodeLocked(id execution.NodeID) *node {
	n := r.nodes[id]
	if n != nil {
		return n
	}
	if len(r.nodes) >= maxOfflineNodes {
		r.evictLocked()
	}
	n = &node{id: id, sessions: map[execution.Generation]*session{}, lastSeen: time.Now()}
	r.nodes[id] = n
	return n
}
