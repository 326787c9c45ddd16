package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"iop/execution"
	"iop/identity"
	"iop/lease"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// keeper opens the leases of one session: it holds the key that they are sealed to, and all that the Edge has said about
// them in that session. During a rotation two sessions live, and neither can use what is the other's.
type keeper struct {
	// Static after construction.
	agent     *Agent
	recipient *lease.Recipient
	ctx       context.Context // of the watch on the Edge's certificate
	stop      context.CancelFunc

	clock lease.EdgeClock
	keys  atomic.Pointer[lease.KeySet] // nil before Registered

	mu      sync.Mutex
	opener  *lease.Opener                             // guarded by mu; nil before Registered
	ended   bool                                      // guarded by mu
	minimum map[execution.SlotName]execution.Revision // guarded by mu
}

var _ tunnel.Keeper = (*keeper)(nil)

// newKeeper makes what one session needs: managed mode's SupervisorConfig.Keeper.
func (a *Agent) newKeeper() (tunnel.Keeper, error) {
	recipient, err := lease.NewRecipient()
	if err != nil {
		return nil, err
	}
	k := &keeper{agent: a, recipient: recipient, minimum: map[execution.SlotName]execution.Revision{}}
	k.ctx, k.stop = context.WithCancel(a.stopping)
	return k, nil
}

// Recipient implements tunnel.Keeper.
func (k *keeper) Recipient() []byte { return k.recipient.PublicJWK() }

// Registered implements tunnel.Keeper: is this the Edge, does it know the time, and by which keys does it sign.
func (k *keeper) Registered(r tunnel.Registration) error {
	source := k.agent.cfg.Identity
	peer, err := identity.EdgePeer(r.TLS, source, k.agent.cfg.EdgeID)
	if err != nil {
		return fmt.Errorf("this Node does not trust the Edge: %w", err)
	}
	k.clock.Observe(r.EdgeTime, r.Sent, r.Received)
	if err := k.clock.Check(); err != nil {
		return err
	}
	if err := k.take(r.Config, r.Keys); err != nil {
		return err
	}
	opener, err := lease.NewOpener(lease.OpenerConfig{
		Issuer:          lease.Issuer(peer.ID),
		Audience:        lease.Audience(source.ID()),
		Generation:      r.Generation,
		Recipient:       k.recipient,
		Clock:           &k.clock,
		Keys:            func() lease.KeySet { return *k.keys.Load() },
		MinimumRevision: k.minimumRevision,
		Policy:          k.agent.knows,
		Counters:        &k.agent.leases.counters,
	})
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		opener.Close()
		return errors.New("the session has ended")
	}
	k.opener = opener
	k.agent.watchers.Go(func() { k.watchEdge(peer, r.Close) })
	k.agent.log.Debug("leases can be opened", "edge", peer.ID.String(), "recipient", string(k.recipient.Thumbprint()))
	return nil
}

// watchEdge closes the session when the Edge's certificate ends or its authority leaves the bundle: TLS does not look
// again.
func (k *keeper) watchEdge(peer *identity.Peer, closeSession func(string)) {
	err := peer.Watch(k.ctx, k.agent.cfg.Identity)
	if k.ctx.Err() != nil {
		return
	}
	k.agent.log.Warn("the Edge's certificate is no longer trusted; closing the session", "error", err)
	closeSession("this Node no longer trusts the Edge's certificate")
}

// EdgeTime implements tunnel.Keeper.
func (k *keeper) EdgeTime(edge, sent, received time.Time) { k.clock.Observe(edge, sent, received) }

// Refreshed implements tunnel.Keeper.
func (k *keeper) Refreshed(config *wire.EdgeConfig, keys [][]byte) error { return k.take(config, keys) }

// take notes what the Edge announces. Revisions only rise: what was refused once stays refused. keys is nil where they
// have not changed, which is no set of keys at the registration.
func (k *keeper) take(config *wire.EdgeConfig, keys [][]byte) error {
	if keys != nil || k.keys.Load() == nil {
		set, err := lease.ParseKeySet(keys)
		if err != nil {
			return fmt.Errorf("the Edge's verification keys: %w", err)
		}
		k.keys.Store(&set)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, revision := range config.GetMinimumRevisions() {
		slot := execution.SlotName(name)
		k.minimum[slot] = max(k.minimum[slot], execution.Revision(revision))
	}
	return nil
}

func (k *keeper) minimumRevision(slot execution.SlotName) execution.Revision {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.minimum[slot]
}

// Revoked implements tunnel.Keeper. When it returns, no lease that is meant will be sent to a provider, and the calls
// that have one are being cancelled.
func (k *keeper) Revoked(r *wire.Revoke) error {
	opener := k.current()
	if opener == nil {
		return errors.New("no leases to revoke before registration")
	}
	open, err := opener.Revoke(lease.Revocation{
		Lease:     execution.LeaseID(r.GetLeaseId()),
		Run:       execution.RunID(r.GetRunId()),
		Principal: execution.PrincipalID(r.GetPrincipal()),
		Slot:      execution.SlotName(r.GetSlot()),
		Below:     execution.Revision(r.GetBelowRevision()),
	})
	if err != nil {
		return err
	}
	k.agent.log.Info("the Edge withdrew leases", "slot", r.GetSlot(), "below", r.GetBelowRevision(), "run", r.GetRunId(), "cancelled", open)
	return nil
}

// Ended implements tunnel.Keeper: the key is gone, and every call that uses a lease of the session is cancelled.
func (k *keeper) Ended() {
	k.stop()
	k.recipient.Drop()
	k.mu.Lock()
	opener := k.opener
	k.ended = true
	k.mu.Unlock()
	if opener != nil {
		opener.Close()
	}
}

// current returns the session's Opener, nil before the registration.
func (k *keeper) current() *lease.Opener {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.opener
}

// followIdentity rotates the session when this Node has another certificate, until ctx ends: a new session beside the
// present one, whose runs finish.
func (a *Agent) followIdentity(ctx context.Context, shown string) {
	for {
		changed := a.cfg.Identity.Changed()
		if now := a.cfg.Identity.Status().Serial; now != shown && now != "" {
			shown = now
			a.log.Info("this Node has a new certificate; replacing the session", "serial", now)
			a.supervisor.Rotate()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
