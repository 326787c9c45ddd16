package admin

import (
	"context"
	"net/http"

	"iop/lease"
	"iop/state"
)

// nodeList shows who may connect in managed mode, and who may not.
func (a *api) nodeList(r *http.Request) (any, error) {
	allows, err := a.store.NodeAllows(r.Context())
	if err != nil {
		return nil, err
	}
	denials, err := a.store.Denials(r.Context())
	return NodeListView(allows, denials), err
}

// changeNodes makes a change of the lists, and has the Edge end the sessions that may not go on.
func (a *api) changeNodes(r *http.Request, action, part, value string, edit func(context.Context) (*AllowedNode, error)) (any, error) {
	ctx, cancel := lasting(r)
	defer cancel()
	allowed, err := edit(ctx)
	if err != nil {
		return nil, about(part, err)
	}
	ended, err := a.edge.NodesChanged(ctx)
	if err != nil {
		a.log.Error("the node list was changed, but sessions could not be checked against it", part, value, "error", err)
		return nil, &failure{http.StatusInternalServerError, "not_withdrawn", "", "the change is in force for new leases, but open sessions could not be checked against it yet"}
	}
	a.done(r, action, part, value, "sessions_ended", ended)
	return NodesChange{SessionsEnded: ended, Allowed: allowed}, nil
}

func (a *api) allowNode(r *http.Request) (any, error) {
	var body NewAllowance
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	node := nodeID(r)
	return a.changeNodes(r, "allow node", "node", string(node), func(ctx context.Context) (*AllowedNode, error) {
		allow, err := a.store.AllowNode(ctx, state.NodeAllow{Node: node, Slots: body.Slots, Profiles: body.Profiles}, by(r))
		view := allowedNodeView(&allow)
		return &view, err
	})
}

func (a *api) disallowNode(r *http.Request) (any, error) {
	node := nodeID(r)
	return a.changeNodes(r, "disallow node", "node", string(node), func(ctx context.Context) (*AllowedNode, error) {
		return nil, a.store.DisallowNode(ctx, node, by(r))
	})
}

func (a *api) denyNode(r *http.Request) (any, error) {
	node := nodeID(r)
	return a.changeNodes(r, "deny node", "node", string(node), func(ctx context.Context) (*AllowedNode, error) {
		return nil, a.store.DenyNode(ctx, state.Denial{Node: node}, by(r))
	})
}

func (a *api) undenyNode(r *http.Request) (any, error) {
	node := nodeID(r)
	return a.changeNodes(r, "undeny node", "node", string(node), func(ctx context.Context) (*AllowedNode, error) {
		return nil, a.store.UndenyNode(ctx, state.Denial{Node: node}, by(r))
	})
}

func (a *api) denyCertificate(r *http.Request) (any, error) {
	return a.onCertificate(r, "deny certificate", a.store.DenyNode)
}

func (a *api) undenyCertificate(r *http.Request) (any, error) {
	return a.onCertificate(r, "undeny certificate", a.store.UndenyNode)
}

func (a *api) onCertificate(r *http.Request, action string, edit func(context.Context, state.Denial, string) error) (any, error) {
	serial, err := state.ParseCertificateSerial(r.PathValue("serial"))
	if err != nil {
		return nil, invalid("serial", "serial must be a certificate's serial number in hexadecimal")
	}
	return a.changeNodes(r, action, "serial", string(serial), func(ctx context.Context) (*AllowedNode, error) {
		return nil, edit(ctx, state.Denial{Serial: serial}, by(r))
	})
}

// identity shows who the Edge is to its Nodes, and how its certificate fares.
func (a *api) identity(*http.Request) (any, error) {
	status, managed := a.edge.Identity()
	if !managed {
		return Identity{}, nil
	}
	return identityView(&status), nil
}

// signingKeys shows the keys that sign leases, by their ids.
func (a *api) signingKeys(*http.Request) (any, error) {
	if !a.edge.Managed() {
		return nil, errNotManaged
	}
	return signingKeysView(a.edge.SigningKeys()), nil
}

// errNotManaged is the answer in token mode.
var errNotManaged = &failure{http.StatusConflict, "not_managed", "", "the Edge runs in token mode, which signs no leases"}

// rotateSigningKey has leases signed by the next key, as soon as Nodes have known it for long enough.
func (a *api) rotateSigningKey(r *http.Request) (any, error) {
	if !a.edge.Managed() {
		return nil, errNotManaged
	}
	ctx, cancel := lasting(r)
	defer cancel()
	pending, err := a.edge.RotateSigningKey(ctx)
	if err != nil {
		return nil, err
	}
	answer := SigningKeyRotation{State: Done, Until: optional(pending), SigningKeys: signingKeysView(a.edge.SigningKeys())}
	if answer.Until != nil {
		answer.State = Pending
	}
	a.done(r, "rotate signing key", "state", answer.State)
	a.note(r.Context(), rotation(&answer))
	return answer, nil
}

// rotation is the entry of a rotation: pending until the next key may sign.
func rotation(done *SigningKeyRotation) state.AuditEntry {
	entry := state.AuditEntry{Action: state.AuditSigningKeyRotated}
	if done.Until != nil {
		entry.Outcome, entry.Expires = state.AuditPending, *done.Until
	}
	return entry
}

// revokeSigningKey has no lease verified by a key any more, from now on.
func (a *api) revokeSigningKey(r *http.Request) (any, error) {
	if !a.edge.Managed() {
		return nil, errNotManaged
	}
	id := lease.Thumbprint(r.PathValue("id"))
	ctx, cancel := lasting(r)
	defer cancel()
	found, err := a.edge.RevokeSigningKey(ctx, id)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, &failure{http.StatusNotFound, "not_found", "id", "there is no such signing key, or it is no longer in use"}
	}
	a.done(r, "revoke signing key", "id", string(id))
	a.note(r.Context(), state.AuditEntry{Action: state.AuditSigningKeyRevoked, Subject: string(id)})
	return signingKeysView(a.edge.SigningKeys()), nil
}

func (a *api) masterKeys(r *http.Request) (any, error) {
	uses, err := a.store.MasterKeyUses(r.Context())
	if err != nil {
		return nil, err
	}
	return list[MasterKey]{MasterKeyViews(uses)}, nil
}

// rewrap seals under the current master key what others that the Edge knows still seal.
func (a *api) rewrap(r *http.Request) (any, error) {
	answer, err := Rewrap(r.Context(), a.store, by(r))
	if err != nil {
		return nil, err
	}
	a.done(r, "rewrap", "moved", answer.Moved, "master_key", answer.MasterKey)
	return answer, nil
}

// Rewrap seals under the store's current master key what others that it knows still seal. Without a master key the error
// is a *state.CredentialError.
func Rewrap(ctx context.Context, store *state.Store, by string) (Rewrapped, error) {
	uses, err := store.MasterKeyUses(ctx)
	if err != nil {
		return Rewrapped{}, err
	}
	var answer Rewrapped
	for _, use := range uses {
		if use.Current {
			answer.MasterKey = use.ID
		}
	}
	if answer.MasterKey == "" {
		return answer, &state.CredentialError{Reason: state.CredentialNoMasterKey}
	}
	for _, use := range uses {
		if use.Current || !use.Known || use.Slots == 0 {
			continue
		}
		moved, err := store.Rewrap(ctx, use.ID, answer.MasterKey, by)
		answer.Moved += moved
		if err != nil {
			return answer, err
		}
	}
	return answer, nil
}
