package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/identity"
	"iop/lease"
	"iop/state"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// listCheck bounds one look at the lists of Nodes.
const listCheck = 5 * time.Second

// credentials are what a session may get leases by: managed mode. Static but for allow, which Registry.mu guards.
type credentials struct {
	peer      *identity.Peer
	serial    state.CertificateSerial
	recipient *lease.RecipientPublic
	allow     state.NodeAllow // as it was read last
}

// slots are patterns of those that the Node may have; nil in token mode. Registry.mu is held.
func (c *credentials) slots() []string {
	if c == nil {
		return nil
	}
	return c.allow.Slots
}

// authenticateManaged lets a Node in by its certificate, if the lists of Nodes do. The handshake has verified the
// certificate; the lists are asked here and not there because here the Node can be told what is wrong.
func (r *Registry) authenticateManaged(req *http.Request) (tunnel.Identity, error) {
	if len(req.Header["Authorization"]) > 0 {
		return tunnel.Identity{}, refuse("unauthorized", "this Edge runs in managed mode: Nodes need a certificate, and join tokens are not accepted")
	}
	peer, err := identity.NodePeer(req.TLS, r.identity)
	if err != nil {
		r.log.Warn("refused a Node's certificate", "remote", req.RemoteAddr, "error", err)
		return tunnel.Identity{}, refuse("unauthorized", "the Node's certificate is not accepted here")
	}
	serial := state.SerialOf(peer.Leaf.SerialNumber)
	if _, err := r.store.NodeAllowed(req.Context(), nodeOf(peer), serial); err != nil {
		return tunnel.Identity{}, listRefusal(err, peer)
	}
	return tunnel.Identity{Peer: peer.ID.String(), Serial: string(serial), NotAfter: peer.NotAfter(), Proof: peer, Allowance: &tunnel.Allowance{Account: "peer " + peer.ID.String(), Joining: managedSessions}}, nil
}

// nodeOf is the one name that a certificate entitles to.
func nodeOf(peer *identity.Peer) execution.NodeID { return execution.NodeID(peer.ID.Name()) }

// listRefusal tells a Node that its certificate is good and the lists say no. Other errors pass through: they are ours.
func listRefusal(err error, peer *identity.Peer) error {
	switch {
	case errors.Is(err, state.ErrNodeDenied):
		return refuse("identity_revoked", "this node or its certificate is on the deny-list")
	case errors.Is(err, state.ErrNodeNotAllowed):
		return refuse("unauthorized", fmt.Sprintf("the node %q is not on the allow-list: an operator can add it with `iop node-list allow`", peer.ID.Name()))
	}
	return err
}

// introduce checks who a session says it is against what its certificate proves, and takes its recipient key.
func (r *Registry) introduce(ctx context.Context, s Session) (*credentials, error) {
	id := s.Identity()
	peer, ok := id.Proof.(*identity.Peer)
	if !ok {
		return nil, errors.New("registry: a session without a verified certificate")
	}
	if s.Node() != nodeOf(peer) {
		return nil, wrongCertificate(peer, s.Node())
	}
	if len(s.Recipient()) == 0 {
		return nil, refuse("bad_request", "a Node in managed mode must provide a key that leases are sealed to")
	}
	recipient, err := lease.ParseRecipient(s.Recipient())
	if err != nil {
		return nil, refuse("bad_request", err.Error())
	}
	c := &credentials{peer: peer, serial: state.CertificateSerial(id.Serial), recipient: recipient}
	c.allow, err = r.trusted(ctx, c)
	return c, err
}

// trusted says what a Node may have: its certificate is good now, and so say the lists. A *tunnel.Refusal says why not;
// any other error that it could not be found out.
func (r *Registry) trusted(ctx context.Context, c *credentials) (state.NodeAllow, error) {
	if err := c.peer.StillTrusted(r.identity, time.Now()); err != nil {
		return state.NodeAllow{}, untrusted(err)
	}
	allow, err := r.store.NodeAllowed(ctx, nodeOf(c.peer), c.serial)
	if err != nil {
		return state.NodeAllow{}, listRefusal(err, c.peer)
	}
	return allow, nil
}

// untrusted is the refusal for a certificate that is not good any more. While this side has no identity itself nothing
// is known of others: that is an error of ours, and no lease is issued.
func untrusted(err error) error {
	refused, ok := errors.AsType[*identity.RefusedError](err)
	switch {
	case !ok, refused.Reason == identity.NoIdentity:
		return err
	case refused.Reason == identity.Expired:
		return refuse("identity_expired", "the Node's certificate has expired")
	}
	return refuse("identity_revoked", "the Node's certificate is no longer trusted: its authority was removed from the bundle")
}

// HandshakeRefusal is the refusal of a certificate that failed the TLS handshake. Only the operator sees it: at that point a Node
// can't be told.
func HandshakeRefusal(err *identity.RefusedError) *tunnel.Refusal {
	if err.Reason == identity.Expired {
		return refuse("identity_expired", err.Error())
	}
	return refuse("certificate_refused", err.Error())
}

