package credential

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"iop/execution"
	"iop/gateway/registry"
	"iop/identity"
	"iop/lease"
	"iop/state"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// Use is one attempt of a run that needs a credential. Everything is required but Profile, BaseURL and Key.
type Use struct {
	Node       execution.NodeID
	Generation execution.Generation
	Run        execution.RunID
	Attempt    uint32
	Principal  execution.PrincipalID
	Key        state.KeyID // of the caller; empty where none is asked for
	Route      execution.RouteName
	Slot       execution.SlotName
	Profile    execution.ProfileName // empty: the slot's own
	BaseURL    lease.Target          // which of the profile's addresses; empty: the only one

	// The request, as the Node gets it: its body is Body and what follows it in More, which may be nil. Neither must change
	// until the lease was made or the Grant has ended.
	Method, Path, ContentType string
	Body                      []byte
	More                      [][]byte

	// Cancel ends the run because its lease was withdrawn. It must return at once.
	Cancel func()
}

// Grant is the right of one attempt to ask for one lease. Its methods are for any goroutine.
type Grant struct {
	issuer *Issuer
	use    Use // Body and More are nil once the lease was asked for

	// Guarded by issuer.mu.
	sealed    bool // a lease was issued
	ended     bool
	withdrawn bool
	id        execution.LeaseID // once sealed
	revision  execution.Revision
	target    lease.Target
	expires   time.Time // at the latest, before it was sealed
}

// Begin returns the Grant of an attempt, before it is opened. A *RefusedError says that there is no sense in sending the
// request: the slot does not exist or may not be used. Whoever gets a Grant must End it.
func (i *Issuer) Begin(use Use) (*Grant, error) {
	t := i.table.Load()
	slot, ok := t.slots[use.Slot]
	reason := Reason(0)
	switch {
	case !ok:
		reason = ReasonUnknownSlot
	case slot.Revoked:
		reason = ReasonSlotRevoked
	case !slot.Enabled:
		reason = ReasonSlotDisabled
	case use.Profile != "" && use.Profile != slot.Profile:
		reason = ReasonProfile
	}
	use.Profile = slot.Profile
	g := &Grant{issuer: i, use: use}
	if reason != 0 {
		return nil, g.refused(reason)
	}
	return g, nil
}

// Refuse notes that a run gets no lease because no Node that could serve it may have the slot, if there is one, and returns
// the *RefusedError that says so. Use.Node is one of these Nodes; nothing was sent to it.
func (i *Issuer) Refuse(use Use) error {
	g, err := i.Begin(use)
	if err != nil {
		return err
	}
	defer g.End(execution.CodeCredentialRejected)
	return g.refused(ReasonNotPermitted)
}

// Binding is what the Node is told that the lease will be bound to.
func (g *Grant) Binding() *wire.LeaseBinding {
	return &wire.LeaseBinding{
		Principal: string(g.use.Principal), Route: string(g.use.Route), Slot: string(g.use.Slot), Profile: string(g.use.Profile),
	}
}

// Lease makes the lease. It is tunnel's OpenSpec.Lease: called once, when the request was written. The error is a
// *RefusedError, tunnel.ErrSuperseded where the session has ended, or ctx's.
func (g *Grant) Lease(ctx context.Context) ([]byte, error) {
	hash := g.use.bodyHash()
	g.use.Body, g.use.More = nil, nil
	digest, err := lease.RequestDigest(g.use.Method, g.use.Path, g.use.ContentType, hash)
	if err != nil {
		return nil, g.refused(ReasonSeal)
	}
	for {
		epoch := g.issuer.now()
		holder, cred, err := g.fence(ctx)
		if err != nil {
			return nil, g.fenced(ctx, err)
		}
		switch ok, err := g.enter(epoch, cred.Revision); {
		case err != nil:
			return nil, err
		case ok:
			return g.seal(holder, cred, digest)
		}
	}
}

// bodyHash is the digest of the whole body.
func (u *Use) bodyHash() (sum [sha256.Size]byte) {
	if len(u.More) == 0 {
		return sha256.Sum256(u.Body)
	}
	h := sha256.New()
	h.Write(u.Body)
	for _, piece := range u.More {
		h.Write(piece)
	}
	return [sha256.Size]byte(h.Sum(sum[:0]))
}

// now returns the present epoch.
func (i *Issuer) now() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.epoch
}

// fenced notes a refusal. What says no because nobody waits for it any more is none.
func (g *Grant) fenced(ctx context.Context, err error) error {
	refused, ok := errors.AsType[*RefusedError](err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !ok:
		return err
	}
	return g.refused(refused.Reason)
}

