package registry

import (
	"context"
	"errors"
	"fmt"

	"iop/execution"
	"iop/identity"
	"iop/state"
	"iop/tunnel"
)

// Try reports whether a Node that proved id would be registered with the name and labels of t: nil, a *tunnel.Refusal, or an error of
// ours. It changes nothing, and a Node of that name that is connected is not disturbed; whether its process would keep the name
// is not examined.
func (r *Registry) Try(ctx context.Context, id tunnel.Identity, t tunnel.Trial) error {
	if r.identity != nil {
		return r.tryManaged(ctx, id, t.Node)
	}
	token, ok := id.Proof.(*state.JoinToken)
	if !ok {
		return errors.New("registry: a trial without a verified join token")
	}
	if err := checkLabels(token, t.Node, t.Labels); err != nil {
		return err
	}
	if err := r.store.TryNode(ctx, token.ID, t.Node); err != nil {
		return tokenRefusal(err, t.Node, token)
	}
	return r.tryRoom(id, t.Node)
}

func (r *Registry) tryManaged(ctx context.Context, id tunnel.Identity, node execution.NodeID) error {
	peer, ok := id.Proof.(*identity.Peer)
	if !ok {
		return errors.New("registry: a trial without a verified certificate")
	}
	if node != nodeOf(peer) {
		return wrongCertificate(peer, node)
	}
	if _, err := r.trusted(ctx, &credentials{peer: peer, serial: state.CertificateSerial(id.Serial)}); err != nil {
		return err
	}
	return r.tryRoom(id, node)
}

// wrongCertificate is the refusal of a name that is not the certificate's.
func wrongCertificate(peer *identity.Peer, node execution.NodeID) *tunnel.Refusal {
	return refuse("wrong_node", fmt.Sprintf("the certificate is for node %q, not %q", peer.ID.Name(), node))
}

// tryRoom is about the sessions of the join token or certificate. A Node that is connected has its place.
func (r *Registry) tryRoom(id tunnel.Identity, node execution.NodeID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[node]; n != nil && len(n.sessions) > 0 {
		return nil
	}
	return r.roomLocked(id)
}