// Verify looks at every session again, after a change of the Edge's bundle or of the lists of Nodes, and now and then
// because another process may have changed the lists. Who may not stay is told so and closed; the number is returned. What
// the others may have is offered to admission anew, if it has changed. An error is of what could not be found out: such a
// session stays, and gets no lease meanwhile.
func (r *Registry) Verify(ctx context.Context) (ended int, err error) {
	if r.identity == nil {
		return 0, nil
	}
	r.lists.Lock()
	defer r.lists.Unlock()
	for _, e := range r.managedSessions() {
		look, cancel := context.WithTimeout(ctx, listCheck)
		allow, fault := r.trusted(look, e.managed)
		cancel()
		refusal, refused := errors.AsType[*tunnel.Refusal](fault)
		switch {
		case refused:
			ended++
			r.expel(e, refusal)
		case fault != nil:
			err = errors.Join(err, fmt.Errorf("node %q: %w", e.s.Node(), fault))
		default:
			if r.permit(e.managed, allow) {
				r.offer(e.s.Node(), e.gen)
			}
			// The chain may have become another one, with another end.
			e.s.EndAt(e.managed.peer.NotAfter(), refuse("identity_expired", "the Node's certificate has expired"))
		}
	}
	return ended, errors.Join(err, r.tellPermissions(ctx))
}

// permit notes what a Node may have, and reports whether these are other slots than before.
func (r *Registry) permit(c *credentials, allow state.NodeAllow) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = !slices.Equal(c.allow.Slots, allow.Slots)
	c.allow = allow
	return changed
}

// tellPermissions tells admission what the Nodes may have that may connect.
func (r *Registry) tellPermissions(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listCheck)
	defer cancel()
	allows, err := r.store.NodeAllows(ctx)
	if err != nil {
		return fmt.Errorf("read the allow-list: %w", err)
	}
	denials, err := r.store.Denials(ctx)
	if err != nil {
		return fmt.Errorf("read the deny-list: %w", err)
	}
	denied := map[execution.NodeID]bool{}
	for _, d := range denials {
		denied[d.Node] = true
	}
	permissions := make([]admission.Permission, 0, len(allows))
	for _, a := range allows {
		if !denied[a.Node] {
			permissions = append(permissions, admission.Permission{Node: a.Node, Slots: a.Slots})
		}
	}
	r.adm.Permit(permissions)
	return nil
}

func (r *Registry) managedSessions() (list []*session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.nodes {
		for _, e := range n.sessions {
			if e.managed != nil {
				list = append(list, e)
			}
		}
	}
	return list
}

// expel closes a session that is not trusted any more.
func (r *Registry) expel(e *session, refusal *tunnel.Refusal) {
	r.mu.Lock()
	e.draining = true
	r.mu.Unlock()
	r.adm.Withdraw(e.s.Node(), e.gen)
	r.log.Warn("a node is no longer trusted", "node", e.s.Node(), "generation", e.gen, "code", refusal.Code, "message", refusal.Message)
	e.s.Refuse(refusal)
	r.changed()
}

// Renew asks every session that takes runs for a successor, and lets it finish what it has. pause is called before each;
// false ends it.
func (r *Registry) Renew(reason string, pause func() bool) {
	for _, e := range r.managedSessions() {
		if !pause() {
			return
		}
		r.mu.Lock()
		skip := e.draining || !e.online
		e.draining = true
		r.mu.Unlock()
		if skip {
			continue // the next one shows what the Edge shows now
		}
		r.adm.Withdraw(e.s.Node(), e.gen)
		r.changed()
		e.s.Drain(reason, 0, 0, replacedDeadline)
	}
}

// Holder is who a lease of a run is issued to, as the registry knows it.
type Holder struct {
	Peer      *identity.Peer
	Serial    state.CertificateSerial
	Recipient *lease.RecipientPublic
}

// Holder returns who is at the other end of a session. ErrGone if this generation has ended: what is under way on one
// that drains still gets its leases.
func (r *Registry) Holder(node execution.NodeID, gen execution.Generation) (Holder, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[node]
	if n == nil || n.sessions[gen] == nil || n.sessions[gen].managed == nil {
		return Holder{}, ErrGone
	}
	m := n.sessions[gen].managed
	return Holder{Peer: m.peer, Serial: m.serial, Recipient: m.recipient}, nil
}

// Permits returns what may be leased to a Node, as it was found out last.
func (r *Registry) Permits(node execution.NodeID) (state.NodeAllow, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[node]
	if n == nil {
		return state.NodeAllow{}, false
	}
	var latest *session
	for _, e := range n.sessions {
		if e.managed != nil && (latest == nil || e.gen > latest.gen) {
			latest = e
		}
	}
	if latest == nil {
		return state.NodeAllow{}, false
	}
	return latest.managed.allow, true
}

// Revoke withdraws leases from a session and waits for its acknowledgement. ErrGone if the session has ended.
func (r *Registry) Revoke(ctx context.Context, node execution.NodeID, gen execution.Generation, what *wire.Revoke) error {
	s := r.session(node, gen)
	if s == nil {
		return ErrGone
	}
	return s.Revoke(ctx, what)
}

// Refresh tells every session what it works by, and returns when all of them have taken it over or ctx ends.
func (r *Registry) Refresh(ctx context.Context) {
	var wg sync.WaitGroup
	for _, e := range r.managedSessions() {
		wg.Go(func() {
			if err := e.s.Refresh(ctx); err != nil && !errors.Is(err, tunnel.ErrSessionClosed) {
				r.log.Warn("a node was notified of a change and has not acknowledged it", "node", e.s.Node(), "generation", e.gen, "error", err)
			}
		})
	}
	wg.Wait()
}