// fence asks everything that could forbid the lease, in this moment.
func (g *Grant) fence(ctx context.Context) (registry.Holder, state.Credential, error) {
	moment := g.issuer.cfg.Store.Moment(ctx)
	holder, err := g.holder(ctx, moment)
	if err != nil {
		return holder, state.Credential{}, err
	}
	if err := g.caller(ctx, moment); err != nil {
		return holder, state.Credential{}, err
	}
	cred, err := g.issuer.cfg.Store.OpenCredentialAt(ctx, moment, g.use.Slot)
	if fault, ok := errors.AsType[*state.CredentialError](err); ok {
		return holder, cred, refuse(slotReasons[fault.Reason])
	}
	if err != nil {
		return holder, cred, g.unknown(err)
	}
	if cred.Profile.Name != g.use.Profile {
		return holder, cred, refuse(ReasonProfile)
	}
	g.target, err = addressOf(cred.Profile, g.use.BaseURL)
	return holder, cred, err
}

// holder finds out who would get the lease, and whether it may.
func (g *Grant) holder(ctx context.Context, moment state.Moment) (registry.Holder, error) {
	i := g.issuer
	holder, err := i.cfg.Sessions.Holder(g.use.Node, g.use.Generation)
	if err != nil {
		return holder, tunnel.ErrSuperseded
	}
	if err := holder.Peer.StillTrusted(i.cfg.Identity, time.Now()); err != nil {
		if r, ok := errors.AsType[*identity.RefusedError](err); ok && r.Reason == identity.NoIdentity {
			return holder, refuse(ReasonOwnIdentity)
		}
		return holder, refuse(ReasonPeerIdentity)
	}
	allow, err := i.cfg.Store.NodeAllowedAt(ctx, moment, g.use.Node, holder.Serial)
	switch {
	case errors.Is(err, state.ErrNodeDenied):
		return holder, refuse(ReasonNodeDenied)
	case errors.Is(err, state.ErrNodeNotAllowed):
		return holder, refuse(ReasonNodeNotAllowed)
	case err != nil:
		return holder, g.unknown(err)
	case !allow.Allows(g.use.Profile, g.use.Slot):
		return holder, refuse(ReasonNotPermitted)
	}
	return holder, nil
}

// caller finds out whether the key that the run was asked for with is still good.
func (g *Grant) caller(ctx context.Context, moment state.Moment) error {
	if g.use.Key == "" {
		return nil // none is asked for
	}
	key, err := g.issuer.cfg.Store.KeyAt(ctx, moment, g.use.Key)
	switch {
	case errors.Is(err, state.ErrNotFound):
		return refuse(ReasonKeyRevoked)
	case err != nil:
		return g.unknown(err)
	case !key.RevokedAt.IsZero(), !key.Expires.IsZero() && !time.Now().Before(key.Expires):
		return refuse(ReasonKeyRevoked)
	}
	return nil
}

// unknown is the refusal where the state could not be asked.
func (g *Grant) unknown(err error) error {
	g.issuer.cfg.Logger.Error("can't read from the state whether a lease may be issued", "run_id", string(g.use.Run), "error", err)
	return refuse(ReasonState)
}

// addressOf returns the one address of the profile that is meant.
func addressOf(p state.Profile, want lease.Target) (lease.Target, error) {
	if want == "" && len(p.BaseURLs) != 1 {
		return "", refuse(ReasonTarget)
	}
	for _, base := range p.BaseURLs {
		target, err := lease.ParseTarget(base)
		if err == nil && (want == "" || target == want) {
			return target, nil
		}
	}
	return "", refuse(ReasonTarget)
}

// enter puts the Grant among those that a withdrawal reaches. False: something has changed since the epoch, so that what
// was found out is to be asked again.
func (g *Grant) enter(epoch uint64, revision execution.Revision) (bool, error) {
	i := g.issuer
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case g.ended:
		return false, context.Canceled
	case i.epoch != epoch:
		return false, nil
	}
	// To the second, as it will stand in the lease. One that is withdrawn before it is sealed is never sent.
	g.revision, g.expires = revision, time.Now().UTC().Truncate(time.Second).Add(i.cfg.Life)
	i.live[g] = struct{}{}
	i.leasedLocked(g.use.Slot, g.holderKey(), g.expires)
	return true, nil
}

func (g *Grant) holderKey() holderKey { return holderKey{g.use.Node, g.use.Generation} }

