package credential

import (
	"context"
	"sync"
	"time"

	"iop/execution"
	"iop/gateway/registry"
	"iop/state"
	"iop/tunnel/wire"
)

// ackWait is how long a Node may take to acknowledge that leases are withdrawn.
const ackWait = 2 * time.Second

// Withdrawal is what came of a change that leases must not outlive.
type Withdrawal struct {
	Leases int // leases that had not ended and were withdrawn
	Runs   int // runs that were cancelled: those of these leases, and those that had used theirs
	// Until is zero if no lease that was issued before the change can be used any more. Otherwise one may be, until then:
	// after a rotation because it is meant to, else because a Node has not acknowledged the withdrawal.
	Until time.Time
}

// Done reports whether no lease of before the change can be used at that time.
func (w Withdrawal) Done(now time.Time) bool { return !w.Until.After(now) }

// at returns what is true of it at a time.
func (w Withdrawal) at(now time.Time) Withdrawal {
	if w.Done(now) {
		w.Until = time.Time{}
	}
	return w
}

// selection says what is withdrawn, and how a Node is told.
type selection struct {
	matches func(*Grant) bool
	// slot is set where all leases of a slot are withdrawn, also those of runs that have ended: what says that a run
	// was cancelled does not say that its Node has heard of it.
	slot   execution.SlotName
	revoke func(*Grant) *wire.Revoke // of a slot: asked once, with nil
}

// slotBelow selects what has a revision of a slot below the given one.
func slotBelow(slot execution.SlotName, below execution.Revision) selection {
	return selection{
		matches: func(g *Grant) bool { return g.use.Slot == slot && g.revision < below },
		slot:    slot,
		revoke: func(*Grant) *wire.Revoke {
			return &wire.Revoke{Slot: string(slot), BelowRevision: uint64(below)}
		},
	}
}

// ofKey selects what was asked for with an API key.
func ofKey(key state.KeyID) selection {
	return selection{
		matches: func(g *Grant) bool { return g.use.Key == key },
		revoke:  func(g *Grant) *wire.Revoke { return &wire.Revoke{RunId: string(g.use.Run)} },
	}
}

// KeyRevoked is to be called after an API key was revoked in the state: it withdraws the leases of its runs, and cancels
// these. It takes about 2 s at most.
func (i *Issuer) KeyRevoked(ctx context.Context, key state.KeyID) Withdrawal {
	if key == "" {
		return Withdrawal{}
	}
	return i.withdraw(ctx, ofKey(key))
}

// holderKey is one session.
type holderKey struct {
	node execution.NodeID
	gen  execution.Generation
}

// holding is what is withdrawn from one session.
type holding struct {
	grants       []*Grant
	until        time.Time // when the last lease of it ends
	acknowledged bool
}

// withdraw takes back what is out. The state must forbid it already: what is about to be issued asks again.
func (i *Issuer) withdraw(ctx context.Context, s selection) (w Withdrawal) {
	holdings := i.collect(s, &w)
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	i.tellHolders(ctx, holdings, s)
	for _, h := range holdings {
		if !h.acknowledged && h.until.After(w.Until) {
			w.Until = h.until
		}
		for _, g := range h.grants {
			i.noteWithdrawn(g, h.acknowledged)
		}
	}
	return w.at(time.Now())
}

// collect finds what is withdrawn, and marks it so.
func (i *Issuer) collect(s selection, w *Withdrawal) map[holderKey]*holding {
	now := time.Now()
	holdings := map[holderKey]*holding{}
	at := func(key holderKey, until time.Time) *holding {
		h := holdings[key]
		if h == nil {
			h = &holding{}
			holdings[key] = h
		}
		if h.until.Before(until) {
			h.until = until
		}
		return h
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.epoch++
	for g := range i.live {
		if !s.matches(g) {
			continue
		}
		g.withdrawn = true
		h := at(g.holderKey(), g.expires)
		h.grants = append(h.grants, g)
		w.Runs++
		if g.expires.After(now) {
			w.Leases++
		}
	}
	if s.slot != "" {
		for key, end := range i.outLocked(s.slot, now) {
			at(key, end)
		}
	}
	return holdings
}

// tellHolders tells each session what is withdrawn from it, ends the runs, and waits until all have acknowledged it or
// ctx ends.
func (i *Issuer) tellHolders(ctx context.Context, holdings map[holderKey]*holding, s selection) {
	var wg sync.WaitGroup
	for key, h := range holdings {
		wg.Go(func() {
			err := i.tellHolder(ctx, key, h, s)
			if h.acknowledged = err == nil; err != nil {
				i.cfg.Logger.Warn("a node has not acknowledged the withdrawal of leases", "node", string(key.node), "generation", uint64(key.gen), "error", err)
			}
		})
	}
	for _, h := range holdings {
		for _, g := range h.grants {
			g.use.Cancel()
		}
	}
	wg.Wait()
}

func (i *Issuer) tellHolder(ctx context.Context, key holderKey, h *holding, s selection) error {
	if s.slot != "" {
		return i.cfg.Sessions.Revoke(ctx, key.node, key.gen, s.revoke(nil))
	}
	for _, g := range h.grants {
		if err := i.cfg.Sessions.Revoke(ctx, key.node, key.gen, s.revoke(g)); err != nil {
			return err
		}
	}
	return nil
}

// noteWithdrawn writes the audit row of one lease.
func (i *Issuer) noteWithdrawn(g *Grant, acknowledged bool) {
	outcome := state.AuditDone
	if !acknowledged {
		outcome = state.AuditPending // it ends by itself at the row's time
	}
	if err := i.cfg.Store.AuditLease(g.entry(state.AuditLeaseRevoked, outcome, "")); err != nil {
		i.cfg.Logger.Error("a withdrawn lease can't be recorded", "run_id", string(g.use.Run), "error", err)
	}
}

var _ Sessions = (*registry.Registry)(nil)
