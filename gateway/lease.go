package gateway

import (
	"context"
	"errors"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/credential"
	"iop/gateway/registry"
	"iop/identity"
	"iop/lease"
	"iop/openai"
	"iop/state"
	"iop/tunnel"
)

// startWait bounds how long the slots may take to be read when the Edge starts.
const startWait = 30 * time.Second

// newIssuer makes what issues leases: with signing keys of its own, which Nodes learn when they register.
func (s *Server) newIssuer() (err error) {
	if s.signing, err = lease.NewSigningKeys(); err != nil {
		return err
	}
	s.keyChanges.wake = make(chan struct{}, 1)
	s.keyChanges.changed(s.cfg.SigningKeyLife)
	ctx, cancel := context.WithTimeout(s.background, startWait)
	defer cancel()
	s.issuer, err = credential.New(ctx, credential.Config{
		Store: s.cfg.Store, Sessions: s.reg, Identity: s.cfg.Identity, Keys: s.signing, Logger: s.log,
	})
	return err
}

// runManaged begins what managed mode does in the background, until Close.
func (s *Server) runManaged() {
	s.tasks.Go(s.keepTrust)
	s.tasks.Go(s.rotateKeys)
	s.tasks.Go(func() { s.issuer.Run(s.background) })
}

// begin asks for the credential that the route wants for the ticket's target, if it wants one.
func (x *exchange) begin(t *admission.Ticket, attempt int) error {
	if t.Spec == nil || t.Spec.Slot == "" {
		return nil
	}
	if x.s.issuer == nil { // token mode takes no file with slots
		return &credential.RefusedError{Reason: credential.ReasonUnknownSlot}
	}
	method, path, contentType := x.op.Method, x.op.Path, ""
	for _, h := range x.headers {
		if h.Name == "content-type" {
			contentType = h.Value
		}
	}
	if t.Normalized {
		method, path, contentType = lease.RunMethod, lease.RunPath, lease.RunType
	}
	rec := x.rec
	body, more := x.outgoing(t)
	grant, err := x.s.issuer.Begin(credential.Use{
		Node: t.Target.Node, Generation: t.Target.Generation, Run: rec.id, Attempt: uint32(attempt),
		Principal: execution.PrincipalID(rec.principal), Key: rec.key, Route: execution.RouteName(rec.route),
		Slot: t.Spec.Slot, Profile: t.Spec.Profile, BaseURL: t.Spec.BaseURL,
		Method: method, Path: path, ContentType: contentType, Body: body, More: more,
		Cancel: func() { rec.cancel(execution.CodeCredentialRejected) },
	})
	x.grant = grant
	return err
}

// notPermitted is the verdict of a run that gets no credential because no Node that could serve it may have the slot.
func (x *exchange) notPermitted(e *admission.NotPermittedError) *verdict {
	err := x.s.issuer.Refuse(credential.Use{
		Node: e.Target.Node, Generation: e.Target.Generation, Run: x.rec.id,
		Principal: execution.PrincipalID(x.rec.principal), Key: x.rec.key, Route: execution.RouteName(x.rec.route),
		Slot: e.Spec.Slot, Profile: e.Spec.Profile, BaseURL: e.Spec.BaseURL,
	})
	v := &verdict{terminal: execution.Terminal{Outcome: execution.Failed, Code: execution.CodeCredentialRejected, Detail: err.Error()}}
	v.problem = problemOf(v.terminal)
	return v
}

// isRefused reports whether a run gets no credential: nothing else is tried.
func isRefused(err error) bool {
	_, refused := errors.AsType[*credential.RefusedError](err)
	return refused || errors.Is(err, tunnel.ErrNoRecipient)
}

// refusalOf is what a client is told about a run that gets no credential. Where the state failed, no credential was
// rejected, and the next attempt may succeed.
func refusalOf(err error) *openai.Error {
	if refused, ok := errors.AsType[*credential.RefusedError](err); ok {
		switch refused.Reason {
		case credential.ReasonState, credential.ReasonAudit:
			return openai.StateUnavailable(time.Second)
		}
	}
	return openai.CredentialRejected()
}

// settleGrant ends the attempt's grant. A run whose lease was withdrawn is not tried again, also where its session was
// lost over it.
func (x *exchange) settleGrant(v *verdict) {
	if x.grant == nil {
		return
	}
	if x.endGrant(v.terminal.Code) && v.problem != nil {
		v.terminal.Outcome, v.terminal.Code = execution.Failed, execution.CodeCredentialRejected
		v.problem, v.next = problemOf(v.terminal), nextNothing
	}
}

// endGrant says that the attempt is over, and with what code.
func (x *exchange) endGrant(code execution.Code) (withdrawn bool) {
	if x.grant != nil {
		withdrawn = x.grant.End(code)
		x.grant = nil
	}
	return withdrawn
}

// reached reports whether the run may have come to its provider: a Node that waits for a lease calls none.
func (x *exchange) reached(run registry.Run) bool {
	return run.OpenWritten() && (x.grant == nil || run.LeaseSent())
}

// errTokenMode says that what was asked for exists in managed mode only.
var errTokenMode = errors.New("the Edge runs in token mode, which leases no credentials")

// Identity implements admin.Edge.
func (o operator) Identity() (identity.Status, bool) {
	if !o.s.managed() {
		return identity.Status{}, false
	}
	return o.s.cfg.Identity.Status(), true
}

// Managed implements admin.Edge.
func (o operator) Managed() bool { return o.s.managed() }

// SlotChanged implements admin.Edge.
func (o operator) SlotChanged(ctx context.Context, slot execution.SlotName) (credential.Withdrawal, error) {
	if !o.s.managed() {
		return credential.Withdrawal{}, nil
	}
	return o.s.issuer.SlotChanged(ctx, slot)
}

// ProfilesChanged implements admin.Edge.
func (o operator) ProfilesChanged(ctx context.Context) error {
	if !o.s.managed() {
		return nil
	}
	return o.s.issuer.Sync(ctx)
}

// KeyRevoked implements admin.Edge.
func (o operator) KeyRevoked(ctx context.Context, key state.KeyID) (credential.Withdrawal, error) {
	if !o.s.managed() {
		return credential.Withdrawal{}, nil
	}
	return o.s.issuer.KeyRevoked(ctx, key), nil
}

// NodesChanged implements admin.Edge.
func (o operator) NodesChanged(ctx context.Context) (ended int, err error) {
	if !o.s.managed() {
		return 0, nil
	}
	ended, err = o.s.reg.Verify(ctx)
	o.s.tellNodes(ctx)
	return ended, err
}