// seal makes the lease and notes it.
func (g *Grant) seal(holder registry.Holder, cred state.Credential, digest lease.Digest) ([]byte, error) {
	i := g.issuer
	binding, secret, err := g.binding(holder, cred, digest)
	if err != nil {
		return nil, g.unsealed(err)
	}
	defer secret.Wipe()
	token, id, expires, err := i.sealer.Seal(binding, secret, holder.Recipient)
	if err != nil {
		return nil, g.unsealed(err)
	}
	i.mu.Lock()
	g.id, g.expires = id, expires
	i.leasedLocked(g.use.Slot, g.holderKey(), expires)
	withdrawn, ended := g.withdrawn, g.ended
	g.sealed = !withdrawn && !ended
	i.mu.Unlock()
	switch {
	case ended:
		return nil, context.Canceled
	case withdrawn:
		return nil, g.refused(ReasonWithdrawn)
	}
	if err := i.cfg.Store.AuditLease(g.entry(state.AuditLeaseIssued, state.AuditDone, "")); err != nil {
		i.cfg.Logger.Error("a lease was not issued because it can't be recorded", "run_id", string(g.use.Run), "error", err)
		return nil, g.refused(ReasonAudit)
	}
	i.counts.issued.Add(1)
	return token, nil
}

// binding is the one use that the lease allows, and the credential as package lease wants it.
func (g *Grant) binding(holder registry.Holder, cred state.Credential, digest lease.Digest) (lease.Binding, lease.Secret, error) {
	header, err := lease.ParseHeader(cred.Profile.Header.String())
	if err != nil {
		return lease.Binding{}, lease.Secret{}, fmt.Errorf("profile %q: %w", cred.Profile.Name, err)
	}
	secret, err := lease.NewSecret([]byte(cred.Secret.Reveal()))
	if err != nil {
		return lease.Binding{}, lease.Secret{}, err
	}
	return lease.Binding{
		Audience: lease.Audience(holder.Peer.ID.String()), Generation: g.use.Generation, Run: g.use.Run, Attempt: g.use.Attempt,
		Principal: g.use.Principal, Route: g.use.Route, Slot: g.use.Slot, Profile: g.use.Profile, Revision: cred.Revision,
		Target: g.target, Digest: digest, Header: header,
	}, secret, nil
}

func (g *Grant) unsealed(err error) error {
	g.issuer.cfg.Logger.Error("a lease can't be sealed", "run_id", string(g.use.Run), "slot", string(g.use.Slot), "error", err)
	return g.refused(ReasonSeal)
}

// refused notes that there is no lease, and returns the error that says so.
func (g *Grant) refused(reason Reason) error {
	i := g.issuer
	i.counts.refused[reason].Add(1)
	i.cfg.Logger.Warn("no credential was leased to a run", "reason", reason.String(), "run_id", string(g.use.Run), "slot", string(g.use.Slot),
		"profile", string(g.use.Profile), "route", string(g.use.Route), "node", string(g.use.Node), "generation", uint64(g.use.Generation))
	if err := i.cfg.Store.AuditLease(g.entry(state.AuditLeaseRefused, state.AuditRefused, reason.String())); err != nil {
		i.cfg.Logger.Error("a refused lease can't be recorded", "run_id", string(g.use.Run), "error", err)
	}
	return refuse(reason)
}

// entry is the Grant's audit row.
func (g *Grant) entry(action state.AuditAction, outcome state.AuditOutcome, reason string) state.AuditEntry {
	g.issuer.mu.Lock()
	defer g.issuer.mu.Unlock()
	return state.AuditEntry{
		Actor: g.issuer.edge, Action: action, Outcome: outcome, Reason: reason,
		Lease: g.id, Run: g.use.Run, Attempt: int(g.use.Attempt), Principal: g.use.Principal, Route: g.use.Route, Slot: g.use.Slot,
		Profile: g.use.Profile, Revision: g.revision, Node: g.use.Node, Generation: g.use.Generation,
		Target: string(g.target), Expires: g.expires,
	}
}

// End says that the attempt is over, and with what code. No lease is made from then on. It reports whether the lease was
// withdrawn: then the run ends by that, whatever else it met. Only the first call counts.
func (g *Grant) End(code execution.Code) (withdrawn bool) {
	i := g.issuer
	i.mu.Lock()
	if withdrawn = g.withdrawn; g.ended {
		i.mu.Unlock()
		return withdrawn
	}
	g.ended = true
	delete(i.live, g)
	rejected := g.sealed && !g.withdrawn && code == execution.CodeCredentialRejected
	i.mu.Unlock()
	if rejected {
		_ = g.refused(ReasonRejectedByNode) // the run has its terminal
	}
	return withdrawn
}
